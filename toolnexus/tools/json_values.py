"""What JSON says about single values: their types, when they are the same, how they are shown."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["TYPE_NAMES", "is_type", "same", "show", "spot"]

#: The types of JSON schema, in words.
TYPE_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal, as JSON sees it: 1 is 1.0, but true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def show(value: Any) -> str:
    """Return a value as JSON, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def spot(path: str, message: str) -> str:
    """Return a message with the place that it is about."""
    return f"{path.lstrip('.')}: {message}" if path else message


def is_type(name: str, value: Any) -> bool:
    """Whether a value is of a JSON type; of a type that JSON does not have, every value is."""
    if name == "integer":
        if isinstance(value, float):
            return value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if name == "null":
        return value is None
    cls = {"string": str, "boolean": bool, "array": list, "object": dict}.get(name)
    return cls is None or isinstance(value, cls)
