"""
Watching runs: one place where the loop says what happens, and to whom.

A `Watch` is told when a run, a try of a model call, or a tool call begins and ends. Metrics and traces
are nothing but watches. One that raises is logged once, and the run goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.errors import ToolnexusError
from toolnexus.results import Message, RunResult, Usage
from toolnexus.tools.base import suspends

if TYPE_CHECKING:
    from toolnexus.chunks import Reply
    from toolnexus.tools.base import Tool, ToolResult
    from toolnexus.wire import ModelRequest

__all__ = ["Watch", "Watched", "WatchedAttempt", "WatchedRun", "WatchedTool"]


@attrs.define(kw_only=True, eq=False, repr=False)
class Watched:
    """
    Something that began, and ends.

    Attributes:
        seconds: How long it took; None before its end.
        error: What ended it, or None.
        notes: Where a watch may keep what it needs again at the end, under a key of its own.
    """

    seconds: float | None = attrs.field(default=None, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)
    notes: dict[Any, Any] = attrs.field(factory=dict, init=False)

    def __repr__(self) -> str:
        state = "going on" if self.seconds is None else f"ended after {self.seconds:.3f} s"
        return f"<{type(self).__name__} {state}>"


@attrs.define(kw_only=True, eq=False, repr=False)
class WatchedRun(Watched):
    """
    A run.

    Attributes:
        run_id: The run's id.
        id: The conversation's id, or None.
        name: The agent's name.
        model: The model that is asked; at the end, the one that was asked last.
        style: Its endpoint's dialect.
        base_url: Its endpoint's URL without a query; None for a model in this process.
        streaming: Whether the endpoint is asked for streams.
        messages: The transcript.
        system: The client's system prompt, or None.
        result: What the run reached, when it ended well; else see ``error.partial``.
        caller: The context variables of whoever asked for the run.
    """

    run_id: str
    id: str | None
    name: str
    model: str
    style: str
    base_url: str | None
    streaming: bool
    messages: list[Message]
    system: str | None
    caller: contextvars.Context
    result: RunResult | None = attrs.field(default=None, init=False)

    @property
    def reached(self) -> RunResult:
        """What the run reached, whether it ended well or not."""
        if self.result is not None:
            return self.result
        partial = self.error.partial if isinstance(self.error, ToolnexusError) else None
        return partial if partial is not None else RunResult(status="incomplete")


@attrs.define(kw_only=True, eq=False, repr=False)
class WatchedAttempt(Watched):
    """
    One try of a model call.

    Attributes:
        run: The run.
        turn: The turn, from 1.
        attempt: The try within the turn, from 1.
        model: The model that is asked.
        style: Its endpoint's dialect.
        base_url: Its endpoint's URL without a query; None for a model in this process.
        params: What the request's body holds beside messages, tools and model, as far as the caller chose it.
        request: What is asked, in neutral terms; None before the request is made.
        reply: The answer, or None where there is none.
        usage: The tokens that the provider reported, also where the try failed.
        time_to_first_token: Seconds to the first piece of the answer, or None.
    """

    run: WatchedRun
    turn: int
    attempt: int
    model: str
    style: str
    base_url: str | None
    params: dict[str, Any]
    request: ModelRequest | None = attrs.field(default=None, init=False)
    reply: Reply | None = attrs.field(default=None, init=False)
    usage: Usage = attrs.field(default=Usage(), init=False)
    time_to_first_token: float | None = attrs.field(default=None, init=False)


@attrs.define(kw_only=True, eq=False, repr=False)
class WatchedTool(Watched):
    """
    One tool call.

    A suspended call ends as pending; what follows its answer is another call with the same id.

    Attributes:
        run: The run.
        turn: The turn, from 1.
        id: The call's id.
        name: The name that the model called; any text, where it made one up.
        args: The arguments; None where they did not parse.
        tool: The tool, or None where there is none of that name.
        result: What goes back to the model; None where the run ended first.
    """

    run: WatchedRun
    turn: int
    id: str
    name: str
    args: dict[str, Any] | None
    tool: Tool | None
    result: ToolResult | None = attrs.field(default=None, init=False)

    @property
    def source(self) -> str:
        """Where the tool is from; "custom" where there is none."""
        return self.tool.source if self.tool is not None else "custom"

    @property
    def pending(self) -> bool:
        """Whether the call waits for a person."""
        return self.result is not None and suspends(self.result)

    @property
    def is_error(self) -> bool:
        """Whether the call failed; one that waits has not."""
        return self.result is None or (self.result.is_error and not self.pending)


class Watch:
    """
    Is told what happens in runs: make a subclass with the methods you need.

    They are called in the run's own thread, those of several runs at once, and must be quick. Each start
    is followed by its end, also when the run fails or is cancelled.

    >>> class Times(Watch):
    ...     def tool_finished(self, call):
    ...         print(call.name, "failed" if call.is_error else "ok")
    """

    def run_started(self, run: WatchedRun) -> None:
        """A run begins."""

    def run_finished(self, run: WatchedRun) -> None:
        """A run has ended: see its ``result`` or ``error``."""

    def attempt_started(self, call: WatchedAttempt) -> None:
        """A model is asked."""

    def attempt_finished(self, call: WatchedAttempt) -> None:
        """A model has answered: see ``reply`` or ``error``."""

    def tool_started(self, call: WatchedTool) -> None:
        """A tool is called, or would have been: also unknown, denied and suspended calls are told."""

    def tool_finished(self, call: WatchedTool) -> None:
        """A tool call has ended: see ``result`` or ``error``."""

    def inside(self, what: Watched) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager in which the work itself is done, for what sets context variables."""
        return contextlib.nullcontext()
