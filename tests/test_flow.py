"""Flows: steps, events, nesting, failures, limits, ends. Names follow the F checks."""

from __future__ import annotations

import contextvars
import gc
import itertools
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus import (
    AttemptFailed,
    AuthenticationError,
    CancelScope,
    Checkpoint,
    Client,
    ConfigurationError,
    Custom,
    Done,
    Error,
    Event,
    Flow,
    Lifecycle,
    Message,
    RunCancelledError,
    RunTimeoutError,
    Task,
    Text,
    ToolFinished,
    Update,
    UsageReport,
    Value,
    tool,
)
from toolnexus.compose import (
    End,
    FlowContext,
    FlowError,
    FlowResult,
    Goto,
    NodeError,
    NodeTimeoutError,
    StepLimitError,
    mux,
)
from toolnexus.testing import ModelServer
from toolnexus.transport.retry import RetryPolicy

State = dict[str, Any]

ALL = ["messages", "tools", "custom", "updates", "values", "tasks", "checkpoints", "lifecycle"]
NODES = ["tasks", "updates", "values", "custom", "lifecycle"]
SOON = RetryPolicy(retries=2, base=0.001)


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    """A scripted model server."""
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    """A client of that server."""
    with Client(base_url=server.base_url, style=server.style, model="test", api_key="k", retries=0) as client:
        yield client


def chain(*names: str, **options: Any) -> Flow:
    """Make a flow of nodes in a row, each of which notes its name under ``path``."""
    flow = Flow("chain", **options)
    for name in names:
        flow.node(name=name)(lambda state, name=name: {"path": [*state.get("path", []), name]})
    for before, after in itertools.pairwise(names):
        flow.edge(before, after)
    return flow


def single(function: Callable[..., Any], **options: Any) -> Flow:
    """Make a flow of one node."""
    flow = Flow("single")
    flow.node(name="only", **options)(function)
    return flow


def kinds(events: list[Event], *namespace: str) -> list[str]:
    """Return the kinds of the tasks of a namespace, with their nodes."""
    return [f"{e.node} {e.kind}" for e in events if isinstance(e, Task) and e.namespace == namespace]


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for a condition, and tell whether it came."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


# -- steps --------------------------------------------------------------------------------------


def test_nodes_run_in_order_of_their_edges() -> None:
    """A flow goes along its edges until a step has none."""
    result = chain("a", "b", "c").run({})
    assert isinstance(result, FlowResult)
    assert (result.status, result.steps, result.state) == ("done", 3, {"path": ["a", "b", "c"]})


def test_routes_gotos_and_ends() -> None:
    """A route, a Goto and an End say what comes next, and a Goto wins over the edges."""
    flow = Flow("f")

    @flow.node
    def first(state: State) -> Goto:
        return Goto("third", {"seen": ["first"]})

    @flow.node
    def second(state: State) -> None:
        raise AssertionError("never reached")

    @flow.node
    def third(state: State) -> State:
        return {"seen": [*state["seen"], "third"]}

    @flow.node
    def fourth(state: State) -> End:
        return End({"seen": [*state["seen"], "fourth"]})

    flow.edge(first, second)
    flow.route(third, lambda state: fourth if "third" in state["seen"] else End)
    flow.edge(fourth, second)
    assert flow.run({}).state == {"seen": ["first", "third", "fourth"]}


def test_messages_are_appended_and_other_keys_replaced() -> None:
    """The one reducer there is: messages grow."""
    flow = Flow("f")
    flow.node(name="a")(lambda state: {"messages": {"role": "user", "content": "Hi"}, "x": [1]})
    flow.node(name="b")(lambda state: {"messages": [{"role": "assistant", "content": "Yo"}], "x": [2]})
    flow.edge("a", "b")
    result = flow.run({"messages": []})
    assert [m["content"] for m in result.messages] == ["Hi", "Yo"]
    assert result.state["x"] == [2]
    assert result.text == str(result) == "Yo"
    assert json.loads(result.to_json())["state"]["x"] == [2]


def test_a_node_cannot_change_the_state_behind_the_flows_back() -> None:
    """A node gets a copy; what it does to it is nobody's business."""
    begins = {"list": [1]}

    def node(state: State) -> None:
        state["list"].append(2)
        state["more"] = True

    assert single(node).run(begins).state == {"list": [1]}
    assert begins == {"list": [1]}


