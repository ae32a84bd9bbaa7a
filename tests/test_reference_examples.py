"""
The examples of the reference documentation, and its acceptance checks F1 to F49.

The checks about Gemini and the Responses API (F33 to F35, F39 to F41) belong to those dialects' tests,
those about runs and tools (F50 to F90) to test_reference_runs.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    ABSENT,
    DONE,
    STYLES,
    Endpoint,
    calls,
    chunk,
    completion,
    data,
    deltas,
    end,
    event,
    message,
    start,
    stop,
    text,
    text_block,
    tool_block,
    tools,
)
from tests.support.raw import HOLD, RawServer
from toolnexus import (
    APITimeoutError,
    AuthenticationError,
    Client,
    ContextLengthError,
    Done,
    Error,
    IdleTimeoutError,
    InternalServerError,
    LimitError,
    OverloadedError,
    QuotaError,
    RateLimitError,
    ResponseTimeoutError,
    RunResult,
    Text,
    Thinking,
    ToolCall,
    ToolFinished,
    ToolnexusError,
    TruncatedStreamError,
    Usage,
    UsageReport,
)
from toolnexus.testing import failure, raw

A = ABSENT
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


# -- the examples, exactly as they are written -----------------------------------------------------


def test_example_a_text_stream(endpoint: Endpoint) -> None:
    """A text stream yields exactly Text("Hel"), Text("lo"), UsageReport(5/2/7), Done with text "Hello"."""
    events = endpoint.stream("openai", text("Hel", "lo") + end(usage=USAGE))
    *before, last = events
    assert before == [Text("Hel"), Text("lo"), UsageReport(Usage(5, 2, 7))]
    assert isinstance(last, Done)
    assert last.result.text == "Hello"


def test_example_a_call_in_two_pieces(endpoint: Endpoint) -> None:
    """A call whose arguments come in two pieces: call, result, text, usage, done, and one call counted."""
    first = calls((0, "c1", "add", '{"a": 2,'), (0, A, A, ' "b": 3}'))
    second = text("the sum is 5") + end(usage=USAGE)
    *before, last = endpoint.stream("openai", first, second, tools=[add])
    assert before == [
        ToolCall("c1", "add", {"a": 2, "b": 3}),
        ToolFinished("c1", "add", "5", False),
        Text("the sum is 5"),
        UsageReport(Usage(5, 2, 7)),
    ]
    assert isinstance(last, Done)
    assert last.result.tool_call_count == 1


@pytest.mark.parametrize("style", STYLES)
def test_example_a_second_stream_with_the_same_id(style: str, endpoint: Endpoint) -> None:
    """It sends three messages, the last of which is the new prompt."""
    client = endpoint.client(style)
    endpoint.play("Hello Ada.", "You are Ada.")
    client.stream("I am Ada.", id="chat").result()
    client.stream("Who am I?", id="chat").result()
    sent = endpoint.seen[1].messages
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    content = sent[-1]["content"]
    assert (content if style == "openai" else content[0]["text"]) == "Who am I?"


def test_example_anthropic_text_without_message_stop(endpoint: Endpoint) -> None:
    """A stream that ends at message_delta, without message_stop but with a reason, is done; usage 6/3/9."""
    reason = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
    body = start(input_tokens=6, output_tokens=1) + text_block(0, "Hel", "lo") + reason
    *before, last = endpoint.stream("anthropic", raw(body, framing="close"))
    assert before == [Text("Hel"), Text("lo"), UsageReport(Usage(6, 3, 9))]
    assert isinstance(last, Done)
    assert (last.result.text, last.result.finish_reason) == ("Hello", "stop")


# -- event streams ---------------------------------------------------------------------------------

HELLO = text("Hello ", "world") + end()


def texts_at_every_split(endpoint: Endpoint, body: bytes) -> Iterator[list[str]]:
    """Yield the pieces of text for every way to cut a body in two."""
    for position in range(1, len(body)):
        yield deltas(endpoint.stream("openai", raw(chunks=[body[:position], body[position:]])))


def test_f01_every_split(endpoint: Endpoint) -> None:
    """Cut at every byte, each frame is read once."""
    assert all(pieces == ["Hello ", "world"] for pieces in texts_at_every_split(endpoint, HELLO))


def test_f02_every_split_with_crlf(endpoint: Endpoint) -> None:
    """The same with CRLF line ends."""
    body = HELLO.replace(b"\n", b"\r\n")
    assert all(pieces == ["Hello ", "world"] for pieces in texts_at_every_split(endpoint, body))


def test_f03_bare_cr_in_single_bytes(endpoint: Endpoint) -> None:
    """The same with bare CR, and byte by byte."""
    body = HELLO.replace(b"\n", b"\r")
    assert deltas(endpoint.stream("openai", raw(body, split=1))) == ["Hello ", "world"]
    positions = random.Random(3).sample(range(1, len(body)), 40)
    for position in positions:
        answer = raw(chunks=[body[:position], body[position:]])
        assert deltas(endpoint.stream("openai", answer)) == ["Hello ", "world"]


def test_f04_characters_split_over_reads(endpoint: Endpoint) -> None:
    """Characters of several bytes, and U+2028, survive being cut."""
    wanted = "näïve 日本 \u2028 😀"
    body = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{wanted}"}}}}]}}\n\n'.encode() + end()
    assert deltas(endpoint.stream("openai", raw(body, split=1))) == [wanted]


def test_f05_comments_and_pings_are_no_chunks(endpoint: Endpoint) -> None:
    """Comments and pings give nothing, and keep the stream alive."""
    client = endpoint.client("anthropic", idle_timeout=0.6)
    quiet = [b": ping\n\n", event("ping")] * 3
    body = [start() + text_block(0, "a"), *quiet, text_block(1, "b") + stop()]
    events = endpoint.stream("anthropic", raw(chunks=body, delay=0.2), client=client)
    assert deltas(events) == ["a", "b"]


def test_f06_two_data_lines_are_one_event(endpoint: Endpoint) -> None:
    """They are joined by a newline and decoded as one JSON document."""
    one = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'
    assert deltas(endpoint.stream("openai", one + end())) == ["a"]


@pytest.mark.parametrize("style", STYLES)
def test_f07_a_frame_that_is_no_json(style: str, endpoint: Endpoint) -> None:
    """By default a terminal error of kind malformed; with on_bad_event="skip" the rest counts."""
    good = text("recovered") + end() if style == "openai" else start() + text_block(0, "recovered") + stop()
    body = b"data: {not json}\n\n" + good
    assert endpoint.error(style, body).kind == "malformed"
    client = endpoint.client(style, on_bad_event="skip")
    assert endpoint.result(style, body, client=client).text == "recovered"


def test_f08_a_reason_without_the_end_mark(endpoint: Endpoint) -> None:
    """A finish reason and a clean close are done."""
    body = text("a") + chunk({}, "stop")
    assert endpoint.result("openai", raw(body, framing="close")).finish_reason == "stop"


def test_f09_no_reason_and_a_close(endpoint: Endpoint) -> None:
    """A terminal error, truncated, retryable; the text that came is seen before it."""
    events = endpoint.stream("openai", raw(text("par", "tial"), framing="close"))
    assert deltas(events) == ["par", "tial"]
    last = events[-1]
    assert isinstance(last, Error)
    assert (last.error.kind, last.error.retryable) == ("truncated", True)


def test_f10_only_the_end_mark(endpoint: Endpoint) -> None:
    """
    No text, and exactly one terminal item.

    The reference takes it for a success; the design (6.1) says an end without any choice is empty.
    """
    assert endpoint.error("openai", DONE).kind == "empty_response"


def test_f11_role_and_empty_content_first(endpoint: Endpoint) -> None:
    """Only real text is handed out."""
    body = chunk({"role": "assistant"}) + chunk({"content": ""}) + chunk({"content": None})
    assert deltas(endpoint.stream("openai", body + text("x") + end())) == ["x"]


# -- calls -----------------------------------------------------------------------------------------


def called(endpoint: Endpoint, body: bytes) -> RunResult:
    return endpoint.result("openai", body, "fine", tools=tools("f", "g"))


def made(result: RunResult) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, call.args) for call in result.tool_calls]


def test_f12_one_call_in_three_fragments(endpoint: Endpoint) -> None:
    """One call, its arguments decoded."""
    body = calls((0, "a", "f", ""), (0, A, A, '{"x"'), (0, A, A, ":1}"))
    assert made(called(endpoint, body)) == [("a", "f", {"x": 1})]


def test_f13_two_calls_interleaved(endpoint: Endpoint) -> None:
    """Two calls, in the order of their indexes."""
    body = calls((0, "a", "f", '{"x"'), (1, "b", "g", '{"y"'), (0, A, A, ":1}"), (1, A, A, ":2}"))
    assert made(called(endpoint, body)) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_f14_the_second_index_first(endpoint: Endpoint) -> None:
    """A call at index 1 that is announced before the one at index 0 comes behind it."""
    body = calls((1, "b", "g", '{"y":2}'), (0, "a", "f", '{"x":1}'))
    assert made(called(endpoint, body)) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_f15_two_ids_at_one_index(endpoint: Endpoint) -> None:
    """Two different ids are two calls, though both say index 0."""
    body = calls((0, "a", "f", "{}"), (0, "b", "g", "{}"))
    assert made(called(endpoint, body)) == [("a", "f", {}), ("b", "g", {})]


@pytest.mark.parametrize("name", [A, "f"], ids=["nameless", "named"])
def test_f16_name_first_and_id_later(name: Any, endpoint: Endpoint) -> None:
    """One call with that id."""
    body = calls((0, A, "f", '{"x":'), (0, "late", name, "1}"))
    assert made(called(endpoint, body)) == [("late", "f", {"x": 1})]


def test_f17_null_arguments_first(endpoint: Endpoint) -> None:
    """An opener with null arguments, then JSON: assembled."""
    assert made(called(endpoint, calls((0, "a", "f", None), (0, A, A, '{"x":1}')))) == [("a", "f", {"x": 1})]


def test_f18_empty_arguments(endpoint: Endpoint) -> None:
    """Empty arguments are {}."""
    assert made(called(endpoint, calls((0, "a", "f", "")))) == [("a", "f", {})]


@pytest.mark.parametrize("arguments", ['{"x', "[1]"])
def test_f19_arguments_that_never_parse(arguments: str, endpoint: Endpoint) -> None:
    """Not executed; the record has no arguments and says what is wrong; the model is told."""
    result = called(endpoint, calls((0, "a", "f", arguments)))
    assert made(result) == [("a", "f", None)]
    assert result.tool_calls[0].is_error
    assert endpoint.seen[1].messages[-1]["content"].startswith("f: the arguments")


def test_f20_no_calls(endpoint: Endpoint) -> None:
    """No fragments, an empty list."""
    assert endpoint.result("openai", HELLO).tool_calls == []


@pytest.mark.parametrize("style", STYLES)
def test_f21_cut_by_length_while_a_call_is_open(style: str, endpoint: Endpoint) -> None:
    """The call is not executed, and the result says that the answer was cut."""
    ran: list[Any] = []
    if style == "openai":
        body = calls((0, "a", "f", '{"x":'), finish="length")
    else:
        body = start() + tool_block(0, "a", "f", '{"x":') + stop("max_tokens")
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    result = endpoint.result(style, body, tools=offered)
    assert not ran
    assert (result.status, result.limit, result.finish_reason) == ("incomplete", "length", "length")


def test_f23_an_unknown_reason(endpoint: Endpoint) -> None:
    """The stream still ends, and the provider's word is kept."""
    result = endpoint.result("openai", text("a") + end("novel"))
    assert (result.finish_reason, result.raw_finish_reason) == ("stop", "novel")


