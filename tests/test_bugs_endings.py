"""Errors inside a stream, and the decision how it ended: the reported kinds and the table of the design."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    DONE,
    STYLES,
    Endpoint,
    calls,
    chunk,
    data,
    deltas,
    end,
    event,
    fragment,
    start,
    stop,
    text,
    text_block,
    tool_block,
    tools,
)
from tests.support.raw import CLOSE, RESET, RawServer
from toolnexus import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    CancelScope,
    Client,
    ContextLengthError,
    Done,
    EmptyResponseError,
    Error,
    HookError,
    InternalServerError,
    OverloadedError,
    QuotaError,
    RunCancelledError,
    RunTimeoutError,
    Text,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.testing import failure, raw

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TO_THE_END = HEAD + b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def opening(style: str, *pieces: str) -> bytes:
    """Return the beginning of an answer: some text, and no end."""
    if style == "openai":
        return text(*pieces)
    begin = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in pieces:
        begin += event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    return start() + begin


def closing(style: str) -> bytes:
    return end() if style == "openai" else stop()


def said_so_far(error: ToolnexusError) -> str:
    """Return the text that had arrived when the error came."""
    assert error.partial is not None
    return error.partial.text


def reason_only(style: str) -> bytes:
    """Return the event that says why the answer ended, without the end mark."""
    if style == "openai":
        return chunk({}, "stop")
    return event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})


def http_chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def ending(style: str, *steps: Any, **options: Any) -> list[Any]:
    """Return the events of a stream from a server that plays exactly these steps."""
    path = "/v1" if style == "openai" else ""
    with RawServer(steps) as server:
        client = Client(
            base_url=server.url + path, style=style, model="m", api_key="k", **{"retries": 0, **options}
        )
        with client:
            events = list(client.stream("go", tools("f")))
    assert [e for e in events if isinstance(e, (Done, Error))] == events[-1:]
    return events


OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def test_end_01_overloaded_inside_a_stream(endpoint: Endpoint) -> None:
    """An overload in a 200 stream is an overload: retryable, without a status, the partial text kept."""
    error = endpoint.error("anthropic", opening("anthropic", "Hal") + OVERLOADED)
    assert isinstance(error, OverloadedError)
    assert (error.kind, error.retryable, error.status) == ("overloaded", True, None)
    assert (error.type, error.message) == ("overloaded_error", "Overloaded")
    assert said_so_far(error) == "Hal"


def test_end_02_one_terminal_item(endpoint: Endpoint) -> None:
    """Whatever follows an error in the stream, there is one terminal item and it is the error."""
    body = opening("anthropic", "Hal") + OVERLOADED + stop() + OVERLOADED
    events = endpoint.stream("anthropic", body)
    assert [e.type for e in events] == ["text", "error"]


def test_end_03_an_error_as_first_event_is_retried(endpoint: Endpoint) -> None:
    """Nothing was handed out yet, so it is tried again; the caller sees one clean stream."""
    client = endpoint.client("anthropic", retries=2)
    events = endpoint.stream("anthropic", OVERLOADED, "fine", client=client)
    assert [e.type for e in events] == ["text", "usage", "done"]
    last = events[-1]
    assert isinstance(last, Done)
    assert [a.kind for a in last.result.attempts] == ["overloaded", None]
    assert len(endpoint.seen) == 2


def test_end_04_an_error_beside_empty_choices(endpoint: Endpoint) -> None:
    """It is no usage chunk, and the end mark after it does not make it a success."""
    body = data({"id": "x", "choices": [], "error": {"code": 502, "message": "Worker limit"}}) + DONE
    error = endpoint.error("openai", body)
    assert (error.code, error.message, error.retryable) == (502, "Worker limit", True)
    assert isinstance(error, InternalServerError)


@pytest.mark.parametrize("inside", [False, True], ids=["beside-the-choice", "in-the-choice"])
def test_end_05_finish_reason_error_with_half_a_call(inside: bool, endpoint: Endpoint) -> None:
    """The error's message reaches the caller; half a call never runs."""
    ran: list[Any] = []
    half = chunk({"tool_calls": [fragment(0, "a", "f", '{"x":')]})
    report = {"code": 502, "message": "the provider behind broke"}
    choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "error"}
    last = {"choices": [{**choice, "error": report}]} if inside else {"choices": [choice], "error": report}
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    error = endpoint.error("openai", half + data(last) + DONE, tools=offered)
    assert not ran
    assert (error.message, error.code) == ("the provider behind broke", 502)