@pytest.mark.parametrize(
    "bad", [{"x": object()}, {"x": {1: 2}}, {"x": float("nan")}, [1], "text", {"messages": 5}]
)
def test_what_no_node_may_return(bad: Any) -> None:
    """The state is plain JSON, and a mistake names the node."""
    with pytest.raises(NodeError, match="only"):
        single(lambda state: bad).run({})


def test_what_no_state_may_be() -> None:
    """A state that is no dict of plain JSON is refused before anything begins."""
    flow = chain("a")
    for bad in ({"x": b"bytes"}, [1], "text"):
        with pytest.raises(ConfigurationError):
            flow.stream(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no state"):
        flow.run()


def test_mistakes_of_building_are_found_at_once() -> None:
    """Names that come twice, edges to nowhere, coroutines, flows inside themselves: all are errors."""
    flow = chain("a", "b")
    with pytest.raises(ConfigurationError, match="'a' already"):
        flow.node(name="a")(lambda state: None)
    with pytest.raises(ConfigurationError, match="what follows a"):
        flow.route("a", lambda state: End)
    flow.edge("b", "nowhere")
    with pytest.raises(ConfigurationError, match="no step 'nowhere'"):
        flow.run({})
    with pytest.raises(ConfigurationError, match="has no node"):
        Flow("empty").run({})
    with pytest.raises(ConfigurationError, match="max_steps"):
        Flow("f", max_steps=0)
    with pytest.raises(ConfigurationError, match="not empty"):
        Flow(" ")
    with pytest.raises(ConfigurationError, match="keeps states"):
        Flow("f", store=object())

    async def node(state: State) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine"):
        Flow("f").node(node)
    with pytest.raises(ConfigurationError, match="must take the state"):
        Flow("f").node(lambda: None)
    outer, inner = Flow("outer"), Flow("inner")
    outer.nest("in", inner)
    inner.nest("out", outer)
    with pytest.raises(ConfigurationError, match="inside itself"):
        outer.run({})
    with pytest.raises(ConfigurationError, match="two or more"):
        chain("a").parallel("a")


def test_f107_a_circle_ends_before_the_step_that_is_too_many() -> None:
    """With max_steps=25 the 26th step is not begun."""
    ran: list[int] = []
    flow = Flow("circle")

    @flow.node
    def go(state: State) -> State:
        ran.append(1)
        return {"n": state["n"] + 1}

    flow.edge(go, go)
    with pytest.raises(StepLimitError, match="max_steps=25") as caught:
        flow.run({"n": 0})
    assert len(ran) == 25
    assert caught.value.partial is not None
    assert caught.value.partial.state == {"n": 25}  # type: ignore[attr-defined]
    ran.clear()
    with pytest.raises(StepLimitError):
        flow.run({"n": 0}, max_steps=3)
    assert len(ran) == 3


def test_a_goto_to_nowhere_is_an_error() -> None:
    """A node or route that names no step of the flow is to blame."""
    with pytest.raises(FlowError, match="only leads to 'nowhere'") as caught:
        single(lambda state: Goto("nowhere")).run({})
    assert caught.value.node == "only"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.node, str(again)) == ("only", str(caught.value))


