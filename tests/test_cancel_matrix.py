"""Cancelling works in every phase, over every kind of connection, in every way; and leaves nothing."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from tests.support.exact import open_sockets, our_threads, until
from tests.support.phases import PHASES, Scene, Servers, scene
from toolnexus import (
    CancelScope,
    Done,
    Error,
    Event,
    RunCancelledError,
    RunTimeoutError,
    Stream,
    ToolnexusError,
)
from toolnexus.transport.connection import CancellableAdapter

CASES = [(phase, kind) for phase, kinds in PHASES.items() for kind in kinds]

#: Far above what a cancel takes, and far below what each phase would last.
SOON = 5.0


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """A scene of each kind; after the test nothing of the run is left."""
    phase, kind = request.param
    for name, value in servers.environment(kind).items():
        monkeypatch.setenv(name, value)
    with scene(phase, kind, servers) as made:
        sockets = open_sockets()
        yield made
        if made.left is not None:
            made.left()
        assert made.asked() <= 1, "the run went on"
        made.finish()
        assert until(lambda: not our_threads()), our_threads()
        assert until(lambda: open_sockets() <= sockets), (open_sockets(), sockets)


def consume(stream: Stream, made: Scene, reached: threading.Event, acted: threading.Event) -> list[Event]:
    """Read a stream to its end; where the phase is that nobody reads, pause until somebody acted."""
    items: list[Event] = []
    for item in stream:
        items.append(item)
        if len(items) == made.events:
            reached.set()
            if made.stalls:
                assert acted.wait(SOON)
    return items


def check_terminal(items: list[Event], kind: type[ToolnexusError]) -> None:
    """Exactly one terminal item, the last one, of the right kind, with what was reached."""
    assert [e for e in items if isinstance(e, (Done, Error))] == items[-1:]
    last = items[-1]
    assert isinstance(last, Error), last
    assert type(last.error) is kind, last.error
    assert last.partial is not None
    texts = [e.delta for e in items if e.type == "text"]  # type: ignore[attr-defined]
    assert last.partial.text.startswith("".join(texts)) or last.partial.turns


def from_another_thread(
    made: Scene, act: Callable[[], object], reached: threading.Event, acted: threading.Event
) -> tuple[threading.Thread, list[float]]:
    """Act in a thread once the run is in its phase; the list gets the moments before and after."""
    moments: list[float] = []

    def work() -> None:
        if made.events:
            reached.wait(SOON)
        made.wait()
        time.sleep(0.03)
        moments.append(time.monotonic())
        act()
        moments.append(time.monotonic())
        acted.set()

    thread = threading.Thread(target=work, name="canceller")
    thread.start()
    return thread, moments


in_every_phase = pytest.mark.parametrize("stage", CASES, ids="-".join, indirect=True)


@in_every_phase
@pytest.mark.parametrize("way", ["close", "cancel", "scope"])
def test_from_another_thread(stage: Scene, way: str) -> None:
    """The call returns at once, the blocked iteration ends at once, with one Error."""
    scope = CancelScope()
    reached, acted = threading.Event(), threading.Event()
    with stage.client() as client:
        stream = client.stream("hi", stage.tools, scope=scope)
        act = {"close": stream.close, "cancel": stream.cancel, "scope": scope.cancel}[way]
        thread, moments = from_another_thread(stage, act, reached, acted)
        items = consume(stream, stage, reached, acted)
        ended = time.monotonic()
        thread.join(SOON)
    check_terminal(items, RunCancelledError)
    assert ended - moments[0] < SOON
    assert moments[1] - moments[0] < SOON


@in_every_phase
def test_leaving_the_loop(stage: Scene) -> None:
    """`break` with the iterator held by nobody else; where no event comes, the end of a with block."""
    with stage.client() as client:
        if stage.events:
            for count, _ in enumerate(client.stream("hi", stage.tools), 1):
                if count == stage.events:
                    stage.wait()
                    break
        else:
            with client.stream("hi", stage.tools) as stream:
                stream.start()
                stage.wait()


@in_every_phase
def test_an_exception_in_the_loop(stage: Scene) -> None:
    """An exception of the consumer's passes through unharmed, and cancels."""

    def loop() -> None:
        with client.stream("hi", stage.tools) as stream:
            if not stage.events:
                stream.start()
                stage.wait()
                raise KeyError("mine")
            for count, _ in enumerate(stream, 1):
                if count == stage.events:
                    stage.wait()
                    raise KeyError("mine")

    with stage.client() as client, pytest.raises(KeyError, match="mine"):
        loop()


