"""Hooks and guardrails: four points of the loop, the same from run() and stream()."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolnexus import Client, ConfigurationError, Custom, Error, HookError, RunResult, Tool, ToolResult
from toolnexus.hooks import guardrails
from toolnexus.testing import ModelServer

Go = Callable[..., RunResult]


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture(params=["run", "stream"])
def go(request: pytest.FixtureRequest, server: ModelServer) -> Go:
    """Run a prompt with hooks, whole or streamed."""

    def drive(tools: list[Tool], hooks: Any) -> RunResult:
        with Client(
            base_url=server.base_url, style=server.style, model="m", api_key="k", hooks=hooks
        ) as client:
            if request.param == "run":
                return client.run("go", tools)
            return client.stream("go", tools).result()

    return drive


def echo(ran: list[Any]) -> Tool:
    return Tool("echo", execute=lambda args, ctx: ran.append(args) or str(args.get("x")))


def test_every_point_sees_its_view(server: ModelServer, go: Go) -> None:
    """Each hook is called in its turn with what the reference gives it."""
    seen: list[tuple[str, dict[str, Any]]] = []
    points = ("before_llm", "after_llm", "before_tool", "after_tool")
    hooks = {p: functools.partial(lambda point, view: seen.append((point, view)), p) for p in points}
    server.call("echo", {"x": 1}, id="c1")
    server.say("done")
    assert go([echo([])], hooks).text == "done"
    assert [p for p, _ in seen] == [
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "before_llm",
        "after_llm",
    ]
    views = [v for _, v in seen]
    assert views[0]["turn"] == 1
    assert [m["role"] for m in views[0]["messages"]] == ["user"]
    assert views[1]["response"]["tool_calls"] == [{"id": "c1", "name": "echo", "args": {"x": 1}}]
    assert (views[2]["name"], views[2]["args"], views[2]["id"], views[2]["turn"]) == (
        "echo",
        {"x": 1},
        "c1",
        1,
    )
    assert views[3]["result"].output == "1"
    assert views[5]["response"]["text"] == "done"


def test_before_llm_changes_what_is_sent_and_not_the_transcript(server: ModelServer, go: Go) -> None:
    """Messages and tools of one turn can be replaced; result.messages stay whole."""
    server.say("ok")
    result = go(
        [echo([])],
        {"before_llm": lambda v: {"messages": [{"role": "user", "content": "other"}], "tools": []}},
    )
    sent = server.requests[0].json
    assert "other" in str(server.requests[0].messages)
    assert "tools" not in sent
    assert result.messages[0]["content"] == "go"


def test_before_tool_rewrites_denies_and_answers(server: ModelServer, go: Go) -> None:
    """Arguments can be rewritten, a call denied with a reason, or answered in the tool's place."""
    ran: list[Any] = []

    def before_tool(view: dict[str, Any]) -> Any:
        return {
            1: {"args": {"x": 10}},
            2: "not that one",
            3: {"result": ToolResult.ok("cached")},
        }[view["args"]["x"]]

    server.call_many([("echo", {"x": n}) for n in (1, 2, 3)])
    server.say("ok")
    result = go([echo(ran)], {"before_tool": before_tool})
    assert ran == [{"x": 10}]
    assert [c.output for c in result.tool_calls] == ["10", "denied: not that one", "cached"]
    assert [c.is_error for c in result.tool_calls] == [False, True, False]
    assert result.tool_calls[0].args == {"x": 10}
    assert '"x": 1}' in str(result.messages[1]["tool_calls"][0]["function"]["arguments"])


def test_hooks_run_in_order_and_the_first_denial_wins(server: ModelServer, go: Go) -> None:
    """A later hook sees what an earlier one changed; after a denial none is asked."""
    asked: list[str] = []

    def deny(view: dict[str, Any]) -> str:
        asked.append("first")
        return "no"

    def other(view: dict[str, Any]) -> None:
        asked.append("second")

    server.call("echo", {"x": 1})
    server.say("ok")
    result = go([echo([])], guardrails(deny, other))
    assert asked == ["first"]
    assert result.tool_calls[0].output == "denied: no"
    server.call("echo", {"x": 1})
    server.say("ok")
    double = {"after_tool": lambda v: {"result": ToolResult.ok(v["result"].output * 2)}}
    assert go([echo([])], [double, double]).tool_calls[0].output == "1111"


