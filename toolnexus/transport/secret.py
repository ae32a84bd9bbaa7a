"""Keeping secrets out of what people read."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from requests.structures import CaseInsensitiveDict

__all__ = ["Scrubber", "Secret"]

_SHOWN = "[secret]"


class Secret:
    """
    A text that does not show itself.

    >>> Secret("sk-1")
    Secret('[secret]')
    >>> Secret("sk-1").reveal()
    'sk-1'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret('{_SHOWN}')"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


#: Header names whose values anybody may see.
_PLAIN = {
    "accept",
    "accept-encoding",
    "anthropic-beta",
    "anthropic-version",
    "connection",
    "content-type",
    "http-referer",
    "openai-beta",
    "referer",
    "user-agent",
    "x-title",
}


class Scrubber:
    """
    Replaces the secrets of a request wherever they turn up in a text.

    Args:
        url: The request's URL; the values of its query and its user information are secret.
        headers: Its headers; all values are secret but those of the well-known plain ones.

    >>> scrub = Scrubber("http://h/v1?key=K123", {"Authorization": "Bearer sk-1234"})
    >>> scrub("cannot open /v1?key=K123 with sk-1234")
    'cannot open /v1?key=[secret] with [secret]'
    """

    def __init__(self, url: str, headers: CaseInsensitiveDict[str] | dict[str, str]) -> None:
        self._url = url
        self._headers = headers

    @functools.cached_property
    def _values(self) -> list[str]:
        """The secrets, the longest first; most requests never ask for them."""
        values = {
            value.split(" ", 1)[-1] for name, value in self._headers.items() if name.lower() not in _PLAIN
        }
        parts = urlsplit(self._url)
        values.update(pair.partition("=")[2] for pair in parts.query.split("&"))
        values.update((parts.password or "", parts.username or ""))
        spelled = {form for value in values for form in (value, quote(value, safe=""), quote_plus(value))}
        # A short value would blot out ordinary words.
        return sorted((v for v in spelled if len(v) >= 4), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without the secrets."""
        for value in self._values:
            if value in text:
                text = text.replace(value, _SHOWN)
        return text

    def deep(self, value: Any, levels: int = 50) -> Any:
        """
        Return a JSON value with the secrets taken out of every text in it.

        Args:
            value: The value.
            levels: How deep to look; what is nested deeper is left out.

        >>> Scrubber("http://h", {"X-Key": "sk-1234"}).deep({"error": ["bad key sk-1234", 401]})
        {'error': ['bad key [secret]', 401]}
        """
        if isinstance(value, str):
            return self(value)
        if not isinstance(value, (list, dict)):
            return value
        if levels == 0:
            return "..."
        if isinstance(value, list):
            return [self.deep(item, levels - 1) for item in value]
        return {self(str(key)): self.deep(item, levels - 1) for key, item in value.items()}

    def chain(self, error: BaseException, cause: BaseException) -> None:
        """Make one exception the cause of another, unless a traceback would then print a secret."""
        error.__cause__ = None if self.holds(cause) else cause

    def holds(self, error: BaseException) -> bool:
        """Tell whether an exception, or one that it came from, shows a secret."""
        seen: set[int] = set()
        current: BaseException | None = error
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            try:
                shown = f"{current!r} {current} {current.__dict__!r}"
            except Exception:  # noqa: BLE001 - one of the user's may fail at anything: nobody knows what it shows
                return True
            if any(value in shown for value in self._values):
                return True
            current = current.__cause__ or current.__context__
        return False
