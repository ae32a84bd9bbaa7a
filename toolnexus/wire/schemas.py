"""Tool schemas in the form that endpoints of few words take."""

from __future__ import annotations

from typing import Any

__all__ = ["loosened"]

#: What only makes a schema stricter: without it every right call is still right.
_STRICT = ("additionalProperties", "strict", "$schema")

#: The keys under which names are the user's own, not the schema language's.
_NAMED = ("properties", "$defs", "definitions", "patternProperties")


def loosened(value: Any) -> Any:
    """
    Return tool declarations without the keys that some endpoints refuse.

    >>> loosened(
    ...     {"strict": True, "properties": {"strict": {"type": "object", "additionalProperties": False}}}
    ... )
    {'properties': {'strict': {'type': 'object'}}}
    """
    if isinstance(value, list):
        return [loosened(item) for item in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, item in value.items():
        if key in _NAMED and isinstance(item, dict):
            out[key] = {name: loosened(inner) for name, inner in item.items()}
        elif key in ("enum", "const", "default", "examples"):
            out[key] = item
        elif key not in _STRICT:
            out[key] = loosened(item)
    return out