def test_end_05_finish_reason_error_alone(endpoint: Endpoint) -> None:
    """Without any message the word itself is the message."""
    error = endpoint.error("openai", text("a") + end("error"))
    assert isinstance(error, APIStatusError)
    assert "'error'" in error.message
    assert said_so_far(error) == "a"


def test_end_06_an_error_in_fields_of_its_own(endpoint: Endpoint) -> None:
    """It is recognised, is about the context, and is not retried."""
    body = data(
        {
            "choices": None,
            "error_type": "BadRequestError",
            "error_message": "context too long",
            "code": 400,
        }
    )
    error = endpoint.error("openai", body, client=endpoint.client(retries=2))
    assert isinstance(error, ContextLengthError)
    assert (error.retryable, error.code, error.message) == (False, 400, "context too long")
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize("said", [{"message": "quota exceeded"}, "quota exceeded"], ids=["object", "text"])
def test_end_07_an_error_alone(said: Any, endpoint: Endpoint) -> None:
    """An error object or a bare text as error is one; the end mark does not undo it."""
    error = endpoint.error("openai", data({"error": said}) + DONE)
    assert error.message == "quota exceeded"
    assert isinstance(error, QuotaError)
    assert not error.retryable


@pytest.mark.parametrize("nothing", [None, {}, "", False, {"code": None, "message": ""}])
def test_end_07_an_error_key_without_an_error(nothing: Any, endpoint: Endpoint) -> None:
    """Some servers send the key with nothing in it on each chunk: that is no error."""
    body = chunk({"content": "a"}, error=nothing) + chunk({}, "stop", error=nothing) + DONE
    assert endpoint.result("openai", body).text == "a"


def test_end_08_everything_that_was_said_is_kept(endpoint: Endpoint) -> None:
    """Message, type, param, code and the raw body are all on the exception."""
    said = {"error": {"message": "M", "type": "T", "param": "p", "code": "c"}}
    error = endpoint.error("openai", data(said))
    assert (error.message, error.type, error.param, error.code, error.body) == ("M", "T", "p", "c", said)


def test_end_09_an_error_event_without_a_wrapper(endpoint: Endpoint) -> None:
    """The event's name alone says that it is an error; its details are the message."""
    body = b'event: error\ndata: {"code":400,"details":"logprobs 21 > 20"}\n\n' + DONE
    error = endpoint.error("openai", body)
    assert isinstance(error, BadRequestError)
    assert (error.code, error.message, error.retryable) == (400, "logprobs 21 > 20", False)


@pytest.mark.parametrize("payload", [b"data: it broke\n\n", b"data:\n\n", b"data: [1]\n\n"])
def test_end_09_an_error_event_with_anything_in_it(payload: bytes, endpoint: Endpoint) -> None:
    """A text, nothing, a list: it is an error all the same."""
    error = endpoint.error("openai", text("a") + b"event: error\n" + payload + end())
    assert isinstance(error, APIStatusError)
    assert error.message


def test_end_11_json_without_framing(endpoint: Endpoint) -> None:
    """A JSON error that somebody forwarded without any framing is that error."""
    body = b'{"error":{"code":400,"message":"request exceeds context"}}'
    error = endpoint.error("openai", raw(body))
    assert error.message == "request exceeds context"
    assert error.code == 400


