"""Several producers in one stream: order, bounds, drops, labels, endings. Names follow the F checks."""

from __future__ import annotations

import contextvars
import gc
import random
import threading
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus import (
    AttemptFailed,
    Client,
    ConfigurationError,
    Custom,
    Done,
    Error,
    Event,
    Lifecycle,
    Message,
    RunCancelledError,
    RunTimeoutError,
    StreamThreadError,
    Text,
    ToolCall,
    ToolFinished,
    ToolnexusError,
    tool,
)
from toolnexus.compose import BackpressureError, EmitTimeoutError, Mux, Screen, Sink, mux
from toolnexus.events import Origin
from toolnexus.testing import ModelServer


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


def numbers(count: int) -> Callable[[Sink], None]:
    """Make a producer of the numbers from 0."""

    def produce(sink: Sink) -> None:
        for number in range(count):
            sink.emit(number)

    return produce


def endless(sink: Sink) -> None:
    """Produce until told to stop."""
    while not sink.cancelled:
        sink.emit("again")


def silent(sink: Sink) -> None:
    """Produce nothing until told to stop."""
    while not sink.cancelled:
        time.sleep(0.005)


def payloads(events: list[Event], node: str | None = None) -> list[Any]:
    """Return the payloads of custom events, of one producer or all."""
    return [e.payload for e in events if isinstance(e, Custom) and node in (None, e.node)]


def lifecycle(events: list[Event], *namespace: str) -> list[str]:
    """Return what was reported of a namespace."""
    return [e.status for e in events if isinstance(e, Lifecycle) and e.namespace == namespace]


def mux_threads() -> list[threading.Thread]:
    """Return the live threads of producers."""
    return [t for t in threading.enumerate() if t.name.startswith("toolnexus-mux-")]


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for a condition, and tell whether it came."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


# -- beginning, order, labels --------------------------------------------------------------------


def test_nothing_begins_before_the_first_next() -> None:
    """A mux that is not read starts no thread."""
    began: list[int] = []
    mux([lambda sink: began.append(1)]).close()
    assert not began
    assert not mux_threads()


def test_f60_start_items_stop_in_order_with_labels() -> None:
    """A producer's start comes first, then its items, then its end; all say where they come from."""
    stream = mux([("words", lambda sink: sink.emit("hello"))])
    events = list(stream)
    assert [e.type for e in events] == ["lifecycle", "custom", "lifecycle", "done"]
    assert {e.namespace for e in events[:-1]} == {("words",)}
    assert {e.node for e in events[:-1]} == {"words"}
    assert {e.run_id for e in events} == {stream.run_id}
    assert lifecycle(events, "words") == ["started", "completed"]
    assert [e.seq for e in events] == sorted(e.seq for e in events)


def test_producers_without_a_name_are_numbered() -> None:
    """The names of unnamed producers are producer_1, producer_2, ..."""
    result = mux(["a", "b"]).result()
    assert list(result.producers) == ["producer_1", "producer_2"]


def test_every_kind_of_producer() -> None:
    """Lists, generators, functions, generator functions of a sink and another mux are producers."""

    def generator() -> Iterator[int]:
        yield 1

    def of_sink(sink: Sink) -> Iterator[int]:
        yield 2

    inner = mux([("deep", [3])])
    events = list(mux([("a", [0]), ("b", generator()), ("c", of_sink), ("d", inner), ("e", lambda s: 4)]))
    assert sorted(payloads(events)) == [0, 1, 2, 3]
    assert [e.namespace for e in events if isinstance(e, Custom) and e.payload == 3] == [("d", "deep")]
    result = events[-1].result  # type: ignore[attr-defined]
    assert result.producers["e"].result == 4
    assert result.producers["d"].result.producers["deep"].delivered == 1


def test_f70_child_sinks_append_to_the_namespace() -> None:
    """A child sink's events have the longer namespace."""

    def produce(sink: Sink) -> None:
        sink.child("inner").child("most").emit("deep")

    events = list(mux([("outer", produce)]))
    assert [e.namespace for e in events if isinstance(e, Custom)] == [("outer", "inner", "most")]


