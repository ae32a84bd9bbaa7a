"""Making a message of what a user passes as prompt, and checking a history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolnexus.chunks import mend_deep, mend_surrogates
from toolnexus.errors import ConfigurationError
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message

__all__ = ["WAITING_KEY", "check_history", "to_message"]

#: Where, under our key of an assistant message, the calls stand that wait for a person.
WAITING_KEY = "pending"

_ROLES = ("system", "developer", "user", "assistant", "tool")


def to_message(prompt: Any) -> Message:
    """
    Return the user message for a prompt.

    Args:
        prompt: A text, an `Image` or `File`, or a list of texts, images, files and OpenAI-shaped parts.

    Raises:
        ConfigurationError: It is none of these, or empty.

    >>> to_message("Hi")
    {'role': 'user', 'content': 'Hi'}
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty")
        return {"role": "user", "content": mend_surrogates(prompt)}
    if _is_part(prompt):
        prompt = [prompt]
    if not isinstance(prompt, Iterable) or isinstance(prompt, (bytes, dict)):
        raise ConfigurationError(f"the prompt must be a text or a list of parts, not {type(prompt).__name__}")
    parts = [_part(item) for item in prompt]
    # A blank text beside something else is refused by some providers.
    parts = [part for part in parts if part["type"] != "text" or str(part.get("text") or "").strip()]
    if not parts:
        raise ConfigurationError("the prompt is empty")
    return {"role": "user", "content": parts}


def _part(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": mend_surrogates(item)}
    if _is_part(item):
        part: dict[str, Any] = item.to_part()
        return part
    if _is_part_dict(item):
        mended: dict[str, Any] = mend_deep(item)
        return mended
    raise ConfigurationError(
        f"a part of the prompt must be a text, an Image, a File or a part dict, not {item!r:.80}"
    )


def _is_part_dict(item: Any) -> bool:
    """Tell whether it is a part; those that every dialect translates must have what is translated."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    kind = item["type"]
    if kind == "text":
        return isinstance(item.get("text") or "", str)
    inner = item.get(kind)
    if kind == "image_url":
        return isinstance(inner, dict) and isinstance(inner.get("url"), str)
    return kind != "file" or (isinstance(inner, dict) and isinstance(inner.get("file_data") or "", str))


def _is_part(item: Any) -> bool:
    """Tell whether it is an `Image` or a `File`, without importing them for the many who need neither."""
    return callable(getattr(item, "to_part", None))


def check_history(history: Any) -> list[Message]:
    """
    Return a copy of a history.

    Raises:
        ConfigurationError: It is no list of message dicts.
    """
    if isinstance(history, (str, bytes, dict)) or not isinstance(history, Iterable):
        raise ConfigurationError("history must be a list of message dicts")
    messages = list(history)
    for position, message in enumerate(messages):
        problem = _problem(message)
        if problem is not None:
            raise ConfigurationError(f"history[{position}] {problem}")
    return messages


def _problem(message: Any) -> str | None:
    """Return what is wrong with a message, or None."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return f"is no message with a role of {', '.join(_ROLES)}"
    content = message.get("content")
    if isinstance(content, list):
        if not all(map(_is_part_dict, content)):
            return "has a content list with something that is no part dict with a type and what belongs to it"
    elif content is not None and not isinstance(content, str):
        return f"has a content of type {type(content).__name__}; it must be a text, a list of parts or None"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "is a tool result without a tool_call_id"
    if not all(map(_is_call, message.get("tool_calls") or ())):
        return "has a tool call without an id, a name or arguments"
    if not _is_ours(message.get(PROVIDER_KEY)):
        return f"has something under {PROVIDER_KEY!r} that is not of ours"
    return None


def _is_ours(own: Any) -> bool:
    """Tell whether what stands under our key can be read: calls that wait have a request each."""
    if own is None:
        return True
    waiting = (own.get(WAITING_KEY) or []) if isinstance(own, dict) else None
    return isinstance(waiting, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("request"), dict) for entry in waiting
    )


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(call.get("id"), str)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )
