"""Fragments of tool calls, in every shape that was reported: the list of bugs, area by area."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    ABSENT,
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
    tool_block,
    tools,
)
from toolnexus import BadRequestError, Done, RunResult, ToolCall, ToolCallDelta, ToolFinished
from toolnexus.testing import RecordedRequest, failure, raw, reply

A = ABSENT
Calls = list[tuple[str, dict[str, Any] | None]]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def made(result: RunResult) -> Calls:
    """Return name and arguments of the calls, after a check that each has an id and a result of its own."""
    ids = [call.id for call in result.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    asked = [c["id"] for m in result.messages for c in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    assert asked == answered == ids
    return [(call.name, call.args) for call in result.tool_calls]


def played(endpoint: Endpoint, body: bytes, *names: str) -> RunResult:
    """Stream an answer with calls and a second one after them."""
    return endpoint.result("openai", body, "fine", tools=tools(*(names or ("f", "g", "roll"))))


def whole(endpoint: Endpoint, *entries: dict[str, Any]) -> RunResult:
    """Run over the same calls in a whole answer."""
    answer = completion({"content": None, "tool_calls": list(entries)}, "tool_calls")
    return endpoint.run("openai", answer, "fine", tools=tools("f", "g", "roll"))


SHAPES: dict[str, tuple[list[tuple[Any, Any, Any, Any]], Calls]] = {
    "tc_01_no_index": ([(A, "a", "f", ""), (A, A, A, '{"x"'), (A, A, A, ":1}")], [("f", {"x": 1})]),
    "tc_01_null_index": (
        [(None, "a", "f", ""), (None, A, A, '{"x"'), (None, A, A, ":1}")],
        [("f", {"x": 1})],
    ),
    "tc_01_two_calls": (
        [(A, "a", "f", '{"x":1}'), (A, "b", "g", '{"y":2}')],
        [("f", {"x": 1}), ("g", {"y": 2})],
    ),
    "tc_01_two_calls_in_pieces": (
        [(A, "a", "f", '{"x"'), (A, A, A, ":1}"), (A, "b", "g", '{"y"'), (A, A, A, ":2}")],
        [("f", {"x": 1}), ("g", {"y": 2})],
    ),
    "tc_02_all_at_index_0": (
        [(0, "a", "f", '{"p":1}'), (0, "b", "f", '{"p":2}'), (0, "c", "f", '{"p":3}')],
        [("f", {"p": 1}), ("f", {"p": 2}), ("f", {"p": 3})],
    ),
    "tc_02_without_ids": (
        [(0, A, "f", '{"p":1}'), (0, A, "f", '{"p":2}'), (0, A, "f", '{"p":3}')],
        [("f", {"p": 1}), ("f", {"p": 2}), ("f", {"p": 3})],
    ),
    "tc_02_without_ids_and_in_pieces": (
        [(0, A, "f", '{"p"'), (0, A, A, ":1}"), (0, A, "g", '{"p"'), (0, A, A, ":2}")],
        [("f", {"p": 1}), ("g", {"p": 2})],
    ),
    "tc_02_without_ids_and_indexes": (
        [(A, A, "f", '{"p":1}'), (A, A, "f", '{"p":2}')],
        [("f", {"p": 1}), ("f", {"p": 2})],
    ),
    "tc_02_the_next_name_without_an_id": (
        [(0, "a", "f", '{"p":1}'), (0, A, "g", '{"p":2}')],
        [("f", {"p": 1}), ("g", {"p": 2})],
    ),
    "tc_02_only_the_second_has_an_id": (
        [(0, A, "f", '{"p":1}'), (0, "b", "g", '{"p":2}')],
        [("f", {"p": 1}), ("g", {"p": 2})],
    ),
    "tc_03_twice_the_same": ([(0, A, "roll", "{}"), (0, A, "roll", "{}")], [("roll", {}), ("roll", {})]),
    "tc_03_twice_the_same_with_ids": (
        [(0, "a", "roll", "{}"), (0, "b", "roll", "{}")],
        [("roll", {}), ("roll", {})],
    ),
    "tc_03_twice_the_same_id": (
        [(0, "a", "roll", "{}"), (1, "a", "roll", "{}")],
        [("roll", {}), ("roll", {})],
    ),
    "tc_04_name_in_every_chunk": (
        [(0, "a", "f", ""), (0, A, "f", '{"x"'), (0, A, "f", ":1}")],
        [("f", {"x": 1})],
    ),
    "tc_04_name_in_every_chunk_and_no_id": (
        [(0, A, "f", ""), (0, A, "f", '{"x"'), (0, A, "f", ":1}")],
        [("f", {"x": 1})],
    ),
    "tc_04_name_and_id_in_every_chunk": (
        [(0, "a", "f", ""), (0, "a", "f", '{"x"'), (0, "a", "f", ":1}")],
        [("f", {"x": 1})],
    ),
    "tc_04_brackets_inside_a_text": (
        [(0, A, "f", '{"x":"}'), (0, A, "f", '\\"}]'), (0, A, "f", '"}')],
        [("f", {"x": '}"}]'})],
    ),
    "tc_05_id_repeated": ([(0, "a", "f", '{"q'), (0, "a", A, '":1}')], [("f", {"q": 1})]),
    "tc_06_id_on_every_chunk_and_a_summary": (
        [(0, "a", "f", '{"q'), (0, "a", A, '":1}'), (0, "a", "f", '{"q":1}')],
        [("f", {"q": 1})],
    ),
    "tc_06_a_summary_in_another_spacing": (
        [(0, "a", "f", '{"q'), (0, "a", A, '":1}'), (0, "a", "f", '{ "q": 1 }')],
        [("f", {"q": 1})],
    ),
    "tc_07_arguments_sent_twice": (
        [(0, "a", "f", ""), (0, A, A, '{"c":"ls"}'), (0, A, A, '{"c":"ls"}')],
        [("f", {"c": "ls"})],
    ),
    "tc_07_an_empty_object_first": (
        [(0, "a", "f", "{}"), (0, A, A, '{"c"'), (0, A, A, ':"ls"}')],
        [("f", {"c": "ls"})],
    ),
    "tc_09_empty_texts_on_continuations": (
        [
            (None, "a", "f", ""),
            (None, "a", "", ""),
            (None, "", "", '{"city": "Boston'),
            (None, "", "", '"'),
            (None, "", None, "}"),
        ],
        [("f", {"city": "Boston"})],
    ),
    "tc_10_arguments_before_the_name": ([(A, "a", A, '{"x"'), (A, A, "f", ":1}")], [("f", {"x": 1})]),
    "tc_10_arguments_before_the_name_with_an_index": (
        [(0, "a", A, '{"x"'), (0, A, "f", ":1}")],
        [("f", {"x": 1})],
    ),
    "tc_14_an_object": ([(0, "a", "f", {"x": 1})], [("f", {"x": 1})]),
    "tc_15_an_empty_text": ([(0, "a", "f", "")], [("f", {})]),
    "tc_15_no_arguments": ([(0, "a", "f", A)], [("f", {})]),
    "tc_15_null": ([(0, "a", "f", None)], [("f", {})]),
    "tc_15_the_word_null": ([(0, "a", "f", "null")], [("f", {})]),
    "tc_15_blanks": ([(0, "a", "f", " \n")], [("f", {})]),
    "tc_17_a_raw_newline": ([(0, "a", "f", '{"cmd":"a\nb\tc"}')], [("f", {"cmd": "a\nb\tc"})]),
    "tc_19_split_inside_an_escape": (
        [(0, "a", "f", '{"e":"\\ud8'), (0, A, A, "3d\\ude"), (0, A, A, '00"}')],
        [("f", {"e": "\U0001f600"})],
    ),
    "tc_19_half_a_character": ([(0, "a", "f", '{"e":"\\ud83d"}')], [("f", {"e": "\ufffd"})]),
    "b062_a_continuation_after_a_reused_index": (
        [(0, "A", "f", '{"p":'), (0, A, A, '"a"}'), (0, "B", "f", '{"p":'), (0, A, A, '"b"}')],
        [("f", {"p": "a"}), ("f", {"p": "b"})],
    ),
    "f14_index_1_before_0": (
        [(1, "b", "g", '{"y":2}'), (0, "a", "f", '{"x":1}')],
        [("f", {"x": 1}), ("g", {"y": 2})],
    ),
    "f16_the_id_comes_later": ([(0, A, "f", '{"x"'), (0, "a", A, ":1}")], [("f", {"x": 1})]),
    "rule_2_the_id_changes_inside_a_call": (
        [(0, "a", "f", '{"x"'), (0, "other", A, ":1}")],
        [("f", {"x": 1})],
    ),
    "rule_4_a_nameless_opening_at_a_new_index": (
        [(0, "a", "f", '{"x":1}'), (1, "b", A, '{"y"'), (1, A, "g", ":2}")],
        [("f", {"x": 1}), ("g", {"y": 2})],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_fragments_make_the_calls_that_were_meant(shape: str, endpoint: Endpoint) -> None:
    """However the fragments come, the calls are those that were meant, each with an id and one result."""
    fragments, wanted = SHAPES[shape]
    result = played(endpoint, calls(*fragments))
    assert made(result) == wanted
    assert result.text == "fine"
    assert result.tool_call_count == len(wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_fragments_in_one_chunk_make_the_same_calls(shape: str, endpoint: Endpoint) -> None:
    """All fragments may stand in one chunk, which may carry the finish reason, too (TC-11, B063)."""
    fragments, wanted = SHAPES[shape]
    body = chunk({"tool_calls": [fragment(*f) for f in fragments]}, "tool_calls") + b"data: [DONE]\n\n"
    assert made(played(endpoint, body)) == wanted


WHOLE: dict[str, tuple[list[tuple[Any, Any, Any, Any]], Calls]] = {
    key: SHAPES[key]
    for key in SHAPES
    if len(SHAPES[key][0]) == len(SHAPES[key][1]) and not key.startswith(("f14", "tc_19_split"))
}


@pytest.mark.parametrize("shape", WHOLE)
def test_the_same_calls_in_a_whole_answer(shape: str, endpoint: Endpoint) -> None:
    """run() decodes a whole answer with the same code, and reaches the same calls."""
    fragments, wanted = WHOLE[shape]
    assert made(whole(endpoint, *[fragment(*f) for f in fragments])) == wanted


def test_tc_03_two_calls_without_arguments_in_a_whole_answer(endpoint: Endpoint) -> None:
    """In a whole answer every entry is a call of its own, whatever its index says."""
    entry = fragment(0, A, "roll", "")
    assert made(whole(endpoint, entry, entry)) == [("roll", {}), ("roll", {})]


def test_tc_05_the_id_is_the_one_that_was_given(endpoint: Endpoint) -> None:
    """An id is set once and never appended."""
    result = played(endpoint, calls((0, "a", "f", '{"q'), (0, "a", A, '":1}')))
    assert [call.id for call in result.tool_calls] == ["a"]


def test_tc_10_the_event_waits_for_the_name(endpoint: Endpoint) -> None:
    """ToolCall comes once, with name and whole arguments; the raw fragments are there for display."""
    body = calls((A, "a", A, '{"x"'), (A, A, "f", ":1}"))
    events = endpoint.stream("openai", body, "fine", tools=tools("f"), channels=["messages", "tools"])
    assert [e for e in events if isinstance(e, ToolCall)] == [ToolCall("a", "f", {"x": 1})]
    fragments = [e for e in events if isinstance(e, ToolCallDelta)]
    assert [(e.id, e.name, e.arguments) for e in fragments] == [("a", None, '{"x"'), (None, "f", ":1}")]


def test_tc_10_a_call_that_never_gets_a_name_is_an_error(endpoint: Endpoint) -> None:
    """A call without a name cannot run, and is not dropped either."""
    error = endpoint.error("openai", calls((0, "a", A, '{"x":1}')), tools=tools("f"))
    assert error.kind == "malformed"
    assert "without a name" in error.message


def test_tc_11_whole_calls_on_the_finish_chunk(endpoint: Endpoint) -> None:
    """Several whole calls in the chunk that also has the finish reason all survive."""
    both = [fragment(0, "a", "f", '{"a":1}'), fragment(1, "b", "g", '{"b":2}')]
    body = chunk({"tool_calls": both}, "tool_calls") + b"data: [DONE]\n\n"
    assert made(played(endpoint, body)) == [("f", {"a": 1}), ("g", {"b": 2})]


def test_tc_12_a_generated_id_serves_call_and_result(endpoint: Endpoint) -> None:
    """A call without an id gets one of nine letters and digits, and its result has the same."""
    result = played(endpoint, calls((0, A, "f", "{}")))
    sent = endpoint.seen[1].messages
    id_ = result.tool_calls[0].id
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", id_)
    assert sent[-2]["tool_calls"][0]["id"] == sent[-1]["tool_call_id"] == id_


def strict_about_ids(request: RecordedRequest) -> Any:
    """Answer as an endpoint that takes only ids of nine letters and digits."""
    ids = [m["tool_call_id"] for m in request.messages if m["role"] == "tool"]
    ids += [c["id"] for m in request.messages for c in m.get("tool_calls") or ()]
    for id_ in ids:
        if not re.fullmatch(r"[a-zA-Z0-9]{9}", id_):
            why = f"Tool call id was {id_} but must be a-z, A-Z, 0-9, with a length of 9."
            return failure(400, "invalid_request_error", why)
    assert len(set(ids)) * 2 == len(ids)
    return "fine"


def test_tc_13_foreign_ids_are_mapped_for_a_strict_endpoint(endpoint: Endpoint) -> None:
    """An endpoint that refuses an id gets all of them mapped, call and result alike, and from then on."""
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "roll"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": id_, "type": "function", "function": {"name": "roll", "arguments": "{}"}}
                for id_ in ("call_abc_1234567890", "call_abc_1234567891")
            ],
        },
        {"role": "tool", "tool_call_id": "call_abc_1234567890", "content": "4"},
        {"role": "tool", "tool_call_id": "call_abc_1234567891", "content": "5"},
    ]
    client = endpoint.client()
    endpoint.play()
    endpoint.server.on_request(strict_about_ids)
    first = client.run("and?", history=history)
    assert first.text == "fine"
    assert len(endpoint.seen) == 2
    assert first.messages[1]["tool_calls"][0]["id"] == "call_abc_1234567890"  # stored as it was
    client.run("and?", history=history)
    assert len(endpoint.seen) == 3  # it was learned
    assert endpoint.seen[1].messages == endpoint.seen[2].messages  # and is always the same


def test_tc_14_an_object_goes_back_as_an_object(endpoint: Endpoint) -> None:
    """Arguments are replayed in the shape in which the provider sent them; the transcript has text."""
    result = played(endpoint, calls((0, "a", "f", {"x": 1})))
    sent = endpoint.seen[1].messages[-2]["tool_calls"][0]["function"]["arguments"]
    assert sent == {"x": 1}
    stored = result.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(stored) == {"x": 1}


@pytest.mark.parametrize("pieces", [(), ("",), ("", "{}")], ids=["none", "empty", "an-empty-object"])
def test_tc_15_anthropic_block_without_input(pieces: tuple[str, ...], endpoint: Endpoint) -> None:
    """A tool_use block with no or an empty input_json_delta is called with {}."""
    body = start() + tool_block(0, "t1", "f", *pieces) + stop("tool_use")
    result = endpoint.result("anthropic", body, "fine", tools=tools("f"))
    assert made(result) == [("f", {})]
    sent = endpoint.seen[1].messages[1]["content"]
    assert sent == [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]


@pytest.mark.parametrize("arguments", ["", A, None, "null"], ids=["empty", "absent", "null", "word-null"])
def test_tc_16_the_history_carries_an_object(arguments: Any, endpoint: Endpoint) -> None:
    """No endpoint ever sees empty arguments again: the second request has "{}"."""
    played(endpoint, calls((0, "a", "f", arguments)))
    assert endpoint.seen[1].messages[-2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_tc_17_what_is_stored_is_valid_json(endpoint: Endpoint) -> None:
    """A raw newline inside an argument is taken, and goes back escaped."""
    result = played(endpoint, calls((0, "a", "f", '{"cmd":"a\nb"}')))
    stored = result.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(stored) == {"cmd": "a\nb"}
    assert endpoint.seen[1].messages[-2]["tool_calls"][0]["function"]["arguments"] == stored


def test_tc_17_a_raw_control_character_in_the_event_itself(endpoint: Endpoint) -> None:
    """A server that does not escape a tab in its own JSON loses nothing."""
    body = b'data: {"choices":[{"index":0,"delta":{"content":"a\tb"}}]}\n\n' + end()
    assert endpoint.result("openai", body).text == "a\tb"


def test_tc_18_cut_arguments_do_not_run(endpoint: Endpoint) -> None:
    """Arguments that are no JSON go back to the model as an error that names the tool."""
    ran: list[Any] = []
    body = calls((0, "a", "f", '{"text":"abc'))
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    events = endpoint.stream("openai", body, "sorry", tools=offered)
    assert not ran
    assert [e.type for e in events[:1]] == ["tool_result"]  # no tool_call: its arguments did not parse
    finished = events[0]
    assert isinstance(finished, ToolFinished)
    assert finished.is_error
    assert finished.output.startswith("f: the arguments are not valid JSON")
    sent = endpoint.seen[1].messages
    assert sent[-2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert sent[-1] == {"role": "tool", "tool_call_id": "a", "content": finished.output}


def test_tc_18_cut_by_length_is_said_to_be_so(endpoint: Endpoint) -> None:
    """Cut by length: neither the call nor its whole sibling runs, and the result says it is incomplete."""
    ran: list[Any] = []
    body = calls((0, "b", "g", "{}"), (1, "a", "f", '{"text":"abc'), finish="length")
    offered = tools("f", "g", execute=lambda args, ctx: ran.append(args))
    result = endpoint.result("openai", body, tools=offered)
    assert not ran
    assert (result.status, result.limit, result.finish_reason) == ("incomplete", "length", "length")
    assert all(call.is_error for call in result.tool_calls)
    assert [call.name for call in result.tool_calls] == ["g", "f"]
    for call in result.messages[1]["tool_calls"]:
        json.loads(call["function"]["arguments"])
    assert len(endpoint.seen) == 1


def test_tc_18_cut_by_length_before_the_name(endpoint: Endpoint) -> None:
    """A call that was cut before its name came is a cut answer, not a malformed one."""
    result = endpoint.result("openai", calls((0, "a", A, ""), finish="length"), tools=tools("f"))
    assert (result.status, result.limit, result.tool_calls) == ("incomplete", "length", [])


@pytest.mark.parametrize(
    "arguments",
    ["[1]", "3", '"x"', "true", '{"a":NaN}', '{"a":1e999}', '{"a":1}}', '{"a":' * 300 + "1" + "}" * 300],
)
def test_tc_18_arguments_that_are_no_object_do_not_run(arguments: str, endpoint: Endpoint) -> None:
    """A list, a number, a text, what is no JSON: none of them runs, and the run goes on."""
    ran: list[Any] = []
    offered = tools("f", execute=lambda args, ctx: ran.append(args))
    result = endpoint.result("openai", calls((0, "a", "f", arguments)), "sorry", tools=offered)
    assert not ran
    assert result.text == "sorry"
    assert result.tool_calls[0].is_error
    assert result.tool_calls[0].args is None


def test_tc_19_a_split_escape_is_shown_in_pieces(endpoint: Endpoint) -> None:
    """The view of raw fragments never raises, wherever they are cut."""
    body = calls((0, "a", "f", '{"e":"\\ud8'), (0, A, A, "3d\\ude"), (0, A, A, '00"}'))
    events = endpoint.stream("openai", body, "fine", tools=tools("f"), channels=["messages"])
    raw_text = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert json.loads(raw_text) == {"e": "\U0001f600"}


def escaped(key: str, *pieces: str) -> bytes:
    """Return chunks whose JSON escapes stand as they are given."""
    return b"".join(data('{"choices":[{"index":0,"delta":{"' + key + '":"' + p + '"}}]}') for p in pieces)


def halves(style: str, *pieces: str) -> bytes:
    """Return a text stream whose JSON escapes stand as they are given."""
    if style == "openai":
        return escaped("content", *pieces) + end()
    opening = {"type": "text", "text": ""}
    body = start() + event("content_block_start", index=0, content_block=opening)
    for piece in pieces:
        delta = '{"type":"text_delta","text":"' + piece + '"}'
        body += data('{"type":"content_block_delta","index":0,"delta":' + delta + "}")
    return body + event("content_block_stop", index=0) + stop()


@pytest.mark.parametrize("style", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((r"a\ud83d", r"\ude00b"), "a\U0001f600b"),
        ((r"\ud83d", r"\ude00"), "\U0001f600"),
        ((r"\ud83d", r"\ude00\ud83d", r"\ude01"), "\U0001f600\U0001f601"),
        ((r"\ud83d", "x"), "\ufffdx"),
        ((r"x\ude00",), "x\ufffd"),
        ((r"x\ud83d",), "x\ufffd"),
    ],
    ids=["mid", "alone", "twice", "no-partner", "low-alone", "at-the-end"],
)
def test_tc_20_surrogate_halves(style: str, pieces: tuple[str, ...], wanted: str, endpoint: Endpoint) -> None:
    """The high half waits for its partner; every delta can be encoded, and so can the result."""
    events = endpoint.stream(style, halves(style, *pieces))
    for delta in deltas(events):
        delta.encode()
    last = events[-1]
    assert isinstance(last, Done)
    assert "".join(deltas(events)) == last.result.text == wanted
    json.dumps(last.result.to_dict(), ensure_ascii=False).encode()


def test_tc_20_surrogate_halves_in_thinking_that_is_kept(endpoint: Endpoint) -> None:
    """What rides in the message for the provider can be encoded, too."""
    body = escaped("reasoning_content", r"\ud83d", r"\ude00")
    result = endpoint.result("openai", body + text("ok") + end())
    assert result.thinking == "\U0001f600"
    assert result.messages[-1]["toolnexus"]["openai"]["reasoning_content"] == "\U0001f600"


def test_tc_21_control_tokens_in_the_name(endpoint: Endpoint) -> None:
    """A name that is none gets a result that lists the real ones; the run goes on."""
    name = "query<|channel|>commentary"
    result = played(endpoint, calls((0, "a", name, "{}")), "query", "other")
    assert result.text == "fine"
    assert result.tool_calls[0].output == f"Unknown tool: {name}. Available tools: query, other"
    sent = endpoint.seen[1].messages[-2]["tool_calls"][0]["function"]["name"]
    assert sent == "query__channel__commentary"  # a name that no endpoint refuses


def test_tc_22_a_refused_call_shows_what_failed(endpoint: Endpoint) -> None:
    """The provider's refusal of its own malformed call is typed and carries the failed text."""
    body = {
        "error": {
            "message": "Failed to call a function.",
            "type": "invalid_request_error",
            "code": "tool_use_failed",
            "failed_generation": 'f{"q":1}</function>',
        }
    }
    answer = raw(json.dumps(body).encode(), status=400, content_type="application/json")
    error = endpoint.error("openai", answer, tools=tools("f"))
    assert isinstance(error, BadRequestError)
    assert (error.status, error.code, error.retryable) == (400, "tool_use_failed", False)
    assert error.body["error"]["failed_generation"] == 'f{"q":1}</function>'


