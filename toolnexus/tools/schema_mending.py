"""
Making a schema valid JSON Schema (draft 2020-12), whatever it was.

Schemas come from servers and documents that nobody checked, and an endpoint refuses the whole
request for one that is not valid. What cannot be mended is left out, which only loosens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from toolnexus.tools.schema_parts import Schema, names, target_of

__all__ = ["mended"]

#: Keywords that endpoints need not see; the last ones would be stricter once something else is left out.
_DROPPED = frozenset((
    "$schema", "$id", "$anchor", "$comment", "$vocabulary", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
    "$recursiveAnchor", "dependencies", "additionalItems", "unevaluatedItems", "unevaluatedProperties",
))  # fmt: skip
_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))

#: How deep schemas are read; below that anything goes.
_MAX_DEPTH = 60

_LEAVE_OUT: Any = object()


def mended(schema: Schema) -> Schema:
    """
    Return a valid schema that takes at least what the given one takes.

    Its local references stay where they lead somewhere; values that JSON does not have are left out.

    >>> mended({"type": "any", "required": True, "default": float("inf"), "items": [{"type": "string"}]})
    {'prefixItems': [{'type': 'string'}]}
    """
    return _Mender(schema).node(schema, 0)


class _Mender:
    def __init__(self, root: Schema) -> None:
        self.root = root

    def node(self, schema: Schema, depth: int) -> Schema:
        """Return a mended schema that is a dict."""
        if depth > _MAX_DEPTH:
            return {}
        out: Schema = {}
        for key, value in schema.items():
            if key in _DROPPED or not isinstance(key, str):
                continue
            rule = _RULES.get(key)
            kept = rule(self, value, depth + 1) if rule is not None else _json(self, value, depth)
            if kept is not _LEAVE_OUT:
                out[key] = kept
        self._of_older_drafts(schema, out, depth)
        self._consistent(schema, out)
        return out

    def schema(self, value: Any, depth: int) -> Any:
        """Return a mended schema, or anything for what is none."""
        if isinstance(value, dict):
            return self.node(value, depth)
        return value if isinstance(value, bool) else {}

    def _of_older_drafts(self, schema: Schema, out: Schema, depth: int) -> None:
        """Say in today's words what older drafts said otherwise."""
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if schema.get(exclusive) is True and bound in out:
                out[exclusive] = out.pop(bound)
        if isinstance(schema.get("items"), list):
            out.setdefault("prefixItems", [self.schema(item, depth + 1) for item in schema["items"]])
            if not out["prefixItems"]:
                del out["prefixItems"]
            if isinstance(schema.get("additionalItems"), (dict, bool)):
                out["items"] = self.schema(schema["additionalItems"], depth + 1)

    def _consistent(self, schema: Schema, out: Schema) -> None:
        """Leave out what no longer means the same because something beside it is not as it was."""
        for key in ("properties", "patternProperties"):
            if key in schema and key not in out:
                out.pop("additionalProperties", None)
        if "properties" in out and "required" in out:
            out["required"] = [name for name in out["required"] if name in out["properties"]]
        if not out.get("required", True):
            del out["required"]
        if "not" in out and _loosened(schema["not"], out["not"]):
            del out["not"]
        if "if" not in out or _loosened(schema["if"], out["if"]):
            for key in ("if", "then", "else"):
                out.pop(key, None)
        if "oneOf" in out and _loosened(schema["oneOf"], out["oneOf"]):
            alternatives = out.pop("oneOf")
            out.setdefault("anyOf", alternatives)


def _loosened(before: Any, after: Any) -> bool:
    """Whether something may take more than before: itself, or what it refers to."""
    return after != before or _refers(after)


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _json(mender: _Mender, value: Any, depth: int) -> Any:
    return value if _is_json(value, 0) else _LEAVE_OUT


def _is_json(value: Any, depth: int) -> bool:
    """Whether a value can be sent as it is."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_json(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_json(v, depth + 1) for k, v in value.items())
    return False


# -- what each keyword may hold --------------------------------------------------------------


def _schema(mender: _Mender, value: Any, depth: int) -> Any:
    return mender.schema(value, depth) if isinstance(value, (dict, bool)) else _LEAVE_OUT


def _schemas(mender: _Mender, value: Any, depth: int) -> Any:
    return [mender.schema(v, depth) for v in value] if isinstance(value, list) and value else _LEAVE_OUT


def _map(mender: _Mender, value: Any, depth: int) -> Any:
    if not isinstance(value, dict):
        return _LEAVE_OUT
    return {name: mender.schema(v, depth) for name, v in value.items() if isinstance(name, str)}


def _type(mender: _Mender, value: Any, depth: int) -> Any:
    if isinstance(value, str) and value in _TYPES:
        return value
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
        return _LEAVE_OUT
    kinds = names([kind.lower() for kind in kinds])
    if not _TYPES.issuperset(kinds):
        return _LEAVE_OUT
    return kinds[0] if len(kinds) == 1 else kinds


def _values(mender: _Mender, value: Any, depth: int) -> Any:
    return list(value) if isinstance(value, (list, tuple)) and value and _is_json(value, 0) else _LEAVE_OUT


def _required(mender: _Mender, value: Any, depth: int) -> Any:
    return names(list(value)) or _LEAVE_OUT if isinstance(value, (list, tuple)) else _LEAVE_OUT


def _reference(mender: _Mender, value: Any, depth: int) -> Any:
    return value if target_of(value, mender.root) is not None else _LEAVE_OUT


def _count(mender: _Mender, value: Any, depth: int) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value >= 0 else _LEAVE_OUT


def _number(mender: _Mender, value: Any, depth: int) -> Any:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if usable else _LEAVE_OUT


def _positive(mender: _Mender, value: Any, depth: int) -> Any:
    number = _number(mender, value, depth)
    return number if number is not _LEAVE_OUT and number > 0 else _LEAVE_OUT


def _text(mender: _Mender, value: Any, depth: int) -> Any:
    return value if isinstance(value, str) else _LEAVE_OUT


def _flag(mender: _Mender, value: Any, depth: int) -> Any:
    return value if isinstance(value, bool) else _LEAVE_OUT


def _needs(mender: _Mender, value: Any, depth: int) -> Any:
    if not isinstance(value, dict):
        return _LEAVE_OUT
    return {name: names(wanted) for name, wanted in value.items() if isinstance(name, str)}


_Rule = Callable[[_Mender, Any, int], Any]

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("items", "additionalProperties", "not", "contains", "propertyNames"), _schema),
    **dict.fromkeys(("if", "then", "else", "contentSchema"), _schema),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _schemas),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _map),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("title", "description", "format", "pattern"), _text),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _flag),
    **dict.fromkeys(("enum", "examples"), _values),
    "multipleOf": _positive,
    "type": _type,
    "required": _required,
    "dependentRequired": _needs,
    "$ref": _reference,
}
