"""What became of the namespaces that events come from: nested flows, agents, producers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from toolnexus.events import Done, Error, Event, Lifecycle, Origin, Pending, Task, Update, Value
from toolnexus.values import Value as _Base
from toolnexus.wording import error_text

__all__ = ["NamespaceSummary", "lifecycle", "summarize_namespaces"]

_Path = tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NamespaceSummary(_Base):
    """
    What happened in one namespace: a nested flow, an agent, a producer of a mux.

    Args:
        namespace: Its path.
        name: The last part of the path, without the id of what it was started for.
        status: "running", "completed", "failed", "interrupted" or "cancelled".
        trigger: The id of the tool call or task that it was started for, or None.
        error: What went wrong, as text, or None.
        value: The last whole state that it reported, or None.
        updates: What its nodes changed, in order.
        tasks: Its tasks, in order.
        children: What is nested in it.
    """

    namespace: _Path
    name: str
    status: str = "running"
    trigger: str | None = None
    error: str | None = None
    value: Any = None
    updates: list[dict[str, Any]] = attrs.field(factory=list)
    tasks: list[Task] = attrs.field(factory=list)
    children: list[NamespaceSummary] = attrs.field(factory=list)

    def walk(self) -> Iterator[NamespaceSummary]:
        """Yield this one and all that is nested in it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


_ENDS_OF_TASKS = {
    "finish": "completed",
    "error": "failed",
    "timeout": "failed",
    "interrupt": "interrupted",
}


class _Place:
    """A namespace in the making."""

    def __init__(self, path: _Path) -> None:
        self.path = path
        self.origin = Origin("", path)
        self.children: dict[str, _Place] = {}
        self.tasks: list[Task] = []
        self.updates: list[dict[str, Any]] = []
        self.value: Any = None
        self.status: str | None = None  # from a Lifecycle or a terminal item of its own
        self.error: str | None = None
        self.trigger: str | None = None

    def take(self, event: Event) -> None:
        self.origin = event.origin
        if isinstance(event, Task):
            self.tasks.append(event)
        elif isinstance(event, Update):
            self.updates.append(event.update)
        elif isinstance(event, Value):
            self.value = event.value
        elif isinstance(event, Lifecycle):
            self.status = "running" if event.status == "started" else event.status
            self.error = event.error
            self.trigger = event.trigger_call_id or self.trigger
        elif isinstance(event, Pending):
            self.status = "interrupted"
        elif isinstance(event, Done):
            self.status = "interrupted" if event.result.status == "pending" else "completed"
        elif isinstance(event, Error):
            error = event.peek()
            self.status = "cancelled" if error.kind == "cancelled" else "failed"
            self.error = error_text(error)
        elif self.status == "interrupted":
            self.status = "running"  # somebody answered


def summarize_namespaces(events: Iterable[Event], namespace: Iterable[str] = ()) -> list[NamespaceSummary]:
    """
    Sum up what happened in the namespaces right below one.

    How one ended is what the task that it ran for says, else its own `Lifecycle` or terminal item. One whose
    end was not seen is "running".

    Args:
        events: The events, with the channels "tasks" and "lifecycle".
        namespace: The path below which to look; ``()`` for the root.

    Returns:
        The summaries in the order in which they began, each with those nested in it.

    >>> from toolnexus import Lifecycle
    >>> from toolnexus.events import Origin
    >>> inner = Origin(namespace=("research",))
    >>> [(one.name, one.status) for one in summarize_namespaces([Lifecycle("started", origin=inner)])]
    [('research', 'running')]
    """
    root = _places(events, tuple(namespace))
    return [_summary(child, root) for child in root.children.values()]


def _places(events: Iterable[Event], scope: _Path) -> _Place:
    root = _Place(scope)
    for event in events:
        path = event.namespace
        if path[: len(scope)] != scope:
            continue
        place = root
        for depth in range(len(scope), len(path)):
            place = place.children.setdefault(path[depth], _Place(path[: depth + 1]))
        place.take(event)
    return root


def _summary(place: _Place, parent: _Place) -> NamespaceSummary:
    name, _, trigger = place.path[-1].partition(":")
    task = _task_of(place, parent)
    status, error = place.status or "running", place.error
    if task is not None and task.kind in _ENDS_OF_TASKS:
        if status != "cancelled":
            status = _ENDS_OF_TASKS[task.kind]
        error = str(task.payload) if status == "failed" and task.payload is not None else error
    return NamespaceSummary(
        namespace=place.path,
        name=name,
        status=status,
        trigger=place.trigger or trigger or (task.task_id if task is not None else None),
        error=error if status in ("failed", "cancelled") else None,
        value=place.value,
        updates=place.updates,
        tasks=place.tasks,
        children=[_summary(child, place) for child in place.children.values()],
    )


def _task_of(place: _Place, parent: _Place) -> Task | None:
    """Return the last that is known of the parent's task that a namespace belongs to."""
    segment = place.path[-1]
    name, _, trigger = segment.partition(":")
    found = None
    for task in parent.tasks:
        if task.task_id in (segment, trigger) if trigger else task.node == name:
            found = task
    return found


def lifecycle(events: Iterable[Event], namespace: Iterable[str] = ()) -> list[Lifecycle]:
    """
    Return when the namespaces below one began and ended, as `Lifecycle` events.

    Each has one of the status "started", and one of the status it ended with unless it still runs. A parent
    comes before its children.

    Args:
        events: The events, with the channels "tasks" and "lifecycle".
        namespace: The path below which to look; ``()`` for the root.
    """
    found = []
    for summary in summarize_namespaces(events, namespace):
        for one in summary.walk():
            origin = Origin(namespace=one.namespace)
            found.append(Lifecycle("started", one.name, one.trigger, origin=origin))
            if one.status != "running":
                found.append(Lifecycle(one.status, one.name, one.trigger, one.error, origin=origin))
    return found
