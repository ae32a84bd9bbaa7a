"""
Driving a flow: one step after another, with everything that is nested in it.

It knows no thread that reads and no queue: like the loop of an agent it reports to an outlet.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.compose.flow_attempts import tries
from toolnexus.compose.flow_nodes import Call, Node, Outcome, unknown_step
from toolnexus.compose.flow_parallel import side_by_side
from toolnexus.compose.flow_report import FlowReporter, Shared
from toolnexus.compose.flow_state import Checkpoints, Frame, Snapshot, TaskState
from toolnexus.compose.flow_values import (
    End,
    FlowResult,
    Goto,
    NodeTimeoutError,
    PauseFlow,
    StepLimitError,
    last_text,
    merged,
    plain,
)
from toolnexus.errors import RunTimeoutError, ToolnexusError
from toolnexus.events import (
    Checkpoint,
    Event,
    Lifecycle,
    Message,
    Pending,
    Task,
    Update,
    UsageReport,
    Value,
)
from toolnexus.report import Outlet, Reporter
from toolnexus.results import Usage
from toolnexus.suspension import Answer, Request
from toolnexus.wording import error_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolnexus.compose.flow_graph import Graph
    from toolnexus.gate import Gate
    from toolnexus.run import Run

__all__ = ["Engine", "Level"]


@attrs.define(eq=False)
class Level:
    """
    One flow as it runs: the outer one, or one that is a node of another.

    Args:
        flow: The flow.
        frame: Where it stands.
        namespace: Its path.
        prefix: What the ids of its tasks begin with.
        scope: What ends it.
        outlet: Where its events go.
        live: Whether a person who reads the stream can answer at once; not beside other nodes.
        max_steps: The most steps.
        trigger: The id of the task that it runs for.
    """

    flow: Graph
    frame: Frame
    namespace: tuple[str, ...]
    prefix: str
    scope: CancelScope
    outlet: Outlet | None
    live: bool
    max_steps: int
    trigger: str | None = None


class _NoTools:
    """What stands for a run where an answer is checked that is for no tool."""

    class tools:  # noqa: N801 - read like the attribute that it stands for
        get = staticmethod(lambda name: None)


NO_RUN = cast("Run", _NoTools)


class Engine:
    """
    One run of a flow.

    Args:
        flow: The flow.
        snapshot: Where it begins.
        run_id: The run's id.
        scope: What ends it.
        deps: The caller's own object.
        max_steps: The most steps of the outer flow.
        checkpoints: Where it is saved after every step, or None.
    """

    def __init__(
        self,
        flow: Graph,
        snapshot: Snapshot,
        *,
        run_id: str,
        scope: CancelScope,
        deps: Any,
        max_steps: int,
        checkpoints: Checkpoints | None,
    ) -> None:
        self.run_id = run_id
        self.flow = flow
        self.snapshot = snapshot
        self.scope = scope
        self.deps = deps
        self.wants: frozenset[type[Event]] = frozenset()
        self.outlet: Outlet | None = None
        self.gate: Gate | None = None
        #: Whether text that went out can be taken back; where nobody listens, there is none.
        self.takes_text_back = True
        #: Called before the last checkpoint is saved.
        self.on_commit: Callable[[], None] = lambda: None
        self._max_steps = max_steps
        self._checkpoints = checkpoints
        self._numbers = count(1)
        self._started = time.monotonic()
        self.lock = threading.RLock()  # guards the snapshot against nodes that run side by side
        self.broken: ToolnexusError | None = None

    def report_to(
        self, outlet: Outlet, wants: frozenset[type[Event]], gate: Gate | None, takes_back: bool
    ) -> None:
        """Have the events that are wanted reported, and answers taken from whoever reads them, if any."""
        self.outlet, self.wants, self.gate = Shared(outlet), wants, gate
        self.takes_text_back = takes_back

    # -- what the nodes use --------------------------------------------------------------------

    def reporter(
        self, namespace: tuple[str, ...], outlet: Outlet | None, *, without: set[type[Event]] | None = None
    ) -> Reporter:
        """Return a reporter of this run."""
        reporter = FlowReporter(self.run_id, self.wants - (without or set()), outlet, namespace)
        reporter.numbers = self._numbers
        return reporter

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of an agent."""
        with self.lock:
            self.snapshot.usage = self.snapshot.usage + usage

    def ask(self, call: Call, requests: list[Request]) -> list[Answer]:
        """Report what a node asks, and return the answers of whoever can answer at once."""
        reporter = self.reporter(call.level.namespace, call.outlet)
        reporter.at(call.node.name, call.step, "", call.attempt)
        gate = self.gate if call.level.live else None
        if gate is not None:
            gate.open(requests, NO_RUN)
        for request in requests:
            reporter.send(Pending, request)
        reporter.flush()
        if gate is None:
            return []
        answers = gate.wait(call.scope)
        gate.close(requests)
        return [answers[request.id] for request in requests if request.id in answers]

    def run_inside(self, call: Call, flow: Graph, frame: Frame, max_steps: int) -> None:
        """Drive a flow that is a node of another, with a limit of its own."""
        level = call.level
        self._run(
            Level(
                flow,
                frame,
                call.namespace,
                call.task_id,
                call.scope,
                call.outlet,
                level.live,
                max_steps,
                call.task_id,
            )
        )

    # -- driving -------------------------------------------------------------------------------

    def drive(self) -> FlowResult:
        """
        Drive the flow to its end, or until it waits.

        Raises:
            ToolnexusError: It failed; ``partial`` holds what it had reached.
        """
        frame = self.snapshot.frame
        level = Level(self.flow, frame, (), self.run_id, self.scope, self.outlet, True, self._max_steps, None)
        self.snapshot.status = "running"
        try:
            self._run(level)
            status = "done"
        except PauseFlow:
            status = self.snapshot.status = "pending"
            self.on_commit()
            self.save(level)
        except ToolnexusError as error:
            error.partial = self.result("incomplete")
            raise
        result = self.result(status)
        reporter = self.reporter((), self.outlet)
        reporter.at("", frame.step)
        reporter.send(UsageReport, result.usage)
        return result

    def result(self, status: str) -> FlowResult:
        """Return what the flow has reached."""
        with self.lock:
            frame = self.snapshot.frame
            state = plain(frame.state)
            messages = state.get("messages")
            messages = messages if isinstance(messages, list) else []
            waiting = status == "pending"
            return FlowResult(
                text=last_text(messages),
                messages=messages,
                usage=self.snapshot.usage,
                status=cast(Any, status),
                pending=[request for _, request in frame.waiting()],
                id=None if self._checkpoints is None else self._checkpoints.id,
                run_id=self.run_id,
                duration=time.monotonic() - self._started,
                state=state,
                steps=frame.step,
                checkpoint=plain(self.snapshot.to_dict(), "checkpoint") if waiting else None,
            )

    def _run(self, level: Level) -> None:
        """Take one step after another until there is none."""
        with self._lifecycle(level):
            while level.frame.next is not None:
                level.scope.check()
                if level.frame.step >= level.max_steps:
                    raise StepLimitError(
                        f"{level.flow.name} would take more than max_steps={level.max_steps} steps",
                        node=level.frame.next,
                        namespace=level.namespace,
                    )
                self._step(level)

    @contextlib.contextmanager
    def _lifecycle(self, level: Level) -> Iterator[None]:
        """Report that a flow begins, and how it ends."""
        reporter = self.reporter(level.namespace, level.outlet)
        name = level.flow.name

        def say(status: str, error: str | None = None) -> None:
            reporter.at("", level.frame.step)
            reporter.send(Lifecycle, status, name, level.trigger, error)

        say("started")
        try:
            yield
        except PauseFlow:
            say("interrupted")
            raise
        except ToolnexusError as error:
            say("cancelled" if error.kind == "cancelled" else "failed", error_text(error))
            raise
        say("completed")

    def _step(self, level: Level) -> None:
        """Run the nodes of one step, and take over what they change."""
        frame = level.frame
        name = frame.next
        assert name is not None
        members = level.flow.members(name)
        for member in members:
            frame.tasks.setdefault(member, TaskState())
        if len(members) == 1:
            outcome = self.task(level, members[0])
            updates = {members[0]: outcome.update}
        else:
            updates = side_by_side(self, level, members)
            outcome = Outcome()
        state = merged(frame.state, updates)
        successor = self._successor(level, name, outcome, state)
        with self.lock:
            frame.state, frame.next, frame.tasks = state, successor, {}
            frame.step += 1
        self._report_step(level, name, updates)
        self.save(level, name)

    def _successor(self, level: Level, name: str, outcome: Outcome, state: dict[str, Any]) -> str | None:
        """Return the step that follows, or None at the end."""
        if outcome.ends:
            return None
        target: Any = outcome.goto
        if target is None:
            target = level.flow.edges.get(name)
            route = level.flow.routes.get(name)
            if route is not None:
                # The route belongs to the step: what it raises is told as an error of the same name.
                node = Node(name, cast(Any, None))
                target = self.call(level, node, TaskState(), level.outlet).user(route, plain(state))
        target = target.node if isinstance(target, Goto) else target
        if target is None or target is End or isinstance(target, End):
            return None
        target = level.flow.name_of(target)
        if target not in level.flow.steps:
            raise unknown_step(target, name, level.namespace)
        return cast(str, target)

    def _report_step(self, level: Level, name: str, updates: dict[str, dict[str, Any]]) -> None:
        reporter = self.reporter(level.namespace, level.outlet)
        reporter.at(name, level.frame.step)
        if Update in self.wants:
            reporter.send(Update, plain(updates, "update"))
        if Value in self.wants:
            reporter.send(Value, plain(level.frame.state))

    def save(self, level: Level, name: str = "") -> None:
        """Save where the whole flow stands, if there is a store for it."""
        if self._checkpoints is None:
            return
        with self.lock:
            if self.snapshot.frame.next is None:
                self.snapshot.status = "done"
                self.on_commit()
            try:
                self._checkpoints.save(self.snapshot)
            except ToolnexusError as error:
                self.broken = error
                raise
        if Checkpoint in self.wants:
            reporter = self.reporter(level.namespace, level.outlet)
            reporter.at(name, level.frame.step)
            reporter.send(Checkpoint, self._checkpoints.id, plain(level.frame.state))

    # -- one node ------------------------------------------------------------------------------

    def call(
        self, level: Level, node: Node, task: TaskState, outlet: Outlet | None, attempt: int = 1
    ) -> Call:
        step = level.frame.step + 1
        task_id = f"{level.prefix}:{node.name}:{step}"
        return Call(
            engine=self,
            level=level,
            node=node,
            task=task,
            task_id=task_id,
            step=step,
            attempt=attempt,
            scope=level.scope,
            outlet=outlet,
        )

    def task(self, level: Level, name: str) -> Outcome:
        """Run a node, and report its start and its end."""
        node, task = level.flow.nodes[name], level.frame.tasks[name]
        if task.waits:
            raise PauseFlow(list(task.waits))
        call = self.call(level, node, task, level.outlet)
        reporter = self.reporter(level.namespace, level.outlet)
        reporter.at(name, call.step)
        reporter.send(Task, "start", call.task_id)
        reporter.flush()
        try:
            outcome, recovered = tries(self, call, reporter)
        except PauseFlow as pause:
            reporter.send(Task, "interrupt", call.task_id, [r.to_dict() for r in pause.requests])
            raise
        except ToolnexusError as error:
            kind = "timeout" if isinstance(error, (NodeTimeoutError, RunTimeoutError)) else "error"
            reporter.send(Task, kind, call.task_id, error_text(error))
            raise
        payload = None if recovered is None else {"recovered": str(recovered)}
        reporter.send(Task, "finish", call.task_id, payload)
        self._report_messages(call, outcome, reporter)
        return outcome

    def _report_messages(self, call: Call, outcome: Outcome, reporter: Reporter) -> None:
        """Report the messages that a function adds; those of agents were reported when they came."""
        if Message not in self.wants or type(call.node.kind).__name__ != "Function":
            return
        for number, message in enumerate(outcome.update.get("messages", ())):
            reporter.at(call.node.name, call.step, f"{call.task_id}:{number}")
            reporter.send(Message, plain(message, "message"), True)
        reporter.at(call.node.name, call.step)
