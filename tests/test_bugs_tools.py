"""Faults that others had in running tools, each tried in whole runs of both styles."""

from __future__ import annotations

import base64
import datetime
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from toolnexus import (
    Client,
    Context,
    Error,
    HookError,
    Image,
    RunResult,
    SqliteStore,
    Tool,
    ToolCall,
    ToolFinished,
    tool,
)
from toolnexus.testing import Call, ModelServer, RecordedRequest, tool_call, tool_calls

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
DATA = base64.b64encode(PNG).decode()

Go = Callable[..., RunResult]


@pytest.fixture(params=["openai", "anthropic"])
def model(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    """A scripted model of each style."""
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture(params=["run", "stream"])
def go(request: pytest.FixtureRequest, model: ModelServer) -> Go:
    """Run an agent, with a stream or without."""

    def run(tools: list[Any], prompt: str = "Go", **options: Any) -> RunResult:
        id = options.pop("id", None)  # noqa: A001
        with Client(base_url=model.base_url, style=model.style, model="test", **options) as client:
            if request.param == "run":
                return client.run(prompt, tools, id=id)
            return client.stream(prompt, tools, id=id).result()

    return run


@tool
def echo(text: str = "") -> str:
    """Say it again."""
    return text


def results(request: RecordedRequest) -> list[tuple[str, Any, bool]]:
    """Return the id, the content and the error mark of each tool result in a request."""
    found = []
    for message in request.messages:
        if message["role"] == "tool":
            found.append((message["tool_call_id"], message["content"], False))
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result":
                found.append((block["tool_use_id"], block["content"], bool(block.get("is_error"))))
    return found


def texts(request: RecordedRequest) -> list[str]:
    """Return the texts of the tool results in a request."""
    return [
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        for _, content, _ in results(request)
    ]


@dataclass
class Point:
    """A point."""

    x: int
    when: datetime.date


def test_exe_01_results_that_json_lacks_are_sent_as_sensible_text(model: ModelServer, go: Go) -> None:
    """A dict of dates, decimals, sets, dataclasses and paths is JSON for the model."""

    @tool
    def everything() -> dict[str, Any]:
        """Return everything."""
        return {
            "when": datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
            "price": Decimal("1.10"),
            "tags": {"b", "a"},
            "at": Point(1, datetime.date(2026, 1, 2)),
            "path": Path("a") / "b",
        }

    model.call("everything")
    model.say("ok")
    result = go([everything])
    assert not result.tool_calls[0].is_error
    assert json.loads(texts(model.requests[-1])[0]) == {
        "when": "2026-01-02T03:04:00+00:00",
        "price": "1.10",
        "tags": ["a", "b"],
        "at": {"x": 1, "when": "2026-01-02"},
        "path": str(Path("a") / "b"),
    }


def test_exe_02_bytes_are_saved_and_sent_again(model: ModelServer, go: Go, tmp_path: Path) -> None:
    """A stored conversation with an image is the same after it was loaded by another store."""

    @tool
    def draw() -> bytes:
        """Draw."""
        return PNG

    model.call("draw", id="c-1")
    model.say("nice")
    model.say("still nice")
    path = tmp_path / "talk.sqlite"
    with SqliteStore(path) as store:
        go([draw], store=store, id="talk")
    with SqliteStore(path) as store:
        go([draw], "And now?", store=store, id="talk")
    before, after = (json.dumps(request.json) for request in model.requests[1:])
    assert (before.count(DATA), after.count(DATA)) == (1, 1)
    assert results(model.requests[2]) == results(model.requests[1])


def test_exe_03_an_image_is_no_text(model: ModelServer, go: Go) -> None:
    """It goes in the provider's form, and its bytes stand nowhere else."""

    @tool
    def look() -> list[Any]:
        """Look."""
        return ["A cat:", Image(PNG)]

    model.call("look")
    model.say("nice")
    go([look])
    assert "A cat:" in texts(model.requests[-1])[0]
    assert DATA not in texts(model.requests[-1])[0]
    form = {"type": "base64", "media_type": "image/png", "data": DATA}
    url = f"data:image/png;base64,{DATA}"
    wanted = json.dumps(form if model.style == "anthropic" else url)
    assert wanted in json.dumps(model.requests[-1].json)


def test_exe_04_a_hung_tool_is_left_behind(model: ModelServer, go: Go) -> None:
    """Its siblings and the run go on; a limit of its own goes before the client's."""
    let_go = threading.Event()

    @tool
    def hang() -> None:
        """Hang."""
        let_go.wait(30)

    @tool(timeout=0.2)
    def stuck() -> None:
        """Hang, too."""
        let_go.wait(30)

    @tool(timeout=20)
    def slow() -> str:
        """Take longer than the client's limit, and be allowed to."""
        time.sleep(0.7)
        return "there"

    model.call_many([("hang", {}), ("stuck", {}), ("slow", {}), ("echo", {"text": "x"})])
    model.say("ok")
    start = time.monotonic()
    result = go([hang, stuck, slow, echo], tool_timeout=0.4)
    assert time.monotonic() - start < 10
    let_go.set()
    assert [(call.output, call.is_error) for call in result.tool_calls] == [
        ("hang: timed out after 0.4 s", True),
        ("stuck: timed out after 0.2 s", True),
        ("there", False),
        ("x", False),
    ]
    assert result.text == "ok"


def test_exe_04_what_a_tool_gives_after_its_time_is_no_result(model: ModelServer, go: Go) -> None:
    """However quick it is to stop when told."""

    @tool(timeout=0.1)
    def hang(ctx: Context) -> str:
        """Wait to be told."""
        while not ctx.cancelled:
            time.sleep(0.001)
        return "half of it"

    model.call("hang")
    model.say("ok")
    result = go([hang])
    assert result.tool_calls[0].output == "hang: timed out after 0.1 s"


def test_exe_04_a_slow_reader_costs_no_tool_its_time(model: ModelServer) -> None:
    """The time of a tool is that between its start and its end, whenever the loop hears of them."""

    @tool
    def chatty(ctx: Context) -> str:
        """Report a lot."""
        for i in range(200):
            ctx.output(str(i))
        return "a"

    @tool(timeout=0.5)
    def quick() -> str:
        """Be done in time."""
        time.sleep(0.1)
        return "b"

    model.call_many([("chatty", {}), ("quick", {}), ("quick", {})])
    model.say("ok")
    with Client(base_url=model.base_url, style=model.style, model="test", queue_size=1) as client:
        stream = client.stream("Go", [chatty, quick])
        slept = False
        for event in stream:
            if not slept and event.type == "tool_output":
                slept = True
                time.sleep(1)
    assert [call.output for call in stream.result().tool_calls] == ["a", "b", "b"]


def test_exe_04_the_process_can_exit(model: ModelServer) -> None:
    """A tool that sleeps on does not hold the program."""
    model.call("sleep")
    model.say("ok")
    code = f"""
import time
from toolnexus import Client, tool
@tool(timeout=0.2)
def sleep() -> None:
    time.sleep(60)
with Client(base_url={model.base_url!r}, style={model.style!r}, model="test") as client:
    print(client.run("Go", [sleep]).tool_calls[0].output)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)
    assert (done.stdout, done.stderr) == ("sleep: timed out after 0.2 s\n", "")


def test_exe_05_exe_06_one_failing_call_costs_only_itself(model: ModelServer, go: Go) -> None:
    """Three results, the second an error with a text and its id; order and ids match."""

    @tool
    def fail() -> None:
        """Fail without a word."""
        raise KeyError

    model.play(many(("echo", {"text": "a"}), ("fail", {}), ("echo", {"text": "c"})))
    model.say("ok")
    result = go([echo, fail])
    assert [(c.id, c.output, c.is_error) for c in result.tool_calls] == [
        ("c-0", "a", False),
        ("c-1", "KeyError", True),
        ("c-2", "c", False),
    ]
    sent = results(model.requests[-1])
    assert [call_id for call_id, _, _ in sent] == ["c-0", "c-1", "c-2"]
    assert texts(model.requests[-1]) == ["a", "KeyError", "c"]
    if model.style == "anthropic":
        assert [error for _, _, error in sent] == [False, True, False]


def test_exe_07_an_unknown_tool_is_told_which_there_are(model: ModelServer, go: Go) -> None:
    """Each time it is called, until the turns are used up."""
    for i in range(3):
        model.call("nope", {"x": 1}, id=f"c-{i}")
    result = go([echo], max_turns=3)
    assert (result.status, result.limit, result.turns) == ("incomplete", "max_turns", 3)
    assert {c.output for c in result.tool_calls} == {"Unknown tool: nope. Available tools: echo"}
    assert all(c.is_error for c in result.tool_calls)
    assert [call_id for call_id, _, _ in results(model.requests[-1])] == ["c-0", "c-1"]


def test_exe_07_the_run_goes_on(model: ModelServer, go: Go) -> None:
    """The siblings of an unknown tool run, and the model may do better."""
    model.call_many([("nope", {}), ("echo", {"text": "x"})])
    model.say("sorry")
    result = go([echo])
    assert result.text == "sorry"
    assert [(c.name, c.is_error) for c in result.tool_calls] == [("nope", True), ("echo", False)]


def test_exe_08_results_have_the_order_of_the_calls(model: ModelServer, go: Go) -> None:
    """However they end: the second is refused at once, the first takes its time."""

    @tool
    def slow() -> str:
        """Be slow."""
        time.sleep(0.3)
        return "slow"

    def judge(view: dict[str, Any]) -> str | None:
        return "not today" if view["name"] == "echo" else None

    model.play(many(("slow", {}), ("echo", {"text": "x"}), ("slow", {})))
    model.say("ok")
    result = go([slow, echo], hooks={"before_tool": judge})
    assert [c.name for c in result.tool_calls] == ["slow", "echo", "slow"]
    assert [call_id for call_id, _, _ in results(model.requests[-1])] == ["c-0", "c-1", "c-2"]
    assert "not today" in texts(model.requests[-1])[1]


def test_exe_08_events_may_come_as_calls_end(model: ModelServer) -> None:
    """The refused call is reported before the slow one has ended."""
    refused = threading.Event()

    @tool
    def slow() -> str:
        """Wait for the other."""
        return str(refused.wait(10))

    model.play(many(("slow", {}), ("nope", {})))
    model.say("ok")
    with Client(base_url=model.base_url, style=model.style, model="test") as client:
        ended = []
        for event in (stream := client.stream("Go", [slow])):
            if isinstance(event, ToolFinished):
                ended.append(event.name)
                refused.set()
    assert ended == ["nope", "slow"]
    assert stream.result().tool_calls[0].output == "True"


def test_exe_09_calls_that_run_alone_all_run(model: ModelServer, go: Go) -> None:
    """One after another, in order, with the results matched by id, also among others."""
    running: list[str] = []
    seen: list[list[str]] = []

    def work(args: dict[str, Any], ctx: Any) -> str:
        running.append(args["n"])
        time.sleep(0.02)
        seen.append(list(running))
        running.remove(args["n"])
        return f"did {args['n']}"

    alone = Tool("alone", "", {"properties": {"n": {"type": "string"}}}, work, parallel=False)
    three = [("alone", {"n": str(n)}) for n in range(3)]
    model.play(many(*three, ("echo", {"text": "x"}), ("alone", {"n": "3"})))
    model.say("ok")
    result = go([alone, echo])
    assert seen == [["0"], ["1"], ["2"], ["3"]]
    assert [c.output for c in result.tool_calls] == ["did 0", "did 1", "did 2", "x", "did 3"]
    assert texts(model.requests[-1]) == ["did 0", "did 1", "did 2", "x", "did 3"]
    assert [call_id for call_id, _, _ in results(model.requests[-1])] == [f"c-{i}" for i in range(5)]


def test_exe_10_what_a_tool_raises_goes_to_the_model(model: ModelServer, go: Go) -> None:
    """Whatever it is: also what would end a program."""

    @tool
    def leave() -> None:
        """Leave."""
        raise SystemExit("bye")

    @tool
    def fail() -> None:
        """Fail."""
        raise ValueError("no such hat")

    model.call_many([("leave", {}), ("fail", {})])
    model.say("ok")
    result = go([leave, fail])
    assert result.text == "ok"
    assert texts(model.requests[-1]) == ["SystemExit: bye", "ValueError: no such hat"]


def test_exe_10_a_guard_that_raises_lets_nothing_through(model: ModelServer, go: Go) -> None:
    """The call does not run, and the error says which hook it was."""
    ran: list[str] = []

    @tool
    def delete() -> None:
        """Delete everything."""
        ran.append("delete")

    def guard(view: dict[str, Any]) -> None:
        raise RuntimeError("the guard is ill")

    model.call("delete")
    model.say("deleted")
    with pytest.raises(HookError, match=r"before_tool.*the guard is ill"):
        go([delete], hooks={"before_tool": guard})
    assert ran == []
    assert len(model.requests) == 1


@pytest.mark.parametrize("answer", [{"deny": "no"}, {"results": "no"}, {"allow": False}, 5])
def test_exe_10_a_guard_that_is_not_understood_lets_nothing_through(
    model: ModelServer, go: Go, answer: Any
) -> None:
    """What it meant to say may well have been no."""
    ran: list[str] = []

    @tool
    def delete() -> None:
        """Delete everything."""
        ran.append("delete")

    model.call("delete")
    with pytest.raises(HookError, match="before_tool"):
        go([delete], hooks={"before_tool": lambda view: answer})
    assert ran == []


def test_exe_10_a_guard_may_return_what_it_was_given(model: ModelServer, go: Go) -> None:
    """With arguments of its own, or as it is."""
    model.call("echo", {"text": "x"})
    model.say("ok")
    result = go([echo], hooks={"before_tool": lambda view: {**view, "args": {"text": "y"}}})
    assert result.tool_calls[0].output == "y"


def test_exe_10_a_guard_that_raises_is_reported_in_the_stream(model: ModelServer) -> None:
    """Iterating does not raise; the last item is the error, and no call was announced as run."""

    def guard(view: dict[str, Any]) -> None:
        raise RuntimeError("the guard is ill")

    model.call("echo", {"text": "x"})
    hooks = {"before_tool": guard}
    with Client(base_url=model.base_url, style=model.style, model="test", hooks=hooks) as client:
        events = list(client.stream("Go", [echo]))
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, HookError)
    assert not [event for event in events if isinstance(event, (ToolCall, ToolFinished))]


def test_exe_11_a_model_that_always_calls_is_stopped(model: ModelServer, go: Go) -> None:
    """There is a limit without being asked for, and the result says that it was reached."""
    model.on_request(lambda request: tool_call("echo", {"text": "x"}))
    result = go([echo])
    assert (result.status, result.limit) == ("incomplete", "max_turns")
    assert 0 < result.turns == len(model.requests) <= 100
    assert len(result.tool_calls) == result.turns


def many(*calls: tuple[str, dict[str, Any]]) -> Any:
    """Return an answer with these calls, with the ids c-0, c-1 and so on."""
    return tool_calls([Call(name, args, id=f"c-{i}") for i, (name, args) in enumerate(calls)])
