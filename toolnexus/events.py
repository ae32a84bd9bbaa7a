"""
What a stream yields: one frozen class an event.

Every event has a class attribute ``type`` and a ``channel``. Where it came from (``run_id``,
``namespace``, ``node``, ``step``, ``message_id``, ``attempt``, ``seq``, ``timestamp``) takes no part
in equality, so ``event == Text("Hel")`` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from toolnexus.results import Message as MessageDict
from toolnexus.results import RunResult, Usage
from toolnexus.values import Value as _Base

if TYPE_CHECKING:
    from toolnexus.errors import ToolnexusError
    from toolnexus.suspension import Request

__all__ = [
    "CHANNELS",
    "AttemptFailed",
    "Checkpoint",
    "Custom",
    "Debug",
    "Done",
    "Error",
    "Event",
    "Heartbeat",
    "Lifecycle",
    "Message",
    "Origin",
    "Pending",
    "Task",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolCallDelta",
    "ToolFinished",
    "ToolOutput",
    "Update",
    "UsageReport",
    "Value",
    "of_call",
    "wanted",
]


@attrs.frozen(eq=False, repr=False)
class Origin(_Base):
    """
    Where events come from; the events of one attempt share it.

    Args:
        run_id: The run.
        namespace: The path of nested agents and flows, ``()`` at the root.
        node: The part of the loop: "model" or "tools".
        step: The turn, from 1.
        message_id: The message that the event is a piece of.
        attempt: The try of the model call, from 1.
    """

    run_id: str = ""
    namespace: tuple[str, ...] = ()
    node: str = ""
    step: int = 0
    message_id: str = ""
    attempt: int = 0


_NOWHERE = Origin()


@attrs.frozen(eq=False, repr=False)
class Event(_Base):
    """The base of all events."""

    type: ClassVar[str] = ""
    channel: ClassVar[str] = ""

    origin: Origin = attrs.field(default=_NOWHERE, kw_only=True, eq=False, repr=False)
    seq: int = attrs.field(default=0, kw_only=True, eq=False, repr=False)
    timestamp: float = attrs.field(default=0.0, kw_only=True, eq=False, repr=False)

    @property
    def run_id(self) -> str:
        """The run that the event belongs to."""
        return self.origin.run_id

    @property
    def namespace(self) -> tuple[str, ...]:
        """The path of nested agents and flows; ``()`` at the root."""
        return self.origin.namespace

    @property
    def node(self) -> str:
        """The part of the loop that the event comes from."""
        return self.origin.node

    @property
    def step(self) -> int:
        """The turn, from 1."""
        return self.origin.step

    @property
    def message_id(self) -> str:
        """The message that the event is a piece of."""
        return self.origin.message_id

    @property
    def attempt(self) -> int:
        """The try of the model call, from 1."""
        return self.origin.attempt


@attrs.frozen(eq=False, repr=False)
class Text(Event):
    """A piece of the answer."""

    type: ClassVar[str] = "text"
    channel: ClassVar[str] = "messages"
    delta: str


@attrs.frozen(eq=False, repr=False)
class Thinking(Event):
    """A piece of the reasoning; it is never part of the text."""

    type: ClassVar[str] = "thinking"
    channel: ClassVar[str] = "messages"
    delta: str


@attrs.frozen(eq=False, repr=False)
class ToolCallDelta(Event):
    """A raw fragment of a tool call, for display only. Asked for with the channel "messages"."""

    type: ClassVar[str] = "tool_call_delta"
    channel: ClassVar[str] = "messages"
    index: int | None
    id: str | None
    name: str | None
    arguments: str


@attrs.frozen(eq=False, repr=False)
class Message(Event):
    """
    The authoritative message of a turn. Asked for with the channel "messages".

    ``complete`` is False for one that was cut.
    """

    type: ClassVar[str] = "message"
    channel: ClassVar[str] = "messages"
    message: MessageDict
    complete: bool = True


@attrs.frozen(eq=False, repr=False)
class ToolCall(Event):
    """A tool is about to run; the arguments are whole."""

    type: ClassVar[str] = "tool_call"
    channel: ClassVar[str] = "tools"
    id: str
    name: str
    args: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class ToolOutput(Event):
    """A running tool reports progress."""

    type: ClassVar[str] = "tool_output"
    channel: ClassVar[str] = "tools"
    id: str
    name: str
    delta: str


@attrs.frozen(eq=False, repr=False)
class ToolFinished(Event):
    """A tool call has its result."""

    type: ClassVar[str] = "tool_result"
    channel: ClassVar[str] = "tools"
    id: str
    name: str
    output: str
    is_error: bool = False


@attrs.frozen(eq=False, repr=False)
class UsageReport(Event):
    """The run's token counts, once, right before `Done`."""

    type: ClassVar[str] = "usage"
    channel: ClassVar[str] = "lifecycle"
    usage: Usage