@pytest.mark.parametrize("tail", [b"", b"\n", b"\n\n"])
@pytest.mark.parametrize("style", STYLES)
def test_end_12_a_bare_object_after_some_events(style: str, tail: bytes, endpoint: Endpoint) -> None:
    """An unframed error object after text ends the stream as that error; the text is kept."""
    body = opening(style, "a", "b") + b'{"error":"generate failed"}' + tail
    events = endpoint.stream(style, body)
    assert deltas(events) == ["a", "b"]
    last = events[-1]
    assert isinstance(last, Error)
    assert last.error.message == "generate failed"
    assert last.partial is not None
    assert last.partial.text == "ab"


@pytest.mark.parametrize("style", STYLES)
def test_end_13_a_clean_close_is_no_end(style: str) -> None:
    """A connection that just ends, without the provider's end signal, is a truncated stream."""
    events = ending(style, TO_THE_END, opening(style, "a", "b", "c"), CLOSE)
    assert deltas(events) == ["a", "b", "c"]
    error = events[-1].error
    assert isinstance(error, TruncatedStreamError)
    assert (error.kind, error.retryable, said_so_far(error)) == ("truncated", True, "abc")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("half", [True, False], ids=["half", "whole"])
def test_end_13_no_tool_runs_from_a_cut_answer(style: str, half: bool, endpoint: Endpoint) -> None:
    """Whether the arguments look complete or not: without an end nothing runs."""
    ran: list[Any] = []
    arguments = '{"x":1' if half else '{"x":1}'
    if style == "openai":
        body = chunk({"tool_calls": [fragment(0, "a", "f", arguments)]})
    else:
        body = start() + tool_block(0, "a", "f", arguments)
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    error = endpoint.error(style, raw(body, framing="close"), tools=offered)
    assert not ran
    assert error.kind == "truncated"


def test_end_14_the_end_mark_without_a_reason(endpoint: Endpoint) -> None:
    """The end mark alone is an end: the reason is inferred (the raw one is None), and calls run."""
    said = endpoint.result("openai", text("a") + DONE)
    assert (said.finish_reason, said.raw_finish_reason) == ("stop", None)
    body = chunk({"tool_calls": [fragment(0, "a", "f", '{"x":1}')]}) + DONE
    called = endpoint.result("openai", body, tools=tools("f"), client=endpoint.client(max_turns=1))
    assert (called.finish_reason, called.raw_finish_reason) == ("tool_calls", None)
    assert [c.output for c in called.tool_calls] == ['{"x": 1}']


def test_end_14_message_stop_without_a_reason(endpoint: Endpoint) -> None:
    """The same in the other style."""
    said = endpoint.result("anthropic", start() + text_block(0, "a") + event("message_stop"))
    assert (said.text, said.finish_reason, said.raw_finish_reason) == ("a", "stop", None)
    body = start() + tool_block(0, "t", "f", "{}") + event("message_stop")
    called = endpoint.result("anthropic", body, "fine", tools=tools("f"))
    assert called.tool_call_count == 1


def test_end_16_an_error_line_among_records(endpoint: Endpoint) -> None:
    """An error record among records of one line each is that error."""
    body = b'{"message":{"content":"a"},"done":false}\n{"error":"out of memory"}\n'
    error = endpoint.error("openai", raw(body, content_type="application/x-ndjson"))
    assert error.message == "out of memory"
    chunks = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}\n{"error":"out of memory"}\n'
    error = endpoint.error("openai", raw(chunks, content_type="application/x-ndjson"))
    assert (error.message, error.partial.text) == ("out of memory", "a")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("split", [None, 1])
def test_end_17_a_printed_error_over_several_lines(
    line_end: str, split: int | None, endpoint: Endpoint
) -> None:
    """A pretty-printed error object between events keeps its code and message."""
    report = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    printed = json.dumps(report, indent=2).replace("\n", line_end).encode()
    error = endpoint.error("openai", raw(text("a", "b") + printed, split=split))
    assert (error.code, error.message, error.retryable) == (503, "The model is overloaded.", True)
    assert error.partial.text == "ab"