def test_f71_two_producers_with_namespaces_of_their_own() -> None:
    """Two producers share one small buffer, and both get through."""
    events = list(mux([("left", numbers(3)), ("right", numbers(3))], max_buffer=4))
    assert payloads(events, "left") == payloads(events, "right") == [0, 1, 2]
    assert events[-1].type == "done"


def test_f73_context_variables_are_seen_by_producers() -> None:
    """A producer's thread sees the context variables of whoever reads."""
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")
    var.set("mine")
    assert payloads(list(mux([lambda sink: sink.emit(var.get())]))) == ["mine"]


# -- the bound ----------------------------------------------------------------------------------


def test_f64_block_with_room_for_one_keeps_order() -> None:
    """With room for one item all get through, in order."""
    assert payloads(list(mux([numbers(50)], max_buffer=1))) == list(range(50))


def test_block_stops_producers_at_the_bound() -> None:
    """A producer is no further ahead than the buffer is large, and the one item that it waits with."""
    done: list[int] = []

    def produce(sink: Sink) -> None:
        for number in range(100):
            sink.emit(number)
            done.append(number)

    with mux([produce], max_buffer=5, emit_timeout=None) as stream:
        next(stream)
        wait_until(lambda: len(done) > 6, 0.3)
        assert len(done) <= 6


def filled(policy: str, *items: Any, size: int = 2, timeout: float = 5.0) -> tuple[list[Any], list[Event]]:
    """Have a producer emit all items before anything is read; return what emit said, and what is read."""
    said: list[Any] = []
    ready = threading.Event()

    def produce(sink: Sink) -> None:
        for item in items:
            try:
                said.append(sink.emit(item))
            except BackpressureError as error:
                said.append(type(error))
        ready.set()

    stream = mux([("p", produce)], max_buffer=size, overflow=policy, emit_timeout=timeout)
    events = [next(stream)]
    assert ready.wait(5)
    return said, [*events, *stream]


def test_f65_drop_newest() -> None:
    """What finds no room is dropped: emit says so, one report says how many, and so does the result."""
    said, events = filled("drop_newest", 0, 1, 2, 3)
    assert said == [True, True, False, False]
    assert payloads(events) == [0, 1]
    reports = [e.payload for e in events if e.type == "debug"]  # type: ignore[attr-defined]
    assert reports == [{"type": "dropped", "count": 2, "overflow": "drop_newest", "producers": {"p": 2}}]
    types = [e.type for e in events]
    assert types.index("debug") < types.index("custom")  # before the next item that is delivered
    assert events[-1].result.dropped == 2  # type: ignore[attr-defined]


def test_f66_drop_oldest() -> None:
    """The oldest piece makes room for the newest."""
    said, events = filled("drop_oldest", 0, 1, 2, 3)
    assert said == [True] * 4
    assert payloads(events) == [2, 3]
    assert events[-1].result.producers["p"].dropped == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_f66_messages_and_results_are_never_dropped(policy: str) -> None:
    """Whole messages and results of tools stay, pieces go."""
    message = Message({"role": "assistant", "content": "Hi"})
    result = ToolFinished("c1", "add", "5")

    def produce(sink: Sink) -> None:
        for item in (message, result, *(Text("x") for _ in range(20)), message, result):
            sink.emit(item)

    events = []
    for event in mux([produce], max_buffer=2, overflow=policy):
        time.sleep(0.005)
        events.append(event)
    assert events.count(message) == events.count(result) == 2


def test_f66_what_may_not_be_dropped_waits_for_room() -> None:
    """A full buffer of messages makes the next one wait, under every policy that drops."""
    said, events = filled("drop_oldest", *[Message({"role": "user", "content": "x"})] * 3, timeout=0.05)
    assert said == [True, True, EmitTimeoutError]
    assert events[-1].result.dropped == 0  # type: ignore[attr-defined]