@attrs.frozen(eq=False, repr=False)
class Pending(Event):
    """A tool waits for a person."""

    type: ClassVar[str] = "pending"
    channel: ClassVar[str] = "lifecycle"
    request: Request


@attrs.frozen(eq=False, repr=False)
class Custom(Event):
    """A tool, hook or flow node sent a payload of its own."""

    type: ClassVar[str] = "custom"
    channel: ClassVar[str] = "custom"
    payload: Any


@attrs.frozen(eq=False, repr=False)
class Update(Event):
    """What a node has changed: ``{node: partial state}``. Asked for with the channel "updates"."""

    type: ClassVar[str] = "update"
    channel: ClassVar[str] = "updates"
    update: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class Value(Event):
    """The whole state after a step. Asked for with the channel "values"."""

    type: ClassVar[str] = "value"
    channel: ClassVar[str] = "values"
    value: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class Task(Event):
    """
    A node begins or ends. Asked for with the channel "tasks".

    Args:
        kind: "start", "finish", "error", "timeout" or "interrupt".
        task_id: The same for the start and the end of one task.
        payload: What there is to say: the error, or the request of an interrupt.
    """

    type: ClassVar[str] = "task"
    channel: ClassVar[str] = "tasks"
    kind: str
    task_id: str
    payload: Any = None


@attrs.frozen(eq=False, repr=False)
class Checkpoint(Event):
    """A state was saved. Asked for with the channel "checkpoints"."""

    type: ClassVar[str] = "checkpoint"
    channel: ClassVar[str] = "checkpoints"
    id: str
    values: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class Lifecycle(Event):
    """
    A run, or a nested one, changes its state. Asked for with the channel "lifecycle".

    Args:
        status: "started", "completed", "failed", "interrupted" or "cancelled".
        name: The name of the flow or agent.
        trigger_call_id: The tool call or task that it runs for, or None.
        error: What went wrong, as text, or None.
    """

    type: ClassVar[str] = "lifecycle"
    channel: ClassVar[str] = "lifecycle"
    status: str
    name: str = ""
    trigger_call_id: str | None = None
    error: str | None = None


@attrs.frozen(eq=False, repr=False)
class Debug(Event):
    """Something for whoever looks inside. Asked for with the channel "debug"."""

    type: ClassVar[str] = "debug"
    channel: ClassVar[str] = "debug"
    payload: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class Heartbeat(Event):
    """Nothing has happened for a while. Asked for with an output's ``heartbeat`` option."""

    type: ClassVar[str] = "heartbeat"
    channel: ClassVar[str] = "debug"


@attrs.frozen(eq=False, repr=False)
class AttemptFailed(Event):
    """
    A try of a model call failed; the ``text`` that it gave is void.

    Args:
        number: The try, from 1.
        error: What went wrong.
        will_retry: Whether another try follows.
        text: The text that was handed out and no longer counts.
    """

    type: ClassVar[str] = "attempt_failed"
    channel: ClassVar[str] = "lifecycle"
    number: int
    error: ToolnexusError
    will_retry: bool
    text: str = ""

    def concerns(self, namespace: tuple[str, ...]) -> bool:
        """
        Tell whether text of a namespace may be void: it is the try's own, or inside the node that was tried.

        Args:
            namespace: The path that the text comes from.
        """
        own = self.origin.namespace
        return namespace == own or namespace[: len(own) + 1] == (*own, self.origin.node)