@settings(max_examples=20)
@given(
    names=st.lists(
        st.text("abcdefg/+ ü", min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=8, unique=True
    )
)
def test_any_names_in_any_order(names: list[str]) -> None:
    """run() and the drained stream() agree, for any chain of nodes."""
    flow = chain(*names)
    result = flow.run({})
    assert result.state == {"path": names}
    assert flow.stream({}).result() == result


# -- events -------------------------------------------------------------------------------------


def test_f99_the_events_of_one_node() -> None:
    """Task start and finish, what the node changed, the state after it; all say where they come from."""
    stream = single(lambda state, ctx: ctx.emit("hello") or {"x": 1}).stream({"a": 0}, channels=NODES)
    events = list(stream)
    assert [e.type for e in events] == [
        *("lifecycle", "task", "custom", "task", "update", "value", "lifecycle", "usage", "done"),
    ]
    start, custom, finish, update, value = events[1:6]
    assert isinstance(start, Task)
    assert isinstance(finish, Task)
    assert (start.kind, finish.kind) == ("start", "finish")
    assert start.task_id == finish.task_id
    assert custom == Custom("hello")
    assert update == Update({"only": {"x": 1}})
    assert value == Value({"a": 0, "x": 1})
    assert {(e.node, e.step, e.namespace, e.run_id) for e in events[1:6]} == {("only", 1, (), stream.run_id)}
    seqs = [e.seq for e in events[:-1]]
    assert seqs == sorted(set(seqs))


def test_f99_only_what_was_asked_for() -> None:
    """By default a flow gives what its nodes emit, the usage and the end."""
    events = list(single(lambda state, ctx: ctx.emit(1)).stream({}))
    assert [e.type for e in events] == ["custom", "usage", "done"]
    with pytest.raises(ConfigurationError, match="unknown channel"):
        chain("a").stream({}, channels=["steps"])


def test_f57_what_a_node_emits_comes_while_it_runs() -> None:
    """The consumer sees a payload before its node ends."""
    go_on = threading.Event()

    def node(state: State, ctx: FlowContext) -> State:
        ctx.emit("now")
        assert go_on.wait(10)
        return {"done": True}

    for event in single(node).stream({}):
        if isinstance(event, Custom):
            go_on.set()
    assert isinstance(event, Done)


def test_nothing_begins_before_the_first_next() -> None:
    """An unread stream of a flow costs nothing."""
    ran: list[int] = []
    stream = single(lambda state: ran.append(1)).stream({})
    time.sleep(0.05)
    stream.close()
    assert not ran


def test_messages_of_a_function_are_reported_once() -> None:
    """Messages that a function adds are reported when the node has finished."""
    flow = single(lambda state: {"messages": [{"role": "assistant", "content": "Hi"}]})
    outer = Flow("outer")
    outer.nest("in", flow)
    events = list(outer.stream({}, channels=ALL))
    assert [e.message["content"] for e in events if isinstance(e, Message)] == ["Hi"]


def test_what_is_emitted_after_the_end_is_dropped() -> None:
    """A context that outlives its node is harmless."""
    kept: list[FlowContext] = []
    flow = chain("b")
    flow2 = Flow("f")

    @flow2.node
    def node(state: State, ctx: FlowContext) -> None:
        kept.append(ctx)

    list(flow2.stream({}))
    kept[0].emit("late")
    assert list(flow.stream({}))[-1].type == "done"


def test_the_context_knows_where_it_is() -> None:
    """A node can ask who and where it is, and sees the caller's object and context variables."""
    var: contextvars.ContextVar[str] = contextvars.ContextVar("flow_var", default="unset")
    var.set("mine")
    seen: list[Any] = []

    def node(state: State, ctx: FlowContext) -> None:
        seen.append((ctx.node, ctx.step, ctx.namespace, ctx.deps, ctx.attempt, ctx.cancelled, var.get()))

    result = single(node).run({}, deps="deps")
    assert seen == [("only", 1, (), "deps", 1, False, "mine")]
    stream = single(node).stream({}, deps=7)
    assert stream.result().run_id == stream.run_id != result.run_id
    assert seen[1][3] == 7
    assert seen[1][6] == "mine"


def test_events_do_not_share_the_state() -> None:
    """Whoever changes what an event carries does not change the flow."""
    flow = chain("a", "b")
    for event in flow.stream({"path": []}, channels=NODES):
        if isinstance(event, Value):
            event.value["path"].clear()
        if isinstance(event, Update):
            event.update.clear()
    assert isinstance(event, Done)
    assert event.result.state == {"path": ["a", "b"]}  # type: ignore[attr-defined]


# -- nested flows -------------------------------------------------------------------------------


def nested(inner: Flow) -> Flow:
    """Put a flow two deep into others."""
    middle = Flow("middle flow")
    middle.nest("inner", inner)
    outer = Flow("outer flow")
    outer.nest("middle", middle)
    return outer


def test_f100_a_flow_two_deep() -> None:
    """Namespaces are paths of node names, and each event comes once, from its source."""
    inner = single(lambda state, ctx: ctx.emit("deep") or {"x": state["x"] + 1})
    events = list(nested(inner).stream({"x": 0}, channels=NODES))
    assert [e.namespace for e in events if isinstance(e, Custom)] == [("middle", "inner")]
    assert kinds(events) == ["middle start", "middle finish"]
    assert kinds(events, "middle") == ["inner start", "inner finish"]
    assert kinds(events, "middle", "inner") == ["only start", "only finish"]
    updates = [(e.namespace, e.update) for e in events if isinstance(e, Update)]
    assert updates == [
        (("middle", "inner"), {"only": {"x": 1}}),
        (("middle",), {"inner": {"x": 1}}),
        ((), {"middle": {"x": 1}}),
    ]
    ids = [e.task_id for e in events if isinstance(e, Task)]
    assert len(set(ids)) == 3
    assert len({e.run_id for e in events}) == 1


def test_f103_f105_lifecycle_of_nested_flows() -> None:
    """Each path has a started and one terminal, the parent's first, with the task that it runs for."""
    events = list(nested(chain("a")).stream({}, channels=NODES))
    found = [(e.namespace, e.status, e.name) for e in events if isinstance(e, Lifecycle)]
    assert found == [
        ((), "started", "outer flow"),
        (("middle",), "started", "middle flow"),
        (("middle", "inner"), "started", "chain"),
        (("middle", "inner"), "completed", "chain"),
        (("middle",), "completed", "middle flow"),
        ((), "completed", "outer flow"),
    ]
    starts = {e.node: e.task_id for e in events if isinstance(e, Task) and e.kind == "start"}
    triggers = [e.trigger_call_id for e in events if isinstance(e, Lifecycle) and e.status == "started"]
    assert triggers == [None, starts["middle"], starts["inner"]]


def test_a_nested_flow_counts_its_own_steps_and_hands_back_what_it_changed() -> None:
    """Steps of a nested flow begin at 1; messages that were there before are not appended again."""
    inner = Flow("inner")
    inner.node(name="say")(lambda state: {"messages": [{"role": "assistant", "content": "B"}], "y": 2})
    outer = Flow("outer")
    outer.node(name="before")(lambda state: {"messages": [{"role": "user", "content": "A"}]})
    outer.nest("in", inner)
    outer.edge("before", "in")
    events = list(outer.stream({"x": 1}, channels=NODES))
    assert [e.step for e in events if isinstance(e, Task) and e.namespace == ("in",)] == [1, 1]
    result = events[-1].result  # type: ignore[attr-defined]
    assert [m["content"] for m in result.messages] == ["A", "B"]
    assert (result.state["x"], result.state["y"], result.steps) == (1, 2, 2)


def test_input_and_update_of_a_nested_flow() -> None:
    """A nested flow may begin with another state, and hand back something else."""
    outer = Flow("outer")
    outer.nest("in", chain("a"), input=lambda s: {"path": ["x"]}, update=lambda s: {"found": s["path"]})
    assert outer.run({"k": 1}).state == {"k": 1, "found": ["x", "a"]}


def test_f107_the_limit_of_a_nested_flow() -> None:
    """A nested flow that goes in circles is stopped by its own limit."""
    inner = Flow("inner", max_steps=4)
    inner.node(name="go")(lambda state: {"n": state["n"] + 1})
    inner.edge("go", "go")
    with pytest.raises(StepLimitError) as caught:
        nested(inner).run({"n": 0})
    assert caught.value.namespace == ("middle", "inner")


# -- failures -----------------------------------------------------------------------------------


def boom(state: State) -> State:
    """Fail."""
    raise ValueError("boom")


def test_f102_a_failure_that_nobody_recovers_is_one_error_at_the_root() -> None:
    """A failed node of a nested flow ends everything with exactly one Error, the last item."""
    events = list(nested(single(boom)).stream({"x": 1}, channels=NODES))
    assert [e.type for e in events].count("error") == 1
    last = events[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, NodeError)
    assert isinstance(last.error.__cause__, ValueError)
    assert (last.error.node, last.error.namespace) == ("only", ("middle", "inner"))
    assert last.partial is not None
    assert last.partial.state == {"x": 1}  # type: ignore[attr-defined]
    assert kinds(events, "middle", "inner") == ["only start", "only error"]
    assert kinds(events) == ["middle start", "middle error"]
    ends = [e.status for e in events if isinstance(e, Lifecycle) and e.status != "started"]
    assert ends == ["failed", "failed", "failed"]
    assert not [e for e in events if isinstance(e, UsageReport)]


def test_f101_the_handler_of_the_parent_recovers() -> None:
    """A failure inside that the outer node's on_error handles is no Error of the run."""
    middle = Flow("middle")
    middle.nest("inner", single(boom), on_error=lambda state, error: {"problem": str(error)})
    events = list(middle.stream({}, channels=NODES))
    assert kinds(events, "inner") == ["only start", "only error"]
    assert kinds(events) == ["inner start", "inner finish"]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.result.state == {"problem": "only raised ValueError: boom"}  # type: ignore[attr-defined]


def test_a_handler_may_send_the_flow_elsewhere_or_fail_itself() -> None:
    """on_error may return a Goto, take the context, and raise."""
    flow = Flow("f")
    flow.node(name="a", on_error=lambda state, error, ctx: Goto("b", {"node": ctx.node}))(boom)
    flow.node(name="b")(lambda state: {"b": True})
    assert flow.run({}).state == {"node": "a", "b": True}

    def fails(state: State, error: Exception) -> None:
        raise KeyError("again")

    with pytest.raises(NodeError, match="KeyError"):
        single(boom, on_error=fails).run({})


def flaky(failures: int, error: Exception | None = None) -> Callable[..., State]:
    """Make a node that fails so many times before it works."""
    tries: list[int] = []

    def node(state: State, ctx: FlowContext) -> State:
        tries.append(ctx.attempt)
        if len(tries) <= failures:
            raise error or OSError("not now")
        return {"tries": list(tries)}

    return node


def test_retry_tries_again_and_reports_each_failure() -> None:
    """A node with a retry runs again; who reads sees which try failed."""
    events = list(single(flaky(2), retry=SOON).stream({}, channels=NODES))
    failed = [(e.number, e.will_retry) for e in events if isinstance(e, AttemptFailed)]
    assert failed == [(1, True), (2, True)]
    assert kinds(events) == ["only start", "only finish"]
    assert events[-1].result.state == {"tries": [1, 2, 3]}  # type: ignore[attr-defined]


def test_retry_gives_up() -> None:
    """After the last try the failure is the node's; an error that says so is not retried at all."""
    with pytest.raises(NodeError, match="not now"):
        single(flaky(3), retry=SOON).run({})
    tries: list[int] = []

    def node(state: State) -> None:
        tries.append(1)
        raise AuthenticationError("no")

    with pytest.raises(AuthenticationError):
        single(node, retry=SOON).run({})
    assert len(tries) == 1
    assert single(flaky(0), retry=0).run({}).status == "done"


def test_a_node_has_its_timeout() -> None:
    """A node that takes too long is told, and its failure is a timeout that can be handled."""
    told = threading.Event()

    def slow(state: State, ctx: FlowContext) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        told.set()

    events = list(single(slow, timeout=0.05).stream({}, channels=NODES))
    assert kinds(events) == ["only start", "only timeout"]
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, NodeTimeoutError)
    assert told.wait(5)
    recovered = single(slow, timeout=0.05, on_error=lambda state, error: {"late": True}).run({})
    assert recovered.state == {"late": True}


