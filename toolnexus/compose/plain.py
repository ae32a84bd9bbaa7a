"""Events as plain JSON, for whatever carries them further."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import attrs

from toolnexus.errors import APIError, ToolnexusError
from toolnexus.events import AttemptFailed, Done, Error, Event, Pending, UsageReport

__all__ = ["error_to_dict", "event_to_dict"]

_ORIGIN = ("origin", "seq", "timestamp")

#: How deep a value is looked into that is inside itself, or nearly so.
_DEEPEST = 20

#: How many lists and dicts may be in each other: Python versions differ in how many they can write.
_DEEP = 500

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACKET = re.compile(r"[\[\]{}]")


def event_to_dict(event: Event) -> dict[str, Any]:
    """
    Return an event as plain JSON: its type, its own fields, and where it comes from.

    >>> from toolnexus import Text
    >>> data = event_to_dict(Text("Hel"))
    >>> data["type"], data["delta"], data["namespace"]
    ('text', 'Hel', [])
    """
    return {
        "type": event.type,
        **_fields(event),
        "run_id": event.run_id,
        "namespace": list(event.namespace),
        "node": event.node,
        "step": event.step,
        "message_id": event.message_id,
        "attempt": event.attempt,
        "seq": event.seq,
        "timestamp": event.timestamp,
    }


def _fields(event: Event) -> dict[str, Any]:
    if isinstance(event, Done):
        return {"result": _plain(event.result.to_dict())}
    if isinstance(event, Error):
        partial = event.partial
        return {
            "error": error_to_dict(event.error),
            "partial": None if partial is None else _plain(partial.to_dict()),
        }
    if isinstance(event, AttemptFailed):
        error = error_to_dict(event.error)
        return {"number": event.number, "error": error, "will_retry": event.will_retry, "text": event.text}
    if isinstance(event, Pending):
        return {"request": _plain(event.request.to_dict())}
    if isinstance(event, UsageReport):
        return {"usage": event.usage.to_dict()}
    names = [field.name for field in attrs.fields(type(event)) if field.name not in _ORIGIN]
    return {name: _plain(getattr(event, name)) for name in names}


def error_to_dict(error: ToolnexusError) -> dict[str, Any]:
    """Return what a person needs of an error, without what the provider sent as a whole."""
    data: dict[str, Any] = {
        "class": type(error).__name__,
        "kind": error.kind,
        "message": error.message,
        "retryable": error.retryable,
        "attempt": error.attempt,
    }
    if isinstance(error, APIError):
        for name in ("status", "type", "code", "param", "request_id", "retry_after"):
            data[name] = getattr(error, name)
    return data


def _plain(value: Any) -> Any:
    """Return a value as plain JSON; what has no JSON form becomes text."""
    if isinstance(value, (str, int, bool, type(None))):
        return value
    try:
        text = json.dumps(value, default=_shown, allow_nan=False)
        if not _is_deep(text):
            return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # odd keys or numbers, or it is inside itself
        pass
    return _mended(value, _DEEPEST)


def _is_deep(text: str) -> bool:
    """Tell whether JSON text has more in each other than every reader can take; how much one can, differs."""
    if text.count("[") + text.count("{") <= _DEEP:
        return False
    depth = most = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        most = max(most, depth)
    return most > _DEEP


def _mended(value: Any, depth: int) -> Any:
    """Return a value as plain JSON, where that takes a look at each part of it."""
    if isinstance(value, (str, int, bool, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (dict, list, tuple)) and not depth:
        return "..."
    if isinstance(value, dict):
        return {_key(key): _mended(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mended(item, depth - 1) for item in value]
    return _shown(value)


def _key(key: Any) -> str:
    """Return a key as JSON has it."""
    if isinstance(key, (bool, type(None))):
        return json.dumps(key)
    return _shown(key)


def _shown(value: Any) -> str:
    """Return the text of an object, whatever its class thinks of that."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the class is the user's; an event is not lost over it
        return f"<{type(value).__name__}>"