def test_f67_error_raises_in_the_producer() -> None:
    """With "error" the producer is told that there is no room, and may go on."""
    said, events = filled("error", 0, 1, 2)
    assert said == [True, True, BackpressureError]
    assert payloads(events) == [0, 1]
    assert lifecycle(events, "p") == ["started", "completed"]


def test_f72_an_emit_that_timed_out_is_not_delivered_later() -> None:
    """When emit raises because there was no room in time, the item is gone for good."""
    said, events = filled("block", 0, 1, 2, timeout=0.05)
    assert said == [True, True, EmitTimeoutError]
    assert payloads(events) == [0, 1]


def test_streams_and_iterables_wait_without_emit_timeout() -> None:
    """An iterable is only paused by a slow reader, however short the timeout of emit."""
    stream = mux([range(5)], max_buffer=1, emit_timeout=0.01)
    events = [next(stream)]
    time.sleep(0.1)
    assert payloads([*events, *stream]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"max_buffer": 0},
        {"max_buffer": 1.5},
        {"overflow": "forget"},
        {"emit_timeout": -1},
        {"timeout": 0},
        {"heartbeat": 0},
    ],
)
def test_f68_wrong_options_are_errors(options: dict[str, Any]) -> None:
    """A buffer without room, and whatever else makes no sense, is refused at once."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        mux(["a"], **options)


@pytest.mark.parametrize("producers", [[], [5], [("a", "x"), ("a", "y")], [("", "x")]])
def test_wrong_producers_are_errors(producers: list[Any]) -> None:
    """No producer, something that produces nothing, and two of one name are refused."""
    with pytest.raises(ConfigurationError):
        mux(producers)


def test_coroutine_functions_are_refused() -> None:
    """Nothing here is async."""

    async def produce(sink: Sink) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine"):
        mux([produce])


# -- endings ------------------------------------------------------------------------------------


def test_f69_one_producer_raises_and_the_others_go_on() -> None:
    """A failure is reported for its namespace and in the result; the stream goes on to its end."""

    def dying(sink: Sink) -> None:
        sink.emit("last words")
        raise ValueError("boom")

    events = list(mux([("dying", dying), ("living", numbers(5))]))
    assert lifecycle(events, "dying") == ["started", "failed"]
    assert [e.error for e in events if isinstance(e, Lifecycle) and e.error] == ["ValueError: boom"]
    assert payloads(events, "dying") == ["last words"]
    assert payloads(events, "living") == [0, 1, 2, 3, 4]
    done = events[-1]
    assert isinstance(done, Done)
    one = done.result.producers["dying"]  # type: ignore[attr-defined]
    assert (one.status, type(one.error)) == ("failed", ValueError)
    assert '"error": "ValueError: boom"' in done.result.to_json()


def test_f61_the_whole_timeout() -> None:
    """A producer that stays silent does not keep the mux open beyond its time."""
    stream = mux([silent], timeout=0.05)
    events = list(stream)
    last = events[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, RunTimeoutError)
    assert wait_until(lambda: not mux_threads())


def test_f62_heartbeats_while_nothing_comes_and_the_timeout_holds() -> None:
    """A silent producer gives heartbeats, which are no progress: the timeout still ends the stream."""
    events = list(mux([silent], heartbeat=0.02, timeout=0.3))
    assert [e.type for e in events].count("heartbeat") >= 2
    assert events[-1].type == "error"
    assert events[-1].error.kind == "timeout"  # type: ignore[attr-defined]


def test_f62_no_heartbeat_while_the_consumer_is_busy() -> None:
    """A heartbeat is for a consumer that waits, not for one that is late."""
    stream = mux([numbers(3)], heartbeat=0.02)
    events = []
    for event in stream:
        time.sleep(0.05)
        events.append(event.type)
    assert "heartbeat" not in events[1:]


def test_f63_no_heartbeat_unless_asked_for() -> None:
    """By default a silent producer gives nothing."""
    events = list(mux([lambda sink: time.sleep(0.1)]))
    assert [e.type for e in events] == ["lifecycle", "lifecycle", "done"]


def test_f59_leaving_early_stops_all_producers() -> None:
    """close() tells every producer, and nothing of theirs is delivered afterwards."""
    stopped: list[str] = []

    def slow(sink: Sink) -> None:
        sink.emit("first")
        while not sink.cancelled:
            time.sleep(0.005)
        try:
            sink.emit("late")
        except RunCancelledError:
            stopped.append(sink.name)

    stream = mux([("a", slow), ("b", slow)])
    for event in stream:
        if isinstance(event, Custom):
            break
    stream.close()
    assert wait_until(lambda: len(stopped) == 2)
    rest = list(stream)
    assert [e.type for e in rest] == ["error"]
    assert wait_until(lambda: not mux_threads())


def test_leaving_the_loop_without_close_is_enough() -> None:
    """A mux that nobody holds any more ends its producers: waiting, silent and endless ones."""
    for event in mux([("e", endless), ("s", silent)], max_buffer=2, emit_timeout=None):
        if isinstance(event, Custom):
            break
    del event
    gc.collect()
    assert wait_until(lambda: not mux_threads())


def test_cancel_from_another_thread() -> None:
    """cancel() ends the iteration with an Error that has what was reached."""
    stream = mux([("s", silent), ("n", numbers(3))])
    threading.Timer(0.05, stream.cancel, ["enough"]).start()
    last = list(stream)[-1]
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError)
    assert "enough" in str(last.error)
    assert last.partial is not None
    assert last.partial.producers["n"].delivered == 3  # type: ignore[attr-defined]


def test_one_thread_reads() -> None:
    """A second thread that iterates gets an error."""
    stream = mux([endless])
    next(stream)
    raised: list[BaseException] = []

    def other() -> None:
        try:
            next(stream)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    stream.close()
    assert isinstance(raised[0], StreamThreadError)


def test_a_reader_that_dies_ends_the_producers() -> None:
    """Producers that wait for room notice that the thread that read is gone."""
    streams: list[Mux] = []

    def read() -> None:
        streams.append(mux([endless], max_buffer=1, emit_timeout=None))
        next(streams[0])

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert wait_until(lambda: not mux_threads())


def test_a_generator_is_closed_when_the_mux_is_left() -> None:
    """An iterable that has close() is closed by its own thread."""
    closed = threading.Event()

    def generator() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with mux([generator()], max_buffer=1) as stream:
        next(stream)
    assert closed.wait(5)


# -- streams of agents --------------------------------------------------------------------------


def test_two_agents_in_one_stream(server: ModelServer, client: Client) -> None:
    """Events of inner runs have the producer's namespace, keep their node; their end becomes a Lifecycle."""
    server.on_request(lambda request: "Hello" if "one" in str(request.raw_body) else "World")
    streams = [("one", client.stream("one")), ("two", client.stream("two"))]
    stream = mux(streams)
    events = list(stream)
    texts: dict[tuple[str, ...], str] = defaultdict(str)
    for event in events:
        if isinstance(event, Text):
            texts[event.namespace] += event.delta
            assert event.node == "model"
            assert event.run_id == dict(streams)[event.namespace[0]].run_id
    assert texts == {("one",): "Hello", ("two",): "World"}
    assert [e.type for e in events if e.type in ("done", "error")] == ["done"]
    result = stream.result()
    assert result.producers["one"].result.text == "Hello"
    assert lifecycle(events, "two") == ["started", "completed"]
    assert stream.text == ""


