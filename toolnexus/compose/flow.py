"""Flows: functions, agents and other flows as the nodes of a small graph that is run step by step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.collected import collector
from toolnexus.compose.flow_context import FlowContext
from toolnexus.compose.flow_engine import Engine
from toolnexus.compose.flow_graph import Graph
from toolnexus.compose.flow_opening import Opening, answered, beginning
from toolnexus.compose.flow_state import Checkpoints, Snapshot
from toolnexus.compose.flow_values import (
    End,
    FlowError,
    FlowResult,
    Goto,
    NodeError,
    NodeTimeoutError,
    StepLimitError,
)
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import wanted
from toolnexus.gate import Gate
from toolnexus.options import _number
from toolnexus.preparing import memory_store
from toolnexus.pump import Pump
from toolnexus.results import RunResult
from toolnexus.run import new_run_id
from toolnexus.stores.locks import ConversationLocks
from toolnexus.stream import Stream
from toolnexus.wording import describe_error

__all__ = [
    "End",
    "Flow",
    "FlowContext",
    "FlowError",
    "FlowResult",
    "FlowStream",
    "Goto",
    "NodeError",
    "NodeTimeoutError",
    "StepLimitError",
]


class FlowStream(Stream):
    """The events of a flow, as a plain iterator; see `Stream`."""

    def result(self) -> FlowResult:
        """
        Read the stream to its end.

        Returns:
            The flow's result.

        Raises:
            ToolnexusError: The error that the flow ended with; ``partial`` holds what it had reached.
        """
        return cast(FlowResult, super().result())


class Flow(Graph):
    """
    A graph of nodes that change a state, one step after another.

    The state is a dict of plain JSON. A node gets a copy of it and returns what it changes; ``messages`` are
    appended, every other key is replaced. The node that was added first is the first step, or is in it.

    Args:
        name: The flow's name.
        start: The first step, if it is not the node that was added first.
        max_steps: The most steps of a run; one more is an error.
        store: Where runs with an ``id`` are saved after every step; in memory by default.
        queue_size: The most events of a stream that wait for their consumer.
        abandon_timeout: Seconds that a full queue waits for its consumer; None for ever.

    Raises:
        ConfigurationError: An argument is wrong.

    >>> flow = Flow("greeting")
    >>> @flow.node
    ... def greet(state):
    ...     return {"text": "Hello, " + state["name"]}
    >>> flow.run({"name": "Ada"}).state["text"]
    'Hello, Ada'
    """

    def __init__(
        self,
        name: str,
        *,
        start: str | None = None,
        max_steps: int = 25,
        store: Any = None,
        queue_size: int = 256,
        abandon_timeout: float | None = None,
    ) -> None:
        super().__init__(name, start, max_steps)
        self._store = memory_store() if store is None else _states(store)
        self._queue_size: int = _number("queue_size", queue_size, low=1, whole=True)
        self._abandon_timeout = _number("abandon_timeout", abandon_timeout, low=0, optional=True)
        self._locks = ConversationLocks()

    # -- running -------------------------------------------------------------------------------

    def run(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the reference
        deps: Any = None,
        scope: CancelScope | None = None,
        max_steps: int | None = None,
        timeout: float | None = None,
        collect_events: bool = False,
        channels: Iterable[str] | None = None,
    ) -> FlowResult:
        """
        Run the flow to its end, in this thread.

        Args:
            state: The state to begin with.
            id: A name to save the run under after every step. The same call, or one without a state, goes on
                after a crash where it was saved last.
            deps: An object of yours for the nodes and tools, as ``ctx.deps``.
            scope: What can cancel the run from another thread.
            max_steps: The most steps, for this run.
            timeout: Seconds that the run may take.
            collect_events: Whether to keep what a stream would have yielded: in ``result.events``, or in
                ``error.events`` where the flow fails.
            channels: The channels to collect; None for the default set.

        Returns:
            The result; with the status "pending" where a node waits for a person.

        Raises:
            ToolnexusError: The flow failed; ``partial`` holds what it had reached.
        """
        job = self._prepare(beginning(self, state), id, deps, scope, max_steps, timeout)
        return self._run(job, collect_events, channels)

    def stream(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the reference
        deps: Any = None,
        scope: CancelScope | None = None,
        channels: Iterable[str] | None = None,
        keep_events: bool = False,
        answers: str = "now",
        max_steps: int | None = None,
        timeout: float | None = None,
    ) -> FlowStream:
        """
        Run the flow in the background and iterate over what happens.

        Nothing begins before the first ``next()``.

        Args:
            state: See `run`.
            id: See `run`.
            deps: See `run`.
            scope: What can cancel the run, beside the stream itself.
            channels: The channels to report, such as "updates", "values" or "tasks"; None for the
                default set.
            keep_events: Whether to keep what was yielded in ``stream.events``.
            answers: When a node that asks must be answered with `Stream.answer`, see `Client.stream`.
                Nodes of a parallel step cannot be answered while the stream runs.
            max_steps: See `run`.
            timeout: See `run`.

        Returns:
            The stream, which ends with exactly one `Done` or `Error`.

        Raises:
            ToolnexusError: Something that can be known before anything begins.
        """
        job = self._prepare(beginning(self, state), id, deps, scope, max_steps, timeout)
        return self._stream(job, channels, keep_events, answers)

    def resume(
        self,
        id: str | None,  # noqa: A002 - the word of the reference
        answers: Any,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        max_steps: int | None = None,
        timeout: float | None = None,
        collect_events: bool = False,
        channels: Iterable[str] | None = None,
    ) -> FlowResult:
        """
        Go on with a run that ended as pending: in any process, whenever the answer is there.

        Args:
            id: The name that it was saved under; None with a ``checkpoint``.
            answers: An `Answer`, its dict, or several of them; a dict from the ids of requests to data;
                or, where one request waits, the data itself.
            checkpoint: The ``checkpoint`` of the pending result, instead of an ``id``.
            deps: See `run`.
            scope: See `run`.
            max_steps: See `run`.
            timeout: See `run`.
            collect_events: See `run`.
            channels: See `run`.

        Returns:
            The result; pending again where not everything was answered.

        Raises:
            InvalidAnswerError: An answer does not fit; nothing was changed.
            ToolnexusError: The flow failed.
        """
        opening = answered(self, checkpoint, answers)
        job = self._prepare(opening, id, deps, scope, max_steps, timeout)
        return self._run(job, collect_events, channels)

    def resume_stream(
        self,
        id: str | None,  # noqa: A002 - the word of the reference
        answers: Any,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        channels: Iterable[str] | None = None,
        keep_events: bool = False,
        max_steps: int | None = None,
        timeout: float | None = None,
    ) -> FlowStream:
        """
        Go on with a run that ended as pending, and iterate over what happens.

        The arguments are those of `resume` and `stream`.
        """
        opening = answered(self, checkpoint, answers)
        job = self._prepare(opening, id, deps, scope, max_steps, timeout)
        return self._stream(job, channels, keep_events, "now")

    def load(self, id: str) -> FlowResult | None:  # noqa: A002 - the word of the reference
        """
        Return where a run stands that was saved, or None.

        Its status is "done", "pending" or, for one that goes on or was interrupted, "incomplete".
        """
        checkpoints = Checkpoints(self._store, id, self.name)
        found = checkpoints.load()
        if found is None:
            return None
        job = _Job(lambda _: found, checkpoints, None, CancelScope(), self.max_steps)
        return self._engine(found, job).result("incomplete" if found.status == "running" else found.status)

    # -- inside --------------------------------------------------------------------------------

    def _prepare(
        self,
        opening: Opening,
        id: str | None,  # noqa: A002
        deps: Any,
        scope: CancelScope | None,
        max_steps: int | None,
        timeout: float | None,
    ) -> _Job:
        """Check everything that can be known before anything begins."""
        self.check()
        checkpoints = None if id is None else Checkpoints(self._store, id, self.name)
        opening(checkpoints)
        limit = _number("max_steps", max_steps, low=1, optional=True, whole=True) or self.max_steps
        scope = CancelScope() if scope is None else scope
        if not isinstance(scope, CancelScope):
            raise ConfigurationError(f"scope must be a CancelScope, not {type(scope).__name__}")
        scope = scope.for_run()
        if timeout is not None:
            scope.timeout = _number("timeout", timeout, low=0)
        return _Job(opening, checkpoints, deps, scope, limit)

    def _run(self, job: _Job, collect_events: bool, channels: Iterable[str] | None) -> FlowResult:
        found = collector(job.run_id, collect_events, channels)

        def begin(engine: Engine) -> None:
            if found is not None:
                engine.report_to(found[0], found[1], None, True)

        try:
            result = self._drive(job, threading.get_ident(), begin)
        except BaseException as error:
            job.scope.cancel()  # tells nodes that are still running
            if found is not None:
                found[0].failed(error)
            raise
        return result if found is None else found[0].finished(result)

    def _stream(
        self, job: _Job, channels: Iterable[str] | None, keep_events: bool, answers: str
    ) -> FlowStream:
        if answers not in ("now", "wait"):
            raise ConfigurationError(f'answers must be "now" or "wait", not {answers!r}')
        wants = wanted(channels)
        gate = Gate(answers == "wait")
        creator = threading.get_ident()

        def work(pump: Pump) -> RunResult:
            def committing() -> None:
                pump.committing = True

            def begin(engine: Engine) -> None:
                engine.report_to(pump, wants, gate, pump.takes_text_back)
                engine.on_commit = committing
                pump.reached = lambda: engine.result("incomplete")

            owner = pump.consumer.ident if pump.consumer is not None else None
            return self._drive(job, owner or creator, begin)

        pump = Pump(
            job.run_id, job.scope, work, queue_size=self._queue_size, abandon_timeout=self._abandon_timeout
        )
        return FlowStream(pump, keep_events=keep_events, gate=gate)

    def _drive(self, job: _Job, owner: int, begin: Callable[[Engine], None]) -> FlowResult:
        """Drive a run to its end, alone with its id if it has one."""
        hold: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if job.checkpoints is not None:
            hold = self._locks.hold(job.checkpoints.id, job.scope, owner)
        with job.scope.running(), hold:
            engine = self._engine(job.opening(job.checkpoints), job)
            begin(engine)
            try:
                return engine.drive()
            except ToolnexusError:
                raise
            except Exception as error:
                wrapped = ToolnexusError(f"unexpected {describe_error(error)}")
                wrapped.partial = engine.result("incomplete")
                raise wrapped from error

    def _engine(self, snapshot: Snapshot, job: _Job) -> Engine:
        return Engine(
            self,
            snapshot,
            run_id=job.run_id,
            scope=job.scope,
            deps=job.deps,
            max_steps=job.max_steps,
            checkpoints=job.checkpoints,
        )


@attrs.define(eq=False)
class _Job:
    """A run that was prepared."""

    opening: Opening
    checkpoints: Checkpoints | None
    deps: Any
    scope: CancelScope
    max_steps: int
    run_id: str = attrs.field(factory=new_run_id)


def _states(store: Any) -> Any:
    """Return the store, if it keeps states."""
    if not callable(getattr(store, "load_state", None)) or not callable(getattr(store, "put_state", None)):
        raise ConfigurationError(
            f"a flow needs a store that keeps states, such as SqliteStore; {type(store).__name__} does not"
        )
    return store