def test_a_nested_flow_has_its_timeout() -> None:
    """The timeout of a node that is a flow ends what runs inside."""
    outer = Flow("outer")
    outer.nest("in", single(lambda state, ctx: ctx.sleep(60)), timeout=0.05)
    with pytest.raises(NodeTimeoutError) as caught:
        outer.run({})
    assert caught.value.node == "in"


# -- cancelling ---------------------------------------------------------------------------------


def sleeper(state: State, ctx: FlowContext) -> None:
    """Wait for ever, and end when told."""
    ctx.emit("sleeping")
    ctx.sleep(600)


@pytest.mark.parametrize("how", ["cancel", "close", "break"])
@pytest.mark.parametrize("deep", [False, True])
def test_a_flow_is_cancelled_at_once(how: str, deep: bool) -> None:
    """cancel(), close() and dropping the stream end what runs, and no handler or retry catches it."""
    handled: list[Any] = []
    inner = single(sleeper, retry=SOON, on_error=lambda state, error: handled.append(error))
    stream = (nested(inner) if deep else inner).stream({})
    assert isinstance(next(stream), Custom)
    began = time.monotonic()
    if how == "cancel":
        stream.cancel("enough")
        last = list(stream)[-1]
        assert isinstance(last, Error)
        assert isinstance(last.error, RunCancelledError)
    elif how == "close":
        stream.close()
        assert [e.type for e in stream] == ["error"]
    del stream
    gc.collect()
    assert time.monotonic() - began < 2
    assert wait_until(lambda: not [t for t in threading.enumerate() if "node-only" in t.name])
    assert not handled


