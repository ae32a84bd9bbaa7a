"""A small HTTP proxy on 127.0.0.1: CONNECT tunnels and absolute-form requests, with what was asked of it."""

from __future__ import annotations

import select
import socket
from urllib.parse import urlsplit

from tests.support.listening import Listening

__all__ = ["Proxy"]

_FAREWELL = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy(Listening):
    """
    Forwards bytes both ways; when one side closes, so does the other.

    Attributes:
        targets: What was asked for: ("CONNECT", "host:port") or ("GET", "http://host:port/path").
        heads: The heads of these requests as they came, for their headers.
    """

    def __init__(self) -> None:
        self.targets: list[tuple[str, str]] = []
        self.heads: list[bytes] = []
        super().__init__()

    @property
    def live_tunnels(self) -> int:
        """How many sockets to clients and targets are open."""
        with self._changed:
            return len(self._open)

    # -- in the threads ----------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Read a request and forward it."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := sock.recv(65536)):
                return
            data += more
        self._forward(sock, data)

    def _forward(self, client: socket.socket, data: bytes) -> None:
        """Connect to what the request names, and carry bytes until one side closes."""
        head, _, rest = data.partition(b"\r\n\r\n")
        method, target, version = head.split(b"\r\n")[0].decode("latin-1").split(" ")
        with self._changed:
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


def _carry(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side closes."""
    peer = {one: other, other: one}
    while True:
        for sock in select.select([one, other], [], [])[0]:
            data = sock.recv(65536)
            if not data:
                return
            peer[sock].sendall(data)
