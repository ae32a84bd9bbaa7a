"""Reading JSON schemas: where a reference leads, what allOf comes to, which types a schema takes."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

__all__ = ["Schema", "merged", "names", "resolved", "target_of", "types_of"]

Schema = dict[str, Any]

#: How many references in a row are followed; who needs more goes round in circles.
_STEPS = 16

_NOTES = frozenset(("title", "description", "default", "deprecated", "examples"))

#: What a keyword says about the type where the type itself is not given.
_IMPLIED = {
    "properties": "object",
    "additionalProperties": "object",
    "patternProperties": "object",
    "required": "object",
    "items": "array",
    "prefixItems": "array",
}


def names(value: Any) -> list[str]:
    """Return the strings of a list, each once; an empty list for anything else."""
    return list(dict.fromkeys(n for n in value if isinstance(n, str))) if isinstance(value, list) else []


def target_of(reference: Any, root: Any) -> Any:
    """Return what a local reference points to in a schema, or None where it leads nowhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found if isinstance(found, (dict, bool)) else None


def resolved(schema: Any, root: Any) -> Any:
    """Return a schema, or what it refers to with its own keywords on top; {} where that cannot be found."""
    for _ in range(_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        target = target_of(schema["$ref"], root)
        rest = {k: v for k, v in schema.items() if k != "$ref"}
        if target is None:
            return rest
        schema = {**target, **rest} if isinstance(target, dict) else target
    return {}


def merged(schema: Schema, root: Any, depth: int = 0) -> Schema:
    """
    Return a schema without allOf.

    Where two branches say different things with one keyword, one of them is kept: that is looser
    than both together.
    """
    branches = schema.get("allOf")
    out = {k: v for k, v in schema.items() if k != "allOf"}
    if not isinstance(branches, list) or depth >= _STEPS:
        return out
    first = branches[0] if branches else None
    if len(branches) == 1 and isinstance(first, dict) and "$ref" in first and _NOTES.issuperset(out):
        return {**first, **out}  # a reference with a description beside it stays one
    for branch in branches:
        branch = resolved(branch, root)
        if isinstance(branch, dict):
            _add(out, merged(branch, root, depth + 1))
    return out


def _add(out: Schema, branch: Schema) -> None:
    for key, value in branch.items():
        if key == "properties" and isinstance(value, dict):
            own = out.get("properties")
            out["properties"] = {**value, **(own if isinstance(own, dict) else {})}
        elif key == "required":
            out["required"] = names([*names(out.get("required")), *names(value)])
        else:
            out.setdefault(key, value)


def types_of(schema: Schema) -> list[str]:
    """
    Return the types that a schema takes; an empty list where it does not say.

    >>> types_of({"type": "string"}), types_of({"properties": {}}), types_of({"enum": [1, None]})
    (['string'], ['object'], ['integer', 'null'])
    """
    given = schema.get("type")
    if given is not None:
        return [given] if isinstance(given, str) else names(given)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return list(dict.fromkeys(map(_type_of, values)))
    return next(([kind] for key, kind in _IMPLIED.items() if key in schema), [])


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for cls, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, cls):
            return name
    return "object"