def test_b062_the_bytes_of_the_report(endpoint: Endpoint) -> None:
    """After an index was reused, a continuation without id belongs to the newer call."""
    body = calls(
        (0, "A", "read", '{"path":'), (0, A, A, '"a.rs"}'), (0, "B", "read", '{"path":'), (0, A, A, '"b.rs"}')
    )
    result = played(endpoint, body, "read")
    assert [(c.id, c.args) for c in result.tool_calls] == [("A", {"path": "a.rs"}), ("B", {"path": "b.rs"})]


def test_b063_two_fragments_of_one_index_in_one_delta(endpoint: Endpoint) -> None:
    """The second fragment continues the first; there is no blank call."""
    first = [fragment(0, "call_1", "search", ""), fragment(0, A, A, "{")]
    body = chunk({"tool_calls": first}) + calls((0, A, A, '"q":"x"}'))
    assert made(played(endpoint, body, "search")) == [("search", {"q": "x"})]


def test_b069_fragments_of_two_calls_interleave(endpoint: Endpoint) -> None:
    """Later fragments go to the call of their index, not to the latest one."""
    first = [fragment(0, "c1", "f", '{"a":'), fragment(1, "c2", "g", '{"b":')]
    body = chunk({"tool_calls": first}) + calls((1, A, A, "2}"), (0, A, A, "1}"))
    assert made(played(endpoint, body)) == [("f", {"a": 1}), ("g", {"b": 2})]


