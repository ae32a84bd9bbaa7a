"""
Schemas in the subset of OpenAPI that Gemini's function declarations take.

What it wants, and refuses the request for: every schema has one type, or ``anyOf`` and nothing
else; an array has ``items``; ``required`` names what is there; an enum holds texts, none of them
empty; there are no references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from toolnexus.tools.schema_parts import Schema, merged, names, target_of, types_of

__all__ = ["Gemini"]

_BOUNDS = ("minimum", "maximum")
_KEPT: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": (),
    "object": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS = {
    "string": ("date-time",),
    "integer": ("int32", "int64"),
    "number": ("float", "double"),
}
#: Expressions that its engine does not have: looking around, and referring back.
_FOREIGN_PATTERN = re.compile(r"\(\?[=!<]|\\[1-9]|\\k")

#: How many schemas are written out before those that follow are cut to their types.
_BUDGET = 2000


class Gemini:
    """
    One walk over one schema.

    Args:
        root: The schema, as `plain` returned it.
    """

    def __init__(self, root: Schema) -> None:
        self.root = root
        self._left = _BUDGET
        self._open: list[str] = []

    def top(self) -> Schema:
        """Return the whole schema."""
        out = self._typed("object", self.root)
        # A tool without arguments has an object without properties, and nothing else has.
        out.setdefault("properties", {})
        return out

    def node(self, node: Any) -> Schema:
        """Return a schema within; never an empty one."""
        if not isinstance(node, dict):
            return _anything()
        self._left -= 1
        node = merged(node, self.root)
        if "$ref" in node:
            return self._referred(node)
        kinds = types_of(node)
        alternatives = node.get("anyOf") or node.get("oneOf")
        if kinds:
            out = self._one([self._typed(kind, node) for kind in kinds if kind != "null"])
            nullable = "null" in kinds
        elif isinstance(alternatives, list):
            out = self._one(self.node(item) for item in alternatives if not _is_null(item))
            nullable = any(_is_null(item) for item in alternatives)
        else:
            out, nullable = _anything(), False
        return _noted(out, node, nullable or node.get("nullable") is True)

    def _referred(self, node: Schema) -> Schema:
        """Write out what a schema refers to; inside itself, or when it gets too much, only its type."""
        reference = node["$ref"]
        target = target_of(reference, self.root)
        rest = {k: v for k, v in node.items() if k != "$ref"}
        if not isinstance(target, dict):
            return _noted(_anything(), rest, nullable=False)
        if reference in self._open or self._left <= 0:
            kinds = types_of(target) if "$ref" not in target else []
            cut = [self._typed(kind, {}) for kind in kinds if kind != "null"]
            return _noted(self._one(cut), {**target, **rest}, nullable="null" in kinds)
        self._open.append(reference)
        try:
            return self.node({**target, **rest})
        finally:
            self._open.pop()

    def _typed(self, kind: str, node: Schema) -> Schema:
        """Return the schema of one type, with what the node says about values of it."""
        out: Schema = {"type": kind}
        for key in _KEPT.get(kind, ()):
            if key in node:
                out[key] = node[key]
        if node.get("format") in _FORMATS.get(kind, ()):
            out["format"] = node["format"]
        if kind == "string":
            _string(node, out)
        elif kind == "array":
            out["items"] = self._items(node)
        elif kind == "object":
            self._object(node, out)
        return out

    def _object(self, node: Schema, out: Schema) -> None:
        given = node.get("properties") or {}
        properties = {name: self.node(value) for name, value in given.items() if value is not False}
        required = [name for name in names(node.get("required")) if name in properties]
        if properties:
            out["properties"] = properties
        if required:
            out["required"] = required

    def _items(self, node: Schema) -> Schema:
        prefix = [self.node(item) for item in node.get("prefixItems") or ()]
        items = node.get("items")
        if not prefix:
            return self.node(items)
        closed = items is False or node.get("maxItems", len(prefix) + 1) <= len(prefix)
        return self._one(prefix if closed else [*prefix, self.node(items)])

    def _one(self, schemas: Iterable[Schema]) -> Schema:
        """Return a schema that takes what any of these takes."""
        flat: list[Schema] = []
        for schema in schemas:
            for item in schema.get("anyOf", [schema]):
                if item not in flat:
                    flat.append(item)
        if not flat:
            return _anything()
        return flat[0] if len(flat) == 1 else {"anyOf": flat}


def _string(node: Schema, out: Schema) -> None:
    values = [node["const"]] if "const" in node else node.get("enum")
    texts = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    if texts and all(texts):
        out["enum"] = list(dict.fromkeys(texts))
    pattern = node.get("pattern")
    if isinstance(pattern, str) and not _FOREIGN_PATTERN.search(pattern):
        out["pattern"] = pattern


def _is_null(node: Any) -> bool:
    return isinstance(node, dict) and types_of(node) == ["null"]


def _anything() -> Schema:
    """Return what comes closest to a schema that takes anything."""
    plain: list[Schema] = [{"type": kind} for kind in ("string", "number", "boolean", "object")]
    array: Schema = {"type": "array", "items": {"anyOf": [dict(item) for item in plain]}}
    return {"anyOf": [{"type": "string", "nullable": True}, *plain[1:], array]}


def _noted(schema: Schema, node: Schema, nullable: bool) -> Schema:
    """Put title, description and null where they may stand: on the alternatives, if there are any."""
    notes = {key: node[key] for key in ("title", "description") if isinstance(node.get(key), str)}
    if nullable:
        notes["nullable"] = True
    if "anyOf" in schema:
        return {"anyOf": [{**notes, **item} for item in schema["anyOf"]]}
    return {**schema, **notes}
