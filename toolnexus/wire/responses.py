"""The OpenAI Responses dialect, with the variations of those who speak it."""

from __future__ import annotations

import json
from typing import Any

from toolnexus.chunks import Chunk, mend_surrogates
from toolnexus.errors import APIStatusError, EmptyResponseError, ToolnexusError
from toolnexus.merge import ToolCallMerger
from toolnexus.results import Usage
from toolnexus.tools.adapt import plain
from toolnexus.tools.base import Tool
from toolnexus.wire.base import BARE, Decoder, ModelRequest, count
from toolnexus.wire.items import CALLS, Item, outgoing
from toolnexus.wire.schemas import answer_schema, loosened
from toolnexus.wire.urls import join

__all__ = ["Responses"]

_ENCRYPTED = "reasoning.encrypted_content"

#: The kinds of event that end an answer.
_ENDS = {f"response.{word}" for word in ("completed", "done", "incomplete", "failed", "cancelled")}


class Responses:
    """``POST {base_url}/responses``; nothing is stored at the endpoint."""

    name = "responses"

    def endpoint(self, base_url: str, request: ModelRequest) -> str:
        """Return the URL of a model call."""
        return join(base_url, "/responses")

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that the provider wants."""
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def tools(self, tools: list[Tool]) -> list[dict[str, Any]]:
        """Return the declarations of the tools; without ``strict`` the endpoint would make them strict."""
        return [
            {
                "type": "function",
                "name": t.name,
                "description": t.description,
                "parameters": plain(t.input_schema),
                "strict": False,
            }
            for t in tools
        ]

    def output_format(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the keys of a body that ask for an answer of a schema."""
        wanted = {"type": "json_schema", "name": name, **answer_schema(schema)}
        return {"text": {"format": wanted}}

    def choice(self, choice: Any) -> dict[str, Any]:
        """Return the keys of a body that say which tool the model must call."""
        if isinstance(choice, dict):
            name = (choice.get("function") or choice).get("name")
            return {"tool_choice": {"type": "function", "name": name} if name else choice}
        return {"tool_choice": "required" if choice == "any" else choice}

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a model call."""
        body: dict[str, Any] = {"model": request.model, "input": outgoing(request), "store": False}
        if request.quirks.encrypted_reasoning:
            body["include"] = [_ENCRYPTED]
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = loosened(request.tools) if request.quirks.plain_schemas else request.tools
            body["tool_choice"] = "auto"
        if request.stream:
            body["stream"] = True
        return body

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with the names that this API has for parameters of chat completions."""
        for key in ("max_completion_tokens", "max_tokens"):
            if key in body:
                body.setdefault("max_output_tokens", body.pop(key))
        effort = body.pop("reasoning_effort", None)
        if effort is not None:
            body["reasoning"] = {"effort": effort, **(body.get("reasoning") or {})}
        return body

    def decoder(self, *, skip_bad_events: bool = False) -> ResponsesDecoder:
        """Return what reads one answer."""
        return ResponsesDecoder(skip_bad_events=skip_bad_events)


