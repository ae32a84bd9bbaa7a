"""Flows that wait for a person or were interrupted, and go on. Names follow the F checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support import flow_job
from toolnexus import (
    Answer,
    Client,
    ConfigurationError,
    ConversationBusyError,
    Custom,
    Done,
    Error,
    Flow,
    InvalidAnswerError,
    MemoryStore,
    SqliteStore,
    StoreConflictError,
    StoreError,
    Task,
    tool,
)
from toolnexus.compose import FlowContext, NodeError
from toolnexus.testing import ModelServer

State = dict[str, Any]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A scripted model server."""
    with ModelServer(style="openai") as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    """A client of that server."""
    with Client(base_url=server.base_url, style="openai", model="test", retries=0) as client:
        yield client


def asking(store: Any = None) -> tuple[Flow, list[str]]:
    """Make a flow that asks twice in its second node, and a list of what ran."""
    ran: list[str] = []
    flow = Flow("asking", store=store)

    @flow.node
    def before(state: State) -> State:
        ran.append("before")
        return {"before": True}

    @flow.node
    def ask(state: State, ctx: FlowContext) -> State:
        ran.append("ask")
        count = ctx.interrupt("How many?", response_schema={"type": "integer"})
        sure = ctx.interrupt({"count": count}, prompt="Sure?")
        return {"count": count, "sure": sure}

    flow.edge(before, ask)
    return flow, ran


# -- asking -------------------------------------------------------------------------------------


def test_f97_answers_are_replayed_in_order() -> None:
    """A node that asks twice is called again from its top, and the first answer is given again."""
    flow, ran = asking()
    result = flow.run({}, id="x")
    assert (result.status, result.id, result.steps) == ("pending", "x", 1)
    request = result.pending[0]
    assert (request.prompt, request.data, request.tool_name) == ("How many?", "How many?", "ask")
    result = flow.resume("x", Answer(request.id, data=3))
    assert result.status == "pending"
    assert (result.pending[0].prompt, result.pending[0].data) == ("Sure?", {"count": 3})
    result = flow.resume("x", {result.pending[0].id: True})
    assert (result.status, result.state) == ("done", {"before": True, "count": 3, "sure": True})
    assert ran == ["before", "ask", "ask", "ask"]


def test_f95_none_is_an_answer() -> None:
    """A node that is answered with None gets None."""
    flow = Flow("f")
    flow.node(name="a")(lambda state, ctx: {"got": ctx.interrupt("?")})
    assert flow.run({}, id="x").status == "pending"
    assert flow.resume("x", None).state == {"got": None}


def test_f96_without_a_store_the_result_carries_the_checkpoint() -> None:
    """A run without an id can go on, too: its checkpoint is plain JSON in the caller's hands."""
    flow, _ = asking()
    result = flow.run({})
    kept = json.loads(json.dumps(result.checkpoint))
    result = flow.resume(None, 3, checkpoint=kept)
    result = flow.resume(None, "yes", checkpoint=result.checkpoint)
    assert result.state["sure"] == "yes"
    assert result.checkpoint is None
    with pytest.raises(ConfigurationError, match="nothing to resume"):
        flow.resume(None, 3)
    with pytest.raises(StoreError, match="no checkpoint"):
        flow.resume(None, 3, checkpoint={"format": 7})
    other = Flow("other")
    other.node(name="a")(lambda state: None)
    with pytest.raises(ConfigurationError, match="belongs to the flow 'asking'"):
        other.resume(None, 3, checkpoint=kept)


@pytest.mark.parametrize("bad", ["three", Answer("pnd-other", data=3), [], 3.5])
def test_f94_an_answer_that_does_not_fit_changes_nothing(bad: Any) -> None:
    """A wrong answer is an error from the call itself, and the right one still counts."""
    flow, ran = asking()
    flow.run({}, id="x")
    ran.clear()
    with pytest.raises(InvalidAnswerError):
        flow.resume("x", bad)
    with pytest.raises(InvalidAnswerError):
        flow.resume_stream("x", bad)
    assert not ran
    assert flow.resume("x", 3).pending[0].prompt == "Sure?"


