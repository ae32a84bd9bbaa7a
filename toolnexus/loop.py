"""
The agent loop: ask the model, run the tools it asks for, until it has answered.

It knows turns, tools and limits; no provider, no thread, no queue. `run()` drives it as it is,
`stream()` drives the same in a thread.
"""

from __future__ import annotations

import json

import attrs

from toolnexus.attempts import call_model
from toolnexus.chunks import Reply
from toolnexus.errors import ToolnexusError
from toolnexus.events import Message, UsageReport
from toolnexus.execution import Outcome, record, run_calls
from toolnexus.nodes import lifecycle, node
from toolnexus.results import RunResult
from toolnexus.run import Run
from toolnexus.tools.base import ToolResult, suspends

__all__ = ["drive"]

#: With these the answer was cut: a call in it may be cut, too, and so none of them runs.
_CUT = ("length", "content_filter")


def drive(run: Run) -> RunResult:
    """
    Drive a run to its end.

    Returns:
        What it reached.

    Raises:
        ToolnexusError: It failed; ``partial`` holds what it had reached.
    """
    outcome: list[RunResult] = []
    try:
        with lifecycle(run, outcome):
            outcome.append(_turns(run))
            run.scope.check()
    except ToolnexusError as error:
        error.partial = run.partial()
        raise
    finally:
        run.workers.close()
    return outcome[0]


def report_usage(run: Run, result: RunResult) -> None:
    """Report the run's total, which comes right before its end."""
    run.reporter.at("", run.turns)
    run.reporter.send(UsageReport, result.usage)


def _turns(run: Run) -> RunResult:
    if run.answers is not None:
        from toolnexus.resume import go_on

        if not go_on(run, run.answers):
            return run.result("pending")
    for _ in range(run.options.max_turns):
        run.scope.check()
        run.refresh_tools()
        with node(run, "model"):
            reply = _next_reply(run)
        cut = reply.finish_reason in _CUT and (bool(reply.calls) or reply.finish_reason == "length")
        run.reporter.send(Message, reply.message, not cut)
        if cut:
            _leave_out(run, reply)
            return run.result("incomplete", reply.finish_reason)
        if run.output is not None and run.output.judge(run, reply):
            return _with_text(run)
        if _is_settled(run):
            continue
        if reply.calls:
            with node(run, "tools"):
                finished = _run_tools(run, reply)
            if not finished:
                return run.result("pending")
        elif reply.finish_reason != "pause":
            return run.result()
    return run.result("incomplete", "max_turns")


def _is_settled(run: Run) -> bool:
    """Tell whether the model has been told already that its answer does not fit."""
    return run.output is not None and run.messages[-1]["role"] != "assistant"


def _with_text(run: Run) -> RunResult:
    """Return the result of a run with an output; one that came as a call has its JSON as text."""
    result = run.result()
    if run.output is not None and run.output.tool is not None and not result.text:
        result = attrs.evolve(result, text=json.dumps(run.output.data, ensure_ascii=False))
    return result


def _next_reply(run: Run) -> Reply:
    """Ask the model, or take its answer from the journal of a run that was interrupted."""
    hooks, journal = run.options.hooks, run.journal
    kept = journal.next_reply() if journal is not None else None
    if kept is not None:
        run.take(kept)
        return kept
    run.outgoing = hooks.before_llm(run)
    reply = call_model(run)
    if journal is not None:
        journal.keep_reply(reply)
    run.take(reply)
    hooks.after_llm(run, reply)
    return reply


def _run_tools(run: Run, reply: Reply) -> bool:
    """Run the calls of an answer; tell whether all of them have a result."""
    outcomes = run_calls(run, reply.calls)
    if not any(suspends(outcome.result) for outcome in outcomes):
        for outcome in outcomes:
            record(run, outcome)
        return True
    from toolnexus.approval import settle  # most runs suspend never, and importing shall be cheap
    from toolnexus.resume import keep

    waiting = settle(run, outcomes)
    for outcome in outcomes:
        if outcome not in waiting:
            record(run, outcome)
    keep(run, waiting)
    return not waiting


def _leave_out(run: Run, reply: Reply) -> None:
    """Give the calls of a cut answer a result that says so, for the transcript's balance."""
    why = "by the length limit" if reply.finish_reason == "length" else "by the content filter"
    for call in reply.calls:
        record(run, Outcome(call, ToolResult.error(f"{call.name}: not run, the answer was cut {why}")))
