"""Choices, finish reasons, usage and reasoning: the reported kinds, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    DONE,
    Endpoint,
    block,
    calls,
    chunk,
    completion,
    data,
    deltas,
    end,
    fragment,
    message,
    start,
    stop,
    text,
    text_block,
    tool_block,
    tools,
)
from toolnexus import Usage
from toolnexus.testing import RecordedRequest, failure, raw, reply

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
COUNTED = Usage(5, 2, 7)
FILTER = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def test_fin_01_first_chunk_without_choices(endpoint: Endpoint) -> None:
    """An empty first chunk is passed over; its empty id and model are no names, its filter data is kept."""
    first = data({"id": "", "choices": [], "created": 0, "model": "", "prompt_filter_results": FILTER})
    rest = data({"id": "x1", "model": "gpt", "choices": [{"index": 0, "delta": {"content": "Hi"}}]})
    events = endpoint.stream("openai", first + rest + end())
    assert deltas(events) == ["Hi"]
    result = endpoint.result("openai", first + rest + end())
    assert result.model == "gpt"
    assert result.messages[-1]["toolnexus"]["openai"]["beside"] == {"prompt_filter_results": FILTER}


def test_fin_01_what_is_kept_is_not_sent_back(endpoint: Endpoint) -> None:
    """Filter data stays in the transcript; the endpoint sees plain messages only."""
    body = data({"choices": [], "prompt_filter_results": FILTER}) + calls((0, "a", "f", "{}"))
    endpoint.result("openai", body, "fine", tools=tools("f"))
    assert set(endpoint.seen[1].messages[1]) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize(
    "choice",
    [
        {"index": 0, "finish_reason": None, "content_filter_results": {}},
        {"index": 0, "finish_reason": None, "delta": None},
        {"index": 0, "finish_reason": None, "delta": {}},
        {"index": 0, "finish_reason": None, "delta": {"content": None}},
        {
            "index": 0,
            "finish_reason": None,
            "delta": {"role": "assistant", "content": "", "tool_calls": None},
        },
        {"index": 0, "finish_reason": None, "delta": {"content": [], "tool_calls": []}},
        {"finish_reason": "", "delta": {"content": ""}},
    ],
    ids=["no-delta", "null-delta", "empty-delta", "null-content", "role-only", "empty-lists", "empty-reason"],
)
def test_fin_02_a_choice_that_says_nothing(choice: dict[str, Any], endpoint: Endpoint) -> None:
    """A choice without a delta, or with one that holds nothing, yields nothing."""
    nothing = data({"choices": [choice]})
    body = nothing + text("a") + nothing + text("b") + nothing + end()
    assert deltas(endpoint.stream("openai", body)) == ["a", "b"]


def test_fin_03_usage_null_on_every_chunk(endpoint: Endpoint) -> None:
    """Null is no report: the last chunk's real numbers count."""
    body = b"".join(chunk({"content": "x"}, usage=None) for _ in range(10))
    result = endpoint.result("openai", body + chunk({}, "stop", usage=USAGE) + DONE)
    assert result.usage == COUNTED


def test_fin_04_usage_in_a_last_chunk_without_choices(endpoint: Endpoint) -> None:
    """It is asked for by default, read after the finish reason, and stands in the result."""
    result = endpoint.result("openai", text("a") + end(usage=USAGE))
    assert endpoint.seen[0].json["stream_options"] == {"include_usage": True}
    assert result.usage == COUNTED


def test_fin_04_an_endpoint_that_rejects_the_option(endpoint: Endpoint) -> None:
    """It is asked again without the option, at once, and never with it from then on."""

    def answer(request: RecordedRequest) -> Any:
        if request.option("stream_options"):
            return failure(400, "invalid_request_error", "Unrecognized request argument: stream_options")
        return reply("ok", usage=None)

    client = endpoint.client()
    endpoint.play()
    endpoint.server.on_request(answer)
    for _ in range(2):
        assert client.stream("go").result().text == "ok"
    assert [bool(r.option("stream_options")) for r in endpoint.seen] == [True, False, False]


