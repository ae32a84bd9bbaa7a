"""
JSON schemas for Python types, and the way back from JSON to their values.

Nothing here imports pydantic or any other package for a type's sake: a type of such a package is
only there when its user has imported it.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import enum
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from toolnexus.errors import SchemaError
from toolnexus.tools.choices import enum_shape, literal_shape, union_shape
from toolnexus.tools.containers import list_shape, mapping_shape, tuple_shape
from toolnexus.tools.described import described
from toolnexus.tools.records import is_pydantic, is_record, pydantic_shape, record_shape, substitute
from toolnexus.tools.scalars import Shape, is_plain_class, scalar_shape

__all__ = ["ShapeBuilder", "schema_of"]

_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.deque: collections.deque,
    set: set,
    frozenset: frozenset,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_MAPPINGS: dict[Any, Callable[[dict[Any, Any]], Any]] = {
    dict: dict,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
    collections.OrderedDict: collections.OrderedDict,
}
#: What says something about a field and nothing about its values.
_QUALIFIERS = frozenset(("Required", "NotRequired", "ReadOnly", "Final", "ClassVar"))


def schema_of(hint: Any) -> dict[str, Any]:
    """
    Return the JSON schema of a type.

    Args:
        hint: The type, as one would annotate it.

    Returns:
        A schema that stands for itself: what is recursive in it is under ``$defs``.

    Raises:
        SchemaError: There is no JSON form for it.

    >>> schema_of(dict[str, list[int]])
    {'type': 'object', 'additionalProperties': {'type': 'array', 'items': {'type': 'integer'}}}
    """
    builder = ShapeBuilder("schema_of")
    schema = builder.shape(hint).schema
    return {**schema, "$defs": builder.defs} if builder.defs else schema


class ShapeBuilder:
    """
    Finds the shapes of the types of one function.

    Args:
        label: How error messages begin.

    Attributes:
        defs: The schemas of the recursive types so far, for ``$defs`` at the top of the schema.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.defs: dict[str, Any] = {}
        self._reserved: set[str] = set()
        self._open: dict[Any, str] = {}
        self._recursive: set[Any] = set()
        self._done: dict[Any, Shape] = {}

    def shape(self, hint: Any) -> Shape:
        """
        Return the shape of a type.

        Raises:
            SchemaError: There is no JSON form for it.
        """
        found = enum_shape(hint) if isinstance(hint, enum.EnumMeta) else scalar_shape(hint)
        for find in (self._of_others, self._container, self._named, self._stand_in):
            if found is not None:
                return found
            found = find(hint)
        if found is not None:
            return found
        raise SchemaError(
            f"{self.label}: no JSON schema can be made for {_type_name(hint)};"
            " annotate it otherwise, or pass input_schema="
        )

    @contextlib.contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Have error messages name a place inside."""
        outer, self.label = self.label, f"{self.label}, {place}"
        try:
            yield
        finally:
            self.label = outer

    def reserve(self, name: str) -> str:
        """Return a name for ``$defs`` that is like the given one and not taken."""
        base = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "type"
        free, count = base, 2
        while free in self._reserved:
            free, count = f"{base}_{count}", count + 1
        self._reserved.add(free)
        return free

    def _of_others(self, hint: Any) -> Shape | None:
        """Return the shape of what typing makes of other types: annotated, literals, unions."""
        origin = typing.get_origin(hint)
        if origin is None:
            return None
        args = typing.get_args(hint)
        if origin is typing.Annotated:
            return described(self.shape(args[0]), args[1:])
        if origin is typing.Literal:
            return literal_shape(args)
        if origin is typing.Union or origin is types.UnionType:
            return union_shape(self, args)
        if getattr(origin, "_name", None) in _QUALIFIERS:
            return self.shape(args[0])
        return None

    def _container(self, hint: Any) -> Shape | None:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        origin = hint if origin is None else origin
        if not is_plain_class(origin):
            return None
        if origin is tuple:
            return tuple_shape(self, hint, args)
        if origin in _LISTS:
            return list_shape(self.shape(args[0] if args else Any), _LISTS[origin])
        if origin in _MAPPINGS:
            key, value = args or (str, Any)
            return mapping_shape(self, self.shape(key), self.shape(value), _MAPPINGS[origin])
        return None

    def _named(self, hint: Any) -> Shape | None:
        """Return the shape of what has a name, and may therefore contain itself."""
        origin = typing.get_origin(hint)
        cls, args = (hint, ()) if origin is None else (origin, typing.get_args(hint))
        if is_pydantic(cls):
            return self._maybe_recursive(hint, lambda: pydantic_shape(self, cls))
        if is_record(cls):
            return self._maybe_recursive(hint, lambda: record_shape(self, cls, args))
        if type(cls).__name__ == "TypeAliasType":
            names = dict(zip(cls.__type_params__, args, strict=False))
            return self._maybe_recursive(hint, lambda: self.shape(substitute(cls.__value__, names)))
        # Such as os.PathLike[str], where the parameter makes no difference.
        return scalar_shape(cls) if origin is not None else None

    def _maybe_recursive(self, hint: Any, make: Callable[[], Shape]) -> Shape:
        """Make the shape of a type once; where it is met inside itself, it moves to ``$defs``."""
        if hint in self._done:
            return self._done[hint]
        if hint in self._open:
            self._recursive.add(hint)
            self._open[hint] = self._open[hint] or self.reserve(_type_name(hint))
            return Shape({"$ref": f"#/$defs/{self._open[hint]}"}, lambda value: self._late(hint, value))
        self._open[hint] = ""
        try:
            shape = make()
        finally:
            name = self._open.pop(hint)
        if hint in self._recursive:
            self.defs[name] = shape.schema
            shape = Shape({"$ref": f"#/$defs/{name}"}, shape.load)
        self._done[hint] = shape
        return shape

    def _late(self, hint: Any, value: Any) -> Any:
        load = self._done[hint].load
        return value if load is None else load(value)

    def _stand_in(self, hint: Any) -> Shape | None:
        """Return the shape of a hint that stands for another one."""
        if isinstance(hint, typing.TypeVar):
            if hint.__constraints__:
                return union_shape(self, hint.__constraints__)
            return self.shape(hint.__bound__ or Any)
        if getattr(hint, "_name", None) == "LiteralString":
            return self.shape(str)
        if hasattr(hint, "__supertype__"):  # NewType
            return self.shape(hint.__supertype__)
        if type(hint).__name__ == "InitVar":
            return self.shape(hint.type)
        return None


def _type_name(hint: Any) -> str:
    name = hint.__name__ if is_plain_class(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+(?:<locals>\.)?", "", name)
