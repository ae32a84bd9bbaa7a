"""The Gemini dialect, as Google's Gemini API and Vertex AI speak it."""

from __future__ import annotations

import json
import mimetypes
import re
from typing import Any
from urllib.parse import quote, urlsplit

from toolnexus.chunks import Chunk, call_id, mend_surrogates, parse_arguments
from toolnexus.content import split_data_url
from toolnexus.errors import ToolnexusError
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message, Usage
from toolnexus.tools.adapt import for_gemini
from toolnexus.tools.base import Tool
from toolnexus.wire.base import Decoder, ModelRequest
from toolnexus.wire.partial import PartialArguments
from toolnexus.wire.urls import join

__all__ = ["Gemini"]

#: What this API calls the parameters of chat completions; they stand in ``generationConfig``.
_CONFIG = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}

#: What is taken in place of a signature for calls that another model made.
_NO_SIGNATURE = "skip_thought_signature_validator"


class Gemini:
    """``POST {base_url}/models/{model}:generateContent``, or ``:streamGenerateContent?alt=sse``."""

    name = "gemini"

    def endpoint(self, base_url: str, request: ModelRequest) -> str:
        """Return the URL of a model call; a base URL without a path gets ``/v1beta``."""
        model = request.model if "/" in request.model else f"models/{request.model}"
        verb = "streamGenerateContent" if request.stream else "generateContent"
        version = "" if urlsplit(base_url).path.strip("/") else "/v1beta"
        url = join(base_url, f"/{quote(model, safe='/-._~@')}:{verb}", version=version)
        return f"{url}{'&' if '?' in url else '?'}alt=sse" if request.stream else url

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that the provider wants."""
        return {"x-goog-api-key": api_key} if api_key else {}

    def tools(self, tools: list[Tool]) -> list[dict[str, Any]]:
        """Return the declarations of the functions."""
        declared: list[dict[str, Any]] = []
        for tool in tools:
            schema = for_gemini(tool.input_schema)
            # An object without properties is refused.
            parameters = {"parameters": schema} if schema.get("properties") else {}
            declared.append({"name": tool.name, "description": tool.description, **parameters})
        return declared

    def choice(self, choice: Any) -> dict[str, Any]:
        """Return the keys of a body that say which tool the model must call."""
        modes = {"required": "ANY", "any": "ANY", "none": "NONE", "auto": "AUTO"}
        config: dict[str, Any] = {}
        if isinstance(choice, dict):
            name = (choice.get("function") or choice).get("name")
            config = {"mode": "ANY", "allowedFunctionNames": [name]} if name else {}
        elif choice in modes:
            config = {"mode": modes[choice]}
        return {"toolConfig": {"functionCallingConfig": config}} if config else {}

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a model call."""
        body: dict[str, Any] = {"contents": _outgoing(request)}
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": request.tools}]
        return body

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose parameters of chat completions stand where this API has them."""
        config: dict[str, Any] = {}
        for key, name in _CONFIG.items():
            if key in body:
                value = body.pop(key)
                config[name] = [value] if key == "stop" and isinstance(value, str) else value
        if config:
            body["generationConfig"] = {**config, **(body.get("generationConfig") or {})}
        return body

    def decoder(self, *, skip_bad_events: bool = False) -> GeminiDecoder:
        """Return what reads one answer."""
        return GeminiDecoder(skip_bad_events=skip_bad_events)


class GeminiDecoder(Decoder):
    """
    Reads one answer, streamed or whole; keeps its parts as they came, to send them back.

    A finish reason does not end the answer: more text may follow it, up to the end of the body.
    """

    def __init__(self, *, skip_bad_events: bool = False) -> None:
        super().__init__(skip_bad_events=skip_bad_events)
        self._parts: list[dict[str, Any]] = []
        #: The pieces of the last part's text, while it grows.
        self._pieces: list[str] = []
        self._counts: dict[str, int] = {}
        self._calls = 0
        #: The call whose arguments still come, with its part.
        self._open: tuple[PartialArguments, dict[str, Any]] | None = None

    def payload(self, name: str, payload: dict[str, Any]) -> list[Chunk]:
        """Take in one decoded event and return what it brings."""
        builder = self.builder
        builder.model = builder.model or str(payload.get("modelVersion") or "")
        builder.id = builder.id or str(payload.get("responseId") or "")
        chunks: list[Chunk] = []
        for candidate in payload.get("candidates") or ():
            # Only the first candidate is the answer; one without an index is the first.
            if isinstance(candidate, dict) and not candidate.get("index"):
                chunks += self._candidate(candidate)
        blocked = (payload.get("promptFeedback") or {}).get("blockReason")
        if blocked:
            builder.raw_finish = f"blockReason:{blocked}"
        return chunks + self._usage(payload.get("usageMetadata"))

    def whole(self, payload: dict[str, Any]) -> bool:
        """Tell whether a document is a whole answer; it may as well be a piece of one."""
        return False

    def _candidate(self, candidate: dict[str, Any]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for part in (candidate.get("content") or {}).get("parts") or ():
            if isinstance(part, dict):
                chunks += self._part(part)
        reason = candidate.get("finishReason")
        if isinstance(reason, str) and reason:
            self.builder.raw_finish = reason
        return chunks

    def _part(self, part: dict[str, Any]) -> list[Chunk]:
        call = part.get("functionCall")
        if isinstance(call, dict):
            return self._call(call, part)
        text = part.get("text")
        if text is not None and not isinstance(text, str):
            raise TypeError("the text of a part is none")
        if text is None:
            self.builder.seen = True
            self._keep(dict(part))
            return []
        self._keep_text(part, text)
        return self.builder.thinking(text) if part.get("thought") else self.builder.text(text)

    # -- calls -------------------------------------------------------------------------------

    def _call(self, call: dict[str, Any], part: dict[str, Any]) -> list[Chunk]:
        """Take in a call, whole or a piece of it."""
        chunks: list[Chunk] = []
        if call.get("name"):
            chunks += self._close()
            self._calls += 1
            kept = {**part, "functionCall": {k: v for k, v in call.items() if k in ("id", "name", "args")}}
            self._keep(kept)
            id_ = str(call.get("id") or "") or call_id()
            chunks += self.builder.tool(self._calls, id_, str(call["name"]), "")
            self._open = PartialArguments(), kept
        if self._open is None:
            if call:
                raise ValueError("arguments came for a call that was never begun")
            return chunks
        arguments, kept = self._open
        kept.update({k: v for k, v in part.items() if k != "functionCall"})
        for value in call.get("partialArgs") or ():
            arguments.add(value)
        return chunks if call.get("willContinue") else chunks + self._close()

    def _close(self) -> list[Chunk]:
        """End the call that is open."""
        if self._open is None:
            return []
        arguments, kept = self._open
        self._open = None
        args = kept["functionCall"].get("args") or {}
        if isinstance(args, dict):  # else what came is no arguments, and is said so to the model
            args = kept["functionCall"]["args"] = {**args, **arguments.value()}
        return self.builder.tool(self._calls, None, None, json.dumps(args, separators=(",", ":")))

    def finish(self, failure: ToolnexusError | None, *, received: int = 0, head: str = "") -> list[Chunk]:
        """Judge how the answer ended; a call that is still open was cut, and must not be run."""
        if self._open is not None:
            self._open = None
            self.builder.tool(self._calls, None, None, '{"')
        return super().finish(failure, received=received, head=head)

    # -- what is kept ------------------------------------------------------------------------

    def _keep(self, part: dict[str, Any]) -> None:
        self._end_text()
        self._parts.append(part)

    def _keep_text(self, part: dict[str, Any], text: str) -> None:
        """Keep a text; the pieces of one text are joined again, but never over a signature."""
        last = self._parts[-1] if self._parts else {}
        joins = set(part) | set(last) <= {"text", "thought"} and isinstance(last.get("text"), str)
        if joins and bool(part.get("thought")) == bool(last.get("thought")):
            self._pieces.append(text)
        elif text or set(part) - {"text", "thought"}:
            self._keep({**part, "text": ""})
            self._pieces = [text]

    def _end_text(self) -> None:
        if self._pieces:
            self._parts[-1]["text"] += "".join(self._pieces)
            self._pieces = []

    def extra(self) -> dict[str, Any] | None:
        """Return the parts as they came, where there is more in them than text and calls."""
        self._end_text()
        return None if all(map(_is_plain, self._parts)) else {"gemini": {"parts": self._parts}}

    def _usage(self, data: Any) -> list[Chunk]:
        """Take in token counts; they are cumulative, so later ones replace earlier ones."""
        if not isinstance(data, dict):
            return []
        for key, value in data.items():
            if isinstance(value, int) and not isinstance(value, bool):
                self._counts[key] = max(0, value)
        counts = self._counts
        if not counts:
            return []
        thoughts = counts.get("thoughtsTokenCount", 0)
        prompt = counts.get("promptTokenCount", 0) + counts.get("toolUsePromptTokenCount", 0)
        completion = counts.get("candidatesTokenCount", 0) + thoughts
        self.builder.usage = Usage(
            prompt,
            completion,
            counts.get("totalTokenCount") or prompt + completion,
            cached_tokens=counts.get("cachedContentTokenCount", 0),
            reasoning_tokens=thoughts,
        )
        return [Chunk("usage", usage=self.builder.usage)]


def _is_plain(part: dict[str, Any]) -> bool:
    """Tell whether a message's text and calls say all that is in a part."""
    if set(part) == {"functionCall"}:
        call = part["functionCall"]
        return isinstance(call, dict) and "id" not in call
    return set(part) == {"text"}


