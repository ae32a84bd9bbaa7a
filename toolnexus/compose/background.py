"""Reading a stream in the background, for programs with an event loop of their own, such as a GUI."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from toolnexus.abandon import start_thread
from toolnexus.errors import ConfigurationError, StreamConsumedError
from toolnexus.events import Done, Error, Event
from toolnexus.stream import Stream

__all__ = ["Background", "run_in_background"]

_log = logging.getLogger("toolnexus")


class Background:
    """
    A stream that is read in a thread. Made by `run_in_background`.

    ``run_id`` tells the events of this run from those of an older one.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._thread: threading.Thread | None = None
        self.run_id = stream.run_id

    def __repr__(self) -> str:
        return f"<Background {self.run_id} {'running' if self.running else 'over'}>"

    @property
    def running(self) -> bool:
        """Whether the stream is still read."""
        return self._thread is not None and self._thread.is_alive()

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the run; ``on_finish`` is called with its error."""
        self._stream.cancel(reason)

    def answer(self, *args: Any, **kwargs: Any) -> None:
        """Answer a suspended call, see `Stream.answer`."""
        self._stream.answer(*args, **kwargs)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; tells whether it has come."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.running


def run_in_background(
    stream: Stream,
    on_event: Callable[[Event], object],
    on_finish: Callable[[Done | Error], object] | None = None,
    *,
    owner: object = None,
) -> Background:
    """
    Read a stream in a thread of its own.

    Args:
        stream: The stream.
        on_event: Called in that thread with every event but the last.
        on_finish: Called in that thread once, with the terminal item, whatever happened. An ``on_event`` that
            raises cancels the run, and is the ``__cause__`` of its error.
        owner: An object, such as a window, that the run lives for: when it goes, the run is cancelled. Its
            own methods as callbacks do not keep it alive, and are not called then; a lambda does.

    Returns:
        A handle with ``cancel()``, ``join()`` and ``run_id``.

    Raises:
        ConfigurationError: The owner is no object whose end can be known.
    """
    handle = Background(stream)
    if owner is not None:
        _tie(owner, stream)
    event_of = _loosely(on_event, owner)
    finish_of = None if on_finish is None else _loosely(on_finish, owner)
    handle._thread = start_thread(lambda: _read(stream, event_of, finish_of), f"background-{stream.run_id}")
    return handle


def _read(stream: Stream, on_event: _Of, on_finish: _Of | None) -> None:
    """Read a stream to its end, and tell of that, whatever happens."""
    last: Event | None = None
    try:
        for last in stream:
            call = on_event()
            if call is not None and not isinstance(last, (Done, Error)):
                call(last)
            del call  # else it would hold the owner while nothing comes
    except BaseException as error:  # noqa: BLE001 - the callback is the user's; the run ends, and the log says why
        _log.exception("%s: the on_event of a background run raised", stream.run_id)
        stream.close()
        last = next(iter(stream), None)
        if isinstance(last, Error):
            last.error.__cause__ = error
    if not isinstance(last, (Done, Error)):
        last = Error(StreamConsumedError("the stream had no terminal item: it was read before, or has none"))
    call = on_finish() if on_finish is not None else None
    if call is not None:
        call(last)


#: Returns a function, or None once the object is gone that it was a method of.
_Of = Callable[[], Callable[[Any], object] | None]


def _loosely(function: Callable[[Any], object], owner: object) -> _Of:
    """Keep a function, but a method of the owner only as long as that is there for other reasons."""
    if owner is not None and getattr(function, "__self__", None) is owner:
        return weakref.WeakMethod(function)
    return lambda: function


def _tie(owner: object, stream: Stream) -> None:
    """Have a run end with the life of an object."""
    try:
        weakref.finalize(owner, stream.scope.abandon).atexit = False
    except TypeError as error:
        raise ConfigurationError(
            f"owner must be an object that can go, not {type(owner).__name__}"
        ) from error