def test_f24_the_reason_in_its_own_read(endpoint: Endpoint) -> None:
    """Exactly one terminal item, with that reason."""
    answer = raw(chunks=[text("a"), chunk({}, "length"), DONE], delay=0.05)
    events = endpoint.stream("openai", answer)
    assert [e.type for e in events] == ["text", "usage", "done"]
    assert events[-1].result.finish_reason == "length"  # type: ignore[attr-defined]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "answer", ["fine", b"", b"<html>", failure(500), failure(401), DONE], ids=lambda a: type(a).__name__
)
def test_f25_one_terminal_item_and_it_is_the_last(style: str, answer: Any, endpoint: Endpoint) -> None:
    """Whatever happens, one terminal item ends the stream."""
    events = endpoint.stream(style, answer)
    assert [e for e in events if isinstance(e, (Done, Error))] == [events[-1]]
    if isinstance(events[-1], Error):
        assert events[-1].error.message


# -- usage and reasoning ---------------------------------------------------------------------------


def test_f26_usage_with_the_reason_and_again_without_choices(endpoint: Endpoint) -> None:
    """The last one wins, the reason is kept."""
    again = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    body = text("a") + chunk({}, "length", usage=USAGE) + data({"choices": [], "usage": again}) + DONE
    result = endpoint.result("openai", body)
    assert (result.usage, result.finish_reason) == (Usage(5, 9, 14), "length")