def test_a_node_that_does_not_listen_is_left_behind() -> None:
    """Cancelling does not wait for code that cannot be interrupted."""
    release = threading.Event()

    def deaf(state: State, ctx: FlowContext) -> None:
        ctx.emit("here")
        release.wait(30)

    stream = single(deaf).stream({})
    next(stream)
    began = time.monotonic()
    stream.close()
    assert [e.type for e in stream] == ["error"]
    assert time.monotonic() - began < 2
    release.set()


def test_run_is_cancelled_from_another_thread() -> None:
    """A scope cancels run(), also while a node waits."""
    scope = CancelScope()
    threading.Timer(0.05, scope.cancel).start()
    with pytest.raises(RunCancelledError):
        single(lambda state: time.sleep(0.5)).run({}, scope=scope)


def test_the_whole_timeout() -> None:
    """A flow that takes longer than its timeout ends with that error, whatever its nodes catch."""
    flow = single(sleeper, on_error=lambda state, error: {})
    with pytest.raises(RunTimeoutError):
        flow.run({}, timeout=0.05)
    last = list(flow.stream({}, timeout=0.05))[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, RunTimeoutError)


def test_a_reader_that_stops_reading_stops_the_flow() -> None:
    """A full queue makes a node wait, and closing frees it."""

    def chatty(state: State, ctx: FlowContext) -> None:
        while not ctx.cancelled:
            ctx.emit("x" * 100)

    flow = Flow("f", queue_size=4)
    flow.node(chatty)
    stream = flow.stream({})
    next(stream)
    time.sleep(0.05)
    stream.close()
    assert wait_until(lambda: not [t for t in threading.enumerate() if "node-chatty" in t.name])


