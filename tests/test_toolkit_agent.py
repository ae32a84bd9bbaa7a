"""The agent loop with tools of all sources at once."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.mcp_servers import eventually, raw, sdk
from tests.support.http_endpoint import Seen, Server, send, serving
from toolnexus import (
    Answer,
    Client,
    Context,
    Image,
    Request,
    RunResult,
    SkillDef,
    Tool,
    ToolFinished,
    Toolkit,
    ToolOutput,
    http_tool,
    openapi_tools,
    relay_tool,
    tool,
)
from toolnexus.testing import ModelServer

PNG = b"\x89PNG\r\n\x1a\n...."

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/price/{item}": {
            "get": {
                "operationId": "price",
                "summary": "Tell a price.",
                "parameters": [
                    {"name": "item", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "currency", "in": "query", "schema": {"enum": ["EUR", "USD"]}},
                ],
                "responses": {"200": {"description": "It."}},
            }
        },
        "/picture": {"get": {"operationId": "picture", "responses": {"200": {"description": "It."}}}},
    },
}


def shop(handler: Any, seen: Seen) -> None:
    """Answer as a small shop does, which describes itself."""
    path, _, query = seen.target.partition("?")
    if path == "/openapi.json":
        send(handler, json.dumps(DOCUMENT), Content_Type="application/json")
    elif path.startswith("/price/"):
        send(
            handler,
            json.dumps({"item": unquote(path[7:]), "price": 5, "query": query}),
            Content_Type="application/json",
        )
    elif path == "/picture":
        send(handler, PNG, Content_Type="image/png")
    elif path.startswith("/weather/"):
        send(handler, f"sunny in {unquote(path[9:])}", Content_Type="text/plain")
    else:
        send(handler, "no", 404)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def server() -> Iterator[Server]:
    """The shop."""
    with serving(shop) as running:
        yield running


@pytest.fixture
def toolkit(server: Server, tmp_path: Path) -> Iterator[Toolkit]:
    """Tools of six sources."""
    (tmp_path / "notes.txt").write_text("buy tea\n")
    skill = tmp_path / "skills" / "tea"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tea\ndescription: How to buy tea.\n---\nBuy the green one.\n")
    weather = http_tool(
        name="weather", description="Tell the weather.", method="GET", url=f"{server.url}/weather/{{city}}",
        input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )  # fmt: skip
    with Toolkit(
        [add, weather, *openapi_tools(f"{server.url}/openapi.json")],
        mcp_config={"mcpServers": {"s": raw(names=["echo", "progress", "blob"])}},
        skills_dir=tmp_path / "skills",
        builtins=["read"],
        root=tmp_path,
    ) as toolkit:
        yield toolkit


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 2, "b": 3}),
    ("weather", {"city": "Paris/Ü"}),
    ("price", {"item": "a b", "currency": "EUR"}),
    ("s_echo", {"text": "hello"}),
    ("skill", {"name": "tea"}),
    ("read", {"path": "notes.txt"}),
]
MODES = ("run", "stream")
STYLES = ("openai", "anthropic")


def go(mode: str, model: ModelServer, tools: Any, prompt: str = "Go", **options: Any) -> RunResult:
    """Run an agent, with a stream or without."""
    with Client(base_url=model.base_url, style=model.style, model="test", **options) as client:
        return client.run(prompt, tools) if mode == "run" else client.stream(prompt, tools).result()


def declared(model: ModelServer, index: int) -> list[str]:
    """Return the names of the tools that a request declares."""
    return [t.get("name") or t["function"]["name"] for t in model.requests[index].json["tools"]]


def returned(model: ModelServer) -> list[str]:
    """Return the texts of the tool results in the last request, in order."""
    if model.style == "openai":
        return [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]
    blocks = model.requests[-1].messages[-1]["content"]
    texts = [b["content"] for b in blocks if b["type"] == "tool_result"]
    return [t if isinstance(t, str) else "".join(p.get("text", "") for p in t) for t in texts]


def check_outputs(outputs: list[str]) -> None:
    """Check what the six calls gave."""
    assert outputs[0] == "5"
    assert outputs[1] == "sunny in Paris/Ü"
    assert json.loads(outputs[2]) == {"item": "a b", "price": 5, "query": "currency=EUR"}
    assert outputs[3] == "hello"
    assert outputs[4].startswith('<skill_content name="tea">')
    assert outputs[5] == "buy tea\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_six_sources_answer_in_one_turn(style: str, mode: str, toolkit: Toolkit) -> None:
    """All are declared, all run, the results go back in the order of the calls."""
    with ModelServer(style=style) as model:
        model.call_many(CALLS)
        model.say("Done.")
        result = go(mode, model, toolkit, system_prompt="Be brief.")
        model.assert_done()
        assert declared(model, 0) == [t.name for t in toolkit.tools]
        assert declared(model, 1) == declared(model, 0)
        for request in model.requests:
            body = request.json
            system = body["system"] if style == "anthropic" else body["messages"][0]["content"]
            assert "Be brief." in str(system)
            assert "- **tea**: How to buy tea." in str(system)
        check_outputs(returned(model))
    assert result.text == "Done."
    assert [(call.name, call.is_error) for call in result.tool_calls] == [(name, False) for name, _ in CALLS]
    check_outputs([call.output for call in result.tool_calls])


@pytest.mark.parametrize("style", STYLES)
def test_six_sources_answer_one_after_another(style: str, toolkit: Toolkit) -> None:
    """A turn each, streamed; every call has its events in order."""
    with ModelServer(style=style) as model:
        for name, args in CALLS:
            model.call(name, args)
        model.say("Done.")
        with Client(base_url=model.base_url, style=style, model="test") as client:
            events = list(client.stream("Go", toolkit))
    assert [e.type for e in events] == ["tool_call", "tool_result"] * 6 + ["text", "usage", "done"]
    check_outputs([e.output for e in events if isinstance(e, ToolFinished)])


@pytest.mark.parametrize("style", STYLES)
def test_a_conversation_goes_on_over_six_sources(style: str, toolkit: Toolkit) -> None:
    """What is stored can be sent again, and the tools are there again."""
    with ModelServer(style=style) as model:
        model.call_many(CALLS)
        model.say("First.")
        model.call("add", {"a": 1, "b": 1})
        model.say("Second.")
        with Client(base_url=model.base_url, style=style, model="test") as client:
            client.ask("One", toolkit, id="c")
            result = client.ask("Two", toolkit, id="c")
        model.assert_done()
    assert (result.text, result.tool_calls[-1].output) == ("Second.", "2")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_images_of_every_source_reach_the_model(style: str, mode: str, toolkit: Toolkit) -> None:
    """In the provider's own form, byte for byte, and with the call that they belong to."""

    @tool
    def draw() -> Image:
        """Draw."""
        return Image(PNG)

    toolkit.register(draw)
    with ModelServer(style=style) as model:
        model.call_many([("draw", {}), ("picture", {}), ("s_blob", {})])
        model.say("Nice.")
        result = go(mode, model, toolkit)
        sent = model.requests[-1].messages
    assert [call.is_error for call in result.tool_calls] == [False] * 3
    assert [base64.b64decode(data) for data in image_data(style, sent)] == [PNG, PNG, b"\x89PNG\r\n\x1a\n"]