def test_end_18_an_unseen_error_is_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """Code that only prints text does not fail silently: the error is logged when it goes unseen."""
    endpoint.play(failure(401, "authentication_error", "bad key"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        for item in endpoint.client().stream("go"):
            if item.type == "text":
                print(item)
        del item
        gc.collect()
    assert "nobody looked at" in caplog.text
    assert "bad key" in caplog.text


def test_end_18_an_error_of_a_stream_that_nobody_read_is_logged(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was started, failed and was dropped; what was cancelled by dropping it is no such error."""
    endpoint.play(failure(401, "authentication_error", "bad key"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        stream = endpoint.client().stream("go").start()
        thread = stream._pump.thread
        assert thread is not None
        thread.join(10)
        assert caplog.text == ""
        del stream
        gc.collect()
        assert "nobody looked at" in caplog.text
        assert "bad key" in caplog.text
        caplog.clear()
        endpoint.play(raw(b"", hold=True))
        sent = len(endpoint.server.requests)
        stream = endpoint.client().stream("go").start()
        endpoint.server.wait_for_request(sent + 1)
        thread = stream._pump.thread
        assert thread is not None
        del stream
        gc.collect()
        thread.join(10)
        gc.collect()
        assert caplog.text == ""


def test_end_18_a_seen_error_is_not_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looked at it knows; run() and result() raise."""
    endpoint.play(*[failure(401, "authentication_error", "bad key")] * 2)
    with caplog.at_level(logging.ERROR, "toolnexus"):
        with pytest.raises(AuthenticationError):
            endpoint.client().run("go")
        stream = endpoint.client().stream("go")
        with pytest.raises(AuthenticationError):
            stream.result()
        del stream
        gc.collect()
    assert not caplog.records


def test_end_19_a_hook_that_raises_ends_the_stream(endpoint: Endpoint) -> None:
    """Code of the user's that raises in the pump gives a terminal error, soon."""

    def broken(body: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("no such thing")

    began = time.monotonic()
    error = endpoint.error("openai", "never", client=endpoint.client(body_transform=broken))
    assert isinstance(error, HookError)
    assert "no such thing" in error.message
    assert time.monotonic() - began < 10


def test_end_19_a_shape_that_no_decoder_expects(endpoint: Endpoint) -> None:
    """JSON of an unexpected shape is a malformed event, not an exception in a thread."""
    for body in (
        data({"choices": 5}),
        data({"choices": [{"index": 0, "delta": {"tool_calls": 5}}]}),
        data({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": "f"}]}}]}),
        data({"choices": [], "x_groq": "x"}),
    ):
        assert endpoint.error("openai", body + end()).kind == "malformed"
    for body in (
        event("message_start", message=[1]),
        start() + event("content_block_start", index=0, content_block="x"),
        start() + event("content_block_delta", index=0, delta="x"),
        start() + event("message_delta", delta=[1]),
    ):
        assert endpoint.error("anthropic", body + stop()).kind == "malformed"


def test_end_20_the_code_as_it_was_given(endpoint: Endpoint) -> None:
    """A text as code is kept, with everything else that was said."""
    said = {"message": "call failed", "code": "tool_use_failed", "failed_generation": "<f>"}
    error = endpoint.error("openai", data({"error": said}))
    assert (error.code, error.message) == ("tool_use_failed", "call failed")
    assert error.body["error"]["failed_generation"] == "<f>"
    assert isinstance(error, BadRequestError)


def test_end_21_the_failure_event_of_a_newer_api(endpoint: Endpoint) -> None:
    """Its terminal failure is an error here, too, with what stands inside."""
    inner = {"code": "context_length_exceeded", "message": "too long"}
    body = data({"type": "response.failed", "response": {"status": "failed", "error": inner}})
    error = endpoint.error("openai", body)
    assert isinstance(error, ContextLengthError)
    assert (error.code, error.message) == ("context_length_exceeded", "too long")


TOO_LONG = [
    (400, {"message": "This is too much.", "code": "context_length_exceeded"}),
    (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request_error"}),
    (400, {"message": "input length and `max_tokens` exceed context limit: 1 + 2 > 2", "type": "invalid"}),
    (400, {"message": "This model's maximum context length is 8192 tokens, you asked for 9000 tokens"}),
    (413, {"message": "Request exceeds the maximum size", "type": "request_too_large"}),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("status", "said"), TOO_LONG)
def test_his_11_a_context_that_is_too_long_is_one_kind(
    status: int, said: dict[str, Any], style: str, endpoint: Endpoint
) -> None:
    """However it is worded, as a status and inside a stream; asking again would not help."""
    body = json.dumps({"type": "error", "error": said}).encode()
    inside = event("error", error=said) if style == "anthropic" else data({"error": said})
    for answer in (raw(body, status=status, headers={"Content-Type": "application/json"}), inside):
        error = endpoint.error(style, answer)
        if answer is inside and status == 413:
            continue  # inside a stream there is no status to go by
        assert isinstance(error, ContextLengthError), error
        assert (error.kind, error.retryable) == ("context_length", False)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"message": "no such model", "code": 404}, "no such model"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"errors": [{"code": 7009, "message": "no route"}], "success": False}, "no route"),
        ({"object": "error", "message": "bad", "code": 40303}, "bad"),
        ({"code": "InvalidParameter", "message": "bad value", "request_id": "r1"}, "bad value"),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "the real one"}}},
            "the real one",
        ),
    ],
)
def test_errors_in_the_shapes_of_single_providers(
    said: dict[str, Any], message: str, endpoint: Endpoint
) -> None:
    """An error object without the usual wrapper is one all the same, framed or bare."""
    for answer in (data(said) + DONE, raw(json.dumps(said).encode(), content_type="application/json")):
        error = endpoint.error("openai", answer)
        assert isinstance(error, APIStatusError)
        assert message in error.message


