"""One run: what it was given, and what it has reached so far."""

from __future__ import annotations

import secrets
import time
from typing import Any

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.chunks import Reply
from toolnexus.merge import ReplyBuilder
from toolnexus.options import Options
from toolnexus.report import Reporter
from toolnexus.results import AttemptRecord, Message, RunResult, Status, ToolCallRecord, Usage
from toolnexus.toolset import ToolSet
from toolnexus.transport.http import Transport
from toolnexus.wire import DIALECTS, Dialect, Quirks
from toolnexus.workers import Workers

__all__ = ["Run", "new_run_id"]


def new_run_id() -> str:
    """Make up the id of a run."""
    return f"run-{secrets.token_hex(8)}"


@attrs.define(kw_only=True, eq=False, repr=False)
class Run:
    """
    The state of one run; the loop alone changes it.

    Args:
        options: The client's options.
        transport: What sends the requests.
        quirks: What the endpoint was found not to take.
        tools: The tools that it may use.
        messages: The transcript.
        scope: What ends it early.
        reporter: Where it reports what happens.
        streaming: Whether to ask the endpoint for streams.
        retry_after_output: Whether to try again although text was handed out.
        deps: The caller's own object for the tools.
        id: The conversation's id.
    """

    options: Options
    transport: Transport
    quirks: Quirks
    tools: ToolSet
    messages: list[Message]
    scope: CancelScope
    reporter: Reporter
    streaming: bool = True
    retry_after_output: bool = False
    deps: Any = None
    id: str | None = None
    run_id: str = attrs.field(factory=new_run_id)
    started: float = attrs.field(factory=time.monotonic)
    first_token: float | None = None
    usage: Usage = Usage()
    turns: int = 0
    calls: list[ToolCallRecord] = attrs.field(factory=list)
    attempts: list[AttemptRecord] = attrs.field(factory=list)
    last: Reply | None = None
    current: ReplyBuilder | None = None
    pending: list[Any] = attrs.field(factory=list)
    declarations: list[dict[str, Any]] = attrs.field(init=False)
    workers: Workers = attrs.field(init=False)
    #: What this turn sends: the transcript and the declarations, unless a hook says otherwise.
    outgoing: tuple[list[Message], list[dict[str, Any]]] = attrs.field(init=False)
    #: The declarations as JSON text, once they were sent.
    declared: str | None = attrs.field(default=None, init=False)
    dialect: Dialect = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dialect = DIALECTS[self.options.style]
        self.declarations = self.dialect.tools(self.tools.all)
        self.workers = Workers(self.run_id)
        self.outgoing = (self.messages, self.declarations)

    def refresh_tools(self) -> None:
        """Declare the tools anew where they have changed since the last turn."""
        if self.tools.refresh():
            self.declarations = self.dialect.tools(self.tools.all)
            self.declared = None

    def take(self, reply: Reply) -> None:
        """Count an answer as a turn of the transcript."""
        self.turns += 1
        self.last = reply
        self.current = None
        self.usage = self.usage + (reply.usage or Usage())
        self.messages.append(reply.message)

    def result(self, status: Status = "done", limit: str | None = None) -> RunResult:
        """Return what the run has reached."""
        last = self.last
        return RunResult(
            text=last.text if last else "",
            thinking=last.thinking if last else "",
            messages=list(self.messages),
            tool_calls=list(self.calls),
            turns=self.turns,
            usage=self.usage,
            model=(last.model if last else "") or self.options.model,
            finish_reason=last.finish_reason if last else None,
            raw_finish_reason=last.raw_finish_reason if last else None,
            status=status,
            limit=limit,
            pending=list(self.pending),
            refusal=last.refusal if last else None,
            id=self.id,
            attempts=list(self.attempts),
            run_id=self.run_id,
            duration=time.monotonic() - self.started,
            time_to_first_token=self.first_token,
        )

    def partial(self) -> RunResult:
        """Return what the run has reached, with the text of the answer that was cut."""
        result = self.result("incomplete")
        if self.current is None:
            return result
        return attrs.evolve(
            result,
            text=self.current.joined_text(),
            thinking=self.current.joined_thinking(),
            finish_reason=None,
            raw_finish_reason=None,
        )
