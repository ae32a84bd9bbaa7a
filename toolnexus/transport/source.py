"""
The bytes of an answer, made fit for sseclient-py.

The parser is fed whole events with line ends made ``\\n``, the byte-order mark stripped and bad
bytes replaced. What it would drop without a word, such as a JSON error that somebody sent without
any framing, becomes an event of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from toolnexus.errors import LimitError, ToolnexusError

__all__ = ["BARE", "EventSource"]

#: The name of an event that was no event on the wire: a JSON document, a web page, an error line.
BARE = "toolnexus.bare"

_BOM = b"\xef\xbb\xbf"

# A line that is no field of an event stream. The newline in front makes the search fast.
_NO_FIELD = rb"(?!data:|event:|id:|retry:|:|\n|data\n|\Z)"
_ODD = re.compile(rb"\n" + _NO_FIELD)
_ODD_AT_ONCE = re.compile(_NO_FIELD)

# What an odd line must begin with to be worth an event: JSON, a web page, an error.
_TELLING = (b"{", b"[", b"<", b"}", b"]", b'"', b" ", b"\t", b"error")

# What opens such a piece; the others of the above only go on with it.
_OPENING = (b"{", b"[", b"<", b"error")

#: The parser adds the lines of an event one by one: time grows with lines times bytes.
_MAX_WORK = 2**33


class EventSource:
    """
    An iterable of bytes for `sseclient.SSEClient`.

    Args:
        read: Returns the bytes that have arrived, ``b""`` at the end; raises a `ToolnexusError`.
        before_read: Called before each read that may have to wait.
        max_event_bytes: The most bytes of one event.
        max_response_bytes: The most bytes of the whole answer.
        streaming: Whether a stream was asked for; else a document is kept whole to its end.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        *,
        before_read: Callable[[], None] = lambda: None,
        max_event_bytes: int = 16 * 2**20,
        max_response_bytes: int = 256 * 2**20,
        streaming: bool = True,
    ) -> None:
        self._read = read
        self._before_read = before_read
        self._max_event_bytes = max_event_bytes
        self._max_response_bytes = max_response_bytes
        self._streaming = streaming
        #: Why the reading ended before the body did, or None.
        self.failure: ToolnexusError | None = None
        #: Whether the last event that was handed over lacked its end.
        self.cut_event = False
        #: The bytes received so far.
        self.received = 0
        #: The first bytes, for a message when nothing of it was an event.
        self.head = b""
        self._after_cr = False

    def close(self) -> None:
        """Do nothing: whoever made the source closes the connection."""

    def __iter__(self) -> Iterator[bytes]:
        data = self._start()
        if data.lstrip()[:1] in (b"{", b"[", b"<"):
            yield from self._document(data)
        else:
            yield from self._events(data)

    def _start(self) -> bytes:
        """Read until it is clear what kind of body this is, and strip the byte-order mark."""
        data = b""
        while True:
            more = self._next()
            data += more
            self.head = data[:400]
            if not more or (data.strip() and not _BOM.startswith(data[:3])):
                return data.removeprefix(_BOM)
            if data.startswith(_BOM) and data[3:].strip():
                return data[3:]

    def _next(self) -> bytes:
        """Read on; a failure is kept for later, so that what arrived before it counts."""
        self._before_read()
        try:
            data = self._read()
        except ToolnexusError as error:
            self.failure = error
            return b""
        self.received += len(data)
        if self.received > self._max_response_bytes:
            self.failure = LimitError(
                f"the answer is longer than max_response_bytes={self._max_response_bytes}"
            )
            return b""
        return self._lines(data) if self._after_cr or b"\r" in data else data

    def _lines(self, data: bytes) -> bytes:
        """Make every line end a newline, also one that is split over two reads."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n") or self._next()
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _events(self, data: bytes) -> Iterator[bytes]:
        """Yield blocks of whole events."""
        pending: list[bytes] = []
        size = 0
        while data:
            if not pending and self._is_plain(data):
                yield data
                data = self._next()
                continue
            # Looking for one newline first is many times as fast, and most pieces of a large event have none.
            cut = (data.rfind(b"\n\n") if b"\n" in data else -1) + 2
            if cut == 1:  # not found, but the blank line may be split over two reads
                cut = int(data[0] == 10 and bool(pending) and pending[-1].endswith(b"\n"))
            if cut:
                pending.append(data[:cut])
                yield from self._block(b"".join(pending))
                pending, size = [], 0
                data = data[cut:]
            if data:
                pending.append(data)
                size += len(data)
            if size > self._max_event_bytes:
                self.failure = self._too_large()
                return
            data = self._next()
        rest = self._rest(pending)
        if rest.strip():
            self.cut_event = not rest.endswith(b"\n") or self.failure is not None
            yield from self._block(rest)

    def _rest(self, parts: list[bytes]) -> bytes:
        """Return what has no end; not of an answer that is too long, where reading it would cost most."""
        if isinstance(self.failure, LimitError):
            self.cut_event = True
            return b""
        return b"".join(parts)

    def _too_large(self) -> LimitError:
        return LimitError(f"an event is longer than max_event_bytes={self._max_event_bytes}")

    def _is_plain(self, data: bytes) -> bool:
        """Tell whether a read brought one whole event of one line, as most do, with nothing to mend."""
        last = len(data) - 2
        return (
            data.find(b"\n") == last
            and data.startswith(b"data:")
            and data.endswith(b"\n\n")
            and data.isascii()
            and len(data) <= self._max_event_bytes
        )

    def _block(self, block: bytes) -> Iterable[bytes]:
        """Return one block, checked and mended, in pieces that the parser can take."""
        if not block.isascii():
            block = _valid(block)
        if len(block) > self._max_event_bytes or len(block) > 2**20:
            return self._big(block)
        return (_mark_odd_lines(block),)

    def _big(self, block: bytes) -> Iterator[bytes]:
        """Yield the events of a large block one by one, each within the limits."""
        start = 0
        while start < len(block):
            line = block.find(b"\n", start)  # again the fast look, from which on the slow ones begin
            found = block.find(b"\n\n", line) if line >= 0 else -1
            end = found if found >= 0 else len(block)
            size = end - start
            if size > self._max_event_bytes:
                self.failure = self._too_large()
                return
            if block.count(b"\n", line, end) * size > _MAX_WORK:
                self.failure = LimitError("an event has too many lines for its size")
                return
            # Each copy counts here: the event is taken out once, with the empty line behind it.
            yield _mark_odd_lines(block[start : end + 2])
            start = end + 2

    def _document(self, data: bytes) -> Iterator[bytes]:
        """Yield a body that is no event stream: a JSON document, one a line, or a web page."""
        lines: list[bytes] = []
        tail: list[bytes] = []
        while data:
            if not self._streaming or b"\n" not in data:
                tail.append(data)
                data = self._next()
                continue
            *whole, rest = (b"".join(tail) + data).split(b"\n")
            tail = [rest]
            for line in whole:
                lines.append(line)
                if line.rstrip().endswith(b"}") and (len(lines) == 1 or line[:1] == b"}") and _is_json(lines):
                    yield _as_event(b"\n".join(lines))
                    lines = []
            data = self._next()
        rest = self._rest([*(line + b"\n" for line in lines), *tail])
        if rest.strip():
            self.cut_event = self.failure is not None
            yield _as_event(_valid(rest))


def _valid(data: bytes) -> bytes:
    """Replace what is no UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _is_json(lines: list[bytes]) -> bool:
    try:
        json.loads(b"\n".join(lines))
    except ValueError:
        return False
    return True


def _as_event(document: bytes, name: str = BARE) -> bytes:
    body = b"\n".join(b"data: " + line for line in document.split(b"\n"))
    return b"event: " + name.encode() + b"\n" + body + b"\n\n"


def _mark_odd_lines(block: bytes) -> bytes:
    """Turn the lines that the parser would drop, and that tell something, into events."""
    if _ODD_AT_ONCE.match(block) is None and _ODD.search(block, block.find(b"\n")) is None:
        return block
    out: list[bytes] = []
    bare: list[bytes] = []

    def end_bare() -> None:
        if bare:
            out.append(b"\n" + _as_event(b"\n".join(bare)))
            bare.clear()

    for line in block.split(b"\n"):
        if _ODD_AT_ONCE.match(line + b"\n") and (bare or line.startswith(_OPENING)):
            if line.startswith(b"error") and not bare:
                out.append(b"\n" + _as_event(line.partition(b":")[2].strip() or line, "error"))
            elif line.startswith(_TELLING):
                bare.append(line)
            continue
        end_bare()
        out.append(line + b"\n")
    end_bare()
    return b"".join(out)
