"""What the caller of `stream()` holds."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolnexus.cancel import CancelScope
from toolnexus.closing import Closing
from toolnexus.errors import InvalidAnswerError, StreamConsumedError, StreamThreadError
from toolnexus.events import AttemptFailed, Done, Error, Event, Pending, Text, of_call
from toolnexus.pump import GRACE, NothingCameError, Pump
from toolnexus.results import RunResult

if TYPE_CHECKING:
    from toolnexus.compose.web import EventStreamBody
    from toolnexus.gate import Gate
    from toolnexus.suspension import Answer, Request

__all__ = ["Stream"]


class TextSoFar:
    """The text that has come, and from where, since several agents may speak by turns."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._places: list[tuple[str, ...]] = []

    def __str__(self) -> str:
        return "".join(self._pieces)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, event: Text) -> None:
        """Take a piece, unless an agent inside a tool said it: that is no part of the answer."""
        if event.origin.namespace and of_call(event):
            return
        self._pieces.append(event.delta)
        self._places.append(event.origin.namespace)

    def take_back(self, failed: AttemptFailed) -> None:
        """Forget the text of a try that failed; what others have said meanwhile stays."""
        left, position = failed.text, len(self._pieces)
        while left and position:
            position -= 1
            if not failed.concerns(self._places[position]):
                continue
            piece = self._pieces[position]
            void = left[-len(piece) :] if piece else ""
            if not piece.endswith(void):
                return
            left = left[: len(left) - len(void)]
            self._pieces[position] = piece[: len(piece) - len(void)]

    def clear(self) -> None:
        """Forget all of it."""
        self._pieces.clear()
        self._places.clear()