@pytest.mark.parametrize("style", STYLES)
def test_b040_the_name_of_the_event_is_enough(style: str, endpoint: Endpoint) -> None:
    """``event: error`` with a flat object is an error with that object's message."""
    body = b'event: error\ndata: {"message":"Something broke","code":"server_error","param":null}\n\n'
    error = endpoint.error(style, body)
    assert (error.message, error.code) == ("Something broke", "server_error")


def test_b057_a_cut_connection_is_not_a_token_limit() -> None:
    """Only the provider says "length": a cut is a truncated stream."""
    events = ending("anthropic", TO_THE_END, opening("anthropic", "Half"), CLOSE)
    assert events[-1].error.kind == "truncated"
    assert events[-1].partial.text == "Half"
    assert events[-1].partial.finish_reason is None


# -- the table of the design, section 6.1, row by row ----------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "report",
    [
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"it broke"}}\n\n',
        b'data: {"error":{"message":"it broke"}}\n\n',
        b'data: {"error":"it broke"}\n\n',
        b'{"error":{"message":"it broke"}}\n\n',
        b"error: it broke\n\n",
    ],
    ids=["event", "object", "text", "bare", "error-field"],
)
@pytest.mark.parametrize("begun", [True, False], ids=["after-text", "at-once"])
def test_row_1_an_error_in_any_shape(style: str, report: bytes, begun: bool, endpoint: Endpoint) -> None:
    """An error in the stream is an Error; an end signal after it does not undo it."""
    body = (opening(style, "a") if begun else b"") + report + closing(style)
    error = endpoint.error(style, body)
    assert "it broke" in error.message
    assert error.partial.text == ("a" if begun else "")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("begun", [True, False], ids=["after-text", "at-once"])
