"""Agents inside tools and flows: where their events say that they come from, and what they do not disturb."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from toolnexus import (
    AttemptFailed,
    CancelScope,
    Client,
    ConfigurationError,
    Context,
    Custom,
    Done,
    Error,
    Event,
    Flow,
    Lifecycle,
    RunCancelledError,
    RunResult,
    RunTimeoutError,
    Stream,
    Text,
    Tool,
    ToolCall,
    ToolFinished,
    ToolnexusError,
    UsageReport,
)
from toolnexus.compose import (
    FlowContext,
    Screen,
    StepLimitError,
    event_from_dict,
    event_to_dict,
    final_answer,
    group_messages,
    redact,
    summarize_namespaces,
)
from toolnexus.compose.derived import DerivedStream
from toolnexus.events import Origin
from toolnexus.stream import TextSoFar
from toolnexus.testing import ModelServer
from toolnexus.transport.retry import RetryPolicy

EVERY = ["messages", "tools", "custom", "tasks", "lifecycle"]


@pytest.fixture
def servers() -> Iterator[tuple[ModelServer, ModelServer]]:
    """One server for the agent, and one for the agent that its tool runs."""
    with ModelServer(style="openai") as outer, ModelServer(style="openai") as inner:
        yield outer, inner


@pytest.fixture
def clients(servers: tuple[ModelServer, ModelServer]) -> Iterator[tuple[Client, Client]]:
    """A client for each."""
    with Client(servers[0].base_url, model="m") as outer, Client(servers[1].base_url, model="m") as inner:
        yield outer, inner


def research(client: Client, channels: list[str] | None = None) -> object:
    """Make a tool that asks an agent, and passes on all that it does."""

    def research(topic: str, ctx: Context) -> str:
        stream = client.stream(topic, scope=ctx.scope, channels=channels)
        for event in stream:
            ctx.emit(event)
        return stream.text

    return research


def scripted(servers: tuple[ModelServer, ModelServer]) -> None:
    servers[0].call("research", {"topic": "tea"}, id="call_7")
    servers[0].say(["It is ", "a leaf."])
    servers[1].say(["Tea: ", "a plant."])


def test_the_agent_of_a_tool_has_a_path_with_the_call(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """Its events have the tool and the call as their namespace, and belong to the run around it."""
    scripted(servers)
    stream = clients[0].stream("tea?", [research(clients[1], EVERY)], channels=EVERY)
    events = list(stream)
    inside = [e for e in events if e.namespace]
    assert {e.namespace for e in inside} == {("research:call_7",)}
    assert {e.run_id for e in events} == {stream.run_id}
    assert [e.delta for e in inside if isinstance(e, Text)] == ["Tea: ", "a plant."]
    ends = [(e.status, e.name, e.trigger_call_id) for e in inside if isinstance(e, Lifecycle)]
    assert ends == [("started", "agent", "call_7"), ("completed", "agent", "call_7")]
    assert sum(isinstance(e, UsageReport) for e in events) == 1
    assert sum(isinstance(e, Done) for e in events) == 1
    seqs = [e.seq for e in events[:-1]]
    assert seqs == sorted(set(seqs))
    [summary] = summarize_namespaces(events)
    assert (summary.name, summary.trigger, summary.status) == ("research", "call_7", "completed")


def test_the_agent_of_a_tool_is_no_part_of_the_answer(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """Text, deltas, the picture and the views of the outer run hold the outer run's text only."""
    tools = [research(clients[1])]
    scripted(servers)
    stream = clients[0].stream("tea?", tools, keep_events=True)
    screen = Screen()
    for event in stream:
        screen.take(event)
    assert stream.text == screen.text == final_answer(stream.events or ()) == "It is a leaf."
    assert "Tea: a plant." in screen.markdown()
    scripted(servers)
    assert list(clients[0].stream("tea?", tools).text_deltas()) == ["It is ", "a leaf."]
    scripted(servers)
    redacted = redact(clients[0].stream("tea?", tools))
    assert (redacted.result().text, redacted.text) == ("It is a leaf.", "It is a leaf.")
    scripted(servers)
    result = clients[0].run("tea?", tools, collect_events=True)
    again = [event_from_dict(event_to_dict(event)) for event in result.events]
    assert [e.namespace for e in again] == [e.namespace for e in result.events]
    assert again[:-1] == result.events[:-1]


