"""
The acceptance checks F50 to F90 and F122 of the reference: runs, cancelling, the queue, tools, retries.

F57 and the checks about merged producers, flows, approvals, views and redaction stand with what they are
about. Two are put differently here: a stream is no recipe that runs again when it is iterated again (F52),
and a run that has reached its turns is incomplete, not failed (F80).
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolnexus import (
    AttemptFailed,
    AuthenticationError,
    Client,
    ConfigurationError,
    Context,
    Done,
    Error,
    Event,
    InternalServerError,
    Message,
    RunCancelledError,
    Stream,
    StreamThreadError,
    Text,
    Tool,
    ToolCall,
    ToolFinished,
    ToolOutput,
    UsageReport,
    Value,
)
from toolnexus.testing import ModelServer
from toolnexus.tools.execute import execute_tool


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.base_url, model="m", retries=2) as client:
        yield client


def soon(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until something is so; tell whether it was so in time."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def pumps(run_id: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if run_id in thread.name]


def of(events: list[Event], *types: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, types)]


# -- run, cancel, queue --------------------------------------------------------------------------


def test_f50_a_stream_that_is_not_iterated_sends_nothing(server: ModelServer, client: Client) -> None:
    """`stream()` alone makes no request and no thread."""
    stream = client.stream("hi")
    time.sleep(0.05)
    assert server.requests == []
    assert pumps(stream.run_id) == []


def test_f51_a_second_loop_over_a_stream_is_empty(server: ModelServer, client: Client) -> None:
    """A stream is an iterator: it is read once, and asks once."""
    server.say("Hello")
    stream = client.stream("hi")
    assert isinstance(list(stream)[-1], Done)
    assert list(stream) == []
    assert iter(stream) is stream
    assert len(server.requests) == 1


def test_f52_running_again_takes_another_stream(server: ModelServer, client: Client) -> None:
    """There is no recipe that runs when it is iterated: each call of `stream()` is a run of its own."""
    server.say("one")
    server.say("two")

    def prepared() -> Stream:
        return client.stream("hi")

    assert [prepared().result().text, prepared().result().text] == ["one", "two"]
    assert len(server.requests) == 2


def test_f53_leaving_a_with_block_while_the_server_hangs(server: ModelServer, client: Client) -> None:
    """It takes less than a second, leaves no thread, and the server sees the connection close."""
    server.say(["a", "b"], hold=True)
    with client.stream("hi") as stream:
        for _ in stream:
            break
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert pumps(stream.run_id) == []
    server.wait_for_disconnect(timeout=5)


def test_f54_a_stream_that_is_dropped(server: ModelServer, client: Client) -> None:
    """Its thread ends once it is collected, though nobody closed it."""
    server.say(["a", "b"], hold=True)
    stream = client.stream("hi")
    next(stream)
    run_id = stream.run_id
    assert pumps(run_id)
    del stream
    gc.collect()
    assert soon(lambda: not pumps(run_id))
    server.wait_for_disconnect(timeout=5)


def test_f55_a_consumer_that_stops_reading(server: ModelServer) -> None:
    """With a full queue the run is cancelled after `abandon_timeout`, and nothing stays behind."""
    server.say(["x"] * 50)
    with Client(server.base_url, model="m", queue_size=2, abandon_timeout=0.1) as client:
        stream = client.stream("hi")
        assert next(stream) == Text("x")
        assert soon(lambda: not pumps(stream.run_id))
        *_, last = stream
    assert isinstance(last, Error)
    assert isinstance(last.error, RunCancelledError)
    assert "abandon_timeout" in str(last.error)


def test_f56_an_exception_inside_the_loop_cancels(server: ModelServer, client: Client) -> None:
    """The consumer's own exception comes through, and the run has ended."""
    server.say(["a", "b"], hold=True)
    stream = client.stream("hi")

    def consume() -> None:
        with stream:
            for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert pumps(stream.run_id) == []
    server.wait_for_disconnect(timeout=5)


def test_f58_another_thread_cannot_iterate(server: ModelServer, client: Client) -> None:
    """A stream belongs to the thread that began with it; the other one is told, and nothing is lost."""
    server.say(["a", "b"])
    stream = client.stream("hi")
    first = next(stream)
    raised: list[BaseException] = []

    def steal() -> None:
        try:
            next(stream)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=steal)
    thread.start()
    thread.join(5)
    assert [type(error) for error in raised] == [StreamThreadError]
    assert [first, *stream][:2] == [Text("a"), Text("b")]


# -- tools ---------------------------------------------------------------------------------------


def reporting(args: dict[str, Any], ctx: Context) -> str:
    """Report two pieces and return."""
    ctx.output("a" + args.get("n", ""))
    ctx.output("b" + args.get("n", ""))
    return "done"


SCHEMA = {"type": "object", "properties": {"n": {"type": "string"}}}


