"""A model that is a Python function: the same loop, no wire."""

from __future__ import annotations

import contextlib
import inspect
import json
import queue
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any

from toolnexus.abandon import start_thread
from toolnexus.cancel import POLL, CancelScope
from toolnexus.chunks import Chunk, Reply
from toolnexus.client import Client
from toolnexus.errors import (
    APIError,
    ConfigurationError,
    EmptyResponseError,
    MalformedEventError,
    ToolnexusError,
)
from toolnexus.merge import ReplyBuilder
from toolnexus.results import Usage
from toolnexus.run import Run
from toolnexus.trial import Trial, transformed
from toolnexus.wire import ModelRequest
from toolnexus.wire.transcript import prepare
from toolnexus.wording import describe_error

__all__ = ["LocalTrial", "create_in_process_client"]

_RESERVED = ("base_url", "api_key", "style", "session", "headers")


def create_in_process_client(
    *, model: str, generate: Callable[[dict[str, Any]], Any], **options: Any
) -> Client:
    """
    Make a client whose model is a Python function.

    Args:
        model: The name that results give for the model.
        generate: A function that gets ``{"messages", "tools", "model", "body"}`` and returns the answer: a
            text, or ``{"content": text}``, or ``{"tool_calls": [{"name", "arguments", "id"}]}``, each with an
            optional ``"thinking"``, ``"usage"`` and ``"finish_reason"``. A generator function streams: it
            yields texts and such dicts.
        options: What `Client` takes besides; ``retries`` is 0 by default.

    Raises:
        ConfigurationError: An option configures a wire, or ``generate`` is no function.

    >>> client = create_in_process_client(model="parrot", generate=lambda r: r["messages"][-1]["content"])
    >>> client.run("Polly?").text
    'Polly?'
    """
    for name in _RESERVED:
        if name in options:
            raise ConfigurationError(
                f"create_in_process_client does not take {name!r}: a model in this process has no wire to "
                "configure. Use Client for a model behind a network."
            )
    if not callable(generate) or inspect.iscoroutinefunction(generate):
        raise ConfigurationError("generate must be a function that is not async")
    options.setdefault("retries", 0)
    client = Client("http://in-process.invalid/v1", model=model, api_key="in-process", **options)
    client._runner.generate = generate
    client._runner.open()
    return client


class LocalTrial(Trial):
    """One try of a model that is a function."""

    def run_once(self) -> Reply:
        """Call the function and read what it gives."""
        run = self.run
        run.reporter.at("model", run.turns + 1, f"msg-{secrets.token_hex(8)}", self.number)
        builder = self.builder = run.current = ReplyBuilder()
        messages, declarations = run.outgoing
        prepared = prepare(messages, run.system_prompt())
        self.request = ModelRequest(
            model=self.endpoint.options.model,
            messages=prepared.messages,
            system=prepared.system,
            tools=declarations,
            stream=run.streaming,
        )
        dialect = self.endpoint.dialect
        body = transformed(self.endpoint.options, dialect, {**dialect.body(self.request), **run.extra})
        asked = {
            "messages": body.get("messages", []),
            "tools": body.get("tools", []),
            "model": self.request.model,
            "body": body,
        }
        generate = self.endpoint.generate
        assert generate is not None
        with contextlib.closing(_pieces(generate, asked, run)) as pieces:
            for piece in pieces:
                self._hand_on(_taken(builder, piece))
        if not builder.seen:
            raise EmptyResponseError("the model function gave nothing", retryable=False)
        self._hand_on(builder.flush())
        builder.raw_finish = builder.raw_finish or ("tool_calls" if len(builder.tools) else "stop")
        builder.model = self.request.model
        return builder.reply()

    def learn(self, error: ToolnexusError) -> bool:
        """A function refuses nothing that could be left out."""
        return False


def _pieces(
    generate: Callable[[dict[str, Any]], Any], asked: dict[str, Any], run: Run
) -> Generator[Any, None, None]:
    """Yield what the function gives, from a thread that can be left behind."""
    pieces: queue.Queue[tuple[str, Any]] = queue.Queue(64)
    scope = run.scope
    left = threading.Event()  # nobody reads on: the run has ended, or this try of it

    def put(kind: str, value: Any) -> bool:
        while not scope.cancelled and not left.is_set():
            try:
                pieces.put((kind, value), timeout=POLL)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            given = generate(asked)
            if inspect.isgenerator(given):
                while True:
                    try:
                        piece = next(given)
                    except StopIteration as stop:
                        given = stop.value
                        break
                    if not put("piece", piece):
                        given.close()
                        return
            if given is not None:
                put("piece", given)
            put("end", None)
        except BaseException as error:  # noqa: BLE001 - handed to the loop's thread
            put("error", error)

    start_thread(work, "generate")
    try:
        while True:
            run.reporter.before_wait(lambda: not pieces.empty())
            piece = _next(pieces, scope)
            if piece is None:
                return
            yield piece[0]
    finally:
        left.set()


def _next(pieces: queue.Queue[tuple[str, Any]], scope: CancelScope) -> tuple[Any] | None:
    """Return what the function gives next, in a tuple, or None at its end; raises what it raised as ours."""
    while True:
        try:
            kind, value = pieces.get(timeout=POLL)
        except queue.Empty:
            scope.check()
            continue
        if kind == "error":
            if isinstance(value, ToolnexusError):
                raise value
            raise APIError(f"the model function raised {describe_error(value)}") from value
        return None if kind == "end" else (value,)


def _taken(builder: ReplyBuilder, piece: Any) -> list[Chunk]:
    """Read a piece; one that is not made as it must be is the function's mistake, whatever it trips over."""
    try:
        return _take(builder, piece)
    except ToolnexusError:
        raise
    except Exception as error:
        raise MalformedEventError(
            f"the model function gave a piece that cannot be read: {describe_error(error)}", retryable=False
        ) from error


def _take(builder: ReplyBuilder, piece: Any) -> list[Chunk]:
    """Read a piece: a text, or a dict with parts of an answer."""
    if isinstance(piece, str):
        builder.seen = True
        return builder.text(piece)
    if not isinstance(piece, Mapping):
        raise MalformedEventError(
            f"the model function must give texts and dicts, not {type(piece).__name__}", retryable=False
        )
    builder.seen = True
    chunks: list[Chunk] = []
    if isinstance(piece.get("thinking"), str):
        chunks += builder.thinking(piece["thinking"])
    for key in ("content", "text"):
        if isinstance(piece.get(key), str):
            chunks += builder.text(piece[key])
    for call in piece.get("tool_calls") or piece.get("toolCalls") or ():
        chunks += _call(builder, call)
    if isinstance(piece.get("usage"), (Mapping, Usage)):
        builder.usage = _usage(piece["usage"])
    if isinstance(piece.get("finish_reason"), str):
        builder.raw_finish = piece["finish_reason"]
    return chunks


def _call(builder: ReplyBuilder, call: Any) -> list[Chunk]:
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise MalformedEventError(
            "a tool call of the model function must be a dict with a name", retryable=False
        )
    arguments = call.get("arguments", call.get("args"))
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    given = call.get("id")
    return builder.tool(
        len(builder.tools), str(given) if given is not None else None, call["name"], arguments
    )


def _usage(data: Mapping[str, Any] | Usage) -> Usage:
    if isinstance(data, Usage):
        return data
    prompt = int(data.get("prompt_tokens", data.get("promptTokens", 0)) or 0)
    completion = int(data.get("completion_tokens", data.get("completionTokens", 0)) or 0)
    return Usage(prompt, completion, int(data.get("total_tokens") or prompt + completion))
