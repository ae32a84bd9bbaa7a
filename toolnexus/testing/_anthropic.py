"""Anthropic's messages, as a server says them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolnexus.results import Usage
from toolnexus.testing._answers import Call, Failure, StreamFailure, Turn
from toolnexus.testing._encode import dump
from toolnexus.testing._render import Asked, argument_pieces, argument_text

__all__ = ["Anthropic"]

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "pause": "pause_turn",
}

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Anthropic:
    """Renders answers for ``/v1/messages``."""

    name = "anthropic"
    base_path = ""
    suffix = "/v1/messages"
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    request_id_header = "request-id"

    def events(self, turn: Turn, asked: Asked) -> Iterator[bytes]:
        """Yield the start of the message, a ping and every content block."""
        message = {**_message(turn, asked), "content": [], "stop_reason": None, "stop_sequence": None}
        if turn.usage is not None:
            message["usage"] = {
                **_input_usage(turn.usage),
                "output_tokens": min(1, turn.usage.completion_tokens),
            }
        yield _event("message_start", {"message": message})
        yield self.ping
        index = 0
        if turn.thinking:
            yield from _thinking(index, turn)
            index += 1
        if turn.text or not (turn.thinking or turn.calls):
            yield _start(index, {"type": "text", "text": ""})
            yield from _deltas(index, "text_delta", "text", turn.text)
            yield _stop(index)
            index += 1
        for number, call in enumerate(turn.calls):
            yield from _tool_use(index + number, call, asked.call_id(call, number))

    def closing(self, turn: Turn, asked: Asked) -> list[bytes]:
        """Return the event with the stop reason and the last one."""
        fields: dict[str, Any] = {"delta": {"stop_reason": _stop_reason(turn), "stop_sequence": None}}
        if turn.usage is not None:
            fields["usage"] = {**_input_usage(turn.usage), "output_tokens": turn.usage.completion_tokens}
        return [_event("message_delta", fields), _event("message_stop", {})]

    def whole(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """Return the turn as one message."""
        content: list[dict[str, Any]] = []
        if turn.thinking:
            thinking = "".join(turn.thinking)
            content.append({"type": "thinking", "thinking": thinking, "signature": turn.signature})
        if turn.text or not (turn.thinking or turn.calls):
            content.append({"type": "text", "text": "".join(turn.text)})
        for number, call in enumerate(turn.calls):
            content.append({**_opening(call, asked.call_id(call, number)), "input": _input(call)})
        message = {**_message(turn, asked), "content": content}
        message |= {"stop_reason": _stop_reason(turn), "stop_sequence": None}
        if turn.usage is not None:
            message["usage"] = {**_input_usage(turn.usage), "output_tokens": turn.usage.completion_tokens}
        return message

    def error(self, error: Failure | StreamFailure, asked: Asked) -> dict[str, Any]:
        """Return the document of an error."""
        usual = _ERROR_TYPES.get(
            error.status, "api_error" if error.status >= 500 else "invalid_request_error"
        )
        kind = error.type if error.type is not None else usual
        body = {"type": "error", "error": {"type": kind, "message": error.message}}
        return {**body, "request_id": f"req_test_{asked.number}"}

    def error_event(self, error: StreamFailure, asked: Asked) -> bytes:
        """Return an error as it comes inside a stream."""
        return f"event: error\ndata: {dump(self.error(error, asked))}\n\n".encode()


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {dump({'type': name, **fields})}\n\n".encode()


def _start(index: int, block: dict[str, Any]) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _stop(index: int) -> bytes:
    return _event("content_block_stop", {"index": index})


def _deltas(index: int, kind: str, key: str, pieces: tuple[str, ...] | list[str]) -> Iterator[bytes]:
    """Yield one delta a piece; all but the piece is made once."""
    head = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index},'
    head += f'"delta":{{"type":"{kind}","{key}":'
    for piece in pieces:
        yield f"{head}{dump(piece)}}}}}\n\n".encode()


def _thinking(index: int, turn: Turn) -> Iterator[bytes]:
    """Yield a thinking block, its signature as the last delta."""
    yield _start(index, {"type": "thinking", "thinking": "", "signature": ""})
    yield from _deltas(index, "thinking_delta", "thinking", turn.thinking)
    yield from _deltas(index, "signature_delta", "signature", [turn.signature])
    yield _stop(index)


def _tool_use(index: int, call: Call, call_id: str) -> Iterator[bytes]:
    """Yield a tool call: an empty input first, then the JSON of it in pieces."""
    yield _start(index, {**_opening(call, call_id), "input": {}})
    yield from _deltas(index, "input_json_delta", "partial_json", ["", *argument_pieces(call)])
    yield _stop(index)


def _opening(call: Call, call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": call.name}


def _input(call: Call) -> Any:
    """Return the arguments as a value; text that is no JSON stays text."""
    try:
        return json.loads(argument_text(call) or "{}")
    except ValueError:
        return argument_text(call)


def _message(turn: Turn, asked: Asked) -> dict[str, Any]:
    model = turn.model if turn.model is not None else asked.model
    return {"id": f"msg_test_{asked.number}", "type": "message", "role": "assistant", "model": model}


def _stop_reason(turn: Turn) -> str:
    finish = turn.finish if turn.finish is not None else ("tool_calls" if turn.calls else "stop")
    return _STOP_REASONS.get(finish, finish)


def _input_usage(usage: Usage) -> dict[str, int]:
    """Return the prompt's counts; the provider counts what a cache held apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }
