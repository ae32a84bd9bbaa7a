"""Views of events: selecting, messages, the answer, namespaces; and events collected by run()."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import (
    Answer,
    AttemptFailed,
    Client,
    ConfigurationError,
    Custom,
    Done,
    Error,
    Event,
    HookError,
    InternalServerError,
    Lifecycle,
    Message,
    Pending,
    Request,
    RunCancelledError,
    RunResult,
    Task,
    Text,
    Thinking,
    ToolCall,
    ToolFinished,
    ToolnexusError,
    Update,
    Usage,
    UsageReport,
    Value,
    tool,
)
from toolnexus.compose import (
    final_answer,
    group_messages,
    lifecycle,
    mux,
    select,
    summarize_namespaces,
)
from toolnexus.events import CHANNELS, Origin
from toolnexus.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style="openai", model="m", **{"retries": 0, **options})


def at(*path: str, run: str = "r", message: str = "", node: str = "", step: int = 1) -> Origin:
    return Origin(run_id=run, namespace=path, message_id=message, node=node, step=step)


# -- select ----------------------------------------------------------------------------------


def test_f106_select_a_namespace_with_and_without_what_is_below() -> None:
    """The path alone, or all that begins with it."""
    events = [Value({"n": n}, origin=at(*path)) for n, path in enumerate([(), ("a",), ("a", "b"), ("ab",)])]
    assert list(select(events, "values", ("a",))) == [events[1]]
    assert list(select(events, ["values"], ["a"], subtree=True)) == [events[1], events[2]]
    assert list(select(events, None)) == [events[0]]
    assert list(select(events, None, subtree=True)) == events
    assert list(select(events, "messages", subtree=True)) == []


def test_f85_select_knows_the_channel_of_every_event() -> None:
    """Each event is in its own channel and in no other."""
    events: list[Event] = [Text("a"), Custom(1), Task("start", "t"), Value({}), Lifecycle("started")]
    for event in events:
        for channel in CHANNELS:
            assert list(select([event], channel)) == ([event] if event.channel == channel else [])


def test_f84_an_unknown_channel_is_told_at_once() -> None:
    """Not only when the first event comes."""
    with pytest.raises(ConfigurationError):
        select([], "mesages")


def test_projections_start_no_work(server: ModelServer) -> None:
    """A stream that is only projected is not started before the projection is read."""
    stream = make(server).stream("hi")
    views = [select(stream), group_messages(stream)]
    assert not server.requests
    del views
    assert "not started" in repr(stream)


# -- messages --------------------------------------------------------------------------------


def test_f108_two_runs_interleaved() -> None:
    """Each run's text is its own."""
    events = [Text(letter, origin=at(run=letter)) for _ in range(4) for letter in "ab"]
    assert [view.text for view in group_messages(events)] == ["aaaa", "bbbb"]


def test_f109_a_message_and_its_pieces_make_one_view() -> None:
    """The whole message counts, and pieces that come late are no second one."""
    whole = {"role": "assistant", "content": "Hello!"}
    where = at(message="m")
    events = [Thinking("hm", origin=where), Text("Hel", origin=where), Message(whole, origin=where)]
    [view] = group_messages([*events, Text("late", origin=where), Message(whole, origin=where)])
    assert (view.text, view.thinking, view.complete) == ("Hello!", "hm", True)
    assert view.message == whole
    assert (view.message_id, view.run_id, view.namespace, view.step) == ("m", "r", (), 1)


