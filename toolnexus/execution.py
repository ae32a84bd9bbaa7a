"""
Running the tool calls of one turn: side by side, bounded, each in a thread that can be left behind.

Only the loop's own thread reports and records; the tool threads send it what happens through a
bounded queue.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.cancel import POLL, CancelScope
from toolnexus.chunks import ToolRequest
from toolnexus.errors import ConfigurationError
from toolnexus.events import Custom, Event, ToolCall, ToolFinished, ToolOutput
from toolnexus.inbox import Inbox
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message, ToolCallRecord
from toolnexus.run import Run
from toolnexus.tools.base import PENDING_KEY, Context, SuspendTool, Tool, ToolResult, suspends
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.asking import Questions
    from toolnexus.content import Part
    from toolnexus.nesting import Inner
    from toolnexus.suspension import Answer, Request
    from toolnexus.watch import WatchedTool

__all__ = ["Outcome", "record", "run_calls", "run_one", "to_part"]

#: How many messages of running tools may wait for the loop.
_MESSAGES = 64

#: Seconds within which a tool is done at once: then its call and its result are handed on together.
_AT_ONCE = 0.001


@attrs.define(eq=False, repr=False)
class Outcome:
    """A call with its result."""

    request: ToolRequest
    result: ToolResult
    #: What a person answered so far, and whether the call was approved.
    answers: tuple[Answer, ...] = ()
    approved: bool = False


@attrs.define(eq=False, repr=False)
class _Job:
    """A call that is to run, or runs."""

    position: int
    request: ToolRequest
    tool: Tool
    answers: tuple[Answer, ...] = ()
    scope: CancelScope | None = None
    close: Callable[[], object] = lambda: None
    began: float = 0.0
    #: When the tool was done, which the loop may hear of much later.
    ended: float | None = None
    watched: WatchedTool | None = None
    inner: Inner | None = None

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began

    def overdue(self) -> ToolResult | None:
        """Return the result of a tool that took too long; what it gave after that, being told so, is none."""
        scope = self.scope
        if scope is None or scope.deadline is None:
            return None
        if (time.monotonic() if self.ended is None else self.ended) < scope.deadline:
            return None
        return ToolResult.error(f"{self.request.name}: timed out after {scope.timeout or 0:g} s")


class _Turn:
    """The calls of one turn, while they run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.messages: Inbox[tuple[_Job, str, Any]] = Inbox()
        self.room = threading.Event()
        self.running: dict[int, _Job] = {}
        self.results: dict[int, ToolResult] = {}
        self.questions: Questions | None = None

    def drive(self, jobs: list[_Job]) -> None:
        """Run the jobs in order, as many at a time as is allowed, and report what happens."""
        waiting = list(jobs)
        try:
            while waiting or self.running:
                while waiting and self._may_start(waiting[0]):
                    self._start(waiting.pop(0))
                self._take()
                if self.questions is not None:
                    self.questions.step()
                self._time_out()
        except BaseException as error:
            self._leave(error)
            raise
        finally:
            self.messages.end()

    def _leave(self, error: BaseException) -> None:
        """Tell whoever is still running to stop, and leave them behind."""
        jobs, self.running = self.running, {}
        for job in jobs.values():
            if job.scope is not None:
                job.scope.cancel()
            job.close()
            self.run.watch.tool_finished(job.watched, None, error, seconds=job.seconds)

    def _may_start(self, job: _Job) -> bool:
        if not self.running:
            return True
        if len(self.running) >= self.run.options.tool_concurrency:
            return False
        return job.tool.parallel and all(other.tool.parallel for other in self.running.values())

    def _start(self, job: _Job) -> None:
        run = self.run
        run.scope.check()
        # Judged once more: a skill that was loaded a moment ago, in this turn, may not allow it.
        denial = run.denial(job.tool.name)
        if denial is not None:
            run.reporter.send(ToolCall, job.request.id, job.request.name, job.request.args)
            self.results[job.position] = ToolResult.error(denial)
            report_unrun(run, job.request, self.results[job.position])
            return
        limit = job.tool.timeout if job.tool.timeout is not None else run.options.tool_timeout
        child = run.scope.child()
        job.scope = child.__enter__()
        job.scope.timeout = limit  # which begins with the tool: until then somebody else may be slow
        job.close = functools.partial(child.__exit__, None, None, None)
        if run.journal is not None:
            run.journal.keep_start(run.turns, job.request)
        self.running[job.position] = job
        if not job.answers:  # a call that runs again, now that there is an answer, was reported before
            run.reporter.send(ToolCall, job.request.id, job.request.name, job.request.args)
        job.began = time.monotonic()
        job.watched = run.watch.tool_started(run, job.request)
        context = Context(
            run_id=run.run_id,
            call_id=job.request.id,
            tool_name=job.request.name,
            turn=run.turns,
            deps=run.deps,
            scope=job.scope,
            answers=job.answers,
            emit=lambda kind, payload: self._tell(job, kind, payload),
            wait_for=functools.partial(self._ask, job),
        )
        with run.watch.inside(job.watched):
            run.workers.submit(lambda: self._run(job, context))

    def _run(self, job: _Job, context: Context) -> None:
        """In the tool's thread: run it and send the result, whatever happens."""
        from toolnexus.tools.execute import execute_tool

        if context.scope.timeout is not None:
            context.scope.deadline = time.monotonic() + context.scope.timeout
        try:
            result = execute_tool(job.tool, dict(job.request.args or {}), context)
        except SuspendTool as asking:
            result = asking.result
        except BaseException as error:  # noqa: BLE001 - nothing a tool does may end the run
            result = ToolResult.error(describe_error(error))
        job.ended = time.monotonic()
        self._tell(job, "result", result)

    def _tell(self, job: _Job, kind: str, payload: Any) -> None:
        """In a thread of the tool's: send a message to the loop; all but a result wait for room."""
        assert job.scope is not None
        while kind != "result":
            if job.scope.cancelled or job.position not in self.running:
                return
            self.room.clear()
            if len(self.messages) < _MESSAGES:
                break
            self.room.wait(POLL)
        self.messages.put((job, kind, payload))

    def _ask(self, job: _Job, request: Request, beside: Collection[str]) -> Answer | None:
        """In a thread of the tool's: have a person asked for it, or for one of those beside it, and wait."""
        from toolnexus.asking import Question

        jobs = [job, *(other for other in list(self.running.values()) if other.request.id in beside)]
        scopes = [one.scope for one in jobs if one.scope is not None]
        question = Question(
            request,
            scopes,
            within=self.run.scope if len(scopes) > 1 else scopes[0],
            alive=lambda: any(one.position in self.running for one in jobs),
        )
        self._tell(job, "question", question)
        return question.wait()

    def _take(self) -> None:
        """Wait a moment for a message and deal with it."""
        message = self._next_message()
        if message is None:
            self.run.scope.check()
            return
        job, kind, payload = message
        if job.position not in self.running:
            return  # it was given up on meanwhile
        request, reporter = job.request, self.run.reporter
        if kind == "result":
            self._finish(job, job.overdue() or payload)
        elif kind == "output":
            reporter.send(ToolOutput, request.id, request.name, str(payload))
        elif isinstance(payload, Event):
            reporter.pass_on(payload, self._inner(job))
        elif kind == "question":
            from toolnexus.asking import Questions

            self.questions = self.questions or Questions(self.run)
            self.questions.add(payload)
        else:
            reporter.send(Custom, payload)

    def _inner(self, job: _Job) -> Inner:
        """Return what is inside a call; its namespace has the id, as calls of one tool run side by side."""
        if job.inner is None:
            from toolnexus.nesting import Inner  # most tools pass on no events, and importing shall be cheap

            request, origin = job.request, self.run.reporter.origin
            path = (*origin.namespace, f"{request.name}:{request.id}")
            job.inner = Inner(path, request.id, origin.run_id)
        return job.inner

    def _next_message(self) -> tuple[_Job, str, Any] | None:
        """Return the next message. What was reported is handed on first, unless a tool is done at once."""
        reporter = self.run.reporter
        reporter.before_wait(lambda: True)
        self.run.workers.begin()
        message = self.messages.take(_AT_ONCE)
        if message is None:
            reporter.flush()
            self.run.workers.spread()
            message = self.messages.take(POLL)
        if not self.room.is_set():
            self.room.set()
        return message

    def _time_out(self) -> None:
        self.run.scope.check()  # the end of the run's own time is no tool's time limit
        for job in list(self.running.values()):
            overdue = job.overdue()
            if overdue is not None and job.scope is not None:
                job.scope.expire()
                self._finish(job, overdue)

    def _finish(self, job: _Job, result: ToolResult) -> None:
        del self.running[job.position]
        job.close()
        seconds, watch = job.seconds, self.run.watch
        try:
            result = self._kept(job, result)
        except BaseException as error:
            watch.tool_finished(job.watched, None, error, seconds=seconds)
            raise
        watch.tool_finished(job.watched, result, seconds=seconds)
        self.results[job.position] = result
        self.run.loaded(job.tool, result)
        if not suspends(result):
            report_finished(self.run, job.request, result)

    def _kept(self, job: _Job, result: ToolResult) -> ToolResult:
        """Return a result as the hooks leave it, once it is written down."""
        run = self.run
        if not suspends(result):
            result = run.options.hooks.after_tool(run, job.request, result)
        if run.journal is not None:
            if suspends(result):
                run.journal.keep_asked(run.turns, job.request)
            else:
                run.journal.keep_result(run.turns, job.request, result)
        return result


