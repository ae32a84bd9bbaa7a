"""JSON forms of lists, sets, tuples and mappings."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolnexus.tools.described import noted
from toolnexus.tools.keywords import Checker
from toolnexus.tools.scalars import BadValue, Load, Shape, under

if TYPE_CHECKING:
    from toolnexus.tools.schema import ShapeBuilder

__all__ = ["list_shape", "mapping_shape", "tuple_shape"]


def list_shape(
    item: Shape, make: Callable[[list[Any]], Any], limits: Mapping[str, int] | None = None
) -> Shape:
    """
    Return the shape of a list, or of something that is made of one.

    Args:
        item: The shape of its items.
        make: What makes it of a list, such as ``set``.
        limits: More for the schema.
    """
    # "items" is always there: some providers refuse an array without it.
    schema = {"type": "array", "items": item.schema, **(limits or {})}
    if make is list and item.load is None:
        return Shape(schema)
    return Shape(schema, lambda value: make([_load(item.load, v, f"[{i}]") for i, v in enumerate(value)]))


def tuple_shape(builder: ShapeBuilder, hint: Any, args: tuple[Any, ...]) -> Shape:
    """Return the shape of a tuple, of any length or of a fixed one."""
    if hint is tuple or hint is typing.Tuple:  # noqa: UP006 - that is what somebody may have written
        return list_shape(Shape({}), tuple)
    if len(args) == 2 and args[1] is ...:
        return list_shape(builder.shape(args[0]), tuple)
    shapes = [] if args == ((),) else [builder.shape(arg) for arg in args]
    limits = {"minItems": len(shapes), "maxItems": len(shapes)}
    schemas: list[dict[str, Any]] = []
    for shape in shapes:
        if shape.schema not in schemas:
            schemas.append(shape.schema)
    if len(schemas) <= 1:
        items = schemas[0] if schemas else {}
        schema = {"type": "array", "items": items, **limits}
    else:
        # "items" says it again for those who do not know "prefixItems".
        prefix = [shape.schema for shape in shapes]
        schema = {"type": "array", "prefixItems": prefix, "items": {"anyOf": schemas}, **limits}

    def load(value: Any) -> Any:
        pairs = zip(shapes, value, strict=True)
        return tuple([_load(shape.load, v, f"[{i}]") for i, (shape, v) in enumerate(pairs)])

    return Shape(schema, load)


def mapping_shape(
    builder: ShapeBuilder, key: Shape, value: Shape, make: Callable[[dict[Any, Any]], Any]
) -> Shape:
    """
    Return the shape of a mapping.

    Args:
        builder: Knows the recursive types.
        key: The shape of its keys; other than strings are read out of the text that JSON has.
        value: The shape of its values.
        make: What makes it of a dict.
    """
    schema: dict[str, Any] = {"type": "object"}
    if value.schema:
        schema["additionalProperties"] = value.schema
    words = _key_words(key.schema)
    if words:
        schema = noted(schema, f"keys: {words}")
    plain_keys = (
        key.load is None and key.schema.get("type", "string") == "string" and "enum" not in key.schema
    )
    read = None if plain_keys else _key_reader(builder, key)
    if read is None and value.load is None and make is dict:
        return Shape(schema)

    def load(given: Any) -> Any:
        pairs = {_load(read, k, f".{k}"): _load(value.load, v, f".{k}") for k, v in given.items()}
        return make(pairs)

    return Shape(schema, load)


def _load(load: Load | None, value: Any, step: str) -> Any:
    """Read one value inside another; a complaint says where."""
    if load is None:
        return value
    try:
        return load(value)
    except Exception as error:
        raise under(step, error) from error


def _key_words(schema: dict[str, Any]) -> str:
    """Say what the keys are, as far as the schema has no better place for it."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    words = {"integer": "integers", "number": "numbers"}
    return str(words.get(str(schema.get("type")), schema.get("format", "")))


def _key_reader(builder: ShapeBuilder, key: Shape) -> Load:
    def read(text: str) -> Any:
        problems: list[str] = []
        for candidate in _candidates(text):
            checker = Checker({"$defs": builder.defs})
            checker.check(key.schema, candidate, "")
            if not checker.problems:
                return candidate if key.load is None else key.load(candidate)
            problems = problems or checker.problems
        raise BadValue(f"as a key: {problems[0]}")

    return read


def _candidates(text: str) -> list[Any]:
    """Return what a key may stand for: itself, or the JSON value that it spells."""
    try:
        return [text, json.loads(text)]
    except ValueError:
        return [text]
