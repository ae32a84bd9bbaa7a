"""Each situation in which streams of the reference implementation went wrong, and what is right here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    ABSENT,
    STYLES,
    Endpoint,
    block,
    calls,
    chunk,
    completion,
    data,
    deltas,
    end,
    event,
    fragment,
    message,
    start,
    stop,
    text,
    text_block,
    tool_block,
    tools,
)
from tests.support.raw import CLOSE, HOLD, RESET, RawServer
from toolnexus import (
    APIConnectionError,
    APIStatusError,
    CancelScope,
    Client,
    Context,
    Done,
    Error,
    HookError,
    InternalServerError,
    RunCancelledError,
    RunTimeoutError,
    Text,
    ToolCall,
    ToolFinished,
    TruncatedStreamError,
)
from toolnexus.testing import failure, raw

A = ABSENT
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def some_text(style: str) -> bytes:
    """Return the beginning of an answer that says "par"."""
    return text("par") if style == "openai" else start() + text_block(0, "par")


def one_call(style: str, arguments: str, *, finish: bool = True) -> bytes:
    """Return an answer with one call of f, its arguments as they are given."""
    if style == "openai":
        fragments = chunk({"tool_calls": [fragment(0, "c", "f", arguments)]})
        return fragments + (end("tool_calls") if finish else b"")
    return start() + tool_block(0, "c", "f", arguments) + (stop("tool_use") if finish else b"")


def client_of(server: RawServer, style: str, **options: Any) -> Client:
    path = "/v1" if style == "openai" else ""
    return Client(
        base_url=server.url + path, style=style, model="m", api_key="k", **{"retries": 0, **options}
    )


def terminal(client: Client) -> Any:
    events = list(client.stream("go"))
    assert [e for e in events if isinstance(e, (Done, Error))] == events[-1:]
    return events[-1]


def sent_back(endpoint: Endpoint, style: str) -> Any:
    """Return the arguments of the call in the second request."""
    call = endpoint.seen[1].messages[1]
    if style == "openai":
        return json.loads(call["tool_calls"][0]["function"]["arguments"])
    return call["content"][0]["input"]


# -- before the body -------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_an_error_status_is_retried_and_then_the_terminal_item(style: str, endpoint: Endpoint) -> None:
    """The first next() does not raise: after the tries the stream ends with the provider's error."""
    busy = failure(503, message="busy", headers={"retry-after-ms": "1"})
    error = endpoint.error(style, busy, busy, busy, client=endpoint.client(style, retries=2))
    assert isinstance(error, InternalServerError)
    assert (error.status, error.message, error.attempt) == (503, "busy", 3)
    assert len(endpoint.seen) == 3


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "steps",
    [[CLOSE], [RESET], [b"HTTP/1.1 ???\r\n\r\n"], [b"garbage\r\n\r\n"], [HEAD, 0.05, RESET], [HEAD, CLOSE]],
    ids=["closed", "reset", "bad-status", "garbage", "reset-after-headers", "closed-after-headers"],
)
def test_a_connection_that_breaks_before_the_first_byte_is_retried(style: str, steps: list[Any]) -> None:
    """Closed or reset before the headers, no HTTP at all, reset after the headers: each is tried again."""
    with RawServer(steps) as server, client_of(server, style, retries=1) as client:
        last = terminal(client)
        assert isinstance(last, Error)
        assert last.error.retryable
        assert last.error.attempt == 2
        assert server.connections == 2


def test_nobody_listens() -> None:
    """A refused connection is a connection error that is tried again."""
    with RawServer([CLOSE]) as server:
        url = server.url
    with Client(base_url=url, model="m", api_key="k", retries=1) as client:
        last = terminal(client)
    assert isinstance(last, Error)
    assert isinstance(last.error, APIConnectionError)
    assert last.error.attempt == 2


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(style: str, status: int, endpoint: Endpoint) -> None:
    """Neither as GET nor elsewhere, where the key would go along: it is an error that says so."""
    with RawServer([HOLD]) as elsewhere:
        answer = raw(b"", status=status, headers={"Location": elsewhere.url + "/v1/messages"})
        error = endpoint.error(style, answer)
        assert isinstance(error, APIStatusError)
        assert (error.status, error.retryable) == (status, False)
        assert "redirect" in error.message
        assert elsewhere.connections == 0


