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
    Image,
    MemoryStore,
    SqliteStore,
    StoreConflictError,
    Tool,
    ToolResult,
)
from toolnexus.testing import ModelServer, reply, tool_call

POINTS = [
    f"{point}-{n}"
    for n in range(1, CALLS + 1)
    for point in ("before-model", "after-model", "before", "in", "after")
] + [f"before-model-{CALLS + 1}", f"after-model-{CALLS + 1}"]

#: One step in the middle, at every point of it, for the quick part.
QUICK = ["before-model-1", "after-model-4", "before-4", "in-4", "after-4", f"after-model-{CALLS + 1}"]


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        server.on_request(lambda r: step_answer(r.json["messages"]))
        yield server


def step_answer(messages: list[dict[str, Any]]) -> Any:
    """Ask for the next step until all are done; the history says how many were."""
    done = str(messages).count("'result ") + str(messages).count("interrupted, and it is not known")
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


@pytest.mark.parametrize("crash", QUICK)
def test_a_killed_run_goes_on_where_it_was(server: ModelServer, tmp_path: Path, crash: str) -> None:
    """Kill -9 at a point of a ten-tool run: the same call finishes it, every tool counted."""
    check(server, tmp_path, crash)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [p for p in POINTS if p not in QUICK])
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
    assert "base64" in str(server.requests[-1].json["messages"])
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
