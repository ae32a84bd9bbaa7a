"""
A stream as server-sent events, for any WSGI server.

The bytes come from a plain iterator with `close()`, which a WSGI server calls when the client goes
away: that cancels the run, at once or after a grace within which the client may come back.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from toolnexus.compose.plain import event_to_dict
from toolnexus.errors import ConfigurationError
from toolnexus.events import Done, Error, Event
from toolnexus.forking import ForkLock

if TYPE_CHECKING:
    from toolnexus.stream import Stream

__all__ = ["EventStreamBody", "continue_sse", "sse"]

#: How many events are kept to be sent again to a client that comes back.
_KEPT = 1000

#: Seconds after which a connection looks whether the client has come back on another one.
_LOOK = 0.25

#: The runs that are being sent and whose clients may come back, by run id. Guarded by _lock, like all below.
_open: weakref.WeakValueDictionary[str, _Hold] = weakref.WeakValueDictionary()

#: Those whose clients are gone, until they come back or their grace is over.
_waiting: dict[str, _Hold] = {}
_lock = ForkLock()


class _Hold:
    """A run and what was sent of it last, for the client that has it now and the next one."""

    def __init__(self, stream: Stream, heartbeat: float | None, grace: float) -> None:
        self.stream = stream
        self.heartbeat = heartbeat
        self.grace = grace
        self.body: EventStreamBody | None = None
        self.number = 0
        self.over = False
        self.until = 0.0
        self._sent: deque[bytes] = deque(maxlen=_KEPT)
        self._turn = threading.Lock()  # guards the reading of the stream, and all that comes of it
        self._timer: threading.Timer | None = None

    def piece(self, body: EventStreamBody) -> bytes:
        """Return the next piece for a body: what its client missed, what comes, or a heartbeat."""
        until = None if self.heartbeat is None else time.monotonic() + self.heartbeat
        while True:
            with self._turn:
                if self.body is not body:
                    raise StopIteration  # the client has come back on another connection
                if body.after < self.number:
                    body.after += 1
                    return self._sent[body.after - 1 - self.number]
                if self.over:
                    raise StopIteration
                event = self.stream.next_within(self._patience(until))
                if event is not None:
                    self._keep(event)
                    continue
            if until is not None and time.monotonic() >= until:
                return b": heartbeat\n\n"

    def _patience(self, until: float | None) -> float | None:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not self.grace:
            return left
        return _LOOK if left is None else min(left, _LOOK)

    def _keep(self, event: Event) -> None:
        self.number += 1
        self._sent.append(_encoded(event, f"{self.stream.run_id}:{self.number}"))
        self.over = isinstance(event, (Done, Error))

    def has_after(self, number: int) -> bool:
        """Tell whether everything behind an event can still be sent."""
        return self.number - len(self._sent) <= number <= self.number

    def hand_over(self) -> None:
        """Let go of the thread that has read the stream, once it is no longer at it."""
        with self._turn:
            self.stream.hand_over()
        if self._timer is not None:
            self._timer.cancel()

    def left(self) -> None:
        """The client is gone: keep the run for the grace, then cancel it; one that is over needs no clock."""
        self.stream.hand_over()
        if self.over:
            return
        self._timer = threading.Timer(self.grace, self._give_up)
        self._timer.name = f"toolnexus-grace-{self.stream.run_id}"
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        with _lock:
            # The client may have come back, and have left again, since this clock was started.
            mine = _waiting.get(self.stream.run_id) is self and self.until <= time.monotonic() + _LOOK
            if mine:
                del _waiting[self.stream.run_id]
        if mine:
            self.stream.close()


class EventStreamBody:
    """
    The body of a response: an iterator of bytes with `close()`. Made by `sse` and `continue_sse`.

    ``headers`` are what the response should have beside it.
    """

    headers: ClassVar[dict[str, str]] = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
    }

    def __init__(self, hold: _Hold, after: int = 0) -> None:
        self._hold = hold
        self._closed = False
        #: The number of the event that was handed out last.
        self.after = after
        hold.body = self

    def __iter__(self) -> EventStreamBody:
        return self

    def __next__(self) -> bytes:
        if self._closed:
            raise StopIteration
        return self._hold.piece(self)

    def close(self) -> None:
        """The client is gone: cancel the run, or keep it for the grace."""
        if self._closed:
            return
        self._closed = True
        hold = self._hold
        now = time.monotonic()
        with _lock:
            if hold.body is not self:
                return  # the client is there, on another connection
            if hold.grace:
                for run_id in [r for r, other in _waiting.items() if other.until < now]:
                    del _waiting[run_id]
                hold.until = now + hold.grace
                _open.pop(hold.stream.run_id, None)
                _waiting[hold.stream.run_id] = hold
        if hold.grace:
            hold.left()
        else:
            hold.stream.close()


def _encoded(event: Event, id_: str) -> bytes:
    data = json.dumps(event_to_dict(event), ensure_ascii=False, separators=(",", ":"))
    # JSON has no raw line ends, so the data is one line.
    return f"id: {id_}\nevent: {event.type}\ndata: {data}\n\n".encode("utf-8", "replace")


def sse(stream: Stream, *, heartbeat: float | None = 15.0, resume_grace: float = 0.0) -> EventStreamBody:
    """
    Return a stream as the body of an event-stream response.

    Args:
        stream: The stream.
        heartbeat: Seconds of silence after which a comment is sent, so that nobody in between hangs up and a
            client that left is noticed; None for none.
        resume_grace: Seconds for which the run goes on when the client has gone away.

    Raises:
        ConfigurationError: A duration is negative.
    """
    stream.takes_text_back()
    if (heartbeat is not None and heartbeat <= 0) or resume_grace < 0:
        raise ConfigurationError("heartbeat must be positive, and resume_grace not negative")
    hold = _Hold(stream, heartbeat, resume_grace)
    if resume_grace:
        with _lock:
            _open[stream.run_id] = hold
    return EventStreamBody(hold)


def continue_sse(last_event_id: str | None) -> EventStreamBody | None:
    """
    Return the rest of a stream to a client that has come back.

    Its earlier connection need not have ended, since a server often hears late that a client is gone: it
    ends now.

    Args:
        last_event_id: What the client sent as ``Last-Event-ID``.

    Returns:
        The body that goes on behind that event; None where no such run waits any more, or where not
        everything behind that event is kept. A browser stops asking when it is answered with 204.
    """
    run_id, _, position = (last_event_id or "").rpartition(":")
    if not (position.isascii() and position.isdigit() and len(position) < 20):
        return None
    after = int(position)
    with _lock:
        hold = _waiting.get(run_id) or _open.get(run_id)
        if (
            hold is None
            or not hold.has_after(after)
            or (run_id in _waiting and hold.until < time.monotonic())
        ):
            return None
        _waiting.pop(run_id, None)
        _open[run_id] = hold
        body = EventStreamBody(hold, after)
    hold.hand_over()
    return body