# -- several nodes in one step -------------------------------------------------------------------


def sides(left: Callable[..., Any], right: Callable[..., Any], **options: Any) -> Flow:
    """Make a flow of two nodes side by side, and one after them."""
    flow = Flow("sides", **options)
    flow.node(name="left")(left)
    flow.node(name="right")(right)
    flow.node(name="after")(lambda state: {"after": sorted(state)})
    flow.edge(flow.parallel("left", "right"), "after")
    return flow


def test_parallel_nodes_run_side_by_side() -> None:
    """Both run at once on the same state, and one update has what both changed."""
    meet = threading.Barrier(2, timeout=10)

    def side(key: str) -> Callable[..., Any]:
        def node(state: State, ctx: FlowContext) -> State:
            meet.wait()
            ctx.emit(key)
            return {key: state["n"]}

        return node

    events = list(sides(side("l"), side("r")).stream({"n": 1}, channels=NODES))
    assert events[-1].result.state == {"n": 1, "l": 1, "r": 1, "after": ["l", "n", "r"]}  # type: ignore[attr-defined]
    updates = [e.update for e in events if isinstance(e, Update)]
    assert updates[0] == {"left": {"l": 1}, "right": {"r": 1}}
    assert events[-1].result.steps == 2  # type: ignore[attr-defined]
    customs = {e.payload: e.node for e in events if isinstance(e, Custom)}
    assert customs == {"l": "left", "r": "right"}
    for name in ("left", "right"):
        assert [k for k in kinds(events) if k.startswith(name)] == [f"{name} start", f"{name} finish"]


def test_parallel_nodes_may_not_change_the_same_key() -> None:
    """Two writers of one key are an error that names both and the key."""
    with pytest.raises(FlowError, match="left and right both change 'x'"):
        sides(lambda state: {"x": 1}, lambda state: {"x": 2}).run({})


