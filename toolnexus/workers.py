"""The threads in which a run's tools are called: started when needed, used again, left behind when stuck."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable

__all__ = ["Workers"]

_Job = Callable[[], object]


class Workers:
    """
    Daemon threads for one run.

    No `ThreadPoolExecutor`: its exit waits for its threads, and a tool that hangs must not keep the
    program from ending.

    Args:
        run_id: The run's id, for the threads' names.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        # Queues of the threads that have nothing to do; append and pop are atomic.
        self._idle: list[queue.SimpleQueue[_Job | None]] = []
        self._count = 0
        self._closed = False

    def submit(self, job: _Job) -> None:
        """Call a function in a thread that sees the context variables of the caller."""
        context = contextvars.copy_context()
        started = True
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox, started = queue.SimpleQueue(), False
        # Before the thread starts: a quick job is then done by the time the next one is submitted.
        inbox.put(lambda: context.run(job))
        if started:
            return
        self._count += 1
        name = f"toolnexus-tool-{self._run_id}-{self._count}"
        threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True).start()

    def _work(self, inbox: queue.SimpleQueue[_Job | None]) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # what it holds must not live until the next one
            self._idle.append(inbox)
            if self._closed:
                # close() may have looked before this thread was idle: then nobody else ends it.
                inbox.put(None)

    def close(self) -> None:
        """Let the threads end: those with nothing to do now, the others when they are done."""
        self._closed = True
        for inbox in list(self._idle):
            inbox.put(None)