def test_row_1_a_web_page(style: str, begun: bool, endpoint: Endpoint) -> None:
    """A web page is an Error that says so, with the page's title."""
    page = b"<!doctype html>\n<html><head><title>502 Bad Gateway</title></head></html>\n"
    body = (opening(style, "a") if begun else b"") + page
    error = endpoint.error(style, raw(body, content_type="text/html"))
    assert error.kind == "malformed"
    assert "web page" in error.message
    assert "502 Bad Gateway" in error.message


@pytest.mark.parametrize("style", STYLES)
def test_row_2_cancelled_or_out_of_time(style: str, endpoint: Endpoint) -> None:
    """What we ended ourselves is an Error of that kind, whatever the connection looks like then."""
    endpoint.play(*[raw(opening(style, "a"), hold=True, framing="close")] * 2)
    scope = CancelScope()
    with endpoint.client(style).stream("go", scope=scope) as stream:
        assert next(stream) == Text("a")
        scope.cancel()
        last = list(stream)[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError)
    with endpoint.client(style).stream("go", timeout=0.3) as stream:
        *_, last = stream
    assert isinstance(last, Error)
    assert isinstance(last.error, RunTimeoutError)
    assert last.partial is not None
    assert last.partial.text == "a"
    endpoint.server.release()


NOTHING: dict[str, dict[str, bytes]] = {
    "openai": {
        "nothing": b"",
        "blank-lines": b"\n\n\n\n",
        "comments": b": hi\n\n",
        "end-mark": DONE,
        "usage-only": data({"choices": [], "usage": {"prompt_tokens": 1}}) + DONE,
        "no-choices": data({"choices": []}) + DONE,
        "plain-text": b"upstream connect error",
    },
    "anthropic": {
        "nothing": b"",
        "blank-lines": b"\n\n\n\n",
        "pings": event("ping"),
        "end-mark": event("message_stop"),
        "start-and-end": start() + event("message_stop"),
        "plain-text": b"upstream connect error",
    },
}


@pytest.mark.parametrize(("style", "what"), [(s, w) for s in STYLES for w in NOTHING[s] if w != "pings"])
def test_row_3_nothing_at_all(style: str, what: str, endpoint: Endpoint) -> None:
    """No event, or an end with no choice or block before it, is an empty response, retryable."""
    error = endpoint.error(style, NOTHING[style][what])
    assert isinstance(error, EmptyResponseError)
    assert (error.kind, error.retryable) == ("empty_response", True)
    if what == "plain-text":
        assert "upstream connect error" in error.message


@pytest.mark.parametrize("style", STYLES)
def test_row_3_is_retried(style: str, endpoint: Endpoint) -> None:
    """An empty body is tried again, since nothing was handed out."""
    client = endpoint.client(style, retries=2)
    assert endpoint.result(style, b"", "fine", client=client).text == "fine"


@pytest.mark.parametrize("style", STYLES)
def test_row_3_a_blank_whole_answer(style: str, endpoint: Endpoint) -> None:
    """A whole answer of blank lines only is empty, too; the message says how long it was."""
    endpoint.play(raw(b"\n\n\n\n", content_type="application/json"))
    with pytest.raises(EmptyResponseError, match="4 bytes"):
        endpoint.client(style).run("go")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("after", [b"", b": bye\n\n", b'data: {"error":"late"}\n\n', b"garbage"])
def test_row_4_the_end_signal(style: str, after: bytes, endpoint: Endpoint) -> None:
    """The end signal is the end, whatever follows it."""
    result = endpoint.result(style, opening(style, "a") + closing(style) + after)
    assert (result.text, result.finish_reason) == ("a", "stop")


