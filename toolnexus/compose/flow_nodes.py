"""The nodes of a flow: functions, agents and other flows; and the context that a function gets."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from toolnexus.abandon import call_abandonable
from toolnexus.cancel import CancelScope
from toolnexus.compose.flow_context import FlowContext
from toolnexus.compose.flow_values import End, FlowError, Goto, NodeError, PauseFlow, changed, plain
from toolnexus.errors import ConfigurationError, RunTimeoutError, ToolnexusError
from toolnexus.events import Custom, Event, UsageReport
from toolnexus.nesting import Inner
from toolnexus.preparing import ask_for
from toolnexus.results import RunResult
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.client import Client
    from toolnexus.compose.flow_engine import Engine, Level
    from toolnexus.compose.flow_graph import Graph
    from toolnexus.compose.flow_state import TaskState
    from toolnexus.report import Outlet
    from toolnexus.transport.retry import RetryPolicy

__all__ = ["Agent", "Call", "Function", "Nested", "Node", "Outcome", "takes"]


@attrs.frozen
class Outcome:
    """
    What a node has come to.

    Args:
        update: What it changes in the state.
        goto: The step that comes next, whatever the edges say; None to follow them.
        ends: Whether the flow ends here.
    """

    update: dict[str, Any] = attrs.field(factory=dict)
    goto: str | None = None
    ends: bool = False


class Kind(Protocol):
    """What a node is."""

    def call(self, call: Call) -> Outcome:
        """Do what the node does."""


@attrs.frozen(eq=False)
class Node:
    """
    A node of a flow.

    Args:
        name: Its name.
        kind: What it is.
        retry: When it is tried again.
        on_error: What is called with the state and the error when it has failed for good.
        timeout: Seconds that a try may take; None for no limit.
    """

    name: str
    kind: Kind
    retry: RetryPolicy | None = None
    on_error: Callable[..., Any] | None = None
    timeout: float | None = None


@attrs.define(kw_only=True, eq=False)
class Call:
    """
    One try of a node.

    Args:
        engine: What drives the run.
        level: The flow that the node belongs to, as far as it got.
        node: The node.
        task: Where the node stands.
        task_id: Its id in events.
        step: The step, from 1.
        attempt: The try, from 1.
        scope: What ends it.
        outlet: Where its events go.
    """

    engine: Engine
    level: Level
    node: Node
    task: TaskState
    task_id: str
    step: int
    attempt: int
    scope: CancelScope
    outlet: Outlet | None

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace of what is inside the node."""
        return (*self.level.namespace, self.node.name)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the state, so that nobody changes it but by an update."""
        return plain(self.level.frame.state)  # type: ignore[no-any-return]

    def user(self, function: Callable[..., Any], *args: Any) -> Any:
        """
        Call a function of the user's, and leave it behind when the run ends.

        Raises:
            NodeError: It raised; the cause is what it raised.
        """
        name = self.node.name
        try:
            value = call_abandonable(lambda: function(*args), self.scope, name=f"node-{name}")
        except ToolnexusError:
            raise
        except Exception as error:
            raise self.error(f"{name} raised {describe_error(error)}") from error
        self.scope.check()  # one that was told to stop and did so has not finished
        return value

    def error(self, message: str) -> NodeError:
        """Return an error of this node; where tries were asked for, it is worth another one."""
        return NodeError(
            message,
            node=self.node.name,
            namespace=self.level.namespace,
            retryable=self.node.retry is not None,
        )

    def context(self, emit: Callable[[Any], None]) -> FlowContext:
        """Return what the node's function gets."""
        return FlowContext(
            run_id=self.engine.run_id,
            node=self.node.name,
            step=self.step,
            task_id=self.task_id,
            namespace=self.level.namespace,
            attempt=self.attempt,
            deps=self.engine.deps,
            scope=self.scope,
            answers=tuple(self.task.answers),
            emit=emit,
        )

    def with_context(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the user's with the context if it takes one more argument."""
        if takes(function) <= len(args):
            return self.user(function, *args)
        emitter = _Emitter(self)
        try:
            return self.user(function, *args, self.context(emitter))
        finally:
            emitter.close()

    def outcome(self, value: Any) -> Outcome:
        """
        Return what a node's return value means.

        Raises:
            NodeError: It means nothing.
        """
        update = value.update if isinstance(value, (Goto, End)) else value
        if update is not None and not isinstance(update, dict):
            raise self.error(
                f"{self.node.name} must return a dict, Goto, End or None, not {type(value).__name__}"
            )
        try:
            update = plain(update or {}, f"what {self.node.name} returns")
        except TypeError as error:
            raise self.error(str(error)) from error
        if isinstance(update.get("messages"), dict):
            update["messages"] = [update["messages"]]
        if not isinstance(update.get("messages", []), list):
            raise self.error(f"what {self.node.name} returns as messages must be a list")
        goto = value.node if isinstance(value, Goto) else None
        return Outcome(update, goto, isinstance(value, End))


class _Emitter:
    """Sends what a node's function emits, until the node ends. Any thread may call it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._reporter = call.engine.reporter(call.level.namespace, call.outlet)
        self._reporter.at(call.node.name, call.step, "", call.attempt)
        self._inner = Inner(call.namespace, call.task_id, call.engine.run_id)
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def __call__(self, item: Any) -> None:
        if self._closed or self._call.scope.cancelled:
            return
        try:
            if isinstance(item, Event):
                self._reporter.pass_on(item, self._inner)
            else:
                self._reporter.send(Custom, item)
            self._reporter.flush()
        except ToolnexusError:
            return  # the run has ended: what is emitted now is for nobody


def takes(function: Callable[..., Any]) -> int:
    """
    Return how many positional arguments a function takes.

    Those with a default are its own affair, except one that is called ``ctx``.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 99
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty or p.name == "ctx" for p in positional)


