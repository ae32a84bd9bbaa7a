"""
The pump: the thread that drives the loop for a stream, and the channel to whoever reads it.

The pump holds no reference to the `Stream`. So a stream that nobody holds any more is collected,
its finalizer cancels the run, and the pump ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from toolnexus.abandon import start_thread
from toolnexus.cancel import POLL, CancelScope
from toolnexus.channel import Channel
from toolnexus.errors import RunCancelledError, ToolnexusError
from toolnexus.events import Done, Error, Event, Origin
from toolnexus.results import RunResult
from toolnexus.wording import describe_error

__all__ = ["GRACE", "NothingCameError", "Pump", "Voice"]

_log = logging.getLogger("toolnexus")

#: The most events that travel as one item.
_BATCH = 32

#: How long events may be kept back while more are on their way, in seconds.
_MAX_AGE = 0.005

#: How often a consumer that waits looks whether an outer scope has ended, in seconds.
_LOOK = 0.25

#: How long the consumer waits for the pump's own last word after a cancel, in seconds.
GRACE = 0.05


class Voice:
    """
    Speaks for an error that nobody looks at, by logging it.

    Args:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        #: Set where what the error says may not be for the log, as of a stream that somebody redacts.
        self.muted = False

    def speak_for(self, event: Error) -> None:
        """Have an error logged when it goes and nobody looked; a cancel is no news to whoever cancelled."""
        error = event.peek()
        if not isinstance(error, RunCancelledError):
            text, kind = error.describe(), type(error).__name__
            event.if_nobody_looks(lambda: self._say(kind if self.muted else text))

    def _say(self, what: str) -> None:
        _log.error("%s ended with an error that nobody looked at: %s", self.run_id, what)


class NothingCameError(Exception):
    """Nothing came within the time that the consumer had."""