def test_parallel_messages_are_appended_in_the_order_of_the_step() -> None:
    """Messages of both are kept, whoever was quicker."""

    def slow(state: State, ctx: FlowContext) -> State:
        ctx.sleep(0.05)
        return {"messages": [{"role": "user", "content": "left"}]}

    flow = sides(slow, lambda state: {"messages": [{"role": "user", "content": "right"}]})
    assert [m["content"] for m in flow.run({}).messages] == ["left", "right"]


def test_a_failure_stops_the_other_nodes_of_the_step() -> None:
    """The first failure is the flow's; the other node is told to stop."""
    stopped = threading.Event()

    def waits(state: State, ctx: FlowContext) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        stopped.set()

    with pytest.raises(NodeError, match="boom"):
        sides(boom, waits).run({})
    assert stopped.wait(5)
    with pytest.raises(FlowError, match="cannot say what comes next"):
        sides(lambda state: Goto("after"), lambda state: None).run({})


# -- agents -------------------------------------------------------------------------------------


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_an_agent_is_a_node(server: ModelServer, client: Client) -> None:
    """Its text goes into the state, its events have its name as namespace, its tokens are counted."""
    server.call("add", {"a": 2, "b": 3})
    server.say("It is 5.")
    flow = Flow("f")
    flow.agent("sum", client, lambda state: f"add {state['a']} and {state['b']}", tools=[add])
    events = list(flow.stream({"a": 2, "b": 3}, channels=ALL))
    result = events[-1].result  # type: ignore[attr-defined]
    assert result.state["sum"] == "It is 5."
    assert {e.namespace for e in events if isinstance(e, (Text, ToolFinished))} == {("sum",)}
    assert {e.run_id for e in events if not isinstance(e, Done)} == {result.run_id}
    assert kinds(events, "sum")[:2] == ["model start", "model finish"]
    assert [e.type for e in events].count("usage") == 1
    assert result.usage.total_tokens > 0
    assert events[-2] == UsageReport(result.usage)
    seqs = [e.seq for e in events[:-1]]
    assert seqs == sorted(set(seqs))
    server.call("add", {"a": 2, "b": 3})
    server.say("It is 5.")
    again = flow.run({"a": 2, "b": 3})
    assert (again.state, again.usage) == (result.state, result.usage)


def test_history_update_and_output_of_an_agent(server: ModelServer, client: Client) -> None:
    """An agent can go on with the state's messages, say what it changes, and give typed output."""
    server.say("Paris.")
    flow = Flow("f")
    flow.agent(
        "ask",
        client,
        lambda state: "And of France?",
        history=lambda state: state["messages"],
        update=lambda result, state: {"messages": result.messages[len(state["messages"]) :]},
    )
    before = [{"role": "user", "content": "Capital of Italy?"}, {"role": "assistant", "content": "Rome."}]
    result = flow.run({"messages": before})
    assert [m["content"] for m in result.messages][2:] == ["And of France?", "Paris."]
    assert result.text == "Paris."
    server.say('{"city": "Paris"}')
    typed = Flow("typed")
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    typed.agent("where", client, "Where?", output=schema, max_turns=2)
    if server.style == "openai":
        assert typed.run({}).state == {"where": {"city": "Paris"}}


def test_f102_the_error_of_an_agent_is_the_flows(server: ModelServer, client: Client) -> None:
    """What the provider said stays what it is; one Error, at the root."""
    server.fail(401)
    flow = Flow("f")
    flow.agent("a", client, "Hi")
    events = list(nested(flow).stream({}, channels=NODES))
    assert [e.type for e in events].count("error") == 1
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, AuthenticationError)
    assert [
        e.status for e in events if isinstance(e, Lifecycle) and e.namespace == ("middle", "inner", "a")
    ] == [*("started", "failed")]


def test_text_of_a_failed_try_of_an_agent_is_void(server: ModelServer, client: Client) -> None:
    """A node that is tried again after text went out says which text no longer counts."""
    server.say(["Hel", "lo"], cut="close")
    server.say("Hello")
    flow = Flow("f")
    flow.agent("a", client, "Hi", retry=SOON)
    stream = flow.stream({}, keep_events=True)
    result = stream.result()
    assert result.state == {"a": "Hello"}
    assert stream.text == "Hello"
    failed = [e for e in stream.events or () if isinstance(e, AttemptFailed)]
    assert len(failed) == 1
    assert failed[0].text.startswith("Hel")


