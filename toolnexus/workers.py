"""The threads in which a run's tools are called: started when needed, used again, left behind when stuck."""

from __future__ import annotations

import contextlib
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

    A thread costs more than most tools do. So jobs wait in line, `begin` starts one thread for them,
    and `spread` starts more once it shows that they take long.

    Args:
        run_id: The run's id, for the threads' names.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        # What is to be done; None ends the thread that takes it.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._count = 0

    def submit(self, job: _Job) -> None:
        """Put a function in line, to be called with the context variables that the caller sees now."""
        context = contextvars.copy_context()
        self._jobs.put(lambda: context.run(job))

    def begin(self) -> None:
        """See to it that there is a thread."""
        if self._count == 0:
            self._start()

    def spread(self) -> None:
        """Start a thread for each job that still waits: those who could take it are busy."""
        for _ in range(self._jobs.qsize()):
            self._start()

    def _start(self) -> None:
        self._count += 1
        name = f"toolnexus-tool-{self._run_id}-{self._count}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what it holds must not live until the next one

    def close(self) -> None:
        """Let the threads end: those with nothing to do now, the others when they are done."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()  # nobody waits for what has not begun
        for _ in range(self._count):
            self._jobs.put(None)