def report_unrun(run: Run, request: ToolRequest, result: ToolResult) -> None:
    """Report that a call has its result, which no tool gave."""
    run.watch.tool(run, request, result)
    report_finished(run, request, result)


def report_finished(run: Run, request: ToolRequest, result: ToolResult) -> None:
    """Report that a call has its result."""
    run.reporter.send(ToolFinished, request.id, request.name, result.output, result.is_error)


def run_calls(run: Run, requests: tuple[ToolRequest, ...]) -> list[Outcome]:
    """
    Run the calls of a turn.

    Returns:
        Their results in call order; a suspended call's result holds its request.

    Raises:
        RunCancelledError: The run was cancelled meanwhile.
        RunTimeoutError: The run's time was up meanwhile.
    """
    turn = _Turn(run)
    run.reporter.at("tools", run.turns)
    jobs: list[_Job] = []
    final: list[ToolRequest] = []
    for position, request in enumerate(requests):
        request, result, tool = _judged(run, request)
        final.append(request)
        if result is not None:
            turn.results[position] = result
        else:
            assert tool is not None
            jobs.append(_Job(position, request, tool))
    turn.drive(jobs)
    return [Outcome(request, turn.results[i]) for i, request in enumerate(final)]


def _judged(run: Run, request: ToolRequest) -> tuple[ToolRequest, ToolResult | None, Tool | None]:
    """Return a call as it shall run, and its result where it shall not."""
    journal = run.journal
    known = journal.known(run.turns, request) if journal is not None else None
    if known is not None:
        return request, known, None
    refusal = _refused(run, request)
    if refusal is None:
        request, refusal = run.options.hooks.before_tool(run, request)
    if refusal is not None:
        if request.args is not None:
            run.reporter.send(ToolCall, request.id, request.name, request.args)
        report_unrun(run, request, refusal)
        return request, refusal, None
    tool = run.tools.get(request.name)
    assert tool is not None
    again, asking = _interrupted(run, request)
    if again is not None:
        request = again
    elif tool.approval is not False:
        from toolnexus.approval import approval_of

        asking = approval_of(tool, request)
    if asking is not None:
        run.watch.tool(run, request, asking)
    return request, asking, tool


