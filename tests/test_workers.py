"""The threads of a run's tools: no more than are needed, all of them gone in the end."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import Any

from toolnexus import Client, Tool, ToolFinished
from toolnexus.testing import ModelServer
from toolnexus.workers import Workers

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("toolnexus-tool-")]


def test_quick_jobs_share_a_thread() -> None:
    """Jobs in line are done by one thread, in order, each with the context of its caller."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    done: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
    workers = Workers("w")
    for number in range(5):
        variable.set(number)
        workers.submit(lambda n=number: done.put((n, variable.get(), threading.current_thread().name)))
    workers.begin()
    got = [done.get(timeout=5) for _ in range(5)]
    assert got == [(n, n, "toolnexus-tool-w-1") for n in range(5)]
    workers.close()


def test_slow_jobs_get_threads_of_their_own() -> None:
    """Jobs that need each other all run once `spread` was called."""
    barrier = threading.Barrier(4)
    workers = Workers("w")
    for _ in range(3):
        workers.submit(lambda: barrier.wait(5))
    workers.begin()
    while len(running()) < 3:
        workers.spread()
    barrier.wait(5)
    workers.close()


def test_what_has_not_begun_at_the_end_does_not_begin() -> None:
    """Closing drops the line; the job that runs goes on in its thread."""
    begun, release, ran = threading.Event(), threading.Event(), threading.Event()
    workers = Workers("w")

    def first() -> None:
        begun.set()
        release.wait(5)

    workers.submit(first)
    workers.submit(ran.set)
    workers.begin()
    assert begun.wait(5)
    workers.close()
    release.set()
    assert not ran.wait(0.1)


def test_a_slow_tool_does_not_hold_up_the_others() -> None:
    """The results of quick tools are handed on while a slow one runs, wherever it stands in line."""
    release = threading.Event()

    def slow(args: dict[str, Any], context: Any) -> str:
        release.wait(5)
        return "slow"

    tools = [Tool("slow", "", SCHEMA, slow), Tool("quick", "", SCHEMA, lambda args, context: "quick")]
    with ModelServer() as server, Client(server.base_url, model="m") as client:
        server.call_many([("slow", {}), ("quick", {})])
        server.say("done")
        finished = []
        for event in client.stream("hi", tools):
            if isinstance(event, ToolFinished):
                finished.append(event.name)
                release.set()
    assert finished == ["quick", "slow"]
