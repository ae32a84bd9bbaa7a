"""A small HTTP proxy on 127.0.0.1: CONNECT tunnels and absolute-form requests, with what was asked of it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Proxy"]

_FAREWELL = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """
    Forwards bytes both ways; when one side closes, so does the other.

    Attributes:
        url: The proxy's address.
        targets: What was asked for: ("CONNECT", "host:port") or ("GET", "http://host:port/path").
        heads: The heads of these requests as they came, for their headers.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.targets: list[tuple[str, str]] = []
        self.heads: list[bytes] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = False
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def live_tunnels(self) -> int:
        """How many sockets to clients and targets are open."""
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        """End every tunnel and every thread."""
        self._closing = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass  # wakes the accepting thread, which sees that it is over
        self._threads[0].join(2)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(2)

    # -- in the threads ----------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            sock = self._listener.accept()[0]
            if self._closing:
                sock.close()
                return
            thread = threading.Thread(target=self._serve, args=(sock,), name="proxy-tunnel", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with self._kept(client), contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                if not (more := client.recv(65536)):
                    return
                data += more
            self._forward(client, data)

    def _forward(self, client: socket.socket, data: bytes) -> None:
        """Connect to what the request names, and carry bytes until one side closes."""
        head, _, rest = data.partition(b"\r\n\r\n")
        method, target, version = head.split(b"\r\n")[0].decode("latin-1").split(" ")
        with self._lock:
            self.targets.append((method, target))
            self.heads.append(head)
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        try:
            server = socket.create_connection((parts.hostname or "", parts.port or 80), 5)
        except OSError:
            client.sendall(_FAREWELL)
            return
        with self._kept(server):
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                first = rest
            else:
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                lines = [f"{method} {path} {version}".encode("latin-1"), *head.split(b"\r\n")[1:]]
                first = b"\r\n".join(lines) + b"\r\n\r\n" + rest
            server.sendall(first)
            _carry(client, server)

    @contextlib.contextmanager
    def _kept(self, sock: socket.socket) -> Iterator[None]:
        """Let ``close()`` know of a socket, and close it in the end."""
        with self._lock:
            self._open.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side closes."""
    peer = {one: other, other: one}
    while True:
        for sock in select.select([one, other], [], [])[0]:
            data = sock.recv(65536)
            if not data:
                return
            peer[sock].sendall(data)
