"""The OpenAI chat completions dialect, with the variations of those who speak it."""

from __future__ import annotations

import json
from typing import Any

from toolnexus.chunks import Chunk, mend_surrogates
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message, Usage
from toolnexus.tools.adapt import plain
from toolnexus.tools.base import Tool
from toolnexus.wire.base import BARE, Decoder, ModelRequest, count
from toolnexus.wire.names import nine_characters
from toolnexus.wire.schemas import answer_schema, loosened
from toolnexus.wire.transcript import merged
from toolnexus.wire.urls import join

__all__ = ["OpenAI"]

_REASONING = ("reasoning_content", "reasoning")
_THOUGHTS = frozenset((*_REASONING, "reasoning_details"))

#: What a delta has that brings text and nothing else.
_PLAIN = frozenset(("role", "content"))

#: The fields of a piece of ``reasoning_details`` that grow; the others are said once.
_GROWING = ("text", "summary", "data", "signature")

#: What stands beside the answer, is no part of it, and may matter to the caller.
_BESIDE = frozenset(("prompt_filter_results", "citations", "search_results"))


class OpenAI:
    """``POST {base_url}/chat/completions``."""

    name = "openai"

    def endpoint(self, base_url: str, request: ModelRequest) -> str:
        """Return the URL of a model call."""
        return join(base_url, "/chat/completions")

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that the provider wants."""
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def tools(self, tools: list[Tool]) -> list[dict[str, Any]]:
        """Return the declarations of the tools."""
        return [
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description,
                    "parameters": plain(t.input_schema),
                },
            }
            for t in tools
        ]

    def output_format(self, schema: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the keys of a body that ask for an answer of a schema."""
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": name, **answer_schema(schema)},
            }
        }

    def choice(self, choice: Any) -> dict[str, Any]:
        """Return the keys of a body that say which tool the model must call."""
        return {"tool_choice": "required" if choice == "any" else choice}

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a model call."""
        messages: list[Message] = []
        if request.system:
            messages.append({"role": "system", "content": request.system})
        messages += _outgoing(request)
        body: dict[str, Any] = {"model": request.model, "messages": messages}
        if request.tools:
            body["tools"] = loosened(request.tools) if request.quirks.plain_schemas else request.tools
            body["tool_choice"] = "auto"
        if request.stream:
            body["stream"] = True
            if request.quirks.stream_options:
                body["stream_options"] = {"include_usage": True}
        return body

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body as it is: the parameters have the names that the endpoint takes."""
        return body

    def decoder(self, *, skip_bad_events: bool = False) -> OpenAIDecoder:
        """Return what reads one answer."""
        return OpenAIDecoder(skip_bad_events=skip_bad_events)


