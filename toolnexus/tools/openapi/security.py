"""What an operation needs to be let in, taken from the environment or from the caller."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.http_secrets import Credential, Template
from toolnexus.tools.openapi.references import Node

__all__ = ["Auth", "Guard", "variable_of"]

Auth = Mapping[str, str] | Literal[False] | None

#: Every variable begins like this, so that no document can name another secret of yours.
PREFIX = "TOOLNEXUS_AUTH_"

_COOKIE_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def variable_of(scheme: str) -> str:
    """
    Return the environment variable that holds the credential of a security scheme.

    >>> variable_of("petstore_auth"), variable_of("bearerAuth"), variable_of("api-key")
    ('TOOLNEXUS_AUTH_PETSTORE_AUTH', 'TOOLNEXUS_AUTH_BEARER_AUTH', 'TOOLNEXUS_AUTH_API_KEY')
    """
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", scheme)
    return PREFIX + re.sub(r"[^A-Z0-9]+", "_", words.upper())


@attrs.define
class Guard:
    """
    Finds the credentials of operations.

    Args:
        schemes: Where the document's security schemes are.
        auth: Values by scheme, which may hold ``${VARIABLE}``; None for the environment alone;
            False for no credentials at all.
        configured: Names, in lower case, of headers that the caller sets without our help.
        wanting: Fills up with what was needed and not found.
    """

    schemes: Node
    auth: Auth
    configured: frozenset[str]
    wanting: set[str] = attrs.field(factory=set)

    def check(self) -> None:
        """
        Check the names and values that the caller gave.

        Raises:
            ConfigurationError: The document has no such scheme, or a variable is not set.
        """
        known = {name for name, _ in self.schemes.members()}
        for name, value in (self.auth or {}).items():
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                raise ConfigurationError(f"auth: the document has no security scheme {name!r}, only {names}")
            if not isinstance(value, str):
                raise ConfigurationError(f"auth: the value of {name!r} must be a string")
            Template(f"security scheme {name}", value, True).check()

    def credentials(self, requirements: Any) -> tuple[Credential, ...]:
        """
        Return what an operation sends to be let in.

        Args:
            requirements: The operation's ``security``: alternatives, of which the first is taken
                whose schemes all have a value.
        """
        alternatives = (
            [r for r in requirements if isinstance(r, Mapping)] if isinstance(requirements, list) else []
        )
        if not alternatives or self.auth is False:
            return ()
        for alternative in alternatives:
            if alternative and all(self._available(name) for name in alternative):
                return tuple(c for name in alternative for c in self._credential(name))
        if not any(self._covered(alternative) for alternative in alternatives):
            self.wanting |= {name for name in alternatives[0] if not self._available(name)}
        return ()

    def refuse_missing(self) -> None:
        """
        Refuse operations that cannot be let in.

        Raises:
            ConfigurationError: There are such; the message names the variables.
        """
        if not self.wanting:
            return
        wanted = ", ".join(f"{name} ({variable_of(name)})" for name in sorted(self.wanting))
        raise ConfigurationError(
            f"no credential for the security schemes: {wanted}. Set the variable, give auth={{...}}, "
            "or say auth=False to send none"
        )

    def _scheme(self, name: str) -> Node:
        return self.schemes.get(name)

    def _available(self, name: str) -> bool:
        supported = self._scheme(name).text("type") == "mutualTLS" or self._place(name) is not None
        given = bool(self.auth) and name in (self.auth or {})
        return supported and (
            given or self._scheme(name).text("type") == "mutualTLS" or variable_of(name) in os.environ
        )

    def _covered(self, alternative: Mapping[str, Any]) -> bool:
        """Whether the caller's own headers do the job; nothing at all needs none."""
        places = [self._place(name) for name in alternative]
        return all(p is not None and p[0] == "header" and p[1].lower() in self.configured for p in places)

    def _place(
        self, name: str
    ) -> tuple[Literal["header", "query", "cookie"], str, Literal["", "Bearer", "Basic"]] | None:
        """Return where a scheme's value goes, under which name, and how; None if we cannot do it."""
        scheme = self._scheme(name)
        kind, where, key = scheme.text("type"), scheme.text("in"), scheme.text("name")
        if kind == "apiKey":
            if where == "query" and key:
                return "query", key, ""
            if where in ("header", "cookie") and _COOKIE_NAME.fullmatch(key):
                return ("header" if where == "header" else "cookie"), key, ""
            return None
        http = scheme.text("scheme").lower()
        if kind in ("oauth2", "openIdConnect") or (kind == "http" and http == "bearer"):
            return "header", "Authorization", "Bearer"
        return ("header", "Authorization", "Basic") if (kind, http) == ("http", "basic") else None

    def _credential(self, name: str) -> list[Credential]:
        place = self._place(name)
        if place is None:
            return []  # mutual TLS: the certificate belongs to the requests session
        value = (self.auth or {}).get(name) or f"${{{variable_of(name)}}}"
        template = Template(f"security scheme {name}", value, True)
        template.check()
        if place[0] == "cookie" and re.search(r'[\s",;\\]', template.fill()):
            raise ConfigurationError(f"security scheme {name}: the value is not fit for a cookie")
        return [Credential(place[0], place[1], template, place[2])]
