"""One transcript for four providers: conversations that move, agents that run, options that fit."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.wire import ROOT, Recording, recordings
from toolnexus import (
    AuthenticationError,
    Client,
    ConfigurationError,
    Image,
    MemoryStore,
    RunResult,
    Tool,
    ToolnexusError,
    ToolResult,
)
from toolnexus.testing import ModelServer, RecordedRequest, recorded
from toolnexus.wire import DIALECTS, ModelRequest
from toolnexus.wire.transcript import prepare

STYLES = list(DIALECTS)
PNG = b"\x89PNG\r\n\x1a\n123"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def client_of(server: ModelServer, style: str, **options: Any) -> Client:
    given = {"style": style, "model": "m", "api_key": "key-1234", "retries": 0, **options}
    return Client(server.url_for(style), **given)


def look(ran: list[Any]) -> Tool:
    """Return a tool whose result has an image, and which notes its arguments."""

    def run(args: dict[str, Any], ctx: Any) -> ToolResult:
        ran.append(args)
        return ToolResult(f"saw {args['at']}", content=(Image(PNG),))

    schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    return Tool("look", "Look at it.", schema, run)


def ask(client: Client, streamed: bool, *args: Any, **options: Any) -> RunResult:
    return client.stream(*args, **options).result() if streamed else client.run(*args, **options)


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_an_agent_runs(style: str, streamed: bool, server: ModelServer) -> None:
    """Thinking, two calls at once, their results, an answer: the same in every style, streamed or not."""
    ran: list[Any] = []
    calls = [("look", {"at": "a"}), ("look", {"at": "b"})]
    server.call_many(calls, thinking="I should look.", text="Looking.", usage=(5, 2))
    server.say("Both are fine.", thinking="So?", usage=(7, 3))
    with client_of(server, style) as client:
        result = ask(client, streamed, "go", [look(ran)])
    assert sorted(a["at"] for a in ran) == ["a", "b"]
    assert (result.text, result.thinking) == ("Both are fine.", "So?")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (12, 5)
    assert [c.output for c in result.tool_calls] == ["saw a", "saw b"]
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert result.messages[1]["content"] == "Looking."
    if style in ("anthropic", "responses", "gemini"):  # what proves the thinking went back with it
        assert "c2lnbmF0dXJl" in json.dumps(server.requests[1].json)
    server.assert_done()


@pytest.mark.parametrize("style", STYLES)
def test_run_and_stream_agree(style: str, server: ModelServer) -> None:
    """The result of a run and of a drained stream of the same script are equal, the ids apart."""

    def outcome(streamed: bool) -> Any:
        server.call("look", {"at": "a"}, id="c1", thinking=["hm", "m"], pieces=3)
        server.say(["Hel", "lo"], usage=(7, 3), finish="length")
        with client_of(server, style) as client:
            result = ask(client, streamed, "go", [look([])])
        kept = ("text", "thinking", "usage", "finish_reason", "raw_finish_reason", "status", "limit", "model")
        calls = [(c.id, c.name, c.args, c.output) for c in result.tool_calls]
        # The server counts its answers, and the ids of its items with them.
        messages = json.dumps(result.messages)
        for number in range(1, 5):
            messages = messages.replace(f"_test_{number}", "_test_N")
        return [getattr(result, name) for name in kept], calls, messages

    assert outcome(streamed=False) == outcome(streamed=True)


# -- conversations that move -----------------------------------------------------------------------


def balanced(request: RecordedRequest) -> bool:
    """Tell whether each call in a request has exactly one result behind it, under the same id or place."""
    calls: list[Any] = []
    results: list[Any] = []
    for message in request.messages:
        if message.get("type") in ("function_call", "function_call_output"):
            (calls if message["type"] == "function_call" else results).append(message["call_id"])
        calls += [c["id"] for c in message.get("tool_calls") or ()]
        results += [message["tool_call_id"]] if message.get("role") == "tool" else []
        content = message.get("content")
        for part in content if isinstance(content, list) else message.get("parts") or ():
            calls += [part["id"]] if part.get("type") == "tool_use" else []
            results += [part["tool_use_id"]] if part.get("type") == "tool_result" else []
            calls += [part["functionCall"]["name"]] if "functionCall" in part else []
            results += [part["functionResponse"]["name"]] if "functionResponse" in part else []
    return calls == results


@pytest.mark.parametrize("order", list(itertools.permutations(STYLES)), ids="-".join)
def test_a_conversation_moves(order: tuple[str, ...], server: ModelServer) -> None:
    """In any order of providers: text, calls, results and images arrive, the thinking of others does not."""
    store = MemoryStore()
    for number, style in enumerate(order):
        server.call("look", {"at": f"place {number}"}, thinking=f"secret {number}", text=f"Turn {number}.")
        server.say(f"Answer {number}.")
        with client_of(server, style, store=store) as client:
            prompt = [f"Question {number}?", Image(PNG)] if number == 0 else f"Question {number}?"
            result = client.run(prompt, [look([])], id="moving")
            assert result.text == f"Answer {number}."
    for number, request in enumerate(server.requests[::2]):
        sent = json.dumps(request.json)
        for earlier in range(number):
            for said in ("Question {}?", "Turn {}.", "place {}", "saw place {}", "Answer {}."):
                assert said.format(earlier) in sent
            assert f"secret {earlier}" not in sent
        assert sent.count("iVBORw0KGgo") == (number + 1 if number else 1)  # the prompt's, and each tool's
        assert "toolnexus" not in sent
    assert all(map(balanced, server.requests))


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_comes_back(style: str, server: ModelServer) -> None:
    """After a visit elsewhere the first provider gets its own thinking back, with what proves it."""
    store = MemoryStore()
    other = STYLES[STYLES.index(style) - 1]
    server.call("look", {"at": "x"}, thinking="my own", id="c1")
    server.say("one")
    server.say("two", thinking="foreign")
    server.say("three")
    for asked in (style, other, style):
        with client_of(server, asked, store=store, echo_reasoning="always") as client:
            client.run("go", [look([])], id="back")
    sent = json.dumps(server.requests[-1].json)
    assert "my own" in sent
    assert "foreign" not in sent
    assert "my own" not in json.dumps(server.requests[2].json)


@pytest.mark.parametrize("first", STYLES)
@pytest.mark.parametrize("second", STYLES)
def test_a_fallback_of_another_style(first: str, second: str, server: ModelServer) -> None:
    """In the middle of a run, after a call: the second provider goes on with what the first one began."""
    server.call("look", {"at": "x"}, thinking="hm")
    server.fail(status=401, message="no more")
    server.say("done")
    with client_of(server, second) as spare, client_of(server, first, fallbacks=[spare]) as client:
        result = client.run("go", [look([])])
    assert result.text == "done"
    assert "saw x" in json.dumps(server.requests[-1].json)
    assert balanced(server.requests[-1])


IDS = st.sampled_from(["a", "b", "call_1", "toolu_1", "x" * 80, "a b/c"])
ARGUMENTS = st.sampled_from(["{}", '{"a":1}', "x", "[1]"])
CALLS = st.lists(st.tuples(IDS, st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3)
ROLES = st.sampled_from(["user", "assistant", "system"])
TURNS = st.lists(st.tuples(ROLES, st.text(max_size=4), CALLS, st.booleans()), max_size=6)


@settings(max_examples=200)
@given(turns=TURNS, style=st.sampled_from(STYLES))
def test_any_transcript_makes_a_body(turns: list[Any], style: str) -> None:
    """Any messages, ids used twice, broken arguments, missing results: a body of JSON comes out, balanced."""
    messages: list[dict[str, Any]] = []
    for role, text, calls, answered in turns:
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant" and calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in calls
            ]
        messages.append(message)
        if role == "assistant" and answered:
            messages += [{"role": "tool", "tool_call_id": id_, "content": "r"} for id_, _, _ in calls]
    prepared = prepare(messages, None)
    request = ModelRequest(model="m", messages=prepared.messages, system=prepared.system)
    body = json.dumps(DIALECTS[style].body(request)).encode()
    sent = RecordedRequest("POST", "/", "HTTP/1.1", {}, body, 1)  # type: ignore[arg-type]
    assert balanced(sent)


# -- answers that are odd --------------------------------------------------------------------------

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a JSON value as its holder and its key there."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(inner, (dict, list)):
            found += nodes(inner)
    return found


def events_of(recording: Recording) -> list[Any]:
    lines = recording.body.decode().splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data: {")]


#: The small recordings of the two younger styles, by name.
SMALL = {
    r.name: r
    for r in recordings(stream=True, ok=True)
    if r.style in ("responses", "gemini") and len(r.body) < 9000
}


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(SMALL)), places=st.lists(st.tuples(st.integers(0, 10**6), ODD), max_size=3)
)
def test_any_value_at_any_place(name: str, places: list[tuple[int, Any]]) -> None:
    """
    A server may send anything in place of anything.

    What comes of it is an error of ours, or an answer that can be stored and sent back.
    """
    recording = SMALL[name]
    events = events_of(recording)
    for number, value in places:
        holder, key = (found := nodes(events))[number % len(found)]
        holder[key] = value
    dialect = DIALECTS[recording.style]
    decoder = dialect.decoder()
    try:
        for event in events:
            decoder.feed("message", json.dumps(event))
        decoder.finish(None)
    except ToolnexusError:
        return
    reply = decoder.reply()
    messages = json.loads(json.dumps([{"role": "user", "content": "go"}, reply.message]))
    prepared = prepare(messages, None)
    for other in DIALECTS.values():
        json.dumps(other.body(ModelRequest(model="m", messages=prepared.messages)))


# -- recorded in both forms ------------------------------------------------------------------------

PAIRS = [
    ("vertex/gem-multi-tool-streaming", "vertex/gem-multi-tool-streaming-2"),
    ("openai/resp-openai-gpt-4o-responses-stream", "openai/resp-openai-gpt-4o-responses-async-stream"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_recordings_of_one_turn(first: str, second: str, server: ModelServer) -> None:
    """run() on one and stream() on the other give the same words, calls and end."""
    style = "gemini" if "/gem-" in first else "responses"
    outcomes = []
    with client_of(server, style, max_turns=1) as client:
        for path, streamed in ((first, False), (second, True)):
            server.play(recorded(ROOT / f"{path}.sse"))
            result = ask(client, streamed, "go")
            calls = [(c.name, c.args) for c in result.tool_calls]
            outcomes.append((result.text, result.refusal, calls, result.finish_reason))
    assert outcomes[0] == outcomes[1]


# -- options ---------------------------------------------------------------------------------------


def key_of(monkeypatch: pytest.MonkeyPatch, url: str | None, style: str, **variables: str) -> str | None:
    names = ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE")
    for name in itertools.chain.from_iterable((f"{n}_API_KEY", f"{n}_BASE_URL") for n in names):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = Client(url, style=style, model="m")
    return client._runner.options.key()  # what is sent needs the provider's own host


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """GEMINI_API_KEY goes before GOOGLE_API_KEY, Responses takes OpenAI's, other hosts get none."""
    both = {"GEMINI_API_KEY": "first", "GOOGLE_API_KEY": "second", "OPENAI_API_KEY": "other"}
    assert key_of(monkeypatch, None, "gemini", **both) == "first"
    assert key_of(monkeypatch, None, "gemini", GOOGLE_API_KEY="second") == "second"
    assert key_of(monkeypatch, None, "responses", **both) == "other"
    compatible = "https://generativelanguage.googleapis.com/v1beta/openai"
    assert key_of(monkeypatch, compatible, "openai", **both) == "first"
    assert key_of(monkeypatch, "http://127.0.0.1:9", "gemini", **both) is None
    with pytest.raises(ConfigurationError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        key_of(monkeypatch, None, "gemini", OPENAI_API_KEY="other")


def test_addresses_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each style has its default address, and its variable for another one."""
    for style, name, host in (
        ("responses", "OPENAI_BASE_URL", "api.openai.com"),
        ("gemini", "GEMINI_BASE_URL", "generativelanguage.googleapis.com"),
    ):
        monkeypatch.delenv(name, raising=False)
        assert host in repr(Client(style=style, model="m"))
        monkeypatch.setenv(name, "http://proxy.example/base")
        assert "http://proxy.example/base" in repr(Client(style=style, model="m"))


def test_a_header_of_ones_own_is_a_key(server: ModelServer) -> None:
    """With x-goog-api-key or Authorization of one's own no key is looked for, and only one is sent."""
    server.say("ok")
    headers = {"Authorization": "Bearer token-1234"}
    with client_of(server, "gemini", api_key=None, headers=headers) as client:
        client.run("go")
    assert server.requests[0].headers["authorization"] == "Bearer token-1234"
    assert "x-goog-api-key" not in server.requests[0].headers


@pytest.mark.parametrize("style", STYLES)
def test_a_key_is_said_back_by_nobody(style: str, server: ModelServer) -> None:
    """An endpoint that repeats the key in an error does not bring it into ours."""
    server.fail(status=401, message="Incorrect API key provided: key-1234")
    with client_of(server, style) as client, pytest.raises(AuthenticationError) as caught:
        client.run("go")
    assert "key-1234" not in f"{caught.value!r} {caught.value} {vars(caught.value)}"
    assert "key-1234" not in repr(client)


def test_a_style_that_is_none() -> None:
    """The error lists the styles that there are."""
    with pytest.raises(ConfigurationError, match="'openai', 'anthropic', 'responses', 'gemini'"):
        Client("http://127.0.0.1:9", style="klingon", model="m")


def test_a_dialect_is_imported_when_it_is_asked_for() -> None:
    """Importing toolnexus loads none of them; a client's first run loads its own."""
    code = (
        "import sys, toolnexus\n"
        "from toolnexus.wire import DIALECTS\n"
        f"names = ['toolnexus.wire.' + s for s in {STYLES!r}]\n"
        "assert not [n for n in names if n in sys.modules], sys.modules\n"
        "DIALECTS['gemini']\n"
        "assert [n for n in names if n in sys.modules] == ['toolnexus.wire.gemini']\n"
    )
    top = str(Path(__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": top}, timeout=60
    )
