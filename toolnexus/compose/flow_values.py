"""What nodes of a flow return and raise, and what a flow gives back."""

from __future__ import annotations

import math
from typing import Any

import attrs

from toolnexus.errors import ToolnexusError
from toolnexus.results import RunResult
from toolnexus.suspension import Request
from toolnexus.values import Value

__all__ = [
    "End",
    "FlowError",
    "FlowResult",
    "Goto",
    "NodeError",
    "NodeTimeoutError",
    "PauseFlow",
    "StepLimitError",
    "changed",
    "last_text",
    "merged",
    "plain",
]

#: How deep a state may be nested.
_MAX_DEPTH = 100


@attrs.frozen(eq=False, repr=False)
class Goto(Value):
    """
    Return this from a node to say which node comes next, whatever the edges say.

    Args:
        node: The next node's name.
        update: What the node changes in the state.
    """

    node: str
    update: dict[str, Any] | None = None


@attrs.frozen(eq=False, repr=False)
class End(Value):
    """
    Return this from a node, or name it as the target of an edge, to end the flow.

    Args:
        update: What the node changes in the state.
    """

    update: dict[str, Any] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FlowResult(RunResult):
    """
    What a flow reached. ``messages`` are those of the state, ``usage`` is that of all its agents.

    Args:
        state: The state.
        steps: How many steps were done.
        checkpoint: What `Flow.resume` needs to go on without a store, for one that waits; plain JSON.
    """

    state: dict[str, Any] = attrs.field(factory=dict)
    steps: int = 0
    checkpoint: dict[str, Any] | None = attrs.field(default=None, repr=False)


class FlowError(ToolnexusError):
    """
    A flow went wrong.

    Attributes:
        node: The node that is to blame, or "".
        namespace: The path of the flow that the node belongs to.
    """

    kind = "flow"

    def __init__(
        self,
        message: str = "",
        *,
        node: str = "",
        namespace: tuple[str, ...] = (),
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.node = node
        self.namespace = namespace


class NodeError(FlowError):
    """A node of a flow raised, or returned what no node may return; the cause is what it raised."""

    kind = "node"


class NodeTimeoutError(NodeError, TimeoutError):
    """A node of a flow took longer than its timeout."""

    kind = "timeout"


class StepLimitError(FlowError):
    """A flow would take more steps than its ``max_steps``."""

    kind = "step_limit"


class PauseFlow(BaseException):
    """
    Leaves a flow that waits for a person.

    It is no `Exception`, so that a node's own ``except Exception`` lets it pass.

    Args:
        requests: What is asked.
    """

    def __init__(self, requests: list[Request]) -> None:
        super().__init__("the flow waits for a person")
        self.requests = requests


def plain(value: Any, path: str = "state", depth: int = 0) -> Any:
    """
    Return a copy of a value that is plain JSON; tuples become lists.

    Raises:
        TypeError: Something in it is not; the message says where.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if depth > _MAX_DEPTH:
        raise TypeError(f"{path[:80]} is nested too deeply")
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    what = "a key that is no text" if isinstance(value, dict) else f"{value!r:.60}"
    raise TypeError(f"{path} must be plain JSON; it holds {what}")


def merged(state: dict[str, Any], updates: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """
    Return a state with the updates of the nodes of a step; ``messages`` are appended, all else is replaced.

    Raises:
        FlowError: Two nodes have changed the same key.
    """
    new = dict(state)
    owners: dict[str, str] = {}
    for node, update in updates.items():
        for key, value in update.items():
            if key == "messages":
                new[key] = [*(new.get(key) or []), *value]
            elif key in owners:
                raise FlowError(f"{owners[key]} and {node} both change {key!r} in one step", node=node)
            else:
                owners[key], new[key] = node, value
    return new


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the update that leads from one state to another; of ``messages`` those that were added."""
    update = {key: value for key, value in after.items() if key not in before or before[key] != value}
    if "messages" in update:
        update["messages"] = after["messages"][len(before.get("messages") or []) :]
    return update


def last_text(messages: list[Any]) -> str:
    """Return the text of the last answer among messages."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
