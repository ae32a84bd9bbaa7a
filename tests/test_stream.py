"""The stream: one terminal item, one thread, one use; and nothing left behind."""

from __future__ import annotations

import gc
import logging
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

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
    Lifecycle,
    MemoryStore,
    Message,
    RateLimitError,
    RunCancelledError,
    RunTimeoutError,
    StoreError,
    StreamThreadError,
    Task,
    Text,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolFinished,
    ToolnexusError,
    ToolOutput,
    Update,
    Usage,
    UsageReport,
    Value,
)
from toolnexus.testing import ModelServer


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with make(server) as client:
        yield client


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="test", api_key="test-key", **options)


def echo_tool(**options: Any) -> Tool:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return Tool("echo", "Say it again.", schema, lambda args, ctx: args.get("text", ""), **options)


def test_a_text_yields_text_usage_done(server: ModelServer, client: Client) -> None:
    """With the defaults a text of two deltas is exactly text, text, usage, done."""
    server.say(["Hel", "lo"], usage=(5, 2))
    *events, done = client.stream("hi")
    assert events == [Text("Hel"), Text("lo"), UsageReport(Usage(5, 2, 7))]
    assert isinstance(done, Done)
    assert done.result.text == "Hello"
    assert [e.type for e in (*events, done)] == ["text", "text", "usage", "done"]


def test_a_tool_turn_yields_call_result_and_then_the_answer(server: ModelServer, client: Client) -> None:
    """A tool turn and an answer are tool_call, tool_result, text, usage, done."""
    server.call("echo", {"text": "x"}, id="c1", pieces=2)
    server.say("it said x")
    events = list(client.stream("go", [echo_tool()]))
    assert [e.type for e in events][:2] == ["tool_call", "tool_result"]
    assert events[0] == ToolCall("c1", "echo", {"text": "x"})
    assert events[1] == ToolFinished("c1", "echo", "x", False)
    assert [e.type for e in events][-2:] == ["usage", "done"]
    server.assert_done()


def test_nothing_is_sent_before_the_first_next(server: ModelServer, client: Client) -> None:
    """An unused stream costs no request and no thread."""
    stream = client.stream("hi")
    time.sleep(0.05)
    assert server.connections == 0
    stream.close()
    assert [type(e) for e in stream] == [Error]


def test_a_stream_is_its_own_iterator_and_used_once(server: ModelServer, client: Client) -> None:
    """iter(stream) is stream; after its end it yields nothing more and asks nothing more."""
    server.say("one")
    stream = client.stream("hi")
    assert iter(stream) is stream
    assert list(stream)
    assert list(stream) == []
    assert len(server.requests) == 1


def test_start_begins_before_the_iteration(server: ModelServer, client: Client) -> None:
    """start() sends the request at once and returns the stream."""
    server.say("now")
    stream = client.stream("hi")
    assert stream.start() is stream
    server.wait_for_request(timeout=5)
    assert stream.result().text == "now"


def test_a_second_thread_is_told_so(server: ModelServer, client: Client) -> None:
    """One stream belongs to one thread."""
    server.say(["a", "b"])
    stream = client.stream("hi")
    next(stream)
    caught: list[BaseException] = []

    def other() -> None:
        try:
            for _ in range(10):
                next(stream)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert isinstance(caught[0], StreamThreadError)
    assert isinstance(list(stream)[-1], Done)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(stream.result()))
    thread.start()
    thread.join()
    assert results[0].text == "ab"


def test_result_drains_and_text_deltas_yield_text(server: ModelServer, client: Client) -> None:
    """result() gives the result, text_deltas() the text, and both raise what the run ended with."""
    server.say(["a", "b"])
    assert client.stream("hi").result().text == "ab"
    server.say(["a", "b"])
    stream = client.stream("hi")
    assert "".join(stream.text_deltas()) == "ab" == stream.text
    server.error_in_stream(after=["par", "tial"], type="overloaded_error", message="busy")
    seen: list[str] = []
    with pytest.raises(ToolnexusError) as caught:
        seen.extend(client.stream("hi").text_deltas())
    assert caught.value.partial is not None
    assert caught.value.partial.text == "partial"