def test_an_answer_may_be_a_dict_and_a_no() -> None:
    """Answers come as JSON, and a node can see whether it was a no and why."""
    flow = Flow("f")

    @flow.node
    def ask(state: State, ctx: FlowContext) -> State:
        got = ctx.interrupt("May I?")
        assert ctx.answer is not None
        return {"got": got, "ok": ctx.answer.ok, "why": ctx.answer.reason}

    request = flow.run({}, id="x").pending[0]
    answer = Answer(request.id, ok=False, reason="no").to_dict()
    assert flow.resume("x", json.loads(json.dumps(answer))).state == {"got": None, "ok": False, "why": "no"}


@attrs.frozen
class Form:
    """What a person fills in."""

    city: str
    nights: int


def test_f94_the_schema_may_be_a_type() -> None:
    """A class with a schema says what the answer must look like, and a wrong one says where."""
    flow = Flow("f")
    flow.node(name="a")(lambda state, ctx: {"got": ctx.interrupt("Where?", response_schema=Form)})
    flow.run({}, id="x")
    with pytest.raises(InvalidAnswerError, match="nights"):
        flow.resume("x", {"city": "Rome", "nights": "many"})
    assert flow.resume("x", {"city": "Rome", "nights": 2}).state == {"got": {"city": "Rome", "nights": 2}}


def test_f91_events_of_a_flow_that_waits() -> None:
    """A question gives a Pending and a Task "interrupt", and the stream ends with Done, pending."""
    flow, _ = asking()
    events = list(flow.stream({}, channels=["tasks", "lifecycle"]))
    assert [e.type for e in events].count("pending") == 1
    assert [e.kind for e in events if isinstance(e, Task)] == ["start", "finish", "start", "interrupt"]
    assert [e.status for e in events if e.type == "lifecycle"] == ["started", "interrupted"]  # type: ignore[attr-defined]
    assert isinstance(events[-1], Done)
    assert events[-1].result.status == "pending"


@pytest.mark.parametrize("answers", ["now", "wait"])
def test_a_stream_is_answered_at_once(answers: str) -> None:
    """Whoever reads can answer, and the flow goes on in the same stream."""
    flow, ran = asking()
    stream = flow.stream({}, answers=answers)
    for event in stream:
        if event.type == "pending":
            stream.answer(event.request, data=5)  # type: ignore[attr-defined]
    assert stream.result().state == {"before": True, "count": 5, "sure": 5}
    assert ran == ["before", "ask", "ask", "ask"]


def test_resume_is_a_stream_too() -> None:
    """A flow goes on as a stream, and only what was not done is done."""
    flow, ran = asking()
    flow.run({}, id="x")
    ran.clear()
    stream = flow.resume_stream("x", 3, channels=["tasks"])
    assert stream.result().pending[0].prompt == "Sure?"
    assert ran == ["ask"]


def test_except_exception_does_not_catch_a_question() -> None:
    """A node's own except lets a question pass, and no retry or handler takes it for a failure."""
    flow = Flow("f")

    @flow.node(retry=3, on_error=lambda state, error: {"wrong": True})
    def ask(state: State, ctx: FlowContext) -> State:
        try:
            return {"got": ctx.interrupt("?")}
        except Exception:
            return {"got": "swallowed"}

    assert flow.run({}, id="x").status == "pending"
    assert flow.resume("x", 1).state == {"got": 1}


