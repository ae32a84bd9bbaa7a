"""JSON forms of classes with named fields."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolnexus.errors import SchemaError
from toolnexus.tools.described import field_schema
from toolnexus.tools.docstrings import read_docstring
from toolnexus.tools.hints import Parameter, class_hints, constructor_parameters
from toolnexus.tools.scalars import BadValue, Load, Shape, is_plain_class, under
from toolnexus.wording import error_text

if TYPE_CHECKING:
    from toolnexus.tools.schema import ShapeBuilder

__all__ = ["is_pydantic", "is_record", "pydantic_shape", "record_shape", "substitute"]

#: Keywords whose values are data and not schemas.
_DATA = frozenset(("default", "examples", "enum", "const"))


def is_record(cls: Any) -> bool:
    """Whether a class is a dataclass, an attrs class, a named tuple or a TypedDict."""
    if not is_plain_class(cls):
        return False
    if hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__attrs_attrs__"):
        return True
    return (issubclass(cls, tuple) and hasattr(cls, "_fields")) or _is_typed_dict(cls)


def _is_typed_dict(cls: Any) -> bool:
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_pydantic(cls: Any) -> bool:
    """Whether a class is a pydantic model; does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and is_plain_class(cls) and issubclass(cls, pydantic.BaseModel)


def record_shape(builder: ShapeBuilder, cls: type, args: tuple[Any, ...]) -> Shape:
    """
    Return the shape of a class with named fields.

    Args:
        builder: Finds the shapes of the fields.
        cls: The class.
        args: The types in the place of its type parameters.
    """
    parameters = _typed_dict_keys(cls, builder.label) if _is_typed_dict(cls) else None
    if parameters is None:
        parameters = constructor_parameters(cls, builder.label)
    names = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    description, texts = _documentation(cls)
    properties: dict[str, Any] = {}
    loads: dict[str, Load | None] = {}
    for parameter in parameters:
        with builder.at(f"field {parameter.name!r} of {cls.__name__}"):
            shape = builder.shape(substitute(parameter.hint, names))
        properties[parameter.name] = field_schema(shape, parameter, texts.get(parameter.name))
        loads[parameter.name] = shape.load
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [p.name for p in parameters if p.required]
    if required:
        schema["required"] = required
    if description:
        schema["description"] = description
    return Shape(schema, _record_reader(cls, loads))


def _record_reader(cls: type, loads: Mapping[str, Load | None]) -> Load:
    def load(value: dict[str, Any]) -> Any:
        given = {}
        for name, item in value.items():
            if name not in loads:
                raise BadValue(f"unknown field {name!r}; known: {', '.join(loads) or 'none'}")
            read = loads[name]
            try:
                given[name] = item if read is None else read(item)
            except Exception as error:
                raise under(f".{name}", error) from error
        return cls(**given)

    return load


def _typed_dict_keys(cls: Any, label: str) -> list[Parameter]:
    """Return the keys of a TypedDict as parameters; those that may be missing have ``...`` for default."""
    keys = []
    for name, hint in class_hints(cls, label).items():
        qualifier = _qualifier(hint)
        # The annotation goes first: where annotations are strings, Python itself overlooks it.
        required = name in cls.__required_keys__ if qualifier is None else qualifier == "Required"
        keys.append(Parameter(name, hint, inspect.Parameter.empty if required else ..., False))
    return keys


def _qualifier(hint: Any) -> str | None:
    """Return "Required" or "NotRequired" where an annotation says so, else None."""
    origin = typing.get_origin(hint)
    if origin is None:
        return None
    name = getattr(origin, "_name", None)
    if name in ("Required", "NotRequired"):
        return str(name)
    return _qualifier(typing.get_args(hint)[0]) if origin is typing.Annotated or name == "ReadOnly" else None


def _documentation(cls: type) -> tuple[str, dict[str, str]]:
    """Return the description of a class and the texts of its fields, as its own docstring has them."""
    text = cls.__dict__.get("__doc__")
    # Dataclasses and named tuples without a docstring are given their signature as one.
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return "", {}
    return read_docstring(inspect.cleandoc(text))


def substitute(hint: Any, names: Mapping[Any, Any]) -> Any:
    """Return a type with other types in the place of its type parameters."""
    if not names:
        return hint
    if isinstance(hint, typing.TypeVar):
        return names.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) is not None else ()
    return hint[tuple(names.get(p, p) for p in parameters)] if parameters else hint


def pydantic_shape(builder: ShapeBuilder, cls: Any) -> Shape:
    """Return the shape of a pydantic model, after its own schema and by its own validation."""
    try:
        schema = cls.model_json_schema()
    except Exception as error:
        raise SchemaError(
            f"{builder.label}: {cls.__name__} has no JSON schema: {error_text(error)}"
        ) from error
    definitions = schema.pop("$defs", {})
    names = {name: builder.reserve(name) for name in definitions}
    for name, definition in definitions.items():
        builder.defs[names[name]] = _tidied(definition, names)
    return Shape(_tidied(schema, names), _pydantic_reader(cls))


def _tidied(node: Any, names: Mapping[str, str]) -> Any:
    """Return a schema without the titles that repeat the names, and with definitions renamed."""
    if isinstance(node, list):
        return [_tidied(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "$ref" and isinstance(value, str):
            name = value.rpartition("/")[2]
            out[key] = f"#/$defs/{names.get(name, name)}"
        else:
            out[key] = value if key in _DATA else _tidied(value, names)
    return out


def _pydantic_reader(cls: Any) -> Load:
    validation_error = sys.modules["pydantic"].ValidationError

    def load(value: Any) -> Any:
        try:
            return cls.model_validate(value)
        except validation_error as error:
            raise BadValue("; ".join(map(_complaint, error.errors()))) from None

    return load


def _complaint(error: Mapping[str, Any]) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
