"""The sockets and threads of a scripted server: accepts, serves each connection, and ends them all."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable

from toolnexus.testing._connection import BadRequest, Connection, PeerLeft
from toolnexus.testing._requests import RecordedRequest, read_request

__all__ = ["Listener"]

_BACKLOG = 1024


class Listener:
    """
    Accepts connections on 127.0.0.1 and hands their requests to a function.

    Each connection has a daemon thread of its own.

    Args:
        answer: Called with a connection and a request; says whether the connection may go on.
        left: Called when a client closed: with its last request, or None before the first.
        tls: The TLS context, or None for plain HTTP.
    """

    def __init__(
        self,
        answer: Callable[[Connection, RecordedRequest], bool],
        left: Callable[[RecordedRequest | None], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._answer = answer
        self._left = left
        self._tls = tls
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        # The lock guards what follows: the connections that are open, their threads, and the end.
        self._lock = threading.Lock()
        self._open: dict[Connection, threading.Thread] = {}
        self.accepted = 0
        self.closing = False
        self._thread = threading.Thread(target=self._accept, name=f"model-server-{self.port}", daemon=True)
        self._thread.start()

    @property
    def live(self) -> int:
        """How many connections are open."""
        with self._lock:
            return len(self._open)

    def wake(self) -> None:
        """Let every held answer look at its gate."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            connection.wake()

    def close(self, timeout: float = 1.0) -> None:
        """End every connection and thread, within ``timeout`` seconds."""
        with self._lock:
            if self.closing:
                return
            self.closing = True
        deadline = time.monotonic() + timeout
        self._stop.close()
        self._thread.join(timeout)
        self._stopped.close()
        with self._lock:
            open_now = dict(self._open)
        for connection in open_now:
            connection.interrupt()
        for thread in open_now.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # -- in the threads ----------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept until the server closes."""
        with self._sock, selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while not self.closing:
                selector.select()
                # Until there is none left: several may have come in the meantime.
                with contextlib.suppress(OSError):
                    while not self.closing:
                        self._start(self._sock.accept()[0])

    def _start(self, sock: socket.socket) -> None:
        """Serve a new connection in a new thread."""
        with self._lock:
            self.accepted += 1
            connection = Connection(sock, self.accepted)
            name = f"model-server-{self.port}-{self.accepted}"
            thread = threading.Thread(target=self._serve, args=(connection,), name=name, daemon=True)
            self._open[connection] = thread
        thread.start()

    def _serve(self, connection: Connection) -> None:
        """Serve a connection to its end, and see that nothing of it is left."""
        last: list[RecordedRequest] = []
        try:
            self._serve_requests(connection, last)
        except PeerLeft:
            if not self.closing:
                self._left(last[0] if last else None)
        except BadRequest as error:
            body = str(error).encode("utf-8", "replace")
            head = f"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            with contextlib.suppress(PeerLeft):
                connection.send(head.encode() + body)
        finally:
            connection.close()
            with self._lock:
                del self._open[connection]

    def _serve_requests(self, connection: Connection, last: list[RecordedRequest]) -> None:
        """Answer one request after the other for as long as both sides want to."""
        if self._tls is not None:
            connection.handshake(self._tls)
        going_on = True
        while going_on:
            request = read_request(connection)
            last[:] = [request]
            going_on = self._answer(connection, request)
        connection.finish()
