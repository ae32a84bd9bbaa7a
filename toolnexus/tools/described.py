"""What is said about a value beside its type: descriptions, limits, defaults."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from toolnexus.tools.hints import Parameter
from toolnexus.tools.keywords import Checker
from toolnexus.tools.plain import plain_strict
from toolnexus.tools.scalars import Shape

__all__ = ["described", "field_schema", "noted"]

#: The attributes by which annotated-types, pydantic and others state a limit, and our keyword.
_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def described(shape: Shape, metadata: Iterable[Any]) -> Shape:
    """
    Return a shape with what the metadata of ``Annotated`` says about it.

    A string, and an object with a string ``description`` (or ``documentation``), is its description;
    limits are read from the attributes that the ``annotated-types`` package has made usual.
    """
    items = list(_flat(metadata))
    schema = dict(shape.schema)
    for item in items:
        _add_limits(schema, item)
    text = _text(items)
    return Shape(noted(schema, text) if text else schema, shape.load)


def noted(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a schema with a description, which goes before the one that it may have."""
    old = schema.get("description")
    return {**schema, "description": f"{text} ({old.rstrip('.')})" if old else text}


def field_schema(shape: Shape, parameter: Parameter, text: str | None) -> dict[str, Any]:
    """
    Return the schema of a parameter or a field.

    Args:
        shape: The shape of its type.
        parameter: The parameter.
        text: What the docstring says about it; the annotation's own words go first.
    """
    schema = shape.schema
    if text and not _annotated_text(parameter.hint):
        schema = noted(schema, text)
    if parameter.required:
        return schema
    try:
        default = plain_strict(parameter.default)
    except TypeError:
        return schema  # made by a factory, or nothing that JSON can say
    checker = Checker({})
    checker.check(shape.schema, default, "")
    return schema if checker.problems else {**schema, "default": default}


def _annotated_text(hint: Any) -> str | None:
    return _text(_flat(hint.__metadata__)) if typing.get_origin(hint) is typing.Annotated else None


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of metadata, and those that items such as pydantic's ``Field()`` hold."""
    for item in metadata:
        yield item
        inner = getattr(item, "metadata", None)
        if isinstance(inner, list | tuple):
            yield from _flat(inner)


def _text(items: Iterable[Any]) -> str | None:
    for item in items:
        for text in (item, getattr(item, "description", None), getattr(item, "documentation", None)):
            if isinstance(text, str) and text:
                return text
    return None


def _add_limits(schema: dict[str, Any], item: Any) -> None:
    for attribute, keyword in _LIMITS.items():
        limit = getattr(item, attribute, None)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            schema[keyword] = limit
    noun = _SIZES.get(str(schema.get("type")))
    for attribute in ("min_length", "max_length") if noun else ():
        size = getattr(item, attribute, None)
        if isinstance(size, int) and not isinstance(size, bool) and (size or attribute == "max_length"):
            schema[f"{attribute[:3]}{noun}"] = size
    pattern = getattr(item, "pattern", None)
    pattern = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if isinstance(pattern, str) and noun == "Length":
        schema["pattern"] = pattern
