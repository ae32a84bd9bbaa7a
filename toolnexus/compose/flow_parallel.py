"""Several nodes in one step, side by side."""

from __future__ import annotations

import queue
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.abandon import start_thread
from toolnexus.cancel import POLL, CancelScope
from toolnexus.compose.flow_nodes import Outcome
from toolnexus.compose.flow_values import FlowError, PauseFlow
from toolnexus.suspension import Request

if TYPE_CHECKING:
    from toolnexus.compose.flow_engine import Engine, Level

    _Outcomes = queue.SimpleQueue[tuple[str, Outcome | BaseException]]

__all__ = ["side_by_side"]


def side_by_side(engine: Engine, level: Level, members: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """
    Run the nodes of a parallel step.

    Returns:
        What each changes.

    Raises:
        BaseException: What the first one that failed raised; the others were told to stop.
        PauseFlow: Some wait for a person, and the others have finished.
    """
    tasks = level.frame.tasks
    outcomes: _Outcomes = queue.SimpleQueue()
    todo = [name for name in members if tasks[name].update is None]
    with level.scope.child() as scope:
        inside = attrs.evolve(level, scope=scope, live=False)
        for name in todo:
            start_thread(partial(_start, engine, inside, name, outcomes), f"branch-{name}")
        raised, waits = _gather(engine, level, scope, outcomes, len(todo))
    if raised is not None:
        if any(task.update is not None for task in tasks.values()):
            engine.save(level)  # those that have finished need not be done again
        raise raised
    if waits:
        raise PauseFlow(waits)
    return {name: tasks[name].update or {} for name in members}


def _start(engine: Engine, level: Level, name: str, outcomes: _Outcomes) -> None:
    outcomes.put((name, _branch(engine, level, name)))


def _branch(engine: Engine, level: Level, name: str) -> Outcome | BaseException:
    try:
        outcome = engine.task(level, name)
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for all
        return error
    if outcome.ends or outcome.goto is not None:
        return FlowError(
            f"{name} cannot say what comes next: it is a part of a parallel step",
            node=name,
            namespace=level.namespace,
        )
    return outcome


def _gather(
    engine: Engine,
    level: Level,
    scope: CancelScope,
    outcomes: _Outcomes,
    expected: int,
) -> tuple[BaseException | None, list[Request]]:
    """Wait for all branches; the first that fails ends the others."""
    raised: BaseException | None = None
    waits: list[Request] = []
    while expected:
        try:
            name, outcome = outcomes.get(timeout=POLL)
        except queue.Empty:
            continue  # a branch notices the end of the scope itself
        expected -= 1
        if isinstance(outcome, Outcome):
            with engine.lock:
                level.frame.tasks[name].update = outcome.update
        elif isinstance(outcome, PauseFlow):
            waits += outcome.requests
        elif raised is None:
            raised = outcome
            scope.cancel("another node of the same step failed")
    level.scope.check()
    return raised, waits