@in_every_phase
def test_garbage_collection(stage: Scene) -> None:
    """A stream that nobody holds is cancelled, started or half read."""
    with stage.client() as client:
        stream = client.stream("hi", stage.tools).start()
        for _ in range(stage.events):
            next(stream)
        stage.wait()
        del stream
        gc.collect()
        if stage.left is not None:
            stage.left()
        stage.finish()
        assert until(lambda: not our_threads()), our_threads()


@in_every_phase
def test_the_deadline(stage: Scene) -> None:
    """`timeout` ends the run in every phase, with an error of its own."""
    reached, acted = threading.Event(), threading.Event()
    with stage.client() as client:
        stream = client.stream("hi", stage.tools, timeout=0.2)
        timer = threading.Timer(0.25, acted.set)
        timer.start()
        began = time.monotonic()
        items = consume(stream, stage, reached, acted)
        assert time.monotonic() - began < SOON
        timer.join()
    if isinstance(items[-1], Error) and items[-1].error.kind == "server":
        return  # the wait that the server asks for is longer than the run may take: no try is left
    check_terminal(items, RunTimeoutError)
    assert "0.2 s" in items[-1].error.message  # type: ignore[attr-defined]


@pytest.mark.parametrize("stage", [c for c in CASES if c[0] != "full queue"], ids="-".join, indirect=True)
@pytest.mark.parametrize("way", ["scope", "deadline"])
def test_run(stage: Scene, way: str) -> None:
    """run() is ended by its scope from another thread, and by `timeout`, in the same phases."""
    scope = CancelScope()
    reached, acted = threading.Event(), threading.Event()
    reached.set()
    with stage.client() as client:
        if way == "deadline":
            with pytest.raises(ToolnexusError) as caught:
                client.run("hi", stage.tools, timeout=0.2)
            assert caught.value.kind in ("timeout", "server")
            return
        thread, moments = from_another_thread(stage, scope.cancel, reached, acted)
        with pytest.raises(RunCancelledError):
            client.run("hi", stage.tools, scope=scope)
        ended = time.monotonic()
        thread.join(SOON)
        assert ended - moments[0] < SOON


# -- a session of the user's own -------------------------------------------------------------


@pytest.mark.parametrize("adapter", [True, False], ids=["cancellable", "plain"])
@pytest.mark.parametrize("kind", ["tcp", "tls"])
@pytest.mark.parametrize("phase", ["headers", "mid-event", "between events"])
def test_a_session_of_the_users_own(phase: str, kind: str, adapter: bool, servers: Servers) -> None:
    """
    With our adapter on it everything is as with ours; without it, the iteration is.

    The connection then closes at once in the body, and before the headers when the server speaks first.
    """
    session = requests.Session()
    session.verify = str(servers.tls.ca_path)
    if adapter:
        for scheme in ("http://", "https://"):
            session.mount(scheme, CancellableAdapter())
    reached, acted = threading.Event(), threading.Event()
    with scene(phase, kind, servers) as made:
        made.options["session"] = session
        stream = made.client().stream("hi")
        thread, moments = from_another_thread(made, stream.cancel, reached, acted)
        items = consume(stream, made, reached, acted)
        assert time.monotonic() - moments[0] < SOON
        check_terminal(items, RunCancelledError)
        thread.join(SOON)
        if phase == "headers" and not adapter:
            servers.of(kind).release()
        assert made.left is not None
        made.left()
        assert until(lambda: not our_threads()), our_threads()
    session.close()