def test_a_message_alone_makes_a_view() -> None:
    """Content in parts is text, too; tool messages are none of a model's."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "image_url"}, {"type": "text", "text": "lo"}]
    views = group_messages(
        [
            Message({"role": "assistant", "content": parts}, origin=at(message="1")),
            Message({"role": "tool", "content": "x"}, origin=at(message="2")),
            Message({"role": "assistant", "content": None}, False, origin=at(message="3")),
        ]
    )
    assert [(view.text, view.complete) for view in views] == [("Hello", True), ("", False)]


def test_f86_a_failed_try_is_left_out() -> None:
    """Only the try that counts has a view."""
    events = [
        Text("Hel", origin=at(message="1")),
        AttemptFailed(1, InternalServerError("x"), True, "Hel", origin=at(message="1")),
        Text("Hello", origin=at(message="2")),
        UsageReport(Usage(), origin=at()),
    ]
    [view] = group_messages(events)
    assert (view.text, view.message_id, view.complete) == ("Hello", "2", True)
    without_id = [
        Text("Hel", origin=at()),
        AttemptFailed(1, InternalServerError("x"), False, "Hel", origin=at()),
    ]
    assert list(group_messages(without_id)) == []


def test_a_message_that_was_cut_is_not_complete() -> None:
    """A3.12: what was put together from pieces without an end is marked."""
    [view] = group_messages([Text("Hel", origin=at(message="1")), Error(InternalServerError("x"))])
    assert (view.text, view.complete) == ("Hel", False)


def test_f110_many_pieces_in_linear_time() -> None:
    """A hundred thousand pieces: order kept, quickly done."""
    events = [Text(str(n % 10), origin=at(message="m")) for n in range(100_000)]
    began = time.monotonic()
    [view] = group_messages(events)
    assert view.text == "".join(str(n % 10) for n in range(100_000))
    assert time.monotonic() - began < 20


def test_messages_of_a_real_run(server: ModelServer) -> None:
    """A tool turn and an answer give two views, with or without whole messages."""
    for channels in (["messages"], None, [*CHANNELS]):
        server.call("add", {"a": 2}, text=["Let me", " see"])
        server.say(["It is", " 3"], thinking="easy")

        @tool
        def add(a: int) -> int:
            "Add one."
            return a + 1

        events = list(make(server).stream("hi", [add], channels=channels))
        views = list(group_messages(events))
        assert [(v.text, v.complete) for v in views] == [("Let me see", True), ("It is 3", True)]
        assert views[1].thinking == "easy"
        assert final_answer(events) == "It is 3"
        assert views[0].message_id != views[1].message_id


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.text(max_size=3)), max_size=30))
def test_joined_pieces_are_the_text_of_their_message(pieces: list[tuple[str, str, str]]) -> None:
    """Whatever the order, each message has its own pieces, in order."""
    events = [Text(text, origin=at(run=run, message=message)) for run, message, text in pieces]
    got = {(view.run_id, view.message_id): view.text for view in group_messages(events)}
    expected: dict[tuple[str, str], str] = {}
    for run, message, text in pieces:
        expected[run, message] = expected.get((run, message), "") + text
    assert got == expected


# -- the answer ------------------------------------------------------------------------------


def test_the_answer_is_the_last_message_without_calls() -> None:
    """A message that asks for a tool is no answer."""
    call = {"role": "assistant", "content": "I look", "tool_calls": [{"id": "c"}]}
    asked = [Message(call, origin=at(message="1"))]
    answer = [Message({"role": "assistant", "content": "42"}, origin=at(message="2"))]
    assert final_answer([*asked, *answer]) == "42"
    assert final_answer(asked) is None
    assert final_answer([Text("I look", origin=at()), ToolCall("c", "t", {}, origin=at())]) is None
    assert final_answer([]) is None
    assert final_answer([Text("cut")]) is None


@pytest.mark.parametrize(
    "end",
    [
        Done(RunResult(text="old", status="pending")),
        Done(RunResult(text="old", status="incomplete")),
        Error(InternalServerError("x")),
    ],
    ids=["pending", "incomplete", "error"],
)
def test_a_run_that_did_not_end_well_has_no_answer(end: Event) -> None:
    """However it ended otherwise, there is none."""
    message = Message({"role": "assistant", "content": "old"}, origin=at(message="1"))
    assert final_answer([message, end]) is None


def test_the_answer_of_an_agent_inside() -> None:
    """A namespace has an answer of its own."""
    events = [
        Message({"role": "assistant", "content": "in"}, origin=at("child", message="1")),
        Message({"role": "assistant", "content": "out"}, origin=at(message="2")),
    ]
    assert final_answer(events) == "out"
    assert final_answer(events, ("child",)) == "in"


# -- namespaces ------------------------------------------------------------------------------


def nested(kind: str, payload: Any = None) -> list[Event]:
    """A task of the root whose inside reports a value and has something nested itself."""
    return [
        Task("start", "t1", origin=at(node="agent")),
        Lifecycle("started", "agent", "t1", origin=at("agent")),
        Value({"n": 1}, origin=at("agent")),
        Update({"model": {}}, origin=at("agent")),
        Task("start", "t2", origin=at("agent", node="inner")),
        Text("deep", origin=at("agent", "inner")),
        Task("finish", "t2", origin=at("agent", node="inner")),
        Value({"n": 2}, origin=at("agent")),
        Task(kind, "t1", payload, origin=at(node="agent")),
    ]


@pytest.mark.parametrize(
    ("kind", "payload", "status", "error"),
    [
        ("finish", None, "completed", None),
        ("error", "boom", "failed", "boom"),
        ("timeout", "too long", "failed", "too long"),
        ("interrupt", [{"id": "1"}], "interrupted", None),
        ("start", None, "running", None),
    ],
)
def test_f103_a_namespace_ends_as_its_task_does(
    kind: str, payload: Any, status: str, error: str | None
) -> None:
    """The status comes from the parent's task; values, updates, tasks and what is nested are there."""
    [one] = summarize_namespaces(nested(kind, payload))
    assert (one.namespace, one.name, one.status, one.error) == (("agent",), "agent", status, error)
    assert one.trigger == "t1"
    assert one.value == {"n": 2}
    assert one.updates == [{"model": {}}]
    assert [task.kind for task in one.tasks] == ["start", "finish"]
    [inner] = one.children
    assert (inner.namespace, inner.status, inner.trigger) == (("agent", "inner"), "completed", "t2")
    assert [s.name for s in one.walk()] == ["agent", "inner"]
    assert summarize_namespaces(nested(kind, payload), ("agent",)) == [inner]


