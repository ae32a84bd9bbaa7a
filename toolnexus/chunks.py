"""What one model call yields, in the same terms for every provider."""

from __future__ import annotations

import json
import math
import re
import secrets
from typing import Any, Literal

import attrs

from toolnexus.errors import ToolnexusError
from toolnexus.results import FinishReason, Message, Usage
from toolnexus.values import Value

__all__ = [
    "Chunk",
    "Reply",
    "ToolRequest",
    "after_space",
    "call_id",
    "decode_arguments",
    "finish_reason",
    "mend_deep",
    "mend_surrogates",
    "parse_arguments",
]

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
        cls,
        index: int | None,
        id: str | None = None,  # noqa: A002 - the provider's word
        name: str | None = None,
        arguments: str = "",
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


_WORDS: dict[FinishReason, str] = {
    "stop": "stop end_turn stop_sequence completed eos",
    "length": "length max_tokens max_output_tokens model_context_window_exceeded incomplete",
    "tool_calls": "tool_calls function_call tool_use",
    "content_filter": "content_filter safety recitation blocklist prohibited_content spii image_safety "
    "image_prohibited_content image_recitation model_armor language sensitive refusal",
    "pause": "pause_turn",
    "error": "error malformed_function_call malformed_response unexpected_tool_call too_many_tool_calls "
    "missing_thought_signature failed cancelled network_error insufficient_system_resource",
    "unknown": "other image_other no_image finish_reason_unspecified unknown",
}
_FINISH = {word: reason for reason, words in _WORDS.items() for word in words.split()}


def finish_reason(raw: str | None) -> FinishReason | None:
    """
    Normalise a provider's word for why an answer ended; a word that is not known is "stop".

    >>> finish_reason("MAX_TOKENS"), finish_reason("tool_use"), finish_reason("whatever"), finish_reason(None)
    ('length', 'tool_calls', 'stop', None)
    """
    if raw is None:
        return None
    raw = raw.lower()
    # Gemini's word for a prompt that it does not answer has the reason behind it.
    return "content_filter" if raw.startswith("blockreason:") else _FINISH.get(raw, "stop")


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


def mend_deep(value: Any) -> Any:
    """
    Return a JSON value with every text in it mended; the value itself where there is nothing to mend.

    >>> mend_deep({"a": ["\\ud83d\\ude00", 1]}) == {"a": ["\U0001f600", 1]}
    True
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return _mended(value)
    except (TypeError, ValueError, RecursionError):
        pass  # no JSON: whoever sends it says so
    return value


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return mend_surrogates(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value


def _finite(text: str) -> float:
    """Return a number that has a JSON form; ValueError for NaN, Infinity and what is too large."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)

#: Deeper arguments would break whoever walks them; no tool takes such.
_MAX_DEPTH = 100

#: An escape that stands for half a surrogate pair.
_HALF = r"\\u[dD][89a-fA-F]"


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """
    Decode the arguments of a tool call.

    Nothing and null are no arguments. What follows a whole object and only repeats it is dropped, and
    so is an empty object in front of the real one, with which some servers open a call.

    Returns:
        The arguments and None, or None and what is wrong with the text.

    >>> parse_arguments(""), parse_arguments('{"a": 1}{"a":1}'), parse_arguments('{}{"a": 1}')
    (({}, None), ({'a': 1}, None), ({'a': 1}, None))
    >>> parse_arguments("[1]")
    (None, 'the arguments must be a JSON object, not a list')
    """
    text = mend_surrogates(text).strip()
    if not text:
        return {}, None
    try:
        value = decode_arguments(text)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not valid JSON: {error}"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        kind = {"list": "a list", "str": "a string", "bool": "a boolean"}.get(
            type(value).__name__, "a number"
        )
        return None, f"the arguments must be a JSON object, not {kind}"
    if text.count("{") + text.count("[") > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
        return None, f"the arguments are nested deeper than {_MAX_DEPTH} levels"
    return _mended(value) if re.search(_HALF, text) else value, None


def decode_arguments(text: str) -> Any:
    """
    Return the JSON value of a text that begins with it and may repeat it.

    Raises:
        ValueError: Something else follows, or the value is cut or broken.
        RecursionError: It is nested too deep to be decoded.
    """
    value, position = _DECODER.raw_decode(text, after_space(text, 0))
    while (position := after_space(text, position)) < len(text):
        following, position = _DECODER.raw_decode(text, position)
        if value == {} and isinstance(following, dict):
            value = following
        elif following != value:
            raise ValueError("more text follows the object")
    return value


def after_space(text: str, position: int) -> int:
    """Return the position of what follows the white space at a position."""
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _depth(value: Any) -> int:
    """Return how deep lists and objects are nested, looking no deeper than matters."""
    level, depth = [value], 0
    while level and depth <= _MAX_DEPTH:
        depth += 1
        inner = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    return depth
