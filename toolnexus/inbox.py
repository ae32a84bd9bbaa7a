"""What threads put things into for one other, and the bell that wakes the one that waits for them."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Inbox"]

T = TypeVar("T")

#: How long a wait on a lock lasts before the next one, in seconds.
_LOOK = 0.25


class _LockBell:
    """One thread waits for it, any thread rings it; ringing once or more wakes once."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._lock.acquire()

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._lock.release()

    def wait(self, seconds: float | None) -> None:
        """Wait until it rings, or so long."""
        if seconds is not None:
            self._lock.acquire(timeout=seconds)
            return
        while not self._lock.acquire(timeout=_LOOK):
            pass  # on Windows Ctrl-C is seen between two waits only


class _EventBell:
    """
    The same, rung while the interpreter's lock is given up, which releasing a lock does not do.

    Who is woken by a lock runs at once, finds the interpreter taken by who woke it, and sleeps again: with
    a hundred streams that is half of all switches.
    """

    def __init__(self) -> None:
        self._number = os.eventfd(0)
        self._poll: select.poll | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        number = getattr(self, "_number", None)
        if number is not None:  # else there was none to be had
            close(number)

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        os.eventfd_write(self._number, 1)

    def wait(self, seconds: float | None) -> None:
        """Wait until it rings, or so long."""
        if seconds is not None:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self._number, select.POLLIN)
            if not self._poll.poll(seconds * 1000):
                return
        os.read(self._number, 8)  # which, unlike eventfd_read, goes on after a signal


def _make_bell() -> _LockBell | _EventBell:
    lock = threading.Lock()
    # Where threads are green, as gevent's are, their lock knows how to wait, and a system call does not.
    if hasattr(os, "eventfd") and type(lock).__module__ == "_thread":
        with contextlib.suppress(OSError):  # too many open files: the lock does it as well
            return _EventBell()
    return _LockBell(lock)


class Inbox(Generic[T]):
    """
    A queue from any number of threads to one, without a bound.

    It is a deque and a bell. `queue.SimpleQueue` is as short, but wakes with a lock. The bell is made at the
    first wait, for it belongs to the process that waits: an inbox may be older than a fork.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell: _LockBell | _EventBell | None = None
        self._listening = False
        self._woken = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Put something in."""
        self._items.append(item)
        self._ring()

    def wake(self) -> None:
        """Let the receiver look up, who then gets nothing."""
        self._woken = True
        self._ring()

    def _ring(self) -> None:
        bell = self._bell  # held here, so that it stays until it was rung
        if self._listening and bell is not None:
            bell.ring()

    def end(self) -> None:
        """The receiver waits no more: let go of the bell."""
        self._bell = None

    def take(self, timeout: float | None) -> T | None:
        """Return the next thing; None when none comes within so many seconds, or when woken without one."""
        if not self._items and timeout != 0:
            bell = self._bell = self._bell or _make_bell()
            self._listening = True
            # Looked at again, because a sender may have put something in before it saw the flag.
            if not self._items and not self._woken:
                bell.wait(timeout)
            self._listening = self._woken = False
        return self._items.popleft() if self._items else None