def test_f103_a_namespace_named_for_its_call() -> None:
    """The namespace "agent:abc" is the agent that was started for the call abc."""
    events = [
        Task("start", "abc", origin=at(node="tools")),
        Value({"n": 1}, origin=at("agent:abc")),
        Task("finish", "abc", origin=at(node="tools")),
    ]
    [one] = summarize_namespaces(events)
    assert (one.name, one.trigger, one.status, one.value) == ("agent", "abc", "completed", {"n": 1})


def test_f104_siblings_are_told_apart() -> None:
    """Values of two namespaces do not mix."""
    events = [Value({"n": n}, origin=at(name)) for n, name in enumerate("abab")]
    assert [(s.name, s.value) for s in summarize_namespaces(events)] == [("a", {"n": 2}), ("b", {"n": 3})]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (Lifecycle("completed", origin=at("a")), "completed"),
        (Lifecycle("failed", error="x", origin=at("a")), "failed"),
        (Lifecycle("interrupted", origin=at("a")), "interrupted"),
        (Lifecycle("cancelled", origin=at("a")), "cancelled"),
        (Done(RunResult(), origin=at("a")), "completed"),
        (Done(RunResult(status="pending"), origin=at("a")), "interrupted"),
        (Error(InternalServerError("x"), origin=at("a")), "failed"),
        (Error(RunCancelledError("x"), origin=at("a")), "cancelled"),
        (Pending(Request(id="pnd-1"), origin=at("a")), "interrupted"),
        (Text("x", origin=at("a")), "running"),
    ],
    ids=str,
)
def test_without_tasks_the_status_is_ones_own(last: Event, status: str) -> None:
    """No end seen is running, never completed."""
    [one] = summarize_namespaces([Text("x", origin=at("a")), last])
    assert one.status == status


def test_answered_and_going_on_is_running() -> None:
    """A namespace that waited and goes on runs."""
    events = [Pending(Request(), origin=at("a")), Text("x", origin=at("a"))]
    assert summarize_namespaces(events)[0].status == "running"


def test_f105_lifecycle_from_what_was_seen() -> None:
    """One start and one end a path, parents first; none that still runs has an end."""
    seen = [(e.namespace, e.status, e.trigger_call_id) for e in lifecycle(nested("error", "boom"))]
    assert seen == [
        (("agent",), "started", "t1"),
        (("agent",), "failed", "t1"),
        (("agent", "inner"), "started", "t2"),
        (("agent", "inner"), "completed", "t2"),
    ]
    assert [e.status for e in lifecycle([Text("x", origin=at("a"))])] == ["started"]


def test_namespaces_of_a_mux(server: ModelServer) -> None:
    """Producers of a real mux: one ends, one fails."""
    server.say("ok")
    client = make(server)

    def broken(sink: Any) -> None:
        raise RuntimeError("boom")

    both = mux([("fine", client.stream("good")), ("broken", broken)])
    found = {one.name: one for one in summarize_namespaces(both)}
    assert {name: one.status for name, one in found.items()} == {"fine": "completed", "broken": "failed"}
    assert "boom" in str(found["broken"].error)


