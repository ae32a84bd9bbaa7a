"""Names that every provider takes, and no two alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container

__all__ = ["MAX_NAME", "sanitize", "valid_name"]

#: The longest tool name that every provider takes.
MAX_NAME = 64

_BAD = re.compile(r"[^a-zA-Z0-9_-]")


def sanitize(text: str) -> str:
    """
    Replace every character that a tool name cannot have by ``_``.

    >>> sanitize("my.server/v1")
    'my_server_v1'
    """
    return _BAD.sub("_", text)


def valid_name(text: str, taken: Container[str] = ()) -> str:
    """
    Return a valid tool name for a text: the same for the same text, and none of those taken.

    It has letters, digits, ``_`` and ``-``, at most 64, and begins with a letter or ``_``. A name that
    must be cut, or that another one took, ends in a few characters made from the text.

    Args:
        text: What the tool is called where it comes from.
        taken: The names that are given away.

    >>> valid_name("a.b"), valid_name("a/b", {"a_b"}) != "a_b", len(valid_name("x" * 90))
    ('a_b', True, 64)
    """
    name = sanitize(text) or "tool"
    if not (name[0].isalpha() or name[0] == "_"):
        name = f"_{name}"  # some providers want no other beginning
    if len(name) <= MAX_NAME and name not in taken:
        return name
    salt = 0
    while True:
        mark = hashlib.sha256(f"{text}\0{salt}".encode("utf-8", "replace")).hexdigest()[:6]
        candidate = f"{name[: MAX_NAME - 7]}_{mark}"
        if candidate not in taken:
            return candidate
        salt += 1
