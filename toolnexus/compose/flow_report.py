"""How the parts of a flow report together: one outlet, one numbering, and what becomes void."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from toolnexus.events import AttemptFailed, Event, Text
from toolnexus.report import Outlet, Reporter

__all__ = ["FlowReporter", "Shared", "Tap"]


class Shared:
    """An outlet that several threads may use."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._lock = threading.RLock()  # guards the outlet, which is for one thread at a time

    def put(self, event: Event) -> None:
        with self._lock:
            self._outlet.put(event)

    def flush(self) -> None:
        with self._lock:
            self._outlet.flush()

    def before_wait(self, ready: Callable[[], bool]) -> None:
        with self._lock:
            self._outlet.before_wait(ready)


class Tap(Shared):
    """Remembers the text that goes out, in case that it becomes void."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self.text = ""
        self._pieces: list[str] = []

    def put(self, event: Event) -> None:
        with self._lock:
            if type(event) is Text:
                self._pieces.append(event.delta)
            elif isinstance(event, AttemptFailed):
                self._pieces = ["".join(self._pieces).removesuffix(event.text)]
            self._outlet.put(event)

    def taken(self) -> str:
        """Return the text that went out."""
        return "".join(self._pieces)


class FlowReporter(Reporter):
    """A reporter that numbers its events together with the others of the run."""

    numbers: count[int]

    def send(self, event: type[Event], *args: object) -> bool:
        """Report an event, if anybody wants it."""
        if event not in self.wants:
            return False
        self._seq = next(self.numbers) - 1
        return super().send(event, *args)

    def _next_seq(self) -> int:
        return next(self.numbers)
