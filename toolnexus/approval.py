"""Asking a person, from inside the loop, and finishing a call with the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from toolnexus.abandon import call_abandonable
from toolnexus.cancel import CancelScope
from toolnexus.chunks import ToolRequest
from toolnexus.errors import HookError, InvalidAnswerError, ToolnexusError
from toolnexus.events import Pending, ToolCall
from toolnexus.execution import Outcome, report_finished, report_unrun, run_one
from toolnexus.run import Run
from toolnexus.suspension import Answer, Request, pending, pending_of
from toolnexus.tools.base import Tool, ToolResult, suspends
from toolnexus.tools.plain import plain
from toolnexus.wording import describe_error

__all__ = ["approval_of", "check_answer", "settle", "wait_for"]

#: Marks a result that waits for an approval; the tool itself has not run.
_APPROVAL = "approval"


def approval_of(tool: Tool, call: ToolRequest) -> ToolResult | None:
    """Return what suspends a call that a person must approve first, or None where it may run."""
    args = dict(call.args or {})
    if callable(tool.approval):
        try:
            if not tool.approval(args):
                return None
        except Exception as error:
            raise HookError(f"the approval of {call.name} raised {describe_error(error)}") from error
    data = {"name": call.name, "args": args, "decisions": ["approve", "edit", "reject", "respond"]}
    result = pending(f"Run {call.name}?", kind="approval", data=data)
    result.metadata[_APPROVAL] = True
    return result


def settle(run: Run, outcomes: list[Outcome]) -> list[Outcome]:
    """
    Get answers for the suspended calls of a turn, and finish those calls.

    Args:
        run: The run.
        outcomes: The calls of the turn; a suspended one gets its result once there is an answer.

    Returns:
        Those that still wait; their requests are the run's pending ones.
    """
    while True:
        waiting = [outcome for outcome in outcomes if suspends(outcome.result)]
        if not waiting:
            return []
        requests = [_asked(outcome) for outcome in waiting]
        answers = _ask(run, requests)
        unanswered: list[Outcome] = []
        for outcome, request in zip(waiting, requests, strict=True):
            answer = answers.get(request.id)
            if answer is None and not request.expired:
                unanswered.append(outcome)
            else:
                finish(run, outcome, request, answer)
        if unanswered:
            run.pending = [_asked(outcome) for outcome in outcomes if suspends(outcome.result)]
            return [outcome for outcome in outcomes if suspends(outcome.result)]


def _asked(outcome: Outcome) -> Request:
    """Return the request of a suspended call, which says whose it is."""
    request = pending_of(outcome.result)
    assert request is not None
    if not request.call_id:
        call = outcome.request
        request = attrs.evolve(request, call_id=call.id, tool_name=call.name)
        outcome.result.metadata["pending"] = request
    return request


def _ask(run: Run, requests: list[Request]) -> dict[str, Answer]:
    """Report the requests and return the answers of whoever can answer now."""
    gate = run.gate
    if gate is not None:
        gate.open(requests, run)
    for request in requests:
        run.reporter.send(Pending, request)
    run.reporter.flush()
    answers: dict[str, Answer] = {}
    for request in requests if run.options.wait_for is not None else ():
        answer = wait_for(run, request, run.scope)
        if answer is not None:
            answers[request.id] = answer
    if gate is not None:
        if len(answers) < len(requests):
            answers = {**gate.wait(run.scope), **answers}
        gate.close(requests)
    return answers


def wait_for(run: Run, request: Request, scope: CancelScope) -> Answer | None:
    """
    Ask the client's own function.

    Args:
        run: The run.
        request: What is asked.
        scope: Its end leaves the function behind.

    Raises:
        HookError: The function failed, or returned what is no answer.
        InvalidAnswerError: Its answer does not fit.
    """
    function = run.options.wait_for
    assert function is not None
    try:
        answer = call_abandonable(lambda: function(request), scope, name="wait-for")
    except ToolnexusError:
        scope.check()
        raise
    except Exception as error:
        raise HookError(f"wait_for raised {describe_error(error)}") from error
    if answer is None:
        return None
    if not isinstance(answer, Answer):
        raise HookError(f"wait_for must return an Answer or None, not {type(answer).__name__}")
    check_answer(run, request, answer)
    return answer


def check_answer(run: Run, request: Request, answer: Answer) -> None:
    """
    Check that an answer fits its request.

    Raises:
        InvalidAnswerError: It does not; the message says where.
    """
    from toolnexus.tools.arguments import check_arguments

    if answer.id != request.id:
        raise InvalidAnswerError(f"the answer is for the request {answer.id!r}, not for {request.id!r}")
    if request.expired:
        raise InvalidAnswerError(f"it is too late to answer {request.id!r}")
    if not isinstance(answer.ok, bool):
        raise InvalidAnswerError(f"ok of an answer must be True or False, not {answer.ok!r:.80}")
    if not answer.ok:
        return
    if request.response_schema is not None:
        problems = check_arguments(request.response_schema, answer.data)
        if problems:
            raise InvalidAnswerError(f"the answer to {request.id!r} does not fit: {'; '.join(problems)}")
    edited = answer.data if isinstance(answer.data, Mapping) else {}
    if request.kind in ("approval", "interrupted") and "args" in edited:
        _check_edit(run, request, edited["args"])


def _check_edit(run: Run, request: Request, args: Any) -> None:
    from toolnexus.tools.arguments import check_arguments

    tool = run.tools.get(request.tool_name)
    problems = ["the arguments must be a dict"] if not isinstance(args, dict) else []
    if tool is not None and not problems:
        problems = check_arguments(tool.input_schema, args)
    if problems:
        raise InvalidAnswerError(
            f"the edited arguments of {request.tool_name} do not fit: {'; '.join(problems)}"
        )


def finish(run: Run, outcome: Outcome, request: Request, answer: Answer | None) -> None:
    """Finish a suspended call with an answer, or without one because it is too late."""
    if answer is None or request.expired:
        _end(run, outcome, ToolResult.error(f"expired: {request.prompt}"))
    elif not answer.ok:
        why = f" ({answer.reason})" if answer.reason else ""
        word = "rejected" if outcome.result.metadata.get(_APPROVAL) else "declined"
        _end(run, outcome, ToolResult.error(f"{word}{why}: {request.prompt}"))
    elif outcome.result.metadata.get(_APPROVAL):
        _approve(run, outcome, answer)
    else:
        outcome.answers = (*outcome.answers, answer)
        result = run_one(run, outcome.request, outcome.answers)
        if suspends(result) and not (result.metadata.get("asked") or result.metadata.get(_APPROVAL)):
            result = ToolResult.error(f"unresolved: {request.prompt}")
            report_finished(run, outcome.request, result)
        outcome.result = result


def _approve(run: Run, outcome: Outcome, answer: Answer) -> None:
    """Run an approved call, as it is or with other arguments, or take what was said in its place."""
    data = answer.data if isinstance(answer.data, Mapping) else {}
    if "response" in data:
        _end(run, outcome, ToolResult.ok(str(data["response"])))
        return
    if "args" in data:
        outcome.request = attrs.evolve(outcome.request, args=dict(data["args"]))
    outcome.approved = True
    outcome.result = run_one(run, outcome.request, outcome.answers)


def _end(run: Run, outcome: Outcome, result: ToolResult) -> None:
    """Give a call its result without running it."""
    if not outcome.answers and outcome.result.metadata.get(_APPROVAL):
        run.reporter.send(ToolCall, outcome.request.id, outcome.request.name, outcome.request.args)
    outcome.result = result
    report_unrun(run, outcome.request, result)


def stored(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return what a transcript keeps of calls that wait."""
    return [
        {
            "request": _asked(outcome).to_dict(),
            "args": outcome.request.args,
            "answers": [plain(answer.to_dict()) for answer in outcome.answers],
            "approval": bool(outcome.result.metadata.get(_APPROVAL)),
            "asked": bool(outcome.result.metadata.get("asked")),
        }
        for outcome in outcomes
    ]


def restored(entry: dict[str, Any]) -> Outcome:
    """Return a call that waits, from what a transcript keeps of it."""
    request = Request.from_dict(entry["request"])
    metadata = {"pending": request, **{k: True for k in (_APPROVAL, "asked") if entry.get(k)}}
    return Outcome(
        ToolRequest(request.call_id, request.tool_name, dict(entry.get("args") or {})),
        ToolResult(request.prompt, True, metadata),
        tuple(Answer.from_dict(answer) for answer in entry.get("answers") or ()),
    )
