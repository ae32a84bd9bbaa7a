"""Headers with ``${VARIABLE}`` in them, and keeping what they hold out of everything people read."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote, quote_plus

import attrs

from toolnexus.errors import ConfigurationError

__all__ = ["Credential", "Redactor", "Template", "configured_headers", "quiet_logs"]

_VARIABLE = re.compile(r"\$\{([A-Za-z0-9_]+)\}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SECRET_NAME = re.compile(r"auth|cookie|key|token|secret|passw|session|signature", re.IGNORECASE)

#: A shorter value is no secret, and blotting it out would garble ordinary text.
_SHORTEST = 4

_BLOT = "[secret]"


@attrs.frozen
class Template:
    """
    A text that may hold ``${VARIABLE}``, filled in from the environment at each call.

    Args:
        name: What it is for, used in messages.
        text: The text; stays out of ``repr``.
        secret: Whether the whole of it is a secret, and not only what the variables hold.
    """

    name: str
    text: str = attrs.field(repr=False)
    secret: bool = False

    @property
    def variables(self) -> list[str]:
        """The variables that it names."""
        return _VARIABLE.findall(self.text)

    def check(self) -> None:
        """
        Refuse a template that cannot be filled in.

        Raises:
            ConfigurationError: A variable is not set, the syntax is wrong, or the value has a line break.
        """
        if "${" in _VARIABLE.sub("", self.text):
            raise ConfigurationError(f"{self.name}: a variable is written ${{NAME}}, in letters, digits, _")
        missing = [name for name in self.variables if name not in os.environ]
        if missing:
            raise ConfigurationError(f"{self.name}: the environment variable {missing[0]} is not set")
        value = self.fill()
        if any(ord(c) < 32 and c != "\t" for c in value) or not value.isascii():
            raise ConfigurationError(f"{self.name}: the value has a line break or a character beyond ASCII")

    def fill(self) -> str:
        """
        Return the text with the variables as they are now.

        Raises:
            ConfigurationError: One of them is not set any more.
        """
        try:
            return _VARIABLE.sub(lambda match: os.environ[match[1]], self.text)
        except KeyError as error:
            raise ConfigurationError(
                f"{self.name}: the environment variable {error.args[0]} is not set"
            ) from None

    def secrets(self) -> list[str]:
        """Return the parts of the filled-in text that nobody may see."""
        found = [os.environ[name] for name in self.variables if name in os.environ]
        if self.secret:
            text = self.fill()
            found += [text, *text.split(None, 1)[1:]]  # the second is the token without "Bearer"
        return found


@attrs.frozen
class Credential:
    """
    Something that goes out with every request and that the model neither gives nor sees.

    Args:
        place: Where it goes.
        name: The name of the header, query parameter or cookie.
        template: Its value.
        scheme: "Bearer" or "Basic", put before the value; "Basic" encodes it, too.
    """

    place: Literal["header", "query", "cookie"]
    name: str
    template: Template
    scheme: Literal["", "Bearer", "Basic"] = ""

    def value(self) -> str:
        """
        Return the value as it is sent.

        Raises:
            ConfigurationError: A variable is not set any more.
        """
        text = self.template.fill()
        if self.scheme == "Basic":
            text = base64.b64encode(text.encode()).decode("ascii")
        elif self.scheme and text.lower().startswith(f"{self.scheme.lower()} "):
            return text  # people often keep the word with the token
        return f"{self.scheme} {text}".lstrip()


def configured_headers(headers: Mapping[Any, Any] | None) -> list[Credential]:
    """
    Check the headers that a tool is configured with.

    Args:
        headers: Names and values; a value may hold ``${VARIABLE}``.

    Returns:
        One credential for each.

    Raises:
        ConfigurationError: A name or value is not fit for a header, or a variable is not set.
    """
    found = []
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"not a header name: {name!r}")
        if not isinstance(value, str):
            raise ConfigurationError(f"header {name}: the value must be a string")
        template = Template(f"header {name}", value, bool(_SECRET_NAME.search(name)))
        template.check()
        found.append(Credential("header", name, template))
    return found


class Redactor:
    """
    Blots secrets out of text, in the spellings that they take on the wire.

    Args:
        secrets: The values that nobody may see.

    >>> Redactor(["s3cret/1"]).clean("you sent s3cret/1, that is s3cret%2F1")
    'you sent [secret], that is [secret]'
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {
            spelling for secret in secrets if len(secret) >= _SHORTEST for spelling in _spellings(secret)
        }
        # The longest first, so that no part of one is left when a shorter one is blotted out.
        self._spellings = sorted(spellings, key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._spellings)}>"

    def clean(self, text: str, *, cut: bool = False) -> str:
        """
        Return the text without the secrets.

        Args:
            text: The text.
            cut: Whether the text was cut off, so that it may end within a secret.
        """
        for spelling in self._spellings:
            text = text.replace(spelling, _BLOT)
        return self._without_tail(text) if cut else text

    def _without_tail(self, text: str) -> str:
        for spelling in self._spellings:
            for size in range(min(len(spelling) - 1, len(text)), _SHORTEST - 1, -1):
                if text.endswith(spelling[:size]):
                    return text[:-size] + _BLOT
        return text


def _spellings(secret: str) -> set[str]:
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        json.dumps(secret)[1:-1],
        base64.b64encode(secret.encode()).decode("ascii"),
    }


class _Current(threading.local):
    redactor: Redactor | None = None


_current = _Current()


class _LogFilter(logging.Filter):
    """Cleans what urllib3 logs about a request whose URL has a key in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        redactor = _current.redactor
        if redactor is not None:
            record.msg, record.args = redactor.clean(record.getMessage()), None
        return True


_filter = _LogFilter()


@contextlib.contextmanager
def quiet_logs(redactor: Redactor) -> Iterator[None]:
    """Keep secrets out of what urllib3 logs in this thread meanwhile."""
    logging.getLogger("urllib3.connectionpool").addFilter(_filter)  # does nothing when it is there
    before, _current.redactor = _current.redactor, redactor
    try:
        yield
    finally:
        _current.redactor = before
