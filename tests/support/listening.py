"""What test servers on a plain socket have in common: accepting, a thread a connection, an orderly end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from toolnexus.closing import Closing

__all__ = ["Listening"]


class Listening(Closing):
    """
    A listener on 127.0.0.1 that serves every connection in a thread of its own.

    Attributes:
        port: Where it listens.
        url: The address without a path.
        connections: How many it has accepted.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self._changed = threading.Condition()  # guards all that the threads share
        self._open: set[socket.socket] = set()
        self._closing = False
        self._threads = [threading.Thread(target=self._accept, name=type(self).__name__, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """End every connection and every thread."""
        self._closing = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass  # wakes the accepting thread, which sees that it is over
        self._threads[0].join(2)
        self._listener.close()
        with self._changed:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(2)

    # -- in the threads ----------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Serve a connection; an `OSError` means that the client has left."""
        raise NotImplementedError

    def left(self) -> None:
        """A client has left before its connection was served."""

    def _accept(self) -> None:
        while True:
            sock = self._listener.accept()[0]
            if self._closing:
                sock.close()
                return
            with self._changed:
                self.connections += 1
                self._open.add(sock)
                self._changed.notify_all()
            name = f"{type(self).__name__}-connection"
            thread = threading.Thread(target=self._serve, args=(sock,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with self._kept(sock):
            try:
                self.serve(sock)
            except OSError:
                if not self._closing:
                    self.left()

    @contextlib.contextmanager
    def _kept(self, sock: socket.socket) -> Iterator[None]:
        """Let ``close()`` know of a socket, and close it in the end."""
        with self._changed:
            self._open.add(sock)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(sock)
            sock.close()