class Pump:
    """
    Drives a run in a thread and puts its events into a bounded queue.

    Args:
        run_id: The run's id.
        scope: What ends the run.
        work: Drives the run and returns its result; gets the pump to put events into.
        queue_size: The most events that wait for the consumer.
        abandon_timeout: Seconds that a full queue may wait for a consumer; None for ever.
    """

    def __init__(
        self,
        run_id: str,
        scope: CancelScope,
        work: Callable[[Pump], RunResult],
        *,
        queue_size: int,
        abandon_timeout: float | None = None,
    ) -> None:
        self.run_id = run_id
        self.scope = scope
        self.thread: threading.Thread | None = None
        #: The thread that iterates; when it dies the run has nobody to tell.
        self.consumer: threading.Thread | None = None
        #: Set while the result is being saved: then even a cancel waits for the outcome.
        self.committing = False
        #: Whether the consumer can take text back, so that a call may be tried again after output.
        self.takes_text_back = False
        #: What the run had reached, for a terminal item that the consumer has to make itself.
        self.reached: Callable[[], RunResult] | None = None
        self.voice = Voice(run_id)
        self._work = work
        self._channel = Channel(queue_size)
        self._batch: list[Event] = []
        self._limit = min(_BATCH, queue_size)
        self._oldest = 0.0
        self._seq = 0
        self._silent = False  # the thread has ended
        self._process = 0
        self._look: float | None = None
        self._abandon_timeout = abandon_timeout
        self._forget_wake: Callable[[], None] = lambda: None

    # -- in the pump's thread ----------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._process = os.getpid()
        # The end of a scope wakes the consumer; that of an outer one need not, and then is looked for.
        self._look = None if self.scope.is_alone else _LOOK
        self._forget_wake = self.scope.on_cancel(self._channel.wake)
        self.thread = start_thread(self._main, f"pump-{self.run_id}")

    def _main(self) -> None:
        try:
            self._drive()
        finally:
            self._silent = True
            self._channel.wake()

    def _drive(self) -> None:
        """Do the work, and say the last word."""
        terminal: Event
        try:
            result = self._work(self)
            terminal = Done(result, **self.marks())
        except ToolnexusError as error:
            terminal = self._failed(error)
        except BaseException as error:  # noqa: BLE001 - a stream ends with a terminal item, whatever happens
            terminal = self._failed(_wrapped(error))
        self._work = _no_work  # lets go of what the run held
        self._forget_wake()
        if isinstance(terminal, Error):
            self.scope.cancel()  # an abandoned scope has told nobody yet
            if self.consumer is None:
                self.voice.speak_for(terminal)  # nobody may ever come for it
        with contextlib.suppress(ToolnexusError):
            self._end(terminal)

    def _failed(self, error: ToolnexusError) -> Error:
        """Return the terminal item of an error, which always says what the run had reached."""
        if error.partial is None:
            error.partial = self.reached() if self.reached is not None else RunResult(status="incomplete")
        return Error(error, **self.marks())

    def marks(self) -> dict[str, Any]:
        """Return where a terminal item comes from."""
        seq = self._batch[-1].seq if self._batch else self._seq
        return {"origin": Origin(self.run_id), "seq": seq + 1, "timestamp": time.time()}

    def _end(self, terminal: Event) -> None:
        """Hand on what is left, then the terminal item; a full queue does not keep it back."""
        batch, self._batch = [*self._batch, terminal], []
        while not self._channel.send(batch, POLL):
            if self.scope.cancelled or self._nobody_comes():
                self._channel.force([terminal])
                return

    def put(self, event: Event) -> None:
        """Take an event."""
        batch = self._batch
        if not batch:
            self._oldest = time.monotonic()
        batch.append(event)
        if len(batch) >= self._limit:
            self.flush()

    def before_wait(self, ready: Callable[[], bool]) -> None:
        """Hand on before a wait, but not while bytes keep coming: one item for many events is cheaper."""
        if self._batch and (time.monotonic() - self._oldest > _MAX_AGE or not ready()):
            self.flush()

    def flush(self) -> None:
        """Hand on what was taken, waiting while the queue is full."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        self._seq = batch[-1].seq
        if self._channel.send(batch, 0.0):
            return
        waited_since = time.monotonic()
        while not self._channel.send(batch, POLL):
            self.scope.check()
            self._check_consumer(waited_since)

    def _check_consumer(self, waited_since: float) -> None:
        limit = self._abandon_timeout
        if self._nobody_comes():
            self.scope.cancel("the thread that read the stream has ended")
        elif limit is not None and time.monotonic() - waited_since > limit:
            self.scope.cancel(f"nobody read the stream for abandon_timeout={limit:g} s")
        self.scope.check()

    def _nobody_comes(self) -> bool:
        return self.consumer is not None and not self.consumer.is_alive()

    # -- in the consumer's thread ------------------------------------------------------------

    def take(self, patience: float | None = None) -> list[Event] | None:
        """
        Return the next events, or None when the scope has ended and the pump is silent.

        Raises:
            NothingCameError: The patience is over.
        """
        ended_at: float | None = None
        until = None if patience is None else time.monotonic() + patience
        while True:
            if self._silent or os.getpid() != self._process:
                events = self._channel.take(0.0)
                if not events:
                    self._give_up()
                return events or None
            over = self.scope.cancelled and not self.committing
            if over and ended_at is None:
                ended_at = time.monotonic()
            wait = POLL if over else self._look if until is None else self._left(until)
            events = self._channel.take(wait)
            if events:
                return events
            if over and ended_at is not None and time.monotonic() - ended_at > GRACE:
                return None
            if not over and until is not None and time.monotonic() >= until:
                raise NothingCameError

    def _left(self, until: float) -> float:
        """Return how long to wait for events when there is patience until then."""
        return max(0.001, min(_LOOK, until - time.monotonic()))

    def _give_up(self) -> None:
        """A pump without a thread says no last word: after a fork it lives in the other process."""
        self.committing = False
        self.scope.cancel("its thread is gone; after a fork it is in the other process")

    def end(self) -> None:
        """The consumer has the terminal item."""
        self._channel.end()

    def last_word(self) -> Event | None:
        """Return the pump's terminal item if it is there already, past all that stands before it."""
        while events := self._channel.take(0.0):
            for event in events:
                if isinstance(event, (Done, Error)):
                    return event
        return None


def _no_work(pump: Pump) -> RunResult:
    raise AssertionError("a pump runs once")


def _wrapped(error: BaseException) -> ToolnexusError:
    wrapped = ToolnexusError(f"unexpected {describe_error(error)}")
    wrapped.__cause__ = error
    return wrapped
