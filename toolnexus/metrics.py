"""
Metrics: what happened in the words of the reference, for functions of the user's and as Prometheus text.

The names, the order and the form of the text are those of the reference, byte for byte.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.forking import ForkLock
from toolnexus.watch import Watch, WatchedAttempt, WatchedRun, WatchedTool

__all__ = ["BUCKETS", "FAMILIES", "Counts", "Family", "Feed", "Histogram", "Registry", "feeds", "render"]

#: The upper bounds of the histograms' buckets, in seconds.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

#: The one label under which all tools count that do not exist; no tool can have this name.
UNKNOWN_TOOL = "(unknown)"

Metric = dict[str, Any]


@attrs.frozen
class Family:
    """One metric: its name, what its HELP line says, and its labels in order."""

    name: str
    help: str
    labels: tuple[str, ...]
    is_histogram: bool = False


REQUESTS = Family("toolnexus_llm_requests_total", "Total LLM requests.", ("model", "status"))
TOKENS = Family("toolnexus_llm_tokens_total", "Total tokens, by type.", ("type",))
REQUEST_SECONDS = Family(
    "toolnexus_llm_request_duration_seconds", "LLM request duration in seconds.", ("model",), True
)
CALLS = Family("toolnexus_tool_calls_total", "Total tool calls.", ("tool", "source", "is_error", "pending"))
TOOL_SECONDS = Family(
    "toolnexus_tool_duration_seconds", "Tool execution duration in seconds.", ("tool",), True
)
RUN_ERRORS = Family("toolnexus_run_errors_total", "Total run errors.", ("model",))

#: All metrics in the order of the text.
FAMILIES = (REQUESTS, TOKENS, REQUEST_SECONDS, CALLS, TOOL_SECONDS, RUN_ERRORS)


# -- events ----------------------------------------------------------------------------------


def attempt_metric(call: WatchedAttempt) -> Metric:
    """Return the event of a try of a model call."""
    event: Metric = {
        "event": "llm",
        "model": call.model,
        "status": "ok" if call.error is None else "error",
        "ms": _ms(call.seconds),
        "prompt_tokens": call.usage.prompt_tokens,
        "completion_tokens": call.usage.completion_tokens,
        "attempt": call.attempt,
    }
    if call.time_to_first_token is not None:
        event["time_to_first_token"] = call.time_to_first_token
    return event


def tool_metric(call: WatchedTool) -> Metric:
    """Return the event of a tool call."""
    event: Metric = {
        "event": "tool",
        "tool": call.name,
        "source": call.source,
        "is_error": call.is_error,
        "ms": _ms(call.seconds),
    }
    if call.pending:
        event["pending"] = True
    return event


def run_metric(run: WatchedRun) -> Metric:
    """Return the event of a run."""
    reached = run.reached
    event: Metric = {
        "event": "run",
        "model": run.model,
        "turns": reached.turns,
        "tool_calls": reached.tool_call_count,
        "total_tokens": reached.usage.total_tokens,
        "ms": _ms(run.seconds),
    }
    if reached.time_to_first_token is not None:
        event["time_to_first_token"] = reached.time_to_first_token
    if run.error is not None:
        event["error"] = str(run.error) or type(run.error).__name__
    return event


def _ms(seconds: float | None) -> float:
    return round((seconds or 0.0) * 1000, 3)


@attrs.define(eq=False)
class Feed(Watch):
    """
    Hands each event to a function.

    Args:
        sink: The function.
    """

    sink: Callable[[Metric], object]

    def attempt_finished(self, call: WatchedAttempt) -> None:
        """Hand on the event of a try of a model call."""
        self.sink(attempt_metric(call))

    def tool_finished(self, call: WatchedTool) -> None:
        """Hand on the event of a tool call."""
        self.sink(tool_metric(call))

    def run_finished(self, run: WatchedRun) -> None:
        """Hand on the event of a run."""
        self.sink(run_metric(run))


def feeds(on_metric: Any) -> list[Watch]:
    """
    Return the watches for an ``on_metric`` option.

    Raises:
        ConfigurationError: It is neither a function nor a list of functions.
    """
    listed = (
        [] if on_metric is None else list(on_metric) if isinstance(on_metric, (list, tuple)) else [on_metric]
    )
    for sink in listed:
        if not callable(sink):
            raise ConfigurationError(f"on_metric must be a function or a list of functions, not {sink!r}")
    return [Feed(sink) for sink in listed]


# -- counting --------------------------------------------------------------------------------

Labels = tuple[str, ...]


@attrs.define(eq=False)
class Histogram:
    """How many observations fell under each bound, their sum and their number."""

    under: list[int] = attrs.field(factory=lambda: [0] * len(BUCKETS))
    sum: float = 0.0
    count: int = 0

    def observe(self, seconds: float) -> None:
        """Count an observation."""
        self.sum += seconds
        self.count += 1
        for i in range(bisect.bisect_left(BUCKETS, seconds), len(BUCKETS)):
            self.under[i] += 1

    def add(self, other: Histogram) -> None:
        """Count the observations of another histogram, too."""
        self.sum += other.sum
        self.count += other.count
        self.under = [mine + its for mine, its in zip(self.under, other.under, strict=True)]


@attrs.define(eq=False)
class Counts:
    """The series of all metrics."""

    counters: dict[Family, dict[Labels, int]] = attrs.field(
        factory=lambda: {f: {} for f in FAMILIES if not f.is_histogram}
    )
    histograms: dict[Family, dict[Labels, Histogram]] = attrs.field(
        factory=lambda: {f: {} for f in FAMILIES if f.is_histogram}
    )

    def count(self, family: Family, labels: Labels, by: int = 1) -> None:
        """Add to a counter."""
        series = self.counters[family]
        series[labels] = series.get(labels, 0) + by

    def observe(self, family: Family, labels: Labels, seconds: float) -> None:
        """Add an observation to a histogram."""
        series = self.histograms[family]
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = Histogram()
        histogram.observe(seconds)

    def add(self, other: Counts) -> None:
        """Add all series of others."""
        for family, series in other.counters.items():
            for labels, value in series.items():
                self.count(family, labels, value)
        for family, histograms in other.histograms.items():
            for labels, histogram in histograms.items():
                self.histograms[family].setdefault(labels, Histogram()).add(histogram)


class Registry(Watch):
    """
    Counts what happens in the runs of a client.

    Labels are bounded: the names of tools that do not exist, which a model makes up, count as one.

    >>> registry = Registry()
    >>> registry.record({"event": "run", "model": "m", "ms": 20, "error": "cancelled"})
    >>> print(registry.text().splitlines()[-1])
    toolnexus_run_errors_total{model="m"} 1
    """

    def __init__(self) -> None:
        self._lock = ForkLock()  # guards the counts
        self._counts = Counts()

    def attempt_finished(self, call: WatchedAttempt) -> None:
        """Count a try of a model call."""
        self.record(attempt_metric(call))

    def tool_finished(self, call: WatchedTool) -> None:
        """Count a tool call."""
        event = tool_metric(call)
        if call.tool is None:
            event["tool"] = UNKNOWN_TOOL
        self.record(event)

    def run_finished(self, run: WatchedRun) -> None:
        """Count a run."""
        self.record(run_metric(run))

    def record(self, event: Mapping[str, Any]) -> None:
        """
        Count an event.

        Args:
            event: An event as ``on_metric`` functions get it; one of another kind is passed over.
        """
        with self._lock:
            kind = event.get("event")
            if kind == "llm":
                self._attempt(event)
            elif kind == "tool":
                self._tool(event)
            elif kind == "run" and event.get("error"):
                self._counts.count(RUN_ERRORS, (str(event["model"]),))

    def _attempt(self, event: Mapping[str, Any]) -> None:
        counts, model = self._counts, str(event["model"])
        counts.count(REQUESTS, (model, str(event["status"])))
        prompt = int(event.get("prompt_tokens") or 0)
        completion = int(event.get("completion_tokens") or 0)
        # A try that failed costs what the provider says; where it says nothing, there is nothing to add.
        if event["status"] == "ok" or prompt or completion:
            counts.count(TOKENS, ("prompt",), prompt)
            counts.count(TOKENS, ("completion",), completion)
        counts.observe(REQUEST_SECONDS, (model,), event["ms"] / 1000)

    def _tool(self, event: Mapping[str, Any]) -> None:
        name = str(event["tool"])
        flags = ("true" if event.get(key) else "false" for key in ("is_error", "pending"))
        self._counts.count(CALLS, (name, str(event["source"]), *flags))
        self._counts.observe(TOOL_SECONDS, (name,), event["ms"] / 1000)

    def counts(self) -> Counts:
        """Return a copy of the counts."""
        copy = Counts()
        with self._lock:
            copy.add(self._counts)
        return copy

    def text(self) -> str:
        """Return the counts as Prometheus text."""
        return render(self.counts())


# -- the text --------------------------------------------------------------------------------


def render(counts: Counts) -> str:
    """Return counts in Prometheus' text format."""
    return "\n".join(line for family in FAMILIES for line in _lines(family, counts)) + "\n"


