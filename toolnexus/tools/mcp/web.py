"""The HTTP transports: streamable HTTP, and the older SSE."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.mcp.config import McpTimeouts
from toolnexus.tools.mcp.lines import failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

__all__ = ["HttpTrace", "check_headers", "http_streams", "sse_streams"]

#: Seconds for the answer to a notification, which has no content and so comes at once.
NOTIFICATION_READ = 30.0
WRITE = 30.0

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


@attrs.define
class HttpTrace:
    """
    What went wrong on the way, which the protocol library does not pass on.

    Args:
        every: Whether each failed request ends the connection, as it does with SSE; otherwise only
            what was posted counts, and the library itself fails the request.
        on_broken: Called when the connection is to end.
        status: The HTTP status of the last request, such as "404 Not Found", if it was an error.
        error: How the last request failed, if it did.
    """

    every: bool
    on_broken: Callable[[], None]
    status: str | None = None
    error: str | None = None

    def note(self, method: str, *, status: str | None = None, error: str | None = None) -> None:
        """Note how a request went."""
        if method != "POST" and not self.every:
            return
        self.status, self.error = status, error
        if self.every and (status or error):
            self.on_broken()

    @property
    def code(self) -> int | None:
        """The number of the last status."""
        return int(self.status.split()[0]) if self.status else None


def check_headers(headers: Mapping[str, str]) -> None:
    """
    Check headers before they are sent; no message ever has their values.

    Raises:
        ConfigurationError: A header has a character that HTTP cannot carry.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} is no name for an HTTP header")
        if not _VALUE.fullmatch(value):
            raise ConfigurationError(f"the HTTP header {name} has a character that a header cannot carry")


@cache
def _client_class() -> type[httpx2.AsyncClient]:
    """Return an HTTP client that notes what goes wrong; made on first use."""
    import httpx2

    class TracingClient(httpx2.AsyncClient):
        trace: HttpTrace

        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            if b'"method":"notifications/' in _start(request):
                request.extensions["timeout"] = {**request.extensions["timeout"], "read": NOTIFICATION_READ}
            try:
                response = await super().send(request, **options)
            except httpx2.HTTPError as error:
                why = f"{type(error).__name__}: {error}".rstrip(": ")
                self.trace.note(request.method, error=why)
                if b'"method":"tools/call"' in _start(request) and not isinstance(error, httpx2.ConnectError):
                    # The library would end the whole session, and other calls with it.
                    return _failed(request, f"the connection failed: {why}")
                raise
            failed = response.status_code >= 400
            status = f"{response.status_code} {response.reason_phrase}".strip()
            self.trace.note(request.method, status=status if failed else None)
            return response

    return TracingClient


def _start(request: httpx2.Request) -> bytes:
    """Return the first bytes of what is posted."""
    return request.content[:200] if request.method == "POST" else b""


def _failed(request: httpx2.Request, why: str) -> httpx2.Response:
    """Return an answer that fails one call, in place of one that did not come."""
    import httpx2

    return httpx2.Response(400, json=failure(None, why), request=request)


def _client(headers: Mapping[str, str], timeouts: McpTimeouts, trace: HttpTrace) -> httpx2.AsyncClient:
    """Return a client whose reads may take for ever: each phase and each call has its own limit."""
    import httpx2

    timeout = httpx2.Timeout(connect=timeouts.start, read=None, write=WRITE, pool=None)
    limits = httpx2.Limits(max_connections=None)
    client = _client_class()(headers=dict(headers), timeout=timeout, limits=limits)
    client.trace = trace  # type: ignore[attr-defined]
    return client


@asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], timeouts: McpTimeouts, trace: HttpTrace, limit: int
) -> AsyncIterator[Any]:
    """Speak streamable HTTP; ``limit`` is the longest event in bytes."""
    from mcp.client.streamable_http import streamable_http_client

    options: dict[str, Any] = {}
    if "max_sse_event_size" in inspect.signature(streamable_http_client).parameters:  # from mcp 2.3 on
        options["max_sse_event_size"] = limit
    async with (
        _client(headers, timeouts, trace) as client,
        streamable_http_client(url, http_client=client, **options) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse_streams(
    url: str, headers: Mapping[str, str], timeouts: McpTimeouts, trace: HttpTrace
) -> AsyncIterator[Any]:
    """Speak the older SSE transport."""
    from mcp.client.sse import sse_client

    def factory(*_: Any, **__: Any) -> httpx2.AsyncClient:
        return _client(headers, timeouts, trace)

    async with sse_client(url, httpx_client_factory=factory) as streams:
        yield streams