def test_a_question_in_a_nested_flow() -> None:
    """A flow two deep asks, and goes on where it stood, also in another Flow object with the same store."""
    store = MemoryStore()

    def make() -> tuple[Flow, list[str]]:
        inner, ran = asking()
        outer = Flow("outer", store=store)
        outer.nest("in", inner)
        return outer, ran

    flow, ran = make()
    result = flow.run({}, id="x")
    assert (result.status, result.steps) == ("pending", 0)
    flow, ran = make()
    flow.resume("x", 3)
    result = flow.resume("x", True)
    assert result.state == {"before": True, "count": 3, "sure": True}
    assert ran == ["ask", "ask"]


def test_questions_side_by_side() -> None:
    """Nodes of a parallel step may ask at once; each answer finds its node, what is done stays done."""
    ran: list[str] = []
    flow = Flow("f")
    for name in ("a", "b", "c"):

        def node(state: State, ctx: FlowContext, name: str = name) -> State:
            ran.append(name)
            return {name: ctx.interrupt(f"{name}?") if name != "c" else "free"}

        flow.node(name=name)(lambda state, ctx, node=node: node(state, ctx))
    flow.parallel("a", "b", "c")
    result = flow.run({}, id="x")
    asked = {request.tool_name: request.id for request in result.pending}
    assert sorted(asked) == ["a", "b"]
    with pytest.raises(InvalidAnswerError, match="2 requests wait"):
        flow.resume("x", "scalar")
    result = flow.resume("x", {asked["a"]: 1})
    assert [request.tool_name for request in result.pending] == ["b"]
    result = flow.resume("x", {asked["b"]: 2})
    assert result.state == {"a": 1, "b": 2, "c": "free"}
    assert sorted(ran) == ["a", "a", "b", "b", "c"]


# -- approvals of agents ------------------------------------------------------------------------


@tool(approval=True)
def delete(path: str) -> str:
    """Delete."""
    return f"{path} is gone"


def cleaning(client: Client, store: Any = None) -> Flow:
    """Make a flow whose agent needs an approval."""
    flow = Flow("cleaning", store=store)
    flow.agent("clean", client, "Tidy up.", tools=[delete])
    return flow


def test_an_approval_in_an_agent_makes_the_flow_wait(server: ModelServer, client: Client) -> None:
    """The agent's transcript is kept with the flow; the model is not asked again for what it said."""
    server.call("delete", {"path": "a"})
    result = cleaning(client, store := MemoryStore()).run({}, id="x")
    assert result.status == "pending"
    assert result.pending[0].kind == "approval"
    assert json.loads(json.dumps(result.checkpoint))
    server.say("Done.")
    result = cleaning(client, store).resume("x", Answer.approve(result.pending[0]))
    assert result.state == {"clean": "Done."}
    assert len(server.requests) == 2
    assert b"a is gone" in server.requests[1].raw_body


def test_an_approval_is_answered_in_the_stream(server: ModelServer, client: Client) -> None:
    """Whoever reads the flow's stream approves, and the agent goes on."""
    server.call("delete", {"path": "a"})
    server.say("Done.")
    stream = cleaning(client).stream({})
    for event in stream:
        if event.type == "pending":
            assert event.namespace == ("clean",)
            stream.answer(event.request, True)  # type: ignore[attr-defined]
    assert stream.result().state == {"clean": "Done."}


def test_one_of_two_approvals(server: ModelServer, client: Client) -> None:
    """What is answered is done; the rest is asked for again."""
    server.call_many([("delete", {"path": "a"}), ("delete", {"path": "b"})])
    flow = cleaning(client)
    result = flow.run({}, id="x")
    first, second = result.pending
    result = flow.resume("x", Answer.approve(first))
    assert [request.id for request in result.pending] == [second.id]
    server.say("Done.")
    result = flow.resume("x", Answer.reject(second, "keep it"))
    assert result.state == {"clean": "Done."}
    assert b"keep it" in server.requests[-1].raw_body