def test_legacy_function_call_is_one_call(endpoint: Endpoint) -> None:
    """The older form of a call is streamed and whole one call without an id."""
    body = (
        chunk({"function_call": {"name": "f", "arguments": ""}})
        + chunk({"function_call": {"arguments": '{"x":1}'}})
        + end("function_call")
    )
    assert made(played(endpoint, body)) == [("f", {"x": 1})]
    answer = completion(
        {"content": None, "function_call": {"name": "f", "arguments": '{"x":1}'}}, "function_call"
    )
    assert made(endpoint.run("openai", answer, "fine", tools=tools("f"))) == [("f", {"x": 1})]


def test_an_empty_legacy_call_beside_a_real_one_is_none(endpoint: Endpoint) -> None:
    """Some servers send both forms, one of them empty."""
    real = [fragment(A, "a", "f", '{"x":1}')]
    both = {"content": None, "tool_calls": real, "function_call": {"name": "", "arguments": "{}"}}
    result = endpoint.run("openai", completion(both, "tool_calls"), "fine", tools=tools("f"))
    assert made(result) == [("f", {"x": 1})]


def test_anthropic_arguments_without_a_beginning_are_an_error(endpoint: Endpoint) -> None:
    """Arguments for a call that never began are not dropped: what would run then is not what was meant."""
    delta = {"type": "input_json_delta", "partial_json": '{"x":1}'}
    body = start() + event("content_block_delta", index=0, delta=delta) + stop("tool_use")
    assert endpoint.error("anthropic", body, tools=tools("f")).kind == "malformed"


