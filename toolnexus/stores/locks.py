"""One run at a time on a conversation."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque

from toolnexus.cancel import CancelScope
from toolnexus.errors import ConversationBusyError
from toolnexus.forking import ForkLock

__all__ = ["ConversationLocks"]

#: Seconds between two looks at the scope while waiting.
POLL = 0.02

#: The holds that the code of this context runs inside of, those of its callers included.
_around: contextvars.ContextVar[tuple[Hold, ...]] = contextvars.ContextVar("toolnexus_holds", default=())


class Hold:
    """
    A place in the queue for a conversation, and then the conversation itself, until the block ends.

    It is no generator, so that nothing happens when one is collected.
    """

    def __init__(self, locks: ConversationLocks, id: str, scope: CancelScope, owner: int) -> None:  # noqa: A002
        self.id = id
        self.scope = scope
        self.owner = owner
        # Numbers of threads are given out anew, so the thread itself is remembered, too.
        self.thread = _thread(owner)
        self.entered: threading.Thread | None = None
        self.turn = threading.Event()
        self._locks = locks

    def __enter__(self) -> None:
        self._locks._acquire(self)

    def __exit__(self, *exc: object) -> None:
        self._locks._release(self)


class ConversationLocks:
    """
    A lock for every conversation id, for the time that it is needed.

    Who comes first gets it first. Nothing is kept of an id that nobody uses or waits for. A
    forked child begins with none held.

    >>> locks = ConversationLocks()
    >>> with locks.hold("trip", CancelScope(), threading.get_ident()):
    ...     locks
    <ConversationLocks: 1 in use>
    >>> locks
    <ConversationLocks: 0 in use>
    """

    def __init__(self) -> None:
        # Guards _queues and _pid; held for a few steps only.
        self._lock = ForkLock()
        # Every id in use: the first of its queue has the conversation, the others wait.
        self._queues: dict[str, deque[Hold]] = {}
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<ConversationLocks: {len(self._queues)} in use>"

    def hold(self, id: str, scope: CancelScope, owner: int) -> Hold:  # noqa: A002
        """
        Return a context manager that has a conversation for itself.

        Args:
            id: The conversation's id.
            scope: The run's scope; when it ends, so does the waiting.
            owner: The number of the thread that the run is for: of whoever calls `run` or
                iterates the stream, not of the stream's own thread.

        Raises:
            ConversationBusyError: On entering: the same thread, or a run that this code is a part
                of (a tool of it, for instance), has the conversation. Waiting would never end.
            RunCancelledError: The scope was cancelled while waiting.
            RunTimeoutError: The scope's time was up while waiting.
        """
        return Hold(self, id, scope, owner)

    def _acquire(self, hold: Hold) -> None:
        hold.scope.check()
        hold.entered = threading.current_thread()
        try:
            self._queue_up(hold)
            while not hold.turn.wait(POLL):
                hold.scope.check()
        except BaseException:
            self._leave(hold)
            raise
        _around.set((*_around.get(), hold))

    def _queue_up(self, hold: Hold) -> None:
        with self._lock:
            self._forget_parent()
            for other in self._queues.get(hold.id, ()):
                if reason := _never(other, hold):
                    raise ConversationBusyError(f"conversation {hold.id!r} is in use {reason}")
            queue = self._queues.setdefault(hold.id, deque())
            queue.append(hold)
            if queue[0] is hold:
                hold.turn.set()

    def _release(self, hold: Hold) -> None:
        self._leave(hold)
        # Not by a token: the block may end in another context than it began in.
        _around.set(tuple(other for other in _around.get() if other is not hold))

    def _leave(self, hold: Hold) -> None:
        """Give up a place in the queue, whether it is the first or not."""
        with self._lock:
            self._forget_parent()
            queue = self._queues.get(hold.id)
            if queue is None or hold not in queue:
                return  # never got so far, or held by the process that this one was forked from
            queue.remove(hold)
            if queue:
                queue[0].turn.set()
            else:
                del self._queues[hold.id]

    def _forget_parent(self) -> None:
        """Drop what threads hold that only the process has that this one was forked from."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._queues.clear()


def _never(other: Hold, hold: Hold) -> str:
    """Return why waiting for another one could never end, or nothing."""
    if other.entered is hold.entered:
        return "by this very thread"
    if other.scope.cancelled:
        return ""  # it is on its way out, and waits for nobody
    if other in _around.get():
        return "by a run that this one is a part of"
    if other.owner == hold.owner and other.thread is hold.thread:
        return "by this very thread"
    return ""


def _thread(number: int) -> threading.Thread | None:
    """Return the thread that has a number now."""
    current = threading.current_thread()
    if current.ident == number:
        return current
    return next((thread for thread in threading.enumerate() if thread.ident == number), None)
