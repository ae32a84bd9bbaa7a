"""
Views of events that there are already: a list, a stream that is read, a recording.

None of them starts any work. They take any iterable of events and go through it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from toolnexus.events import (
    AttemptFailed,
    Done,
    Error,
    Event,
    Lifecycle,
    Message,
    Origin,
    Pending,
    Task,
    Text,
    Thinking,
    ToolCallDelta,
    Update,
    Value,
    wanted,
)
from toolnexus.values import Value as _Base

__all__ = [
    "MessageView",
    "NamespaceSummary",
    "final_answer",
    "group_messages",
    "lifecycle",
    "select",
    "summarize_namespaces",
]

_Path = tuple[str, ...]


def select(
    events: Iterable[Event],
    channels: Iterable[str] | str | None = None,
    namespace: Iterable[str] = (),
    *,
    subtree: bool = False,
) -> Iterator[Event]:
    """
    Yield the events of some channels and of one namespace, in their order.

    Unlike ``stream(channels=...)``, which never leaves out failures and the end, this yields nothing else.

    Args:
        events: The events.
        channels: Names of channels; None for all.
        namespace: The path that the events come from; ``()`` for the root.
        subtree: Whether to take those from below it, too.

    Raises:
        ConfigurationError: There is no such channel.

    >>> from toolnexus import Text, Custom
    >>> list(select([Text("a"), Custom(1), Text("b")], "custom"))
    [Custom(payload=1)]
    """
    chosen = None
    if channels is not None:
        chosen = {channels} if isinstance(channels, str) else set(channels)
        wanted(chosen)  # raises for a channel that there is not
    path = (namespace,) if isinstance(namespace, str) else tuple(namespace)
    return _selected(events, chosen, path, subtree)


def _selected(
    events: Iterable[Event], channels: set[str] | None, path: _Path, subtree: bool
) -> Iterator[Event]:
    for event in events:
        if channels is not None and event.channel not in channels:
            continue
        inside = event.namespace[: len(path)] if subtree else event.namespace
        if inside == path:
            yield event


# -- messages --------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MessageView(_Base):
    """
    One message of a model, put together from its pieces.

    Args:
        message_id: Its id.
        run_id: The run that it belongs to.
        namespace: The path of the agent that it comes from.
        step: The turn, from 1.
        text: The text; that of the whole message where it came.
        thinking: The reasoning.
        message: The whole message, or None where only pieces came.
        complete: Whether it is known to be whole.
    """

    message_id: str
    run_id: str
    namespace: _Path
    step: int
    text: str
    thinking: str
    message: dict[str, Any] | None
    complete: bool


class _Open:
    """A message in the making."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.message: dict[str, Any] | None = None
        self.complete = False

    def view(self) -> MessageView:
        origin, message = self.origin, self.message
        return MessageView(
            message_id=origin.message_id,
            run_id=origin.run_id,
            namespace=origin.namespace,
            step=origin.step,
            text="".join(self.text) if message is None else _text_of(message),
            thinking="".join(self.thinking),
            message=message,
            complete=self.complete,
        )


def group_messages(events: Iterable[Event]) -> Iterator[MessageView]:
    """
    Put the messages of models together from their pieces.

    A whole `Message` and its pieces make one view, and the message counts. Tries that failed are left out.
    A view is yielded when its message is over; those that never got to an end come last, with
    ``complete=False``.

    Args:
        events: The events, of any number of runs at once. A `Message` comes with ``channels=["messages"]``; a
            text without one counts as complete once a tool call of the turn, or the end, has come.

    >>> from toolnexus import Text
    >>> [(view.text, view.complete) for view in group_messages([Text("Hel"), Text("lo")])]
    [('Hello', False)]
    """
    open_: dict[tuple[Any, ...], _Open] = {}
    done: set[tuple[Any, ...]] = set()
    for event in events:
        origin = event.origin
        key = (origin.run_id, origin.namespace, origin.message_id)
        if isinstance(event, (Text, Thinking, ToolCallDelta)):
            if key not in done or not origin.message_id:
                _add(open_.setdefault(key, _Open(origin)), event)
        elif isinstance(event, Message):
            if event.message.get("role", "assistant") != "assistant" or key in done:
                continue
            group = open_.pop(key, None) or _Open(origin)
            group.message, group.complete = event.message, event.complete
            if origin.message_id:
                done.add(key)
            yield group.view()
        elif isinstance(event, AttemptFailed):
            _forget(open_, key)
        elif event.type in ("tool_call", "usage", "done", "pending"):
            for ended in [k for k in open_ if k[:2] == key[:2]]:
                group = open_.pop(ended)
                group.complete = True
                done.add(ended)
                yield group.view()
    for group in open_.values():
        yield group.view()


def _add(group: _Open, event: Event) -> None:
    if isinstance(event, Text):
        group.text.append(event.delta)
    elif isinstance(event, Thinking):
        group.thinking.append(event.delta)


def _forget(open_: dict[tuple[Any, ...], _Open], key: tuple[Any, ...]) -> None:
    """Drop the message of a try that failed; where its id is not said, those that are open."""
    for failed in [k for k in open_ if k == key or (not key[2] and k[:2] == key[:2])]:
        del open_[failed]


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(str(part.get("text") or "") for part in parts)


def final_answer(events: Iterable[Event], namespace: Iterable[str] = ()) -> str | None:
    """
    Return the answer: the text of the last message that asks for no tool.

    Args:
        events: The events of one run.
        namespace: The path of the agent whose answer it is; ``()`` for the root.

    Returns:
        The text, or None where there is no complete answer: the run failed, waits, or was not read to
        its end.

    >>> from toolnexus import Done, RunResult, Text, Usage, UsageReport
    >>> final_answer([Text("Hel"), Text("lo"), UsageReport(Usage()), Done(RunResult(text="Hello"))])
    'Hello'
    """
    path = tuple(namespace)
    asked = _Asked(path)
    answer: str | None = None
    for view in group_messages(asked.watched(events)):
        if view.namespace != path:
            continue
        calls = asked.called or bool(view.message and view.message.get("tool_calls"))
        answer = view.text if view.complete and not calls else None
    if asked.end is not None:
        return _answer_of(asked.end)
    return answer


class _Asked:
    """Looks at events on their way: whether the last one was a tool call, and how it all ended."""

    def __init__(self, path: _Path) -> None:
        self.called = False
        self.end: Event | None = None
        self._path = path

    def watched(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if event.namespace == self._path:
                self.called = event.type in ("tool_call", "pending")
                if isinstance(event, (Done, Error)):
                    self.end = event
            yield event


def _answer_of(end: Event) -> str | None:
    if isinstance(end, Done) and end.result.status == "done":
        return end.result.text
    return None


# -- namespaces ------------------------------------------------------------------------------


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
            self.error = str(error)
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