def test_fin_04_the_option_can_be_left_out(endpoint: Endpoint) -> None:
    """request_params with None is the off switch."""
    client = endpoint.client(request_params={"stream_options": None})
    endpoint.result("openai", text("a") + end(), client=client)
    assert "stream_options" not in endpoint.seen[0].json


def test_fin_05_usage_on_the_finish_chunk(endpoint: Endpoint) -> None:
    """The chunk with the finish reason, a role and null content carries the usage: counted once."""
    last = chunk({"role": "assistant", "content": None}, "stop", usage=USAGE)
    assert endpoint.result("openai", text("a") + last + DONE).usage == COUNTED


@pytest.mark.parametrize("again", [USAGE, {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}])
def test_fin_06_usage_twice(again: dict[str, int], endpoint: Endpoint) -> None:
    """A usage chunk with a placeholder choice after another one: the last counts, nothing is summed."""
    body = text("a") + chunk({}, "stop", usage=USAGE) + chunk({}, None, usage=again) + DONE
    result = endpoint.result("openai", body)
    assert result.usage == Usage(*again.values())
    assert result.finish_reason == "stop"


def test_fin_06_usage_on_every_chunk_is_not_summed(endpoint: Endpoint) -> None:
    """Cumulative counts on each chunk: the last one is the truth."""
    body = b"".join(
        chunk({"content": "x"}, usage={"prompt_tokens": 10, "completion_tokens": n, "total_tokens": 10 + n})
        for n in (1, 2, 3)
    )
    assert endpoint.result("openai", body + end()).usage == Usage(10, 3, 13)


@pytest.mark.parametrize(
    "report",
    [
        {"choices": [{"index": 0, "delta": {}, "usage": USAGE}]},
        {"choices": [], "x_groq": {"usage": USAGE}},
        {"choices": [], "usage": {"input_tokens": 5, "output_tokens": 2}},
    ],
    ids=["in-the-choice", "x_groq", "other-names"],
)
def test_usage_wherever_it_stands(report: dict[str, Any], endpoint: Endpoint) -> None:
    """Nested in the choice, under another name: it is found."""
    assert endpoint.result("openai", text("a") + chunk({}, "stop") + data(report) + DONE).usage == COUNTED


@pytest.mark.parametrize(
    "empty", [{"usage": {}}, {"usage": None}, {"x_groq": {}}, {"usage": {}, "x_groq": None}]
)
def test_an_empty_usage_is_none_and_takes_nothing_back(empty: dict[str, Any], endpoint: Endpoint) -> None:
    """A usage with nothing in it, in a chunk after the one that counts."""
    counted = data({"choices": [], "usage": USAGE}) + data({"choices": [], **empty})
    assert endpoint.result("openai", text("a") + chunk({}, "stop") + counted + DONE).usage == COUNTED


def test_usage_details(endpoint: Endpoint) -> None:
    """Cached and reasoning tokens are given where the provider says them."""
    usage = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert endpoint.result("openai", text("a") + end(usage=usage)).usage == Usage(5, 2, 7, 3, 0, 1)


def test_usage_of_nobody_is_zero(endpoint: Endpoint) -> None:
    """Where the provider says nothing the counts are zeros."""
    assert endpoint.result("openai", text("a") + end()).usage == Usage()


@pytest.mark.parametrize("last", [{"output_tokens": 30}, {"input_tokens": 10, "output_tokens": 30}])
def test_anthropic_usage_is_cumulative(last: dict[str, int], endpoint: Endpoint) -> None:
    """Later counts replace earlier ones; cache tokens are part of the prompt."""
    first = start(input_tokens=10, output_tokens=1, cache_read_input_tokens=4, cache_creation_input_tokens=2)
    result = endpoint.result("anthropic", first + text_block(0, "a") + stop("end_turn", **last))
    assert result.usage == Usage(16, 30, 46, 4, 2)


