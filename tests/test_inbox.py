"""The inbox that wakes whoever reads a stream: nothing is lost, nobody sleeps on, with either bell."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolnexus import Client, Done, Error, Stream, Text, ToolOutput, tool
from toolnexus.cancel import CancelScope
from toolnexus.compose import mux
from toolnexus.errors import RunCancelledError
from toolnexus.inbox import Inbox, _EventBell, _LockBell, _make_bell
from toolnexus.pump import Pump
from toolnexus.results import RunResult
from toolnexus.testing import ModelServer
from toolnexus.tools.base import Context
from toolnexus.watch import Watch

HAS_EVENTS = hasattr(os, "eventfd")

MAKERS: list[Any] = [
    pytest.param(lambda: _LockBell(threading.Lock()), id="lock"),
    pytest.param(
        lambda: _EventBell(), id="event", marks=pytest.mark.skipif(not HAS_EVENTS, reason="a thing of Linux")
    ),
]


def run_alone(code: str) -> str:
    """Run code in an interpreter of its own and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def inbox_with(make: Callable[[], Any]) -> Inbox[Any]:
    inbox: Inbox[Any] = Inbox()
    inbox._bell = make()
    return inbox


def take_in_thread(inbox: Inbox[Any], count: int) -> tuple[threading.Thread, list[Any]]:
    """Take so many things, waiting without a limit for each."""
    taken: list[Any] = []

    def work() -> None:
        while len(taken) < count:
            item = inbox.take(None)
            if item is not None:
                taken.append(item)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, taken


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_lost_and_nobody_sleeps_on(make: Callable[[], Any]) -> None:
    senders, each = 8, 3000
    inbox = inbox_with(make)
    receiver, taken = take_in_thread(inbox, senders * each)

    def send(sender: int) -> None:
        for number in range(each):
            inbox.put((sender, number))
            if number % 7 == sender:
                time.sleep(0.0001)  # long enough for the receiver to fall asleep
            if number % 100 == 0:
                inbox.wake()

    threads = [threading.Thread(target=send, args=(n,)) for n in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receiver.join(30)
    assert not receiver.is_alive()
    for sender in range(senders):
        assert [number for who, number in taken if who == sender] == list(range(each))


@pytest.mark.parametrize("make", MAKERS)
def test_a_wait_ends_when_its_time_is_up(make: Callable[[], Any]) -> None:
    inbox = inbox_with(make)
    began = time.monotonic()
    assert inbox.take(0.05) is None
    assert time.monotonic() - began >= 0.045
    assert inbox.take(0) is None


@pytest.mark.parametrize("make", MAKERS)
def test_a_wake_is_not_lost_whenever_it_comes(make: Callable[[], Any]) -> None:
    inbox = inbox_with(make)
    inbox.wake()
    inbox.wake()
    assert inbox.take(None) is None  # woken before it slept
    threading.Timer(0.05, inbox.wake).start()
    assert inbox.take(None) is None
    inbox.put("a")
    assert inbox.take(None) == "a"


@pytest.mark.skipif(not HAS_EVENTS, reason="a thing of Linux")
def test_an_inbox_takes_its_file_descriptor_with_it() -> None:
    printed = run_alone(
        """
        import os
        from toolnexus.inbox import Inbox

        def opened():
            return len(os.listdir("/proc/self/fd")) - before

        before = 0
        before = opened()
        inboxes = [Inbox() for _ in range(20)]
        print(opened())  # who never waits needs none
        for inbox in inboxes:
            inbox.take(0.001)
        print(opened())
        inbox.end()
        print(opened())
        del inboxes[:], inbox
        print(opened())
        """
    )
    assert printed.split() == ["0", "20", "19", "0"]


@pytest.mark.skipif(not HAS_EVENTS, reason="a thing of Linux")
def test_without_a_file_descriptor_left_it_is_a_lock() -> None:
    printed = run_alone(
        """
        import os, resource, threading
        from toolnexus.inbox import Inbox
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        kept = []
        try:
            while True:
                kept.append(os.dup(0))
        except OSError:
            pass
        inbox = Inbox()
        threading.Timer(0.05, inbox.put, ["x"]).start()
        item = inbox.take(None)
        print(type(inbox._bell).__name__, item)
        """
    )
    assert printed.split() == ["_LockBell", "x"]


def test_green_threads_wait_with_their_own_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Green:
        def __init__(self) -> None:
            self._held = False

        def acquire(self, timeout: float = -1) -> bool:
            self._held = True
            return True

        def release(self) -> None:
            self._held = False

    monkeypatch.setattr(threading, "Lock", Green)
    assert isinstance(_make_bell(), _LockBell)


def test_streams_work_where_there_are_no_event_files() -> None:
    """As on macOS and Windows."""
    printed = run_alone(
        """
        import os, threading
        if hasattr(os, "eventfd"):
            del os.eventfd
        from toolnexus import Client, tool
        from toolnexus.testing import ModelServer
        from toolnexus.tools.base import Context

        @tool
        def count(ctx: Context) -> str:
            "Count."
            for n in range(300):
                ctx.output(str(n))
            return "done"

        with ModelServer() as server, Client(server.base_url, model="m", api_key="k", queue_size=2) as client:
            server.call("count", {})
            server.say([f"{n} " for n in range(200)])
            events = list(client.stream("hi", [count]))
            print(sum(event.type == "tool_output" for event in events), len(events[-1].result.text.split()))
            server.say(["hello", "more"], delay=30)
            stream = client.stream("hi")
            threading.Timer(0.2, stream.cancel).start()
            print([event.error.kind for event in stream if event.type == "error"])
        """
    )
    assert printed.splitlines() == ["300 200", "['cancelled']"]


def test_what_a_tool_says_comes_whole_and_in_order_when_nobody_hurries() -> None:
    @tool
    def talk(ctx: Context) -> str:
        """Say much."""
        for number in range(3000):
            ctx.output(f"{number} ")
        return "done"

    said: list[str] = []
    with ModelServer() as server, Client(server.base_url, model="m", api_key="k", queue_size=8) as client:
        server.call("talk", {})
        server.say("ok")
        for event in client.stream("hi", [talk]):
            if isinstance(event, ToolOutput):
                said.append(event.delta)
                if len(said) % 500 == 0:
                    time.sleep(0.02)
    assert isinstance(event, Done)
    assert "".join(said).split() == [str(number) for number in range(3000)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pump_that_dies_without_a_word_leaves_nobody_waiting() -> None:
    def work(pump: Pump) -> RunResult:
        pump.put(Text("half"))
        pump.flush()
        pump.marks = None  # type: ignore[assignment,method-assign]
        raise SystemExit

    stream = Stream(Pump("run-x", CancelScope(), work, queue_size=8))
    assert next(stream) == Text("half")
    ended: list[Any] = []

    def read_on() -> None:
        try:
            ended.extend(stream)
        except TypeError as error:  # it was made unable to say where it is, here too
            ended.append(error)

    reader = threading.Thread(target=read_on, daemon=True)
    stream.hand_over()
    reader.start()
    reader.join(10)
    assert not reader.is_alive()
    assert len(ended) == 1
    assert isinstance(ended[0], (Error, TypeError))


# -- signals, forks, and streams that are kept -----------------------------------------------------


def test_a_signal_whose_handler_returns_disturbs_nobody() -> None:
    printed = run_alone(
        """
        import signal
        from toolnexus import Client
        from toolnexus.testing import ModelServer

        seen = []
        with ModelServer() as server, Client(server.base_url, model="m", api_key="k") as client:
            server.say([f"{n} " for n in range(10)], delay=0.03)
            signal.signal(signal.SIGALRM, lambda *args: seen.append(1))
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            events = list(client.stream("hi"))
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(events[-1].type, len(events[-1].result.text.split()), len(seen) > 3)

            server.say(["a ", "b"], hold="mid-event")
            stream = client.stream("hi")
            signal.signal(signal.SIGALRM, lambda *args: stream.cancel("by a signal"))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            last = list(stream)[-1]
            print(last.type, last.error.kind)
        """
    )
    assert printed.splitlines() == ["done 10 True", "error cancelled"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("started", [True, False], ids=["running", "not started"])
def test_a_child_takes_no_ring_of_its_parent(started: bool) -> None:
    """Both read the stream after the fork: the parent to its end, the child to an error."""
    with ModelServer() as server:
        for _ in range(24):
            server.say(["a ", "b ", "c"], delay=0.01)
        printed = run_alone(
            f"""
            import os, time, warnings
            from toolnexus import Client

            warnings.simplefilter("ignore", DeprecationWarning)
            client = Client({server.base_url!r}, model="m", api_key="k")
            ends = []
            for _ in range(12):
                stream = client.stream("hi")
                if {started}:
                    next(stream)
                child = os.fork()
                if child == 0:
                    events = list(stream)
                    os._exit({{"done": 1, "error": 2}}[events[-1].type])
                *_, last = stream
                ends.append((last.type, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
            print(sorted(set(ends)))
            """
        )
    assert printed.strip() == str([("done", 2 if started else 1)])


@pytest.mark.parametrize("callback", ["run_started", "run_finished"])
def test_an_outer_scope_that_ends_while_a_callback_blocks_ends_the_stream(callback: str) -> None:
    """The run has not begun to listen to the outer scope then, or does so no more."""
    blocked, free = threading.Event(), threading.Event()

    def block(run: Any) -> None:
        blocked.set()
        free.wait(20)

    watch = type("Blocking", (Watch,), {callback: lambda self, run: block(run)})()
    scope = CancelScope()
    with ModelServer() as server, Client(server.base_url, model="m", api_key="k", watch=watch) as client:
        server.say("hello")
        stream = client.stream("hi", scope=scope)

        def cancel() -> None:
            blocked.wait(10)
            scope.cancel()

        threading.Thread(target=cancel).start()
        try:
            *_, last = stream
            assert isinstance(last, Error)
            assert isinstance(last.error, RunCancelledError)
            assert not free.is_set()
        finally:
            free.set()


def test_a_stream_in_a_mux_that_is_dropped_ends() -> None:
    with ModelServer() as server, Client(server.base_url, model="m", api_key="k") as client:
        server.say(["a ", "b"], hold="mid-event")
        ended = threading.Event()

        def produce(sink: Any) -> None:
            try:
                for event in client.stream("hi", scope=sink.scope):
                    sink.emit(event)
            finally:
                ended.set()

        merged = mux([produce])
        while not isinstance(next(merged), Text):
            pass
        del merged
        gc.collect()
        assert ended.wait(10)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are not listed here")
def test_streams_that_are_kept_keep_no_file_open() -> None:
    kept: list[Any] = []
    with ModelServer() as server, Client(server.base_url, model="m", api_key="k") as client:
        for _ in range(21):
            server.say("hello")
        list(client.stream("hi"))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            stream = client.stream("hi")
            kept.append((stream, list(stream)))
        kept += [client.stream("hi") for _ in range(20)]  # never begun
        server.say(["a ", "b"], hold="mid-event")
        left = client.stream("hi")
        next(left)
        left.close()
        kept.append(left)
        assert len(os.listdir("/proc/self/fd")) <= before