def test_f93_a_wrong_edit_changes_nothing(server: ModelServer, client: Client) -> None:
    """Edited arguments that do not fit are refused, and the approval still waits."""
    server.call("delete", {"path": "a"})
    flow = cleaning(client)
    request = flow.run({}, id="x").pending[0]
    with pytest.raises(InvalidAnswerError):
        flow.resume("x", Answer.edit(request, {"path": 5}))
    server.say("Done.")
    assert flow.resume("x", Answer.edit(request, {"path": "b"})).state == {"clean": "Done."}
    assert b"b is gone" in server.requests[-1].raw_body


# -- saved runs ---------------------------------------------------------------------------------


def test_a_saved_run_can_be_looked_at() -> None:
    """load() tells where a run stands, in whatever state."""
    flow, _ = asking()
    assert flow.load("x") is None
    flow.run({}, id="x")
    waiting = flow.load("x")
    assert waiting is not None
    assert (waiting.status, waiting.steps, waiting.pending[0].prompt) == ("pending", 1, "How many?")
    flow.resume("x", 3)
    flow.resume("x", True)
    done = flow.load("x")
    assert done is not None
    assert (done.status, done.state["count"]) == ("done", 3)


def test_a_run_that_waits_is_not_begun_anew() -> None:
    """run() with the id of a run that waits is an error; after its end the id begins anew."""
    flow, ran = asking()
    flow.run({}, id="x")
    with pytest.raises(ConfigurationError, match="resume"):
        flow.run({}, id="x")
    flow.resume("x", 1)
    flow.resume("x", 1)
    with pytest.raises(ConfigurationError, match="nothing to resume"):
        flow.resume("x", 1)
    ran.clear()
    assert flow.run({}, id="x").status == "pending"
    assert ran == ["before", "ask"]


def test_a_failed_run_goes_on_at_the_node_that_failed() -> None:
    """After an error the same call, or one without a state, does not repeat what is done."""
    ran: list[str] = []
    broken = [True]
    flow = Flow("f")

    @flow.node
    def first(state: State) -> State:
        ran.append("first")
        return {"first": True}

    @flow.node
    def second(state: State) -> State:
        ran.append("second")
        if broken:
            raise OSError("disk full")
        return {"second": True}

    flow.edge(first, second)
    with pytest.raises(NodeError):
        flow.run({"n": 1}, id="x")
    found = flow.load("x")
    assert found is not None
    assert (found.status, found.state) == ("incomplete", {"n": 1, "first": True})
    with pytest.raises(ConfigurationError, match="another state"):
        flow.run({"n": 2}, id="x")
    with pytest.raises(NodeError):
        flow.run({"n": 1}, id="x")
    broken.clear()
    assert flow.run(id="x").state == {"n": 1, "first": True, "second": True}
    assert ran == ["first", "second", "second", "second"]


@pytest.mark.parametrize("die_at", ["one", "in_2", "in_3", "three"])
def test_a_killed_process_goes_on_where_it_was_saved_last(tmp_path: Path, die_at: str) -> None:
    """After a death in any node, of a nested flow too, only the node that had begun is done again."""
    store, log = tmp_path / "s.db", tmp_path / "log"
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.support.flow_job", str(store), str(log), die_at]
    dead = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=60, check=False
    )
    assert dead.returncode == 9
    with SqliteStore(str(store)) as opened:
        result = flow_job.make(opened, log).run({"n": 1}, id="job")
    assert result.status == "done"
    assert set(result.state) == {"n", "one", "in_1", "in_2", "in_3", "three"}
    order = ["one", "in_1", "in_2", "in_3", "three"]
    again = order.index(die_at)
    assert log.read_text().split() == [*order[: again + 1], *order[again:]]


