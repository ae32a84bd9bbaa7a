"""JSON forms of single values: numbers, dates, paths and the like, and how they are read back."""

from __future__ import annotations

import base64
import os
import pathlib
from collections.abc import Callable
from typing import Any

import attrs

from toolnexus.wording import error_text

__all__ = ["BadValue", "Load", "Shape", "is_plain_class", "scalar_shape", "under"]

Load = Callable[[Any], Any]


class BadValue(ValueError):
    """
    A value fits its schema and still cannot become what the annotation says.

    Attributes:
        message: What is wrong.
        path: Where, as in ``.points[2].x``.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message, path)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return f"{self.path.lstrip('.')}: {self.message}" if self.path else self.message


def under(step: str, error: Exception) -> BadValue:
    """Return the same complaint about a value one step further in, such as ``.x`` or ``[2]``."""
    if isinstance(error, BadValue):
        return BadValue(error.message, step + error.path)
    name = type(error).__name__
    text = error_text(error)
    if text and isinstance(error, ValueError | TypeError):
        return BadValue(text, step)
    return BadValue(f"{name}: {text}" if text else name, step)


@attrs.frozen(eq=False, repr=False)
class Shape:
    """
    The JSON form of a type.

    Args:
        schema: The JSON schema of its values.
        load: Makes the Python value out of a JSON value that fits the schema, and raises where it
            cannot; None where they are the same.
    """

    schema: dict[str, Any]
    load: Load | None = None


def _whole(value: Any) -> int:
    return int(value)  # 3.0 is an integer in JSON


def _moment(cls: type) -> Load:
    """Return a reader of the ISO format that also takes the ``Z`` for UTC, as Python 3.10 does not."""
    read: Load = cls.fromisoformat  # type: ignore[attr-defined]

    def load(value: str) -> Any:
        return read(value[:-1] + "+00:00" if value[-1:] in ("Z", "z") else value)

    return load


def _decoded(cls: type) -> Load:
    def load(value: str) -> Any:
        return cls(base64.b64decode(value, validate=True))

    return load


def _decimal(cls: type) -> Load:
    def load(value: Any) -> Any:
        try:
            return cls(str(value))  # of the text: 0.1 is then exactly that
        except ArithmeticError as error:
            raise BadValue(f"expected a decimal number, got {value!r}") from error

    return load


def _string(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def _number_or_string() -> dict[str, Any]:
    return {"anyOf": [{"type": "number"}, {"type": "string"}]}


def _seconds(cls: type) -> Load:
    def load(value: float) -> Any:
        return cls(seconds=value)

    return load


def _itself(cls: type) -> Load:
    return cls


#: The JSON schema and the reader of each class, by its full name: a class whose module nobody has
#: imported cannot be in an annotation, so none is imported here for its sake.
_BY_NAME: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[type], Load]]] = {
    "datetime.datetime": (lambda: _string(format="date-time"), _moment),
    "datetime.date": (lambda: _string(format="date"), _moment),
    "datetime.time": (lambda: _string(format="time"), _moment),
    "datetime.timedelta": (lambda: {"type": "number", "description": "seconds"}, _seconds),
    "uuid.UUID": (lambda: _string(format="uuid"), _itself),
    "decimal.Decimal": (_number_or_string, _decimal),
    "ipaddress.IPv4Address": (lambda: _string(format="ipv4"), _itself),
    "ipaddress.IPv6Address": (lambda: _string(format="ipv6"), _itself),
    "builtins.bytes": (lambda: _string(contentEncoding="base64"), _decoded),
    "builtins.bytearray": (lambda: _string(contentEncoding="base64"), _decoded),
}


def is_plain_class(hint: Any) -> bool:
    """Whether a hint is a class, and not one with type arguments (which Python 3.10 takes for a class)."""
    return isinstance(hint, type) and not hasattr(hint, "__args__")


def scalar_shape(hint: Any) -> Shape | None:
    """
    Return the shape of a class whose values are single JSON values, or None for any other type.

    >>> scalar_shape(int).schema
    {'type': 'integer'}
    >>> import datetime
    >>> scalar_shape(datetime.date).load("2026-03-01")
    datetime.date(2026, 3, 1)
    """
    if hint is Any or hint is object:
        return Shape({})
    if hint is None or hint is type(None):
        return Shape({"type": "null"})
    if not is_plain_class(hint):
        return None
    found = _BY_NAME.get(f"{hint.__module__}.{hint.__qualname__}")
    if found is not None:
        return Shape(found[0](), found[1](hint))
    if issubclass(hint, os.PathLike):
        return _path_shape(hint)
    return _basic_shape(hint)


def _path_shape(hint: type) -> Shape | None:
    if hint is os.PathLike:
        return Shape(_string(), pathlib.Path)
    return Shape(_string(), hint) if issubclass(hint, pathlib.PurePath) else None


def _basic_shape(hint: type) -> Shape | None:
    """Return the shape of str, bool, int and float, and of the classes derived from them."""
    if issubclass(hint, str):
        return Shape(_string(), None if hint is str else hint)
    if issubclass(hint, bool):
        return Shape({"type": "boolean"})
    if issubclass(hint, int):
        return Shape({"type": "integer"}, _whole if hint is int else hint)
    if issubclass(hint, float):
        return Shape({"type": "number"}, hint)
    return None
