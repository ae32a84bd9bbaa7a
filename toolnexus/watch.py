"""
Watching runs: one place where the loop says what happens, and to whom.

A `Watch` is told when a run, a try of a model call, or a tool call begins and ends. Metrics and traces
are nothing but watches. One that raises is logged once, and the run goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.results import AttemptRecord, Message, RunResult, Usage
from toolnexus.tools.base import suspends

if TYPE_CHECKING:
    from toolnexus.chunks import Reply, ToolRequest
    from toolnexus.endpoint import Endpoint
    from toolnexus.run import Run
    from toolnexus.tools.base import Tool, ToolResult
    from toolnexus.trial import Trial
    from toolnexus.wire import ModelRequest

__all__ = ["Watch", "WatchedAttempt", "WatchedRun", "WatchedTool"]

_log = logging.getLogger("toolnexus")


@attrs.define(kw_only=True, eq=False)
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
    notes: dict[Any, Any] = attrs.field(factory=dict, init=False, repr=False)


@attrs.define(kw_only=True, eq=False)
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
    messages: list[Message] = attrs.field(repr=False)
    system: str | None = attrs.field(repr=False)
    caller: contextvars.Context = attrs.field(repr=False)
    result: RunResult | None = attrs.field(default=None, init=False, repr=False)

    @property
    def reached(self) -> RunResult:
        """What the run reached, whether it ended well or not."""
        if self.result is not None:
            return self.result
        partial = self.error.partial if isinstance(self.error, ToolnexusError) else None
        return partial if partial is not None else RunResult(status="incomplete")


@attrs.define(kw_only=True, eq=False)
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
    params: dict[str, Any] = attrs.field(repr=False)
    request: ModelRequest | None = attrs.field(default=None, init=False, repr=False)
    reply: Reply | None = attrs.field(default=None, init=False, repr=False)
    usage: Usage = attrs.field(default=Usage(), init=False)
    time_to_first_token: float | None = attrs.field(default=None, init=False)


@attrs.define(kw_only=True, eq=False)
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
    args: dict[str, Any] | None = attrs.field(repr=False)
    tool: Tool | None = attrs.field(repr=False)
    result: ToolResult | None = attrs.field(default=None, init=False, repr=False)

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


class Observers:
    """
    The watches of a client.

    Args:
        watches: The watches, in the order in which they are told.
    """

    def __init__(self, watches: Iterable[Watch] = ()) -> None:
        self._watches = tuple(watches)
        self._around = [w for w in self._watches if type(w).inside is not Watch.inside]
        self._blamed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._watches)

    def tell(self, moment: str, what: Watched) -> None:
        """Tell every watch."""
        for watch in self._watches:
            try:
                getattr(watch, moment)(what)
            except Exception as error:  # noqa: BLE001 - whoever watches does not end what is watched
                self._blame(watch, moment, error)

    @contextlib.contextmanager
    def inside(self, what: Watched) -> Iterator[None]:
        """Be inside of every watch."""
        if not self._around:
            yield
            return
        with contextlib.ExitStack() as stack:
            for watch in self._around:
                self._enter(watch, what, stack)
            yield

    def _enter(self, watch: Watch, what: Watched, stack: contextlib.ExitStack) -> None:
        def leave() -> None:
            try:
                manager.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001
                self._blame(watch, "inside", error)

        try:
            manager = watch.inside(what)
            manager.__enter__()
        except Exception as error:  # noqa: BLE001
            self._blame(watch, "inside", error)
        else:
            stack.callback(leave)

    def _blame(self, watch: Watch, moment: str, error: Exception) -> None:
        level = logging.DEBUG if id(watch) in self._blamed else logging.WARNING
        self._blamed.add(id(watch))
        _log.log(
            level,
            "%s of the watch %s raised %s: %s (the runs go on; this is said once)",
            moment,
            watch,
            type(error).__name__,
            error,
            exc_info=level == logging.WARNING,
        )


class RunWatch:
    """
    What the loop tells of one run.

    Args:
        observers: Who is told.
    """

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._caller = contextvars.copy_context() if observers else _NO_CONTEXT
        self._watched: WatchedRun | None = None

    def _about(self, run: Run) -> WatchedRun:
        if self._watched is None:
            self._watched = WatchedRun(
                run_id=run.run_id,
                id=run.id,
                name=run.name,
                streaming=run.streaming,
                messages=run.messages,
                system=run.options.system_prompt,
                caller=self._caller,
                **_place(run.endpoint),
            )
        return self._watched

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[list[RunResult]]:
        """Tell that the run begins, and how it ends; the block puts its result into the list."""
        outcome: list[RunResult] = []
        if not self._observers:
            yield outcome
            return
        watched = self._about(run)
        self._observers.tell("run_started", watched)
        try:
            with self._observers.inside(watched):
                yield outcome
        except BaseException as error:
            watched.error = error
            raise
        finally:
            watched.result = outcome[0] if outcome and watched.error is None else None
            watched.seconds = time.monotonic() - run.started
            watched.messages = run.messages
            for name, value in _place(run.endpoint).items():
                setattr(watched, name, value)
            self._observers.tell("run_finished", watched)
            # An error knows its frames: if they knew it, too, all would live until the next collection.
            self._watched = None
            del watched

    @contextlib.contextmanager
    def attempt(self, trial: Trial) -> Iterator[None]:
        """Tell that a try of a model call begins, and how it ends."""
        if not self._observers:
            yield
            return
        run = trial.run
        watched = WatchedAttempt(
            run=self._about(run),
            turn=run.turns + 1,
            attempt=trial.number,
            params={**trial.endpoint.options.request_params, **run.extra},
            **_place(trial.endpoint),
        )
        self._observers.tell("attempt_started", watched)
        try:
            with self._observers.inside(watched):
                yield
        except BaseException as error:
            watched.error = error
            raise
        finally:
            kept: AttemptRecord = trial.record(None)
            watched.request, watched.reply = trial.request, trial.reply
            watched.usage = kept.usage
            watched.seconds, watched.time_to_first_token = kept.duration, kept.time_to_first_token
            self._observers.tell("attempt_finished", watched)
            del watched  # as above

    def tool_started(self, run: Run, request: ToolRequest) -> WatchedTool | None:
        """Tell that a tool is called; returns what `inside` and `tool_finished` want."""
        if not self._observers:
            return None
        watched = WatchedTool(
            run=self._about(run),
            turn=run.turns,
            id=request.id,
            name=request.name,
            args=request.args,
            tool=run.tools.get(request.name),
        )
        self._observers.tell("tool_started", watched)
        return watched

    def inside(self, watched: WatchedTool | None) -> contextlib.AbstractContextManager[None]:
        """Be inside of a tool call, for the thread that is started there."""
        return contextlib.nullcontext() if watched is None else self._observers.inside(watched)

    def tool_finished(
        self,
        watched: WatchedTool | None,
        result: ToolResult | None,
        error: BaseException | None = None,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Tell how a tool call ended."""
        if watched is None:
            return
        watched.result, watched.error, watched.seconds = result, error, seconds
        self._observers.tell("tool_finished", watched)

    def tool(self, run: Run, request: ToolRequest, result: ToolResult) -> None:
        """Tell of a call that has its result without having run."""
        self.tool_finished(self.tool_started(run, request), result)


_NO_CONTEXT = contextvars.Context()

#: Tells nobody.
SILENT = RunWatch(Observers())


def _place(endpoint: Endpoint) -> dict[str, Any]:
    options = endpoint.options
    local = endpoint.generate is not None
    return {
        "model": options.model,
        "style": options.style,
        "base_url": None if local else options.base_url.partition("?")[0],
    }


def check_watches(given: Any) -> list[Watch]:
    """
    Return the watches as a list.

    Raises:
        ConfigurationError: Something is no watch.
    """
    listed = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for item in listed:
        if not isinstance(item, Watch):
            raise ConfigurationError(f"watch must be a Watch or a list of them, not {item!r}")
    return listed
