"""
What a model says, made fit for the wire: path segments, query pairs and header values.

Everything here takes untrusted values. Nothing that comes out can leave the place that it was
meant for: a path segment stays one segment, a header stays one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

__all__ = [
    "ArgumentError",
    "check_header_value",
    "check_path",
    "json_bytes",
    "path_segment",
    "query_pairs",
    "scalar_text",
    "urlencoded",
]

_DOTS = re.compile(r"(?:^|[/\\])\.{1,2}(?:$|[/\\;?#])")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")

#: How often a value is unquoted when dots are looked for: some servers decode more than once.
_UNQUOTES = 4


class ArgumentError(ValueError):
    """An argument cannot be sent; the message is for the model."""


def scalar_text(value: Any) -> str:
    """
    Return a JSON value as the text that stands for it in a URL, a form or a header.

    >>> [scalar_text(v) for v in ("a", True, 3, 3.0, 2.5, {"k": [1, None]})]
    ['a', 'true', '3', '3', '2.5', '{"k":[1,null]}']
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))  # models say 3.0 where the schema says integer
    return json_text(value)


def json_text(value: Any) -> str:
    """Return a value as compact JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"a value has no JSON form: {error}") from error


def json_bytes(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8."""
    return text_bytes(json_text(value))


def text_bytes(text: str) -> bytes:
    """Return a text in UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError("a text has half of a surrogate pair, which cannot be sent") from error


def encoded(text: str, safe: str = "") -> str:
    """Return a text percent-encoded."""
    return quote(text_bytes(text), safe=safe)


def query_pairs(args: Mapping[str, Any]) -> list[tuple[str, str]]:
    """
    Return arguments as pairs for a query or a form: null is left out, a list repeats its name.

    >>> query_pairs({"a": True, "b": None, "c": [1, "x"], "d": {"k": 1}})
    [('a', 'true'), ('c', '1'), ('c', 'x'), ('d', '{"k":1}')]
    """
    return [
        (name, scalar_text(item))
        for name, value in args.items()
        for item in (value if isinstance(value, list | tuple) else [value])
        if item is not None
    ]


def urlencoded(pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs in the form encoding, a blank as ``%20``."""
    return urlencode([(text_bytes(k), text_bytes(v)) for k, v in pairs], quote_via=quote, safe="")


def path_segment(name: str, value: Any) -> str:
    """
    Return an argument percent-encoded for a path, a slash included.

    Args:
        name: The argument's name, for the message.
        value: What the model gave.

    Raises:
        ArgumentError: It is missing or empty, or it has a ``.`` or ``..`` segment in any spelling.

    >>> path_segment("id", "a/b c")
    'a%2Fb%20c'
    """
    if value is None or value == "":
        raise ArgumentError(f"the argument {name!r} is needed in the path and is missing or empty")
    text = scalar_text(value)
    _refuse_dots(name, text)
    return encoded(text)


def _refuse_dots(name: str, text: str) -> None:
    for _ in range(_UNQUOTES):
        if _DOTS.search(text):
            raise ArgumentError(f"the argument {name!r} would lead to another path: '.' and '..' are refused")
        text = unquote(text)


def check_path(path: str) -> None:
    """
    Refuse a finished path that has a ``.`` or ``..`` segment, such as two arguments can make up.

    Raises:
        ArgumentError: It has one.
    """
    if any(unquote(part) in (".", "..") for part in path.split("/")):
        raise ArgumentError("the arguments would lead to another path: '.' and '..' segments are refused")


def check_header_value(name: str, text: str) -> str:
    """
    Return a header value that is safe to send.

    Raises:
        ArgumentError: It has a line break or another control character, characters beyond ASCII,
            or begins or ends with a blank.
    """
    if text and not _HEADER_VALUE.fullmatch(text):
        raise ArgumentError(
            f"the argument {name!r} goes into a header, which takes printable ASCII on one line only"
        )
    return text
