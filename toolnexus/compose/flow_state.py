"""Where a flow stands, as plain JSON, and how that is kept in a store."""

from __future__ import annotations

from typing import Any

import attrs

from toolnexus.errors import ConfigurationError, StoreError, ToolnexusError
from toolnexus.results import Message, Usage
from toolnexus.suspension import Answer, Request
from toolnexus.wording import describe_error

__all__ = ["Checkpoints", "Frame", "Snapshot", "TaskState"]

_FORMAT = 1


@attrs.define(eq=False)
class TaskState:
    """
    Where a node of the current step stands.

    Args:
        answers: What a person has answered so far.
        waits: What is asked now.
        update: What the node has changed, once it has finished; the others of its step may go on.
        inner: Where the flow inside it stands.
        transcript: The messages of the agent inside it, when that waits.
    """

    answers: list[Answer] = attrs.field(factory=list)
    waits: list[Request] = attrs.field(factory=list)
    update: dict[str, Any] | None = None
    inner: Frame | None = None
    transcript: list[Message] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "answers": [answer.to_dict() for answer in self.answers],
            "waits": [request.to_dict() for request in self.waits],
            "update": self.update,
            "inner": None if self.inner is None else self.inner.to_dict(),
            "transcript": self.transcript,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TaskState:
        """Make one from what `to_dict` gave."""
        return cls(
            [Answer.from_dict(item) for item in data["answers"]],
            [Request.from_dict(item) for item in data["waits"]],
            data["update"],
            None if data["inner"] is None else Frame.from_dict(data["inner"]),
            data["transcript"],
        )


@attrs.define(eq=False)
class Frame:
    """
    Where one flow stands.

    Args:
        state: Its state. It is replaced, never changed.
        next: The step that comes next, or None at the end.
        step: How many steps were done.
        tasks: The nodes of the step that comes next, as far as they got.
    """

    state: dict[str, Any]
    next: str | None
    step: int = 0
    tasks: dict[str, TaskState] = attrs.field(factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        tasks = {name: task.to_dict() for name, task in self.tasks.items()}
        return {"state": self.state, "next": self.next, "step": self.step, "tasks": tasks}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Frame:
        """Make one from what `to_dict` gave."""
        tasks = {name: TaskState.from_dict(task) for name, task in data["tasks"].items()}
        return cls(data["state"], data["next"], data["step"], tasks)

    def waiting(self) -> list[tuple[TaskState, Request]]:
        """Return what waits for an answer here and in the flows inside."""
        found = []
        for task in self.tasks.values():
            found += [(task, request) for request in task.waits]
            if task.inner is not None:
                found += task.inner.waiting()
        return found


@attrs.define(eq=False)
class Snapshot:
    """
    A flow that was saved.

    Args:
        flow: Its name.
        begins: A digest of the state that it began with.
        frame: Where it stands.
        status: "running", "pending" or "done".
        usage: The tokens of its agents so far.
    """

    flow: str
    begins: str
    frame: Frame
    status: str = "running"
    usage: Usage = Usage()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "format": _FORMAT,
            "flow": self.flow,
            "begins": self.begins,
            "status": self.status,
            "usage": self.usage.to_dict(),
            "frame": self.frame.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Any, flow: str) -> Snapshot:
        """
        Make one from what `to_dict` gave.

        Raises:
            ConfigurationError: It belongs to another flow.
            StoreError: It is none.
        """
        try:
            if data["format"] != _FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            name, frame, usage = data["flow"], Frame.from_dict(data["frame"]), Usage(**data["usage"])
            found = cls(name, data["begins"], frame, data["status"], usage)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"this is no checkpoint of a flow: {describe_error(error)}") from error
        if name != flow:
            raise ConfigurationError(f"the checkpoint belongs to the flow {name!r}, not to {flow!r}")
        return found


class Checkpoints:
    """
    The checkpoints of one run of a flow, in a store.

    Args:
        store: A store that keeps states.
        id: The id that the caller gave.
        flow: The flow's name.
    """

    def __init__(self, store: Any, id: str, flow: str) -> None:  # noqa: A002
        self.id = id
        self._store = store
        self._flow = flow
        self._key = f"flow:{id}"
        self._version = 0

    def load(self) -> Snapshot | None:
        """
        Return what was saved last, or None.

        Raises:
            StoreError: It cannot be read.
            ConfigurationError: It belongs to another flow.
        """
        data, self._version = self._call("read", lambda: self._store.load_state(self._key))
        return None if data is None else Snapshot.from_dict(data, self._flow)

    def save(self, snapshot: Snapshot) -> None:
        """
        Save where the flow stands.

        Raises:
            StoreConflictError: Another process has gone on with it.
            StoreError: It cannot be written.
        """
        data = snapshot.to_dict()
        self._version = self._call(
            "save", lambda: self._store.put_state(self._key, data, expected=self._version)
        )

    def _call(self, what: str, function: Any) -> Any:
        try:
            return function()
        except ToolnexusError:
            raise
        except Exception as error:
            raise StoreError(
                f"cannot {what} the checkpoint of {self.id!r}: {describe_error(error)}"
            ) from error
