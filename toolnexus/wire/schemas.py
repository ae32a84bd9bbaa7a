"""Schemas as requests hold them: of tools for endpoints of few words, and of answers."""

from __future__ import annotations

from typing import Any

from toolnexus.tools.adapt import plain, strict_or_none

__all__ = ["answer_schema", "loosened"]

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


def answer_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """
    Return the keys that say which schema an answer shall have: strictly, where strict mode can say it.

    Elsewhere the schema goes as it is: a map that strict mode turns into an object without keys would
    make every right answer impossible.

    >>> answer_schema({"type": "object", "properties": {"a": {"type": "integer"}}})["strict"]
    True
    >>> answer_schema({"type": "object", "additionalProperties": {"type": "integer"}})["strict"]
    False
    """
    exact = strict_or_none(schema)
    return {"schema": plain(schema) if exact is None else exact, "strict": exact is not None}