class ResponsesDecoder(Decoder):
    """Reads one response, streamed or whole; keeps its items as they came, to send them back."""

    def __init__(self, *, skip_bad_events: bool = False) -> None:
        super().__init__(skip_bad_events=skip_bad_events)
        self._items: dict[int, Item] = {}
        self._events = {
            "response.output_text.delta": self._text_delta,
            "response.refusal.delta": self._refusal_delta,
            "response.reasoning_summary_text.delta": self._thought_delta,
            "response.reasoning_text.delta": self._thought_delta,
            "response.function_call_arguments.delta": self._arguments_delta,
            "response.custom_tool_call_input.delta": self._arguments_delta,
            "response.output_text.done": self._part_done,
            "response.refusal.done": self._part_done,
            "response.reasoning_summary_text.done": self._thought_done,
            "response.reasoning_text.done": self._thought_done,
            "response.function_call_arguments.done": self._arguments_done,
            "response.custom_tool_call_input.done": self._arguments_done,
            "response.output_item.added": self._item_event,
            "response.output_item.done": self._item_event,
        }

    @property
    def finished(self) -> bool:
        """Whether the answer said why it ended; an error may be followed by one that says more."""
        return self._late is not None or super().finished

    def feed(self, name: str, data: str) -> list[Chunk]:
        """Take in one event; an ``error`` waits for the ``response.failed`` that often follows it."""
        try:
            return super().feed(name, data)
        except APIStatusError as error:
            body = error.body if isinstance(error.body, dict) else {}
            if self._late is not None or name == BARE or body.get("type") != "error":
                raise
            self._late = error
            return []

    def payload(self, name: str, payload: dict[str, Any]) -> list[Chunk]:
        """Take in one decoded event; what it is stands in the JSON, not in the event's name."""
        if self.whole(payload):
            return self._response(payload)
        kind = payload.get("type") or name
        response = payload.get("response")
        if kind in _ENDS:
            self.ended = True
            status = str(kind).removeprefix("response.").replace("done", "completed")
            return self._response({"status": status, **(response or {})})
        if isinstance(response, dict):
            self._head_of(response)
            return []
        take = self._events.get(str(kind))
        return take(payload) if take is not None else []

    def whole(self, payload: dict[str, Any]) -> bool:
        """Tell whether a document is a whole answer."""
        return isinstance(payload.get("output"), list)

    # -- the answer as a whole ---------------------------------------------------------------

    def _head_of(self, response: dict[str, Any]) -> None:
        self.builder.model = self.builder.model or str(response.get("model") or "")
        self.builder.id = self.builder.id or str(response.get("id") or "")

    def _response(self, response: dict[str, Any]) -> list[Chunk]:
        """Take in the end of a stream, or a whole answer: the items that did not come yet count, too."""
        self._head_of(response)
        chunks: list[Chunk] = []
        for index, data in enumerate(response.get("output") or ()):
            if not any(_same_item(item, index, data) for item in self._items.values()):
                chunks += self._item_done(self._new(index), data)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        status = response.get("status")
        if status not in ("in_progress", "queued", None):
            self.builder.raw_finish = str(reason if status == "incomplete" and reason else status)
        usage = response.get("usage")
        if isinstance(usage, dict):
            self.builder.usage = _usage(usage)
            chunks.append(Chunk("usage", usage=self.builder.usage))
        return chunks

    def finish(self, failure: ToolnexusError | None, *, received: int = 0, head: str = "") -> list[Chunk]:
        """Judge how the answer ended; what was said in the end goes before what was said meanwhile."""
        if self._late is None and self.ended:
            self._settle()
            if not self._items and self.builder.raw_finish == "completed":
                raise EmptyResponseError("the answer is complete, and has no item")
        return super().finish(failure, received=received, head=head)

    def _settle(self) -> None:
        """Make text, refusal and calls those of the items."""
        items = self._ordered()
        text = "".join(item.text() for item in items)
        if mend_surrogates(text) != self.builder.joined_text():
            self.builder.correct(text)
        self.builder.refusal = [item.refusal() for item in items]
        calls, taken = ToolCallMerger(), set()
        for item in items:
            if item.kind in CALLS or item.arguments:
                id_ = str(item.data.get("call_id") or item.data.get("id") or "")
                calls.add(
                    item.index, None if id_ in taken else id_, _name(item.data), "".join(item.arguments)
                )
                taken.add(id_)
        self.builder.tools = calls

    def _ordered(self) -> list[Item]:
        return [self._items[index] for index in sorted(self._items)]

    def extra(self) -> dict[str, Any] | None:
        """Return the items as they came, where there is more in them than text."""
        items = [item.kept() for item in self._ordered()]
        return None if all(map(_is_plain, items)) else {"responses": {"items": items}}

    # -- items -------------------------------------------------------------------------------

    def _new(self, index: int) -> Item:
        while index in self._items:
            index += 1
        item = self._items[index] = Item(index)
        self.builder.seen = True
        return item

    def _of(self, payload: dict[str, Any]) -> Item:
        """Return the item that an event is about: by its place, its id, or as the last one."""
        index = payload.get("output_index")
        if isinstance(index, int):
            return self._items.get(index) or self._new(index)
        id_ = payload.get("item_id")
        known = [item for item in self._items.values() if id_ and item.data.get("id") == id_]
        return (known or list(self._items.values()) or [self._new(0)])[-1]

    def _item_event(self, payload: dict[str, Any]) -> list[Chunk]:
        data = payload.get("item") or {}
        index = payload.get("output_index")
        if isinstance(index, int):
            item = self._items.get(index) or self._new(index)
        else:
            known = [i for i in self._items.values() if data.get("id") and i.data.get("id") == data["id"]]
            item = known[0] if known else self._new(len(self._items))
        if payload.get("type") == "response.output_item.added":
            return self._item_added(item, data)
        return self._item_done(item, data)

    def _item_added(self, item: Item, data: dict[str, Any]) -> list[Chunk]:
        item.take(data)
        if item.kind not in CALLS:
            return []
        id_ = data.get("call_id") or data.get("id")
        chunks = self.builder.tool(item.index, str(id_ or "") or None, _name(data), "")
        return chunks + self._whole_arguments(item, data.get(CALLS[item.kind]))

    def _item_done(self, item: Item, data: dict[str, Any]) -> list[Chunk]:
        """Take in an item that is complete; what its deltas said already is not said again."""
        known = item.kind in CALLS and item.data.get("name")
        chunks = [] if known else self._item_added(item, data)
        item.take(data)
        item.complete = True
        if item.kind in CALLS:
            return chunks + self._whole_arguments(item, data.get(CALLS[item.kind]))
        if item.kind == "reasoning":
            for kind, field in (("summary", "summary"), ("text", "content")):
                for place, part in enumerate(data.get(field) or ()):
                    chunks += self._whole_thought(item, kind, place, part.get("text"))
        elif item.kind == "message":
            for place, part in enumerate(data.get("content") or ()):
                chunks += self._whole_part(item, place, part)
        return chunks

    # -- pieces ------------------------------------------------------------------------------

    def _text_delta(self, payload: dict[str, Any]) -> list[Chunk]:
        delta = _delta(payload)
        self._of(payload).texts.setdefault(_place(payload, "content_index"), []).append(delta)
        return self.builder.text(delta)

    def _refusal_delta(self, payload: dict[str, Any]) -> list[Chunk]:
        delta = _delta(payload)
        self._of(payload).refusals.setdefault(_place(payload, "content_index"), []).append(delta)
        self.builder.refusal.append(delta)
        return []

    def _part_done(self, payload: dict[str, Any]) -> list[Chunk]:
        return self._whole_part(self._of(payload), _place(payload, "content_index"), payload)

    def _whole_part(self, item: Item, place: int, part: dict[str, Any]) -> list[Chunk]:
        """Take in a part of a message in its final form, which goes before that of the deltas."""
        if isinstance(part.get("refusal"), str):
            item.refusals[place] = [part["refusal"]]
        if not isinstance(part.get("text"), str):
            return []
        seen = "".join(item.texts.get(place, ()))
        item.texts[place] = [part["text"]]
        return self.builder.text(part["text"][len(seen) :]) if part["text"].startswith(seen) else []

    def _thought_delta(self, payload: dict[str, Any]) -> list[Chunk]:
        item, kind, place = self._of(payload), *_place_of_thought(payload)
        delta = _delta(payload)
        item.thought_kind = item.thought_kind or kind
        if item.thought_kind != kind:
            return []
        item.thoughts.setdefault(place, []).append(delta)
        return self.builder.thinking(delta)

    def _thought_done(self, payload: dict[str, Any]) -> list[Chunk]:
        return self._whole_thought(self._of(payload), *_place_of_thought(payload), payload.get("text"))

    def _whole_thought(self, item: Item, kind: str, place: int, text: Any) -> list[Chunk]:
        if not isinstance(text, str) or (item.thought_kind or kind) != kind:
            return []
        item.thought_kind = kind
        seen = "".join(item.thoughts.get(place, ()))
        item.thoughts[place] = [text]
        return self.builder.thinking(text[len(seen) :]) if text.startswith(seen) else []

    def _arguments_delta(self, payload: dict[str, Any]) -> list[Chunk]:
        item = self._of(payload)
        delta = _delta(payload)
        item.arguments.append(delta)
        return self.builder.tool(item.index, None, None, delta) if delta else []

    def _arguments_done(self, payload: dict[str, Any]) -> list[Chunk]:
        item = self._of(payload)
        if payload.get("name"):
            item.data.setdefault("name", payload["name"])
        return self._whole_arguments(item, payload.get("arguments", payload.get("input")))

    def _whole_arguments(self, item: Item, text: Any) -> list[Chunk]:
        """Take in arguments in their final form; an empty text beside pieces is none."""
        seen = "".join(item.arguments)
        if text and not isinstance(text, str):
            text = json.dumps(text)  # some gateways send the object itself
        if not text:
            return []
        item.arguments = [text]
        rest = text[len(seen) :] if text.startswith(seen) else ""
        return self.builder.tool(item.index, None, None, rest) if rest else []


