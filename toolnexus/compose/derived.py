"""A stream made from another one, or from any iterable of events."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from toolnexus.cancel import CancelScope
from toolnexus.errors import StreamConsumedError
from toolnexus.events import AttemptFailed, Done, Error, Event, Text
from toolnexus.pump import Voice
from toolnexus.results import RunResult
from toolnexus.stream import Stream, TextSoFar

if TYPE_CHECKING:
    from toolnexus.suspension import Answer, Request

__all__ = ["DerivedStream"]


class DerivedStream(Stream):
    """
    Passes on the events of a source; a subclass says what becomes of each.

    It has all that a `Stream` has, and hands on to the source what only that can do. It has no thread of
    its own, and closing it closes the source.

    Args:
        source: A stream, or another iterable of events.
    """

    def __init__(self, source: Iterable[Event]) -> None:
        self._inner = source if isinstance(source, Stream) else None
        if self._inner is not None:
            self._inner.spoken_for()
        self._items: Iterator[Event] = iter(source)
        self._ready: deque[Event] = deque()
        self._run_id = ""
        self._scope = source.scope if isinstance(source, Stream) else CancelScope()
        self._text = TextSoFar()
        self._terminal: Event | None = None
        self._owner = None
        self._closed = False
        self._over = False
        kept = self._inner is not None and self._inner.events is not None
        self.events: list[Event] | None = [] if kept else None

    def __repr__(self) -> str:
        if self._terminal is not None:
            state = self._terminal.type
        else:
            state = "closed" if self._closed else "over" if self._over else "open"
        return f"<{type(self).__name__} {self.run_id} {state}>"

    # -- for the subclass --------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Put what becomes of an event of the source into ``_ready``."""
        self._ready.append(event)

    def _ended(self) -> None:
        """The source has ended without a terminal item; put what is still to come into ``_ready``."""

    def _abandoned(self) -> None:
        """Let go of what was not handed out: the stream was closed, or iterating failed."""

    # -- the iterator ------------------------------------------------------------------------

    def __iter__(self) -> DerivedStream:
        return self

    def __next__(self) -> Event:
        ready = self._ready
        try:
            while not ready:
                if self._over:
                    raise StopIteration
                self._take_next()
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise
        return self._noted(ready.popleft())

    def next_within(self, seconds: float | None) -> Event | None:
        """
        Return the next event, or None when none comes within the time.

        Args:
            seconds: How long to wait; None for as long as it takes.

        Raises:
            StopIteration: The stream is over.
        """
        if seconds is None or self._inner is None:
            return next(self)
        until = time.monotonic() + seconds
        while not self._ready and not self._over:
            try:
                event = self._inner.next_within(max(0.001, until - time.monotonic()))
            except StopIteration:
                self._over = True
                self._ended()
                break
            if event is not None:
                self._take(event)
            elif time.monotonic() >= until:
                return None
        return next(self)

    def _take_next(self) -> None:
        if self._inner is None and self._scope.cancelled:
            self._give_up()
            return
        try:
            event = next(self._items)
        except StopIteration:
            self._over = True
            self._ended()
            return
        self._take(event)

    def _give_up(self) -> None:
        """End an iterable that cannot be cancelled itself."""
        self._over = True
        self._abandoned()
        error = self._scope.error()
        error.partial = RunResult(status="incomplete", text=self.text, run_id=self._run_id)
        self._ready.append(Error(error))

    def _noted(self, event: Event) -> Event:
        kind = type(event)
        if kind is Text:
            self._text.add(event)  # type: ignore[arg-type]
        elif isinstance(event, AttemptFailed):
            self._text.take_back(event)
        elif isinstance(event, (Done, Error)):
            self._terminal = event
            self._over = True
        if not self._run_id:
            self._run_id = getattr(event, "run_id", "")
        if self.events is not None:
            self.events.append(event)
        return event

    def _speaking(self, event: Error) -> Error:
        """Have an error that was made here logged when nobody looks at it, as a stream's own is."""
        Voice(self.run_id).speak_for(event)
        return event

    # -- what the source does ----------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._inner.run_id if self._inner is not None else self._run_id

    @property
    def scope(self) -> CancelScope:
        """What cancels the run."""
        return self._scope

    def start(self) -> DerivedStream:
        """Start the run now instead of at the first ``next()``; returns the stream itself."""
        if self._inner is not None:
            self._inner.start()
        return self

    def spoken_for(self) -> None:
        """See `Stream.spoken_for`; the source is spoken for already."""

    def hand_over(self) -> None:
        """Let another thread go on with the iteration."""
        if self._inner is not None:
            self._inner.hand_over()

    def takes_text_back(self) -> None:
        """Whoever reads can take text back: a model call that fails after output may be tried again."""
        if self._inner is not None:
            self._inner.takes_text_back()

    def waits_for_answers(self) -> None:
        """Keep suspended calls open however long nobody answers, as ``answers="wait"`` does."""
        if self._inner is not None:
            self._inner.waits_for_answers()

    def answer(
        self, request: Request | Answer, ok: bool = True, data: Any = None, reason: str | None = None
    ) -> None:
        """
        Answer a suspended call, see `Stream.answer`.

        Raises:
            InvalidAnswerError: Nobody waits for it, or it does not fit; the suspension stays.
            StreamConsumedError: The source takes no answers.
        """
        if self._inner is None:
            raise StreamConsumedError("this stream takes no answers")
        self._inner.answer(request, ok, data, reason)

    def waiting_for(self, request_id: str) -> Request | None:
        """Return the request of that id if the run still waits for its answer."""
        return self._inner.waiting_for(request_id) if self._inner is not None else None

    def cancel(self, reason: str | None = None) -> None:
        """
        Cancel the run, from any thread. The iteration then ends with an `Error`.

        Args:
            reason: A word for the error message.
        """
        if self._inner is not None:
            self._inner.cancel(reason)
        elif self._terminal is None:
            self._scope.cancel(reason)

    def close(self) -> None:
        """Cancel the run if it is not over, and drop what was not read. Safe from any thread, and twice."""
        if self._closed:
            return
        self._closed = True
        if self._terminal is None:
            self._ready.clear()
            self._abandoned()
        if self._inner is None and self._terminal is None:
            self._scope.cancel("the stream was closed")
        self._close_source()

    def _close_source(self) -> None:
        if self._inner is not None:
            self._inner.close()
            return
        with contextlib.suppress(AttributeError, ValueError):  # no generator, or one that runs elsewhere
            self._items.close()  # type: ignore[attr-defined]