def _calls_in(parts: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [part["functionCall"] for part in parts or () if isinstance(part.get("functionCall"), dict)]


# -- the request -----------------------------------------------------------------------------------


#: By the id of a call, the names and own ids of those that have no result yet; an id may be used again.
_Names = dict[str, list[tuple[str, str | None]]]


def _outgoing(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the transcript as contents; results of one turn stand in one, right behind their calls."""
    out: list[dict[str, Any]] = []
    names: _Names = {}
    last_user = max((i for i, m in enumerate(request.messages) if m["role"] == "user"), default=-1)
    media: list[Any] = []
    for position, message in enumerate(request.messages):
        role = message["role"]
        if media and role != "tool":
            _add(out, "user", media)
            media = []
        if role == "assistant":
            parts = _assistant(message, names)
            if position > last_user and request.quirks.dummy_signatures:
                parts = _signed(parts)
            _add(out, "model", parts)
        elif role == "tool":
            _add(out, "user", [_result(message, names, media)])
        else:
            _add(out, "user", _user(message.get("content")))
    _add(out, "user", media)
    return out


def _add(contents: list[dict[str, Any]], role: str, parts: list[Any]) -> None:
    """Add parts to the last content where it is of the same role and kind, else to a new one."""
    if not parts:
        return
    last = contents[-1] if contents else {}
    if last.get("role") == role and ("functionResponse" in parts[0]) == (
        "functionResponse" in last["parts"][0]
    ):
        last["parts"] += parts
    else:
        contents.append({"role": role, "parts": list(parts)})


def _assistant(message: Message, names: _Names) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    own: list[dict[str, Any]] | None = ((message.get(PROVIDER_KEY) or {}).get("gemini") or {}).get("parts")
    kept = own if own and _same(own, message, calls) else None
    ours = [call.get("id") for call in _calls_in(kept)]
    for call, id_ in zip(calls, ours or [None] * len(calls), strict=True):
        names.setdefault(call["id"], []).append((call["function"]["name"], id_))
    if kept is not None:
        return kept
    parts = _user(message.get("content") or message.get("refusal"))
    for call in calls:
        args = _arguments(call)
        parts.append({"functionCall": {"name": call["function"]["name"], "args": args}})
    return parts


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    return parse_arguments(call["function"].get("arguments") or "")[0] or {}


def _same(parts: list[dict[str, Any]], message: Message, calls: list[dict[str, Any]]) -> bool:
    """Tell whether kept parts still say what the message says; somebody may have edited it."""
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str) and not part.get("thought")]
    wanted = [(call["function"]["name"], _arguments(call)) for call in calls]
    return mend_surrogates("".join(texts)) == (message.get("content") or "") and wanted == [
        (call.get("name"), call.get("args") or {}) for call in _calls_in(parts)
    ]


def _signed(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts whose first call has a signature, if only the one that says that it has none."""
    place = next((i for i, part in enumerate(parts) if "functionCall" in part), None)
    if place is None or "thoughtSignature" in parts[place]:
        return parts
    return [*parts[:place], {**parts[place], "thoughtSignature": _NO_SIGNATURE}, *parts[place + 1 :]]


def _result(message: Message, names: _Names, media: list[Any]) -> dict[str, Any]:
    """Return the result of a call; its images go into a message of their own, behind all results."""
    name, id_ = names[message["tool_call_id"]].pop(0)
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if part.get("type") == "text"]
        others = _user([part for part in content if part.get("type") != "text"])
        if others:
            media += [{"text": f"What the call of {name} returned:"}, *others]
        content = "\n".join(texts) or "(see the next message)"
    key = "error" if (message.get(PROVIDER_KEY) or {}).get("is_error") else "output"
    response: dict[str, Any] = {"name": name, "response": {key: content or ""}}
    return {"functionResponse": {**({"id": id_} if id_ else {}), **response}}


def _user(content: Any) -> list[dict[str, Any]]:
    """Translate neutral parts; a part of another kind goes as it is, since it was written for this API."""
    if not isinstance(content, list):
        return [{"text": content}] if content else []
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type")
        if kind == "text":
            parts += [{"text": part["text"]}] if part["text"] else []
        elif kind == "image_url":
            parts.append(_media(part["image_url"]["url"]))
        elif kind == "file":
            parts.append(_media(part["file"].get("file_data") or ""))
        else:
            parts.append(part)
    return parts


def _media(url: str) -> dict[str, Any]:
    """Return an image or a file: its data, or where they are."""
    if url.startswith("data:"):
        media_type, data = split_data_url(url)
        return {"inlineData": {"mimeType": media_type, "data": data}}
    guessed = _media_type(url)
    return {"fileData": {"fileUri": url, **({"mimeType": guessed} if guessed else {})}}


def _media_type(url: str) -> str | None:
    """Return the media type that a URL's path shows."""
    return mimetypes.guess_type(re.sub(r"[?#].*", "", url))[0]
