"""What a producer puts its items into, and how events of inner streams are labelled on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.compose.mux_buffer import Buffer, Item
from toolnexus.events import Custom, Done, Error, Event, Lifecycle, Origin
from toolnexus.wording import error_text

__all__ = ["Sink", "Source", "ending", "relabel"]

#: How the status of a result is called in a `Lifecycle`.
_ENDS = {"done": "completed", "incomplete": "completed", "pending": "interrupted"}


def relabel(event: Event, namespace: tuple[str, ...], node: str = "", run_id: str = "") -> Event:
    """
    Return an event of an inner stream with where it comes from in the outer one.

    Args:
        event: The event.
        namespace: What is put before its own namespace.
        node: Its node, where it names none itself.
        run_id: Its run, where it names none itself.
    """
    own = event.origin
    origin = attrs.evolve(
        own, namespace=namespace + own.namespace, node=own.node or node, run_id=own.run_id or run_id
    )
    return attrs.evolve(event, origin=origin)


def ending(event: Done | Error) -> tuple[str, str | None]:
    """Return the status and the error that a `Lifecycle` has for a terminal item."""
    if isinstance(event, Done):
        return _ENDS.get(event.result.status, "completed"), None
    error = event.error
    return ("cancelled" if error.kind == "cancelled" else "failed"), error_text(error)


@attrs.define(eq=False)
class Source:
    """
    One producer of a mux.

    Args:
        name: Its name.
        producer: The stream, iterable or function.
        scope: Its end ends the producer.
    """

    name: str
    producer: Any
    scope: CancelScope
    status: str = "not started"
    delivered: int = 0
    result: Any = None
    error: BaseException | None = None
    #: The last terminal item of the stream that it passes on, until the producer ends.
    last: Done | Error | None = None

    def cancel(self) -> None:
        """Tell the producer to stop; a stream is cancelled at once."""
        self.scope.cancel()
        cancel = getattr(self.producer, "cancel", None)
        if callable(cancel):
            cancel()

    def abandon(self) -> None:
        """Do the same from a finalizer: wait for no lock."""
        self.scope.abandon()
        scope = getattr(self.producer, "scope", None)
        if isinstance(scope, CancelScope):
            scope.abandon()


class Sink:
    """
    Where a producer of a `mux` puts its items. Any thread may use it.

    Attributes:
        name: The producer's name.
        namespace: What its events have as namespace.
    """

    def __init__(
        self,
        source: Source,
        buffer: Buffer,
        numbers: count[int],
        run_id: str,
        namespace: tuple[str, ...],
        timeout: float | None,
    ) -> None:
        self._source = source
        self._buffer = buffer
        self._numbers = numbers
        self._timeout = timeout
        self._origin = Origin(run_id, namespace, source.name)
        # Origins of inner streams as they were and as they are passed on; a stream has few.
        self._known: tuple[Origin, Origin] | None = None
        self.name = source.name
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<Sink {'/'.join(self.namespace)}>"

    @property
    def cancelled(self) -> bool:
        """Whether the producer should stop: the mux was closed or cancelled, or its time is up."""
        return self._source.scope.cancelled

    @property
    def scope(self) -> CancelScope:
        """The producer's cancel scope, for runs of its own: ``client.run(..., scope=sink.scope)``."""
        return self._source.scope

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than the mux lives; raises when it ends first."""
        self._source.scope.sleep(seconds)

    def emit(self, item: Any) -> bool:
        """
        Put an item into the mux.

        Args:
            item: An event, which is passed on with the sink's namespace before its own; or anything else,
                which becomes a `Custom`. The terminal item of an inner stream becomes a `Lifecycle`.

        Returns:
            Whether it was taken; False where it was dropped.

        Raises:
            BackpressureError: There is no room, and ``overflow`` is "error".
            EmitTimeoutError: There was no room within ``emit_timeout``; the item is not delivered later.
            RunCancelledError: The mux has ended.
            RunTimeoutError: The time of the mux is up.
        """
        if isinstance(item, (Done, Error)):
            return self._end_inner(item)
        return self._put(self._labelled(item) if isinstance(item, Event) else self._make(Custom, item))

    def child(self, name: str) -> Sink:
        """
        Return a sink whose events have a longer namespace.

        Args:
            name: What is added to the namespace.
        """
        namespace = (*self.namespace, name)
        return Sink(self._source, self._buffer, self._numbers, self._origin.run_id, namespace, self._timeout)

    def report(self, status: str, error: str | None = None, origin: Origin | None = None) -> None:
        """Say how the producer, or a stream that it passes on, begins or ends; this takes no room."""
        event = self._make(Lifecycle, status, self.namespace[-1], None, error)
        if origin is not None:
            event = attrs.evolve(event, origin=attrs.evolve(self._origin, run_id=origin.run_id))
        self._buffer.force(Item(event, self.name, counts=False))

    def _end_inner(self, event: Done | Error) -> bool:
        """Keep the end of a stream that is passed on; it is reported with the end of the producer."""
        if self.namespace != (self.name,) or event.namespace:
            inner = self
            for part in event.namespace:
                inner = inner.child(part)
            inner.report(*ending(event), origin=event.origin)
            return True
        earlier, self._source.last = self._source.last, event
        if earlier is not None:
            self.report(*ending(earlier), origin=earlier.origin)
        return True

    def _put(self, event: Event) -> bool:
        return self._buffer.put(Item(event, self.name), self._timeout)

    def _make(self, cls: Callable[..., Event], *args: Any) -> Event:
        return cls(*args, origin=self._origin, seq=next(self._numbers), timestamp=time.time())

    def _labelled(self, event: Event) -> Event:
        known = self._known
        if known is not None and known[0] is event.origin:
            return attrs.evolve(event, origin=known[1])
        labelled = relabel(event, self.namespace, self.name, self._origin.run_id)
        self._known = (event.origin, labelled.origin)
        return labelled