def test_what_is_held_back_of_an_agent_inside_comes_with_the_end_of_its_call(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """A redacted value of the inner answer does not wait for the end of the outer one."""
    servers[0].call("research", {"topic": "tea"}, id="call_7")
    servers[0].say("Thanks.")
    servers[1].say(["Ask ada@exa", "mple.com"])
    events = list(redact(clients[0].stream("tea?", [research(clients[1])]), "email"))
    seen = [getattr(e, "delta", e.type) for e in events if e.type != "usage"]
    assert seen[:4] == ["tool_call", "Ask ", "[REDACTED_EMAIL]", "tool_result"]
    assert "ada@" not in repr(events)


def test_only_what_was_asked_for_passes(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """The channels of the outer stream hold for what is inside, too."""
    scripted(servers)
    events = list(clients[0].stream("tea?", [research(clients[1], EVERY)], channels=["tools"]))
    assert [type(e) for e in events] == [ToolCall, ToolFinished, UsageReport, Done]


def test_a_failed_agent_of_a_tool_is_no_error_of_the_run(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """Its end becomes a Lifecycle, and the stream has one terminal item."""
    servers[0].call("research", {"topic": "tea"}, id="call_7")
    servers[0].say("No idea.")
    servers[1].fail(401, message="bad key")
    events = list(clients[0].stream("tea?", [research(clients[1])], channels=EVERY))
    assert [type(e) for e in events if isinstance(e, (Done, Error))] == [Done]
    [end] = [e for e in events if isinstance(e, Lifecycle) and e.namespace]
    assert (end.status, end.name, end.trigger_call_id) == ("failed", "research", "call_7")
    assert "bad key" in (end.error or "")


def test_agents_of_a_flow_know_the_task_that_they_run_for(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """As a node, and as a stream whose events a node passes on; each end is told once."""
    servers[0].say("A")
    servers[1].say("B")
    flow = Flow("f")
    flow.agent("asked", clients[0], "a?")

    @flow.node
    def passing(state: dict[str, object], ctx: FlowContext) -> None:
        for event in clients[1].stream("b?", channels=EVERY):
            ctx.emit(event)

    flow.edge("asked", passing)
    events = list(flow.stream({}, channels=EVERY))
    tasks = {e.node: e.task_id for e in events if e.type == "task" and not e.namespace}  # type: ignore[attr-defined]
    for node in ("asked", "passing"):
        ends = [e for e in events if isinstance(e, Lifecycle) and e.namespace == (node,)]
        assert [e.status for e in ends] == ["started", "completed"]
        assert {e.trigger_call_id for e in ends} == {tasks[node]}
    assert sum(isinstance(e, UsageReport) for e in events) == 1
    with pytest.raises(ConfigurationError, match="colon"):
        flow.agent("a:b", clients[0], "?")


# -- collected flows -----------------------------------------------------------------------------


def progress(fails: bool = False) -> Flow:
    """Make a flow that reports progress, and may fail."""
    flow = Flow("progress")

    @flow.node
    def work(state: dict[str, object], ctx: FlowContext) -> dict[str, object]:
        ctx.emit("half")
        if fails:
            raise ValueError("boom")
        return {"n": 1}

    return flow


def plain(events: list[Event]) -> list[tuple[object, ...]]:
    return [(e.type, e.node, e.step, e.seq, e.namespace, bool(e.run_id), bool(e.timestamp)) for e in events]


def test_a_flow_can_be_collected() -> None:
    """`run(collect_events=True)` keeps what the stream would have yielded, with the same places."""
    channels = ["tasks", "updates", "custom", "lifecycle"]
    result = progress().run({}, collect_events=True, channels=channels)
    streamed = list(progress().stream({}, channels=channels))
    assert plain(result.events[:-1]) == plain(streamed[:-1])
    last = result.events[-1]
    assert isinstance(last, Done)
    assert last.result is result
    assert last.run_id == result.run_id
    assert [e.type for e in (progress().run({}, collect_events=True).events or ())] == [
        "custom",
        "usage",
        "done",
    ]
    assert progress().run({}).events is None


def test_a_failed_flow_has_its_events_on_the_error() -> None:
    """What was collected before the failure is kept, and so is the failure."""
    with pytest.raises(ToolnexusError) as caught:
        progress(fails=True).run({}, collect_events=True)
    events = caught.value.events
    assert [e.type for e in events] == ["custom", "error"]
    assert events[0] == Custom("half")
    assert events[1].seq > events[0].seq


def test_f98_a_suspended_flow_has_the_events_before_it() -> None:
    """A flow that waits has them on its result, and going on collects again."""
    flow = Flow("asking")

    @flow.node
    def ask(state: dict[str, object], ctx: FlowContext) -> dict[str, object]:
        ctx.emit("before")
        return {"name": ctx.interrupt("Who?")}

    result = flow.run({}, collect_events=True)
    assert [e.type for e in result.events] == ["custom", "pending", "usage", "done"]
    again = flow.resume(None, "Ada", checkpoint=result.checkpoint, collect_events=True)
    assert [e.type for e in again.events] == ["custom", "usage", "done"]
    with pytest.raises(ConfigurationError, match="collect_events"):
        flow.run({}, channels=["custom"])


def test_a_nested_flow_has_a_limit_of_its_own() -> None:
    """What the run of the outer flow, the flow or its node say holds for each alone."""

    def counting(to: int) -> Flow:
        flow = Flow("counting", max_steps=6)
        flow.node(name="add")(lambda state: {"n": state["n"] + 1})
        flow.route("add", lambda state: "add" if state["n"] < to else None)
        return flow

    outer = Flow("outer")
    outer.nest("inner", counting(5))
    assert outer.run({"n": 0}, max_steps=1).state == {"n": 5}
    limited = Flow("limited")
    limited.nest("inner", counting(5), max_steps=4)
    with pytest.raises(StepLimitError, match="max_steps=4") as caught:
        limited.run({"n": 0})
    assert caught.value.namespace == ("inner",)
    more = Flow("more")
    more.nest("inner", counting(9), max_steps=9)
    assert more.run({"n": 0}).state == {"n": 9}
    with pytest.raises(ConfigurationError, match="max_steps"):
        more.nest("other", counting(1), max_steps=0)


# -- scopes --------------------------------------------------------------------------------------


def test_a_run_that_fails_inside_a_node_leaves_the_flow_alone(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """A node may give its scope to a run, live with the run's failure, and go on."""
    servers[0].fail(401, message="bad key")
    servers[0].fail(401, message="bad key")
    servers[0].say(["One, ", "two."])
    flow = Flow("f")

    @flow.node
    def trying(state: dict[str, object], ctx: FlowContext) -> dict[str, object]:
        with pytest.raises(ToolnexusError, match="bad key"):
            clients[0].run("a?", scope=ctx.scope)
        assert isinstance(list(clients[0].stream("b?", scope=ctx.scope))[-1], Error)
        with clients[0].stream("c?", scope=ctx.scope) as stream:
            first = next(stream)
        ctx.sleep(0.001)
        return {"cancelled": ctx.cancelled, "first": repr(first)}

    assert flow.run({}).state == {"cancelled": False, "first": "Text(delta='One, ')"}


def test_a_scope_outlives_its_runs(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """Neither a failure, nor a time that was up, nor a stream that was left ends the scope of the caller."""
    scope = CancelScope()
    servers[0].fail(401, message="bad key")
    servers[0].say("late", delay=5)
    servers[0].say(["One, ", "two."])
    servers[0].say("three")
    with pytest.raises(ToolnexusError, match="bad key"):
        clients[0].run("a?", scope=scope)
    with pytest.raises(RunTimeoutError, match=r"the run took longer than its timeout of 0\.1 s"):
        clients[0].run("b?", scope=scope, timeout=0.1)
    for _ in clients[0].stream("c?", scope=scope):
        break
    gc.collect()
    assert (scope.cancelled, scope.timeout, scope.deadline) == (False, None, None)
    assert clients[0].run("d?", scope=scope).text == "three"
    scope.cancel("enough")
    with pytest.raises(RunCancelledError, match="enough"):
        clients[0].run("e?", scope=scope)


def test_the_end_of_a_tools_scope_ends_what_it_runs(
    clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """The time limit of a tool holds for the run inside it, whose connection is shut."""
    servers[0].call("slow", {})
    servers[0].say("done")
    servers[1].say("never", delay=30)
    ended: list[BaseException] = []

    def slow(ctx: Context) -> str:
        assert ctx.scope.deadline is not None
        before = ctx.scope.deadline
        try:
            return clients[1].run("x", scope=ctx.scope, timeout=60).text
        except ToolnexusError as error:
            assert ctx.scope.deadline == before
            ended.append(error)
            raise

    result = clients[0].run("go", [Tool("slow", execute=lambda args, ctx: slow(ctx), timeout=0.2)])
    assert result.tool_calls[0].is_error
    servers[1].wait_for_disconnect(timeout=5)
    until = time.monotonic() + 5
    while not ended and time.monotonic() < until:
        time.sleep(0.01)
    assert isinstance(ended[0], RunTimeoutError)


# -- several that speak by turns -----------------------------------------------------------------


def test_the_text_of_a_failed_try_is_taken_back_from_between_others() -> None:
    """Two agents of a flow speak at once, and a try of one of them fails: nothing else is lost."""
    a, b = Origin("r", ("a",)), Origin("r", ("b",))
    inside = Origin("r", ("a", "tool:call_1"))
    events = [
        Text("ha", origin=a),
        Text("one ", origin=b),
        Text("other", origin=inside),
        Text("lf", origin=a),
        Text("two ", origin=b),
        AttemptFailed(1, ToolnexusError("x"), True, "other", origin=inside),
        AttemptFailed(1, ToolnexusError("x"), True, "half", origin=a),
        Text("whole", origin=a),
    ]
    stream = DerivedStream([*events, Done(RunResult())])
    list(stream)
    assert stream.text == "one two whole"
    said = TextSoFar()
    for piece in ("kept", " ha", "", "lf"):
        said.add(Text(piece))
    said.take_back(AttemptFailed(1, ToolnexusError("x"), True, "half"))
    assert str(said) == "kept "
    said.take_back(AttemptFailed(1, ToolnexusError("x"), True, "never said"))
    assert str(said) == "kept "


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "redacted"])
def test_the_text_of_a_node_that_is_tried_again_is_void_everywhere(
    wrapped: bool, clients: tuple[Client, Client], servers: tuple[ModelServer, ModelServer]
) -> None:
    """The stream, the picture, the views and a redaction take back what its agent said, two flows deep."""
    servers[0].say(["Ask ada@example.com ", "or "], cut="close")
    servers[0].say(["Ask ", "nobody."])
    inner = Flow("inner")
    with Client(servers[0].base_url, model="m", retries=0) as client:
        inner.agent("asked", client, "Whom?")
        outer = Flow("outer")
        outer.nest("deep", inner, retry=RetryPolicy(retries=1, base=0.001))
        stream: Stream = outer.stream({}, keep_events=True)
        stream = redact(stream, "email") if wrapped else stream
        screen = Screen()
        events = []
        for event in stream:
            events.append(event)
            screen.take(event)
    [failed] = [e for e in events if isinstance(e, AttemptFailed)]
    before = [e.delta for e in events[: events.index(failed)] if isinstance(e, Text)]
    assert failed.text == "".join(before) != ""
    assert stream.text == screen.text == "Ask nobody."
    assert [view.text for view in group_messages(events)] == ["Ask nobody."]
    assert ("ada@" in repr(events)) is not wrapped
