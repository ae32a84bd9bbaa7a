"""Rough use: wrong options, callbacks that return or raise anything, and answers that are none."""

from __future__ import annotations

import json
import math
import pickle
import socket
from collections.abc import Callable
from typing import Any

import pytest

import toolnexus.errors
from tests.support.raw import CLOSE, RawServer
from toolnexus import (
    APIConnectionError,
    APITimeoutError,
    CancelScope,
    Client,
    ConfigurationError,
    Done,
    Error,
    HookError,
    MalformedEventError,
    PIIDetectedError,
    Tool,
    ToolFinished,
    Toolkit,
    ToolnexusError,
    ToolResult,
    Usage,
    tool,
)
from toolnexus.events import Event
from toolnexus.testing import ModelServer, raw, reply, tool_call

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(STREAM) + STREAM
)


def a_client(url: str = "http://127.0.0.1:1/v1", **options: Any) -> Client:
    return Client(url, model="m", **{"retries": 0, **options})


def ending(events: list[Event]) -> ToolnexusError:
    """Return the error that a stream ended with; it is the one terminal item, and has a partial result."""
    assert [e for e in events if isinstance(e, (Done, Error))] == events[-1:]
    last = events[-1]
    assert isinstance(last, Error)
    assert last.partial is not None
    return last.error


def a_run(execute: Callable[..., Any] = lambda args, ctx: "out", **options: Any) -> list[Event]:
    """Return the events of a run with one tool call."""
    with ModelServer(script=[tool_call("t", {"a": 1}), reply("fine")]) as server:
        return list(a_client(server.base_url, **options).stream("x", [Tool("t", execute=execute)], id="c"))


class Speechless(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class SpeechlessInterrupt(KeyboardInterrupt):
    """Has no text, and is no Exception."""

    __str__ = Speechless.__str__


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["timeout", "connect_timeout", "response_timeout", "idle_timeout", "tool_timeout", "abandon_timeout"],
)
@pytest.mark.parametrize("value", [math.inf, math.nan, 10**400, 1e12])
def test_a_duration_that_no_system_can_wait_for_is_refused(name: str, value: Any) -> None:
    """The system's waits overflow: that is known before anything is sent, not in the middle of a run."""
    with pytest.raises(ConfigurationError, match=name):
        a_client(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_turns", "3"),
        ("max_turns", -1),
        ("max_turns", None),
        ("timeout", 0),
        ("timeout", "1"),
        ("timeout", math.inf),
        ("model", None),
        ("model", ""),
        ("system_prompt", 5),
        ("retries", 1),
    ],
)
def test_what_is_wrong_for_one_run_is_refused_as_for_the_client(name: str, value: Any) -> None:
    """An option of one call is checked as that of the client: the call itself raises."""
    for call in (Client.run, Client.stream, Client.chunks, Client.translate):
        with pytest.raises(ConfigurationError, match=name):
            call(a_client(), "x", **{name: value})


def test_things_that_are_no_lists_are_refused_by_name() -> None:
    """Whatever is no list of clients, channels or tools raises our error, not a bare TypeError."""
    with pytest.raises(ConfigurationError, match="fallbacks"):
        a_client(fallbacks=5)
    with pytest.raises(ConfigurationError, match="channels"):
        a_client().stream("x", channels=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tool name"):
        a_client().stream("x", [Tool(5)])  # type: ignore[arg-type]


def test_the_fragment_of_a_base_url_is_dropped() -> None:
    """It is never sent, and a key in it shall not be shown either."""
    assert "secret" not in repr(a_client("http://h/v1#key=secret"))


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1, "1", 10**400])
def test_a_scope_whose_time_cannot_be_waited_for_is_refused(seconds: Any) -> None:
    """The mistake is known where it is made, not in a thread of the run."""
    with pytest.raises(ConfigurationError, match="timeout"):
        CancelScope(seconds)


@pytest.mark.parametrize(
    ("field", "value"),
    [("execute", 5), ("input_schema", 5), ("timeout", "1"), ("timeout", math.inf), ("max_output", -1)],
)
def test_a_tool_that_can_only_fail_is_refused(field: str, value: Any) -> None:
    """A tool's own mistakes are known before anything is sent."""
    with pytest.raises(ConfigurationError, match=field):
        a_client().stream("x", [Tool("t", **{field: value})])


class Clock:
    def plain(self, zone: str) -> str:
        return zone

    @tool
    def decorated(self, zone: str) -> str:
        return zone


@pytest.mark.parametrize("method", [Clock.plain, Clock.decorated, tool(Clock.plain, name="now")])
def test_a_method_without_its_object_is_refused(method: Any) -> None:
    """Its ``self`` would be missing at every call; with its object it is a tool as any other."""
    for use in (Toolkit, lambda tools: a_client().stream("x", tools)):
        with pytest.raises(ConfigurationError, match=r"Clock\.\w+ is a method without its object"):
            use([method])
    for name in ("plain", "decorated"):
        assert Toolkit([getattr(Clock(), name)]).execute(name, {"zone": "CET"}).output == "CET"


