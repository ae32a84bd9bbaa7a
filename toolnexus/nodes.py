"""The loop as the nodes "model" and "tools", for whoever asked for tasks, updates or states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from toolnexus.errors import RunTimeoutError, ToolnexusError
from toolnexus.events import Lifecycle, Task, Update, Value
from toolnexus.results import RunResult
from toolnexus.run import Run
from toolnexus.wording import error_text

__all__ = ["lifecycle", "node"]

_ENDS = {"done": "completed", "incomplete": "completed", "pending": "interrupted"}


@contextlib.contextmanager
def node(run: Run, name: str) -> Iterator[None]:
    """Report a node's start and end, what it changed, and the state after it: each only where wanted."""
    reporter = run.reporter
    if not reporter.watches_nodes:
        yield
        return
    step = run.turns + 1 if name == "model" else run.turns
    task_id = f"{run.run_id}:{name}:{step}"
    reporter.at(name, step)
    reporter.send(Task, "start", task_id)
    before = len(run.messages)
    try:
        yield
    except ToolnexusError as error:
        reporter.at(name, step)
        reporter.send(
            Task, "timeout" if isinstance(error, RunTimeoutError) else "error", task_id, error_text(error)
        )
        raise
    if name != "model":  # what follows a model call may still be about its message
        reporter.at(name, step)
    waiting = [request.to_dict() for request in run.pending] if name == "tools" else []
    reporter.send(Task, "interrupt" if waiting else "finish", task_id, waiting or None)
    if Update in reporter.wants:
        reporter.send(Update, {name: {"messages": run.messages[before:]}})
    if Value in reporter.wants:
        reporter.send(Value, {"messages": list(run.messages)})


@contextlib.contextmanager
def lifecycle(run: Run, outcome: list[RunResult]) -> Iterator[None]:
    """Report that a run begins, and how it ends."""
    reporter = run.reporter
    if Lifecycle not in reporter.wants:
        yield
        return
    reporter.send(Lifecycle, "started", run.name, run.trigger)
    try:
        yield
    except ToolnexusError as error:
        reporter.at("", run.turns)
        status = "cancelled" if error.kind == "cancelled" else "failed"
        reporter.send(Lifecycle, status, run.name, run.trigger, error_text(error))
        raise
    reporter.at("", run.turns)
    reporter.send(Lifecycle, _ENDS[outcome[0].status], run.name, run.trigger)
