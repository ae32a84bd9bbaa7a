"""What one model call yields, in the same terms for every provider."""

from __future__ import annotations

import json
import secrets
from typing import Any, Literal

import attrs

from toolnexus.errors import ToolnexusError
from toolnexus.results import FinishReason, Message, Usage
from toolnexus.values import Value

__all__ = ["Chunk", "Reply", "ToolRequest", "call_id", "finish_reason", "mend_surrogates", "parse_arguments"]

ChunkType = Literal["text_delta", "thinking_delta", "tool_call_delta", "usage", "done"]


@attrs.frozen(eq=False, repr=False)
class Chunk(Value):
    """
    One piece of one model call.

    Args:
        type: "text_delta", "thinking_delta", "tool_call_delta", "usage" or "done".
        text: The piece of text or of reasoning.
        index: The position of a tool call, where the provider gives one.
        id: The tool call's id, where this piece has it.
        name: The tool's name, where this piece has it.
        arguments: A raw fragment of the arguments' JSON.
        usage: Token counts.
        finish_reason: Why the answer ended.
        error: What went wrong, where the call failed.
    """

    type: ChunkType
    text: str = ""
    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    error: ToolnexusError | None = None

    @classmethod
    def text_delta(cls, text: str) -> Chunk:
        """Return a piece of the answer."""
        return cls("text_delta", text)

    @classmethod
    def thinking_delta(cls, text: str) -> Chunk:
        """Return a piece of the reasoning."""
        return cls("thinking_delta", text)

    @classmethod
    def tool_call_delta(
        cls, index: int | None, id: str | None = None, name: str | None = None, arguments: str = ""  # noqa: A002
    ) -> Chunk:
        """Return a fragment of a tool call."""
        return cls("tool_call_delta", "", index, id, name, arguments)

    @classmethod
    def usage_report(cls, usage: Usage) -> Chunk:
        """Return token counts."""
        return cls("usage", usage=usage)

    @classmethod
    def done(cls, reason: FinishReason = "stop", error: ToolnexusError | None = None) -> Chunk:
        """Return the end of the call."""
        return cls("done", finish_reason=reason, error=error)

    @classmethod
    def failed(cls, error: ToolnexusError) -> Chunk:
        """Return the end of a call that failed."""
        return cls.done("error", error)


@attrs.frozen(eq=False, repr=False)
class ToolRequest(Value):
    """
    A tool call as the model asked for it.

    Args:
        id: The call's id; made up where the provider gave none.
        name: The tool's name.
        args: The decoded arguments; None where they are no JSON object.
        arguments: Their JSON text, as it came.
        error: What is wrong with the arguments, or None.
    """

    id: str
    name: str
    args: dict[str, Any] | None
    arguments: str = "{}"
    error: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Reply(Value):
    """
    One whole answer of a model.

    Args:
        text: The text.
        thinking: The reasoning.
        message: The neutral assistant message for the transcript.
        calls: The tool calls in order.
        finish_reason: Why it ended, normalised.
        raw_finish_reason: The same in the provider's own word; None where it gave none.
        usage: Token counts; None where the provider said nothing.
        model: The model's name, as the provider gives it.
        id: The provider's id of the answer.
        refusal: The model's refusal, or None.
    """

    text: str = ""
    thinking: str = ""
    message: Message = attrs.field(factory=dict)
    calls: tuple[ToolRequest, ...] = ()
    finish_reason: FinishReason = "stop"
    raw_finish_reason: str | None = None
    usage: Usage | None = None
    model: str = ""
    id: str = ""
    refusal: str | None = None


_FINISH: dict[str, FinishReason] = {
    word: reason
    for reason, words in {
        "stop": "stop end_turn stop_sequence completed eos",
        "length": "length max_tokens max_output_tokens model_context_window_exceeded incomplete",
        "tool_calls": "tool_calls function_call tool_use",
        "content_filter": "content_filter safety recitation blocklist prohibited_content spii image_safety "
        "language sensitive refusal",
        "pause": "pause_turn",
        "error": "error malformed_function_call unexpected_tool_call failed network_error "
        "insufficient_system_resource",
        "unknown": "other finish_reason_unspecified unknown",
    }.items()
    for word in words.split()
}


def finish_reason(raw: str | None) -> FinishReason | None:
    """
    Normalise a provider's word for why an answer ended; a word that is not known is "stop".

    >>> finish_reason("MAX_TOKENS"), finish_reason("tool_use"), finish_reason("whatever"), finish_reason(None)
    ('length', 'tool_calls', 'stop', None)
    """
    if raw is None:
        return None
    return _FINISH.get(raw.lower(), "stop")


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def call_id() -> str:
    """Make up a call id: nine letters and digits, the one form that every provider takes."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


def mend_surrogates(text: str) -> str:
    """
    Join surrogate halves and replace those that have no partner by U+FFFD.

    >>> mend_surrogates("a\\ud83d\\ude00b\\udc9d") == "a\\U0001f600b\\ufffd"
    True
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_DECODER = json.JSONDecoder(strict=False)


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """
    Decode the arguments of a tool call.

    Nothing and null are no arguments. What follows a whole object and only repeats it is dropped.

    Returns:
        The arguments and None, or None and what is wrong with the text.

    >>> parse_arguments(""), parse_arguments('{"a": 1}{"a": 1}')
    (({}, None), ({'a': 1}, None))
    >>> parse_arguments("[1]")
    (None, 'the arguments must be a JSON object, not a list')
    """
    stripped = mend_surrogates(text).strip()
    if not stripped:
        return {}, None
    try:
        value, end = _DECODER.raw_decode(stripped)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not valid JSON: {error}"
    if not _repeats(stripped[:end], stripped[end:]):
        return None, "the arguments are not valid JSON: more text follows the object"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        kind = {"list": "a list", "str": "a string", "bool": "a boolean"}.get(type(value).__name__, "a number")
        return None, f"the arguments must be a JSON object, not {kind}"
    return value, None


def _repeats(whole: str, rest: str) -> bool:
    """Tell whether a rest is nothing but repetitions of the whole, the last one possibly cut."""
    rest = rest.strip()
    while rest.startswith(whole):
        rest = rest[len(whole) :].strip()
    return not rest