def test_every_event_of_a_stream_can_be_pickled() -> None:
    """Events go to other processes, the terminal error among them."""
    events = a_run(body_transform=lambda body: 5)
    copies = pickle.loads(pickle.dumps(events))
    assert copies[:-1] == events[:-1]
    assert str(ending(copies)) == str(ending(events))


# -- tools and callbacks ---------------------------------------------------------------------------


@pytest.mark.timeout(30)
def test_a_tool_whose_error_has_no_text_ends_all_the_same() -> None:
    """Nothing a tool raises keeps the run waiting for its result."""
    for error in (Speechless(), SpeechlessInterrupt()):

        def execute(args: Any, ctx: Any, error: BaseException = error) -> None:
            raise error

        last = a_run(execute)[-1]
        assert isinstance(last, Done)
        assert last.result.tool_calls[0].is_error


def test_a_tool_may_have_a_word_of_its_own_named_pending() -> None:
    """Only a request suspends a call; a tool's own metadata under the same key is kept as it is."""
    last = a_run(lambda args, ctx: ToolResult.ok("2 orders", pending=2))[-1]
    assert isinstance(last, Done)
    assert last.result.text == "fine"
    assert last.result.tool_calls[0].metadata == {"pending": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"hooks": {"before_llm": lambda view: {"tools": 5}}},
        {"hooks": {"before_llm": lambda view: {"tools": [5]}}},
        {"hooks": {"before_tool": lambda view: {"args": 5}}},
        {"hooks": {"before_tool": lambda view: {"args": [1]}}},
        {"hooks": {"before_tool": lambda view: {"args": {"a": object()}}}},
        {"body_transform": lambda body: 5},
        {"body_transform": lambda body: [body]},
    ],
)
def test_a_callback_that_returns_the_wrong_thing_is_named(options: dict[str, Any]) -> None:
    """The error says which callback it was, and no tool runs with arguments that are not JSON."""
    ran: list[Any] = []
    error = ending(a_run(lambda args, ctx: ran.append(args), **options))
    assert isinstance(error, HookError)
    assert not ran


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Speechless()], ids=["exit", "ctrl-c", "bad"]
)
def test_whatever_a_callback_raises_the_error_has_a_partial_result(error: BaseException) -> None:
    """A stream's `Error` always says what the run had reached, so that a handler need not ask."""

    def fail(*given: Any) -> None:
        raise error

    for options in ({"hooks": {"after_llm": fail}}, {"body_transform": fail}, {"store": Failing(fail)}):
        ending(a_run(**options))


class Failing:
    """A store that can be read once."""

    def __init__(self, fail: Callable[..., None]) -> None:
        self.fail = fail
        self.reads = 0

    def get(self, id: str) -> list[Any]:  # noqa: A002
        self.reads += 1
        return [] if self.reads == 1 else self.fail() or []

    def save(self, id: str, messages: Any) -> None:  # noqa: A002
        self.fail()


# -- the wire --------------------------------------------------------------------------------------


def test_a_refused_connection_is_no_timeout() -> None:
    """Nobody listens: that is said as such, not as a time limit that was never reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = ending(list(a_client(f"http://127.0.0.1:{port}/v1").stream("x")))
    assert isinstance(error, APIConnectionError)
    assert not isinstance(error, APITimeoutError)
    assert "refused" in str(error)


def test_a_host_that_nobody_knows_is_no_timeout() -> None:
    """A name that has no address is said as such."""
    error = ending(list(a_client("http://no-such-host.invalid/v1", api_key="k").stream("x")))
    assert isinstance(error, APIConnectionError)
    assert not isinstance(error, APITimeoutError)


@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_answers_before_the_answer_are_passed_over(status: bytes) -> None:
    """An interim answer is no empty answer: the one that counts comes after it."""
    with RawServer([b"HTTP/1.1 " + status + b"\r\nLink: </a>\r\n\r\n" + OK, CLOSE]) as server:
        last = list(a_client(server.url).stream("x"))[-1]
    assert isinstance(last, Done)
    assert last.result.text == "hi"


def test_interim_answers_do_not_go_on_for_ever() -> None:
    """A server that sends nothing else is given up."""
    with RawServer([b"HTTP/1.1 102 Processing\r\n\r\n" * 1000, CLOSE]) as server:
        assert isinstance(ending(list(a_client(server.url).stream("x"))), APIConnectionError)


def test_a_header_of_the_answer_that_is_wrong_is_the_endpoints_fault() -> None:
    """Two lengths in one answer are no error of the caller's configuration."""
    wrong = OK.replace(b"Content-Length", b"Content-Length: 3\r\nContent-Length", 1)
    with RawServer([wrong, CLOSE]) as server:
        error = ending(list(a_client(server.url).stream("x")))
    assert isinstance(error, APIConnectionError)
    assert error.retryable
    assert "Content-Length" in str(error)


