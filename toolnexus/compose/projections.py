"""
Views of events that there are already: a list, a stream that is read, a recording.

None of them starts any work. They take any iterable of events and go through it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from toolnexus.compose.namespaces import NamespaceSummary, lifecycle, summarize_namespaces
from toolnexus.events import (
    AttemptFailed,
    Done,
    Error,
    Event,
    Message,
    Origin,
    Text,
    Thinking,
    ToolCallDelta,
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
            _forget(open_, event)
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


def _forget(open_: dict[tuple[Any, ...], _Open], event: AttemptFailed) -> None:
    """Drop the message of a try that failed; where its id is not said, those that are open."""
    run_id, message_id = event.run_id, event.message_id
    for key in [k for k in open_ if k[0] == run_id and event.concerns(k[1])]:
        if message_id in ("", key[2]):
            del open_[key]


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
