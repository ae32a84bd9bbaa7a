"""Servers below HTTP: exact bytes, exact endings, and listeners that never get anywhere."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence

from tests.support.listening import Listening

__all__ = ["CLOSE", "HOLD", "RESET", "RawServer", "full_backlog", "silent_tls"]

#: Ends the connection with a FIN.
CLOSE = "close"
#: Ends the connection with a TCP reset.
RESET = "reset"
#: Says nothing more until the client leaves.
HOLD = "hold"


class RawServer(Listening):
    """
    Plays steps to every connection: bytes to send, a number of seconds to stay silent, or how it ends.

    Args:
        steps: The steps. A last one that is no ending is followed by ``CLOSE``.
        read_request: Whether to wait for a request (its blank line and its Content-Length) before the steps.

    Attributes:
        received: What each connection sent, in the order in which it was all there.
        peer_closed_at: When each client that left was noticed, by ``time.monotonic()``.
    """

    def __init__(self, steps: Sequence[bytes | float | str], *, read_request: bool = True) -> None:
        self._steps = list(steps)
        self._read_request = read_request
        self.received: list[bytes] = []
        self.peer_closed_at: list[float] = []
        super().__init__()

    def wait_for_peer_close(self, n: int = 1, timeout: float = 5.0) -> float:
        """Return when the n-th client that left was noticed; AssertionError where it does not leave."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.peer_closed_at) >= n, timeout):
                raise AssertionError(f"{len(self.peer_closed_at)} of {n} clients left within {timeout:g} s")
            return self.peer_closed_at[n - 1]

    def wait_for_connection(self, n: int = 1, timeout: float = 5.0) -> None:
        """Wait until n connections were accepted in all."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.connections >= n, timeout):
                raise AssertionError(f"{self.connections} of {n} connections within {timeout:g} s")

    # -- in the threads ----------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Play the steps."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._play(sock)

    def left(self) -> None:
        """Write down when a client left."""
        with self._changed:
            self.peer_closed_at.append(time.monotonic())
            self._changed.notify_all()

    def _play(self, sock: socket.socket) -> None:
        if self._read_request:
            request = _read_request(sock)
            with self._changed:
                self.received.append(request)
                self._changed.notify_all()
        for step in self._steps:
            if isinstance(step, bytes):
                sock.sendall(step)
            elif isinstance(step, str):
                return self._end(sock, step)
            elif _leaves(sock, step):
                raise ConnectionError
        return None

    def _end(self, sock: socket.socket, how: str) -> None:
        if how == RESET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == HOLD and _leaves(sock, None):
            raise ConnectionError


def _read_request(sock: socket.socket) -> bytes:
    """Return one request: its head, and as much of a body as its Content-Length says."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    ]
    while len(body) < int(lengths[0] if lengths else 0):
        body += _receive(sock)
    return head + b"\r\n\r\n" + body


def _receive(sock: socket.socket) -> bytes:
    """Return what comes next; ConnectionError where the client has left."""
    data = sock.recv(65536)
    if not data:
        raise ConnectionError
    return data


def _leaves(sock: socket.socket, seconds: float | None) -> bool:
    """Wait for so long, or for ever; return whether the client left meanwhile."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if select.select([sock], [], [], left)[0] and not sock.recv(65536):
            return True
    return False


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """
    Yield the URL of a listener whose queue is full, so that ``connect()`` to it hangs.

    Whether it does depends on the system; on Linux it does.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(16):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(address)
            except TimeoutError:
                break
        yield f"http://127.0.0.1:{address[1]}"


@contextlib.contextmanager
def silent_tls() -> Iterator[tuple[str, RawServer]]:
    """Yield the https URL, and the server, of a listener that accepts and never says a word of TLS."""
    with RawServer([HOLD], read_request=False) as server:
        yield f"https://127.0.0.1:{server.port}", server