# -- the connection breaks -------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", [RESET, CLOSE], ids=["reset", "chunks-cut"])
def test_a_connection_that_breaks_in_the_text(style: str, how: str) -> None:
    """The partial text is on the error; there is no done."""
    body = some_text(style)
    steps: list[bytes | float | str] = [HEAD, b"%x\r\n%b\r\n" % (len(body), body), 0.1, how]
    with RawServer(steps) as server, client_of(server, style) as client:
        last = terminal(client)
    assert isinstance(last, Error)
    assert isinstance(last.error, TruncatedStreamError)
    assert last.partial is not None
    assert last.partial.text == "par"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_a_body_that_ends_without_an_end_signal(style: str, framing: Any, endpoint: Endpoint) -> None:
    """It is not taken for a success."""
    assert endpoint.error(style, raw(some_text(style), framing=framing)).kind == "truncated"


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_the_end_in_the_middle_of_arguments(style: str, endpoint: Endpoint) -> None:
    """The tool is not executed with {}: it is not executed at all."""
    ran: list[Any] = []
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    answer = raw(one_call(style, '{"x":', finish=False), framing="close")
    assert endpoint.error(style, answer, tools=offered).kind == "truncated"
    assert not ran


@pytest.mark.parametrize("style", STYLES)
def test_the_length_limit_in_the_middle_of_arguments(style: str, endpoint: Endpoint) -> None:
    """The call does not run, and the result says that it was cut."""
    ran: list[Any] = []
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    if style == "openai":
        body = calls((0, "c", "f", '{"x":'), finish="length")
    else:
        body = start() + tool_block(0, "c", "f", '{"x":') + stop("max_tokens")
    result = endpoint.result(style, body, tools=offered)
    assert not ran
    assert (result.status, result.limit) == ("incomplete", "length")
    assert result.messages[-1]["role"] == "tool"  # no call without an answer stays in the transcript


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("arguments", ['{"x":', "{x:1}", "[1]", "3", '"x"'])
def test_arguments_that_are_no_object(style: str, arguments: str, endpoint: Endpoint) -> None:
    """Broken, a list, a number, a text: the model is told, nothing runs or aborts, {} is sent back."""
    ran: list[Any] = []
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    events = endpoint.stream(style, one_call(style, arguments), "sorry", tools=offered)
    assert not ran
    assert not [e for e in events if isinstance(e, ToolCall)]
    assert [e.is_error for e in events if isinstance(e, ToolFinished)] == [True]
    assert isinstance(events[-1], Done)
    assert events[-1].result.text == "sorry"
    assert sent_back(endpoint, style) == {}


@pytest.mark.parametrize("style", STYLES)
def test_arguments_that_are_null(style: str, endpoint: Endpoint) -> None:
    """Null is no arguments: the tool runs with {}, and the event says {}."""
    events = endpoint.stream(style, one_call(style, "null"), "ok", tools=tools("f"))
    assert events[0] == ToolCall("c", "f", {})


# -- what is no answer -----------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [True, False])
def test_an_error_object_among_the_chunks(begun: bool, endpoint: Endpoint) -> None:
    """It ends the stream; it is not passed over."""
    body = (text("par") if begun else b"") + data({"error": {"code": 502, "message": "bad upstream"}}) + end()
    error = endpoint.error("openai", body)
    assert (error.message, error.code, error.retryable) == ("bad upstream", 502, True)


@pytest.mark.parametrize("begun", [True, False])
def test_an_error_event_of_anthropic(begun: bool, endpoint: Endpoint) -> None:
    """It ends the stream; it is not passed over."""
    report = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    error = endpoint.error("anthropic", (some_text("anthropic") if begun else b"") + report + stop())
    assert (error.kind, error.retryable) == ("overloaded", True)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("payload", ["[1,2]", "3", '"x"', "true"])
def test_a_data_line_that_is_no_object(style: str, payload: str, endpoint: Endpoint) -> None:
    """It is a malformed event, said to be one, and can be skipped."""
    good = text("a") + end() if style == "openai" else start() + text_block(0, "a") + stop()
    assert endpoint.error(style, data(payload) + good).kind == "malformed"
    client = endpoint.client(style, on_bad_event="skip")
    assert endpoint.result(style, data(payload) + good, client=client).text == "a"