def test_a_stream_that_was_read_gives_nothing_more(server: ModelServer, client: Client) -> None:
    """The loop, text_deltas() and result() agree: no event twice, the outcome as often as one likes."""
    server.say(["a", "b"])
    stream = client.stream("hi")
    assert next(stream) == Text("a")
    assert list(stream.text_deltas()) == ["b"]
    for _ in range(2):
        assert list(stream) == []
        assert list(stream.text_deltas()) == []
        assert stream.result().text == stream.text == "ab"
    server.error_in_stream(after=["par"], type="overloaded_error")
    stream = client.stream("hi")
    assert isinstance(list(stream)[-1], Error)
    for _ in range(2):
        assert list(stream) == []
        for again in (stream.text_deltas, stream.result):
            with pytest.raises(ToolnexusError):
                list(again())  # type: ignore[call-overload]
    assert stream.text == "par"
    assert len(server.requests) == 2


def test_result_after_the_loop_is_the_same(server: ModelServer, client: Client) -> None:
    """After a loop over the stream, result() gives its result without another request."""
    server.say("x")
    stream = client.stream("hi")
    *_, done = stream
    assert stream.result() is done.result  # type: ignore[attr-defined]


def test_events_are_kept_when_asked(server: ModelServer, client: Client) -> None:
    """keep_events keeps what was yielded; without it there is no list."""
    server.say("x")
    stream = client.stream("hi", keep_events=True)
    yielded = list(stream)
    assert stream.events == yielded
    server.say("x")
    stream = client.stream("hi")
    list(stream)
    assert stream.events is None


def test_channels_choose_the_events(server: ModelServer, client: Client) -> None:
    """A named channel is on whole; usage and the terminal item always pass; an unknown one is an error."""
    server.call("echo", {"text": "x"})
    server.say("y")
    kinds = [e.type for e in client.stream("go", [echo_tool()], channels=["tools"])]
    assert kinds == ["tool_call", "tool_result", "usage", "done"]
    server.call("echo", {"text": "x"}, pieces=2)
    server.say("y")
    events = list(client.stream("go", [echo_tool()], channels=["messages"]))
    assert {type(e) for e in events} >= {Text, Message, ToolCallDelta, Done}
    assert ToolCall not in {type(e) for e in events}
    messages = [e for e in events if isinstance(e, Message)]
    assert [m.complete for m in messages] == [True, True]
    assert messages[1].message["content"] == "y"
    with pytest.raises(ConfigurationError, match="unknown channel nonsense"):
        client.stream("go", channels=["nonsense"])


def test_events_know_where_they_come_from(server: ModelServer, client: Client) -> None:
    """run_id, node, step, message_id, attempt and a growing seq stand on every event."""
    server.call("echo", {"text": "x"})
    server.say(["y", "z"])
    stream = client.stream("go", [echo_tool()])
    events = [e for e in stream if not isinstance(e, Done)]
    assert {e.run_id for e in events} == {stream.run_id}
    assert [e.seq for e in events] == sorted({e.seq for e in events})
    assert events[0].node == "tools"
    assert events[0].step == 1
    texts = [e for e in events if isinstance(e, Text)]
    assert {(e.node, e.step, e.attempt) for e in texts} == {("model", 2, 1)}
    assert len({e.message_id for e in texts}) == 1
    assert texts[0].message_id
    assert all(abs(e.timestamp - time.time()) < 60 for e in events)


def test_tool_progress_comes_while_it_runs(server: ModelServer, client: Client) -> None:
    """ctx.output and ctx.emit become events before the tool ends."""
    go_on = threading.Event()

    def work(args: dict[str, Any], ctx: Context) -> str:
        ctx.output("half")
        ctx.emit({"percent": 50})
        assert go_on.wait(5)
        return "whole"

    server.call("work", {}, id="c1")
    server.say("ok")
    seen: list[Any] = []
    for event in client.stream("go", [Tool("work", execute=work)]):
        seen.append(event)
        if isinstance(event, Custom):
            go_on.set()
    assert seen[:4] == [
        ToolCall("c1", "work", {}),
        ToolOutput("c1", "work", "half"),
        Custom({"percent": 50}),
        ToolFinished("c1", "work", "whole", False),
    ]