def test_f27_usage_nested_in_the_choice(endpoint: Endpoint) -> None:
    """It is read."""
    nested = data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]})
    assert endpoint.result("openai", text("a") + nested + DONE).usage == Usage(5, 2, 7)


def test_f28_usage_null_on_each_frame(endpoint: Endpoint) -> None:
    """Only the real one counts."""
    body = chunk({"content": "a"}, usage=None) + chunk({}, "stop", usage=None)
    last = data({"choices": [], "usage": USAGE})
    assert endpoint.result("openai", body + last + DONE).usage == Usage(5, 2, 7)


def test_f29_usage_with_unknown_keys(endpoint: Endpoint) -> None:
    """
    Keys that nobody knows harm nothing, and what is known in them is read.

    The reference keeps them in a raw map; the design's Usage has the counts only.
    """
    usage = {**USAGE, "cost": 0.1, "prompt_tokens_details": None, "novel": {"x": [1]}}
    assert endpoint.result("openai", text("a") + end(usage=usage)).usage == Usage(5, 2, 7)


def test_f30_reasoning_and_then_text(endpoint: Endpoint) -> None:
    """Reasoning comes as Thinking, is in no text, and no history holds it as content."""
    thought = chunk({"reasoning_content": "Let me "}) + chunk({"reasoning_content": "see."})
    events = endpoint.stream("openai", thought + text("4") + end())
    assert events[:3] == [Thinking("Let me "), Thinking("see."), Text("4")]
    result = events[-1].result  # type: ignore[attr-defined]
    assert (result.text, result.thinking) == ("4", "Let me see.")
    assert result.messages[-1]["content"] == "4"
    endpoint.result("openai", "ok", history=result.messages)
    assert endpoint.seen[0].messages[1] == {"role": "assistant", "content": "4"}


