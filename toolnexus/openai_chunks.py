"""A call's chunks in the shape of OpenAI's stream, for `Client.translate_stream`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any

from toolnexus.chunks import Chunk
from toolnexus.results import Usage
from toolnexus.single import ChunkStream

__all__ = ["openai_chunks", "openai_stream"]


def openai_stream(chunks: ChunkStream, model: str) -> Iterator[dict[str, Any]]:
    """Yield a call's chunks in the shape of OpenAI's stream; whoever leaves early cancels the call."""
    with chunks:
        yield from openai_chunks(chunks, model)


def openai_chunks(chunks: Iterable[Chunk], model: str) -> Iterator[dict[str, Any]]:
    """Yield chunks in the shape of OpenAI's stream; a failure is a last one with an error."""
    id_, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    indexes: dict[Any, int] = {}
    usage: Usage | None = None

    def shaped(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": id_,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    yield shaped({"role": "assistant", "content": ""})
    for chunk in chunks:
        if chunk.type == "text_delta":
            yield shaped({"content": chunk.text})
        elif chunk.type == "thinking_delta":
            yield shaped({"reasoning_content": chunk.text})
        elif chunk.type == "tool_call_delta":
            yield shaped({"tool_calls": [_fragment(chunk, indexes)]})
        elif chunk.type == "usage":
            usage = chunk.usage
        elif chunk.error is not None:
            error = chunk.error
            yield {
                "error": {"message": error.message, "type": error.kind, "code": getattr(error, "code", None)}
            }
        else:
            yield shaped({}, chunk.finish_reason)
            if usage is not None:
                counts = {
                    k: getattr(usage, k) for k in ("prompt_tokens", "completion_tokens", "total_tokens")
                }
                yield {**shaped({}), "choices": [], "usage": counts}


def _fragment(chunk: Chunk, indexes: dict[Any, int]) -> dict[str, Any]:
    """Return a fragment with an index from 0, whatever the provider counts by."""
    key = chunk.index if chunk.index is not None else chunk.id
    if key is None or (chunk.name and key not in indexes):
        key = key if key is not None else max(indexes.values(), default=0)
    index = indexes.setdefault(key, len(indexes))
    function = {k: v for k, v in (("name", chunk.name), ("arguments", chunk.arguments)) if v is not None}
    head = {"id": chunk.id, "type": "function"} if chunk.id else {}
    return {"index": index, **head, "function": function}
