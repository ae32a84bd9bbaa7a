"""
A stream as server-sent events, for any WSGI server.

The bytes come from a plain iterator with `close()`, which a WSGI server calls when the client goes
away: that cancels the run, at once or after a grace within which the client may come back.
"""

from __future__ import annotations

import json
import threading
import time
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

#: The runs whose clients may come back, by run id. Guarded by _lock.
_waiting: dict[str, _Hold] = {}
_lock = ForkLock()


class _Hold:
    """A run between its client and the next one: the stream, what was sent last, and a clock."""

    def __init__(self, stream: Stream, heartbeat: float | None, grace: float) -> None:
        self.stream = stream
        self.heartbeat = heartbeat
        self.grace = grace
        self.sent: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self.number = 0
        self.over = False
        self.timer: threading.Timer | None = None
        self.until = 0.0

    def wait(self) -> None:
        """Keep the run for the grace, then cancel it; one that is over is only remembered."""
        self.until = time.monotonic() + self.grace
        with _lock:
            for run_id in [r for r, hold in _waiting.items() if hold.until < time.monotonic()]:
                del _waiting[run_id]
            _waiting[self.stream.run_id] = self
        self.stream.hand_over()
        if self.over:
            return
        self.timer = threading.Timer(self.grace, self._give_up)
        self.timer.name = f"toolnexus-grace-{self.stream.run_id}"
        self.timer.daemon = True
        self.timer.start()

    def _give_up(self) -> None:
        with _lock:
            mine = _waiting.pop(self.stream.run_id, None) is self
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

    def __init__(self, hold: _Hold, after: int | None = None) -> None:
        self._hold = hold
        self._closed = False
        self._again = deque(data for number, data in hold.sent if after is not None and number > after)

    def __iter__(self) -> EventStreamBody:
        return self

    def __next__(self) -> bytes:
        hold = self._hold
        if self._again:
            return self._again.popleft()
        if hold.over or self._closed:
            raise StopIteration
        event = hold.stream.next_within(hold.heartbeat)
        if event is None:
            return b": heartbeat\n\n"
        hold.number += 1
        data = _encoded(event, f"{hold.stream.run_id}:{hold.number}")
        hold.sent.append((hold.number, data))
        hold.over = isinstance(event, (Done, Error))
        return data

    def close(self) -> None:
        """The client is gone: cancel the run, or keep it for the grace."""
        if self._closed:
            return
        self._closed = True
        if self._hold.grace > 0:
            self._hold.wait()
        else:
            self._hold.stream.close()


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
    return EventStreamBody(_Hold(stream, heartbeat, resume_grace))


def continue_sse(last_event_id: str | None) -> EventStreamBody | None:
    """
    Return the rest of a stream to a client that has come back.

    Args:
        last_event_id: What the client sent as ``Last-Event-ID``.

    Returns:
        The body that goes on behind that event; None where no such run waits any more.
    """
    run_id, _, number = (last_event_id or "").rpartition(":")
    if not number.isdigit():
        return None
    with _lock:
        hold = _waiting.pop(run_id, None)
    if hold is None or hold.until < time.monotonic():
        return None
    if hold.timer is not None:
        hold.timer.cancel()
    return EventStreamBody(hold, after=int(number))
