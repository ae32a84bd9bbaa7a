"""Asking a person, from inside the loop."""

from __future__ import annotations

from toolnexus.abandon import call_abandonable
from toolnexus.chunks import ToolRequest
from toolnexus.errors import HookError, ToolnexusError
from toolnexus.events import Pending
from toolnexus.execution import Outcome, report_finished, run_one
from toolnexus.run import Run
from toolnexus.suspension import Answer, Request, pending_of
from toolnexus.tools.base import ToolResult

__all__ = ["settle"]


def settle(run: Run, outcome: Outcome) -> bool:
    """
    Get an answer for a suspended call and finish it with that.

    Args:
        run: The run.
        outcome: The call; its result is replaced once there is an answer.

    Returns:
        Whether the call has its result now; if not, its request is among the run's pending ones.
    """
    request = pending_of(outcome.result)
    if request is None:
        return True
    asked = _complete(request, outcome.request)
    run.reporter.send(Pending, asked)
    run.reporter.flush()
    answer = _ask(run, asked)
    if answer is None:
        run.pending.append(asked)
        return False
    outcome.result = _resolved(run, outcome.request, asked, answer)
    report_finished(run, outcome.request, outcome.result)
    return True


def _complete(request: Request, call: ToolRequest) -> Request:
    """Say which call the request belongs to."""
    return Request.from_dict({**request.to_dict(), "call_id": call.id, "tool_name": call.name})


def _ask(run: Run, request: Request) -> Answer | None:
    """Ask whoever can answer now; None where nobody can."""
    wait_for = run.options.wait_for
    if wait_for is None:
        return None
    try:
        answer = call_abandonable(lambda: wait_for(request), run.scope, name="wait-for")
    except ToolnexusError:
        run.scope.check()
        raise
    except Exception as error:
        raise HookError(f"wait_for raised {type(error).__name__}: {error}") from error
    if answer is not None and not isinstance(answer, Answer):
        raise HookError(f"wait_for must return an Answer or None, not {type(answer).__name__}")
    return answer


def _resolved(run: Run, call: ToolRequest, request: Request, answer: Answer) -> ToolResult:
    """Return the call's result, given the answer."""
    if answer.id != request.id:
        raise HookError(f"the answer is for the request {answer.id!r}, not for {request.id!r}")
    if request.expired:
        return ToolResult.error(f"expired: {request.prompt}")
    if not answer.ok:
        why = f" ({answer.reason})" if answer.reason else ""
        return ToolResult.error(f"declined{why}: {request.prompt}")
    result = run_one(run, call, answer)
    if pending_of(result) is not None:
        return ToolResult.error(f"unresolved: {request.prompt}")
    return result
