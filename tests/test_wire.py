"""Every recorded answer, over real HTTP, gives what its recording says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.wire import Recording, digest, recordings
from toolnexus import Client, Done, Error, RunResult, ToolnexusError, TruncatedStreamError
from toolnexus.testing import ModelServer, recorded
from toolnexus.wire import DIALECTS

#: How a body may travel: whole, one event a chunk, one byte a chunk, to the connection's end, compressed.
TRAVEL: dict[str, dict[str, Any]] = {
    "whole": {},
    "events": {"split": "events"},
    "bytes": {"split": 1},
    "close": {"framing": "close"},
    "gzip": {"gzip": True},
}

#: Where Anthropic, the Responses API and Gemini have our token counts.
PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
GEMINI_PROMPT = ("promptTokenCount", "toolUsePromptTokenCount")
GEMINI_COMPLETION = ("candidatesTokenCount", "thoughtsTokenCount")

#: The Responses API says a text twice; the deltas of this recording were cut short by whoever edited it.
CUT_DELTAS = {"openai/resp-fixtures-openai-phase-1.sse": (1638, "421a07280604")}

#: Arguments that come value by value; the recording's own decoder does not put them together.
BY_VALUE = {
    "gemini/gem-google-stream-tool-call-arguments.sse": [
        {"name": "getWeather", "args": {"location": "Boston"}},
        {"name": "getWeather", "args": {"location": "San Francisco"}},
    ]
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def clients(server: ModelServer) -> Iterator[dict[str, Client]]:
    made = {
        style: Client(
            base_url=server.url_for(style), style=style, model="m", api_key="k", retries=0, max_turns=1
        )
        for style in DIALECTS
    }
    yield made
    for client in made.values():
        client.close()


def play(server: ModelServer, recording: Recording, travel: dict[str, Any]) -> None:
    if len(recording.body) > 20_000 and travel.get("split") == 1:
        travel = {"split": 7}
    answer = recorded(recording.path, **travel)
    server.on_request(lambda request: answer)


def check_failure(error: ToolnexusError, recording: Recording) -> None:
    """Compare how an answer failed with what the recording says."""
    if recording.expect["terminal"] == "truncated":
        assert isinstance(error, TruncatedStreamError)
    else:
        wanted = recording.expect.get("error") or {}
        assert wanted.get("message_head", "")[:60] in error.message
    partial = error.partial
    assert partial is not None
    assert len(partial.text) == recording.expect["text_len"]


def check(result: RunResult, recording: Recording) -> None:
    """Compare a result with what the recording says."""
    expect = recording.expect
    wanted = CUT_DELTAS.get(recording.name, (expect["text_len"], expect["text_sha256_12"]))
    assert (len(result.text), digest(result.text)) == wanted
    assert len(result.thinking) == expect["thinking_len"]
    if expect["thinking_sha256_12"]:
        assert digest(result.thinking) == expect["thinking_sha256_12"]
    assert result.raw_finish_reason == (expect["finish_reason_raw"] or None)
    if "refusal_len" in expect:
        assert len(result.refusal or "") == expect["refusal_len"]
    check_calls(result, BY_VALUE.get(recording.name) or expect["tool_calls"])
    check_usage(result, expect["usage_raw"])


def check_calls(result: RunResult, wanted: list[dict[str, Any]]) -> None:
    wanted = [w for w in wanted if w["name"]]  # an empty legacy call beside a real one is none
    assert [c.name for c in result.tool_calls] == [w["name"] for w in wanted]
    for call, want in zip(result.tool_calls, wanted, strict=True):
        if want.get("id"):
            assert call.id == want["id"]
        assert call.id
        args = want["args"]
        if isinstance(args, dict) and "__unparsable__" in args:
            assert call.args is None
        elif not (isinstance(args, dict) and "__custom_input__" in args):
            assert call.args == (args or {})
    ids = [c.id for c in result.tool_calls]
    assert len(set(ids)) == len(ids)


def check_usage(result: RunResult, raw: dict[str, Any] | None) -> None:
    usage = result.usage
    if not raw:
        assert usage.total_tokens == 0
    elif "prompt_tokens" in raw:
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            raw["prompt_tokens"] or 0,
            raw.get("completion_tokens") or 0,
        )
    elif set(raw) & {*GEMINI_PROMPT, *GEMINI_COMPLETION}:
        assert usage.prompt_tokens == sum(raw.get(key) or 0 for key in GEMINI_PROMPT)
        assert usage.completion_tokens == sum(raw.get(key) or 0 for key in GEMINI_COMPLETION)
        assert usage.total_tokens == raw["totalTokenCount"]
    else:
        assert usage.prompt_tokens == sum(raw.get(key) or 0 for key in PROMPT)
        assert usage.completion_tokens == (raw.get("output_tokens") or 0)


#: Two answers stand in one body here; a stream ends at the first ``message_stop``, whatever follows.
TWO_IN_ONE = "anthropic/anth-anthropic-programmatic-tool-calling-1.sse"


def test_an_anthropic_stream_ends_at_its_first_message_stop(
    server: ModelServer, clients: dict[str, Client]
) -> None:
    """What follows the end signal is another answer, and not read."""
    for recording in recordings(stream=True, ok=True):
        if recording.name == TWO_IN_ONE:
            play(server, recording, {})
            result = clients["anthropic"].stream("go").result()
            assert (len(result.text), digest(result.text)) == (157, "b2cc643922cf")


@pytest.mark.parametrize("travel", TRAVEL)
@pytest.mark.parametrize(
    "recording", [r for r in recordings(stream=True, ok=True) if r.name != TWO_IN_ONE], ids=lambda r: r.name
)
def test_a_recorded_stream_gives_what_it_says(
    recording: Recording, travel: str, server: ModelServer, clients: dict[str, Client]
) -> None:
    """Text, thinking, calls, finish and usage are those of the recording, however it travels."""
    play(server, recording, TRAVEL[travel])
    events = list(clients[recording.style].stream("go"))
    terminal = events[-1]
    assert [e for e in events if isinstance(e, (Done, Error))] == [terminal]
    if recording.expect["terminal"] != "done":
        assert isinstance(terminal, Error)
        check_failure(terminal.error, recording)
        return
    assert isinstance(terminal, Done), terminal
    check(terminal.result, recording)


@pytest.mark.parametrize("recording", recordings(stream=False, ok=True), ids=lambda r: r.name)
def test_a_recorded_whole_answer_gives_what_it_says(
    recording: Recording, server: ModelServer, clients: dict[str, Client]
) -> None:
    """A whole answer is decoded by the same code, from run() and from a stream that got it instead."""
    play(server, recording, {})
    client = clients[recording.style]
    if recording.expect["terminal"] != "done":
        with pytest.raises(ToolnexusError) as caught:
            client.run("go")
        check_failure(caught.value, recording)
        return
    check(client.run("go"), recording)
    check(client.stream("go").result(), recording)


@pytest.mark.parametrize("recording", recordings(ok=False), ids=lambda r: r.name)
def test_a_recorded_error_says_what_the_provider_said(
    recording: Recording, server: ModelServer, clients: dict[str, Client]
) -> None:
    """Status and message of an HTTP error reach the user, from run() and from stream() alike."""
    play(server, recording, {})
    client = clients[recording.style]
    with pytest.raises(ToolnexusError) as caught:
        client.run("go")
    last = list(client.stream("go"))[-1]
    assert isinstance(last, Error)
    for error in (caught.value, last.error):
        assert error.status == recording.meta["status"]  # type: ignore[attr-defined]
        assert recording.expect["error"]["message_head"][:60] in error.message
