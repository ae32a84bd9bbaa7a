"""MCP servers over HTTP: streamable HTTP, the fallback to SSE, and connections that break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.mcp_servers import call, eventually, raw, serving
from tests.mcp_servers.web import WebServer
from toolnexus.cancel import CancelScope
from toolnexus.errors import RunTimeoutError
from toolnexus.tools.base import Context
from toolnexus.tools.mcp import McpSource


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Return a server in this process."""
    with WebServer() as server:
        yield server


def test_calls_over_http(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of the configuration go along with every request."""
    monkeypatch.setenv("TOKEN", "abc")
    config = {"url": web.url, "headers": {"Authorization": "Bearer ${TOKEN}"}}
    with McpSource({"w": config}) as source:
        assert call(source, "w_echo", text="h\u00e9").output == "h\u00e9"
        status = source.status["w"]
        assert (status.state, status.transport, status.pid, status.server) == (
            "connected",
            "http",
            None,
            "web 1",
        )
    assert {headers["authorization"] for headers in web.headers} == {"Bearer abc"}


@pytest.mark.parametrize("tool", ["cut", "cut_stream"])
def test_mcp_03_a_call_that_is_cut_fails_at_once(web: WebServer, tool: str) -> None:
    """The server takes the call and closes without an answer; the next call works."""
    with McpSource({"w": {"url": web.url}}) as source:
        source.start()
        begin = time.monotonic()
        result = call(source, f"w_{tool}")
        assert time.monotonic() - begin < 1
        assert result.is_error
        assert "connection failed" in result.output or "ended without a response" in result.output
        assert call(source, "w_echo", text="on").output == "on"


def test_mcp_03_a_call_that_is_cut_does_not_disturb_others(web: WebServer) -> None:
    """One of two calls breaks, the other gets its answer."""
    with McpSource({"w": {"url": web.url}}) as source, ThreadPoolExecutor(1) as pool:
        source.start()
        other = pool.submit(call, source, "w_hang")
        time.sleep(0.2)
        assert call(source, "w_cut").is_error
        assert not other.done()
        web.over.set()
        assert other.result(5).is_error
        assert source.status["w"].starts == 1


def test_mcp_03_a_server_that_is_killed_fails_the_call_and_is_noticed() -> None:
    """A real server, killed in the middle of a call."""
    with (
        serving("streamable-http") as (url, process),
        McpSource({"w": {"url": url}}) as source,
        ThreadPoolExecutor(1) as pool,
    ):
        source.start()
        waiting = pool.submit(call, source, "w_slow", seconds=30)
        time.sleep(0.3)
        process.kill()
        begin = time.monotonic()
        assert waiting.result(10).is_error
        assert time.monotonic() - begin < 1
        begin = time.monotonic()
        refused = call(source, "w_add", a=1, b=1)
        assert time.monotonic() - begin < 2
        assert (refused.is_error, "connection failed" in refused.output) == (True, True)
        assert source.status["w"].state == "failed"


def test_a_server_that_forgot_us_is_introduced_again(web: WebServer) -> None:
    """A 404 for a session means a new one; the call was not run, so it is sent again."""
    with McpSource({"w": {"url": web.url}}) as source:
        source.start()
        web.sessions.clear()
        assert call(source, "w_echo", text="again").output == "again"
        assert source.status["w"].starts == 2


def test_an_http_error_during_a_call_is_named(web: WebServer) -> None:
    """The status reaches the model, the page does not."""
    with McpSource({"w": {"url": web.url}}) as source:
        result = call(source, "w_server_error")
        assert (result.is_error, "500 Internal Server Error" in result.output) == (True, True)
        assert call(source, "w_echo", text="on").output == "on"


@pytest.mark.parametrize("status", [401, 403, 404, 405, 500])
def test_a_server_that_refuses_says_with_which_status(status: int) -> None:
    """The reason of the failure has the status; only those that may mean another way lead to a second try."""
    with (
        WebServer(refuse=status) as web,
        McpSource({"w": {"url": web.url + "?key=s3cret"}, "ok": raw()}) as source,
    ):
        error = source.status["w"].error or ""
        assert str(status) in error
        assert "s3cret" not in error
        assert ("sse" in error) == (status in (404, 405))
        assert source.status["ok"].state == "connected"


def test_nobody_there() -> None:
    """A refused connection fails at once."""
    with WebServer() as web:
        url = web.url
    begin = time.monotonic()
    with McpSource({"w": {"url": url}}) as source:
        assert "connection failed" in (source.status["w"].error or "")
    assert time.monotonic() - begin < 5


def test_a_server_that_never_answers_is_given_up_on() -> None:
    """The handshake has its timeout."""
    config = {"timeouts": {"initialize": 0.4}}
    with WebServer(silent=True) as web, McpSource({"w": {"url": web.url, **config}}) as source:
        assert "initialize took longer than 0.4 s" in (source.status["w"].error or "")


def test_mcp_10_a_timeout_over_http_tells_the_server(web: WebServer) -> None:
    """The cancellation is posted."""
    with McpSource({"w": {"url": web.url, "timeouts": {"call": 0.3}}}) as source:
        assert "no answer and no progress for 0.3 s" in call(source, "w_hang").output
        assert eventually(lambda: "notifications/cancelled" in web.methods)
        assert call(source, "w_echo", text="on").output == "on"


def test_a_header_that_cannot_be_sent_fails_that_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line break in a variable is no way to smuggle in a header; its value is not shown."""
    monkeypatch.setenv("TOKEN", "s3cret\r\nX-Evil: 1")
    with McpSource({"w": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "${TOKEN}"}}}) as source:
        error = source.status["w"].error or ""
        assert "X-Key has a character that a header cannot carry" in error
        assert "s3cret" not in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "protocol", "version"),
    [
        ("streamable-http", "legacy", "2025-11-25"),
        ("streamable-http", "modern", "2026-07-28"),
        ("sse", "auto", "2025-11-25"),
    ],
)
def test_everything_works_over_every_transport(transport: str, protocol: str, version: str) -> None:
    """Results, progress, changed lists and cancels over the official SDK; a url is enough to find SSE."""
    seen: list[str] = []
    with serving(transport) as (url, _), McpSource({"w": {"url": url, "protocol": protocol}}) as source:
        assert source.status["w"].protocol == version
        assert call(source, "w_sum_up", values=[1, 2]).output == '{"total":3}'
        call(source, "w_count", Context(emit=lambda kind, text: seen.append(text)), steps=2)
        assert seen == ["1/2 at 1\n", "2/2 at 2\n"]
        call(source, "w_grow")
        assert eventually(lambda: any(tool.name == "w_grown" for tool in source.tools))
        scope = CancelScope(0.3)
        begin = time.monotonic()
        with pytest.raises(RunTimeoutError), scope.running():
            call(source, "w_slow", Context(scope=scope), seconds=30)
        assert time.monotonic() - begin < 1
        assert call(source, "w_add", a=1, b=2).output == '{"result":3}'
