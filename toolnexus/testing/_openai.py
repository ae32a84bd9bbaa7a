"""OpenAI's chat completions, as a server says them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolnexus.results import Usage
from toolnexus.testing._answers import Failure, StreamFailure, Turn
from toolnexus.testing._encode import dump
from toolnexus.testing._render import Asked, argument_pieces, argument_text

__all__ = ["OpenAI"]

_CREATED = 1_700_000_000

_ERROR_TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}


class OpenAI:
    """Renders answers for ``/chat/completions``."""

    name = "openai"
    base_path = "/v1"
    suffix = "/chat/completions"
    ping = b": ping\n\n"
    request_id_header = "x-request-id"

    def events(self, turn: Turn, asked: Asked) -> Iterator[bytes]:
        """Yield the role chunk and a chunk for every piece of thinking, text and arguments."""
        head, tail = _envelope(turn, asked, None)
        yield _event(
            head, {"role": "assistant", "content": None if turn.calls else "", "refusal": None}, tail
        )
        for key, pieces in (("reasoning_content", turn.thinking), ("content", turn.text)):
            before, after = f'{head}{{"{key}":', f"}}{tail}"
            for piece in pieces:
                yield f"{before}{dump(piece)}{after}".encode()
        for index, call in enumerate(turn.calls):
            function = {"name": call.name, "arguments": ""}
            opening = {"index": index, "id": asked.call_id(call, index), "type": "function"}
            yield _event(head, {"tool_calls": [{**opening, "function": function}]}, tail)
            before = f'{head}{{"tool_calls":[{{"index":{index},"function":{{"arguments":'
            for piece in argument_pieces(call):
                yield f"{before}{dump(piece)}}}}}]}}{tail}".encode()

    def closing(self, turn: Turn, asked: Asked) -> list[bytes]:
        """Return the finish chunk, the usage chunk where it was asked for, and the end mark."""
        head, tail = _envelope(turn, asked, _finish(turn))
        events = [_event(head, {}, tail)]
        if asked.include_usage and turn.usage is not None:
            chunk = {**_top(turn, asked, "chat.completion.chunk"), "choices": []}
            events.append(f"data: {dump({**chunk, 'usage': _usage(turn.usage)})}\n\n".encode())
        return [*events, b"data: [DONE]\n\n"]

    def whole(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """Return the turn as a completion."""
        text = "".join(turn.text)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if turn.calls else "")}
        message["refusal"] = None
        if turn.thinking:
            message["reasoning_content"] = "".join(turn.thinking)
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": asked.call_id(call, index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": argument_text(call)},
                }
                for index, call in enumerate(turn.calls)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(turn)}
        document = {**_top(turn, asked, "chat.completion"), "choices": [choice]}
        return document if turn.usage is None else {**document, "usage": _usage(turn.usage)}

    def error(self, error: Failure | StreamFailure, asked: Asked) -> dict[str, Any]:
        """Return the document of an error."""
        usual = _ERROR_TYPES.get(
            error.status, "server_error" if error.status >= 500 else "invalid_request_error"
        )
        kind = error.type if error.type is not None else usual
        return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}

    def error_event(self, error: StreamFailure, asked: Asked) -> bytes:
        """Return an error as it comes inside a stream."""
        return f"data: {dump(self.error(error, asked))}\n\n".encode()


def _top(turn: Turn, asked: Asked, kind: str) -> dict[str, Any]:
    """Return what stands beside the choices."""
    return {
        "id": f"chatcmpl-test-{asked.number}",
        "object": kind,
        "created": _CREATED,
        "model": turn.model if turn.model is not None else asked.model,
        "system_fingerprint": "fp_test",
    }


def _envelope(turn: Turn, asked: Asked, finish: str | None) -> tuple[str, str]:
    """Return what goes before and after the delta of a chunk, made once for all of them."""
    top = dump(_top(turn, asked, "chat.completion.chunk"))[:-1]
    usage = ',"usage":null' if asked.include_usage else ""
    end = f',"logprobs":null,"finish_reason":{dump(finish)}}}]{usage}}}\n\n'
    return f'data: {top},"choices":[{{"index":0,"delta":', end


def _event(head: str, delta: dict[str, Any], tail: str) -> bytes:
    return f"{head}{dump(delta)}{tail}".encode()


def _finish(turn: Turn) -> str:
    """Return the finish reason; the neutral words are OpenAI's own."""
    return turn.finish if turn.finish is not None else ("tool_calls" if turn.calls else "stop")


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the counts as OpenAI names them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    }
