"""
Making a tool's schema fit what a provider accepts.

Every provider takes a subset of JSON Schema of its own and refuses the whole request for one
keyword it does not know. What is left out here only loosens a schema: the arguments are checked
against the original before the tool runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["for_gemini", "inlined", "plain", "strict"]

Schema = dict[str, Any]

_COMBINERS = ("anyOf", "oneOf", "allOf")

#: Keywords that no provider needs and some refuse.
_DROPPED = ("$schema", "$id", "$anchor", "$comment")

#: How deep references are followed where they must be written out; a recursive schema ends there.
_DEPTH = 6


def plain(schema: Any) -> Schema:
    """
    Return a schema that OpenAI-style and Anthropic-style endpoints take.

    It is an object schema without combiners at the top; local references stay.

    >>> plain({"$schema": "x", "properties": {"a": {}}, "required": ["a", "ghost"]})
    {'properties': {'a': {}}, 'required': ['a'], 'type': 'object'}
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    out = {k: v for k, v in _flat(schema).items() if k not in _DROPPED}
    out["type"] = "object"
    if not isinstance(out.get("properties"), dict):
        out["properties"] = {}
    if "required" in out:
        out["required"] = [n for n in _names(out["required"]) if n in out["properties"]]
        if not out["required"]:
            del out["required"]
    return out


def _names(value: Any) -> list[str]:
    return [n for n in value if isinstance(n, str)] if isinstance(value, list) else []


def _flat(schema: Schema) -> Schema:
    """Merge the branches of a combiner at the top: all of allOf, what any of anyOf and oneOf may have."""
    if not any(isinstance(schema.get(c), list) for c in _COMBINERS):
        return schema
    out = {k: v for k, v in schema.items() if k not in _COMBINERS}
    properties = dict(out.get("properties") or {})
    required = _names(out.get("required"))
    for combiner in _COMBINERS:
        for branch in schema.get(combiner) or ():
            branch = _resolved(branch, schema)
            if not isinstance(branch, dict):
                continue
            branch = _flat(branch)
            properties.update({k: v for k, v in (branch.get("properties") or {}).items() if k not in properties})
            if combiner == "allOf":
                required += [n for n in _names(branch.get("required")) if n not in required]
    out["properties"] = properties
    out["required"] = required
    return out