def test_an_agent_that_was_cut_is_an_error_unless_it_is_expected(server: ModelServer, client: Client) -> None:
    """Half an answer does not pass for a whole one."""
    server.call("add", {"a": 1, "b": 1})
    flow = Flow("f")
    flow.agent("a", client, "Hi", tools=[add], max_turns=1)
    with pytest.raises(NodeError, match="max_turns"):
        flow.run({})
    server.call("add", {"a": 1, "b": 1})
    lenient = Flow("f")
    lenient.agent(
        "a", client, "Hi", tools=[add], max_turns=1, update=lambda result: {"status": result.status}
    )
    assert lenient.run({}).state == {"status": "incomplete"}


@pytest.mark.parametrize("how", ["close", "node timeout", "outer timeout"])
def test_ending_an_agent_inside_closes_its_connection(server: ModelServer, client: Client, how: str) -> None:
    """However the flow ends, a server that stays silent sees the connection close."""
    server.say(["Hel", "lo"], hold=True)
    flow = Flow("f")
    flow.agent("a", client, "Hi", timeout=0.2 if how == "node timeout" else None)
    outer = Flow("outer")
    outer.nest("in", flow, timeout=0.2 if how == "outer timeout" else None)
    stream = outer.stream({})
    assert isinstance(next(stream), Text)
    if how == "close":
        stream.close()
    last = list(stream)[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError if how == "close" else NodeTimeoutError)
    assert server.wait_for_disconnect()


def test_a_stream_inside_a_function_is_passed_on(server: ModelServer, client: Client) -> None:
    """A node may emit the events of a stream of its own: labelled, and without a second terminal item."""
    server.say("Hello")
    flow = Flow("f")

    @flow.node
    def ask(state: State, ctx: FlowContext) -> State:
        text = ""
        for event in client.stream("Hi", scope=ctx.scope):
            ctx.emit(event)
            text += event.delta if isinstance(event, Text) else ""
        return {"text": text}

    events = list(flow.stream({}, channels=ALL))
    assert {e.namespace for e in events if isinstance(e, Text)} == {("ask",)}
    assert [e.type for e in events].count("done") == 1
    assert [e.status for e in events if isinstance(e, Lifecycle) and e.namespace == ("ask",)] == ["completed"]
    assert events[-1].result.state == {"text": "Hello"}  # type: ignore[attr-defined]


def test_agents_side_by_side(server: ModelServer, client: Client) -> None:
    """Two agents in one step stream at once, each in its namespace."""
    server.on_request(lambda request: "left" if b"LEFT" in request.raw_body else "right")
    flow = Flow("f")
    flow.agent("l", client, "LEFT")
    flow.agent("r", client, "RIGHT")
    flow.parallel("l", "r")
    texts: dict[tuple[str, ...], str] = {}
    for event in flow.stream({}):
        if isinstance(event, Text):
            texts[event.namespace] = texts.get(event.namespace, "") + event.delta
    assert texts == {("l",): "left", ("r",): "right"}
    assert isinstance(event, Done)
    assert event.result.state == {"l": "left", "r": "right"}  # type: ignore[attr-defined]


def test_a_flow_in_a_mux() -> None:
    """Flows are producers like any stream, and their results are kept."""
    stream = mux([("one", chain("a").stream({}, channels=NODES)), ("two", chain("b").stream({}))])
    events = list(stream)
    assert kinds(events, "one") == ["a start", "a finish"]
    assert stream.result().producers["two"].result.state == {"path": ["b"]}


def test_a_flow_goes_to_the_web() -> None:
    """A stream of a flow can be sent as server-sent events, its result included."""
    body = b"".join(chain("a").stream({}, channels=NODES).sse())
    assert b'"state":{"path":["a"]}' in body.replace(b": ", b":")
    assert body.count(b"event: done") == 1


def test_checkpoints_are_events_only_with_an_id() -> None:
    """Each step of a run with an id reports that it was saved."""
    flow = chain("a", "b")
    assert not [e for e in flow.stream({}, channels=ALL) if isinstance(e, Checkpoint)]
    found = [e for e in flow.stream({}, id="x", channels=ALL) if isinstance(e, Checkpoint)]
    assert found == [Checkpoint("x", {"path": ["a"]}), Checkpoint("x", {"path": ["a", "b"]})]