class OpenAIDecoder(Decoder):
    """Reads one chat completion, streamed or whole."""

    def __init__(self, *, skip_bad_events: bool = False) -> None:
        super().__init__(skip_bad_events=skip_bad_events)
        self._reasoning: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._beside: dict[str, Any] = {}
        self._object_arguments = False
        self._streamed = False

    def payload(self, name: str, payload: dict[str, Any]) -> list[Chunk]:
        """Take in one decoded event and return what it brings."""
        builder = self.builder
        if not builder.model or not builder.id:
            self._introduce(payload)
        chunks: list[Chunk] = []
        usage = payload.get("usage") or None
        if usage is None and "x_groq" in payload:
            usage = (payload["x_groq"] or {}).get("usage")
        for choice in payload.get("choices") or ():
            # Only the first choice is the answer; a choice without an index is the first.
            if isinstance(choice, dict) and not choice.get("index"):
                usage = usage or choice.get("usage")
                chunks += self._choice(choice, whole=name == BARE)
        if not _BESIDE.isdisjoint(payload):
            self._beside.update({key: payload[key] for key in _BESIDE if payload.get(key)})
        if isinstance(usage, dict):
            builder.usage = _usage(usage)
            chunks.append(Chunk("usage", usage=builder.usage))
        return chunks

    def _introduce(self, payload: dict[str, Any]) -> None:
        """Note who speaks; the first chunk of some gateways has an empty model and id, which are no names."""
        builder = self.builder
        builder.model = builder.model or str(payload.get("model") or "")
        builder.id = builder.id or str(payload.get("id") or "")

    def whole(self, payload: dict[str, Any]) -> bool:
        """Tell whether a document is a whole answer."""
        choices = payload.get("choices")
        return isinstance(choices, list) and any(isinstance(c, dict) and "message" in c for c in choices)

    def _choice(self, choice: dict[str, Any], *, whole: bool) -> list[Chunk]:
        self.builder.seen = True
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.builder.raw_finish = reason
        delta, message = choice.get("delta"), choice.get("message")
        if delta and not message and isinstance(delta, dict) and _PLAIN.issuperset(delta):
            self._streamed = True  # nearly every delta is one of these
            return self._content(delta.get("content"))
        # Some endpoints put both into each choice: in a stream the message repeats what came so
        # far, in a whole answer the delta is empty.
        whole = bool(message) and (whole or not (delta or self._streamed))
        self._streamed = self._streamed or (bool(delta) and not whole)
        said = message if whole else delta
        if said and not isinstance(said, dict):
            raise TypeError("a choice has no message")
        return self._message(said, whole=whole) if said else []

    def _message(self, said: dict[str, Any], *, whole: bool) -> list[Chunk]:
        """Take in a delta, or a whole message, whose calls are told apart by their position."""
        chunks = [] if _THOUGHTS.isdisjoint(said) else self._thought(said, whole=whole)
        chunks += self._content(said.get("content"))
        if isinstance(said.get("refusal"), str):
            self.builder.refusal.append(said["refusal"])
        if isinstance(said.get("annotations"), list) and said["annotations"]:
            self._beside["annotations"] = [*self._beside.get("annotations", ()), *said["annotations"]]
        for position, call in enumerate(said.get("tool_calls") or ()):
            chunks += self._call(call, position if whole else None)
        legacy = said.get("function_call")
        # An empty one beside the real calls repeats nothing and is none.
        if isinstance(legacy, dict) and (legacy.get("name") or not said.get("tool_calls")):
            chunks += self._call({"index": 0, "function": legacy}, None)
        return chunks

    def _thought(self, delta: dict[str, Any], *, whole: bool) -> list[Chunk]:
        """Take the reasoning once, under whichever name it comes."""
        details = delta.get("reasoning_details")
        details = [item for item in details if isinstance(item, dict)] if isinstance(details, list) else []
        for detail in details:
            self._keep_detail(detail, whole=whole)
        for key in _REASONING:
            text = delta.get(key)
            if isinstance(text, str) and text:
                self._reasoning.setdefault(key, []).append(text)
                return self.builder.thinking(text)
        chunks: list[Chunk] = []
        for detail in details:
            text = detail.get("text") or detail.get("summary")
            if isinstance(text, str):
                chunks += self.builder.thinking(text)
        return chunks

    def _keep_detail(self, detail: dict[str, Any], *, whole: bool) -> None:
        """Keep a piece of reasoning to send it back; the pieces of one detail are joined again."""
        last = self._details[-1] if self._details and not whole else {}
        index = detail.get("index")
        one = index is not None and last.get("index") == index and last.get("type") == detail.get("type")
        if not one or (last.get("id") and detail.get("id") and last["id"] != detail["id"]):
            self._details.append(dict(detail))
            return
        for key, value in detail.items():
            if key in _GROWING and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] = mend_surrogates(last[key] + value)
            elif value is not None:
                last[key] = value

    def _content(self, content: Any) -> list[Chunk]:
        if isinstance(content, str):
            return self.builder.text(content)
        if not isinstance(content, (list, dict, type(None))):
            raise TypeError("the content is no text")
        chunks: list[Chunk] = []
        for part in [content] if isinstance(content, dict) else content or ():
            if isinstance(part, str):
                chunks += self.builder.text(part)
            elif isinstance(part, dict) and part.get("type") in ("thinking", "reasoning"):
                for piece in _texts(part.get("thinking") or part.get("summary") or part.get("text")):
                    chunks += self.builder.thinking(piece)
            elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
                self.builder.refusal.append(part["refusal"])
            elif isinstance(part, dict):
                for piece in _texts(part.get("text")):
                    chunks += self.builder.text(piece)
        return chunks

    def _call(self, call: Any, position: int | None) -> list[Chunk]:
        """Take in a fragment of a call; ``position`` is that of a whole call."""
        if call is None:
            return []
        if not isinstance(call, dict):
            raise TypeError("a tool call is no object")
        function = call.get("function") or call.get("custom") or {}
        index = call.get("index") if position is None else position
        if not isinstance(index, int) or isinstance(index, bool):
            index = None
        arguments = function.get("arguments", function.get("input"))
        if arguments is not None and not isinstance(arguments, str):
            # What is no object is said so to the model; a call never runs with less than was sent.
            self._object_arguments = self._object_arguments or isinstance(arguments, (dict, list))
            arguments = json.dumps(arguments)
        id_, name = call.get("id"), function.get("name")
        return self.builder.tool(
            index,
            str(id_) if id_ is not None else None,
            name if isinstance(name, str) else None,
            arguments or "",
        )

    def extra(self) -> dict[str, Any] | None:
        """Return what the provider needs back verbatim."""
        kept: dict[str, Any] = {
            key: mend_surrogates("".join(parts)) for key, parts in self._reasoning.items()
        }
        if self._details:
            kept["reasoning_details"] = self._details
        if self._object_arguments:
            kept["object_arguments"] = True
        if self._beside:
            kept["beside"] = self._beside
        return {"openai": kept} if kept else None


