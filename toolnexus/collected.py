"""Keeping the events of a run that nobody streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import Done, Error, Event, Origin, wanted
from toolnexus.report import Reporter
from toolnexus.results import RunResult
from toolnexus.run import Run

__all__ = ["Collector", "collecting", "collector"]

_Result = TypeVar("_Result", bound=RunResult)


class Collector:
    """
    Takes the events of a run, and puts them on what the run ends with.

    Args:
        run_id: The run's id.
    """

    def __init__(self, run_id: str) -> None:
        self.events: list[Event] = []
        self._run_id = run_id

    def put(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def flush(self) -> None:
        """Nothing waits."""

    def before_wait(self, ready: Callable[[], bool]) -> None:
        """Nothing waits."""

    def finished(self, result: _Result) -> _Result:
        """Return a result with the events, its own `Done` included."""
        result = attrs.evolve(result, events=self.events)
        self.events.append(Done(result, **self._marks()))
        return result

    def failed(self, error: BaseException) -> None:
        """Put the events on an error, its own `Error` included."""
        if isinstance(error, ToolnexusError):
            error.events = self.events
            self.events.append(Error(error, **self._marks()))

    def _marks(self) -> dict[str, Any]:
        """Return where a terminal item comes from."""
        seq = max((event.seq for event in self.events), default=0) + 1
        return {"origin": Origin(self._run_id), "seq": seq, "timestamp": time.time()}


def collector(
    run_id: str, collect: bool, channels: Iterable[str] | None
) -> tuple[Collector, frozenset[type[Event]]] | None:
    """
    Return what takes the events of a run, where that was asked for, and which ones.

    Raises:
        ConfigurationError: There is no such channel, or channels were given for nothing.
    """
    if collect:
        return Collector(run_id), wanted(channels)
    if channels is not None:
        raise ConfigurationError("channels says which events to collect: give collect_events=True, too")
    return None


def collecting(run: Run, collect: bool, channels: Iterable[str] | None) -> Collector | None:
    """
    Have the events of a run collected, where that was asked for.

    Raises:
        ConfigurationError: There is no such channel, or channels were given for nothing.
    """
    found = collector(run.run_id, collect, channels)
    if found is None:
        return None
    run.reporter = Reporter(run.run_id, found[1], found[0])
    run.retry_after_output = True  # a list of events can take text back
    return found[0]
