"""One run: what it was given, and what it has reached so far."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.chunks import Reply
from toolnexus.endpoint import Endpoint
from toolnexus.errors import HookError, ToolnexusError
from toolnexus.merge import ReplyBuilder
from toolnexus.options import Options
from toolnexus.report import Reporter
from toolnexus.results import AttemptRecord, Message, RunResult, Status, ToolCallRecord, Usage
from toolnexus.toolset import ToolSet
from toolnexus.watching import SILENT, RunWatch
from toolnexus.wording import describe_error
from toolnexus.workers import Workers

if TYPE_CHECKING:
    from toolnexus.durable import Journal
    from toolnexus.gate import Gate
    from toolnexus.output import Output
    from toolnexus.suspension import Answer
    from toolnexus.tools.base import Tool, ToolResult

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
        endpoints: Where to ask: the first one, and those to fall back to in order.
        tools: The tools that it may use.
        messages: The transcript.
        scope: What ends it early.
        reporter: Where it reports what happens.
        streaming: Whether to ask the endpoint for streams.
        retry_after_output: Whether to try again although text was handed out.
        extra: More keys for the body of each request.
        answers: What to go on with, for a run that waited.
        output: The answer that the run shall give.
        choice: Which tool the model must call, as OpenAI's ``tool_choice`` says it.
        journal: Where a durable run writes down what it does.
        gate: Where answers come in while it runs.
        watch: Who is told what happens.
        deps: The caller's own object for the tools.
        id: The conversation's id.
        name: The agent's name, for reports.
        trigger: The id of the task that it runs for, in a flow.
    """

    options: Options
    endpoints: list[Endpoint]
    tools: ToolSet
    messages: list[Message]
    scope: CancelScope
    reporter: Reporter
    streaming: bool = True
    retry_after_output: bool = False
    extra: dict[str, Any] = attrs.field(factory=dict)
    answers: list[Answer] | None = None
    gate: Gate | None = None
    journal: Journal | None = None
    output: Output | None = None
    choice: str | dict[str, Any] | None = None
    watch: RunWatch = SILENT
    deps: Any = None
    id: str | None = None
    run_id: str = attrs.field(factory=new_run_id)
    name: str = "agent"
    trigger: str | None = None
    started: float = attrs.field(factory=time.monotonic)
    first_token: float | None = None
    #: Whether that piece was handed out or counts, so that a further try does not make it void.
    first_stays: bool = False
    usage: Usage = Usage()
    turns: int = 0
    calls: list[ToolCallRecord] = attrs.field(factory=list)
    attempts: list[AttemptRecord] = attrs.field(factory=list)
    last: Reply | None = None
    current: ReplyBuilder | None = None
    pending: list[Any] = attrs.field(factory=list)
    #: The skills that the model has loaded. Kept here, since a transcript may be compacted.
    skills: set[str] | None = None
    endpoint: Endpoint = attrs.field(init=False)
    #: How many times the model was asked in this turn.
    tries: int = 0
    #: Whether nobody else may be asked, because something of this turn was handed out.
    final: bool = False
    declarations: list[dict[str, Any]] = attrs.field(init=False)
    workers: Workers = attrs.field(init=False)
    #: What this turn sends: the transcript and the declarations, unless a hook says otherwise.
    outgoing: tuple[list[Message], list[dict[str, Any]]] = attrs.field(init=False)
    #: The declarations as JSON text, once they were sent.
    declared: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.use(self.endpoints[0])
        self.workers = Workers(self.run_id)
        self.outgoing = (self.messages, self.declarations)

    def use(self, endpoint: Endpoint) -> None:
        """Ask this endpoint from now on."""
        self.endpoint = endpoint
        self._declare()

    def _declare(self) -> None:
        dialect = self.endpoint.dialect
        self.declarations = dialect.tools(self.tools.all)
        for key in ("tool_choice", "toolConfig"):
            self.extra.pop(key, None)  # they may be those of an endpoint of another style
        if self.choice is not None and self.declarations:
            self.extra.update(dialect.choice(self.choice))
        if self.output is not None:
            self.output.declare(self)
        self.declared = None

    def next_endpoint(self, error: ToolnexusError) -> Endpoint | None:
        """Return where to ask after this error of the current endpoint, or None."""
        if self.final or not self._falls_back(error):
            return None
        position = self.endpoints.index(self.endpoint) + 1
        return self.endpoints[position] if position < len(self.endpoints) else None

    def choose(self, choice: str | dict[str, Any]) -> None:
        """Say which tool the model must call, whatever the endpoint speaks."""
        self.choice = choice
        self._declare()

    def system_prompt(self) -> str | None:
        """Return the system text: the run's own, whoever is asked, and what the tools add to it."""
        return "\n\n".join(filter(None, (self.options.system_prompt, self.tools.prompt()))) or None

    def _falls_back(self, error: ToolnexusError) -> bool:
        try:
            return bool(self.options.fallback_on(error))
        except Exception as raised:
            raise HookError(f"fallback_on raised {describe_error(raised)}") from raised

    def ask_for(self, output: Output) -> None:
        """Have the run give an answer of this kind."""
        self.output = output
        self._declare()

    def do_without_native_output(self, error: ToolnexusError) -> bool:
        """Tell whether the endpoint refused its own mode for outputs, and ask with a tool from now on."""
        if self.output is None or not self.output.refused(error):
            return False
        self._declare()
        return True

    def denial(self, name: str) -> str | None:
        """Return why a tool may not run now, or None: a loaded skill may restrict the tools."""
        if self.skills is None:
            self.skills = self.tools.active_skills(self.messages)
        return self.tools.denial(self.skills, name)

    def loaded(self, tool: Tool, result: ToolResult) -> None:
        """Take notice of a skill that was loaded."""
        name = result.metadata.get("name")
        if tool.source == "skill" and not result.is_error and isinstance(name, str):
            self.skills = {*(self.skills or ()), name}

    def refresh_tools(self) -> None:
        """Declare the tools anew where they have changed since the last turn."""
        if self.tools.refresh():
            self._declare()

    def forget_try(self) -> None:
        """Forget what came of a try that is made again."""
        self.current = None
        if not self.first_stays:
            self.first_token = None

    def take(self, reply: Reply) -> None:
        """Count an answer as a turn of the transcript."""
        self.turns += 1
        self.last = reply
        self.current = None
        self.first_stays = self.first_token is not None
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
            model=(last.model if last else "") or self.endpoint.options.model,
            finish_reason=last.finish_reason if last else None,
            raw_finish_reason=last.raw_finish_reason if last else None,
            status=status,
            limit=limit,
            pending=list(self.pending),
            refusal=last.refusal if last else None,
            output=self.output.value if self.output is not None else None,
            output_json=self.output.data if self.output is not None else None,
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