# -- Ctrl-C ----------------------------------------------------------------------------------

CHILD = """
    import json, os, sys, threading, time
    from toolnexus import Client, Tool
    from toolnexus.suspension import pending

    def say(**what):
        sys.stdout.write(json.dumps(what) + "\\n")  # one write, or the lines of two threads mix
        sys.stdout.flush()

    def hang(*args):
        say(inside=True)
        threading.Event().wait(60)

    def ours():
        return [t.name for t in threading.enumerate()
                if t.name.startswith("toolnexus-") and "-tool-" not in t.name and "wait-for" not in t.name]

    def sockets():
        count = 0
        for entry in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink("/proc/self/fd/" + entry).startswith("socket:")
            except OSError:
                pass
        return count

    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update(job["environment"])
        tools = [Tool("hang", execute=hang), Tool("ask", execute=lambda a, c: pending("May I?"))]
        client = Client(job["url"] + "/v1", model="m", api_key="k", wait_for=hang, **job["options"])
        taken = 0
        try:
            say(begun=True)
            if job["run"]:
                client.run("hi", tools)
            for event in client.stream("hi", tools):
                taken += 1
                if taken == job["events"]:
                    say(reached=True)
                    if job["stalls"]:
                        time.sleep(60)
            at = None
        except KeyboardInterrupt:
            at = time.monotonic()
        while ours() and time.monotonic() < at + 5:
            time.sleep(0.001)
        client.close()
        say(interrupted=at, threads=ours(), sockets=sockets())
"""


@pytest.mark.parametrize("way", ["stream", "run"])
def test_thr_10_ctrl_c(way: str, servers: Servers) -> None:
    """KeyboardInterrupt in the main thread leaves at once in every phase, and the process works on."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **servers.environment("tcp")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        for phase, kind in CASES:
            if way == "run" and phase == "full queue":
                continue
            with scene(phase, kind, servers) as made:
                interrupt(process, phase, kind, way, made, servers)
        process.stdin.close()
        assert process.wait(SOON) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def interrupt(process: Any, phase: str, kind: str, way: str, made: Scene, servers: Servers) -> None:
    """Have the child begin a run, interrupt it in its phase, and look at what it says."""
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), "")
    options = {k: v for k, v in made.options.items() if k != "wait_for"}
    job = {
        "url": made.url, "events": made.events, "stalls": made.stalls, "options": {"retries": 1, **options},
        "run": way == "run", "environment": {**proxies, **servers.environment(kind)},
    }  # fmt: skip
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    wanted = {"tool": ["inside"], "person": ["inside"]}.get(phase, [])
    if made.events and way == "stream":
        wanted = [*wanted, "reached"]
    seen: set[str] = set()
    while not {"begun", *wanted} <= seen:
        seen.update(json.loads(process.stdout.readline()))
    if phase not in ("tool", "person"):
        made.wait()
    time.sleep(0.05)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = json.loads(process.stdout.readline())
    assert said["interrupted"], (phase, kind, said)
    assert said["interrupted"] - sent < SOON
    assert said["threads"] == []
    assert said["sockets"] == 0, (phase, kind)
    if made.left is not None:
        made.left()


def test_a_cancel_takes_well_under_a_tenth_of_a_second(servers: Servers) -> None:
    """From the call to the end of the blocked iteration; half of twenty cancels at least."""
    took: list[float] = []
    for _ in range(20):
        reached, acted = threading.Event(), threading.Event()
        with scene("between events", "tcp", servers) as made, made.client() as client:
            stream = client.stream("hi")
            thread, moments = from_another_thread(made, stream.cancel, reached, acted)
            consume(stream, made, reached, acted)
            took.append(time.monotonic() - moments[0])
            thread.join(SOON)
    assert sorted(took)[10] < 0.1, took