def test_two_owners_of_one_run() -> None:
    """Who goes on with a run that another one has taken further gets a conflict, and overwrites nothing."""
    store = MemoryStore()
    inside, go_on = threading.Event(), threading.Event()

    def make(waits: bool) -> Flow:
        flow = Flow("f", store=store)

        @flow.node
        def node(state: State) -> State:
            if waits:
                inside.set()
                assert go_on.wait(10)
            return {"who": "slow" if waits else "quick"}

        return flow

    stream = make(True).stream({}, id="x")

    def overtake() -> None:
        inside.wait(10)
        make(False).run({}, id="x")
        go_on.set()

    threading.Thread(target=overtake).start()
    last = list(stream)[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, StoreConflictError)
    assert last.partial is not None
    found = make(False).load("x")
    assert found is not None
    assert found.state == {"who": "quick"}


def test_one_flow_runs_an_id_once_at_a_time() -> None:
    """A second run of the same id waits for the first; from inside of it, it is refused."""
    flow = Flow("f")
    order: list[str] = []

    @flow.node
    def node(state: State, ctx: FlowContext) -> None:
        order.append("in")
        if state.get("again"):
            with pytest.raises(ConversationBusyError):
                flow.run({}, id="x")
        time.sleep(0.05)
        order.append("out")

    flow.run({"again": True}, id="x")
    order.clear()
    threads = [threading.Thread(target=flow.run, args=({},), kwargs={"id": "y"}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["in", "out"] * 3


class Failing(MemoryStore):
    """A store whose disk is full after some saves."""

    left = 1

    def put_state(self, key: str, value: dict[str, Any], *, expected: int | None = None) -> int:
        """Save, or fail."""
        self.left -= 1
        if self.left < 0:
            raise OSError("no space left")
        return super().put_state(key, value, expected=expected)


def test_a_checkpoint_that_cannot_be_saved_ends_the_run() -> None:
    """A store that fails is no failure of a node: nothing retries or recovers it, and nothing is lost."""
    inner = Flow("inner")
    inner.node(name="a")(lambda state: {"a": 1})
    inner.node(name="b")(lambda state: {"b": 1})
    inner.edge("a", "b")
    flow = Flow("f", store=Failing())
    flow.nest("in", inner, retry=3, on_error=lambda state, error: {"wrong": True})
    with pytest.raises(StoreError, match="no space left") as caught:
        flow.run({}, id="x")
    assert caught.value.partial is not None


def test_what_finished_beside_a_failure_is_not_done_again() -> None:
    """A parallel step that failed keeps what its other nodes have done."""
    ran: list[str] = []
    broken = [True]
    done = threading.Event()
    flow = Flow("f")

    @flow.node
    def good(state: State) -> State:
        ran.append("good")
        done.set()
        return {"good": True}

    @flow.node
    def bad(state: State) -> State:
        ran.append("bad")
        assert done.wait(10)
        time.sleep(0.2)
        if broken:
            raise OSError("not now")
        return {"bad": True}

    flow.parallel(good, bad)
    with pytest.raises(NodeError):
        flow.run({}, id="x")
    broken.clear()
    assert flow.run({}, id="x").state == {"good": True, "bad": True}
    assert sorted(ran) == ["bad", "bad", "good"]


def test_usage_is_summed_over_the_pause(server: ModelServer, client: Client) -> None:
    """The tokens of a run that waited are those before and after."""
    server.call("delete", {"path": "a"})
    flow = cleaning(client)
    first = flow.run({}, id="x")
    server.say("Done.")
    second = flow.resume("x", Answer.approve(first.pending[0]))
    assert second.usage.total_tokens > first.usage.total_tokens > 0


def test_a_custom_event_comes_again_when_a_node_is_called_again() -> None:
    """A node that is called again does again what it did; it can look at its answers to know."""
    flow = Flow("f")

    @flow.node
    def ask(state: State, ctx: FlowContext) -> State:
        if not ctx.answers:
            ctx.emit("asking")
        return {"got": ctx.interrupt("?")}

    stream = flow.stream({})
    events = []
    for event in stream:
        events.append(event)
        if event.type == "pending":
            stream.answer(event.request, data=1)  # type: ignore[attr-defined]
    assert [e.payload for e in events if isinstance(e, Custom)] == ["asking"]