def test_calls_run_side_by_side_and_results_go_back_in_order(server: ModelServer, client: Client) -> None:
    """A fast call reports first, the transcript has call order."""
    fast_done = threading.Event()

    def slow(args: dict[str, Any], ctx: Context) -> str:
        assert fast_done.wait(5)
        return "slow"

    server.call_many([("slow", {}), ("fast", {})])
    server.say("ok")
    finished: list[str] = []
    stream = client.stream("go", [Tool("slow", execute=slow), Tool("fast", execute=lambda a, c: "fast")])
    for event in stream:
        if isinstance(event, ToolFinished):
            finished.append(event.name)
            if event.name == "fast":
                fast_done.set()
    assert finished == ["fast", "slow"]
    result = stream.result()
    assert [c.output for c in result.tool_calls] == ["slow", "fast"]
    assert [m["content"] for m in result.messages if m["role"] == "tool"] == ["slow", "fast"]


def test_calls_that_may_not_run_side_by_side_do_not(server: ModelServer, client: Client) -> None:
    """parallel=False runs the calls one after another, all of them, in order."""
    running: list[int] = []
    most: list[int] = []

    def work(args: dict[str, Any], ctx: Context) -> str:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return str(args["n"])

    server.call_many([("work", {"n": n}) for n in range(3)])
    server.say("ok")
    result = client.stream("go", [Tool("work", execute=work, parallel=False)]).result()
    assert max(most) == 1
    assert [c.output for c in result.tool_calls] == ["0", "1", "2"]


def test_a_hung_tool_is_given_up_on_and_the_run_goes_on(server: ModelServer, client: Client) -> None:
    """A tool's timeout gives an error result that names tool and limit."""
    let_go = threading.Event()
    tool = Tool("hang", execute=lambda a, c: let_go.wait(30), timeout=0.1)
    server.call("hang", {})
    server.say("never mind")
    result = client.run("go", [tool])
    let_go.set()
    assert result.text == "never mind"
    assert result.tool_calls[0].is_error
    assert result.tool_calls[0].output == "hang: timed out after 0.1 s"


def test_max_turns_ends_as_incomplete(server: ModelServer) -> None:
    """A model that never stops calling tools ends the run at max_turns, with Done."""
    for n in range(3):
        server.call("echo", {"text": str(n)})
    with make(server, max_turns=3) as client:
        *_, usage, done = client.stream("go", [echo_tool()])
    assert isinstance(usage, UsageReport)
    assert isinstance(done, Done)
    assert (done.result.status, done.result.limit, done.result.turns) == ("incomplete", "max_turns", 3)
    assert len(server.requests) == 3


def test_a_cut_call_does_not_run_nor_do_its_siblings(server: ModelServer, client: Client) -> None:
    """Finish "length" with calls: none runs, the result says so, the transcript is balanced."""
    ran: list[str] = []
    tool = Tool("echo", execute=lambda a, c: ran.append("x"))
    server.call_many([("echo", {"text": "x"}), ("echo", '{"text": "cu')], finish="length")
    result = client.stream("go", [tool]).result()
    assert ran == []
    assert (result.status, result.limit, result.finish_reason) == ("incomplete", "length", "length")
    assert [m["role"] for m in result.messages] == ["user", "assistant", "tool", "tool"]


def test_a_try_that_fails_before_output_is_nobodys_business(server: ModelServer, client: Client) -> None:
    """A retry before anything was handed out shows only in attempts."""
    server.fail(status=503, message="busy", headers={"Retry-After": "0"})
    server.say("fine")
    events = list(client.stream("hi"))
    assert [e.type for e in events] == ["text", "usage", "done"]
    result = events[-1].result  # type: ignore[attr-defined]
    assert [(a.attempt, a.kind) for a in result.attempts] == [(1, "server"), (2, None)]


def test_after_output_a_failure_ends_the_stream(server: ModelServer, client: Client) -> None:
    """Text that went out cannot be taken back: the stream ends in an Error with the partial text."""
    server.error_in_stream(after=["half"], type="overloaded_error", message="busy")
    *texts, error = client.stream("hi")
    assert texts == [Text("half")]
    assert isinstance(error, Error)
    assert error.error.kind == "overloaded"
    assert error.error.retryable
    assert error.partial is not None
    assert error.partial.text == "half"
    assert len(server.requests) == 1


