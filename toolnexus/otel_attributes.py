"""What spans and metrics say of a run, a try of a model call, and a tool call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from toolnexus import semconv as names
from toolnexus.chunks import Reply
from toolnexus.errors import ToolnexusError
from toolnexus.results import Message, Usage
from toolnexus.watch import WatchedAttempt, WatchedRun, WatchedTool

__all__ = [
    "agent",
    "attempt_ends",
    "attempt_starts",
    "dimensions",
    "error_type",
    "input_content",
    "is_streamed",
    "output_content",
    "run_ends",
    "run_output",
    "run_starts",
    "tool_ends",
    "tool_input",
    "tool_output",
    "tool_starts",
]

Attributes = dict[str, Any]

#: The name of a run that nobody has named.
_NAMELESS = "agent"

#: The parameters of a request that have an attribute: its name, and what kind of value it takes.
_PARAMS: dict[str, tuple[str, Any]] = {
    "temperature": (names.REQUEST_TEMPERATURE, float),
    "top_p": (names.REQUEST_TOP_P, float),
    "top_k": (names.REQUEST_TOP_K, int),
    "max_tokens": (names.REQUEST_MAX_TOKENS, int),
    "max_completion_tokens": (names.REQUEST_MAX_TOKENS, int),
    "max_output_tokens": (names.REQUEST_MAX_TOKENS, int),
    "frequency_penalty": (names.REQUEST_FREQUENCY_PENALTY, float),
    "presence_penalty": (names.REQUEST_PRESENCE_PENALTY, float),
    "seed": (names.REQUEST_SEED, int),
}


def _place(what: WatchedRun | WatchedAttempt) -> tuple[str, str | None, int | None]:
    """Return the provider's name, and the server's host and port."""
    if what.base_url is None:
        return names.provider(what.style, None), None, None
    parts = urlsplit(what.base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return names.provider(what.style, parts.hostname), parts.hostname, port


def dimensions(operation: str, what: WatchedRun | WatchedAttempt) -> Attributes:
    """Return what spans and metrics have in common; its values are few."""
    provider, host, port = _place(what)
    found: Attributes = {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: provider,
        names.REQUEST_MODEL: what.model,
    }
    if host is not None:
        found |= {names.SERVER_ADDRESS: host, names.SERVER_PORT: port}
    return found


def error_type(error: BaseException) -> str:
    """Return the class of an error: the ``kind`` of ours, the name of others."""
    return error.kind if isinstance(error, ToolnexusError) else type(error).__name__


def _failed(error: BaseException | None) -> Attributes:
    if error is None:
        return {}
    status = getattr(error, "status", None)
    found: Attributes = {names.ERROR_TYPE: error_type(error)}
    return found | ({names.HTTP_STATUS: status} if isinstance(status, int) else {})


def _common(run: WatchedRun) -> Attributes:
    return {names.RUN_ID: run.run_id} | ({names.CONVERSATION_ID: run.id} if run.id is not None else {})


def _tokens(usage: Usage) -> Attributes:
    found: Attributes = {
        names.USAGE_INPUT_TOKENS: usage.prompt_tokens,
        names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
    }
    more = {
        names.USAGE_CACHE_READ: usage.cached_tokens,
        names.USAGE_CACHE_CREATION: usage.cache_write_tokens,
        names.USAGE_REASONING: usage.reasoning_tokens,
    }
    return found | {name: count for name, count in more.items() if count} if usage != Usage() else {}


# -- runs ------------------------------------------------------------------------------------


def run_starts(run: WatchedRun) -> Attributes:
    """Return what is known of a run when it begins."""
    return {**dimensions(names.INVOKE_AGENT, run), **_common(run), **agent(run)}


def agent(run: WatchedRun) -> Attributes:
    """Return the agent's name, where somebody has given it one."""
    return {} if run.name == _NAMELESS else {names.AGENT_NAME: run.name}


def run_ends(run: WatchedRun) -> Attributes:
    """Return what is known of a run when it has ended."""
    reached = run.reached
    found = {names.RUN_STATUS: reached.status, **_tokens(reached.usage), **_failed(run.error)}
    if reached.limit is not None:
        found[names.RUN_LIMIT] = reached.limit
    if reached.model:
        found[names.RESPONSE_MODEL] = reached.model
    reason = reached.raw_finish_reason or reached.finish_reason
    return found | ({names.RESPONSE_FINISH_REASONS: [reason]} if reason else {})


# -- tries of a model call -------------------------------------------------------------------