@attrs.frozen(eq=False)
class Function:
    """A node that is a function of the state, and of the context if it takes two arguments."""

    function: Callable[..., Any]

    def call(self, call: Call) -> Outcome:
        """Call it; where it asks a person who answers at once, again."""
        while True:
            try:
                return call.outcome(call.with_context(self.function, call.state))
            except PauseFlow as pause:
                answers = call.engine.ask(call, pause.requests)
                if not answers:
                    call.task.waits = pause.requests
                    raise
                call.task.answers.extend(answers)


@attrs.frozen(eq=False)
class Nested:
    """A node that is a flow: it begins with the state, and what it has changed is the update."""

    flow: Graph
    input: Callable[[dict[str, Any]], Any] | None = None
    update: Callable[[dict[str, Any]], Any] | None = None
    max_steps: int | None = None

    def call(self, call: Call) -> Outcome:
        """Drive the flow, from where it stands."""
        begins = call.state if self.input is None else call.user(self.input, call.state)
        try:
            begins = plain(begins, f"the input of {call.node.name}")
        except TypeError as error:
            raise call.error(str(error)) from error
        if call.task.inner is None:
            call.task.inner = self.flow.first_frame(begins)
        call.engine.run_inside(call, self.flow, call.task.inner, self.max_steps or self.flow.max_steps)
        after = call.task.inner.state
        update = changed(begins, after) if self.update is None else call.user(self.update, plain(after))
        return call.outcome(update)


@attrs.frozen(eq=False)
class Agent:
    """A node that is an agent: a client with tools, asked a prompt that is made of the state."""

    client: Client
    prompt: Any
    tools: Any = None
    history: Callable[[dict[str, Any]], Any] | None = None
    update: Callable[..., Any] | None = None
    output: Any = None
    options: dict[str, Any] = attrs.field(factory=dict)

    def call(self, call: Call) -> Outcome:
        """Run the agent, or go on with it where it waited."""
        engine, task = call.engine, call.task
        prompt, history = self._asked(call)
        with call.scope.child() as scope:
            run, _ = self.client._runner.prepare(
                prompt, self.tools, None, history, engine.deps, scope, dict(self.options)
            )
            ask_for(run, self.output)
            run.name, run.trigger = call.node.name, call.task_id
            run.streaming = engine.outlet is not None
            run.retry_after_output = engine.takes_text_back
            run.gate = engine.gate if call.level.live else None
            run.reporter = engine.reporter(call.namespace, call.outlet, without={UsageReport})
            if task.transcript is not None:
                run.answers = list(task.answers)
            result = self._driven(call, run)
        if result.status == "pending":
            task.transcript, task.waits, task.answers = result.messages, list(result.pending), []
            raise PauseFlow(task.waits)
        return self._outcome(call, result)

    def _asked(self, call: Call) -> tuple[Any, Any]:
        """Return the prompt and the history."""
        if call.task.transcript is not None:
            return None, call.task.transcript
        prompt = call.user(self.prompt, call.state) if callable(self.prompt) else self.prompt
        return prompt, None if self.history is None else call.user(self.history, call.state)

    def _driven(self, call: Call, run: Any) -> RunResult:
        try:
            result = self.client._runner.drive(run, None, threading.get_ident())
        except ToolnexusError as error:
            if error.partial is not None:
                call.engine.add_usage(error.partial.usage)
            if isinstance(error, RunTimeoutError):
                call.scope.check()
            raise
        call.engine.add_usage(result.usage)
        return result

    def _outcome(self, call: Call, result: RunResult) -> Outcome:
        if self.update is not None:
            arguments = (result, call.state)[: takes(self.update)]
            return call.outcome(call.user(self.update, *arguments))
        if result.status != "done":
            raise call.error(f"{call.node.name} was cut by {result.limit}; an update function may allow that")
        return call.outcome({call.node.name: result.text if self.output is None else result.output_json})


def checked(function: Any, what: str) -> Callable[..., Any]:
    """
    Return a function, if it is a plain one.

    Raises:
        ConfigurationError: It is no function, or a coroutine function.
    """
    if not callable(function):
        raise ConfigurationError(f"{what} must be a function, not {function!r:.60}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{what} is a coroutine function; it must be a plain one")
    return function  # type: ignore[no-any-return]


def unknown_step(name: str, node: str, namespace: tuple[str, ...]) -> FlowError:
    """Return the error for a step that there is not."""
    return FlowError(
        f"{node} leads to {name!r}, which is no step of this flow", node=node, namespace=namespace
    )