@pytest.mark.parametrize("style", STYLES)
def test_row_4_an_open_connection_after_the_end_signal(style: str, endpoint: Endpoint) -> None:
    """A server that holds the connection open after the end does not hold us."""
    body = opening(style, "a") + closing(style)
    endpoint.play(raw(body, hold=True))
    began = time.monotonic()
    assert endpoint.client(style).stream("go").result().text == "a"
    assert time.monotonic() - began < 5
    endpoint.server.release()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "steps",
    [(TO_THE_END, CLOSE), (CHUNKED, CLOSE), (CHUNKED, RESET)],
    ids=["clean", "no-last-chunk", "reset"],
)
def test_row_5_a_reason_and_then_the_end_of_the_connection(style: str, steps: Any) -> None:
    """A finish reason, then the end of the connection, however ungraceful, is Done."""
    head, how = steps
    body = opening(style, "a") + reason_only(style)
    framed = http_chunk(body) if head is CHUNKED else body
    pause: tuple[Any, ...] = (0.2,) if how is RESET else ()  # a reset discards what was not read yet
    events = ending(style, head, framed, *pause, how)
    assert isinstance(events[-1], Done), events[-1]
    assert (events[-1].result.text, events[-1].result.finish_reason) == ("a", "stop")


def test_row_5_calls_run_after_a_reason_and_a_cut(endpoint: Endpoint) -> None:
    """The reason is an end signal: calls before it run."""
    body = calls((0, "a", "f", "{}")).removesuffix(DONE)
    result = endpoint.result("openai", raw(body, cut="close"), "fine", tools=tools("f"))
    assert (result.text, result.tool_call_count) == ("fine", 1)


CUTS = {
    "clean": (TO_THE_END, CLOSE),
    "no-last-chunk": (CHUNKED, CLOSE),
    "reset": (CHUNKED, RESET),
    "short": (HEAD + b"Content-Length: 100000\r\n\r\n", CLOSE),
    "inside-a-chunk": (CHUNKED + b"fff\r\n", CLOSE),
    "no-chunk-size": (CHUNKED, b"\r\n", CLOSE),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cut", CUTS)
def test_row_6_the_connection_ends_before_any_of_these(style: str, cut: str) -> None:
    """Truncated, retryable, the text kept; exactly one terminal item."""
    head, *rest = CUTS[cut]
    body = opening(style, "a")
    if head is CHUNKED:
        body = http_chunk(body)
    events = ending(style, head, body, 0.2, *rest)
    assert [e.type for e in events] == ["text", "error"]
    error = events[-1].error
    assert isinstance(error, TruncatedStreamError)
    assert (error.retryable, said_so_far(error)) == (True, "a")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("how", [CLOSE, RESET])
def test_row_6_cut_before_the_first_event(style: str, how: str) -> None:
    """Cut after the headers and before any event: an error that is tried again."""
    error = ending(style, CHUNKED, 0.1, how)[-1].error
    assert error.retryable
    assert error.kind in ("truncated", "empty_response", "connection")


def test_an_answer_without_blocks_but_with_a_reason_is_done(endpoint: Endpoint) -> None:
    """
    A model may end its turn and say nothing, for instance after a tool's result.

    The provider said why it ended, so that this is no empty response, although no block was seen.
    """
    result = endpoint.result("anthropic", start() + stop("end_turn"))
    assert (result.text, result.finish_reason, result.status) == ("", "stop", "done")


def test_run_raises_what_stream_ends_with(endpoint: Endpoint) -> None:
    """run(), result() and text_deltas() raise the error that the stream would have ended with."""
    page = raw(b"<html><title>Login</title></html>", content_type="text/html")
    found: list[ToolnexusError] = []
    for ask in (
        lambda c: c.run("go"),
        lambda c: c.stream("go").result(),
        lambda c: list(c.stream("go").text_deltas()),
    ):
        endpoint.play(page)
        with pytest.raises(ToolnexusError) as caught:
            ask(endpoint.client())
        found.append(caught.value)
    assert len({(type(e), e.message) for e in found}) == 1