def test_content_that_is_a_list(endpoint: Endpoint) -> None:
    """A list of parts is text, not an abort."""
    body = chunk({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) + end()
    assert deltas(endpoint.stream("openai", body)) == ["a", "b"]


def test_a_block_without_an_index(endpoint: Endpoint) -> None:
    """Blocks and deltas without an index belong together in the order in which they come."""
    opening = {"type": "text", "text": ""}
    body = start()
    for piece in "ab":
        body += event("content_block_start", content_block=opening)
        body += event("content_block_delta", delta={"type": "text_delta", "text": piece})
        body += event("content_block_stop")
    assert deltas(endpoint.stream("anthropic", body + stop())) == ["a", "b"]


def test_a_delta_without_a_start(endpoint: Endpoint) -> None:
    """Its text is not dropped."""
    body = start() + event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
    assert endpoint.result("anthropic", body + stop()).text == "a"


def test_a_block_that_opens_with_text(endpoint: Endpoint) -> None:
    """The text with which a block opens counts, and so does the input."""
    body = start() + block(0, {"type": "text", "text": "a"}, {"type": "text_delta", "text": "b"}) + stop()
    result = endpoint.result("anthropic", body)
    assert (result.text, result.messages[-1]["content"]) == ("ab", "ab")


@pytest.mark.parametrize("style", STYLES)
def test_invalid_utf_8(style: str, endpoint: Endpoint) -> None:
    """Bad bytes become U+FFFD; a character over two packets is whole."""
    if style == "openai":
        body = text("a?b").replace(b"?", b"\xff") + end()
    else:
        body = start() + text_block(0, "a?b").replace(b"?", b"\xff") + stop()
    assert endpoint.result(style, body).text == "a\ufffdb"


@pytest.mark.parametrize("style", STYLES)
def test_surrogate_halves_in_two_deltas(style: str, endpoint: Endpoint) -> None:
    """They are one character, in the events and in the result."""
    pieces = ("\ud83d", "\ude00")
    body = text(*pieces) + end() if style == "openai" else start() + text_block(0, *pieces) + stop()
    events = endpoint.stream(style, body)
    assert "".join(deltas(events)) == "\U0001f600"
    last = events[-1]
    assert isinstance(last, Done)
    last.result.text.encode()


@pytest.mark.parametrize("style", STYLES)
def test_a_whole_answer_to_a_stream_request(style: str, endpoint: Endpoint) -> None:
    """It is used, not taken for an empty one."""
    answer = (
        completion({"content": "whole"})
        if style == "openai"
        else message([{"type": "text", "text": "whole"}])
    )
    events = endpoint.stream(style, answer)
    assert [e.type for e in events] == ["text", "usage", "done"]
    assert deltas(events) == ["whole"]


@pytest.mark.parametrize("style", STYLES)
def test_a_stream_as_answer_to_a_request_for_a_whole_one(style: str, endpoint: Endpoint) -> None:
    """run() puts it together."""
    body = text("a", "b") + end() if style == "openai" else start() + text_block(0, "a", "b") + stop()
    assert endpoint.run(style, body).text == "ab"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<!DOCTYPE html><title>Sign in</title>", "malformed"),
        (b"", "empty_response"),
        (b'{"a": 1}', "truncated"),
    ],
    ids=["html", "empty", "json"],
)
def test_a_body_that_is_no_answer(style: str, body: bytes, kind: str, endpoint: Endpoint) -> None:
    """A page, nothing, any JSON: an error that says what came, streamed and whole."""
    error = endpoint.error(style, raw(body, content_type="text/html"))
    assert error.kind in (kind, "empty_response")
    endpoint.play(raw(body, content_type="application/json"))
    with pytest.raises(type(error)) as caught:
        endpoint.client(style).run("go")
    assert caught.value.message == error.message
    if body:
        assert ("Sign in" if kind == "malformed" else '{"a": 1}') in error.message


# -- time and cancelling ---------------------------------------------------------------------------


def held(style: str, phase: str) -> Any:
    """Return an answer that stalls before the headers, or in the middle."""
    return raw(some_text(style), hold="headers" if phase == "headers" else True)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("phase", ["headers", "middle"])
def test_the_runs_time_is_up(style: str, phase: str, endpoint: Endpoint) -> None:
    """RunTimeoutError about when it was set, not tried again, with what had come."""
    began = time.monotonic()
    error = endpoint.error(style, held(style, phase), client=endpoint.client(style, retries=2), timeout=0.3)
    assert time.monotonic() - began < 5
    endpoint.server.release()
    assert isinstance(error, RunTimeoutError)
    assert len(endpoint.seen) == 1
    assert error.partial is not None
    assert error.partial.text == ("" if phase == "headers" else "par")


@pytest.mark.parametrize("style", STYLES)
def test_a_stall_without_a_limit_for_the_run(style: str, endpoint: Endpoint) -> None:
    """Silence has limits of its own, and they can be set: for the first byte and after it."""
    first = endpoint.error(style, held(style, "headers"), client=endpoint.client(style, response_timeout=0.3))
    later = endpoint.error(style, held(style, "middle"), client=endpoint.client(style, idle_timeout=0.3))
    endpoint.server.release()
    assert (type(first).__name__, type(later).__name__) == ("ResponseTimeoutError", "IdleTimeoutError")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("phase", ["headers", "middle"])
