"""Schemas for OpenAI's strict mode."""

from __future__ import annotations

from typing import Any

from toolnexus.tools.schema_parts import Schema, merged, names, types_of

__all__ = ["Strict"]

_KEPT = (
    "description", "title", "enum", "const", "pattern", "multipleOf", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
)  # fmt: skip
#: What narrows a schema and has no place in strict mode.
_UNSAID = (
    "minLength", "maxLength", "minProperties", "maxProperties", "propertyNames", "contains", "minContains",
    "maxContains", "uniqueItems", "not", "if", "then", "else", "dependentRequired", "dependentSchemas",
)  # fmt: skip
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_DEFS = "#/$defs/"
_OLD_DEFS = "#/definitions/"


class Strict:
    """
    One walk over one schema, as `plain` returned it.

    Attributes:
        exact: Whether strict mode could say all that the schema says.
    """

    def __init__(self) -> None:
        self.exact = True
        self._root: Schema = {}

    def top(self, schema: Schema) -> Schema:
        """Return the whole schema."""
        self._root = schema
        empty = not schema["properties"] and not schema.get("additionalProperties", False)
        out = self.node({**schema, "additionalProperties": False} if empty else schema)
        defs = {**schema.get("definitions", {}), **schema.get("$defs", {})}
        if defs:
            out["$defs"] = {name: self.node(value) for name, value in defs.items()}
        return out

    def node(self, node: Any) -> Schema:
        """Return a schema within."""
        if not isinstance(node, dict) or not node:
            self.exact = False  # there is no way to say "anything", nor "nothing"
            return {}
        node = merged(node, self._root)
        if "$ref" in node:
            return self._reference(node["$ref"])
        out: Schema = {key: node[key] for key in _KEPT if key in node}
        if node.get("format") in _FORMATS:
            out["format"] = node["format"]
        kinds = types_of(node)
        if node.get("nullable") is True and kinds:
            kinds = names([*kinds, "null"])
        if any(node.get(key) not in (None, False) for key in _UNSAID):
            self.exact = False
        alternatives = node.get("anyOf") or node.get("oneOf")
        if alternatives and not kinds:
            return {**_notes(out), "anyOf": [self.node(item) for item in alternatives]}
        if alternatives:
            self.exact = False  # they narrow what stands beside them
        if not kinds:
            self.exact = False
            return out
        out["type"] = kinds[0] if len(kinds) == 1 else kinds
        if "object" in kinds:
            self._object(node, out)
        if "array" in kinds:
            self._array(node, out)
        return out

    def _reference(self, reference: str) -> Schema:
        """Return a reference; nothing may stand beside it."""
        if reference.startswith(_OLD_DEFS):
            reference = _DEFS + reference[len(_OLD_DEFS) :]
        if reference != "#" and not (reference.startswith(_DEFS) and reference.count("/") == 2):
            self.exact = False
        return {"$ref": reference}

    def _object(self, node: Schema, out: Schema) -> None:
        properties = node.get("properties") or {}
        further = node.get("additionalProperties")
        open_end = further is None and not properties
        if further not in (None, False) or "patternProperties" in node or open_end:
            self.exact = False
        required = names(node.get("required"))
        out["properties"] = {
            name: self.node(value) if name in required else _nullable(self.node(value))
            for name, value in properties.items()
        }
        out["required"] = list(properties)
        out["additionalProperties"] = False

    def _array(self, node: Schema, out: Schema) -> None:
        items = node.get("items")
        prefix = list(node.get("prefixItems") or ())
        if prefix:
            rest = [] if items is False else [items if items is not None else {}]
            if isinstance(node.get("maxItems"), int) and node["maxItems"] <= len(prefix):
                rest = []
            items = _one_of([*prefix, *rest])
            if any(item != prefix[0] for item in [*prefix, *rest]):
                self.exact = False  # which item is which cannot be said
        out["items"] = self.node(items)


def _one_of(schemas: list[Any]) -> Any:
    """Return a schema that takes what any of these takes."""
    different = [schema for i, schema in enumerate(schemas) if schema not in schemas[:i]]
    if any(schema == {} or schema is True for schema in different):
        return {}
    return different[0] if len(different) == 1 else {"anyOf": different}


def _notes(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("title", "description") if key in schema}


def _nullable(node: Schema) -> Schema:
    """Return a schema that takes null as well."""
    kind = node.get("type")
    if kind is not None and "enum" not in node and "const" not in node:
        kinds = [kind] if isinstance(kind, str) else kind
        return node if "null" in kinds else {**node, "type": [*kinds, "null"]}
    if isinstance(node.get("anyOf"), list):
        null = {"type": "null"}
        return node if null in node["anyOf"] else {**node, "anyOf": [*node["anyOf"], null]}
    if not node or None in node.get("enum", ()):
        return node
    return {"anyOf": [node, {"type": "null"}]}