def test_anthropic_a_count_repeated_as_zero(endpoint: Endpoint) -> None:
    """Counts never fall: a zero in the last event is no news."""
    body = start(input_tokens=10, output_tokens=1) + text_block(0, "a")
    assert endpoint.result(
        "anthropic", body + stop("end_turn", input_tokens=0, output_tokens=3)
    ).usage == Usage(10, 3, 13)


@pytest.mark.parametrize("raw_reason", ["stop", "function_call", "eos", "whatever", "tool_calls", None])
def test_fin_07_calls_decide_over_the_reason(raw_reason: str | None, endpoint: Endpoint) -> None:
    """Whole calls run whatever the provider calls its end; its own word is kept."""
    body = calls((0, "a", "f", "{}"), finish=raw_reason)
    for answers in ((body, "fine"), (body,)):
        client = endpoint.client(max_turns=len(answers))
        result = endpoint.result("openai", *answers, tools=tools("f"), client=client)
        assert [c.is_error for c in result.tool_calls] == [False]
    assert result.limit == "max_turns"
    assert (result.finish_reason, result.raw_finish_reason) == ("tool_calls", raw_reason)


def test_fin_07_an_unknown_reason_never_raises(endpoint: Endpoint) -> None:
    """A word that nobody knows is "stop"; the word itself is kept."""
    result = endpoint.result("openai", text("a") + end("because"))
    assert (result.finish_reason, result.raw_finish_reason, result.text) == ("stop", "because", "a")


def test_fin_07_tool_calls_without_calls(endpoint: Endpoint) -> None:
    """A reason that promises calls, and none there: the answer is what it is, and nothing loops."""
    result = endpoint.result("openai", text("a") + end("tool_calls"), tools=tools("f"))
    assert (result.finish_reason, result.turns) == ("stop", 1)


REASONS = {
    "stop": ["stop", "STOP", "end_turn", "stop_sequence", "completed", "eos"],
    "length": ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"],
    "content_filter": ["content_filter", "SAFETY", "RECITATION", "BLOCKLIST", "sensitive", "refusal"],
    "unknown": ["OTHER", "FINISH_REASON_UNSPECIFIED", "unknown"],
}


@pytest.mark.parametrize(("wanted", "word"), [(k, w) for k, words in REASONS.items() for w in words])
def test_f22_reasons_are_normalised(wanted: str, word: str, endpoint: Endpoint) -> None:
    """The providers' words for an end become ours, whatever their capitals, streamed and whole."""
    for result in (
        endpoint.result("openai", text("a") + end(word)),
        endpoint.run("openai", completion({"content": "a"}, word)),
        endpoint.result("anthropic", start() + text_block(0, "a") + stop(word)),
        endpoint.run("anthropic", message([{"type": "text", "text": "a"}], word)),
    ):
        assert (result.finish_reason, result.raw_finish_reason, result.text) == (wanted, word, "a")


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "", "reasoning": "We"},
        {"content": "", "reasoning_content": "We"},
        {"content": None, "reasoning": "We", "reasoning_content": "We"},
        {"reasoning": "We", "reasoning_details": [{"type": "reasoning.text", "text": "We", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "We", "index": 0}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "We"}]}]},
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "We"}]}]},
    ],
    ids=[
        "reasoning",
        "reasoning_content",
        "both",
        "details-too",
        "details",
        "thinking-part",
        "reasoning-part",
    ],
)
def test_fin_08_reasoning_under_any_name_and_once(delta: dict[str, Any], endpoint: Endpoint) -> None:
    """Reasoning is reported once, under whichever name it comes, and is no part of the text."""
    events = endpoint.stream("openai", chunk(delta) + chunk(delta) + text("4") + end())
    assert deltas(events, "thinking") == ["We", "We"]
    result = endpoint.run("openai", completion({**delta, "content": delta.get("content") or "4"}))
    assert result.thinking == "We"
    assert result.text in ("4", "")


