"""The items of the Responses API: one that comes in, and the transcript as those that go out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolnexus.chunks import mend_surrogates, parse_arguments
from toolnexus.content import split_data_url
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message
from toolnexus.wire.base import ModelRequest
from toolnexus.wire.names import nine_characters

__all__ = ["CALLS", "Item", "outgoing"]

#: The kinds of item that are a call of a tool of ours, each with the field of its arguments.
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


class Item:
    """One item of an answer while it comes: what is known of it, and its pieces by their place."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.data: dict[str, Any] = {}
        self.texts: dict[int, list[str]] = {}
        self.refusals: dict[int, list[str]] = {}
        self.thoughts: dict[int, list[str]] = {}
        #: Which of its two forms the reasoning is taken from: the other one says the same.
        self.thought_kind: str | None = None
        self.arguments: list[str] = []
        self.complete = False

    @property
    def kind(self) -> str:
        return str(self.data.get("type") or "")

    def take(self, data: dict[str, Any]) -> None:
        if not isinstance(data.get("type", ""), str):
            raise TypeError(f"an item's type is {data['type']!r}")
        self.data = dict(data)

    def text(self) -> str:
        return "".join("".join(self.texts[place]) for place in sorted(self.texts))

    def refusal(self) -> str:
        return "".join("".join(self.refusals[place]) for place in sorted(self.refusals))

    def kept(self) -> dict[str, Any]:
        """Return the item to send back; one that never ended has what the deltas brought."""
        field = CALLS.get(self.kind)
        if field is not None:
            return {**self.data, field: "".join(self.arguments)}
        if self.kind == "message" and not self.complete:
            content: list[dict[str, Any]] = []
            if self.texts:
                content.append({"type": "output_text", "text": self.text(), "annotations": []})
            if self.refusals:
                content.append({"type": "refusal", "refusal": self.refusal()})
            return {**self.data, "content": content}
        return self.data


# -- going out -------------------------------------------------------------------------------------


def outgoing(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the transcript as input items."""
    items: list[dict[str, Any]] = []
    custom: set[str] = set()  # the ids of calls whose results have a form of their own
    for message in request.messages:
        if message["role"] == "assistant":
            own = _assistant(message, request)
            custom |= {item["call_id"] for item in own if item.get("type") == "custom_tool_call"}
            items += own
        elif message["role"] == "tool":
            id_ = _call_id(message["tool_call_id"])
            kind = "custom_tool_call_output" if id_ in custom else "function_call_output"
            output = message.get("content")
            output = _parts(output) if isinstance(output, list) else output or ""
            items.append({"type": kind, "call_id": id_, "output": output})
        elif message.get("content"):
            content = message["content"]
            content = _parts(content) if isinstance(content, list) else content
            items.append({"role": "user", "content": content})
    return items


def _call_id(id: str) -> str:  # noqa: A002
    """Return the id under which a call is sent; another provider's may be longer than this API takes."""
    return id if len(id) <= 64 else f"call_{nine_characters(id)}"


def _assistant(message: Message, request: ModelRequest) -> list[dict[str, Any]]:
    own = ((message.get(PROVIDER_KEY) or {}).get("responses") or {}).get("items")
    calls = message.get("tool_calls") or ()
    if own and _same(own, message, calls):
        return _sendable(own, calls, request)
    items: list[dict[str, Any]] = []
    content = message.get("content") or message.get("refusal")
    if isinstance(content, list):
        content = "\n".join(part.get("text") or "" for part in content if part.get("type") == "text")
    if content:
        items.append({"role": "assistant", "content": content})
    return items + [
        {"type": "function_call", "call_id": _call_id(call["id"]), **call["function"]} for call in calls
    ]


def _same(items: list[dict[str, Any]], message: Message, calls: Any) -> bool:
    """Tell whether kept items still say what the message says; somebody may have edited it."""
    parts = [part for item in items if item.get("type") == "message" for part in item.get("content") or ()]
    text = mend_surrogates("".join(part["text"] for part in parts if isinstance(part.get("text"), str)))
    kept = [item for item in items if item.get("type") in CALLS]
    if text != (message.get("content") or "") or len(kept) != len(calls):
        return False
    return all(
        item.get("name") == call["function"]["name"]
        and _arguments(item) == (parse_arguments(call["function"]["arguments"])[0] or {})
        for item, call in zip(kept, calls, strict=True)
    )


def _arguments(item: dict[str, Any]) -> dict[str, Any]:
    return parse_arguments(item.get(CALLS[item["type"]]) or "")[0] or {}


def _sendable(items: list[dict[str, Any]], calls: Any, request: ModelRequest) -> list[dict[str, Any]]:
    """
    Return kept items as they can be sent back.

    Nothing is stored at the endpoint: reasoning that does not come along cannot be found there, and
    the items that came after it are refused under their own ids.
    """
    echo = request.echo_reasoning != "never" and request.quirks.echo_reasoning
    ids = iter(call["id"] for call in calls)
    sent = [
        _with_call_id(item, ids) for item in items if item.get("type") != "reasoning" or _is_whole(item, echo)
    ]
    if len(sent) == len(items):
        return sent
    ours = (*CALLS, "message")
    return [{k: v for k, v in item.items() if k != "id" or item.get("type") not in ours} for item in sent]


def _is_whole(reasoning: dict[str, Any], echo: bool) -> bool:
    """Tell whether an endpoint that stored nothing can take a piece of reasoning back."""
    return echo and bool(reasoning.get("encrypted_content") or reasoning.get("content"))


def _with_call_id(item: dict[str, Any], ids: Iterator[str]) -> dict[str, Any]:
    """Return an item, a call under the id that its result has, and with arguments that are JSON."""
    if item.get("type") not in CALLS:
        return item
    sent = {**item, "call_id": _call_id(next(ids))}
    if sent["type"] == "function_call" and parse_arguments(sent.get("arguments") or "")[0] is None:
        sent["arguments"] = "{}"
    return sent


def _parts(parts: list[Any]) -> list[dict[str, Any]]:
    """Translate neutral parts; a part of another kind goes as it is, since it was written for this API."""
    out: list[dict[str, Any]] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            out.append({"type": "input_text", "text": part["text"]})
        elif kind == "image_url":
            image = part["image_url"]
            detail = image.get("detail") or "auto"
            out.append({"type": "input_image", "image_url": image["url"], "detail": detail})
        elif kind == "file":
            out.append(_file(part["file"]))
        else:
            out.append(part)
    return out


def _file(file: dict[str, Any]) -> dict[str, Any]:
    url = file.get("file_data") or ""
    if not url.startswith("data:"):
        return {"type": "input_file", "file_url": url} if url else {"type": "input_file", **file}
    if split_data_url(url)[0].startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_file", "filename": file.get("filename") or "file", "file_data": url}