@attrs.frozen(eq=False, repr=False)
class Done(Event):
    """The run is over and has a result. Always the last item."""

    type: ClassVar[str] = "done"
    channel: ClassVar[str] = "lifecycle"
    result: RunResult


def of_call(event: Event) -> bool:
    """Tell whether an event is of something that a tool runs: then its namespace holds the call's id."""
    return any(":" in part for part in event.origin.namespace)


class _Seen:
    """Whether anybody looked at an error; the one mutable thing about an event."""

    __slots__ = ("otherwise", "seen")

    def __init__(self) -> None:
        self.seen = False
        self.otherwise: Callable[[], None] | None = None

    def __reduce__(self) -> tuple[type[_Seen], tuple[()]]:
        self.seen = True  # whoever hands it on, to another process for instance, has taken notice
        return _Seen, ()

    def __del__(self) -> None:
        if not self.seen and self.otherwise is not None:
            self.otherwise()


@attrs.frozen(init=False, eq=False, repr=False)
class Error(Event):
    """
    The run failed. Always the last item.

    Looking at ``error`` or ``partial`` counts as taking notice; an error that nobody looked at is
    logged when its stream goes.

    Args:
        error: What went wrong.
        partial: What the run had reached.
    """

    type: ClassVar[str] = "error"
    channel: ClassVar[str] = "lifecycle"
    _error: ToolnexusError
    _partial: RunResult | None
    _looked: _Seen = attrs.field(eq=False)

    def __init__(
        self,
        error: ToolnexusError,
        partial: RunResult | None = None,
        *,
        origin: Origin = _NOWHERE,
        seq: int = 0,
        timestamp: float = 0.0,
    ) -> None:
        self.__attrs_init__(
            error,
            error.partial if partial is None else partial,
            _Seen(),
            origin=origin,
            seq=seq,
            timestamp=timestamp,
        )

    @property
    def error(self) -> ToolnexusError:
        """What went wrong."""
        self._looked.seen = True
        return self._error

    @property
    def partial(self) -> RunResult | None:
        """What the run had reached."""
        self._looked.seen = True
        return self._partial

    @property
    def looked_at(self) -> bool:
        """Whether anybody took notice."""
        return self._looked.seen

    def if_nobody_looks(self, function: Callable[[], None]) -> None:
        """Have a function called once the event is gone and nobody has looked at it."""
        self._looked.otherwise = function

    def peek(self) -> ToolnexusError:
        """Return the error without taking notice of it."""
        return self._error

    def __repr__(self) -> str:
        self._looked.seen = True
        return f"Error(error={self._error!r})"


#: The event classes of each channel, in the order of design section 4.
CHANNELS: dict[str, tuple[type[Event], ...]] = {
    "messages": (Text, Thinking, ToolCallDelta, Message),
    "tools": (ToolCall, ToolOutput, ToolFinished),
    "custom": (Custom,),
    "updates": (Update,),
    "values": (Value,),
    "tasks": (Task,),
    "checkpoints": (Checkpoint,),
    "lifecycle": (Lifecycle, UsageReport, Pending, AttemptFailed, Done, Error),
    "debug": (Debug, Heartbeat),
}

_ALWAYS = frozenset({UsageReport, Pending, AttemptFailed, Done, Error})
_DEFAULT = _ALWAYS | {Text, Thinking, ToolCall, ToolOutput, ToolFinished, Custom}


def wanted(channels: Any = None) -> frozenset[type[Event]]:
    """
    Return the event classes that a choice of channels lets through.

    Args:
        channels: Names of channels, or None for the default set.

    Raises:
        ConfigurationError: There is no such channel.
    """
    from toolnexus.errors import ConfigurationError

    if channels is None:
        return _DEFAULT
    if isinstance(channels, str):
        channels = (channels,)
    if not isinstance(channels, Iterable):
        raise ConfigurationError(f"channels must be a list of names, not {channels!r}")
    unknown = sorted(str(c) for c in channels if c not in CHANNELS)
    if unknown:
        raise ConfigurationError(f"unknown channel {', '.join(unknown)}; there are {', '.join(CHANNELS)}")
    return _ALWAYS.union(*(CHANNELS[c] for c in channels))