THOUGHT = chunk({"reasoning_content": "I must "}) + chunk({"reasoning_content": "add"})


def wants_it_back(request: RecordedRequest) -> Any:
    """Answer as an endpoint that refuses a tool call without the reasoning that led to it."""
    for position, said in enumerate(request.messages):
        if said.get("tool_calls") and said.get("reasoning_content") != "I must add":
            why = f"Missing `reasoning_content` field in the assistant message at message index {position}"
            return failure(400, "invalid_request_error", why)
    asked = any(m["role"] == "tool" for m in request.messages)
    return reply("5") if asked else raw(THOUGHT + calls((0, "a", "f", "{}")))


def wants_none_of_it(request: RecordedRequest) -> Any:
    """Answer as an endpoint of the older contract, which refuses the field."""
    if any("reasoning_content" in m for m in request.messages):
        return failure(400, "invalid_request_error", "The reasoning_content field must not be in the input")
    asked = any(m["role"] == "tool" for m in request.messages)
    return reply("5") if asked else raw(THOUGHT + calls((0, "a", "f", "{}")))


@pytest.mark.parametrize("server", [wants_it_back, wants_none_of_it])
def test_fin_09_reasoning_goes_back_or_not(server: Any, endpoint: Endpoint) -> None:
    """With "auto" both contracts work: it goes back beside its calls, and is left out once refused."""
    client = endpoint.client()
    endpoint.play()
    endpoint.server.on_request(server)
    for _ in range(2):
        result = client.stream("go", tools("f")).result()
        assert (result.text, result.messages[-1]["content"]) == ("5", "5")
    refused = [a for a in result.attempts if a.error]
    assert not refused  # the second run has learned


def test_fin_09_reasoning_of_an_earlier_run_where_it_is_wanted(endpoint: Endpoint) -> None:
    """An endpoint that misses the reasoning of an earlier run gets it, too."""
    client = endpoint.client()
    endpoint.play()
    endpoint.server.on_request(wants_it_back)
    first = client.stream("go", tools("f"), id="thinking").result()
    assert first.text == "5"
    second = client.stream("and?", tools("f"), id="thinking").result()
    assert second.text == "5"
    client.conversation_store.delete("thinking")


@pytest.mark.parametrize(("policy", "sent"), [("always", True), ("never", False), ("auto", True)])
def test_fin_09_the_policy_can_be_set(policy: str, sent: bool, endpoint: Endpoint) -> None:
    """echo_reasoning decides: always, never, or beside the calls of this run."""
    client = endpoint.client(echo_reasoning=policy)
    body = THOUGHT + calls((0, "a", "f", "{}"))
    endpoint.result("openai", body, "fine", tools=tools("f"), client=client)
    assert ("reasoning_content" in endpoint.seen[1].messages[1]) is sent