def test_an_inner_run_that_fails_is_reported(server: ModelServer, client: Client) -> None:
    """The Error of an inner run becomes a Lifecycle "failed"; its exception is in the result."""
    server.fail(401)
    events = list(mux([("bad", client.stream("x")), ("good", [1])]))
    assert lifecycle(events, "bad") == ["started", "failed"]
    assert events[-1].result.producers["bad"].error.kind == "auth"  # type: ignore[attr-defined]
    assert payloads(events) == [1]


def test_each_path_has_one_lifecycle(server: ModelServer, client: Client) -> None:
    """A stream that reports its own lifecycle is not reported twice."""
    server.say("Hi")
    events = list(mux([("one", client.stream("x", channels=["lifecycle"]))]))
    assert lifecycle(events, "one") == ["started", "completed"]


def test_an_inner_run_that_waits_is_interrupted_or_answered(server: ModelServer, client: Client) -> None:
    """A question of an inner run can be answered on the mux."""

    @tool(approval=True)
    def delete(path: str) -> str:
        """Delete."""
        return f"{path} is gone"

    server.call("delete", {"path": "a"})
    server.say("Done.")
    stream = mux([("agent", client.stream("x", [delete], answers="wait"))])
    for event in stream:
        if event.type == "pending":
            stream.answer(event.request, True)  # type: ignore[attr-defined]
    assert stream.result().producers["agent"].result.text == "Done."

    server.call("delete", {"path": "b"})
    events = list(mux([("agent", client.stream("x", [delete]))]))
    assert lifecycle(events, "agent") == ["started", "interrupted"]