class Stream(Closing):
    """
    The events of a run, as a plain iterator.

    It ends with exactly one `Done` or `Error`. It can be iterated once, by one thread; like any iterator
    it gives nothing more after its end, while `result()` and `text` stay. Leaving the loop early, `close()`,
    a ``with`` block's end, Ctrl-C or dropping the last reference cancels the run.

    Args:
        pump: What drives the run.
        keep_events: Whether to keep what was yielded in ``events``.
    """

    def __init__(self, pump: Pump, *, keep_events: bool = False, gate: Gate | None = None) -> None:
        self._pump = pump
        self._gate = gate
        self._asked: str | None = None
        self._patience: float | None = None
        self._batch: Iterator[Event] = iter(())
        self._owner: int | None = None
        self._text = TextSoFar()
        self._terminal: Event | None = None
        self._closed = False
        #: The events so far, if they were asked for; else None.
        self.events: list[Event] | None = [] if keep_events else None
        self._lock = threading.Lock()  # guards the start of the pump
        self._finalizer = weakref.finalize(self, pump.scope.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        if self._terminal is not None:
            state = self._terminal.type
        else:
            state = "closed" if self._closed else "running" if self._pump.thread else "not started"
        return f"<Stream {self.run_id} {state}>"

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._pump.run_id

    @property
    def text(self) -> str:
        """The text so far, without that of attempts that failed."""
        return str(self._text)

    @property
    def scope(self) -> CancelScope:
        """What cancels the run."""
        return self._pump.scope

    def start(self) -> Stream:
        """Start the run now instead of at the first ``next()``; returns the stream itself."""
        with self._lock:
            if self._pump.thread is None and not self._closed:
                self._pump.start()
        return self

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        if self._owner != threading.get_ident() and self._terminal is None:
            self._check_thread()
        event = next(self._batch, None) or self._refill()
        if type(event) is Text:
            self._text.add(event)
        elif isinstance(event, (Done, Error, AttemptFailed, Pending)):
            self._note(event)
        if self.events is not None:
            self.events.append(event)
        return event

    def next_within(self, seconds: float | None) -> Event | None:
        """
        Return the next event, or None when none comes within the time.

        Args:
            seconds: How long to wait; None for as long as it takes.

        Raises:
            StopIteration: The stream is over.
        """
        self._patience = seconds
        try:
            return next(self)
        except NothingCameError:
            return None
        finally:
            self._patience = None

    def hand_over(self) -> None:
        """Let another thread go on with the iteration."""
        self._owner = None
        self._pump.consumer = None

    def takes_text_back(self) -> None:
        """Whoever reads can take text back: a model call that fails after output may be tried again."""
        self._pump.takes_text_back = True

    def spoken_for(self) -> None:
        """Whoever reads makes a stream of its own of this one: what an error says is not for the log here."""
        self._pump.voice.muted = True

    def waits_for_answers(self) -> None:
        """Keep suspended calls open however long nobody answers, as ``answers="wait"`` does."""
        if self._gate is not None:
            self._gate.wait_on()

    def display(self, *, approval: str = "input") -> RunResult | None:
        """
        Show the stream until it ends: live in a notebook, in a terminal (with the extra ``cli``), or as text.

        Args:
            approval: How a person answers: "input", "buttons" (in a notebook; the cell then returns and
                the stream goes on in the background) or "none".

        Returns:
            The result; None where it goes on in the background, or where the run failed, which is shown.
        """
        from toolnexus.compose.displaying import display

        return display(self, approval=approval)

    def _ipython_display_(self) -> None:
        """Show the stream where it is a cell's last value."""
        self.display()

    def sse(self, *, heartbeat: float | None = 15.0, resume_grace: float = 0.0) -> EventStreamBody:
        """
        Return the stream as the body of a ``text/event-stream`` response, for any WSGI server.

        Args:
            heartbeat: Seconds of silence after which a comment is sent; None for none.
            resume_grace: Seconds for which the run goes on when the client has gone away, so that it can
                come back with its ``Last-Event-ID`` to `toolnexus.compose.continue_sse`.

        Returns:
            An iterator of bytes; its ``close()``, which the server calls, cancels the run.
        """
        from toolnexus.compose.web import sse

        return sse(self, heartbeat=heartbeat, resume_grace=resume_grace)

    def _refill(self) -> Event:
        """Wait for the next events and return the first."""
        if self._terminal is not None:
            raise StopIteration
        if self._asked is not None and self._gate is not None:
            asked, self._asked = self._asked, None
            self._gate.moved_on(asked)
        if self._pump.thread is None:
            self.start()
        try:
            batch = None if self._closed else self._pump.take(self._patience)
        except NothingCameError:
            raise
        except BaseException:
            self.close()
            raise
        if batch is None:
            return self._own_ending()
        self._batch = iter(batch)
        return next(self._batch)

    def _check_thread(self) -> None:
        me = threading.get_ident()
        if self._owner is None:
            self._owner = me
            self._pump.consumer = threading.current_thread()
        elif self._owner != me:
            raise StreamThreadError("another thread iterates this stream; one stream belongs to one thread")

    def _own_ending(self) -> Event:
        """Make the terminal item here, because the pump cannot or need not be waited for."""
        ready = self._pump.last_word()
        if ready is not None:
            return ready
        error = self._pump.scope.error()
        reached = self._pump.reached
        error.partial = reached() if reached is not None else RunResult(status="incomplete", text=self.text)
        return Error(error, **self._pump.marks())

    def _note(self, event: Event) -> None:
        if isinstance(event, Pending):
            if not of_call(event):
                self._asked = event.request.id
            return
        if isinstance(event, AttemptFailed):
            self._text.take_back(event)
            return
        self._terminal = event
        self._pump.end()
        self._batch = iter(())
        self._finalizer.detach()  # a scope of the user's may serve another run
        if isinstance(event, Error):
            self._pump.voice.speak_for(event)
        if self._pump.thread is not None and not self._closed:
            self._pump.thread.join(GRACE)

    def answer(
        self, request: Request | Answer, ok: bool = True, data: Any = None, reason: str | None = None
    ) -> None:
        """
        Answer a suspended call while the stream runs, from the loop itself or from any thread.

        Args:
            request: The request of the `Pending` event; or a whole `Answer`, such as `Answer.edit` makes.
            ok: Whether the answer is a yes.
            data: What is answered.
            reason: Why not.

        Raises:
            InvalidAnswerError: Nobody waits for it, or it does not fit; the suspension stays.

        Example::

            for event in stream:
                if event.type == "pending":
                    stream.answer(event.request, input(event.request.prompt) == "y")
        """
        from toolnexus.suspension import Answer, Request

        if not isinstance(request, (Request, Answer)):
            raise InvalidAnswerError(f"answer takes the request, or a whole Answer, not {request!r:.80}")
        if self._gate is None:
            raise StreamConsumedError("this stream takes no answers")
        answer = request if isinstance(request, Answer) else Answer(request.id, ok, data, reason)
        self._gate.answer(answer)

    def waiting_for(self, request_id: str) -> Request | None:
        """Return the request of that id if the run still waits for its answer."""
        return self._gate.waiting_for(request_id) if self._gate is not None else None

    def cancel(self, reason: str | None = None) -> None:
        """
        Cancel the run, from any thread. The iteration then ends with an `Error`.

        Args:
            reason: A word for the error message.
        """
        if self._terminal is None:
            self._pump.scope.cancel(reason)

    def close(self) -> None:
        """Cancel the run if it is not over, and drop what was not read. Safe from any thread, and twice."""
        if self._closed:
            return
        self._closed = True
        if self._terminal is None:
            self._pump.scope.cancel("the stream was closed")
            self._batch = iter(())
        thread = self._pump.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(GRACE * 2)
        if self._owner in (None, threading.get_ident()):
            self._pump.end()

    def result(self) -> RunResult:
        """
        Read the stream to its end.

        Returns:
            The run's result.

        Raises:
            ToolnexusError: The error that the run ended with; ``partial`` holds what it had reached.
        """
        for _ in self:
            pass
        return self._outcome()

    def text_deltas(self) -> Iterator[str]:
        """
        Yield the pieces of the text only, without that of agents which tools run.

        What was read before does not come again: of a stream that was read to its end there are no pieces
        left, and its text is in `text`.

        Raises:
            ToolnexusError: The error that the run ended with, after the text that came before it.
        """
        for event in self:
            if isinstance(event, Text) and not of_call(event):
                yield event.delta
        self._outcome()

    def _outcome(self) -> RunResult:
        terminal = self._terminal
        if isinstance(terminal, Done):
            return terminal.result
        if isinstance(terminal, Error):
            raise terminal.error
        raise StreamConsumedError("the stream has no terminal item")