def image_data(style: str, messages: list[dict[str, Any]]) -> list[str]:
    """Return the images of a request, as base64."""
    if style == "openai":
        parts = [part for m in messages if isinstance(m["content"], list) for part in m["content"]]
        return [
            p["image_url"]["url"].removeprefix("data:image/png;base64,") for p in parts if "image_url" in p
        ]
    results = [b for b in messages[-1]["content"] if b["type"] == "tool_result"]
    images = [
        p for b in results if isinstance(b["content"], list) for p in b["content"] if p["type"] == "image"
    ]
    assert len(images) == len(results)
    assert {p["source"]["media_type"] for p in images} == {"image/png"}
    return [p["source"]["data"] for p in images]


@pytest.mark.parametrize("style", STYLES)
def test_progress_of_functions_and_servers_is_streamed(style: str, toolkit: Toolkit) -> None:
    """What a generator yields, and what a server reports; the result is what comes last."""

    @tool
    def count(n: int) -> Iterator[str]:
        """Count."""
        for i in range(n):
            yield f"{i};"
        return f"counted to {n}"  # type: ignore[return-value]

    toolkit.register(count)
    with ModelServer(style=style) as model:
        model.call_many([("count", {"n": 3}), ("s_progress", {"steps": 2})])
        model.say("Done.")
        with Client(base_url=model.base_url, style=style, model="test") as client:
            events = list(client.stream("Go", toolkit))
    told = [e for e in events if isinstance(e, ToolOutput)]
    assert [e.delta for e in told if e.name == "count"] == ["0;", "1;", "2;"]
    assert [e.delta for e in told if e.name == "s_progress"] == ["1/2 step 1\n", "2/2 step 2\n"]
    done = events[-1].result  # type: ignore[attr-defined]
    assert [call.output for call in done.tool_calls] == ["counted to 3", "done"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_tools_that_change_are_declared_anew_in_the_next_turn(style: str, mode: str) -> None:
    """A server says that its list changed; what is gone is unknown, what is new can be called."""
    with Toolkit([add], mcp_config={"s": raw(names=["echo", "change"])}) as toolkit:

        @tool
        def wait() -> str:
            """Wait for the news."""
            return str(eventually(lambda: "s_pid" in toolkit and "s_echo" not in toolkit))

        toolkit.register(wait)
        with ModelServer(style=style) as model:
            model.call("s_change", {"names": ["change", "pid"]})
            model.call("wait", {})
            model.call_many([("s_pid", {}), ("s_echo", {"text": "x"})])
            model.say("Done.")
            result = go(mode, model, toolkit)
            assert declared(model, 0) == ["s_echo", "s_change", "add", "wait"]
            assert declared(model, 2) == ["s_change", "s_pid", "add", "wait"]
    assert result.tool_calls[1].output == "True"
    assert result.tool_calls[2].output.isdecimal()
    assert result.tool_calls[3].output.startswith("Unknown tool: s_echo. Available tools: s_change, s_pid")


def test_tools_that_a_run_registers_are_there_in_its_next_turn() -> None:
    """A tool may add tools, and take them away."""
    toolkit = Toolkit()

    @tool
    def learn(name: str) -> str:
        """Learn something new."""
        toolkit.register(Tool(name, execute=lambda args, ctx: f"I am {name}"))
        return "learnt"

    toolkit.register(learn)
    with ModelServer() as model:
        model.call("learn", {"name": "fly"})
        model.call("fly", {})
        model.say("Done.")
        result = go("stream", model, toolkit)
        assert [declared(model, i) for i in range(3)] == [["learn"], ["learn", "fly"], ["learn", "fly"]]
    assert result.tool_calls[-1].output == "I am fly"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_what_a_skill_allows_is_all_that_runs(style: str, mode: str, tmp_path: Path) -> None:
    """Once a skill of a folder is loaded, tools of every source are held to it."""
    skill = tmp_path / "skills" / "look"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: look\ndescription: Looks.\nallowed-tools: Read mcp__s__echo\n---\nLook."
    )
    (tmp_path / "a.txt").write_text("a")
    with (
        Toolkit([add], mcp_config={"s": raw(names=["echo", "pid"])}, skills_dir=tmp_path / "skills",
                builtins=["read", "write"], root=tmp_path) as toolkit,
        ModelServer(style=style) as model,
    ):  # fmt: skip
        model.call("write", {"path": "b.txt", "content": "b"})
        model.call("skill", {"name": "look"})
        model.call_many([
            ("read", {"path": "a.txt"}), ("write", {"path": "c.txt", "content": "c"}),
            ("s_echo", {"text": "x"}), ("s_pid", {}), ("add", {"a": 1, "b": 1}),
        ])  # fmt: skip
        model.say("Done.")
        result = go(mode, model, toolkit)
    assert [call.is_error for call in result.tool_calls] == [False, False, False, True, False, True, True]
    assert 'Tool "write" is not allowed by the skill "look"' in result.tool_calls[3].output
    assert (tmp_path / "b.txt").exists()
    assert not (tmp_path / "c.txt").exists()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_calls_may_be_relayed_to_the_caller(style: str, mode: str, toolkit: Toolkit) -> None:
    """The caller runs one tool, the toolkit its sibling; both results go back."""

    def pay(request: Request) -> Answer:
        return Answer(request.id, data={"output": f"paid {request.data['arguments']['sum']}"})

    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    toolkit.register(relay_tool("pay", "Pay a bill.", schema))
    with ModelServer(style=style) as model:
        model.call_many([("pay", {"sum": 5}), ("add", {"a": 1, "b": 2})])
        model.say("Paid.")
        result = go(mode, model, toolkit, wait_for=pay)
        assert returned(model) == ["paid 5", "3"]
    assert result.text == "Paid."