def test_f31_reasoning_only_and_cut(endpoint: Endpoint) -> None:
    """Text is empty, the reason is length, the reasoning is kept."""
    result = endpoint.result("openai", chunk({"reasoning_content": "hm"}) + end("length"))
    assert (result.text, result.finish_reason, result.thinking) == ("", "length", "hm")


def test_f32_only_the_first_frame_has_the_id(endpoint: Endpoint) -> None:
    """The answer's model is that of the first frame, though later ones say nothing."""
    first = data({"id": "x1", "model": "glm", "choices": [{"index": 0, "delta": {"content": "a"}}]})
    assert endpoint.result("openai", first + text("b") + end()).model == "glm"


def test_f36_anthropic_input_starts_as_an_empty_object(endpoint: Endpoint) -> None:
    """An opening input {} and two pieces of JSON make one object, not {}{."""
    body = start() + tool_block(0, "t", "f", '{"x"', ":1}") + stop("tool_use")
    result = endpoint.result("anthropic", body, "fine", tools=tools("f"))
    assert made(result) == [("t", "f", {"x": 1})]


def test_f37_anthropic_usage_of_start_and_delta(endpoint: Endpoint) -> None:
    """Input and output counts are merged."""
    body = start(input_tokens=12, output_tokens=1) + text_block(0, "a") + stop("end_turn", output_tokens=4)
    assert endpoint.result("anthropic", body).usage == Usage(12, 4, 16)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind", "retryable"),
    [
        ("overloaded_error", OverloadedError, True),
        ("rate_limit_error", RateLimitError, True),
        ("authentication_error", AuthenticationError, False),
        ("api_error", InternalServerError, True),
    ],
)
def test_f38_an_error_event_in_the_middle(
    word: str, kind: type[ToolnexusError], retryable: bool, endpoint: Endpoint
) -> None:
    """A terminal error of the provider's type, retryable as that type is."""
    body = start() + text_block(0, "a") + event("error", error={"type": word, "message": "no"})
    error = endpoint.error("anthropic", body)
    assert isinstance(error, kind)
    assert (error.type, error.retryable) == (word, retryable)  # type: ignore[attr-defined]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [(401, AuthenticationError, False), (429, RateLimitError, True), (500, InternalServerError, True)],
)
def test_f42_a_status_before_any_data(
    style: str, status: int, kind: type[ToolnexusError], retryable: bool, endpoint: Endpoint
) -> None:
    """One terminal error with message, status and raw body; 429 and 500 are worth a retry."""
    error = endpoint.error(style, failure(status, message="as told"))
    assert isinstance(error, kind)
    assert (error.status, error.message, error.retryable) == (status, "as told", retryable)  # type: ignore[attr-defined]
    assert error.body["error"]["message"] == "as told"  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["insufficient_quota", "exceeded_current_quota_error", "1113"])
