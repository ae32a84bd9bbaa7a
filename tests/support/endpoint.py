"""An endpoint that plays exact bytes to a real client, and the bytes of both styles in short."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolnexus import Client, Done, Error, RunResult, Tool
from toolnexus.events import Event
from toolnexus.testing import Answer, ModelServer, RecordedRequest, raw, reply

if TYPE_CHECKING:
    from typing_extensions import Self

#: Stands for a key that is absent.
ABSENT: Any = object()

STYLES = ("openai", "anthropic")

DONE = b"data: [DONE]\n\n"


# -- OpenAI style ----------------------------------------------------------------------------------


def data(value: Any) -> bytes:
    """Return an event with a JSON value, or a text as it is."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode("utf-8", "surrogatepass")


def chunk(delta: Any = ABSENT, finish: str | None = None, **top: Any) -> bytes:
    """Return a chunk with one choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return data({"choices": [{k: v for k, v in choice.items() if v is not ABSENT}], **top})


def text(*pieces: str) -> bytes:
    """Return a chunk for each piece of text."""
    return b"".join(chunk({"content": piece}) for piece in pieces)


def end(finish: str | None = "stop", usage: Any = ABSENT) -> bytes:
    """Return the chunk with the finish reason, one with usage if there is any, and the end mark."""
    report = b"" if usage is ABSENT else data({"choices": [], "usage": usage})
    return chunk({}, finish) + report + DONE


def fragment(index: Any, id: Any, name: Any, arguments: Any) -> dict[str, Any]:  # noqa: A002
    """Return one fragment of a tool call; what is ABSENT has no key."""
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not ABSENT}
    call = {"index": index, "id": id, "function": function}
    return {k: v for k, v in call.items() if v is not ABSENT}


def calls(*fragments: tuple[Any, Any, Any, Any], finish: str | None = "tool_calls") -> bytes:
    """Return a stream with one fragment a chunk."""
    return b"".join(chunk({"tool_calls": [fragment(*f)]}) for f in fragments) + end(finish)


def completion(message: dict[str, Any], finish: str | None = "stop", **top: Any) -> dict[str, Any]:
    """Return a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], **top}


# -- Anthropic style -------------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> bytes:
    """Return a named event, as this provider sends it."""
    body = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {body}\n\n".encode()


def start(**usage: int) -> bytes:
    """Return the beginning of a message."""
    counts = usage or {"input_tokens": 6, "output_tokens": 1}
    return event("message_start", message={"id": "msg", "model": "m", "content": [], "usage": counts})


def block(index: int, opening: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    """Return a block from its start to its end."""
    parts = [event("content_block_start", index=index, content_block=opening)]
    parts += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join(parts) + event("content_block_stop", index=index)


def text_block(index: int, *pieces: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *[{"type": "text_delta", "text": p} for p in pieces])


def tool_block(index: int, id: str, name: str, *pieces: str, **opening: Any) -> bytes:  # noqa: A002
    begin = {"type": "tool_use", "id": id, "name": name, "input": {}, **opening}
    return block(index, begin, *[{"type": "input_json_delta", "partial_json": p} for p in pieces])


def stop(reason: str | None = "end_turn", **usage: int) -> bytes:
    """Return the end of a message."""
    counts = usage or {"output_tokens": 3}
    return event("message_delta", delta={"stop_reason": reason}, usage=counts) + event("message_stop")


def message(content: list[dict[str, Any]], reason: str | None = "end_turn", **top: Any) -> dict[str, Any]:
    """Return a whole answer."""
    usage = {"input_tokens": 6, "output_tokens": 3}
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "usage": usage,
        **top,
    }


# -- a tool ----------------------------------------------------------------------------------------


def tools(*names: str, execute: Any = None) -> list[Tool]:
    """Return tools that take anything and say what they got."""
    schema = {"type": "object", "properties": {}}
    run = execute or (lambda args, ctx: json.dumps(args, sort_keys=True, ensure_ascii=False))
    return [Tool(name, f"The tool {name}.", schema, run) for name in names]


class Endpoint:
    """
    A server on 127.0.0.1, and clients that ask it.

    Attributes:
        server: The server.
        seen: The requests of the last conversation.
    """

    def __init__(self) -> None:
        self.server = ModelServer()
        self._first = 0
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self.server.close()

    @property
    def seen(self) -> list[RecordedRequest]:
        return self.server.requests[self._first :]

    def client(self, style: str = "openai", **options: Any) -> Client:
        """Return a client for a style; by default it does not try again."""
        chosen = {"model": "m", "api_key": "test-key", "retries": 0, **options}
        chosen.setdefault("base_url", self.server.url_for(style))
        client = Client(style=style, **chosen)
        self._clients.append(client)
        return client

    def play(self, *answers: bytes | dict[str, Any] | str | Answer, **delivery: Any) -> None:
        """Answer the next requests with these: bytes as a stream, a dict as JSON, a string as a reply."""
        self._first = len(self.server.requests)
        left = iter([_answer(item, delivery) for item in answers])
        self.server.on_request(lambda request: next(left))

    def stream(
        self, style: str, *answers: Any, tools: Any = None, client: Client | None = None, **options: Any
    ) -> list[Event]:
        """Return all events of a stream over these answers."""
        self.play(*answers)
        with self._used(client, style) as chosen:
            return list(chosen.stream("go", tools, **options))

    def result(self, style: str, *answers: Any, **options: Any) -> RunResult:
        """Return the result of a stream over these answers."""
        last = self.stream(style, *answers, **options)[-1]
        assert isinstance(last, Done), last
        return last.result

    def error(self, style: str, *answers: Any, **options: Any) -> Any:
        """Return the error of a stream over these answers, which is its only terminal item."""
        events = self.stream(style, *answers, **options)
        assert isinstance(events[-1], Error), events[-1]
        assert not [e for e in events[:-1] if isinstance(e, (Done, Error))]
        assert events[-1].error.partial is not None
        return events[-1].error

    def run(
        self, style: str, *answers: Any, tools: Any = None, client: Client | None = None, **options: Any
    ) -> RunResult:
        """Return the result of a run over these answers."""
        self.play(*answers)
        with self._used(client, style) as chosen:
            return chosen.run("go", tools, **options)

    @contextlib.contextmanager
    def _used(self, client: Client | None, style: str) -> Iterator[Client]:
        """Yield the client of the caller, or one for this once, so that not all connections stay open."""
        if client is not None:
            yield client
            return
        with self.client(style) as once:
            yield once
        self._clients.remove(once)


def _answer(item: Any, delivery: dict[str, Any]) -> Any:
    if isinstance(item, bytes):
        return raw(item, **delivery)
    if isinstance(item, dict):
        return raw(json.dumps(item).encode(), content_type="application/json", **delivery)
    return reply(item, **delivery) if isinstance(item, str) else item


def deltas(events: Iterable[Event], kind: str = "text") -> list[str]:
    """Return the pieces of text, or of thinking, in a list of events."""
    return [e.delta for e in events if e.type == kind]  # type: ignore[attr-defined]