def test_cancelled_while_the_server_stalls(style: str, phase: str, endpoint: Endpoint) -> None:
    """It takes effect at once, whatever the server does, and the server sees the connection close."""
    endpoint.play(held(style, phase))
    before = endpoint.server.disconnects
    scope = CancelScope()
    with endpoint.client(style).stream("go", scope=scope) as stream:
        stream.start()
        if phase == "middle":
            assert next(stream) == Text("par")
        endpoint.server.wait_for_request(len(endpoint.server.requests) or 1)
        threading.Timer(0.1, scope.cancel).start()
        began = time.monotonic()
        *_, last = stream
        assert time.monotonic() - began < 5
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError)
    endpoint.server.wait_for_disconnect(before + 1)
    endpoint.server.release()


@pytest.mark.parametrize("style", STYLES)
def test_cancelled_while_data_flow(style: str, endpoint: Endpoint) -> None:
    """Promptly, in the middle of a long answer."""
    endless = raw(chunks=[some_text(style)] * 200, delay=0.02)
    endpoint.play(endless)
    scope = CancelScope()
    with endpoint.client(style).stream("go", scope=scope) as stream:
        assert next(stream) == Text("par")
        scope.cancel()
        *_, last = stream
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_the_end_comes_while_a_tool_runs(style: str, by: str, endpoint: Endpoint) -> None:
    """The tool is told and left behind; no result of it is reported, no further model call is made."""
    told = threading.Event()
    scope = CancelScope()

    def slow(args: dict[str, Any], ctx: Context) -> str:
        if by == "cancel":
            threading.Timer(0.1, scope.cancel).start()
        while not ctx.cancelled:
            time.sleep(0.005)
        told.set()
        time.sleep(0.3)
        return "late"

    events: list[Any] = []
    endpoint.play(one_call(style, "{}"), "never")
    options: dict[str, Any] = {"timeout": 0.3} if by == "timeout" else {}
    with endpoint.client(style).stream("go", tools("f", execute=slow), scope=scope, **options) as stream:
        events.extend(stream)
    assert told.wait(5)
    assert [e.type for e in events] == ["tool_call", "error"]
    wanted = RunCancelledError if by == "cancel" else RunTimeoutError
    assert isinstance(events[-1].error, wanted)
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize("style", STYLES)
def test_the_consumer_breaks_off(style: str, endpoint: Endpoint) -> None:
    """Leaving the loop closes the connection, also while the server stalls."""
    endpoint.play(held(style, "middle"))
    before = endpoint.server.disconnects
    with endpoint.client(style).stream("go") as stream:
        for item in stream:
            assert item == Text("par")
            break
    endpoint.server.wait_for_disconnect(before + 1)
    endpoint.server.release()


@pytest.mark.parametrize("style", STYLES)
def test_code_of_the_users_that_raises_before_the_call(style: str, endpoint: Endpoint) -> None:
    """It is a terminal error that names it, and nothing was sent."""

    def broken(body: dict[str, Any]) -> None:
        raise RuntimeError("my mistake")

    error = endpoint.error(style, "never", client=endpoint.client(style, body_transform=broken))
    assert isinstance(error, HookError)
    assert "my mistake" in error.message
    assert not endpoint.seen


# -- conversations and errors ----------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_nothing_is_stored_of_a_run_that_failed_later(style: str, endpoint: Endpoint) -> None:
    """An error in turn 2, after tools ran, leaves no trace; the partial result has the tools' work."""
    client = endpoint.client(style)
    bad = failure(400, message="no more")
    error = endpoint.error(style, one_call(style, "{}"), bad, tools=tools("f"), client=client, id="x")
    assert error.partial is not None
    assert [c.output for c in error.partial.tool_calls] == ["{}"]
    assert not client.conversation_store.get("x")
    fine = endpoint.result(style, "hello", client=client, id="x")
    assert [m["role"] for m in fine.messages] == ["user", "assistant"]
    assert len(endpoint.seen[0].messages) == 1


ASKS: dict[str, Callable[[Client], Any]] = {
    "ask": lambda client: client.ask("go"),
    "ask-on-text": lambda client: client.ask("go", on_text=lambda text: None),
    "run": lambda client: client.run("go"),
    "result": lambda client: client.stream("go").result(),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("ask", ASKS)
def test_every_way_to_ask_gives_the_same(style: str, ask: str, endpoint: Endpoint) -> None:
    """ask, with and without a callback, run and result: one result, one error."""
    endpoint.play("hello", failure(401, message="bad key"))
    client = endpoint.client(style)
    assert ASKS[ask](client).text == "hello"
    with pytest.raises(APIStatusError, match="bad key"):
        ASKS[ask](client)