@pytest.mark.parametrize("point", ["before_llm", "after_llm", "before_tool", "after_tool"])
def test_a_hook_that_raises_ends_the_run_and_is_named(server: ModelServer, point: str, go: Go) -> None:
    """The error names the hook; a call that a failing hook should have judged never runs (exe_10)."""
    ran: list[Any] = []

    def broken(view: dict[str, Any]) -> None:
        raise RuntimeError("boom")

    server.call("echo", {"x": 1})
    server.say("ok")
    with pytest.raises(HookError, match=f"{point}.*boom"):
        go([echo(ran)], {point: broken})
    assert ran == ([{"x": 1}] if point == "after_tool" else [])


def test_a_hook_can_speak_to_the_stream(server: ModelServer) -> None:
    """view["emit"] sends a Custom event."""
    server.say("ok")
    hooks = {"before_llm": lambda view: view["emit"]({"turn": view["turn"]}) and None}
    with Client(base_url=server.base_url, style=server.style, model="m", api_key="k", hooks=hooks) as client:
        events = list(client.stream("go"))
    assert events[0] == Custom({"turn": 1})


def test_what_a_hook_sends_after_its_end_is_dropped(server: ModelServer) -> None:
    """Whoever keeps the function may call it at any time: nothing happens, and nobody waits."""
    kept: list[Any] = []

    def second(view: Any) -> None:
        kept[0]("late")
        view["emit"]("in time")

    server.say("ok")
    hooks = {"before_llm": lambda view: kept.append(view["emit"]), "after_llm": second}
    with Client(base_url=server.base_url, style=server.style, model="m", api_key="k", hooks=hooks) as client:
        events = list(client.stream("go"))
    assert [e for e in events if isinstance(e, Custom)] == [Custom("in time")]
    for number in range(2000):  # more than any queue holds
        kept[0](number)


def test_a_hook_that_hangs_can_be_cancelled(server: ModelServer) -> None:
    """Hooks run where they can be left behind."""
    import threading

    let_go = threading.Event()
    hooks = {"before_llm": lambda view: let_go.wait(30) and None}
    with Client(base_url=server.base_url, style=server.style, model="m", api_key="k", hooks=hooks) as client:
        *_, error = client.stream("go", timeout=0.2)
        assert isinstance(error, Error)
        assert error.error.kind == "timeout"
    let_go.set()


@pytest.mark.parametrize("wrong", [{"before_lllm": print}, {"before_llm": 3}, 7, {}])
def test_what_is_no_hook_is_an_error(wrong: Any) -> None:
    """A misspelled point or something that cannot be called is told at once."""
    with pytest.raises(ConfigurationError, match="hook"):
        Client(base_url="http://localhost:1", model="m", hooks=wrong)


@pytest.mark.parametrize("point", ["before_llm", "before_tool", "after_tool"])
def test_a_wrong_return_value_is_an_error_that_names_the_hook(
    server: ModelServer, point: str, go: Go
) -> None:
    """A hook must return a dict or None."""
    server.call("echo", {"x": 1})
    with pytest.raises(HookError, match=point):
        go([echo([])], {point: lambda view: 42})


@pytest.mark.parametrize(
    ("hooks", "why"),
    [
        ({"before_llm": lambda v: {"marker": {"at": 0, "key": "k", "value": object()}}}, "plain JSON"),
        ({"before_llm": lambda v: {"marker": {"at": 0, "key": "k", "value": float("nan")}}}, "plain JSON"),
        ({"before_llm": lambda v: {"marker": {"at": 0, "key": "pending", "value": 1}}}, "one of ours"),
        ({"before_llm": lambda v: {"marker": {"at": 0, "key": "anthropic", "value": 1}}}, "one of ours"),
        ({"before_llm": lambda v: {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}},
         "messages that are none"),
        ({"before_tool": lambda v: {"result": ToolResult(5)}}, "not one of int"),  # type: ignore[arg-type]
        ({"after_tool": lambda v: {"result": ToolResult(None)}}, "not one of NoneType"),  # type: ignore[arg-type]
        ({"after_tool": lambda v: {"result": 5}}, "not int"),
    ],
)  # fmt: skip
def test_what_a_hook_returns_and_nobody_could_keep(server: ModelServer, go: Go, hooks: Any, why: str) -> None:
    """It is the hook's mistake, named at once, and not one of the store or of the next request."""
    server.call("echo", {"x": 1}, id="c1")
    server.say("done")
    with pytest.raises(HookError, match=why) as caught:
        go([echo([])], hooks)
    assert next(iter(hooks)) in caught.value.message


def test_a_marker_is_kept_as_json(server: ModelServer, go: Go) -> None:
    """What the hook changes afterwards does not change the transcript."""
    kept = {"seen": (1, 2)}
    server.say("done")
    result = go([], {"before_llm": lambda v: {"marker": {"at": 0, "key": "k", "value": kept}}})
    kept["seen"] = ()
    assert result.messages[0]["toolnexus"] == {"k": {"seen": [1, 2]}}