def test_anthropic_deltas_without_an_index_belong_to_the_open_block(endpoint: Endpoint) -> None:
    """A server that gives no index loses neither text nor arguments."""
    opening = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    body = start() + event("content_block_start", content_block=opening)
    for piece in ('{"x"', ":1}"):
        body += event("content_block_delta", delta={"type": "input_json_delta", "partial_json": piece})
    body += event("content_block_stop") + stop("tool_use")
    result = endpoint.result("anthropic", body, "fine", tools=tools("f"))
    assert made(result) == [("f", {"x": 1})]


def test_anthropic_input_that_comes_whole(endpoint: Endpoint) -> None:
    """A block that opens with its whole input, streamed or in a whole answer, runs with it."""
    opening = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
    body = start() + block(0, opening) + stop("tool_use")
    assert made(endpoint.result("anthropic", body, "fine", tools=tools("f"))) == [("f", {"x": 1})]
    answer = message([opening], "tool_use")
    assert made(endpoint.run("anthropic", answer, "fine", tools=tools("f"))) == [("f", {"x": 1})]


def test_many_fragments_with_a_name_each_cost_linear_time(endpoint: Endpoint) -> None:
    """Whether arguments are complete is looked at piece by piece: a megabyte is no matter."""
    inner = json.dumps({"a": [{"b": {}}] * 20})
    pieces = ['{"list":[', *[f"{inner}," for _ in range(4000)], "0]}"]
    body = b"".join(chunk({"tool_calls": [fragment(0, A, "f", p)]}) for p in pieces) + end("tool_calls")
    offered = tools("f", execute=lambda args, ctx: str(len(args["list"])))
    result = endpoint.result("openai", body, reply("fine"), tools=offered)
    assert [call.output for call in result.tool_calls] == ["4001"]
