"""Durable runs: killed at any step, the same call goes on, and what has finished is not done again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.durable_job import CALLS
from toolnexus import (
    Answer,
    APIError,
    Client,
    ConfigurationError,
    Context,
    HookError,
    Image,
    MemoryStore,
    Request,
    SqliteStore,
    StoreConflictError,
    StoreError,
    Tool,
    ToolResult,
)
from toolnexus.testing import Call, ModelServer, reply, tool_call

POINTS = [
    f"{point}-{n}"
    for n in range(1, CALLS + 1)
    for point in ("before-model", "after-model", "before", "in", "after")
] + [f"before-model-{CALLS + 1}", f"after-model-{CALLS + 1}"]

#: One step in the middle, at every point of it, for the quick part.
QUICK = ["before-model-1", "after-model-4", "before-4", "in-4", "after-4", f"after-model-{CALLS + 1}"]


STYLES = ["openai", "anthropic", "responses", "gemini"]

#: Where a process is killed in which style; the quick part has two points for the latter two styles.
KILLS = [(style, crash) for style in STYLES for crash in (QUICK if style in STYLES[:2] else QUICK[1:4:2])]


@pytest.fixture(params=STYLES)
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        server.on_request(lambda r: step_answer(str(r.json)))
        yield server


def step_answer(body: str) -> Any:
    """Ask for the next step until all are done; the history says how many were."""
    done = body.count("'result ") + body.count("interrupted, and it is not known")
    if done >= CALLS:
        return reply("all done")
    return tool_call("step", {"n": done + 1}, id=f"call{done + 1:05d}")


def live(server: ModelServer, folder: Path, crash: str, policy: str) -> tuple[int, str]:
    """Run the job once; return its exit code and what it printed."""
    command = [sys.executable, "-m", "tests.support.durable_job", server.base_url, server.style, str(folder)]
    done = subprocess.run(
        [*command, crash, policy], capture_output=True, text=True, timeout=120, check=False,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, done.stdout.strip()


def check(server: ModelServer, folder: Path, crash: str) -> None:
    """Kill the job at a point, run it again, and count."""
    assert live(server, folder, crash, "retry")[0] == -9
    code, printed = live(server, folder, crash, "retry")
    assert (code, printed) == (0, f"done all done {CALLS}")
    log = Counter((folder / "log").read_text().split("\n"))
    for n in range(1, CALLS + 1):
        twice = crash in (f"in-{n}", f"after-{n}")  # it took effect, and nobody knew
        assert log[f"did {n}"] == (2 if twice else 1), (crash, n)
    messages = SqliteStore(folder / "store.db").get("nightly") or []
    assert [m["role"] for m in messages] == ["user", *["assistant", "tool"] * CALLS, "assistant"]


@pytest.mark.parametrize(("server", "crash"), KILLS, indirect=["server"])
def test_a_killed_run_goes_on_where_it_was(server: ModelServer, tmp_path: Path, crash: str) -> None:
    """Kill -9 at a point of a ten-tool run: the same call finishes it, every tool counted."""
    check(server, tmp_path, crash)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "crash"),
    [(style, crash) for style in STYLES for crash in POINTS if (style, crash) not in KILLS],
    indirect=["server"],
)
def test_a_run_killed_at_every_step_goes_on(server: ModelServer, tmp_path: Path, crash: str) -> None:
    """The same at every step."""
    check(server, tmp_path, crash)


def test_an_answer_that_was_kept_is_not_asked_for_again(server: ModelServer, tmp_path: Path) -> None:
    """After a crash behind a model call that was written down, the model is asked once a turn in all."""
    live(server, tmp_path, "before-4", "retry")
    live(server, tmp_path, "before-4", "retry")
    assert len(server.requests) == CALLS + 1


def test_an_interrupted_call_can_fail_or_ask(server: ModelServer, tmp_path: Path) -> None:
    """on_interrupted: "fail" tells the model; "ask", the default, ends as pending and asks a person."""
    (tmp_path / "fail").mkdir()
    live(server, tmp_path / "fail", "in-3", "fail")
    code, printed = live(server, tmp_path / "fail", "in-3", "fail")
    assert (code, printed) == (0, f"done all done {CALLS}")
    assert (tmp_path / "fail" / "log").read_text().count("did 3\n") == 1
    (tmp_path / "ask").mkdir()
    live(server, tmp_path / "ask", "in-3", "ask")
    code, printed = live(server, tmp_path / "ask", "in-3", "ask")
    assert printed.startswith("pending")
    assert (tmp_path / "ask" / "log").read_text().count("did 3\n") == 1
    ran: list[int] = []
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    def step(args: dict[str, Any], ctx: Context) -> str:
        ran.append(args["n"])
        return f"result {args['n']}"

    tool = Tool("step", "", schema, step)
    store = SqliteStore(tmp_path / "ask" / "store.db")
    options = {
        "base_url": server.base_url,
        "style": server.style,
        "model": "m",
        "api_key": "k",
        "max_turns": 20,
    }
    with store, Client(**options, store=store) as client:
        waiting = store.get("nightly") or []
        request_id = waiting[-1]["toolnexus"]["pending"][0]["request"]["id"]
        result = client.resume("nightly", Answer(request_id), [tool], durable=True)
    assert (result.status, result.text) == ("done", "all done")
    assert ran == list(range(3, CALLS + 1))


def fail_once(server: ModelServer, store: Any, tools: list[Tool], **options: Any) -> None:
    """A durable run that fails at its second model call, as a crash does but without a process."""
    server.on_request(None)
    server.call("step", {"n": 1}, id="c1")
    server.fail(status=400, message="crash")
    with make(server, store) as client, pytest.raises(APIError):
        client.run("go", tools, id="d", durable=True, **options)


def make(server: ModelServer, store: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="m", api_key="k", store=store)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_failed_run_goes_on_too(server: ModelServer, tmp_path: Path, kind: str) -> None:
    """A provider that was down is no reason to do the work again; results keep their images."""
    ran: list[Any] = []

    def step(args: dict[str, Any], ctx: Context) -> ToolResult:
        ran.append(args)
        return ToolResult("seen", content=(Image(b"\x89PNG\r\n\x1a\n"),), metadata={"when": object()})

    tools = [Tool("step", execute=step)]
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db")
    fail_once(server, store, tools)
    assert store.get("d") is None
    server.say("ok")
    with make(server, store) as client:
        result = client.stream("go", tools, id="d", durable=True).result()
    assert (result.text, len(ran), result.turns) == ("ok", 1, 2)
    assert "iVBORw0KGgo" in str(server.requests[-1].json)  # the image, in base64
    assert store.read_journal("d") == []
    store.close()


def test_a_durable_run_is_refused_where_it_cannot_be(server: ModelServer) -> None:
    """Without an id, on a store without a journal, or as another call than the one interrupted."""

    class TwoMethods:
        def get(self, id: str) -> Any:  # noqa: A002
            return None

        def save(self, id: str, messages: Any) -> None:  # noqa: A002
            return None

    with make(server, MemoryStore()) as client, pytest.raises(ConfigurationError, match="id"):
        client.run("go", durable=True)
    with make(server, TwoMethods()) as client, pytest.raises(ConfigurationError, match="journal"):
        client.run("go", id="d", durable=True)
    store = MemoryStore()
    tools = [Tool("step", execute=lambda a, c: "x")]
    fail_once(server, store, tools)
    with make(server, store) as client:
        with pytest.raises(ConfigurationError, match="clear_journal"):
            client.run("something else", tools, id="d", durable=True)
        store.save("d", [{"role": "user", "content": "somebody else"}])
        with pytest.raises(StoreConflictError):
            client.run("go", tools, id="d", durable=True)
        store.clear_journal("d")
        server.say("ok")
        assert client.run("something else", tools, id="d", durable=True).text == "ok"


class DyingStore(MemoryStore):
    """Fails the first time that a journal is told of something, as a process that dies there does."""

    def __init__(self, at: str, number: int = 1) -> None:
        super().__init__()
        self.left = number
        self.at = at

    def append_journal(self, id: str, entry: dict[str, Any]) -> None:  # noqa: A002
        self.left -= entry["type"] == self.at
        if self.left == 0:
            self.left = -1
            raise OSError("dead")
        super().append_journal(id, entry)


class Life:
    """Lives of one durable run: the same call, again and again."""

    def __init__(self, server: ModelServer, store: Any, *tools: Tool, **options: Any) -> None:
        server.on_request(None)
        self.server, self.tools = server, list(tools)
        self.client = Client(
            base_url=server.base_url, style=server.style, model="m", api_key="k", store=store, **options
        )

    def go(self, how: str) -> Any:
        if how == "run":
            return self.client.run("go", self.tools, id="d", durable=True)
        return self.client.stream("go", self.tools, id="d", durable=True).result()

    def dies(self, how: str) -> None:
        with pytest.raises(StoreError, match="cannot write the journal of 'd': OSError: dead"):
            self.go(how)


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize("policy", ["retry", "ask", "fail"])
def test_an_edited_call_is_interrupted_with_the_edited_arguments(
    server: ModelServer, how: str, policy: str
) -> None:
    """What a person has changed is what runs again, or what is asked about: never what the model wanted."""
    ran: list[Any] = []
    asked: list[Request] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request)
        if request.kind == "interrupted":
            return Answer.approve(request)
        return Answer.edit(request, {"path": "safe"})

    tool = Tool(
        "delete",
        execute=lambda args, ctx: ran.append(args["path"]) or "gone",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
        approval=True,
        on_interrupted=policy,
    )
    life = Life(server, DyingStore("result"), tool, wait_for=wait_for)
    server.call("delete", {"path": "everything"}, id="c1")
    life.dies(how)
    assert ran == ["safe"]
    server.say("ok")
    result = life.go(how)
    assert result.status == "done"
    assert result.tool_calls[0].args == {"path": "safe"}
    assert ran == (["safe"] if policy == "fail" else ["safe", "safe"])
    assert [request.kind for request in asked] == ["approval", *["interrupted"] * (policy == "ask")]
    assert asked[-1].data["args"] == {"path": "safe" if policy == "ask" else "everything"}
    assert len(server.requests) == 2


@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_crash_while_a_person_is_asked_only_asks_again(server: ModelServer, how: str) -> None:
    """The tool has left to ask: nothing is in flight, and the question is the same one."""
    asked: list[str] = []

    def wait_for(request: Request) -> Answer:
        asked.append(f"{request.kind}: {request.prompt}")
        if len(asked) == 1:
            raise OSError("the machine is gone")
        return Answer(request.id, data="blue")

    tool = Tool("paint", execute=lambda args, ctx: f"it is {ctx.ask('Which colour?')}")
    life = Life(server, MemoryStore(), tool, wait_for=wait_for)
    server.call("paint", {}, id="c1")
    with pytest.raises(HookError, match="machine is gone"):
        life.go(how)
    server.say("ok")
    result = life.go(how)
    assert result.tool_calls[0].output == "it is blue"
    assert asked == ["question: Which colour?"] * 2
    assert len(server.requests) == 2


@pytest.mark.parametrize("policy", ["retry", "ask", "fail"])
@pytest.mark.parametrize("how", ["resume", "resume_stream"])
def test_a_resume_that_was_interrupted_follows_the_policy_too(
    server: ModelServer, how: str, policy: str
) -> None:
    """An approved call that was in flight is not simply run a second time, though the answer is the same."""
    ran: list[Any] = []
    tool = Tool(
        "delete",
        execute=lambda args, ctx: ran.append(args) or "gone",
        approval=True,
        on_interrupted=policy,
    )
    life = Life(server, DyingStore("result"), tool)
    server.call("delete", {}, id="c1")
    [request] = life.go("run").pending

    def resume(answer: Answer) -> Any:
        done = getattr(life.client, how)("d", answer, [tool], durable=True)
        return done if how == "resume" else done.result()

    with pytest.raises(StoreError, match="dead"):
        resume(Answer.approve(request))
    server.say("ok")
    result = resume(Answer.approve(request))
    if policy == "ask":
        assert (result.status, len(ran)) == ("pending", 1)
        [again] = result.pending
        assert again.kind == "interrupted"
        result = resume(Answer.respond(again, "it was gone already"))
    assert result.status == "done"
    assert len(ran) == {"retry": 2, "ask": 1, "fail": 1}[policy]
    [output] = [m["content"] for m in result.messages if m["role"] == "tool"]
    assert {"retry": "gone", "ask": "it was gone already", "fail": "not known"}[policy] in output


def test_a_tool_that_went_away_or_came_between_two_lives(server: ModelServer) -> None:
    """What has finished needs no tool; what was in flight is an unknown one; a new one can be called."""
    ran: list[str] = []

    def tool(name: str) -> Tool:
        return Tool(name, execute=lambda args, ctx: ran.append(name) or f"{name} ran", idempotent=True)

    life = Life(server, DyingStore("result", 2), tool("one"), tool("two"), tool_concurrency=1)
    server.call_many([Call("one", {}, "c1"), Call("two", {}, "c2")])
    life.dies("run")
    assert ran == ["one", "two"]
    life.tools = [tool("three")]
    server.call("three", {}, id="c3")
    server.say("ok")
    result = life.go("stream")
    assert ran == ["one", "two", "three"]
    outputs = [call.output for call in result.tool_calls]
    assert outputs[0::2] == ["one ran", "three ran"]
    assert outputs[1].startswith("Unknown tool: two.")


@pytest.mark.parametrize("at", ["start", "reply", "call", "result"])
@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_journal_that_cannot_be_written_is_an_error_of_the_store(
    server: ModelServer, at: str, how: str
) -> None:
    """Nothing goes on that is not written down; the next life does."""
    ran: list[Any] = []
    tool = Tool("step", execute=lambda args, ctx: ran.append(args) or "x", idempotent=True)
    life = Life(server, DyingStore(at), tool)
    if at != "start":
        server.call("step", {}, id="c1")
    life.dies(how)
    assert len(ran) == (1 if at == "result" else 0)
    if at in ("start", "reply"):
        server.call("step", {}, id="c1")
    server.say("ok")
    assert life.go(how).text == "ok"
    assert len(ran) == (2 if at == "result" else 1)


def test_results_with_odd_metadata_are_written_down(server: ModelServer) -> None:
    """Metadata may hold anything, itself included; a file that cannot be read is told as ever."""
    loop: dict[str, Any] = {"nan": float("nan")}
    loop["self"] = loop
    missing = Image("/nowhere/at/all.png")
    tool = Tool("step", execute=lambda args, ctx: ToolResult("x", content=(missing,), metadata=loop))
    life = Life(server, DyingStore("reply", 2), tool)
    server.call("step", {}, id="c1")
    server.say("lost")
    life.dies("run")
    server.say("ok")
    assert life.go("run").text == "ok"
    assert "all.png" in str(server.requests[-1].json)
