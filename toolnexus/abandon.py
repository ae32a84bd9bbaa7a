"""Calling code that cannot be interrupted, in a thread that can be left behind."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from toolnexus.cancel import POLL

if TYPE_CHECKING:
    from toolnexus.cancel import CancelScope

__all__ = ["call_abandonable", "start_thread"]

T = TypeVar("T")


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Run a function in a daemon thread that sees the context variables of the caller."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name=f"toolnexus-{name}", daemon=True)
    thread.start()
    return thread


def call_abandonable(
    function: Callable[[], T], scope: CancelScope, *, name: str, deadline: float | None = None
) -> T:
    """
    Call a function in a daemon thread and wait for it no longer than the scope lives.

    Args:
        function: What to call.
        scope: Its end leaves the call behind.
        name: A word for the thread's name.
        deadline: A moment on ``time.monotonic()``'s clock after which the call is left behind, too.

    Returns:
        What the function returns.

    Raises:
        RunCancelledError: The scope was cancelled first.
        RunTimeoutError: The scope's time was up first.
        TimeoutError: The deadline passed first.
        BaseException: What the function raised.
    """
    outcome: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((True, function()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread as it is
            outcome.put((False, error))

    start_thread(run, name)
    while True:
        try:
            worked, value = outcome.get(timeout=POLL)
        except queue.Empty:
            scope.check()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("timed out") from None
            continue
        if worked:
            return value  # type: ignore[no-any-return]
        raise value