def test_fin_09_details_are_joined_again(endpoint: Endpoint) -> None:
    """The pieces of a reasoning detail go back as the one that they are, with the signature."""
    pieces = [
        {"type": "reasoning.text", "text": "I ", "index": 0, "format": "x"},
        {"type": "reasoning.text", "text": "must", "index": 0, "format": "x"},
        {"type": "reasoning.text", "signature": "sig", "index": 0},
        {"type": "reasoning.encrypted", "data": "abc", "index": 1},
    ]
    body = b"".join(chunk({"reasoning_details": [p]}) for p in pieces) + calls((0, "a", "f", "{}"))
    endpoint.result("openai", body, "fine", tools=tools("f"))
    assert endpoint.seen[1].messages[1]["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I must", "index": 0, "format": "x", "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "abc", "index": 1},
    ]


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])
def test_fin_10_the_thinking_block_goes_back_unchanged(whole: bool, endpoint: Endpoint) -> None:
    """Block and signature come first in the next turn, byte for byte; a redacted block beside it, too."""
    thinking = {"type": "thinking", "thinking": "I must\n add \u2028", "signature": "c2ln/+=="}
    redacted = {"type": "redacted_thinking", "data": "b3Bh"}
    if whole:
        call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
        endpoint.run("anthropic", message([thinking, redacted, call], "tool_use"), "5", tools=tools("f"))
    else:
        streamed = block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "I must\n"},
            {"type": "thinking_delta", "thinking": " add \u2028"},
            {"type": "signature_delta", "signature": "c2ln/+=="},
        )
        body = start() + streamed + block(1, redacted) + tool_block(2, "t1", "f", '{"x"', ":1}")
        result = endpoint.result("anthropic", body + stop("tool_use"), "5", tools=tools("f"))
        assert result.text == "5"
    sent = endpoint.seen[1].messages[1]
    assert sent["role"] == "assistant"
    assert sent["content"] == [
        thinking,
        redacted,
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
    ]
    assert endpoint.seen[1].messages[2]["content"][0]["tool_use_id"] == "t1"


def test_fin_10_thinking_stays_out_of_the_text(endpoint: Endpoint) -> None:
    """Thinking is reported as such, stands in the result, and in no text."""
    thinking = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    events = endpoint.stream("anthropic", start() + thinking + text_block(1, "4") + stop())
    assert (deltas(events, "thinking"), deltas(events)) == (["hm"], ["4"])
    result = endpoint.result("anthropic", start() + thinking + text_block(1, "4") + stop())
    assert (result.thinking, result.text, result.messages[-1]["content"]) == ("hm", "4", "4")


def test_fin_10_thinking_cut_by_length_is_not_sent_back(endpoint: Endpoint) -> None:
    """A block without its signature would be refused; the rest of the conversation goes on."""
    thinking = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    first = endpoint.result("anthropic", start() + thinking + stop("max_tokens"))
    assert (first.status, first.limit, first.thinking) == ("incomplete", "length", "hm")
    endpoint.result("anthropic", "ok", history=first.messages)
    assert [m["role"] for m in endpoint.seen[0].messages] == ["user"]


def test_unknown_blocks_and_deltas_are_kept_and_passed_over(endpoint: Endpoint) -> None:
    """A server's own tools are never ours to run; their blocks go back as they came."""
    used = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "x", "url": "u"}]}
    body = (
        start()
        + block(0, used, {"type": "input_json_delta", "partial_json": '{"query":"q"}'})
        + block(1, found, {"type": "novel_delta", "novelty": 1})
        + block(2, {"type": "novelty", "some": "thing"})
        + tool_block(3, "t1", "f", "{}")
        + stop("tool_use")
    )
    result = endpoint.result("anthropic", body, "ok", tools=tools("f", "web_search"))
    assert [c.name for c in result.tool_calls] == ["f"]
    sent = endpoint.seen[1].messages[1]["content"]
    assert sent[:3] == [{**used, "input": {"query": "q"}}, found, {"type": "novelty", "some": "thing"}]


def test_citations_ride_along(endpoint: Endpoint) -> None:
    """Citations do not touch the text and are not lost."""
    cited = {"type": "text", "text": "", "citations": []}
    mark = {"type": "citations_delta", "citation": {"type": "page_location", "cited_text": "x"}}
    body = start() + block(0, cited, {"type": "text_delta", "text": "so"}, mark) + stop()
    result = endpoint.result("anthropic", body)
    assert result.text == "so"
    kept = result.messages[-1]["toolnexus"]["anthropic"]["blocks"]
    assert kept == [{"type": "text", "text": "so", "citations": [mark["citation"]]}]