# -- collected -------------------------------------------------------------------------------


def test_a1_8_events_of_a_run_are_on_its_result(server: ModelServer) -> None:
    """run(collect_events=True) keeps what a stream would have yielded, its end included."""

    @tool
    def add(a: int) -> int:
        "Add one."
        return a + 1

    def script() -> None:
        server.call("add", {"a": 2}, id="c1")
        server.say("It is 3")

    script()
    result = make(server).run("hi", [add], collect_events=True)
    assert result.events is not None
    assert [e.type for e in result.events] == ["tool_call", "tool_result", "text", "usage", "done"]
    end = result.events[-1]
    assert isinstance(end, Done)
    assert end.result is result
    script()
    streamed = list(make(server).stream("hi", [add], model_stream=False))
    assert result.events[:-1] == streamed[:-1]
    assert {e.run_id for e in result.events[:-1]} == {result.run_id}
    assert final_answer(result.events) == result.text
    script()
    plain = make(server).run("hi", [add])
    assert plain.events is None
    assert plain == result


def test_events_stay_out_of_what_a_result_says_of_itself(server: ModelServer) -> None:
    """They are in no repr and no JSON, and a result with them can be copied and pickled."""
    server.say("Hi")
    result = make(server).run("hi", collect_events=True)
    assert "events" not in repr(result)
    assert "events" not in result.to_dict()
    for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert copied == result
        assert copied.events == result.events


def test_f98_a_suspended_run_has_the_events_before_it(server: ModelServer) -> None:
    """A run that waits has all up to its request, and one that goes on has the rest."""

    @tool(approval=True)
    def wipe() -> str:
        "Wipe all."
        return "gone"

    server.call("wipe", {}, text="I wipe")
    client = make(server)
    result = client.run("hi", [wipe], id="c", collect_events=True)
    assert result.status == "pending"
    assert result.events is not None
    assert [e.type for e in result.events] == ["text", "pending", "usage", "done"]
    server.say("Wiped.")
    answer = Answer.approve(result.pending[0])
    rest = client.resume("c", answer, [wipe], collect_events=True, channels="tools").events
    assert rest is not None
    assert [e.type for e in rest] == ["tool_call", "tool_result", "usage", "done"]


def test_a_failed_run_has_its_events_on_the_error(server: ModelServer) -> None:
    """What came before the failure is not lost."""

    @tool
    def add(a: int) -> int:
        "Add one."
        return a + 1

    server.call("add", {"a": 2})
    server.fail(400)
    with pytest.raises(ToolnexusError) as caught:
        make(server).run("hi", [add], collect_events=True)
    events = caught.value.events
    assert events is not None
    assert [e.type for e in events] == ["tool_call", "tool_result", "error"]
    assert isinstance(events[-1], Error)
    assert events[-1].error is caught.value
    server.fail(400)
    with pytest.raises(ToolnexusError) as caught:
        make(server).run("hi")
    assert caught.value.events is None


def test_channels_of_a_collected_run(server: ModelServer) -> None:
    """Channels choose what is collected, and nothing else is built."""
    server.say("Hi")
    events = make(server).run("hi", collect_events=True, channels=["tasks", "messages"]).events
    assert events is not None
    assert [e.type for e in events] == ["task", "text", "task", "message", "usage", "done"]
    assert events[1].message_id == events[3].message_id != ""
    with pytest.raises(ConfigurationError):
        make(server).run("hi", channels=["tasks"])
    with pytest.raises(ConfigurationError):
        make(server).run("hi", collect_events=True, channels=["task"])


def test_progress_and_hooks_of_a_collected_run(server: ModelServer) -> None:
    """What tools and hooks emit is collected, too; a hook that raises leaves what came before it."""

    @tool
    def work() -> str:
        "Work."
        return "ok"

    class Hooks:
        def after_tool(self, ctx: Any) -> None:
            ctx["emit"]("done")
            raise RuntimeError("boom")

    server.call("work", {})
    with pytest.raises(HookError) as caught:
        make(server, hooks=Hooks()).run("hi", [work], collect_events=True)
    assert caught.value.events is not None
    assert Custom("done") in caught.value.events
    assert not [e for e in caught.value.events if isinstance(e, ToolFinished)]
