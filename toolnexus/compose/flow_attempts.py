"""Trying a node as often, and for as long, as it may be tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolnexus.compose.flow_nodes import Call, Outcome
from toolnexus.compose.flow_report import Tap
from toolnexus.compose.flow_values import NodeTimeoutError
from toolnexus.errors import InvalidAnswerError, RunTimeoutError, ToolnexusError
from toolnexus.events import AttemptFailed

if TYPE_CHECKING:
    from toolnexus.compose.flow_engine import Engine
    from toolnexus.report import Reporter

__all__ = ["tries"]


def tries(engine: Engine, call: Call, reporter: Reporter) -> tuple[Outcome, ToolnexusError | None]:
    """
    Try a node, again where it may be, and let its ``on_error`` recover from the last failure.

    Args:
        engine: What drives the run.
        call: The first try.
        reporter: Where failed tries are reported.

    Returns:
        The outcome, and the error that was recovered from.

    Raises:
        ToolnexusError: It failed for good.
        PauseFlow: It waits for a person.
    """
    node, level, attempt = call.node, call.level, 1
    while True:
        tap = Tap(call.outlet) if call.outlet is not None and (node.retry or node.on_error) else None
        try:
            return _once(engine.call(level, node, call.task, tap or call.outlet, attempt)), None
        except ToolnexusError as error:
            level.scope.check()  # what ends the whole flow is no fault of the node's
            if error is engine.broken or isinstance(error, InvalidAnswerError):
                raise
            delay = node.retry.delay(error, attempt, level.scope.remaining()) if node.retry else None
            if delay is None and node.on_error is None:
                raise
            text = tap.taken() if tap is not None else ""
            if delay is not None or text:
                reporter.at(node.name, call.step, "", attempt)
                reporter.send(AttemptFailed, attempt, error, delay is not None, text)
                reporter.flush()
            call.task.inner = call.task.transcript = None
            if delay is None:
                last = engine.call(level, node, call.task, call.outlet, attempt)
                assert node.on_error is not None
                return last.outcome(last.with_context(node.on_error, last.state, error)), error
        level.scope.sleep(delay)
        attempt += 1


def _once(call: Call) -> Outcome:
    """Try a node once, within its time."""
    timeout, outer = call.node.timeout, call.scope
    if timeout is None:
        return call.node.kind.call(call)
    with outer.child() as scope:
        scope.timeout = timeout
        with scope.running():
            call.scope = scope
            try:
                return call.node.kind.call(call)
            except RunTimeoutError as error:
                if outer.cancelled:
                    raise
                raise NodeTimeoutError(
                    f"{call.node.name} took longer than its timeout of {timeout:g} s",
                    node=call.node.name,
                    namespace=call.level.namespace,
                    retryable=True,
                ) from error