def test_f43_a_429_about_quota(code: str, endpoint: Endpoint) -> None:
    """Waiting does not help: not retryable, asked once."""
    client = endpoint.client(retries=2)
    error = endpoint.error("openai", failure(429, message="no", code=code), client=client)
    assert isinstance(error, QuotaError)
    assert (error.retryable, len(endpoint.seen)) == (False, 1)


def test_f44_a_400_about_the_context(endpoint: Endpoint) -> None:
    """The same class from stream, result and run."""
    answer = failure(400, message="too long", code="context_length_exceeded")
    assert isinstance(endpoint.error("openai", answer), ContextLengthError)
    endpoint.play(answer, answer)
    with pytest.raises(ContextLengthError):
        endpoint.client().stream("go").result()
    with pytest.raises(ContextLengthError):
        endpoint.client().run("go")


@pytest.mark.parametrize("cut", ["close", "reset"])
def test_f45_the_connection_drops_after_text(cut: Any, endpoint: Endpoint) -> None:
    """The text is seen, then a retryable transport error; result() raises it with the partial text."""
    body = raw(chunks=[text("partial"), b": x\n\n"], cut=cut, delay=0.1)
    endpoint.play(body)
    stream = endpoint.client().stream("go")
    assert next(stream) == Text("partial")
    with pytest.raises(TruncatedStreamError) as caught:
        stream.result()
    assert caught.value.retryable
    assert caught.value.partial is not None
    assert caught.value.partial.text == "partial"


@pytest.mark.parametrize("style", STYLES)
def test_f46_silence_longer_than_idle_timeout(style: str, endpoint: Endpoint) -> None:
    """A terminal timeout, not a clean end."""
    body = text("a") if style == "openai" else start() + text_block(0, "a")
    client = endpoint.client(style, idle_timeout=0.2)
    error = endpoint.error(style, raw(body, hold=True), client=client)
    endpoint.server.release()
    assert isinstance(error, IdleTimeoutError)
    assert (error.kind, error.retryable) == ("timeout", True)


def test_f47_the_timeouts_reach_the_socket() -> None:
    """A server that accepts and says nothing ends in response_timeout, about when it was set."""
    with (
        RawServer([HOLD]) as server,
        Client(base_url=server.url, model="m", api_key="k", retries=0, response_timeout=0.3) as client,
    ):
        began = time.monotonic()
        with pytest.raises(ResponseTimeoutError) as caught:
            client.run("go")
        took = time.monotonic() - began
    assert isinstance(caught.value, APITimeoutError)
    assert 0.25 < took < 10


@pytest.mark.parametrize("style", STYLES)
def test_f48_streamed_and_whole_are_the_same(style: str, endpoint: Endpoint) -> None:
    """The same turn streamed and whole gives equal results."""
    if style == "openai":
        streamed = text("Hel", "lo") + end(usage=USAGE)
        answer = completion({"content": "Hello"}, "stop", usage=USAGE)
        streamed = data({"model": "m", "choices": []}) + streamed
    else:
        streamed = start() + text_block(0, "Hel", "lo") + stop()
        answer = message([{"type": "text", "text": "Hello"}])
    assert endpoint.result(style, streamed) == endpoint.run(style, answer)


def test_f49_more_bytes_than_allowed(endpoint: Endpoint) -> None:
    """Past max_response_bytes there is an error of kind limit, and the connection is closed."""
    client = endpoint.client(max_response_bytes=20_000)
    before = endpoint.server.disconnects
    error = endpoint.error("openai", raw(text(*["x" * 100] * 500), hold=True), client=client)
    assert isinstance(error, LimitError)
    assert not error.retryable
    endpoint.server.wait_for_disconnect(before + 1)
    endpoint.server.release()


def test_f49_an_event_larger_than_allowed(endpoint: Endpoint) -> None:
    """Past max_event_bytes, too, before all of it was read."""
    client = endpoint.client(max_event_bytes=10_000)
    error = endpoint.error("openai", raw(text("ok") + text("x" * 50_000) + end()), client=client)
    assert isinstance(error, LimitError)
    assert "max_event_bytes" in error.message
