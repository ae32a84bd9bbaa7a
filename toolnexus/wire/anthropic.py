"""The Anthropic messages dialect."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from toolnexus.chunks import Chunk, finish_reason, mend_surrogates, parse_arguments
from toolnexus.content import split_data_url
from toolnexus.errors import MalformedEventError
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message, Usage
from toolnexus.tools.adapt import plain
from toolnexus.tools.base import Tool
from toolnexus.wire.base import Decoder, ModelRequest, count
from toolnexus.wire.names import nine_characters
from toolnexus.wire.schemas import loosened
from toolnexus.wire.urls import join

__all__ = ["Anthropic"]

_VERSION = "2023-06-01"
_MAX_TOKENS = 4096


class Anthropic:
    """``POST {base_url}/v1/messages``."""

    name = "anthropic"

    def endpoint(self, base_url: str, request: ModelRequest) -> str:
        """Return the URL of a model call; ``/v1`` stands in it once."""
        return join(base_url, "/messages", version="/v1")

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that the provider wants."""
        return {"anthropic-version": _VERSION, **({"x-api-key": api_key} if api_key else {})}

    def tools(self, tools: list[Tool]) -> list[dict[str, Any]]:
        """Return the declarations of the tools."""
        return [
            {"name": t.name, "description": t.description, "input_schema": plain(t.input_schema)}
            for t in tools
        ]

    def choice(self, choice: Any) -> dict[str, Any]:
        """Return the keys of a body that say which tool the model must call."""
        if isinstance(choice, dict):
            name = (choice.get("function") or choice).get("name")
            return {"tool_choice": {"type": "tool", "name": name}} if name else {}
        kinds = {"required": "any", "any": "any", "none": "none"}
        return {"tool_choice": {"type": kinds[choice]}} if choice in kinds else {}

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a model call."""
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": _MAX_TOKENS,
            "messages": _outgoing(request.messages),
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = loosened(request.tools) if request.quirks.plain_schemas else request.tools
        if request.stream:
            body["stream"] = True
        return body

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body as it is: the parameters have the names that the endpoint takes."""
        return body

    def decoder(self, *, skip_bad_events: bool = False) -> AnthropicDecoder:
        """Return what reads one answer."""
        return AnthropicDecoder(skip_bad_events=skip_bad_events)


