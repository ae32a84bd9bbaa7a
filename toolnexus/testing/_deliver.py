"""Sends one response over a connection: framing, compression, pieces, pauses, holds and cuts."""

from __future__ import annotations

import http.client
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Literal

from toolnexus.testing._answers import Delivery, Framing
from toolnexus.testing._connection import Connection
from toolnexus.testing._render import Rendered

__all__ = ["Gate", "Sender"]

_BATCH = 65536
_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)


class Gate:
    """What a held answer waits for; the server opens it by ``release()``."""

    def __init__(self) -> None:
        self.opened = False


class Sender:
    """
    Sends one response.

    Args:
        connection: Where to.
        gate: What a hold waits for.
        response: What to send.
        keep_alive: Whether the client would use the connection again.
        http_1_0: Whether it speaks HTTP/1.0, which knows no chunks.
    """

    def __init__(
        self, connection: Connection, gate: Gate, response: Rendered, *, keep_alive: bool, http_1_0: bool
    ) -> None:
        plan = response.delivery
        framing = plan.framing or ("length" if response.whole else "chunked")
        self._connection = connection
        self._gate = gate
        self._response = response
        self._plan = plan
        self._framing: Framing = "close" if http_1_0 and framing == "chunked" else framing
        self._keep_alive = keep_alive and self._framing != "close"
        self._delay = 0.0 if response.whole else plan.delay
        # Without chunks only a write shows where a piece ends.
        split_shows = plan.split is not None and self._framing != "chunked"
        self._one_write = plan.one_write_per_event or split_shows
        self._encoder = _Gzip() if plan.gzip else _Plain()
        self._pending = bytearray()

    def send(self) -> bool:
        """
        Send all of the response, its holds and cuts included.

        Returns:
            Whether the connection may serve another request.

        Raises:
            PeerLeft: The client closed meanwhile.
        """
        if self._response.whole and self._plan.delay:
            self._silence(self._plan.delay)
        if self._plan.hold == "headers":
            self._hold(None)
        body, closing = self._encoded()
        self._pending += self._head(body, closing)
        self._send_pieces(body, first=True)
        if self._plan.hold == "mid-event":
            closing = self._half(closing)
        if self._plan.hold in (True, "mid-event"):
            self._hold(None if self._framing == "length" else self._plan.pings)
        if self._plan.cut:
            self._cut(self._plan.cut)
            return False
        self._send_pieces(closing, first=False)
        if self._framing == "chunked":
            self._pending += b"0\r\n\r\n"
        self._flush()
        return self._keep_alive

    # -- the head ----------------------------------------------------------------------------

    def _encoded(self) -> tuple[Iterable[bytes], Iterable[bytes]]:
        """Return body and closing as they go out; whole where their length must be known first."""
        body: Iterable[bytes] = map(self._encoder.encode, self._response.body)
        closing: Iterable[bytes] = self._encoder.ending(self._response.closing)
        if self._framing == "length":
            body = list(body)
            closing = list(closing)
        return body, closing

    def _head(self, body: Iterable[bytes], closing: Iterable[bytes]) -> bytes:
        """Return the status line and the headers."""
        headers: dict[str, str | None] = dict(self._response.headers)
        if self._framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif self._framing == "length":
            rest = sum(map(len, closing))
            missing = 1 if self._plan.cut and not rest else 0  # a cut answer must lack something
            headers["Content-Length"] = str(sum(map(len, body)) + rest + missing)
        if self._plan.gzip:
            headers["Content-Encoding"] = "gzip"
        if not self._keep_alive:
            headers["Connection"] = "close"
        _override(headers, self._plan)
        reason = http.client.responses.get(self._response.status, "Scripted")
        lines = [f"HTTP/1.1 {self._response.status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    # -- the body ----------------------------------------------------------------------------

    def _send_pieces(self, pieces: Iterable[bytes], *, first: bool) -> None:
        """Send the pieces of a body, with a pause before each but the very first."""
        for piece in pieces:
            if self._delay and not first:
                self._silence(self._delay)
            first = False
            self._put(piece)

    def _put(self, data: bytes) -> None:
        """Frame some bytes of the body; send them now, or with those that follow."""
        for piece in _slices(data, self._plan.split):
            if self._one_write:
                self._flush()
            self._pending += b"%x\r\n%b\r\n" % (len(piece), piece) if self._framing == "chunked" else piece
            if self._one_write or len(self._pending) >= _BATCH:
                self._flush()

    def _half(self, closing: Iterable[bytes]) -> Iterable[bytes]:
        """Send the first half of the next piece and return what is left."""
        rest = iter(closing)
        piece = next(rest, b"")
        middle = len(piece) // 2
        self._put(piece[:middle])
        return itertools.chain([piece[middle:]], rest)

    def _flush(self) -> None:
        """Send what is waiting."""
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._connection.send(pending)

    # -- silence and early ends --------------------------------------------------------------

    def _silence(self, seconds: float) -> None:
        """Wait, and notice a client that leaves."""
        self._flush()
        self._connection.pause(seconds, lambda: False)

    def _hold(self, pings: float | None) -> None:
        """Wait for the gate, with a ping now and then."""
        self._flush()
        while not self._connection.pause(pings, lambda: self._gate.opened):
            self._put(self._encoder.encode(self._response.ping))
            self._flush()

    def _cut(self, how: Literal["close", "reset"]) -> None:
        """End the connection in the middle of the answer."""
        self._flush()
        if how == "reset":
            self._connection.reset()
        else:
            self._connection.close()


class _Plain:
    """Bytes as they are."""

    def encode(self, data: bytes) -> bytes:
        return data

    def ending(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        yield from pieces


class _Gzip(_Plain):
    """gzip; every piece can be read as soon as it is there."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(wbits=31)

    def encode(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def ending(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        yield from map(self.encode, pieces)
        yield self._packer.flush()


def _override(headers: dict[str, str | None], plan: Delivery) -> None:
    """Put the headers of the script over ours, whatever the case of their names."""
    ours = {name.lower(): name for name in headers}
    for name, value in plan.headers.items():
        headers.pop(ours.get(name.lower(), name), None)
        headers[name] = value


def _slices(data: bytes, split: int | Literal["events"] | None) -> Iterable[bytes]:
    """Yield the pieces in which some bytes go out; none is empty, as an empty chunk would end the body."""
    if split == "events":
        return (match[0] for match in _EVENT.finditer(data) if match[0])
    if split is not None:
        return (data[at : at + split] for at in range(0, len(data), split))
    return (data,) if data else ()
