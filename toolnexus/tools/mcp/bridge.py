"""The bridge from threads to the protocol: one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolnexus.cancel import POLL, CancelScope
from toolnexus.tools.mcp.status import McpError

__all__ = ["Bridge", "Progress"]

T = TypeVar("T")

CLOSED = "the connection to the servers was closed"

_numbers = itertools.count(1)
_log = logging.getLogger("toolnexus.mcp")


class Bridge:
    """
    Runs coroutines for any thread.

    The loop lives in a daemon thread, so it works from plain scripts, from many threads at once
    and from inside a running event loop. It starts with the first call and ends with `close`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_exception)
        self._thread = threading.Thread(target=self._run, name=f"toolnexus-mcp-{next(_numbers)}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Bridge {self._thread.name} {'running' if self._thread.is_alive() else 'ended'}>"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            _end_tasks(self._loop)
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """
        Start a coroutine on the loop, from any thread.

        Raises:
            McpError: The bridge was closed.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise McpError(CLOSED) from None

    def run(
        self,
        work: Coroutine[Any, Any, T],
        scope: CancelScope,
        progress: Progress | None = None,
        *,
        timeout: float | None = None,
    ) -> T:
        """
        Run a coroutine and wait for it, no longer than the scope lives.

        Args:
            work: What to run on the loop.
            scope: Ends the wait at once when it ends; the coroutine is then cancelled.
            progress: Handed out in this thread while it waits.
            timeout: Seconds to wait; None for no limit.

        Raises:
            McpError: The bridge is closed, or the timeout passed.
            RunCancelledError: The scope was cancelled.
            RunTimeoutError: The scope's time was up.
        """
        progress = progress or Progress()
        deadline = None if timeout is None else time.monotonic() + timeout
        future = self.submit(work)
        future.add_done_callback(lambda _: progress.wake.set())
        forget = scope.on_cancel(progress.wake.set)
        try:
            while not future.done():
                scope.check()
                if deadline is not None and time.monotonic() >= deadline:
                    raise McpError(f"not done within {timeout:g} s")
                progress.wake.wait(POLL)
                progress.deliver(scope)
            progress.deliver(scope)
            return future.result()
        except concurrent.futures.CancelledError:
            raise McpError(CLOSED) from None
        finally:
            forget()
            future.cancel()

    def close(self, timeout: float = 1.0) -> None:
        """End the loop and its thread; tasks that are left are cancelled. May be called twice."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)


class Progress:
    """
    Carries progress from the loop to the thread that waits for a call.

    The loop never waits for a slow reader: what does not fit is dropped, the oldest first.

    Args:
        sink: Called in the waiting thread with each piece.
    """

    def __init__(self, sink: Callable[[str], object] | None = None) -> None:
        self._sink = sink
        self._pieces: deque[str] = deque(maxlen=1000)
        self.wake = threading.Event()

    def put(self, text: str) -> None:
        """Add a piece, on the loop."""
        self._pieces.append(text)
        self.wake.set()

    def deliver(self, scope: CancelScope) -> None:
        """Hand out what there is, in the waiting thread, as long as the scope lives."""
        self.wake.clear()
        for _ in range(len(self._pieces)):  # no more: new ones may come faster than they go
            scope.check()
            piece = self._pieces.popleft()
            if self._sink is not None:
                self._sink(piece)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs and let it clean up."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note what asyncio would print to stderr."""
    _log.debug("%s", context.get("message"), exc_info=context.get("exception"))
