"""One accepted connection: reads requests, writes bytes and notices at once when the peer goes away."""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable

__all__ = ["BadRequest", "Connection", "PeerLeft"]

_READ = 65536
_MAX_HEAD = 1 << 20


class PeerLeft(Exception):
    """The client closed its side, or the server is closing."""


class BadRequest(Exception):
    """What came is no HTTP request."""


def _selector() -> selectors.BaseSelector:
    """Return a selector that needs no file descriptor of its own where there is one."""
    return selectors.PollSelector() if hasattr(select, "poll") else selectors.SelectSelector()


class Connection:
    """
    A non-blocking socket with a buffer of what was read.

    Every wait, for room to write, for a moment to pass or for a gate to open, listens to the peer as
    well. So a client that closes is noticed in any phase.

    Args:
        sock: The accepted socket; the connection owns it from here on.
        number: Its number, from 1.
    """

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self._sock = sock
        self._sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._selector = _selector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._interest = selectors.EVENT_READ
        # The lock guards the pair of wake-up sockets, which exist only once somebody waits for a gate.
        self._lock = threading.Lock()
        self._alarm: tuple[socket.socket, socket.socket] | None = None
        self._closed = False

    def handshake(self, context: ssl.SSLContext) -> None:
        """Begin TLS; PeerLeft where the client does not go along."""
        raw = self._sock
        self._selector.unregister(raw)
        try:
            self._sock = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            raise PeerLeft from error
        finally:
            self._selector.register(self._sock, selectors.EVENT_READ)
        tls: ssl.SSLSocket = self._sock
        while True:
            try:
                return tls.do_handshake()
            except ssl.SSLWantReadError:
                self._wait(selectors.EVENT_READ, None)
            except ssl.SSLWantWriteError:
                self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE, None)
            except OSError as error:
                raise PeerLeft from error

    # -- reading -----------------------------------------------------------------------------

    def read_until(self, mark: bytes) -> bytes:
        """Return what comes up to a mark, the mark included."""
        start = 0
        while (at := self._buffer.find(mark, start)) < 0:
            start = max(0, len(self._buffer) - len(mark))
            if len(self._buffer) > _MAX_HEAD:
                raise BadRequest("the head of the request has no end")
            self._read_more()
        return self._take(at + len(mark))

    def read_exactly(self, count: int) -> bytes:
        """Return so many bytes."""
        while len(self._buffer) < count:
            self._read_more()
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _read_more(self) -> None:
        """Wait for the peer's next bytes; PeerLeft where there are none to come."""
        while not self._receive():
            self._wait(selectors.EVENT_READ, None)

    def _receive(self) -> bool:
        """Put what has arrived into the buffer; whether there was anything. PeerLeft at the end."""
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except (OSError, ValueError) as error:
            raise PeerLeft from error
        if not data:
            raise PeerLeft
        self._buffer += data
        return True

    # -- writing -----------------------------------------------------------------------------

    def send(self, data: bytes | bytearray) -> None:
        """Send everything; PeerLeft as soon as the client is gone, also while its window is full."""
        view = memoryview(data)
        while view:
            if self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE, None) & selectors.EVENT_READ:
                self._receive()
            try:
                view = view[self._sock.send(view) :]
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except (OSError, ValueError) as error:
                raise PeerLeft from error

    # -- waiting -----------------------------------------------------------------------------

    def pause(self, seconds: float | None, until: Callable[[], bool]) -> bool:
        """
        Stay silent for a while.

        Args:
            seconds: How long at most; None: for as long as it takes.
            until: Asked at every :meth:`wake`; the pause ends when it says yes.

        Returns:
            Whether ``until`` ended the pause.

        Raises:
            PeerLeft: The client closed meanwhile.
        """
        self._arm()
        deadline = None if seconds is None else time.monotonic() + seconds
        while not until():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._wait(selectors.EVENT_READ, left) & selectors.EVENT_READ:
                self._receive()
        return True

    def wake(self) -> None:
        """Let a pause look again; from any thread."""
        with self._lock:
            if self._alarm is not None:
                with contextlib.suppress(OSError):
                    self._alarm[1].send(b"!")

    def _arm(self) -> None:
        """Make the wake-up sockets."""
        with self._lock:
            if self._alarm is None and not self._closed:
                self._alarm = socket.socketpair()
                for end in self._alarm:
                    end.setblocking(False)
                self._selector.register(self._alarm[0], selectors.EVENT_READ)

    def _wait(self, interest: int, timeout: float | None) -> int:
        """Wait for the peer, a wake-up or the time; return what the peer's socket is ready for."""
        if interest != self._interest:
            self._selector.modify(self._sock, interest)
            self._interest = interest
        ready = 0
        for key, events in self._selector.select(timeout):
            if key.fileobj is self._sock:
                ready = events
            elif self._alarm is not None:
                with contextlib.suppress(OSError):
                    self._alarm[0].recv(64)
        return ready

    # -- ending ------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """End every wait of the connection's thread with PeerLeft; from any thread."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def finish(self) -> None:
        """Tell the client that nothing more comes, as politely as the transport can."""
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.unwrap()

    def reset(self) -> None:
        """Close with a TCP reset."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the sockets; by the connection's own thread, as often as one likes."""
        with self._lock:
            self._closed = True
            self._selector.close()
            self._sock.close()
            for end in self._alarm or ():
                end.close()
            self._alarm = None