def test_f74_the_progress_of_a_tool(server: ModelServer, client: Client) -> None:
    """Call, both pieces and result come in order, under one id."""
    server.call("work", {}, id="c1")
    server.say("ok")
    events = list(client.stream("go", [Tool("work", "", SCHEMA, reporting)]))
    assert of(events, ToolCall, ToolOutput, ToolFinished) == [
        ToolCall("c1", "work", {}),
        ToolOutput("c1", "work", "a"),
        ToolOutput("c1", "work", "b"),
        ToolFinished("c1", "work", "done"),
    ]


def test_f75_two_calls_of_one_tool_at_once(server: ModelServer, client: Client) -> None:
    """Pieces are told apart by the id, whatever the order; both begin and both end."""
    together = threading.Barrier(2)

    def work(args: dict[str, Any], ctx: Context) -> str:
        together.wait(5)
        return reporting(args, ctx)

    server.say(calls=[("work", {"n": "1"}), ("work", {"n": "2"})])
    server.say("ok")
    events = list(client.stream("go", [Tool("work", "", SCHEMA, work)]))
    started = {e.id: e.args["n"] for e in events if isinstance(e, ToolCall)}
    assert sorted(started.values()) == ["1", "2"]
    for id_, n in started.items():
        assert [e.delta for e in events if isinstance(e, ToolOutput) and e.id == id_] == ["a" + n, "b" + n]
        assert [e.output for e in events if isinstance(e, ToolFinished) and e.id == id_] == ["done"]


def test_f76_a_tool_that_fails(server: ModelServer, client: Client) -> None:
    """One result, which is an error; the model is told, and the run goes on."""

    def work(args: dict[str, Any], ctx: Context) -> str:
        raise LookupError("no such order")

    server.call("work", {}, id="c1")
    server.say("Sorry.")
    events = list(client.stream("go", [Tool("work", "", SCHEMA, work)]))
    [finished] = of(events, ToolFinished)
    assert finished.is_error  # type: ignore[attr-defined]
    assert "no such order" in server.requests[1].json["messages"][-1]["content"]
    assert isinstance(events[-1], Done)
    assert events[-1].result.text == "Sorry."


def test_f77_progress_outside_a_run_goes_nowhere(server: ModelServer, client: Client) -> None:
    """A context without a run takes what is emitted; so does one whose call is over."""
    assert execute_tool(Tool("work", "", SCHEMA, reporting), {}, Context()).output == "done"
    Context().emit({"x": 1})
    kept: list[Context] = []
    server.call("work", {})
    server.say("ok")
    tool = Tool("work", "", SCHEMA, lambda args, ctx: kept.append(ctx))
    events = list(client.stream("go", [tool], keep_events=True))
    for _ in range(200):
        kept[0].output("late")
        kept[0].emit("late")
    assert of(events, ToolOutput) == []


def test_f78_a_tool_that_takes_too_long(server: ModelServer, client: Client) -> None:
    """It ends as an error that says so, and the run goes on."""
    let_go = threading.Event()
    server.call("hang", {})
    server.say("ok")
    tool = Tool("hang", execute=lambda args, ctx: let_go.wait(10), timeout=0.05)
    events = list(client.stream("go", [tool]))
    let_go.set()
    [finished] = of(events, ToolFinished)
    assert finished.is_error  # type: ignore[attr-defined]
    assert "timed out" in finished.output  # type: ignore[attr-defined]
    assert events[-1].type == "done"


def test_f79_a_tool_that_there_is_not(server: ModelServer, client: Client) -> None:
    """The model is told which tools there are, and the run goes on."""
    server.call("fly", {}, id="c1")
    server.say("I cannot.")
    events = list(client.stream("go", [Tool("work", "", SCHEMA, reporting)]))
    assert [(e.id, e.is_error) for e in events if isinstance(e, ToolFinished)] == [("c1", True)]
    assert server.requests[1].json["messages"][-1]["content"] == "Unknown tool: fly. Available tools: work"
    assert events[-1].type == "done"


def test_f80_a_model_that_never_stops_calling(server: ModelServer, client: Client) -> None:
    """After `max_turns` requests the run is incomplete, and says which limit it was."""
    for _ in range(4):
        server.call("work", {})
    *_, last = client.stream("go", [Tool("work", "", SCHEMA, reporting)], max_turns=4)
    assert isinstance(last, Done)
    assert (last.result.status, last.result.limit, last.result.turns) == ("incomplete", "max_turns", 4)
    assert len(server.requests) == 4


def test_f81_a_call_in_pieces_and_then_an_answer(server: ModelServer, client: Client) -> None:
    """Two requests, one terminal item, and the tool ran once with the whole arguments."""
    ran: list[Any] = []
    server.call("work", {"n": "all of it"}, pieces=5)
    server.say("ok")
    tool = Tool("work", "", SCHEMA, lambda args, ctx: ran.append(args))
    events = list(client.stream("go", [tool]))
    assert len(server.requests) == 2
    assert ran == [{"n": "all of it"}]
    assert [type(e) for e in of(events, Done, Error)] == [Done]


# -- channels ------------------------------------------------------------------------------------


