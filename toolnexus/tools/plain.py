"""
Makes plain JSON values out of Python values, as well as it can be done.

It is the counterpart of `toolnexus.tools.schema`: what a supported type's value becomes here is
what the type's schema describes.
"""

from __future__ import annotations

import base64
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import attrs

from toolnexus.content import File, Image
from toolnexus.tools.base import ToolResult
from toolnexus.wording import describe_error

__all__ = ["enum_value", "plain", "plain_strict", "safe_repr"]

_AS_THEY_ARE = frozenset((str, int, bool, type(None)))
_SCALARS = (str, int, float, bool, type(None))
_MAX_DEPTH = 100
_MAX_ITERATED = 10_000
#: Classes whose ``str()`` is their JSON form, by full name, so that none need be imported here.
_TEXTS = frozenset(
    (
        "decimal.Decimal",
        "fractions.Fraction",
        "ipaddress._IPAddressBase",
        "pathlib.PurePath",
        "pathlib._local.PurePath",
        "uuid.UUID",
    )
)


def plain(value: Any) -> Any:
    """
    Return a value as plain JSON: dicts with string keys, lists, strings, numbers, booleans, None.

    Never raises: what has no better form becomes its ``repr``.

    >>> plain({1: (2, {3}), "when": __import__("datetime").date(2026, 3, 1)})
    {'1': [2, [3]], 'when': '2026-03-01'}
    """
    return _Walk(safe_repr).walk(value)


def plain_strict(value: Any) -> Any:
    """
    Return a value as plain JSON.

    Raises:
        TypeError: Some part of it has no JSON form.
    """
    return _Walk(_refuse).walk(value)


def safe_repr(value: Any) -> str:
    """Return the ``repr`` of a value, or the name of its type where that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a repr of the user's may fail at anything
        return f"<{type(value).__name__}>"


def enum_value(member: Enum) -> Any:
    """Return the JSON form of an enum's member: its value, or its name if not all values are JSON scalars."""
    if all(isinstance(m.value, _SCALARS) for m in type(member)):
        return _bare(member.value)
    return member.name


def _bare(value: Any) -> Any:
    """Return a string or number as one of Python's own class."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool) or value is None:
        return value
    return int(value) if isinstance(value, int) else float(value)


def _finite(number: float) -> Any:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON form")


class _Walk:
    """One walk over one value."""

    def __init__(self, fallback: Callable[[Any], Any]) -> None:
        self._fallback = fallback
        self._above: list[int] = []

    def walk(self, value: Any) -> Any:
        """Return the JSON form of a value."""
        cls = type(value)
        if cls in _AS_THEY_ARE:
            return value
        if cls is float:
            return value if math.isfinite(value) else self._odd(_finite(value), value)
        if id(value) in self._above:
            return self._odd(f"<the same {cls.__name__} again>", value)
        if len(self._above) >= _MAX_DEPTH:
            return self._odd("<nested too deeply>", value)
        self._above.append(id(value))
        try:
            return self._inside(value)
        except Exception:  # noqa: BLE001 - code of the user's runs in there
            return self._fallback(value)
        finally:
            self._above.pop()

    def _odd(self, text: Any, value: Any) -> Any:
        """Return the text that stands for a value, unless such values are to be refused."""
        return _refuse(value) if self._fallback is _refuse else text

    def _inside(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {_key(k): self.walk(v) for k, v in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return [self.walk(item) for item in value]
        if isinstance(value, type):
            return self._fallback(value)
        if isinstance(value, Enum):
            return self.walk(enum_value(value))
        if isinstance(value, str | int | float):
            return self.walk(_bare(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return base64.b64encode(value).decode("ascii")
        return self._record(value)

    def _record(self, value: Any) -> Any:
        """Return the JSON form of an object with named fields."""
        if isinstance(value, ToolResult):
            return value.output
        if isinstance(value, Image | File):
            return safe_repr(value)
        fields = _fields(value)
        if fields is not None:
            return {name: self.walk(item) for name, item in fields.items()}
        pydantic = sys.modules.get("pydantic")
        if pydantic is not None and isinstance(value, pydantic.BaseModel):
            return value.model_dump(mode="json")
        if isinstance(value, Mapping):
            return {_key(k): self.walk(v) for k, v in value.items()}
        return self._other(value)

    def _other(self, value: Any) -> Any:
        for name in ("isoformat", "total_seconds", "tolist"):
            # Asked of the class: some objects have an attribute for every name.
            if callable(getattr(type(value), name, None)):
                return self.walk(getattr(value, name)())
        if any(f"{c.__module__}.{c.__qualname__}" in _TEXTS for c in type(value).__mro__):
            return str(value)
        if isinstance(value, BaseException):
            return describe_error(value)
        if isinstance(value, AbstractSet):
            return _ordered([self.walk(item) for item in value])
        if isinstance(value, Sequence | ValuesView):
            return [self.walk(item) for item in value]
        if isinstance(value, Iterator):
            return [self.walk(item) for item in itertools.islice(value, _MAX_ITERATED)]
        return self._fallback(value)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, attrs class or named tuple, by the names its constructor has."""
    cls = type(value)
    if hasattr(cls, "__attrs_attrs__"):
        return {a.alias or a.name: getattr(value, a.name) for a in attrs.fields(cls)}
    if hasattr(cls, "__dataclass_fields__"):
        import dataclasses

        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    return None


def _ordered(items: list[Any]) -> list[Any]:
    """Return the items of a set in an order that does not change from run to run."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=repr)


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    value = _Walk(safe_repr).walk(key)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return repr(value)