@pytest.mark.parametrize("style", STYLES)
def test_a_server_that_dies_costs_its_call_only(style: str) -> None:
    """The siblings of other sources have their results; the next turn finds the server again."""
    with (
        Toolkit([add], mcp_config={"s": raw(names=["echo", "die"])}) as kit,
        ModelServer(style=style) as model,
    ):
        model.call_many([("add", {"a": 1, "b": 2}), ("s_die", {"code": 7})])
        model.call("s_echo", {"text": "back"})
        model.say("Done.")
        result = go("stream", model, kit)
    assert [(c.output, c.is_error) for c in result.tool_calls if c.name != "s_die"] == [
        ("3", False),
        ("back", False),
    ]
    assert "exited with code 7" in result.tool_calls[1].output


def test_one_toolkit_serves_many_runs_at_once(toolkit: Toolkit) -> None:
    """Threads share it, each with a client and a model of its own."""
    problems: list[BaseException] = []

    def one(number: int) -> None:
        try:
            with ModelServer(style=STYLES[number % 2]) as model:
                for _ in range(2):
                    model.call_many([("add", {"a": number, "b": 1}), ("s_echo", {"text": f"n{number}"}),
                                     ("read", {"path": "notes.txt"})])  # fmt: skip
                model.say("Done.")
                result = go(MODES[number % 2], model, toolkit)
            assert [c.output for c in result.tool_calls] == [str(number + 1), f"n{number}", "buy tea\n"] * 2
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []


@pytest.mark.parametrize("style", STYLES)
def test_a_tool_of_the_sdk_is_used_like_any_other(style: str) -> None:
    """A server over the official SDK: typed arguments, structured results, errors."""
    with Toolkit(mcp_config={"s": sdk()}) as toolkit, ModelServer(style=style) as model:
        model.call_many(
            [
                ("s_sum_up", {"values": [1, 2, 3]}),
                ("s_raw_result", {}),
                ("s_add", {"a": "x", "b": 1}),
            ]
        )
        model.say("Done.")
        result = go("run", model, toolkit)
    total, failed, refused = result.tool_calls
    assert json.loads(total.output)["total"] == 6
    assert (failed.is_error, failed.output) == (True, "first\n\nsecond")
    assert refused.output.startswith("s_add: wrong arguments: a: expected an integer")


class Counted(dict[str, Any]):
    """A part of a schema that counts how often it is walked through."""

    walks = 0

    def items(self) -> Any:
        """Count, and walk."""
        Counted.walks += 1
        return super().items()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
def test_schemas_are_adapted_and_serialised_once_a_run(style: str, mode: str) -> None:
    """The declarations of later turns are the text of the first one."""
    Counted.walks = 0
    schema = {"type": "object", "properties": {"o": {"type": "object", "default": Counted(a=1)}}}
    toolkit = Toolkit([Tool("noop", "", schema, lambda args, ctx: "ok")])
    walks: list[int] = []
    with ModelServer(style=style) as model:

        def answer(request: Any) -> Any:
            from toolnexus.testing import reply, tool_call

            walks.append(Counted.walks)
            return tool_call("noop") if len(walks) < 4 else reply("Done.")

        model.on_request(answer)
        go(mode, model, toolkit)
        assert [r.json["tools"] for r in model.requests] == [model.requests[0].json["tools"]] * 4
        assert "default" in json.dumps(model.requests[0].json["tools"])
    assert walks[0] > 0
    assert walks == [walks[0]] * 4


def test_the_context_is_the_same_for_every_source(toolkit: Toolkit) -> None:
    """A function sees who calls it, and what the caller gave."""
    seen: list[Context] = []

    @tool
    def look(ctx: Context) -> str:
        """Look."""
        seen.append(ctx)
        return "ok"

    toolkit.register(look)
    with ModelServer() as model:
        model.call("look", {}, id="c-1")
        model.say("Done.")
        with Client(base_url=model.base_url, style="openai", model="test") as client:
            result = client.run("Go", toolkit, deps={"user": "ada"})
    assert (seen[0].call_id, seen[0].tool_name, seen[0].turn, seen[0].deps) == (
        "c-1",
        "look",
        1,
        {"user": "ada"},
    )
    assert seen[0].run_id == result.run_id


def test_a_skill_as_data_is_loaded_in_a_run() -> None:
    """Its tool needs no folder."""
    toolkit = Toolkit(skills=[SkillDef("greet", "Say hello.", "Greets people.")])
    with ModelServer() as model:
        model.call("skill", {"name": "greet"})
        model.say("Hello.")
        result = go("stream", model, toolkit)
    assert "Say hello." in result.tool_calls[0].output
