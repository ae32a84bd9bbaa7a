"""The wire of stdio servers: bytes into lines, lines into messages, and what to do with neither."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs

__all__ = ["LineSplitter", "Overlong", "decode_line", "failure", "scrub"]

#: How much of the two ends of a line is looked at to find out whose answer it was.
ENDS = 512

PARSE_ERROR = -32700

_ID = rb'"id"\s*:\s*(\d+|"[^"\\]*")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_HEAD_ID = re.compile(rb"\s*\{\s*" + _VERSION + rb"\s*,\s*" + _ID + rb'\s*,\s*"(?:result|error)"')
# Right before the last brace of the line: so it belongs to the outermost object.
_TAIL_ID = re.compile(
    rb"(?:" + _VERSION + rb"\s*,\s*" + _ID + rb"|" + _ID + rb"\s*,\s*" + _VERSION + rb")\s*\}\s*\Z"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


@attrs.frozen
class Overlong:
    """A line that was longer than allowed, and so was dropped but for its ends."""

    length: int
    head: bytes
    tail: bytes

    @property
    def id(self) -> int | str | None:
        """The id of the answer that it was, where its ends show it."""
        return _answer_id(self.head, self.tail)


class LineSplitter:
    """
    Cuts a byte stream into lines, in linear time whatever the size of its pieces.

    Args:
        limit: The longest line in bytes; a longer one comes out as an `Overlong`.

    >>> splitter = LineSplitter(limit=1024)
    >>> splitter.feed(b"one") + splitter.feed(b" line\\ntwo")
    [b'one line']
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._length = 0
        self._ends: tuple[bytes, bytes] | None = None

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        """Take the next bytes, and return the lines that they end."""
        lines: list[bytes | Overlong] = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._take(piece)
            lines.append(self._end())
        self._take(rest)
        return lines

    def _take(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._ends is not None:
            self._ends = self._ends[0], (self._ends[1] + piece)[-ENDS:]
        elif self._length > self._limit:
            whole = b"".join([*self._parts, piece])
            self._ends, self._parts = (whole[:ENDS], whole[-ENDS:]), []
        elif piece:
            self._parts.append(piece)

    def _end(self) -> bytes | Overlong:
        line: bytes | Overlong = b"".join(self._parts)
        if self._ends is not None:
            line = Overlong(self._length, *self._ends)
        self._parts, self._length, self._ends = [], 0, None
        return line


def _answer_id(head: bytes, tail: bytes) -> int | str | None:
    """Return the id of the answer whose first and last bytes these are, or None if they do not show it."""
    match = _HEAD_ID.match(head) or _TAIL_ID.search(tail)
    found = next((group for group in match.groups() if group), None) if match else None
    return None if found is None else json.loads(found.decode("utf-8", "replace"))


def failure(request_id: int | str | None, message: str) -> dict[str, Any]:
    """Return an answer that fails a request, in place of one that nobody can read."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": PARSE_ERROR, "message": message}}


def decode_line(line: bytes) -> list[dict[str, Any]]:
    """
    Return the JSON-RPC messages that a line holds: one, several in a batch, or none where it is noise.

    Bytes that are not UTF-8 and lone surrogates become replacement characters. An answer that no
    client can read becomes an error with its id, so that its caller does not wait for ever.

    >>> decode_line(b"Server running on stdio")
    []
    """
    try:
        data = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        broken = _answer_id(line[:ENDS], line[-ENDS:])
        return [] if broken is None else [failure(broken, f"the server's answer is not JSON: {error}")]
    if b"\\ud" in line or b"\\uD" in line:
        data = scrub(data)
    items = data if isinstance(data, list) else [data]
    return [_readable(item) for item in items if isinstance(item, dict) and _is_message(item)]


def _is_message(item: dict[str, Any]) -> bool:
    return item.get("jsonrpc") == "2.0" and any(key in item for key in ("method", "result", "error"))


def _readable(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message as it is if it can be read, else an error in its place."""
    if "method" in item or isinstance(item.get("result"), dict) or _is_error(item.get("error")):
        return item
    shown = json.dumps(item.get("error", item.get("result")))[:200]
    return failure(item.get("id"), f"the server's answer has the wrong shape: {shown}")


def _is_error(error: Any) -> bool:
    return (
        isinstance(error, dict)
        and isinstance(error.get("code"), int)
        and isinstance(error.get("message"), str)
    )


def scrub(value: Any) -> Any:
    """
    Return JSON with its lone surrogates, which no UTF-8 can carry, replaced.

    >>> scrub(["ok", "half \\ud83d"]) == ["ok", "half \\ufffd"]
    True
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    return value
