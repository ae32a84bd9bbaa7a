"""Driving the producers of a mux, and what they reached."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, cast

import attrs

from toolnexus.abandon import start_thread
from toolnexus.cancel import CancelScope
from toolnexus.compose.mux_buffer import Buffer, Item
from toolnexus.compose.mux_sink import Sink, Source
from toolnexus.errors import RunTimeoutError
from toolnexus.events import Debug, Done, Event, Heartbeat, Lifecycle, Origin
from toolnexus.nesting import ending
from toolnexus.pump import GRACE, NothingCameError, Pump
from toolnexus.results import RunResult
from toolnexus.run import new_run_id
from toolnexus.values import Value
from toolnexus.wording import describe_error, error_text

__all__ = ["Merger", "MuxResult", "MuxScope", "ProducerResult"]

#: How often a consumer that waits looks whether the mux is over, in seconds; a cancel wakes it.
_LOOK = 0.25


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProducerResult(Value):
    """
    How one producer of a `mux` ended.

    Args:
        status: "completed", "failed", "interrupted" (its run waits for a person), "cancelled", "running"
            (it was left behind) or "not started".
        delivered: How many of its items were handed out.
        dropped: How many were dropped.
        result: The result of the run that it passed on, or what its function returned.
        error: What went wrong, or None.
    """

    status: str
    delivered: int = 0
    dropped: int = 0
    result: Any = None
    error: BaseException | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values; the error as text."""
        result = self.result.to_dict() if hasattr(self.result, "to_dict") else self.result
        return {
            "status": self.status,
            "delivered": self.delivered,
            "dropped": self.dropped,
            "result": result,
            "error": None if self.error is None else describe_error(self.error),
        }


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MuxResult(RunResult):
    """
    What a `mux` reached; the fields that belong to a single run are empty.

    Args:
        producers: How each producer ended, by its name.
    """

    producers: dict[str, ProducerResult] = attrs.field(factory=dict)

    @property
    def delivered(self) -> int:
        """How many items were handed out."""
        return sum(one.delivered for one in self.producers.values())

    @property
    def dropped(self) -> int:
        """How many items were dropped."""
        return sum(one.dropped for one in self.producers.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        data = attrs.evolve(self, producers={})
        plain = super(MuxResult, data).to_dict()
        return {**plain, "producers": {name: one.to_dict() for name, one in self.producers.items()}}


class MuxScope(CancelScope):
    """The scope of a mux, which its finalizer can end, too, without waiting for a lock."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self.sources: list[Source] = []

    def abandon(self) -> None:
        super().abandon()
        for source in self.sources:
            source.abandon()


class Merger(Pump):
    """Drives the producers, each in a thread, and takes what they put into the buffer."""

    def __init__(
        self,
        sources: list[Source],
        scope: MuxScope,
        *,
        max_buffer: int,
        overflow: str,
        emit_timeout: float | None,
        heartbeat: float | None,
    ) -> None:
        super().__init__(new_run_id(), scope, lambda _: self._result("done"), queue_size=1)
        self.sources = scope.sources = sources
        self.reached = lambda: self._result("incomplete")
        self._buffer = Buffer(max_buffer, overflow, scope)
        self._overflow = overflow
        self._emit_timeout = emit_timeout
        self._heartbeat = heartbeat
        self._numbers = count(1)
        self._lock = threading.Lock()  # guards _open
        self._open = len(sources)
        self._threads: list[threading.Thread] = []
        self._by_name = {source.name: source for source in sources}
        self._started = 0.0

    def start(self) -> None:
        """Start the threads, and the clock of the timeout."""
        self._started = time.monotonic()
        self._buffer.consumer = self.consumer
        if self.scope.timeout is not None:
            self.scope.deadline = self._started + self.scope.timeout
        self.scope.on_cancel(self._tell)
        for source in self.sources:
            source.status = "running"
            thread = start_thread(lambda s=source: self._produce(s), f"mux-{self.run_id}-{source.name}")  # type: ignore[misc]
            self._threads.append(thread)
        self.thread = self._threads[0]

    def _tell(self) -> None:
        for source in self.sources:
            source.cancel()
        self._buffer.end()

    # -- in the thread of a producer -----------------------------------------------------------

    def _produce(self, source: Source) -> None:
        sink = self._sink(source, self._emit_timeout)
        sink.report("started")
        try:
            status = self._feed(source, sink)
            error = None if source.error is None else error_text(source.error)
        except BaseException as raised:  # noqa: BLE001 - whatever a producer raises, the others go on
            source.error = raised
            status = "cancelled" if source.scope.cancelled else "failed"
            error = describe_error(raised)
        source.status = status
        sink.report(status, error)
        with self._lock:
            self._open -= 1
        self._buffer.wake()

    def _sink(self, source: Source, timeout: float | None) -> Sink:
        return Sink(source, self._buffer, self._numbers, self.run_id, (source.name,), timeout)

    def _feed(self, source: Source, sink: Sink) -> str:
        """Have the producer's items put into the buffer; return how it ended."""
        producer = source.producer
        items = producer if isinstance(producer, Iterable) else producer(sink)
        status = "completed"
        if items is producer or isinstance(items, Iterator):
            source.producer = items
            # An iterable cannot be told that there was no room in time, and it need not be: it waits.
            status = _pass_on(items, self._sink(source, None))
        else:
            source.result = items
        if source.last is None:
            return status
        status, _ = ending(source.last)
        if isinstance(source.last, Done):
            source.result = source.last.result if source.result is None else source.result
        else:
            source.error = source.last.error
        return status

    # -- in the consumer's thread --------------------------------------------------------------

    def take(self, patience: float | None = None) -> list[Event] | None:
        """Return the next event, with what must be said before it; None when the scope has ended."""
        now = time.monotonic()
        until = None if patience is None else now + patience
        beat = None if self._heartbeat is None else now + self._heartbeat
        self._buffer.consumer = self.consumer
        while not self.scope.cancelled:
            over = not self._open  # looked at before the buffer: whoever closes has put all that it has
            item = self._buffer.take(0.0 if over else self._wait(now, until, beat))
            if item is not None:
                return self._handed(item)
            if over:
                return [*self._drops(), Done(self._result("done"), **self.marks())]
            now = time.monotonic()
            if beat is not None and now >= beat:
                return [Heartbeat(**self.marks())]
            if until is not None and now >= until:
                raise NothingCameError
            self._check_threads()
        if isinstance(self.scope.error(), RunTimeoutError):
            self.scope.expire()  # so far nobody was told
        self.join()
        return None

    def _wait(self, now: float, *until: float | None) -> float:
        moments: list[float | None] = [
            _LOOK,
            self.scope.remaining(),
            *(None if u is None else u - now for u in until),
        ]
        return max(0.001, min(seconds for seconds in moments if seconds is not None))

    def _handed(self, item: Item) -> list[Event]:
        if item.counts:
            self._by_name[item.producer].delivered += 1
        return [*self._drops(), item.event]

    def _drops(self) -> list[Event]:
        dropped = self._buffer.tell_drops()
        if not dropped:
            return []
        payload = {
            "type": "dropped",
            "count": sum(dropped.values()),
            "overflow": self._overflow,
            "producers": dropped,
        }
        return [Debug(payload, **self.marks())]

    def marks(self) -> dict[str, Any]:
        """Return where the mux's own events come from."""
        return {"origin": Origin(self.run_id), "seq": next(self._numbers), "timestamp": time.time()}

    def _check_threads(self) -> None:
        if self._open and not any(thread.is_alive() for thread in self._threads):
            self.scope.cancel("its threads are gone; after a fork they are in the other process")

    def join(self) -> None:
        """Give the producers a moment to end."""
        until = time.monotonic() + GRACE * 2
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def last_word(self) -> Event | None:
        """A mux that has ended has nothing more to say."""
        return None

    def _result(self, status: str) -> MuxResult:
        dropped = self._buffer.dropped
        return MuxResult(
            status=cast(Any, status),
            run_id=self.run_id,
            duration=time.monotonic() - self._started if self._started else 0.0,
            producers={
                s.name: ProducerResult(
                    status=s.status,
                    delivered=s.delivered,
                    dropped=dropped[s.name],
                    result=s.result,
                    error=s.error,
                )
                for s in self.sources
            },
        )


def _pass_on(items: Iterable[Any], sink: Sink) -> str:
    """Put all items into the sink; return how the last run among them said that it ended."""
    status = "completed"
    try:
        for item in items:
            if type(item) is Lifecycle and not item.namespace:
                # The producer's own report says the same, and each path shall have one.
                status = item.status if item.status != "started" else status
                continue
            sink.emit(item)
    except BaseException:
        close: Callable[[], object] | None = getattr(items, "close", None)
        if callable(close):
            close()
        raise
    return status
