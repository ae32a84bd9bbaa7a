"""An MCP server over streamable HTTP, in a thread, that can fail in every way."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self

TOOLS = ("echo", "cut", "cut_stream", "hang", "stop", "server_error")


class WebServer:
    """
    Serves MCP at ``url``; a context manager.

    Args:
        refuse: The status with which each POST is refused, if any.
        silent: Whether a POST is never answered.
    """

    def __init__(self, refuse: int | None = None, silent: bool = False) -> None:
        self.refuse, self.silent = refuse, silent
        self.sessions: set[str] = set()
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()
        outer = self

        class Handler(_Handler):
            server_state = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    @property
    def methods(self) -> list[str]:
        """The JSON-RPC methods that came, in order."""
        return [message.get("method", "") for message in list(self.seen)]

    def stop(self) -> None:
        """Stop listening."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: WebServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(405, b"")

    def do_DELETE(self) -> None:
        self._answer(200, b"")

    def do_POST(self) -> None:
        state = self.server_state
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        state.seen.append(message)
        state.headers.append({k.lower(): v for k, v in self.headers.items()})
        if state.silent:
            state.over.wait(30)
            return
        if state.refuse is not None:
            self._answer(state.refuse, b"no")
        elif "id" not in message:
            self._answer(202, b"")
        elif message["method"] == "initialize":
            self._initialize(message)
        elif self.headers.get("mcp-session-id") not in state.sessions:
            self._answer(404, b"")
        elif message["method"] == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            self._result(message, {"tools": tools})
        else:
            self._call(message)

    def _initialize(self, message: dict[str, Any]) -> None:
        session = f"s{len(self.server_state.sessions)}-{time.monotonic_ns()}"
        self.server_state.sessions.add(session)
        info = {"name": "web", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        self._result(message, result, {"mcp-session-id": session})

    def _call(self, message: dict[str, Any]) -> None:
        name = message["params"]["name"]
        if name == "echo":
            text = message["params"]["arguments"].get("text", "")
            self._result(message, {"content": [{"type": "text", "text": text}]})
        elif name == "cut":
            self._close()
        elif name == "cut_stream":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(b": hello\n\n")
            self._close()
        elif name == "server_error":
            self._answer(500, b"<html>broken</html>")
        else:
            self.server_state.over.wait(30)
            self._close()

    def _close(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _result(
        self, message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        self._answer(200, body, {"content-type": "application/json", **(headers or {})})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
