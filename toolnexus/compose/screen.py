"""What a run looks like so far, as Markdown: what every display draws from."""

from __future__ import annotations

import html
import json
from typing import Any

from toolnexus.events import (
    AttemptFailed,
    Done,
    Error,
    Event,
    Pending,
    Text,
    Thinking,
    ToolCall,
    ToolFinished,
    ToolOutput,
    of_call,
)

__all__ = ["Screen"]

#: The most characters of a tool's arguments or output that are shown.
_SHOWN = 2000


class Screen:
    """Takes events and gives the picture of the run."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self.over = False

    def take(self, event: Event) -> None:
        """Take an event into the picture."""
        if of_call(event):
            self._take_inner(event)
        elif isinstance(event, Text):
            self._running("text", event)
        elif isinstance(event, Thinking):
            self._running("thinking", event)
        elif isinstance(event, ToolCall):
            self._add("tool", event, id=event.id, name=event.name, args=event.args, output="")
        elif isinstance(event, ToolOutput):
            self._tool(event)["output"] += event.delta
        elif isinstance(event, ToolFinished):
            self._tool(event).update(output=event.output, done=True, is_error=event.is_error)
        elif isinstance(event, Pending):
            self._add("pending", event, request=event.request)
        elif isinstance(event, AttemptFailed):
            self._take_back(event)
        elif isinstance(event, (Done, Error)):
            self.over = True
            self._add(event.type, event, last=event)

    def _add(self, kind: str, event: Event, **fields: Any) -> dict[str, Any]:
        block: dict[str, Any] = {"kind": kind, "namespace": event.namespace, **fields}
        self._blocks.append(block)
        return block

    def _last(self, event: Event) -> dict[str, Any] | None:
        """Return the last block of the namespace of an event: what several agents say is not mixed up."""
        return next((b for b in reversed(self._blocks) if b["namespace"] == event.namespace), None)

    def _take_inner(self, event: Event) -> None:
        """Show what an agent says that a tool runs as that tool's output: it is no part of the answer."""
        tools = [
            b for b in self._blocks if b["kind"] == "tool" and f"{b['name']}:{b['id']}" in event.namespace
        ]
        if not tools:
            return
        if isinstance(event, (Text, ToolOutput)):
            tools[-1]["output"] += event.delta
        elif isinstance(event, ToolCall):
            tools[-1]["output"] += f"\n[{event.name}]\n"
        elif isinstance(event, AttemptFailed):
            tools[-1]["output"] = tools[-1]["output"].removesuffix(event.text)

    def _running(self, kind: str, event: Text | Thinking) -> None:
        block = self._last(event)
        if block is None or block["kind"] != kind:
            block = self._add(kind, event, parts=[])
        block["parts"].append(event.delta)

    def _tool(self, event: ToolOutput | ToolFinished) -> dict[str, Any]:
        for block in self._blocks[::-1]:
            if (block["kind"], block.get("id"), block["namespace"]) == ("tool", event.id, event.namespace):
                return block
        return self._add("tool", event, id=event.id, name=event.name, args=None, output="")

    def _take_back(self, event: AttemptFailed) -> None:
        """Take the text of a try that failed out of the picture again."""
        text = event.text
        for block in [b for b in reversed(self._blocks) if event.concerns(b["namespace"])]:
            if block["kind"] not in ("text", "thinking"):
                return
            if block["kind"] == "text":
                joined = "".join(block["parts"])
                if not text or not joined.endswith(text[-len(joined) :]):
                    return
                if len(joined) > len(text):
                    block["parts"] = [joined[: -len(text)]]
                    return
                text = text[: -len(joined)]
            self._blocks = [other for other in self._blocks if other is not block]

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join("".join(b["parts"]) for b in self._blocks if b["kind"] == "text")

    def markdown(self, *, collapsible: bool = True) -> str:
        """
        Return the picture as Markdown.

        Args:
            collapsible: Whether tool calls are HTML that folds; else one line each.
        """
        speakers = {block["namespace"] for block in self._blocks if block["kind"] == "text"}
        parts = [_drawn(block, collapsible) for block in self._blocks]
        if len(speakers) > 1:
            parts = [_signed(part, block) for part, block in zip(parts, self._blocks, strict=True)]
        return "\n\n".join(part for part in parts if part)

    def ending(self) -> str:
        """Return how the run ended, or nothing while it goes on."""
        return _drawn(self._blocks[-1], False) if self.over else ""


def _signed(part: str, block: dict[str, Any]) -> str:
    """Put before a text who says it."""
    if block["kind"] != "text" or not block["namespace"]:
        return part
    return f"**{_escaped('/'.join(block['namespace']))}**\n\n{part}"


def _drawn(block: dict[str, Any], collapsible: bool) -> str:
    kind = block["kind"]
    if kind == "text":
        return "".join(block["parts"])
    if kind == "thinking":
        return _folded("thinking", "".join(block["parts"]), collapsible) if collapsible else ""
    if kind == "tool":
        return _tool(block, collapsible)
    if kind == "pending":
        return f"**{_escaped(block['request'].prompt)}**"
    if kind == "done":
        return _ending(block["last"])
    return f"**failed:** {_escaped(block['last'].error.describe())}"


def _tool(block: dict[str, Any], collapsible: bool) -> str:
    args = "" if block["args"] is None else json.dumps(block["args"], ensure_ascii=False, default=str)
    state = "failed" if block.get("is_error") else "" if block.get("done") else "running"
    title = f"{block['name']}({args[:120]}){' · ' + state if state else ''}"
    if collapsible:
        return _folded(title, f"{args}\n\n{block['output']}", True)
    return f"`{title.replace('`', chr(39))}`"


def _folded(title: str, body: str, collapsible: bool) -> str:
    shown = body if len(body) <= _SHOWN else f"{body[: _SHOWN // 2]}\n…\n{body[-_SHOWN // 2 :]}"
    return f"<details><summary>{_escaped(title)}</summary><pre>{_escaped(shown)}</pre></details>"


def _ending(event: Done) -> str:
    result = event.result
    usage = result.usage
    parts = [f"{usage.prompt_tokens}+{usage.completion_tokens} tokens"]
    if result.status != "done":
        parts.insert(0, result.status + (f" ({result.limit})" if result.limit else ""))
    return f"*{' · '.join(parts)}*"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
