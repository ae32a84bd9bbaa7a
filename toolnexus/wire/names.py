"""Ids in the form that the strictest endpoint takes."""

from __future__ import annotations

import hashlib
import re

__all__ = ["nine_characters"]

_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def nine_characters(id: str) -> str:  # noqa: A002
    """
    Map an id to nine letters and digits, always the same for the same id.

    >>> nine_characters("abcdef123"), len(nine_characters("call_abc_1234567890"))
    ('abcdef123', 9)
    """
    if _NINE.fullmatch(id):
        return id
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "replace")).digest()[:8], "big")
    digits = []
    for _ in range(9):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(digits)