def test_cancelling_closes_the_connections_of_inner_runs(server: ModelServer, client: Client) -> None:
    """A run whose server never answers ends at once when the mux is closed."""
    server.say(["Hel", "lo"], hold=True)
    stream = mux([("agent", client.stream("x")), ("other", silent)])
    for event in stream:
        if isinstance(event, Text):
            break
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 2
    assert server.wait_for_disconnect()


def test_a_run_inside_a_producer_is_cancelled_with_it(server: ModelServer, client: Client) -> None:
    """A function can pass on runs of its own, and hand them its scope."""
    server.say("first")
    server.say("second")

    def both(sink: Sink) -> None:
        for prompt in ("a", "b"):
            for event in client.stream(prompt, scope=sink.scope):
                sink.child(prompt).emit(event)

    events = list(mux([("both", both)]))
    assert lifecycle(events, "both", "a") == ["completed"]
    assert lifecycle(events, "both", "b") == ["completed"]
    assert lifecycle(events, "both") == ["started", "completed"]


# -- many ---------------------------------------------------------------------------------------


def check_counts(stream: Mux, each: dict[str, int]) -> Counter[str]:
    """Read a mux of numbers; check the order of each producer and that all counts add up."""
    last: dict[str, int] = {}
    seen: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for event in stream:
        if isinstance(event, Custom):
            assert event.payload > last.get(event.node, -1)
            last[event.node] = event.payload
            seen[event.node] += 1
        elif event.type == "debug":
            told.update(event.payload["producers"])  # type: ignore[attr-defined]
    result = stream.result()
    for name, count in each.items():
        one = result.producers[name]
        assert one.status == "completed"
        assert one.delivered == seen[name]
        assert one.dropped == told[name]
        assert one.delivered + one.dropped == count
    return seen


@pytest.mark.parametrize("policy", ["block", "drop_newest", "drop_oldest"])
@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_fifty_producers(policy: str, count: int) -> None:
    """Fifty producers at once: order kept, counts add up, and with "block" nothing is missing."""
    producers = [(f"p{i}", numbers(count)) for i in range(50)]
    stream = mux(producers, overflow=policy, emit_timeout=None)
    seen = check_counts(stream, {name: count for name, _ in producers})
    if policy == "block":
        assert set(seen.values()) == {count}
    assert wait_until(lambda: not mux_threads())


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_fifty_producers_that_get_errors(count: int) -> None:
    """With "error" each item is either delivered or refused."""
    refused: Counter[str] = Counter()

    def produce(sink: Sink) -> None:
        for number in range(count):
            try:
                sink.emit(number)
            except BackpressureError:
                refused[sink.name] += 1

    producers = [(f"p{i}", produce) for i in range(50)]
    seen: Counter[str] = Counter()
    for event in mux(producers, overflow="error"):
        if isinstance(event, Custom):
            seen[event.node] += 1
    assert all(seen[name] + refused[name] == count for name, _ in producers)


