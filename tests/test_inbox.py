"""The inbox that wakes whoever reads a stream: nothing is lost, nobody sleeps on, with either bell."""

from __future__ import annotations

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
from toolnexus.inbox import Inbox, _EventBell, _LockBell
from toolnexus.pump import Pump
from toolnexus.results import RunResult
from toolnexus.testing import ModelServer
from toolnexus.tools.base import Context

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
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    inboxes = [Inbox[int]() for _ in range(20)]
    assert open_files() == before + 20
    inboxes.clear()
    assert open_files() == before


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
        print(type(inbox._bell).__name__, inbox.take(None))
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
    assert isinstance(Inbox[int]()._bell, _LockBell)


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