def test_pause_turn_goes_on(endpoint: Endpoint) -> None:
    """A provider's pause is no end: the answer so far is sent back and the model goes on."""
    used = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": 1}}
    body = start() + text_block(0, "Let me see.") + block(1, used) + stop("pause_turn")
    result = endpoint.result("anthropic", body, "found")
    assert (result.text, result.turns) == ("found", 2)
    assert endpoint.seen[1].messages[-1]["content"][-1] == used


def test_refusals_are_told_apart(endpoint: Endpoint) -> None:
    """A refusal is no text: it stands in a field of its own, streamed and whole."""
    body = chunk({"refusal": "I can"}) + chunk({"refusal": "not"}) + end()
    for result in (
        endpoint.result("openai", body),
        endpoint.run("openai", completion({"content": None, "refusal": "I cannot"})),
    ):
        assert (result.text, result.refusal, result.finish_reason) == ("", "I cannot", "content_filter")
        assert result.raw_finish_reason == "stop"
    endpoint.result("openai", "ok", history=result.messages)
    assert endpoint.seen[0].messages[1] == {"role": "assistant", "content": "I cannot"}


def test_b053_only_the_first_choice_is_the_answer(endpoint: Endpoint) -> None:
    """The text is choice 0's alone; the end of choice 1 is not the answer's end; usage counts once."""
    body = (
        data(
            {
                "choices": [
                    {"index": 0, "delta": {"content": "A"}, "finish_reason": None},
                    {"index": 1, "delta": {"content": "B"}, "finish_reason": None},
                ]
            }
        )
        + data({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
        + data({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": USAGE})
        + DONE
    )
    result = endpoint.result("openai", body)
    assert (result.text, result.finish_reason, result.usage) == ("A", "length", COUNTED)


def test_b053_another_choice_comes_first(endpoint: Endpoint) -> None:
    """Which choice is sent first does not matter, nor do the calls of the other one."""
    other = {"index": 1, "delta": {"content": "B", "tool_calls": [fragment(0, "b", "f", "{}")]}}
    body = data({"choices": [other]}) + text("A") + end()
    result = endpoint.result("openai", body, tools=tools("f"))
    assert (result.text, result.tool_calls) == ("A", [])


def test_b088_only_reasoning_and_then_cut(endpoint: Endpoint) -> None:
    """Reasoning alone, cut by length, is an answer: incomplete, the reasoning kept, nothing asked again."""
    body = chunk({"role": "assistant", "content": "", "reasoning_content": "thinking…"}) + end("length")
    result = endpoint.result("openai", body, client=endpoint.client(retries=2))
    assert (result.text, result.thinking, result.finish_reason) == ("", "thinking…", "length")
    assert (result.status, result.limit) == ("incomplete", "length")
    assert len(endpoint.seen) == 1


def test_content_as_a_list_of_parts(endpoint: Endpoint) -> None:
    """Content may be a list of parts; text parts are text, texts in it are, too."""
    parts = [{"type": "text", "text": "a"}, "b", {"type": "image_url", "image_url": {"url": "x"}}]
    assert deltas(endpoint.stream("openai", chunk({"content": parts}) + end())) == ["a", "b"]
    assert endpoint.run("openai", completion({"content": parts})).text == "ab"


def test_text_after_the_finish_reason_counts(endpoint: Endpoint) -> None:
    """Some servers say why they stop before they do."""
    assert endpoint.result("openai", text("a") + chunk({}, "stop") + text("b") + DONE).text == "ab"


def test_a_message_that_repeats_the_deltas_is_not_read_twice(endpoint: Endpoint) -> None:
    """Some servers put the message so far beside each delta; the text comes once."""
    body = b"".join(
        data({"choices": [{"index": 0, "delta": {"content": d}, "message": {"content": so_far}}]})
        for d, so_far in (("a", "a"), ("b", "ab"))
    )
    last = data(
        {"choices": [{"index": 0, "delta": {}, "message": {"content": "ab"}, "finish_reason": "stop"}]}
    )
    assert endpoint.result("openai", body + last + DONE).text == "ab"
