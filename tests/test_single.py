"""One model call: chunks, and translation from and to OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from toolnexus import Chunk, Client, ConfigurationError, Error, RateLimitError, Tool, ToolnexusError, Usage
from toolnexus.chunks import finish_reason
from toolnexus.single import collect, finalize_tool_calls
from toolnexus.testing import ModelServer

DECLARED = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(base_url=server.base_url, style=server.style, model="m", api_key="k", retries=0) as client:
        yield client


def test_a_call_is_chunks_with_one_done_at_the_end(server: ModelServer, client: Client) -> None:
    """Thinking, text, fragments, usage, done: each in its own type, done once and last."""
    ran: list[Any] = []
    server.call("add", {"a": 1}, id="c1", pieces=2, text=["let", " me"], thinking="hm", usage=(5, 2))
    chunks = list(client.chunks("go", [Tool("add", execute=lambda a, c: ran.append(a))]))
    kinds = [c.type for c in chunks]
    assert kinds[:3] == ["thinking_delta", "text_delta", "text_delta"]
    assert kinds[-2:] == ["usage", "done"]
    assert kinds.count("done") == 1
    assert chunks[-1].finish_reason == "tool_calls"
    assert chunks[-2].usage == Usage(5, 2, 7)
    assert ran == []
    assert len(server.requests) == 1
    [call] = finalize_tool_calls(chunks)
    assert (call.id, call.name, call.args, call.error) == ("c1", "add", {"a": 1}, None)
    reply = collect(chunks)
    assert (reply.text, reply.thinking, reply.finish_reason) == ("let me", "hm", "tool_calls")


def test_a_failure_is_the_last_chunk(server: ModelServer, client: Client) -> None:
    """The iterator never raises; collect() does, with the text so far."""
    server.error_in_stream(after=["half"], type="overloaded_error", message="busy")
    chunks = list(client.chunks("go"))
    assert [c.type for c in chunks] == ["text_delta", "done"]
    assert chunks[-1].finish_reason == "error"
    assert chunks[-1].error is not None
    server.error_in_stream(after=["half"], type="overloaded_error", message="busy")
    with pytest.raises(ToolnexusError) as caught:
        client.chunks("go").collect()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "half"
    server.fail(status=429, message="slow")
    [only] = client.chunks("go")
    assert isinstance(only.error, RateLimitError)


def test_broken_arguments_are_kept_and_marked() -> None:
    """Arguments that do not parse are {"raw": text} with an error; no fragments give no calls."""
    [call] = finalize_tool_calls([Chunk.tool_call_delta(0, "c", "f", "[1"), Chunk.text_delta("x")])
    assert call.args == {"raw": "[1"}
    assert call.error
    assert finalize_tool_calls([Chunk.text_delta("x")]) == []
    assert finalize_tool_calls([Chunk.tool_call_delta(0, "c", "f", "")])[0].args == {}


def test_f22_finish_reasons_are_normalised() -> None:
    """The table of the reference; an unlisted word is "stop"."""
    table = {
        "stop": "stop end_turn STOP completed stop_sequence",
        "length": "length max_tokens MAX_TOKENS max_output_tokens model_context_window_exceeded",
        "tool_calls": "tool_calls function_call tool_use",
        "content_filter": "content_filter SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY "
        "sensitive refusal",
        "pause": "pause_turn",
        "error": "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL failed network_error "
        "insufficient_system_resource",
        "unknown": "OTHER FINISH_REASON_UNSPECIFIED",
    }
    for reason, words in table.items():
        for word in words.split():
            assert finish_reason(word) == reason, word
    assert finish_reason("something new") == "stop"
    assert finish_reason(None) is None


def test_chunks_can_be_left_early(server: ModelServer, client: Client) -> None:
    """Leaving the chunks closes the connection."""
    server.say(["a", "b"], hold=True)
    with client.chunks("go") as chunks:
        assert next(chunks) == Chunk.text_delta("a")
    server.wait_for_disconnect(timeout=5)


def test_translate_gives_openai_shapes_whatever_the_endpoint_speaks(
    server: ModelServer, client: Client
) -> None:
    """Calls come back as OpenAI has them, and are not run."""
    server.call("add", {"a": 1}, id="c1", usage=(5, 2))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "add"}]
    result = client.translate(messages, tools=DECLARED, tool_choice="required", max_tokens=99)
    assert result.tool_calls_json() == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    assert (result.finish_reason, result.usage, result.text) == ("tool_calls", Usage(5, 2, 7), "")
    sent = server.requests[0].json
    wanted: dict[str, dict[str, Any]] = {
        "openai": {"max_tokens": 99, "tool_choice": "required"},
        "anthropic": {"max_tokens": 99, "tool_choice": {"type": "any"}},
        "responses": {"max_output_tokens": 99, "tool_choice": "required"},
        "gemini": {
            "generationConfig": {"maxOutputTokens": 99},
            "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        },
    }
    assert {key: sent.get(key) for key in wanted[server.style]} == wanted[server.style]
    assert "Be brief." in str(sent)


def test_translate_sends_the_right_system_text(server: ModelServer) -> None:
    """An explicit text, else the messages' own, else the client's."""
    options = {"base_url": server.base_url, "style": server.style, "model": "m", "api_key": "k"}
    with Client(**options, system_prompt="CLIENT") as client:
        for _ in range(3):
            server.say("ok")
        client.translate([{"role": "user", "content": "x"}])
        client.translate([{"role": "system", "content": "OWN"}, {"role": "user", "content": "x"}])
        client.translate([{"role": "user", "content": "x"}], system="GIVEN")
    texts = [str(r.json) for r in server.requests]
    assert [[w for w in ("CLIENT", "OWN", "GIVEN") if w in t] for t in texts] == [
        ["CLIENT"],
        ["OWN"],
        ["GIVEN"],
    ]


def test_translate_stream_yields_openai_chunks(server: ModelServer, client: Client) -> None:
    """Role first, deltas, finish, usage; a failure is a last chunk with an error."""
    server.call("add", {"a": 1}, id="c1", pieces=2, text="hi", usage=(5, 2))
    chunks = list(client.translate_stream([{"role": "user", "content": "x"}], tools=DECLARED))
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(d.get("content") or "" for d in deltas) == "hi"
    fragments = [f for d in deltas for f in d.get("tool_calls", ())]
    assert {f["index"] for f in fragments} == {0}
    assert "".join(f["function"].get("arguments") or "" for f in fragments) == '{"a":1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    server.fail(status=400, message="no")
    assert list(client.translate_stream("x"))[-1]["error"]["message"] == "no"


def test_fallbacks_are_asked_in_order_and_the_result_says_who_answered(server: ModelServer) -> None:
    """A failing endpoint is followed by the next, also of another style; the run stays with it."""
    other_style = "anthropic" if server.style == "openai" else "openai"
    with ModelServer(style=other_style) as other:
        server.fail(status=401, message="no")
        other.call("add", {}, model="backup-1")
        other.say("fine", model="backup-1")
        backup = Client(base_url=other.base_url, style=other_style, model="backup", api_key="k")
        with Client(
            base_url=server.base_url,
            style=server.style,
            model="m",
            api_key="k",
            retries=0,
            fallbacks=[backup],
        ) as client:
            events = list(client.stream("go", [Tool("add", execute=lambda a, c: "1")]))
        result = events[-1].result  # type: ignore[attr-defined]
        assert (result.text, result.model) == ("fine", "backup-1")
        assert [(a.model, a.kind) for a in result.attempts] == [
            ("m", "auth"),
            ("backup-1", None),
            ("backup-1", None),
        ]
        assert len(server.requests) == 1
        assert len(other.requests) == 2


def test_fallbacks_depend_on_the_kind_of_error(server: ModelServer, client: Client) -> None:
    """An invalid request is as invalid elsewhere; text that went out is not said twice; all may fail."""
    with ModelServer(style=server.style) as other:
        backup = {
            "base_url": other.base_url,
            "style": server.style,
            "model": "b",
            "api_key": "k",
            "retries": 0,
        }
        options = {
            "base_url": server.base_url,
            "style": server.style,
            "model": "m",
            "api_key": "k",
            "retries": 0,
        }
        with Client(**options, fallbacks=[backup]) as primary:
            server.fail(status=400, message="bad request")
            with pytest.raises(ToolnexusError, match="bad request"):
                primary.run("go")
            server.error_in_stream(after=["half"], type="overloaded_error")
            *_, last = primary.stream("go")
            assert isinstance(last, Error)
            assert other.requests == []
            server.fail(status=503, message="first")
            other.fail(status=503, message="second")
            with pytest.raises(ToolnexusError, match="second"):
                primary.run("go")
        with Client(**options, fallbacks=[backup], fallback_on=["invalid_request"]) as primary:
            server.fail(status=400, message="bad request")
            other.say("took it")
            assert primary.run("go").text == "took it"


@pytest.mark.parametrize("way", ["translate", "translate_stream", "chunks"])
@pytest.mark.parametrize("messages", [object(), 5, b"x", {"role": "user"}, [1], [{"role": "x"}], None, ""])
def test_messages_that_are_none(server: ModelServer, client: Client, way: str, messages: Any) -> None:
    """They are a ConfigurationError of each single call, and nothing is sent."""
    with pytest.raises(ConfigurationError):
        getattr(client, way)(messages)
    assert not server.requests


@pytest.mark.parametrize("way", ["translate", "translate_stream"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": ...},
        {"tools": "add"},
        {"tools": DECLARED[0]},
        {"tools": [5]},
        {"tools": [{"function": {"name": "add", "parameters": 5}}]},
        {"toolkit": ...},
        {"tools": DECLARED, "tool_choice": ...},
        {"tools": DECLARED, "tool_choice": {"function": "add"}},
        {"system": 5},
        {"max_tokens": "many"},
        {"max_tokens": 0},
        {"scope": 5},
        {"bogus": 1},
    ],
    ids=str,
)
def test_arguments_of_a_translation_that_are_none(
    server: ModelServer, client: Client, way: str, wrong: dict[str, Any]
) -> None:
    """Each is a ConfigurationError, and nothing is sent."""
    with pytest.raises(ConfigurationError):
        getattr(client, way)("x", **wrong)
    assert not server.requests


def test_messages_may_come_from_a_generator(server: ModelServer, client: Client) -> None:
    """They are taken once, with their system text."""
    messages = [{"role": "system", "content": "OWN"}, {"role": "user", "content": "x"}]
    for _ in range(3):
        server.say("ok")
    assert client.translate(m for m in messages).text == "ok"
    assert client.chunks(m for m in messages).collect().text == "ok"
    assert "error" not in list(client.translate_stream(m for m in messages))[-1]
    assert all("OWN" in str(request.json) for request in server.requests)