# -- what a provider may say -----------------------------------------------------------------------


def answered(*deltas: Any, usage: Any = None) -> tuple[list[Event], list[Any]]:
    """Return the events for an answer of these deltas, and the arguments that a tool ran with."""
    ran: list[Any] = []
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answer = raw(body.encode(), headers={"Content-Type": "text/event-stream"})
    with ModelServer(script=[answer]) as server:
        tool = Tool("t", execute=lambda args, ctx: ran.append(args))
        return list(a_client(server.base_url, max_turns=1).stream("x", [tool])), ran


@pytest.mark.parametrize("arguments", [5, 0, True, False, [1], "5", "[]"])
def test_a_call_whose_arguments_are_no_object_never_runs(arguments: Any) -> None:
    """A number in the place of the arguments is not the same as no arguments."""
    call = {"index": 0, "id": "c", "function": {"name": "t", "arguments": arguments}}
    events, ran = answered({"tool_calls": [call]})
    assert not ran
    finished = next(e for e in events if isinstance(e, ToolFinished))
    assert finished.is_error
    assert "must be a JSON object" in finished.output


@pytest.mark.parametrize(
    "delta", [5, "text", [1], {"content": 5}, {"content": True}, {"tool_calls": "t"}, {"tool_calls": [5]}]
)
def test_an_answer_of_another_shape_is_not_passed_over(delta: Any) -> None:
    """What was said and cannot be read is an error, never a short answer that looks complete."""
    events, ran = answered({"content": "so far"}, delta)
    error = ending(events)
    assert isinstance(error, MalformedEventError)
    assert error.partial is not None
    assert error.partial.text == "so far"
    assert not ran


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e308, "5", None, [], 10**400, -5, -5.0])
def test_token_counts_that_are_none_cost_nobody_the_answer(number: Any) -> None:
    """Usage is beside the point: the answer is whole without it."""
    events, _ = answered({"content": "hi"}, usage={"prompt_tokens": number, "completion_tokens": number})
    assert isinstance(events[-1], Done)
    assert events[-1].result.text == "hi"
    assert events[-1].result.usage.prompt_tokens >= 0  # a counter that goes down breaks whoever counts


@pytest.mark.parametrize("style", ["openai", "anthropic", "responses", "gemini"])
def test_token_counts_below_zero_are_none(style: str) -> None:
    """In every dialect."""
    with ModelServer(style=style, script=[reply("hi", usage=Usage(-5, -7, -12))]) as server:
        result = a_client(server.base_url, style=style, api_key="k").stream("x").result()
    assert (result.text, result.usage.prompt_tokens, result.usage.completion_tokens) == ("hi", 0, 0)


def test_any_error_can_be_asked_for_its_details() -> None:
    """What only a failed model call has is None elsewhere, also after pickling."""
    for name in toolnexus.errors.__all__:
        kind = getattr(toolnexus.errors, name)
        error = kind("no") if kind is not PIIDetectedError else kind("no", pii_type="email")
        for one in (error, pickle.loads(pickle.dumps(error))):
            details = (one.status, one.type, one.code, one.param, one.request_id, one.retry_after, one.body)
            assert details == (None,) * 7
            assert (one.attempt, one.partial, one.events) == (None, None, None)
            assert isinstance(one.retryable, bool)
            assert one.describe() == f"{name}: no"


def test_what_is_json_but_no_event_is_named_for_what_it_is() -> None:
    """A list or a text in the place of an event; it does not say that it is no JSON."""
    for data in (b"[1]", b'"boom"', b"5"):
        answer = raw(b"data: " + data + b"\n\n", headers={"Content-Type": "text/event-stream"})
        with ModelServer(script=[answer]) as server:
            error = ending(list(a_client(server.base_url).stream("x")))
        assert error.message == f"an event is no JSON object: {data.decode()!r}"


@pytest.mark.parametrize("arguments", [{"a": 1}, [1], 5])
def test_arguments_of_a_responses_call_may_be_no_text(arguments: Any) -> None:
    """An object in the place of a text is taken as it is, and anything else never runs as no arguments."""
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "t", "arguments": arguments}
    parts: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item]}},
    ]
    body = "".join(f"event: {part['type']}\ndata: {json.dumps(part)}\n\n" for part in parts)
    answer = raw(body.encode(), headers={"Content-Type": "text/event-stream"})
    ran: list[Any] = []
    with ModelServer(style="responses", script=[answer]) as server:
        client = a_client(server.base_url, style="responses", max_turns=1)
        list(client.stream("x", [Tool("t", execute=lambda args, ctx: ran.append(args))]))
    assert ran == ([arguments] if isinstance(arguments, dict) else [])