def _texts(value: Any) -> list[str]:
    """Return the texts in a part: a string, or a list of text parts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    return [
        v["text"] if isinstance(v, dict) else v
        for v in value
        if isinstance(v.get("text") if isinstance(v, dict) else v, str)
    ]


def _usage(data: dict[str, Any]) -> Usage:
    prompt = count(data, "prompt_tokens") or count(data, "input_tokens")
    completion = count(data, "completion_tokens") or count(data, "output_tokens")
    return Usage(
        prompt,
        completion,
        count(data, "total_tokens") or prompt + completion,
        cached_tokens=count(data, "prompt_tokens_details", "cached_tokens")
        or count(data, "prompt_cache_hit_tokens")
        or count(data, "cached_tokens"),
        cache_write_tokens=count(data, "prompt_tokens_details", "cache_write_tokens"),
        reasoning_tokens=count(data, "completion_tokens_details", "reasoning_tokens")
        or count(data, "reasoning_tokens"),
    )


def _outgoing(request: ModelRequest) -> list[Message]:
    """Return the transcript as the endpoint takes it."""
    last_user = max((i for i, m in enumerate(request.messages) if m["role"] == "user"), default=-1)
    out: list[Message] = []
    images: list[Any] = []
    for position, message in enumerate(request.messages):
        if images and message["role"] != "tool":
            out.append({"role": "user", "content": images})
            images = []
        if message["role"] == "assistant":
            out.append(_assistant(message, request, recent=position > last_user))
        elif message["role"] == "tool":
            out.append(_tool(message, images))
        else:
            out.append({k: v for k, v in message.items() if k != PROVIDER_KEY})
    if images:
        out.append({"role": "user", "content": images})
    if request.quirks.short_ids:
        out = [_short_ids(message) for message in out]
    return merged(out) if request.quirks.alternate else out


def _assistant(message: Message, request: ModelRequest, *, recent: bool) -> Message:
    """Return an assistant message, with its reasoning where the endpoint wants it back."""
    sent = {k: v for k, v in message.items() if k not in (PROVIDER_KEY, "refusal") and (v or k == "content")}
    if sent.get("content") is None and message.get("refusal"):
        sent["content"] = message["refusal"]
    own = (message.get(PROVIDER_KEY) or {}).get("openai") or {}
    if _wants_reasoning(message, request, recent=recent):
        sent.update({k: v for k, v in own.items() if k in (*_REASONING, "reasoning_details")})
    if own.get("object_arguments") and sent.get("tool_calls"):
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in sent["tool_calls"]
        ]
    return sent


def _wants_reasoning(message: Message, request: ModelRequest, *, recent: bool) -> bool:
    """Tell whether the endpoint wants the reasoning of a message back."""
    if request.echo_reasoning != "auto":
        return request.echo_reasoning == "always"
    quirks = request.quirks
    return bool(message.get("tool_calls")) and quirks.echo_reasoning and (recent or quirks.echo_all)


def _tool(message: Message, images: list[Any]) -> Message:
    """Return a tool message; its images go into a user message, since a tool message takes text only."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if part.get("type") == "text"]
        others = [part for part in content if part.get("type") != "text"]
        if others:
            images.append({"type": "text", "text": f"What the tool call {message['tool_call_id']} returned:"})
            images.extend(others)
        content = "\n".join(texts) or "(see the next message)"
    return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content}


def _short_ids(message: Message) -> Message:
    """Map call ids to the one form that a strict endpoint takes, call and result alike."""
    if message.get("tool_calls"):
        calls = [{**call, "id": nine_characters(call["id"])} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if message["role"] == "tool":
        return {**message, "tool_call_id": nine_characters(message["tool_call_id"])}
    return message
