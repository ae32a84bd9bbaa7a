"""The bounded channel that events go through from the pump to whoever reads them."""

from __future__ import annotations

import contextlib
import threading

from toolnexus.events import Event
from toolnexus.inbox import Inbox

__all__ = ["Channel"]


class Channel:
    """
    A bounded channel from one thread to one other, for lists of events; the bound is on the events.

    `queue.Queue` does the same with a lock and two conditions in Python, at several times the cost
    an item: with a hundred streams at once that decides about the latency. This one is an inbox, two
    counters, and a lock that the sender waits on when there is no room.

    Args:
        size: The most events that wait.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._inbox: Inbox[list[Event]] = Inbox()
        self._sent = 0  # written by the sender only
        self._taken = 0  # written by the receiver only
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
        self._inbox.put(events)

    def wake(self) -> None:
        """Let the receiver look up, who then gets no events. Any thread may do this."""
        self._inbox.wake()

    def end(self) -> None:
        """Nothing more is waited for."""
        self._inbox.end()

    def take(self, timeout: float | None) -> list[Event]:
        """Return the next events; an empty list when none come within so many seconds, or when woken."""
        events = self._inbox.take(timeout)
        if events is None:
            return []
        self._taken += len(events)
        if self._waiting:
            self._waiting = False
            with contextlib.suppress(RuntimeError):
                self._room.release()
        return events
