"""The requests that a scripted server received."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from toolnexus.testing._connection import BadRequest, Connection

__all__ = ["Headers", "RecordedRequest", "read_request"]


class Headers(Mapping[str, str]):
    """Request headers; their names in any case. A header sent twice is joined by a comma."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            key = name.lower()
            self._values[key] = f"{self._values[key]}, {value}" if key in self._values else value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._values)})"  # names only: a value may be a key


class RecordedRequest:
    """
    A request as it came over the wire.

    Attributes:
        method: The method.
        path: The path without the query.
        query: The query, undecoded, without its question mark.
        headers: The headers.
        raw_body: The body's bytes.
        http_version: "HTTP/1.1" as a rule.
        connection: The number of the connection it came on, from 1.
        received_at: When all of it was there, by ``time.monotonic()``.
        answered_at: When the last byte of the answer was written; None while it was not.
        closed_by_client_at: When the server noticed that the client closed this connection; None while
            it is open, for all but the connection's last request, and where the server closed.
    """

    def __init__(
        self, method: str, target: str, version: str, headers: Headers, body: bytes, connection: int
    ) -> None:
        parts = urlsplit(target)
        self.method = method
        self.target = target
        self.path = unquote(parts.path)
        self.query = parts.query
        self.http_version = version
        self.headers = headers
        self.raw_body = body
        self.connection = connection
        self.received_at = time.monotonic()
        self.answered_at: float | None = None
        self.closed_by_client_at: float | None = None

    @property
    def json(self) -> Any:
        """The body, decoded. ValueError where it is no JSON."""
        return json.loads(self.raw_body)

    @property
    def stream(self) -> bool:
        """Whether the body, or the path as in Gemini's API, asks for a stream."""
        return self.option("stream") is True or self.path.endswith(":streamGenerateContent")

    @property
    def model(self) -> str:
        """The model that the body, or the path as in Gemini's API, names; empty where there is none."""
        in_path = self.path.rpartition("/models/")[2].rpartition(":")[0]
        return str(self.option("model") or in_path)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in the body, under the name that the API has for them; a list, empty without any."""
        found = [self.option(name) for name in ("messages", "input", "contents")]
        return next((messages for messages in found if isinstance(messages, list)), [])

    def option(self, name: str) -> Any:
        """Return a field of the body, or None where it or the body is not there."""
        try:
            body = self.json
        except ValueError:
            return None
        return body.get(name) if isinstance(body, dict) else None

    @property
    def keep_alive(self) -> bool:
        """Whether the client lets the connection be used again."""
        wish = self.headers.get("connection", "").lower()
        return wish != "close" and (self.http_version != "HTTP/1.0" or wish == "keep-alive")

    def __repr__(self) -> str:
        return f"<RecordedRequest {self.method} {self.path} ({len(self.raw_body)} bytes)>"


def read_request(connection: Connection) -> RecordedRequest:
    """
    Return the next request of a connection.

    Raises:
        PeerLeft: The client closed before it was whole.
        BadRequest: It is no HTTP.
    """
    first, *lines = connection.read_until(b"\r\n\r\n").decode("latin-1").lstrip("\r\n").split("\r\n")[:-2]
    try:
        method, target, version = first.split(" ")
        pairs = [(name, value.strip()) for name, value in (line.split(":", 1) for line in lines)]
        headers = Headers(pairs)
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise BadRequest(f"not an HTTP request: {first[:80]!r}") from error
    if headers.get("expect", "").lower() == "100-continue":
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    body = _read_chunks(connection) if chunked else connection.read_exactly(length)
    return RecordedRequest(method, target, version, headers, body, connection.number)


def _read_chunks(connection: Connection) -> bytes:
    """Return a body that came in chunks."""
    body = bytearray()
    while True:
        try:
            size = int(connection.read_until(b"\r\n").split(b";")[0], 16)
        except ValueError as error:
            raise BadRequest("a chunk without a size") from error
        if size == 0:
            while connection.read_until(b"\r\n") != b"\r\n":  # trailers, which nobody needs here
                pass
            return bytes(body)
        body += connection.read_exactly(size)
        connection.read_exactly(2)
