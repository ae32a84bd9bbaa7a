"""The schemas of an OpenAPI document as plain JSON Schema, for the arguments of one tool."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolnexus.tools.openapi.references import Node

__all__ = ["Schemas", "numbered"]

#: Keywords that are taken over as they are.
_PLAIN = frozenset(
    [
        "type",
        "enum",
        "const",
        "title",
        "description",
        "default",
        "format",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxContains",
        "minContains",
        "maxProperties",
        "minProperties",
        "dependentRequired",
        "contentEncoding",
        "contentMediaType",
        "deprecated",
        "writeOnly",
    ]
)
#: Keywords that hold a schema, a list of schemas, or schemas by name.
_ONE = frozenset(
    [
        "items",
        "additionalProperties",
        "not",
        "contains",
        "propertyNames",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contentSchema",
    ]
)
_MANY = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_NAMED = frozenset(["properties", "patternProperties", "dependentSchemas"])

#: Keywords that constrain nothing, so that they may be put over those of another schema.
_NOTES = frozenset(["title", "description", "default", "deprecated", "writeOnly"])

_POINTER = "#/$defs/"

#: A definition of at most so many values is written out wherever it is used.
_SMALL = 12
#: So many definitions are written out within each other; below that, references stay.
_DEEP = 16


class Schemas:
    """
    Collects the schemas of one tool.

    What a schema refers to becomes an entry of ``$defs``; `finished` writes those out in place
    that are small, or used once, and not recursive.

    Args:
        old: Whether the document is OpenAPI 3.0, whose schemas are not quite JSON Schema.
    """

    def __init__(self, old: bool) -> None:
        self.old = old
        self._names: dict[str, str] = {}
        self._defs: dict[str, Any] = {}
        # What still has to be converted: not at once, for chains of references can be long.
        self._waiting: list[tuple[str, Node]] = []

    def convert(self, node: Node) -> Any:
        """
        Return a schema that stands for what is at a place.

        Raises:
            ConfigurationError: A reference in it leads nowhere.
        """
        if isinstance(node.value, bool):
            return node.value
        if not isinstance(node.value, Mapping):
            return {}
        if node.reference is None:
            return self._converted(node)
        siblings = self._converted(node) if not self.old else _only(node.value, "description")
        return {"$ref": _POINTER + self._define(node.reference, node), **siblings}

    def _define(self, uri: str, node: Node) -> str:
        """Return the name of the definition of what is at a URI, made when first asked for."""
        name = self._names.get(uri)
        if name is None:
            name = self._names[uri] = self._new_name(uri)
            self._defs[name] = {}
            self._waiting.append((name, node.document.lookup(uri)))
        return name

    def _new_name(self, uri: str) -> str:
        stem = re.sub(r"[^a-zA-Z0-9_-]", "_", uri.rsplit("/", 1)[-1]) or "schema"
        return next(n for n in numbered(stem) if n not in self._defs)

    def _converted(self, node: Node) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for key, value in node.value.items():
            if key in _PLAIN:
                schema[key] = value
            elif key in _ONE:
                schema[key] = self.convert(node.child(value))
            elif key in _MANY and isinstance(value, list):
                schema[key] = [self.convert(node.child(item)) for item in value]
            elif key in _NAMED and isinstance(value, Mapping):
                schema[key] = {str(k): self.convert(node.child(v)) for k, v in value.items()}
        self._required(node, schema)
        # Documents that say 3.1 use the older words, too.
        _modernise(node.value, schema)
        return schema

    def _required(self, node: Node, schema: dict[str, Any]) -> None:
        """Take over what is required, and leave out what only the server may set."""
        needed = node.value.get("required")
        needed = [n for n in needed if isinstance(n, str)] if isinstance(needed, list) else []
        for name, value in list(node.value.get("properties", {}).items()) if "properties" in schema else []:
            target = node.child(value).resolved().value
            if isinstance(target, Mapping) and target.get("readOnly") is True:
                schema["properties"].pop(name)
                needed = [n for n in needed if n != name]
        if needed:
            schema["required"] = needed

    def finished(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a tool's schema, complete with the definitions that it still refers to."""
        while self._waiting:
            name, node = self._waiting.pop()
            self._defs[name] = self.convert(node)
        return _Inliner(self._defs).finished(schema)


def _only(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: value[key]} if isinstance(value.get(key), str) else {}


def _modernise(old: Mapping[str, Any], schema: dict[str, Any]) -> None:
    """Say in JSON Schema's words what OpenAPI 3.0 says in its own."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    if old.get("nullable") is True:
        if isinstance(schema.get("type"), str):
            schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]


def numbered(stem: str) -> Iterator[str]:
    """Yield a name, then the same name with 2, 3 and so on after it."""
    yield stem
    number = 1
    while True:
        number += 1
        yield f"{stem}_{number}"


class _Inliner:
    """Writes definitions out in place where that makes a schema easier to read."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self.defs = defs
        self._uses: dict[str, int] = {}
        self._inlined: dict[str, Any] = {}
        self._depth = 0
        self._edges = {name: set(_references(part)) for name, part in defs.items()}
        self._recursive = {name for name in defs if self._reaches_itself(name)}

    def finished(self, schema: dict[str, Any]) -> dict[str, Any]:
        for part in (schema, *self.defs.values()):
            for name in _references(part):
                self._uses[name] = self._uses.get(name, 0) + 1
        result = self._rewritten(schema)
        kept: dict[str, Any] = {}
        waiting = list(_references(result))
        while waiting:
            name = waiting.pop()
            if name not in kept:
                kept[name] = self._rewritten(self.defs[name])
                waiting += _references(kept[name])
        return {**result, "$defs": dict(sorted(kept.items()))} if kept else result

    def _reaches_itself(self, start: str) -> bool:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            following = self._edges[waiting.pop()]
            if start in following:
                return True
            waiting += following - seen
            seen |= following
        return False

    def _rewritten(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self._rewritten(item) for item in part]
        if not isinstance(part, dict):
            return part
        name = _referred(part)
        if name is None:
            return {k: self._rewritten(v) for k, v in part.items()}
        siblings = {k: self._rewritten(v) for k, v in part.items() if k != "$ref"}
        target = self._inline(name)
        if target is None or not (isinstance(target, dict) and siblings.keys() <= _NOTES):
            return {"$ref": part["$ref"], **siblings}
        return {**target, **siblings}

    def _inline(self, name: str) -> Any:
        """Return what to write in place of a reference, or None to keep it."""
        if name in self._recursive or self._depth >= _DEEP:
            return None
        # Only what refers to nothing is written out more than once, or the size would explode.
        if self._uses[name] > 1 and (self._edges[name] or _size(self.defs[name], _SMALL + 1) > _SMALL):
            return None
        if name not in self._inlined:
            self._depth += 1
            self._inlined[name] = self._rewritten(self.defs[name])
            self._depth -= 1
        return self._inlined[name]


def _referred(part: dict[str, Any]) -> str | None:
    target = part.get("$ref")
    if isinstance(target, str) and target.startswith(_POINTER):
        return target[len(_POINTER) :]
    return None


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to, as often as it does."""
    waiting = [part]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name = _referred(item)
            if name is not None:
                yield name
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _size(part: Any, enough: int) -> int:
    """Count the values of a schema, no further than needed."""
    count, waiting = 0, [part]
    while waiting and count < enough:
        item = waiting.pop()
        count += 1
        waiting += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    return count
