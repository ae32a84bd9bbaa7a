"""A real HTTP server on 127.0.0.1 whose answers a test writes as functions."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Seen:
    """One request as the server saw it, byte for byte."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.method = handler.command
        self.target = handler.path
        self.headers = handler.headers
        length = int(handler.headers.get("Content-Length") or 0)
        self.body = handler.rfile.read(length)


Reply = Callable[[Any, Seen], None]


class Server:
    """What a test holds: the address, and what was asked."""

    def __init__(self, reply: Reply, context: ssl.SSLContext | None = None) -> None:
        self.reply = reply
        self.seen: list[Seen] = []
        self.gone = threading.Event()  # set when a client went away while it was answered
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's acknowledgement

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    outer.gone.set()
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                seen = Seen(self)
                outer.seen.append(seen)
                outer.reply(self, seen)

            # The names are those that http.server asks for.
            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self._httpd.block_on_close = False
        self.port = self._httpd.server_address[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        if context is not None:
            self._httpd.socket = context.wrap_socket(
                self._httpd.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()

    @property
    def last(self) -> Seen:
        """The last request."""
        return self.seen[-1]

    def close(self) -> None:
        """Stop listening."""
        self._httpd.shutdown()
        self._httpd.server_close()


def send(handler: Any, body: bytes | str = b"", status: int = 200, **headers: str) -> None:
    """Answer whole; ``Content_Type="text/plain"`` is a header."""
    data = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


@contextlib.contextmanager
def serving(reply: Reply | None = None, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve; by default the answer is ``ok``."""
    server = Server(reply or (lambda handler, seen: send(handler, "ok", Content_Type="text/plain")), context)
    try:
        yield server
    finally:
        server.close()