def _resolved(schema: Any, root: Schema) -> Any:
    """Follow a local reference."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        target: Any = root
        for step in filter(None, reference[1:].split("/")):
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, dict) else None
        if target is None:
            return {}
        rest = {k: v for k, v in schema.items() if k != "$ref"}
        schema = {**target, **rest} if isinstance(target, dict) else target
    return {}


def inlined(schema: Schema) -> Schema:
    """
    Return a schema with its local references written out; a recursive one ends in "anything".

    >>> inlined({"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}})
    {'properties': {'p': {'type': 'string'}}}
    """

    def walk(node: Any, depth: int) -> Any:
        if isinstance(node, list):
            return [walk(item, depth) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            if depth >= _DEPTH:
                return {}
            return walk(_resolved(node, schema), depth + 1)
        return {k: walk(v, depth) for k, v in node.items() if k not in ("$defs", "definitions")}

    out: Schema = walk(schema, 0)
    return out


def strict(schema: Any) -> Schema:
    """
    Return a schema for OpenAI's strict mode: everything is required, what was optional may be null.

    >>> strict({"properties": {"a": {"type": "integer"}}})["properties"]["a"]
    {'type': ['integer', 'null']}
    """
    out: Schema = _strict(plain(schema))
    return out


_NOT_STRICT = ("default", "minLength", "maxLength", "format", "uniqueItems", "minProperties", "maxProperties")


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {k: _mapped(_strict, k, v) for k, v in node.items() if k not in _NOT_STRICT}
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if isinstance(out.get("properties"), dict):
        wanted = _names(node.get("required"))
        out["properties"] = {k: v if k in wanted else _nullable(v) for k, v in out["properties"].items()}
        out["required"] = list(out["properties"])
        out["additionalProperties"] = False
    return out


def _mapped(function: Any, key: str, value: Any) -> Any:
    """Apply a function below a keyword; what stands under "properties" are names, not keywords."""
    if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return {name: function(item) for name, item in value.items()}
    if key in ("enum", "const", "required", "default", "examples"):
        return value
    return function(value)


def _nullable(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if isinstance(kind, str) and kind != "null" and "enum" not in node:
        return {**node, "type": [kind, "null"]}
    if isinstance(kind, list):
        return node if "null" in kind else {**node, "type": [*kind, "null"]}
    if isinstance(node.get("anyOf"), list):
        return {**node, "anyOf": [*node["anyOf"], {"type": "null"}]}
    return {"anyOf": [node, {"type": "null"}]} if node else node


_GEMINI = {
    "type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems", "properties",
    "required", "minimum", "maximum", "minLength", "maxLength", "pattern", "anyOf", "propertyOrdering",
}  # fmt: skip
_GEMINI_FORMATS = {"enum", "date-time", "int32", "int64", "float", "double"}


def for_gemini(schema: Any) -> Schema:
    """
    Return a schema in the subset that Gemini's function declarations take.

    References are written out, types have one name each, null becomes ``nullable``.

    >>> for_gemini({"properties": {"a": {"type": ["integer", "null"]}}})["properties"]["a"]
    {'type': 'integer', 'nullable': True}
    """
    out: Schema = _gemini(plain(inlined(schema if isinstance(schema, dict) else {})))
    return out


def _gemini(node: Any) -> Any:
    if isinstance(node, list):
        return [_gemini(item) for item in node]
    if not isinstance(node, dict):
        return {}
    node = _one_type(_merged_all(node))
    if "const" in node:
        node = {**node, "enum": [node["const"]]}
    if "oneOf" in node:
        node = {**node, "anyOf": node["oneOf"]}
    out: Schema = {}
    for key, value in node.items():
        if key not in _GEMINI or (key == "format" and value not in _GEMINI_FORMATS):
            continue
        out[key] = _mapped(_gemini, key, value) if isinstance(value, (dict, list)) else value
    if "enum" in out:
        # An enum holds texts only; of other values only the type is kept.
        if all(isinstance(value, str) for value in out["enum"]):
            out["type"] = "string"
        else:
            out.setdefault("type", _type_of(out["enum"]))
            del out["enum"]
    if "required" in out:
        out["required"] = [n for n in _names(out["required"]) if n in out.get("properties", {})]
    if out.get("type") == "array":
        out.setdefault("items", {"type": "string"})
    return out


def _merged_all(node: Schema) -> Schema:
    """Merge allOf, which Gemini does not know."""
    branches = [b for b in node.get("allOf") or () if isinstance(b, dict)]
    if not branches:
        return node
    merged = {k: v for k, v in node.items() if k != "allOf"}
    for branch in branches:
        for key, value in branch.items():
            if key == "properties":
                merged["properties"] = {**value, **(merged.get("properties") or {})}
            elif key == "required":
                merged["required"] = [*_names(merged.get("required")), *_names(value)]
            else:
                merged.setdefault(key, value)
    return merged


def _one_type(node: Schema) -> Schema:
    """Write a list of types, and a null among alternatives, as Gemini has them."""
    kinds = node.get("type")
    if isinstance(kinds, list):
        rest = [k for k in kinds if k != "null"]
        out = {k: v for k, v in node.items() if k != "type"}
        if "null" in kinds:
            out["nullable"] = True
        if len(rest) == 1:
            return {"type": rest[0], **out}
        return {**out, "anyOf": [{"type": k} for k in rest]} if rest else out
    options = node.get("anyOf") or node.get("oneOf")
    if isinstance(options, list) and any(_is_null(option) for option in options):
        rest = [option for option in options if not _is_null(option)]
        out = {k: v for k, v in node.items() if k not in ("anyOf", "oneOf")}
        out["nullable"] = True
        return _one_type({**rest[0], **out}) if len(rest) == 1 else {**out, "anyOf": rest}
    return node


def _is_null(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "null"


def _type_of(values: list[Any]) -> str:
    if all(isinstance(v, bool) for v in values):
        return "boolean"
    if all(isinstance(v, int) for v in values):
        return "integer"
    if all(isinstance(v, (int, float)) for v in values):
        return "number"
    return "string"
