"""JSON forms of enums, literals and unions."""

from __future__ import annotations

import enum
import typing
from typing import TYPE_CHECKING, Any

from toolnexus.tools.json_values import same, show
from toolnexus.tools.keywords import Checker
from toolnexus.tools.plain import enum_value, plain
from toolnexus.tools.scalars import BadValue, Load, Shape

if TYPE_CHECKING:
    from toolnexus.tools.schema import ShapeBuilder

__all__ = ["enum_shape", "literal_shape", "union_shape"]

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def enum_shape(cls: enum.EnumMeta) -> Shape | None:
    """Return the shape of an enum: its values, or its names where the values are not plain; None if empty."""
    members: list[enum.Enum] = list(cls)
    if not members:
        return None
    pairs = [(enum_value(member), member) for member in members]
    schema = _choice_schema([value for value, _ in pairs])
    if schema["type"] != "string":
        schema["description"] = ", ".join(f"{show(value)}: {member.name}" for value, member in pairs)
    return Shape(schema, _chooser(pairs))


def literal_shape(options: tuple[Any, ...]) -> Shape:
    """Return the shape of a ``Literal``; its options may be of several types."""
    pairs = [(enum_value(o) if isinstance(o, enum.Enum) else plain(o), o) for o in options]
    schema = _choice_schema([value for value, _ in pairs])
    as_is = all(isinstance(o, str | bool | None) and not isinstance(o, enum.Enum) for o in options)
    return Shape(schema, None if as_is else _chooser(pairs))


def _choice_schema(values: list[Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(_JSON_TYPES[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _chooser(pairs: list[tuple[Any, Any]]) -> Load:
    def load(value: Any) -> Any:
        for known, option in pairs:
            if same(known, value):
                return option
        raise BadValue(f"{show(value)} is none of the choices")

    return load


def union_shape(builder: ShapeBuilder, args: tuple[Any, ...]) -> Shape:
    """Return the shape of a union: that of the first member that fits a value."""
    shapes = [builder.shape(hint) for hint in _merged(args)]
    schemas: list[dict[str, Any]] = []
    for shape in shapes:
        if shape.schema not in schemas:
            schemas.append(shape.schema)
    if {} in schemas:
        schemas = [{}]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if all(shape.load is None for shape in shapes):
        return Shape(schema)
    return Shape(schema, _union_reader(builder, shapes))


def _merged(args: tuple[Any, ...]) -> list[Any]:
    """Return the members of a union with its literals made one, at the first one's place."""
    literals = [arg for arg in args if typing.get_origin(arg) is typing.Literal]
    if len(literals) < 2:
        return list(args)
    options = tuple(option for literal in literals for option in typing.get_args(literal))
    rest = [literals[0] if arg in literals else arg for arg in args]
    merged = dict.fromkeys(rest)
    return [typing.Literal[options] if arg is literals[0] else arg for arg in merged]


def _union_reader(builder: ShapeBuilder, shapes: list[Shape]) -> Load:
    def load(value: Any) -> Any:
        failure: Exception | None = None
        for shape in shapes:
            checker = Checker({"$defs": builder.defs})
            checker.check(shape.schema, value, "")
            if checker.problems:
                continue
            try:
                return value if shape.load is None else shape.load(value)
            except Exception as error:  # noqa: BLE001 - the next member may take it
                failure = failure or error
        raise failure or BadValue(f"nothing fits {show(value)}")

    return load