def _interrupted(run: Run, request: ToolRequest) -> tuple[ToolRequest | None, ToolResult | None]:
    """Return a call that a crash interrupted, as it ran, and its result unless it may simply run again."""
    again = run.journal.interrupted(run.turns, request) if run.journal is not None else None
    if again is None:
        return None, None
    from toolnexus.durable import interrupted_result

    result = interrupted_result(run.tools.get(request.name), again)
    if result is not None and not suspends(result):
        report_finished(run, again, result)
    return again, result


def run_one(run: Run, request: ToolRequest, answers: tuple[Answer, ...] = ()) -> ToolResult:
    """Run a suspended call, now that there is an answer."""
    tool = run.tools.get(request.name)
    if tool is None:
        return _unknown(run, request)
    if run.journal is not None:
        known = run.journal.known(run.turns, request)
        if known is not None:
            return known
        _, result = _interrupted(run, request)
        if result is not None:
            return result
    turn = _Turn(run)
    turn.drive([_Job(0, request, tool, answers)])
    return turn.results[0]


def _refused(run: Run, request: ToolRequest) -> ToolResult | None:
    """Return the result of a call that cannot run, or None."""
    if run.tools.get(request.name) is None:
        return _unknown(run, request)
    if request.args is None:
        return ToolResult.error(f"{request.name}: {request.error}")
    denial = run.denial(request.name)
    return ToolResult.error(denial) if denial else None


def _unknown(run: Run, request: ToolRequest) -> ToolResult:
    names = ", ".join(run.tools.names) or "none"
    return ToolResult.error(f"Unknown tool: {request.name}. Available tools: {names}")


def record(run: Run, outcome: Outcome) -> None:
    """Write a call's result into the transcript and the run's record."""
    request, result = outcome.request, outcome.result
    metadata = {k: v for k, v in result.metadata.items() if k != PENDING_KEY or not suspends(result)}
    run.calls.append(
        ToolCallRecord(request.id, request.name, request.args, result.output, result.is_error, metadata)
    )
    content: Any = result.output
    if result.content:
        content = [{"type": "text", "text": result.output}] if result.output else []
        content += [to_part(part) for part in result.content]
    message: Message = {"role": "tool", "tool_call_id": request.id, "content": content}
    if result.is_error:
        message[PROVIDER_KEY] = {"is_error": True}
    run.messages.append(message)


def to_part(part: Part) -> dict[str, Any]:
    """Return a part for the transcript; of one that cannot be read the model is told so."""
    try:
        return part.to_part()
    except ConfigurationError as error:
        return {"type": "text", "text": f"[{error.message}]"}