def test_a_silent_a_dying_and_an_endless_producer() -> None:
    """None of them keeps the others from being read, and leaving ends them all."""

    def dying(sink: Sink) -> None:
        raise RuntimeError("boom")

    events: list[Event] = []
    with mux([("s", silent), ("d", dying), ("e", endless), ("n", numbers(100))], max_buffer=8) as stream:
        for event in stream:
            events.append(event)
            if len(payloads(events, "n")) == 100 and lifecycle(events, "d") == ["started", "failed"]:
                break
    assert payloads(events, "n") == list(range(100))
    assert wait_until(lambda: not mux_threads())


def test_every_producer_gets_its_turn() -> None:
    """Endless producers get about the same share of the buffer."""
    seen: Counter[str] = Counter()
    with mux([(f"p{i}", endless) for i in range(10)], max_buffer=16, emit_timeout=None) as stream:
        for event in stream:
            if isinstance(event, Custom):
                seen[event.node] += 1
            if sum(seen.values()) == 5000:
                break
    assert len(seen) == 10
    assert min(seen.values()) > 100


@pytest.mark.parametrize("policy", ["block", "drop_newest", "drop_oldest"])
def test_memory_is_bounded(policy: str) -> None:
    """However much passes through, text included, what is held does not grow."""

    def produce(sink: Sink) -> None:
        for _ in range(2000):
            sink.emit(Text("x" * 5000))

    tracemalloc.start()
    try:
        for _ in mux([produce, produce], max_buffer=16, overflow=policy):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # 20 MB pass through


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    size=st.integers(1, 8),
    policy=st.sampled_from(["block", "drop_newest", "drop_oldest"]),
    seed=st.integers(0, 1000),
)
def test_order_and_counts_whatever_the_sizes(counts: list[int], size: int, policy: str, seed: int) -> None:
    """For any number of items, size of buffer and policy: order kept, counts add up."""
    rng = random.Random(seed)

    def produce(count: int) -> Callable[[Sink], None]:
        def go(sink: Sink) -> None:
            for number in range(count):
                if rng.random() < 0.1:
                    time.sleep(0.0005)
                sink.emit(number)

        return go

    each = {f"p{i}": count for i, count in enumerate(counts)}
    stream = mux([(name, produce(n)) for name, n in each.items()], max_buffer=size, overflow=policy)
    check_counts(stream, each)


# -- as any other stream -------------------------------------------------------------------------


def test_a_mux_goes_to_the_web() -> None:
    """A mux is a stream: it can be sent as server-sent events."""
    body = b"".join(mux([("a", [{"n": 1}])]).sse())
    assert b"event: custom" in body
    assert b'"namespace": ["a"]' in body or b'"namespace":["a"]' in body
    assert body.count(b"event: done") == 1


def test_the_same_iterator_twice_is_told_at_once(server: ModelServer) -> None:
    """Two threads cannot read one stream; a list can be read as often as one likes."""
    with Client(base_url=server.base_url, model="m") as client:
        stream = client.stream("hi")
        with pytest.raises(ConfigurationError, match="b is a producer already"):
            mux([("a", stream), ("b", stream)])
    numbers = [1, 2]
    assert mux([numbers, numbers]).result().delivered == 4


def test_a_display_tells_producers_apart() -> None:
    """What several say at once is not mixed up, and has a name before it; equal call ids are two calls."""
    screen = Screen()
    one, two = Origin(namespace=("one",)), Origin(namespace=("two",))
    for origin, text in ((one, "Hel"), (two, "Bon"), (one, "lo"), (two, "jour")):
        screen.take(Text(text, origin=origin))
    for origin in (one, two):
        screen.take(ToolCall("c", "f", {}, origin=origin))
    screen.take(ToolFinished("c", "f", "first", origin=one))
    screen.take(ToolFinished("c", "f", "second", origin=two))
    screen.take(Text("half", origin=one))
    screen.take(Text("whole", origin=two))
    screen.take(AttemptFailed(1, ToolnexusError("x"), True, "half", origin=one))
    shown = screen.markdown()
    assert shown.startswith("**one**\n\nHello\n\n**two**\n\nBonjour\n\n<details>")
    assert shown.index("first") < shown.index("second")
    assert shown.endswith("**two**\n\nwhole")
    assert "half" not in shown