class AnthropicDecoder(Decoder):
    """Reads one message, streamed or whole; keeps its blocks as they came, to send them back."""

    def __init__(self, *, skip_bad_events: bool = False) -> None:
        super().__init__(skip_bad_events=skip_bad_events)
        self._blocks: list[dict[str, Any]] = []
        self._open: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._reasoning_tokens = 0

    def payload(self, name: str, payload: dict[str, Any]) -> list[Chunk]:
        """Take in one decoded event; what it is stands in the JSON, not in the event's name."""
        kind = payload.get("type") or name
        if kind == "message_start":
            return self._start(payload.get("message") or {})
        if kind == "message":
            return self._message(payload)
        if kind == "content_block_start":
            return self._block_start(payload.get("index"), payload.get("content_block") or {})
        if kind == "content_block_delta":
            return self._block_delta(payload.get("index"), payload.get("delta") or {})
        if kind == "content_block_stop":
            return self._block_stop(payload.get("index"))
        if kind == "message_delta":
            return self._message_delta(payload)
        if kind == "message_stop":
            self.ended = True
        return []

    def whole(self, payload: dict[str, Any]) -> bool:
        """Tell whether a document is a whole answer."""
        return payload.get("type") == "message"

    def _start(self, message: dict[str, Any]) -> list[Chunk]:
        for index in list(self._open):
            self._block_stop(index)
        self.builder.model = self.builder.model or str(message.get("model") or "")
        self.builder.id = self.builder.id or str(message.get("id") or "")
        return self._usage(message.get("usage"))

    def _message(self, message: dict[str, Any]) -> list[Chunk]:
        """Take in a whole message as if it had been streamed."""
        chunks = self._start(message)
        for index, block in enumerate(message.get("content") or ()):
            chunks += self._block_start(index, block)
            chunks += self._block_stop(index)
        self._stop_reason(message.get("stop_reason"))
        return chunks

    def _block_start(self, index: Any, block: dict[str, Any]) -> list[Chunk]:
        self.builder.seen = True
        if not isinstance(index, int):
            index = max(self._open, default=-1) + 1
        if index in self._open:
            self._block_stop(index)
        kept = dict(block)
        self._blocks.append(kept)
        self._open[index] = kept
        self._parts[index] = []
        kind = kept.get("type")
        if kind == "text":
            return self.builder.text(kept.get("text") or "")
        if kind == "thinking":
            return self.builder.thinking(kept.get("thinking") or "")
        if kind == "tool_use":
            return self.builder.tool(
                len(self._blocks), str(kept.get("id") or "") or None, kept.get("name"), ""
            )
        return []

    def _block_delta(self, index: Any, delta: dict[str, Any]) -> list[Chunk]:
        kind = delta.get("type")
        if not isinstance(index, int):
            index = max(self._open, default=None)
        if index not in self._open:
            index = self._unannounced(index, str(kind))
        if index is None:
            return []
        block = self._open[index]
        if kind == "text_delta":
            self._parts[index].append(delta.get("text") or "")
            return self.builder.text(delta.get("text") or "")
        if kind == "thinking_delta":
            self._parts[index].append(delta.get("thinking") or "")
            return self.builder.thinking(delta.get("thinking") or "")
        if kind == "input_json_delta":
            return self._input(index, block, delta.get("partial_json") or "")
        if kind == "signature_delta":
            block["signature"] = (block.get("signature") or "") + (delta.get("signature") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return []

    def _unannounced(self, index: int | None, kind: str) -> int | None:
        """Open a block for a delta that comes without one, where it says enough for that."""
        opening = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind)
        if opening is None:
            if kind == "input_json_delta":
                raise MalformedEventError("arguments came for a tool call that was never begun")
            return None
        if index is None:
            index = len(self._blocks)
        self._block_start(index, {"type": opening, opening: ""})
        return index

    def _input(self, index: int, block: dict[str, Any], fragment: str) -> list[Chunk]:
        self._parts[index].append(fragment)
        if block.get("type") != "tool_use" or not fragment:
            return []  # a server's own tool: never ours to run
        return self.builder.tool(self._place(block), None, None, fragment)

    def _place(self, block: dict[str, Any]) -> int:
        return next(i for i, known in enumerate(self._blocks, 1) if known is block)

    def _block_stop(self, index: Any) -> list[Chunk]:
        block = self._open.pop(index, None)
        if block is None:
            return []
        text = mend_surrogates("".join(self._parts.pop(index)))
        kind = block.get("type")
        if kind in ("text", "thinking"):
            block[kind] = (block.get(kind) or "") + text
        elif text:
            block["input"] = parse_arguments(text)[0] or {}
        elif kind == "tool_use" and block.get("input"):
            # The arguments came whole with the block; an opening {} before deltas means nothing.
            return self.builder.tool(self._place(block), None, None, json.dumps(block["input"]))
        return []

    def _message_delta(self, payload: dict[str, Any]) -> list[Chunk]:
        self._stop_reason((payload.get("delta") or {}).get("stop_reason"))
        return self._usage(payload.get("usage"))

    def _stop_reason(self, reason: Any) -> None:
        if isinstance(reason, str) and reason:
            self.builder.raw_finish = reason

    def _usage(self, data: Any) -> list[Chunk]:
        """Take in token counts; they are cumulative, so later ones replace earlier ones."""
        if not isinstance(data, dict):
            return []
        for key in data:
            number = count(data, key)
            # Some servers repeat a count as 0 in the last event.
            if number or key not in self._counts:
                self._counts[key] = number
        counts = self._counts
        written, read = counts.get("cache_creation_input_tokens", 0), counts.get("cache_read_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + written + read
        completion = counts.get("output_tokens", 0)
        details = data.get("output_tokens_details")
        if isinstance(details, dict):
            self._reasoning_tokens = count(details, "thinking_tokens") or self._reasoning_tokens
        self.builder.usage = Usage(
            prompt, completion, prompt + completion, read, written, self._reasoning_tokens
        )
        return [Chunk("usage", usage=self.builder.usage)]

    def extra(self) -> dict[str, Any] | None:
        """Return the blocks as they came, where there is more in them than text and calls."""
        for index in list(self._open):
            self._block_stop(index)
        blocks = self._blocks
        if finish_reason(self.builder.raw_finish) == "length":
            while blocks and _is_cut(blocks[-1]):
                blocks = blocks[:-1]
        return None if all(map(_is_plain, blocks)) else {"anthropic": {"blocks": blocks}}


def _is_cut(block: dict[str, Any]) -> bool:
    """Tell whether the last block of a cut answer would be refused when it is sent back."""
    kind = str(block.get("type"))
    return (kind == "thinking" and not block.get("signature")) or kind in ("server_tool_use", "mcp_tool_use")


def _is_plain(block: dict[str, Any]) -> bool:
    """Tell whether a message's text and calls say all that is in a block."""
    known = {"text": {"type", "text"}, "tool_use": {"type", "id", "name", "input"}}.get(
        str(block.get("type")), set()
    )
    return bool(known) and all(key in known or not value for key, value in block.items())


class _Ids:
    """Call ids in the form that the API takes, none of them twice; another provider's may be neither."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._current: dict[str, str] = {}

    def call(self, id: str) -> str:  # noqa: A002
        """Return the id under which a call is sent."""
        sent = id if re.fullmatch(r"[a-zA-Z0-9_-]+", id) else f"call_{nine_characters(id)}"
        stem, number = sent, 1
        while sent in self._taken:
            number += 1
            sent = f"{stem}_{number}"
        self._taken.add(sent)
        self._current[id] = sent
        return sent

    def result(self, id: str) -> str:  # noqa: A002
        """Return the id under which the result of the last such call is sent."""
        return self._current.get(id, id)


def _outgoing(messages: list[Message]) -> list[Message]:
    """Return the transcript as the Messages API takes it: roles alternate, results in user messages."""
    out: list[Message] = []
    ids = _Ids()
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        if message["role"] == "assistant":
            content = _assistant(message, ids)
        else:
            content = _tool(message, ids) if message["role"] == "tool" else _user(message)
        if not content:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["content"] += content
        else:
            out.append({"role": role, "content": content})
    return out


def _assistant(message: Message, ids: _Ids) -> list[dict[str, Any]]:
    calls = [
        (call["id"], call["function"]["name"], _input_of(call)) for call in message.get("tool_calls") or ()
    ]
    sent = {id_: ids.call(id_) for id_, _, _ in calls}
    own = ((message.get(PROVIDER_KEY) or {}).get("anthropic") or {}).get("blocks")
    if own and _same(own, message, calls):
        kept = [block for block in own if block.get("type") != "text" or (block.get("text") or "").strip()]
        return [{**b, "id": sent[b["id"]]} if b.get("type") == "tool_use" else b for b in kept]
    content = message.get("content") or message.get("refusal")
    blocks = _parts(content) if isinstance(content, list) else _texts(content)
    for id_, name, arguments in calls:
        blocks.append({"type": "tool_use", "id": sent[id_], "name": name, "input": arguments})
    return blocks


def _input_of(call: dict[str, Any]) -> dict[str, Any]:
    return parse_arguments(call["function"].get("arguments") or "")[0] or {}


def _same(
    blocks: list[dict[str, Any]], message: Message, calls: list[tuple[str, str, dict[str, Any]]]
) -> bool:
    """Tell whether kept blocks still say what the message says; somebody may have edited it."""
    text = "".join(b.get("text") or "" for b in blocks if b.get("type") == "text")
    kept = [(b.get("id"), b.get("name"), b.get("input") or {}) for b in blocks if b.get("type") == "tool_use"]
    return text == (message.get("content") or "") and kept == calls


def _tool(message: Message, ids: _Ids) -> list[dict[str, Any]]:
    content = message.get("content")
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": ids.result(message["tool_call_id"])}
    parts = _parts(content) if isinstance(content, list) else content
    if parts if isinstance(parts, list) else (parts or "").strip():
        block["content"] = parts  # an empty text is refused, no content at all is not
    if (message.get(PROVIDER_KEY) or {}).get("is_error"):
        block["is_error"] = True
    return [block]


def _user(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    return _parts(content) if isinstance(content, list) else _texts(content)


def _texts(content: Any) -> list[dict[str, Any]]:
    """Return a text as a block; a blank one would be refused."""
    return [{"type": "text", "text": content}] if isinstance(content, str) and content.strip() else []


def _parts(parts: list[Any]) -> list[dict[str, Any]]:
    """Translate neutral parts; a part of another kind goes as it is, since it was written for this API."""
    blocks: list[dict[str, Any]] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            if part["text"].strip():
                blocks.append({"type": "text", "text": part["text"]})
        elif kind == "image_url":
            blocks.append({"type": "image", "source": _source(part["image_url"]["url"])})
        elif kind == "file":
            blocks.append(_document(part["file"]))
        else:
            blocks.append(part)
    return blocks


def _source(url: str) -> dict[str, str]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media_type, data = split_data_url(url)
    return {"type": "base64", "media_type": media_type, "data": data}


def _document(file: dict[str, Any]) -> dict[str, Any]:
    source = _source(file.get("file_data") or "")
    media_type = source.get("media_type", "")
    if media_type.startswith("image/"):
        return {"type": "image", "source": source}
    if media_type.startswith("text/"):
        text = base64.b64decode(source["data"]).decode("utf-8", "replace")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, "title": file.get("filename") or "file"}