def _lines(family: Family, counts: Counts) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {'histogram' if family.is_histogram else 'counter'}"
    if not family.is_histogram:
        for labels, value in _sorted(family, counts.counters[family]):
            yield f"{family.name}{{{labels}}} {value}"
        return
    for labels, histogram in _sorted(family, counts.histograms[family]):
        for bound, number in zip(BUCKETS, histogram.under, strict=True):
            yield f'{family.name}_bucket{{{labels},le="{number_text(bound)}"}} {number}'
        yield f'{family.name}_bucket{{{labels},le="+Inf"}} {histogram.count}'
        yield f"{family.name}_sum{{{labels}}} {number_text(histogram.sum)}"
        yield f"{family.name}_count{{{labels}}} {histogram.count}"


def _sorted(family: Family, series: Mapping[Labels, Any]) -> Iterable[tuple[str, Any]]:
    written = ((_labels(family, labels), value) for labels, value in series.items())
    return sorted(written, key=lambda item: item[0])


def _labels(family: Family, values: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(family.labels, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number_text(number: float) -> str:
    """
    Write a number as the reference does, which is JavaScript's way.

    >>> number_text(1.0), number_text(0.05), number_text(1e21), number_text(2.5e-7), number_text(0.00001)
    ('1', '0.05', '1e+21', '2.5e-7', '0.00001')
    """
    text = repr(float(number))
    if number == 0:
        return "0"
    if 1e-6 <= abs(number) < 1e21:
        plain = format(Decimal(text), "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    digits, _, exponent = text.partition("e")
    sign = "-" if exponent.startswith("-") else "+"
    return f"{digits.removesuffix('.0')}e{sign}{exponent.lstrip('+-0')}"
