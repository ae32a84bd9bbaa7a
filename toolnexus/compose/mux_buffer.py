"""The bounded buffer that several producers share, and what happens when it is full."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.errors import ToolnexusError
from toolnexus.events import Custom, Debug, Event, Heartbeat, Text, Thinking, ToolCallDelta, ToolOutput

__all__ = ["POLICIES", "BackpressureError", "Buffer", "EmitTimeoutError", "Item"]

#: What may happen when the buffer is full.
POLICIES = ("block", "drop_newest", "drop_oldest", "error")

#: What may be dropped: pieces that something whole makes up for, and what is only shown.
_DROPPABLE = frozenset({Text, Thinking, ToolCallDelta, ToolOutput, Custom, Debug, Heartbeat})

#: How often a waiting producer looks whether the consumer is still there, in seconds; a cancel wakes it.
_LOOK = 0.1


class BackpressureError(ToolnexusError):
    """The buffer of a mux is full, and its ``overflow`` is "error"; the item was not taken."""

    kind = "backpressure"


class EmitTimeoutError(BackpressureError, TimeoutError):
    """There was no room in the buffer of a mux within ``emit_timeout``; the item was not taken."""


@attrs.frozen(eq=False)
class Item:
    """
    One event on its way.

    Args:
        event: The event.
        producer: The name of its producer.
        counts: Whether it takes room; the mux's own reports do not.
    """

    event: Event
    producer: str
    counts: bool = True


class _Waiter:
    """A producer that waits with its item until there is room."""

    __slots__ = ("accepted", "bell", "item")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.accepted = False
        self.bell = threading.Lock()
        self.bell.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.bell.release()


class Buffer:
    """
    A bounded buffer for many threads that put and one that takes.

    Who waits for room is served in the order of coming: the taker itself lets the first one's item in, so
    that a quick producer cannot take the place of one that waits.

    Args:
        size: The most items that wait to be taken.
        overflow: What happens when it is full, one of `POLICIES`.
        scope: Its end ends all waiting.
    """

    def __init__(self, size: int, overflow: str, scope: CancelScope) -> None:
        self._size = size
        self._overflow = overflow
        self._scope = scope
        # Guards all below. Reentrant, because a signal handler may cancel in the middle of a take.
        self._lock = threading.RLock()
        # Items with their number: those that may be dropped, and the others.
        self._loose: deque[tuple[int, Item]] = deque()
        self._firm: deque[tuple[int, Item]] = deque()
        self._number = 0
        self._used = 0
        self._waiters: deque[_Waiter] = deque()
        self._hungry = False
        self._bell = threading.Lock()
        self._bell.acquire()
        #: How many items of each producer were dropped, and how many of those nobody was told of yet.
        self.dropped: Counter[str] = Counter()
        self.untold: Counter[str] = Counter()
        #: The thread that takes; when it is dead nobody makes room any more.
        self.consumer: threading.Thread | None = None

    # -- in the threads of the producers -------------------------------------------------------

    def put(self, item: Item, timeout: float | None = None) -> bool:
        """
        Put an item, waiting for room where the policy says so.

        Args:
            item: The item.
            timeout: Seconds to wait at most; None for as long as it takes.

        Returns:
            Whether it was taken; False where it was dropped.

        Raises:
            BackpressureError: There is no room, and the policy is "error".
            EmitTimeoutError: There was no room within the time.
            RunCancelledError: The mux has ended.
            RunTimeoutError: The time of the mux is up.
        """
        self._scope.check()
        with self._lock:
            if self._used < self._size and not self._waiters:
                self._add(item)
                return True
            taken = self._overflowing(item)
            if taken is not None:
                return taken
            waiter = _Waiter(item)
            self._waiters.append(waiter)
        return self._wait(waiter, timeout)

    def force(self, item: Item) -> None:
        """Put an item past the bound: a report of the mux's own."""
        with self._lock:
            self._add(item)

    def _add(self, item: Item) -> None:
        self._number += 1
        queue = self._loose if item.counts and type(item.event) in _DROPPABLE else self._firm
        queue.append((self._number, item))
        self._used += item.counts
        if self._hungry:
            self._hungry = False
            self.wake()

    def _overflowing(self, item: Item) -> bool | None:
        """Do what the policy says; tell whether the item was taken, or None where it must wait."""
        if self._overflow == "error":
            raise BackpressureError(f"the buffer is full: {self._size} items wait to be read")
        if self._overflow == "drop_newest" and type(item.event) in _DROPPABLE:
            self._drop(item)
            return False
        if self._overflow == "drop_oldest" and self._loose:
            self._drop(self._loose.popleft()[1])
            self._used -= 1
            self._add(item)
            return True
        return None

    def _drop(self, item: Item) -> None:
        self.dropped[item.producer] += 1
        self.untold[item.producer] += 1

    def _wait(self, waiter: _Waiter, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if until is None else max(0.0, min(_LOOK, until - time.monotonic()))
            waiter.bell.acquire(timeout=left)
            late = until is not None and time.monotonic() >= until
            if waiter.accepted:
                return True
            if self.consumer is not None and not self.consumer.is_alive():
                self._scope.cancel("the thread that read the events has ended")
            if (late or self._scope.cancelled) and self._give_up(waiter):
                self._scope.check()
                raise EmitTimeoutError(f"there was no room in the buffer for {timeout:g} s")

    def _give_up(self, waiter: _Waiter) -> bool:
        """Take back what waits, unless it has got in meanwhile."""
        with self._lock:
            if not waiter.accepted:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
            return not waiter.accepted

    # -- in the thread of the consumer ---------------------------------------------------------

    def take(self, timeout: float) -> Item | None:
        """Return the next item, or None when none comes within the time or somebody wakes the taker."""
        item = self._next()
        if item is None and timeout > 0:
            self._bell.acquire(timeout=timeout)
            item = self._next()
        return item

    def _next(self) -> Item | None:
        with self._lock:
            loose, firm = self._loose, self._firm
            if not loose and not firm:
                self._hungry = True
                return None
            self._hungry = False
            first = loose if not firm or (loose and loose[0][0] < firm[0][0]) else firm
            item = first.popleft()[1]
            self._used -= item.counts
            while self._waiters and self._used < self._size:
                waiter = self._waiters.popleft()
                waiter.accepted = True
                self._add(waiter.item)
                waiter.ring()
            return item

    def tell_drops(self) -> dict[str, int]:
        """Return how many items of each producer were dropped since this was last asked."""
        if not self.untold:
            return {}
        with self._lock:
            told, self.untold = dict(self.untold), Counter()
        return told

    # -- in any thread -------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the taker look up."""
        with contextlib.suppress(RuntimeError):
            self._bell.release()

    def end(self) -> None:
        """Let everybody who waits look at the scope."""
        self.wake()
        for waiter in list(self._waiters):
            waiter.ring()