def test_retry_after_output_says_which_text_is_void(server: ModelServer, client: Client) -> None:
    """With retry_after_output an AttemptFailed comes between; only the last try counts."""
    server.error_in_stream(
        after=["half"], type="overloaded_error", message="busy", headers={"Retry-After": "0"}
    )
    server.say("whole")
    stream = client.stream("hi", retry_after_output=True)
    events = list(stream)
    assert [e.type for e in events] == ["text", "attempt_failed", "text", "usage", "done"]
    failed = events[1]
    assert isinstance(failed, AttemptFailed)
    assert (failed.number, failed.will_retry, failed.text) == (1, True, "half")
    assert events[0].message_id != events[2].message_id
    assert stream.text == "whole" == stream.result().text


def test_run_retries_after_output(server: ModelServer, client: Client) -> None:
    """run() hands nothing out, so it always tries again."""
    server.fail(status=500, message="oops")
    server.say("fine")
    assert client.run("hi").text == "fine"


def test_an_error_nobody_looked_at_is_logged(
    server: ModelServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at error level, when the stream and its last item go; not when somebody looked."""

    def ignore() -> None:
        server.fail(status=401, message="bad key")
        for event in client.stream("hi"):
            assert not isinstance(event, Text)

    gc.collect()  # what earlier tests left speaks now
    caplog.clear()
    with caplog.at_level(logging.ERROR, "toolnexus"):
        ignore()
        gc.collect()
        assert len(caplog.records) == 1
        assert "bad key" in caplog.text
        caplog.clear()
        server.fail(status=401, message="bad key")
        events = list(client.stream("hi"))
        gc.collect()
        assert events[-1].error.status == 401  # type: ignore[attr-defined]
        del events
        gc.collect()
        assert caplog.records == []


def test_a_store_that_cannot_be_read_raises_from_the_call(server: ModelServer) -> None:
    """What can be known before the first byte raises from stream() itself."""

    class Broken:
        def get(self, id: str) -> Any:  # noqa: A002
            raise OSError("disk gone")

        def save(self, id: str, messages: Any) -> None:  # noqa: A002
            raise AssertionError

    with make(server, store=Broken()) as client, pytest.raises(StoreError, match="disk gone"):
        client.stream("hi", id="c")
    assert server.connections == 0


def test_a_save_that_fails_is_an_error_that_carries_the_result(server: ModelServer) -> None:
    """Nothing that was reached is lost: the Error has the whole result as partial, and no usage before it."""

    class ReadOnly:
        def get(self, id: str) -> Any:  # noqa: A002
            return None

        def save(self, id: str, messages: Any) -> None:  # noqa: A002
            raise OSError("read-only")

    server.say("precious")
    with make(server, store=ReadOnly()) as client:
        events = list(client.stream("hi", id="c"))
    assert [e.type for e in events] == ["text", "error"]
    error = events[-1]
    assert isinstance(error, Error)
    assert isinstance(error.error, StoreError)
    assert error.partial is not None
    assert error.partial.text == "precious"
    assert error.partial.status == "done"


@pytest.mark.parametrize("how", ["run", "stream"])
def test_time_that_is_up_during_the_save_is_up_too_late(server: ModelServer, how: str) -> None:
    """The run has reached its end, and the store may have it: it is done, and saved."""

    class Slow(MemoryStore):
        def save(self, *args: Any, **kwargs: Any) -> int:
            time.sleep(0.5)
            return super().save(*args, **kwargs)

    server.say("precious")
    with make(server, store=Slow()) as client:
        if how == "run":
            result = client.run("hi", id="c", timeout=0.3)
        else:
            *_, last = client.stream("hi", id="c", timeout=0.3)
            assert isinstance(last, Done)
            result = last.result
        assert (result.status, result.text) == ("done", "precious")
        assert client.conversation_store.get("c")[-1]["content"] == "precious"


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "response_timeout", "idle_timeout"])
def test_a_time_that_no_system_can_wait_is_refused(server: ModelServer, name: str) -> None:
    """2,000,000 seconds are the most, for each of the table."""
    make(server, **{name: 2_000_000}).close()
    with pytest.raises(ConfigurationError, match=f"{name} must be at most 2000000"):
        make(server, **{name: 2_000_001})


def test_a_conversation_goes_on_and_a_failed_run_leaves_no_trace(server: ModelServer, client: Client) -> None:
    """The second run sends three messages; a failed one is as if it had not been."""
    server.say("Hello Ada")
    client.stream("I am Ada", id="c").result()
    server.fail(status=400, message="no")
    with pytest.raises(ToolnexusError):
        client.run("lost", id="c")
    server.say("Ada")
    client.run("Who am I?", id="c")
    sent = server.requests[-1].messages
    assert len(sent) == 3
    contents = [m.get("content") or m["parts"] for m in sent]
    texts = [content if isinstance(content, str) else content[0]["text"] for content in contents]
    assert texts == ["I am Ada", "Hello Ada", "Who am I?"]


def test_close_gives_one_error_and_then_nothing(server: ModelServer, client: Client) -> None:
    """close() is idempotent; whoever iterates on is told once that it was cancelled."""
    server.say(["a", "b"], hold=True)
    stream = client.stream("hi")
    assert next(stream) == Text("a")
    stream.close()
    stream.close()
    server.wait_for_disconnect(timeout=5)
    rest = list(stream)
    assert [type(e) for e in rest] == [Error]
    assert isinstance(rest[0].error, RunCancelledError)  # type: ignore[attr-defined]
    with pytest.raises(RunCancelledError):
        stream.result()


def test_cancel_from_another_thread_ends_the_iteration(server: ModelServer, client: Client) -> None:
    """The blocked consumer gets an Error with what had arrived."""
    server.say(["a", "b"], hold=True)
    stream = client.stream("hi")
    timer = threading.Timer(0.1, stream.cancel, args=("enough",))
    timer.start()
    *texts, error = stream
    assert texts == [Text("a"), Text("b")]
    assert isinstance(error, Error)
    assert "enough" in str(error.error)
    assert error.partial is not None
    assert error.partial.text == "ab"


def test_a_timeout_ends_run_and_stream(server: ModelServer, client: Client) -> None:
    """The deadline of the whole run has an error of its own that says after how long."""
    server.say(["a"], hold=True)
    *_, error = client.stream("hi", timeout=0.2)
    assert isinstance(error, Error)
    assert isinstance(error.error, RunTimeoutError)
    assert "0.2 s" in str(error.error)
    server.say(["a"], hold=True)
    with pytest.raises(RunTimeoutError):
        client.run("hi", timeout=0.2)


def test_run_can_be_cancelled_through_its_scope(server: ModelServer, client: Client) -> None:
    """A CancelScope cancels run() from another thread, also while a tool runs."""
    let_go = threading.Event()
    scope = CancelScope()
    server.call("hang", {})
    threading.Timer(0.1, scope.cancel).start()
    with pytest.raises(RunCancelledError):
        client.run("go", [Tool("hang", execute=lambda a, c: let_go.wait(30))], scope=scope)
    let_go.set()


def test_a_slow_consumer_loses_nothing_and_holds_the_server_back(server: ModelServer) -> None:
    """A full queue stops the reading; everything arrives in order."""
    pieces = [f"{n} " for n in range(2000)]
    server.say(pieces)
    with make(server, queue_size=4) as client:
        stream = client.stream("hi")
        assert next(stream) == Text("0 ")
        time.sleep(0.2)
        assert "".join(stream.text_deltas()) == "".join(pieces[1:])


def test_a_stream_whose_thread_died_is_cancelled(server: ModelServer) -> None:
    """A consumer that never comes back is noticed although somebody holds the stream."""
    server.say(["x"] * 5000)
    kept: list[Any] = []

    def consume() -> None:
        stream = client.stream("hi")
        kept.append(stream)
        next(stream)

    with make(server, queue_size=2) as client:
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join()
        deadline = time.monotonic() + 5
        while kept[0]._pump.thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not kept[0]._pump.thread.is_alive()


def test_abandon_timeout_ends_a_run_that_nobody_reads(server: ModelServer) -> None:
    """With abandon_timeout a full queue does not wait for ever."""
    server.say(["x"] * 5000)
    with make(server, queue_size=2, abandon_timeout=0.1) as client:
        stream = client.stream("hi")
        next(stream)
        stream._pump.thread.join(5)  # type: ignore[union-attr]
        *_, error = stream
    assert isinstance(error, Error)
    assert "abandon_timeout" in str(error.error)


def test_errors_survive_pickling_with_what_they_know(server: ModelServer, client: Client) -> None:
    """An error that goes through a process pool keeps status, attempt and partial; and has no key in it."""
    server.fail(status=429, message="slow down", headers={"Retry-After": "0"})
    server.fail(status=429, message="slow down", headers={"Retry-After": "0"})
    server.fail(status=429, message="slow down")
    with pytest.raises(RateLimitError) as caught:
        client.run("hi")
    data = pickle.dumps(caught.value)
    assert b"test-key" not in data
    copy = pickle.loads(data)
    assert (copy.status, copy.message, copy.retryable) == (429, "slow down", True)
    assert copy.partial == caught.value.partial


def test_a_client_can_be_pickled(server: ModelServer) -> None:
    """It works on in another process."""
    server.say("from the copy")
    with make(server) as client, pickle.loads(pickle.dumps(client)) as copy:
        assert copy.run("hi").text == "from the copy"


def test_ctrl_c_cancels_and_leaves_at_once(server: ModelServer) -> None:
    """KeyboardInterrupt leaves the loop within moments, the server sees the close, the client works on."""
    server.say(["a"], hold=True)
    server.say("again")
    code = textwrap.dedent(f"""
        import sys, threading, time
        from toolnexus import Client
        client = Client(base_url={server.base_url!r}, style={server.style!r}, model="m", api_key="k")
        try:
            for event in client.stream("hi"):
                print("event", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(client.run("again").text, flush=True)
        time.sleep(0.5)  # a busy machine may not have let the pump end yet
        print([t.name for t in threading.enumerate() if t.name.startswith("toolnexus")], flush=True)
    """)
    import signal

    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "event\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out.splitlines() == ["interrupted", "again", "[]"]
    server.wait_for_disconnect(timeout=5)


def test_the_loop_shows_as_two_nodes(server: ModelServer, client: Client) -> None:
    """F99 for the agent loop: tasks of "model" and "tools", updates and states, each when asked for."""
    server.call("echo", {"text": "x"})
    server.say("y")
    channels = ["tasks", "updates", "values", "lifecycle"]
    events = list(client.stream("go", [echo_tool()], channels=channels))
    tasks = [(e.kind, e.node, e.step) for e in events if isinstance(e, Task)]
    assert tasks == [
        ("start", "model", 1), ("finish", "model", 1), ("start", "tools", 1), ("finish", "tools", 1),
        ("start", "model", 2), ("finish", "model", 2),
    ]  # fmt: skip
    updates = [e.update for e in events if isinstance(e, Update)]
    assert [list(u) for u in updates] == [["model"], ["tools"], ["model"]]
    assert updates[1]["tools"]["messages"][0]["role"] == "tool"
    assert [len(e.value["messages"]) for e in events if isinstance(e, Value)] == [2, 3, 4]
    assert [e.status for e in events if isinstance(e, Lifecycle)] == ["started", "completed"]
    assert isinstance(events[-1], Done)


def test_a_failing_node_and_run_say_so(server: ModelServer, client: Client) -> None:
    """The task of the failing node ends in "error", the run in "failed", the stream in Error."""
    server.fail(status=400, message="no")
    events = list(client.stream("go", channels=["tasks", "lifecycle"]))
    assert [e.type for e in events] == ["lifecycle", "task", "task", "lifecycle", "error"]
    assert events[2].kind == "error"
    assert events[3].status == "failed"


def test_a_finished_stream_leaves_the_callers_scope_alone(server: ModelServer, client: Client) -> None:
    """A scope whose run ended well may serve another one, also after the stream is gone."""
    scope = CancelScope()
    for text in ("one", "two"):
        server.say(text)
        assert client.stream("x", scope=scope).result().text == text
        gc.collect()
        assert not scope.cancelled


def test_the_terminal_item_says_where_it_comes_from(server: ModelServer, client: Client) -> None:
    """Done and Error have the run's id and the next number, like every event before them."""
    server.say("Hello")
    server.fail(401)
    for _ in range(2):
        stream = client.stream("x")
        events = list(stream)
        assert {e.run_id for e in events} == {stream.run_id}
        assert [e.seq for e in events] == sorted({e.seq for e in events})
        assert events[-1].timestamp > 0
    stream = client.stream("x")
    stream.cancel()
    assert [(e.run_id, e.type) for e in stream] == [(stream.run_id, "error")]
