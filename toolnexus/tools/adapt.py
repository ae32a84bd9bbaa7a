"""
Making a tool's schema fit what a provider accepts.

Every provider takes a subset of JSON Schema of its own and refuses the whole request for one
keyword it does not know. What is left out here only loosens a schema: the arguments are checked
against the original before the tool runs.
"""

from __future__ import annotations

from typing import Any

from toolnexus.tools.schema_mending import mended
from toolnexus.tools.schema_parts import Schema, names, resolved

__all__ = ["for_gemini", "plain", "strict", "strict_or_none"]

_COMBINERS = ("anyOf", "oneOf", "allOf")

#: How deep combiners within combiners are merged.
_DEPTH = 8


def plain(schema: Any) -> Schema:
    """
    Return a schema that OpenAI-style and Anthropic-style endpoints take.

    It is a valid object schema without combiners at the top; local references stay.

    >>> plain({"$schema": "x", "properties": {"a": {}}, "required": ["a", "ghost"]})
    {'properties': {'a': {}}, 'required': ['a'], 'type': 'object'}
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    top = resolved(schema, schema) if "$ref" in schema else schema
    out = mended(_flat(top if isinstance(top, dict) else {}, schema, 0))
    out["type"] = "object"
    out.setdefault("properties", {})
    if "required" in out:
        out["required"] = [name for name in out["required"] if name in out["properties"]]
        if not out["required"]:
            del out["required"]
    return out


def _flat(schema: Schema, root: Schema, depth: int) -> Schema:
    """Merge the branches of a combiner at the top: all of allOf, what any of anyOf and oneOf may have."""
    if not any(combiner in schema for combiner in _COMBINERS):
        return schema
    out = {k: v for k, v in schema.items() if k not in _COMBINERS}
    if depth >= _DEPTH:
        return out
    properties = dict(_map(out.get("properties")))
    required = names(out.get("required"))
    for branch in _branches(schema.get("allOf"), root, depth):
        properties = {**_map(branch.get("properties")), **properties}
        required += names(branch.get("required"))
    for combiner in ("anyOf", "oneOf"):
        branches = _branches(schema.get(combiner), root, depth)
        properties = {**_united([_map(branch.get("properties")) for branch in branches]), **properties}
        required += _in_all([names(branch.get("required")) for branch in branches])
    out["properties"], out["required"] = properties, names(required)
    return out


def _branches(branches: Any, root: Schema, depth: int) -> list[Schema]:
    """Return the branches that are about objects, each without combiners at its top."""
    found = [resolved(branch, root) for branch in branches] if isinstance(branches, list) else []
    return [_flat(branch, root, depth + 1) for branch in found if _may_be_object(branch)]


def _may_be_object(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type", "object")
    return "object" in kinds if isinstance(kinds, list) else kinds == "object"


def _united(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each property the alternatives that the branches have for it."""
    found: dict[str, list[Any]] = {}
    for branch in branches:
        for name, schema in branch.items():
            alternatives = found.setdefault(name, [])
            if schema not in alternatives:
                alternatives.append(schema)
    return {name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in found.items()}


def _in_all(lists: list[list[str]]) -> list[str]:
    return [name for name in lists[0] if all(name in other for other in lists)] if lists else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def strict(schema: Any) -> Schema:
    """
    Return a schema for OpenAI's strict mode: everything is required, what was optional may be null.

    >>> strict({"properties": {"a": {"type": "integer"}}})["properties"]["a"]
    {'type': ['integer', 'null']}
    """
    from toolnexus.tools.schema_strict import Strict

    return Strict().top(plain(schema))


def strict_or_none(schema: Any) -> Schema | None:
    """
    Return a schema for OpenAI's strict mode, or None where strict mode cannot say what it says.

    Strict mode has no values of any type, no maps, no objects with further keys, no lengths of texts, and
    no conditions.

    >>> strict_or_none({"properties": {"a": {}}}) is None
    True
    """
    from toolnexus.tools.schema_strict import Strict

    walk = Strict()
    out = walk.top(plain(schema))
    return out if walk.exact else None


def for_gemini(schema: Any) -> Schema:
    """
    Return a schema in the subset that Gemini's function declarations take.

    References are written out, types have one name each, null becomes ``nullable``.

    >>> for_gemini({"properties": {"a": {"type": ["integer", "null"]}}})["properties"]["a"]
    {'type': 'integer', 'nullable': True}
    """
    from toolnexus.tools.schema_gemini import Gemini

    return Gemini(plain(schema)).top()
