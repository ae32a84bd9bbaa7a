"""Making a message of what a user passes as prompt, and checking a history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolnexus.chunks import mend_surrogates
from toolnexus.errors import ConfigurationError
from toolnexus.results import Message

__all__ = ["check_history", "to_message"]

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
    if not parts:
        raise ConfigurationError("the prompt is empty")
    return {"role": "user", "content": parts}


def _part(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": mend_surrogates(item)}
    if _is_part(item):
        part: dict[str, Any] = item.to_part()
        return part
    if isinstance(item, dict) and isinstance(item.get("type"), str):
        return item
    raise ConfigurationError(f"a part of the prompt must be a text, an Image, a File or a part dict, not {item!r:.80}")


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
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ConfigurationError(f"history[{position}] is no message with a role of {', '.join(_ROLES)}")
    return messages
