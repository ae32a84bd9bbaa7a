"""OpenAI's responses, as a server says them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolnexus.results import Usage
from toolnexus.testing._answers import Call, Failure, StreamFailure, Turn
from toolnexus.testing._encode import dump
from toolnexus.testing._openai import OpenAI
from toolnexus.testing._render import Asked, argument_pieces, argument_text

__all__ = ["Responses"]

_CREATED = 1_700_000_000

#: Why an answer is incomplete, for the reasons that make it so.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

_COMPLETED = ("stop", "tool_calls")


class Responses:
    """Renders answers for ``/responses``."""

    name = "responses"
    base_path = "/v1"
    suffix = "/responses"
    ping = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    request_id_header = "x-request-id"

    def events(self, turn: Turn, asked: Asked) -> Iterator[bytes]:
        """Yield the beginning of the response and every item of it."""
        for kind in ("response.created", "response.in_progress"):
            yield _event(kind, {"response": _response(turn, asked, "in_progress")})
        for index, item in enumerate(_items(turn, asked)):
            empty = {**item, **_EMPTY[item["type"]], "status": "in_progress"}
            yield _event("response.output_item.added", {"output_index": index, "item": empty})
            at = {"item_id": item["id"], "output_index": index}
            if item["type"] == "function_call":
                yield from _arguments(at, turn.calls[item["number"]], item)
            else:
                yield from _text(at, turn.thinking if item["type"] == "reasoning" else turn.text, item)
            done = {key: value for key, value in item.items() if key != "number"}
            yield _event("response.output_item.done", {"output_index": index, "item": done})

    def closing(self, turn: Turn, asked: Asked) -> list[bytes]:
        """Return the event with the whole response, the last one."""
        response = self.whole(turn, asked)
        word = "incomplete" if response["status"] == "incomplete" else "completed"
        return [_event(f"response.{word}", {"response": response})]

    def whole(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """Return the turn as one response."""
        finish = turn.finish if turn.finish is not None else "stop"
        status = "completed" if finish in _COMPLETED else "incomplete" if finish in _INCOMPLETE else finish
        response = _response(turn, asked, status)
        if finish in _INCOMPLETE:
            response["incomplete_details"] = {"reason": _INCOMPLETE[finish]}
        response["output"] = [
            {key: value for key, value in item.items() if key != "number"} for item in _items(turn, asked)
        ]
        if turn.usage is not None:
            response["usage"] = _usage(turn.usage)
        return response

    def error(self, error: Failure | StreamFailure, asked: Asked) -> dict[str, Any]:
        """Return the document of an error."""
        return OpenAI().error(error, asked)

    def error_event(self, error: StreamFailure, asked: Asked) -> bytes:
        """Return an error as it comes inside a stream."""
        return _event("error", self.error(error, asked))


#: What an item lacks at its beginning.
_EMPTY: dict[str, dict[str, Any]] = {
    "reasoning": {"summary": [], "encrypted_content": None},
    "message": {"content": []},
    "function_call": {"arguments": ""},
}


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {dump({'type': name, **fields})}\n\n".encode()


def _items(turn: Turn, asked: Asked) -> list[dict[str, Any]]:
    """Return the finished items; a call has its number in the script, which does not go out."""
    items: list[dict[str, Any]] = []
    if turn.thinking:
        summary = [{"type": "summary_text", "text": "".join(turn.thinking)}]
        item = {"id": f"rs_test_{asked.number}", "type": "reasoning", "summary": summary}
        items.append({**item, "encrypted_content": turn.signature})
    if turn.text or not (turn.thinking or turn.calls):
        part = {"type": "output_text", "text": "".join(turn.text), "annotations": [], "logprobs": []}
        item = {"id": f"msg_test_{asked.number}", "type": "message", "status": "completed"}
        items.append({**item, "role": "assistant", "content": [part]})
    for number, call in enumerate(turn.calls):
        item = {"id": f"fc_test_{asked.number}_{number}", "type": "function_call", "status": "completed"}
        item |= {"call_id": asked.call_id(call, number), "name": call.name}
        items.append({**item, "arguments": argument_text(call), "number": number})
    return items


def _text(at: dict[str, Any], pieces: tuple[str, ...], item: dict[str, Any]) -> Iterator[bytes]:
    """Yield the text of a message, or of the reasoning's summary, a delta a piece."""
    part = (item.get("content") or item["summary"])[0]
    place, word, kind = ("content_index", "content_part", "output_text")
    if item["type"] == "reasoning":
        place, word, kind = ("summary_index", "reasoning_summary_part", "reasoning_summary_text")
    at = {**at, place: 0}
    yield _event(f"response.{word}.added", {**at, "part": {**part, "text": ""}})
    yield from _deltas(f"response.{kind}.delta", at, pieces)
    yield _event(f"response.{kind}.done", {**at, "text": part["text"]})
    yield _event(f"response.{word}.done", {**at, "part": part})


def _arguments(at: dict[str, Any], call: Call, item: dict[str, Any]) -> Iterator[bytes]:
    yield from _deltas("response.function_call_arguments.delta", at, tuple(argument_pieces(call)))
    yield _event("response.function_call_arguments.done", {**at, "arguments": item["arguments"]})


def _deltas(name: str, at: dict[str, Any], pieces: tuple[str, ...]) -> Iterator[bytes]:
    """Yield one delta a piece; all but the piece is made once."""
    head = f'event: {name}\ndata: {dump({"type": name, **at})[:-1]},"delta":'
    for piece in pieces:
        yield f"{head}{dump(piece)}}}\n\n".encode()


def _response(turn: Turn, asked: Asked, status: str) -> dict[str, Any]:
    """Return a response without its output."""
    return {
        "id": f"resp_test_{asked.number}",
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": turn.model if turn.model is not None else asked.model,
        "output": [],
        "usage": None,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the counts as this API names them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