def attempt_starts(call: WatchedAttempt) -> Attributes:
    """Return what is known of a try when it begins."""
    found = {
        **dimensions(names.CHAT, call),
        **_common(call.run),
        names.TURN: call.turn,
        names.ATTEMPT: call.attempt,
    }
    for key, (name, kind) in _PARAMS.items():
        value = call.params.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = kind(value)
    if isinstance(call.params.get("n"), int) and call.params["n"] != 1:
        found[names.REQUEST_CHOICE_COUNT] = call.params["n"]
    stop = call.params.get("stop", call.params.get("stop_sequences"))
    if isinstance(stop, (str, list, tuple)) and stop:
        found[names.REQUEST_STOP_SEQUENCES] = [stop] if isinstance(stop, str) else [str(s) for s in stop]
    return found


def attempt_ends(call: WatchedAttempt) -> Attributes:
    """Return what is known of a try when it has ended."""
    found = {**_tokens(call.usage), **_failed(call.error)}
    if is_streamed(call):
        found[names.REQUEST_STREAM] = True
        if call.time_to_first_token is not None:
            found[names.RESPONSE_TIME_TO_FIRST_CHUNK] = call.time_to_first_token
    reply = call.reply
    if reply is not None:
        found[names.RESPONSE_FINISH_REASONS] = [reply.raw_finish_reason or reply.finish_reason]
        more = {names.RESPONSE_MODEL: reply.model, names.RESPONSE_ID: reply.id}
        found |= {name: value for name, value in more.items() if value}
    return found


def is_streamed(call: WatchedAttempt) -> bool:
    """Tell whether the answer was asked for as a stream."""
    return call.request is not None and call.request.stream


# -- tool calls ------------------------------------------------------------------------------


def tool_starts(call: WatchedTool) -> Attributes:
    """Return what is known of a tool call when it begins."""
    found = {
        names.OPERATION_NAME: names.EXECUTE_TOOL,
        **_common(call.run),
        names.TOOL_NAME: call.name,
        names.TOOL_TYPE: "function",
        names.TOOL_CALL_ID: call.id,
        names.TOOL_SOURCE: call.source,
        names.TURN: call.turn,
    }
    if call.tool is not None and call.tool.description:
        found[names.TOOL_DESCRIPTION] = call.tool.description
    return found


def tool_ends(call: WatchedTool) -> Attributes:
    """Return what is known of a tool call when it has ended."""
    if call.pending:
        return {names.TOOL_PENDING: True}
    if call.error is not None:
        return {names.ERROR_TYPE: error_type(call.error)}
    return {names.ERROR_TYPE: "tool_error"} if call.is_error else {}


# -- content, only where it was asked for ----------------------------------------------------


def input_content(messages: Iterable[Message], system: str | None) -> Attributes:
    """Return what was sent."""
    found = {names.INPUT_MESSAGES: _json([_message(m) for m in messages if m.get("role") != "system"])}
    return found | ({names.SYSTEM_INSTRUCTIONS: _json([_text(system)])} if system else {})


def output_content(reply: Reply) -> Attributes:
    """Return what was answered."""
    parts = _message(reply.message)["parts"]
    if reply.thinking:
        parts = [{"type": "reasoning", "content": reply.thinking}, *parts]
    answer = {"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason}
    return {names.OUTPUT_MESSAGES: _json([answer])}


def tool_input(call: WatchedTool) -> Attributes:
    """Return the arguments of a tool call."""
    return {} if call.args is None else {names.TOOL_CALL_ARGUMENTS: _json(call.args)}


def tool_output(call: WatchedTool) -> Attributes:
    """Return the result of a tool call."""
    return {} if call.result is None else {names.TOOL_CALL_RESULT: call.result.output}


def run_output(run: WatchedRun) -> Attributes:
    """Return the answer of a run."""
    reached = run.reached
    reason = reached.finish_reason or "error"
    answer = {"role": "assistant", "parts": [_text(reached.text)], "finish_reason": reason}
    return {names.OUTPUT_MESSAGES: _json([answer])}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _message(message: Message) -> dict[str, Any]:
    """Return a message of the transcript in the conventions' shape."""
    content = message.get("content")
    if message.get("role") == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return {"role": "tool", "parts": [answer]}
    pieces = content if isinstance(content, list) else [content] if content else []
    parts = [_part(piece) for piece in pieces]
    parts += [_call(call) for call in message.get("tool_calls") or ()]
    return {"role": message.get("role"), "parts": parts}


def _part(piece: Any) -> dict[str, Any]:
    """Return a piece of a message; of an image or a file only that it was there, for it may be large."""
    if isinstance(piece, str):
        return _text(piece)
    if isinstance(piece, Mapping) and isinstance(piece.get("text"), str):
        return _text(piece["text"])
    return {"type": str(piece.get("type")) if isinstance(piece, Mapping) else type(piece).__name__}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments: Any = function.get("arguments")
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        arguments = json.loads(arguments)
    return {"type": "tool_call", "id": call.get("id"), "name": function.get("name"), "arguments": arguments}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
