"""One model call without a loop around it: as chunks, or translated from and to OpenAI's shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.attempts import call_model
from toolnexus.chunks import Chunk, Reply, ToolRequest
from toolnexus.closing import Closing
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import Done, Error, Event, Text, Thinking, ToolCallDelta, UsageReport
from toolnexus.loop import report_usage
from toolnexus.merge import ReplyBuilder
from toolnexus.pump import Pump
from toolnexus.report import Reporter
from toolnexus.results import Message, RunResult, Usage
from toolnexus.run import Run
from toolnexus.stream import Stream
from toolnexus.tools.base import Tool
from toolnexus.toolset import ToolSet
from toolnexus.values import Value
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.cancel import CancelScope
    from toolnexus.runner import Runner

__all__ = ["ChunkStream", "TranslateResult", "TranslatedToolCall", "collect", "finalize_tool_calls"]

#: The events of which chunks are made.
CHUNK_EVENTS: frozenset[type[Event]] = frozenset({Text, Thinking, ToolCallDelta, UsageReport, Done, Error})


def ask_once(run: Run) -> Reply:
    """Make one model call of a run; no tool is run."""
    run.started = time.monotonic()
    try:
        run.outgoing = run.options.hooks.before_llm(run)
        reply = call_model(run)
        run.take(reply)
        run.options.hooks.after_llm(run, reply)
        run.scope.check()
    except ToolnexusError as error:
        error.partial = run.partial()
        raise
    except Exception as error:
        wrapped = ToolnexusError(f"unexpected {describe_error(error)}", partial=run.partial())
        raise wrapped from error
    finally:
        run.workers.close()
    return reply


class ChunkStream(Closing):
    """
    One model call as chunks: exactly one of type "done", always the last, also on failure.

    Like a `Stream` it is iterated once, by one thread, and leaving it early cancels the call.

    Args:
        stream: The stream of the call's events.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._error: ToolnexusError | None = None

    def __repr__(self) -> str:
        return f"<ChunkStream of {self._stream!r}>"

    @property
    def scope(self) -> CancelScope:
        """What cancels the call."""
        return self._stream.scope

    def __iter__(self) -> ChunkStream:
        return self

    def __next__(self) -> Chunk:
        while True:
            chunk = _chunk(next(self._stream))
            if chunk is not None:
                return chunk

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the call, from any thread."""
        self._stream.cancel(reason)

    def close(self) -> None:
        """Cancel the call if it is not over."""
        self._stream.close()

    def collect(self) -> Reply:
        """
        Read the chunks to their end.

        Returns:
            The answer.

        Raises:
            ToolnexusError: The call failed; ``partial`` holds the text so far.
        """
        return collect(self)


def _chunk(event: Event) -> Chunk | None:
    if isinstance(event, Text):
        return Chunk("text_delta", event.delta)
    if isinstance(event, Thinking):
        return Chunk("thinking_delta", event.delta)
    if isinstance(event, ToolCallDelta):
        return Chunk("tool_call_delta", "", event.index, event.id, event.name, event.arguments)
    if isinstance(event, UsageReport):
        return Chunk("usage", usage=event.usage) if event.usage != Usage() else None
    if isinstance(event, Done):
        return Chunk.done(event.result.finish_reason or "stop")
    if isinstance(event, Error):
        return Chunk.failed(event.error)
    return None


def collect(chunks: Iterable[Chunk]) -> Reply:
    """
    Fold chunks into an answer.

    Args:
        chunks: The chunks of one model call.

    Raises:
        ToolnexusError: The call failed; ``partial`` holds the text so far.

    >>> collect([Chunk.text_delta("Hel"), Chunk.text_delta("lo"), Chunk.done()]).text
    'Hello'
    """
    builder = ReplyBuilder()
    for chunk in chunks:
        if chunk.type == "text_delta":
            builder.text(chunk.text)
        elif chunk.type == "thinking_delta":
            builder.thinking(chunk.text)
        elif chunk.type == "tool_call_delta":
            builder.tool(chunk.index, chunk.id, chunk.name, chunk.arguments)
        elif chunk.type == "usage":
            builder.usage = chunk.usage
        elif chunk.error is not None:
            if chunk.error.partial is None:
                text, thinking = builder.joined_text(), builder.joined_thinking()
                chunk.error.partial = RunResult(text=text, thinking=thinking, status="incomplete")
            raise chunk.error
        else:
            builder.raw_finish = chunk.finish_reason
    return builder.reply()


def finalize_tool_calls(chunks: Iterable[Chunk]) -> list[ToolRequest]:
    """
    Put the tool calls together from their fragments.

    Arguments that do not parse are kept as ``{"raw": text}``, with ``error`` saying what is wrong: such
    a call must not be run.

    Args:
        chunks: The chunks of one model call; all but fragments of tool calls are passed over.

    >>> [c] = finalize_tool_calls(
    ...     [Chunk.tool_call_delta(0, "c1", "add", '{"a":'), Chunk.tool_call_delta(0, None, None, "2")]
    ... )
    >>> c.args, c.error is not None
    ({'raw': '{"a":2'}, True)
    """
    builder = ReplyBuilder()
    for chunk in chunks:
        if chunk.type == "tool_call_delta":
            builder.tool(chunk.index, chunk.id, chunk.name, chunk.arguments)
    calls = builder.tools.finish()
    return [c if c.args is not None else attrs.evolve(c, args={"raw": c.arguments}) for c in calls]


# -- translating -----------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class TranslatedToolCall(Value):
    """A tool call with its arguments as JSON text, as OpenAI has it."""

    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TranslateResult(Value):
    """
    One answer in OpenAI's terms, whatever the endpoint speaks.

    Args:
        text: The text.
        tool_calls: The calls; none was run.
        finish_reason: "stop", "length", "tool_calls", "content_filter", ...; with calls "tool_calls".
        usage: Token counts.
        model: The model that answered.
        raw: The assistant message.
    """

    text: str
    tool_calls: tuple[TranslatedToolCall, ...]
    finish_reason: str
    usage: Usage
    model: str
    raw: Message

    def tool_calls_json(self) -> list[dict[str, Any]]:
        """Return the calls as OpenAI's ``tool_calls`` array."""
        return [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in self.tool_calls
        ]


@attrs.frozen(eq=False)
class Translation:
    """What a translated call was given beside its messages."""

    tools: Iterable[Mapping[str, Any]] | None
    toolkit: Any
    tool_choice: Any
    system: str | None
    max_tokens: int | None


def single(
    runner: Runner, messages: Any, tools: Any, scope: CancelScope | None, overrides: dict[str, Any]
) -> Run:
    """Prepare a run of one model call."""
    messages = _listed(messages)
    listed = isinstance(messages, (list, tuple)) and all(
        isinstance(m, dict) and "role" in m for m in messages
    )
    prompt, history = (None, messages) if messages and listed else (messages, None)
    run, _ = runner.prepare(prompt, tools, None, history, None, scope, overrides)
    return run


def _listed(messages: Any) -> Any:
    """Return messages as a list where they come one by one, as those of a generator do."""
    return list(messages) if isinstance(messages, Iterator) else messages


def translation(
    runner: Runner,
    messages: Any,
    options: Translation,
    scope: CancelScope | None,
    overrides: dict[str, Any],
) -> Run:
    """Prepare a translated call: the messages' own system text goes before the client's."""
    messages = _listed(messages)
    given = messages if isinstance(messages, (list, tuple)) else ()
    own = any(isinstance(m, dict) and m.get("role") in ("system", "developer") for m in given)
    if options.system is not None or own:
        overrides = {**overrides, "system_prompt": options.system}
    tools = [*ToolSet(options.toolkit).all, *declared(options.tools)]
    run = single(runner, messages, tools, scope, overrides)
    if options.tool_choice is not None and run.declarations:
        run.choose(_choice(options.tool_choice))
    if options.max_tokens is not None:
        if not isinstance(options.max_tokens, int) or options.max_tokens < 1:
            raise ConfigurationError(f"max_tokens must be a number from 1, not {options.max_tokens!r:.80}")
        run.extra["max_tokens"] = options.max_tokens
    return run


def _choice(choice: Any) -> str | dict[str, Any]:
    """Return a tool choice, if it has a form that OpenAI's can have."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and isinstance(choice.get("function", {}), Mapping):
        return dict(choice)
    raise ConfigurationError(
        f'tool_choice must be "auto", "none", "required" or one function, not {choice!r:.80}'
    )


def chunked(run: Run) -> ChunkStream:
    """Make the call in the background and hand out its chunks."""

    def work(pump: Pump) -> RunResult:
        pump.reached = run.partial
        run.reporter = Reporter(run.run_id, CHUNK_EVENTS, pump)
        with run.scope.running():
            ask_once(run)
        result = run.result()
        report_usage(run, result)
        return result

    return ChunkStream(Stream(Pump(run.run_id, run.scope, work, queue_size=run.options.queue_size)))


def translated(reply: Reply) -> TranslateResult:
    """Return an answer in OpenAI's terms."""
    calls = tuple(
        TranslatedToolCall(
            c.id, c.name, c.arguments if c.args is None else json.dumps(c.args, ensure_ascii=False)
        )
        for c in reply.calls
    )
    return TranslateResult(
        text=reply.text,
        tool_calls=calls,
        finish_reason="tool_calls" if calls and reply.finish_reason == "stop" else reply.finish_reason,
        usage=reply.usage or Usage(),
        model=reply.model,
        raw=reply.message,
    )


def declared(tools: Iterable[Any] | None) -> list[Tool]:
    """
    Return tools for OpenAI-shaped declarations; they can be declared, and never run.

    Raises:
        ConfigurationError: Something is no declaration.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, (Iterable, type(None))):
        raise ConfigurationError(f"tools must be a list of OpenAI-shaped declarations, not {tools!r:.80}")
    found: list[Tool] = []
    for item in tools or ():
        if isinstance(item, Tool):
            found.append(item)
            continue
        if not isinstance(item, Mapping):
            raise ConfigurationError(f"a tool must be an OpenAI-shaped declaration, not {item!r:.80}")
        function: Any = item.get("function")
        function = function if isinstance(function, Mapping) else item
        name = function.get("name")
        if isinstance(name, str) and name:
            schema = (
                function.get("parameters")
                or function.get("input_schema")
                or {"type": "object", "properties": {}}
            )
            if not isinstance(schema, Mapping):
                raise ConfigurationError(
                    f"the parameters of the tool {name!r} must be a schema, not {schema!r:.80}"
                )
            found.append(Tool(name, str(function.get("description") or ""), dict(schema)))
    return found
