"""Names for the model: valid for every provider, no two alike, and the same each time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["NameBook", "sanitize"]

#: The longest name that every provider takes.
MAX_NAME = 64

Key = tuple[str, str]


def sanitize(text: str) -> str:
    """
    Return a text with every character replaced that a tool name may not have.

    >>> sanitize("files/read.all")
    'files_read_all'
    """
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)


class NameBook:
    """
    Gives each tool of each server its name, and never another one.

    A name is ``server_tool``. One that is too long or taken gets a short hash of what it stands
    for at its end. A tool keeps its name as long as the book lives, whatever comes and goes.

    >>> NameBook().assign([("mail", "send"), ("mail", "list.all")])
    {('mail', 'send'): 'mail_send', ('mail', 'list.all'): 'mail_list_all'}
    """

    def __init__(self) -> None:
        self._names: dict[Key, str] = {}
        self._taken: set[str] = set()

    def assign(self, keys: Iterable[Key]) -> dict[Key, str]:
        """Return the names of these tools, each given as server and tool, in their order."""
        wanted = list(keys)
        # Those that need no change come first: they may have the plain name.
        for key in sorted(
            (k for k in wanted if k not in self._names), key=lambda k: _plain(k) != "_".join(k)
        ):
            self._names[key] = self._free(key)
            self._taken.add(self._names[key])
        return {key: self._names[key] for key in wanted}

    def _free(self, key: Key) -> str:
        name = _plain(key)
        if len(name) <= MAX_NAME and name not in self._taken:
            return name
        digest = hashlib.sha256("\0".join(key).encode("utf-8", "replace")).hexdigest()
        for length in range(6, len(digest)):
            tail = f"_{digest[:length]}"
            candidate = name[: MAX_NAME - len(tail)] + tail
            if candidate not in self._taken:
                return candidate
        raise ValueError(f"no free name for the tool {key[1]!r}")  # needs a broken hash to happen


def _plain(key: Key) -> str:
    """Return a tool's name before anything is done about length and doubles."""
    name = "_".join(sanitize(part) for part in key)
    return name if re.match(r"[a-zA-Z_]", name) else f"_{name}"
