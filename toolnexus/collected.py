"""Keeping the events of a run that nobody streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import Done, Error, Event, wanted
from toolnexus.report import Reporter
from toolnexus.results import RunResult
from toolnexus.run import Run

__all__ = ["Collector", "collecting"]


class Collector:
    """Takes the events of a run, and puts them on what the run ends with."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def flush(self) -> None:
        """Nothing waits."""

    def before_wait(self, ready: Callable[[], bool]) -> None:
        """Nothing waits."""

    def finished(self, result: RunResult) -> RunResult:
        """Return a result with the events, its own `Done` included."""
        result = attrs.evolve(result, events=self.events)
        self.events.append(Done(result))
        return result

    def failed(self, error: BaseException) -> None:
        """Put the events on an error, its own `Error` included."""
        if isinstance(error, ToolnexusError):
            error.events = self.events
            self.events.append(Error(error))


def collecting(run: Run, collect: bool, channels: Iterable[str] | None) -> Collector | None:
    """
    Have the events of a run collected, where that was asked for.

    Raises:
        ConfigurationError: There is no such channel, or channels were given for nothing.
    """
    if not collect:
        if channels is not None:
            raise ConfigurationError("channels says which events to collect: give collect_events=True, too")
        return None
    collector = Collector()
    run.reporter = Reporter(run.run_id, wanted(channels), collector)
    run.retry_after_output = True  # a list of events can take text back
    return collector
