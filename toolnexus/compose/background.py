"""Reading a stream in the background, for programs with an event loop of their own, such as a GUI."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from toolnexus.abandon import start_thread
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
            raises cancels the run.
        owner: An object, such as a window, that the run lives for: when it goes, the run is cancelled.

    Returns:
        A handle with ``cancel()``, ``join()`` and ``run_id``.
    """
    handle = Background(stream)

    def read() -> None:
        last: Event | None = None
        try:
            for last in stream:
                if not isinstance(last, (Done, Error)):
                    on_event(last)
        except Exception:  # noqa: BLE001 - the callback is the user's; the run ends, and the log says why
            _log.exception("%s: the on_event of a background run raised", stream.run_id)
            stream.close()
            last = next(iter(stream), None)
        if on_finish is not None and isinstance(last, (Done, Error)):
            on_finish(last)

    if owner is not None:
        weakref.finalize(owner, stream.scope.abandon).atexit = False
    handle._thread = start_thread(read, f"background-{stream.run_id}")
    return handle
