"""Gemini's answers, as a server says them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolnexus.results import Usage
from toolnexus.testing._answers import Call, Failure, StreamFailure, Turn
from toolnexus.testing._encode import dump
from toolnexus.testing._render import Asked, argument_text

__all__ = ["Gemini"]

_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class Gemini:
    """Renders answers for ``/models/NAME:generateContent`` and ``:streamGenerateContent``."""

    name = "gemini"
    base_path = "/v1beta"
    suffix = (":generateContent", ":streamGenerateContent")
    ping = b": ping\r\n\r\n"
    request_id_header = "x-request-id"

    def events(self, turn: Turn, asked: Asked) -> Iterator[bytes]:
        """Yield a chunk for every piece of thinking and text, and one for every call."""
        empty, marker = "\0", dump("\0")
        for pieces, extra in ((turn.thinking, {"thought": True}), (turn.text, {})):
            before, _, after = _event(turn, asked, [{"text": empty, **extra}]).decode().partition(marker)
            for piece in pieces:
                yield f"{before}{dump(piece)}{after}".encode()
        for part in _calls(turn):
            yield _event(turn, asked, [part])

    def closing(self, turn: Turn, asked: Asked) -> list[bytes]:
        """Return the chunk with the finish reason; there is no end mark."""
        return [_event(turn, asked, _ending(turn), finished=True)]

    def whole(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """Return the turn as one document."""
        parts: list[dict[str, Any]] = []
        if turn.thinking:
            parts.append({"text": "".join(turn.thinking), "thought": True})
        if turn.text:
            parts.append({"text": "".join(turn.text)})
        return _document(turn, asked, [*parts, *_calls(turn), *_ending(turn)], finished=True)

    def error(self, error: Failure | StreamFailure, asked: Asked) -> dict[str, Any]:
        """Return the document of an error."""
        usual = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
        document: dict[str, Any] = {
            "message": error.message,
            "status": error.type if error.type is not None else usual,
        }
        if error.code is not None or isinstance(error, Failure) or error.type is None:
            document = {"code": error.code if error.code is not None else error.status, **document}
        return {"error": document}

    def error_event(self, error: StreamFailure, asked: Asked) -> bytes:
        """Return an error as it comes inside a stream."""
        return f"data: {dump(self.error(error, asked))}\r\n\r\n".encode()


def _event(turn: Turn, asked: Asked, parts: list[dict[str, Any]], *, finished: bool = False) -> bytes:
    return f"data: {dump(_document(turn, asked, parts, finished=finished))}\r\n\r\n".encode()


def _document(turn: Turn, asked: Asked, parts: list[dict[str, Any]], *, finished: bool) -> dict[str, Any]:
    """Return what is said in one chunk; the last one has the finish reason and the counts."""
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    document: dict[str, Any] = {"candidates": [candidate]}
    if finished:
        finish = turn.finish if turn.finish is not None else "stop"
        candidate["finishReason"] = _REASONS.get(finish, finish)
        if turn.usage is not None:
            document["usageMetadata"] = _usage(turn.usage)
    model = turn.model if turn.model is not None else asked.model
    return {**document, "modelVersion": model, "responseId": f"response_test_{asked.number}"}


def _calls(turn: Turn) -> list[dict[str, Any]]:
    """Return the parts of the calls; the signature of the thinking stands on the first of them."""
    parts: list[dict[str, Any]] = []
    for call in turn.calls:
        id_ = {"id": call.id} if call.id is not None else {}
        parts.append({"functionCall": {**id_, "name": call.name, "args": _args(call)}})
    if parts and turn.thinking:
        parts[0]["thoughtSignature"] = turn.signature
    return parts


def _ending(turn: Turn) -> list[dict[str, Any]]:
    """Return the last part: without a call it has the signature of the thinking."""
    signed = turn.thinking and not turn.calls
    return [{"text": "", **({"thoughtSignature": turn.signature} if signed else {})}]


def _args(call: Call) -> Any:
    """Return the arguments as a value, which they are in this API; text that is no JSON stays text."""
    try:
        return json.loads(argument_text(call) or "{}")
    except ValueError:
        return argument_text(call)


def _usage(usage: Usage) -> dict[str, int]:
    """Return the counts as this API names them; it counts the thinking apart."""
    counts = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    more = {"cachedContentTokenCount": usage.cached_tokens, "thoughtsTokenCount": usage.reasoning_tokens}
    return {**counts, **{name: count for name, count in more.items() if count}}