def test_f82_only_the_channel_that_was_asked_for(server: ModelServer, client: Client) -> None:
    """channels={"tools"}: events of tools, and what always passes."""
    server.call("work", {})
    server.say("ok", thinking="hm")
    tool = Tool("work", "", SCHEMA, reporting)
    types = [type(event) for event in client.stream("go", [tool], channels={"tools"})]
    assert types == [ToolCall, ToolOutput, ToolOutput, ToolFinished, UsageReport, Done]
    server.fail(400)
    assert [type(e) for e in client.stream("go", channels={"tools"})] == [Error]


def test_f83_states_that_nobody_asked_for_are_not_built(server: ModelServer, client: Client) -> None:
    """Without the channel "values" no event with a state is made, nor its copy of the transcript."""
    made: list[int] = []
    original = Value.__init__

    def counting(self: Value, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        original(self, *args, **kwargs)

    Value.__init__ = counting  # type: ignore[method-assign]
    try:
        for channels in (None, ["tasks", "updates", "messages"], ["values"]):
            server.say("ok")
            list(client.stream("go", channels=channels))
            assert bool(made) == (channels == ["values"])
    finally:
        Value.__init__ = original  # type: ignore[method-assign]


def test_f84_an_unknown_channel(client: Client) -> None:
    """It is a mistake of the caller's, told before anything is sent."""
    with pytest.raises(ConfigurationError, match="unknown channel news"):
        client.stream("go", channels={"news"})
    with pytest.raises(ValueError, match="unknown channel news"):
        client.run("go", collect_events=True, channels={"news"})


# -- attempts ------------------------------------------------------------------------------------


def test_f86_a_try_that_fails_after_text(server: ModelServer, client: Client) -> None:
    """It is announced between the tries; the answer is the second one's, and so is its message's id."""
    server.say(["Hel", "lo"], cut="close")
    server.say(["Good ", "day"])
    events = list(client.stream("hi", retry_after_output=True, channels=["messages"]))
    texts = [e for e in events if isinstance(e, Text)]
    [failed] = [e for e in events if isinstance(e, AttemptFailed)]
    position = events.index(failed)
    assert (failed.number, failed.will_retry) == (1, True)
    before = [e for e in events[:position] if isinstance(e, Text)]
    after = [e for e in events[position:] if isinstance(e, Text)]
    assert before + after == texts
    assert failed.text == "".join(e.delta for e in before) != ""
    assert "".join(e.delta for e in after) == "Good day"
    assert {e.message_id for e in before}.isdisjoint({e.message_id for e in after})
    [message] = [e for e in events if isinstance(e, Message)]
    assert message.message_id == after[0].message_id
    assert isinstance(events[-1], Done)
    assert events[-1].result.text == "Good day"


@pytest.mark.parametrize("way", ["run", "stream"])
def test_f87_all_tries_fail(way: str, server: ModelServer, client: Client) -> None:
    """The last error is reported, after as many requests as there were tries."""
    for word in ("first", "second", "third"):
        server.fail(500, message=word)
    with pytest.raises(InternalServerError, match="third") as caught:
        client.run("hi") if way == "run" else client.stream("hi").result()
    assert len(server.requests) == 3
    assert caught.value.attempt == 3


def test_f88_what_cannot_be_retried_is_asked_once(server: ModelServer, client: Client) -> None:
    """An error that says that another try is of no use."""
    server.fail(401)
    with pytest.raises(AuthenticationError) as caught:
        client.run("hi")
    assert caught.value.retryable is False
    assert len(server.requests) == 1


def test_f89_another_model_when_the_first_one_fails(server: ModelServer) -> None:
    """Its answer counts; where all fail the last error does."""
    with (
        ModelServer(style="openai") as other,
        Client(other.base_url, model="b", retries=0) as second,
        Client(server.base_url, model="a", retries=0, fallbacks=[second]) as first,
    ):
        server.fail(500, message="first")
        other.say("from b")
        assert first.stream("hi").result().text == "from b"
        server.fail(500, message="first")
        other.fail(500, message="second")
        with pytest.raises(InternalServerError, match="second"):
            first.run("hi")


def test_f90_a_turn_that_failed_leaves_no_trace(server: ModelServer, client: Client) -> None:
    """After a failure and a good turn, a conversation holds the good turn alone."""
    server.fail(401)
    assert isinstance(list(client.stream("one", id="c"))[-1], Error)
    server.say("fine")
    client.run("two", id="c")
    server.say("last")
    client.run("three", id="c")
    sent = server.requests[-1].json["messages"]
    assert [m["content"] for m in sent] == ["two", "fine", "three"]


def test_f122_a_client_does_not_show_its_key(server: ModelServer) -> None:
    """Neither its repr nor its text holds the key, nor does an error that the endpoint answered with."""
    key = "sk-very-secret-1234567890"
    with Client(server.base_url, model="m", api_key=key, retries=0) as client:
        server.fail(401, message=f"wrong key {key}")
        with pytest.raises(AuthenticationError) as caught:
            client.run("hi")
        for shown in (repr(client), str(client), repr(client.stream("hi")), str(caught.value)):
            assert key not in shown