def _delta(payload: dict[str, Any]) -> str:
    delta = payload.get("delta")
    return delta if isinstance(delta, str) else ""


def _place(payload: dict[str, Any], key: str) -> int:
    place = payload.get(key)
    return place if isinstance(place, int) else 0


def _name(data: dict[str, Any]) -> str | None:
    name = data.get("name")
    return name if isinstance(name, str) and name else None


def _place_of_thought(payload: dict[str, Any]) -> tuple[str, int]:
    if "summary" in str(payload.get("type")):
        return "summary", _place(payload, "summary_index")
    return "text", _place(payload, "content_index")


def _same_item(item: Item, index: int, data: dict[str, Any]) -> bool:
    """Tell whether an item of the final answer came already; some gateways give each event another id."""
    if any(data.get(key) and item.data.get(key) == data[key] for key in ("id", "call_id")):
        return True
    return item.index == index and item.kind in ("", data.get("type"))


def _is_plain(item: dict[str, Any]) -> bool:
    """Tell whether a message's text says all that is in an item."""
    if item.get("type") != "message" or item.get("phase"):
        return False
    return not any(part.get("annotations") for part in item.get("content") or ())


def _usage(data: dict[str, Any]) -> Usage:
    prompt, completion = count(data, "input_tokens"), count(data, "output_tokens")
    return Usage(
        prompt,
        completion,
        count(data, "total_tokens") or prompt + completion,
        cached_tokens=count(data, "input_tokens_details", "cached_tokens"),
        cache_write_tokens=count(data, "input_tokens_details", "cache_write_tokens"),
        reasoning_tokens=count(data, "output_tokens_details", "reasoning_tokens"),
    )
