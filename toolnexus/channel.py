"""A bounded channel of events from one thread to another, and the bell that wakes who waits at its end."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from toolnexus.events import Event

__all__ = ["Channel"]


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
        self._lock.acquire(timeout=-1 if seconds is None else seconds)


class _EventBell:
    """
    The same, rung while the interpreter's lock is given up, which releasing a lock does not do.

    Who is woken by a lock runs at once, finds the interpreter taken by who woke it, and sleeps again: with
    a hundred streams that is half of all switches.
    """

    def __init__(self) -> None:
        self._number = os.eventfd(0)
        self._poll: select.poll | None = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # there was none to be had, or it was closed
            os.close(self._number)

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
        os.eventfd_read(self._number)


def _make_bell() -> _LockBell | _EventBell:
    lock = threading.Lock()
    # Where threads are green, as gevent's are, their lock knows how to wait, and a system call does not.
    if hasattr(os, "eventfd") and type(lock).__module__ == "_thread":
        with contextlib.suppress(OSError):  # too many open files: the lock does it as well
            return _EventBell()
    return _LockBell(lock)


class Channel:
    """
    A bounded channel from one thread to one other, for lists of events; the bound is on the events.

    `queue.Queue` does the same with a lock and two conditions in Python, at several times the cost
    an item: with a hundred streams at once that decides about the latency. This one is a
    deque, two counters, a bell for the receiver, and a lock that the sender waits on when there is no room.

    Args:
        size: The most events that wait.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[list[Event]] = deque()
        self._sent = 0  # written by the sender only
        self._taken = 0  # written by the receiver only
        self._bell = _make_bell()
        self._listening = False
        self._waiting = False
        self._room = threading.Lock()
        self._room.acquire()

    def send(self, events: list[Event], timeout: float) -> bool:
        """Send events if there is room within the time, in seconds; tell whether there was."""
        if self._sent - self._taken >= self._size:
            self._waiting = True
            # Looked at again, because the receiver may have taken something before it saw the flag.
            if self._sent - self._taken >= self._size:
                self._room.acquire(timeout=timeout)
            self._waiting = False
            if self._sent - self._taken >= self._size:
                return False
        self.force(events)
        return True

    def force(self, events: list[Event]) -> None:
        """Send events past the bound."""
        self._sent += len(events)
        self._items.append(events)
        if self._listening:
            self._bell.ring()

    def wake(self) -> None:
        """Let the receiver look up, who then gets no events. Any thread may do this."""
        self._bell.ring()

    def is_empty(self) -> bool:
        """Tell whether there is nothing to take."""
        return not self._items

    def take(self, timeout: float | None) -> list[Event]:
        """Return the next events; an empty list when none come within so many seconds, or when it is woken."""
        if not self._items and timeout != 0:
            self._listening = True
            # Looked at again, because the sender may have sent something before it saw the flag.
            if not self._items:
                self._bell.wait(timeout)
            self._listening = False
        if not self._items:
            return []
        events = self._items.popleft()
        self._taken += len(events)
        if self._waiting:
            self._waiting = False
            with contextlib.suppress(RuntimeError):
                self._room.release()
        return events
