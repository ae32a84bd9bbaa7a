"""
What the frozen values have in common: comparing and showing themselves.

attrs can write these methods for every class anew, at a third of a millisecond each when the
package is imported. One that serves all costs nothing there.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

__all__ = ["Value"]


@functools.cache
def _compared(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls) if field.eq)


@functools.cache
def _shown(cls: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, f.repr) for f in attrs.fields(cls) if f.repr is not False)


def _names(value: Any) -> tuple[str, ...]:
    return _compared(value.__class__)


def _reprs(value: Any) -> tuple[tuple[str, Any], ...]:
    return _shown(value.__class__)


class Value:
    """The base of frozen attrs classes that are made with ``eq=False, repr=False``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(self))

    def __hash__(self) -> int:
        return hash((self.__class__, *(getattr(self, name) for name in _names(self))))

    def __repr__(self) -> str:
        parts = []
        for name, show in _reprs(self):
            value = getattr(self, name)
            parts.append(f"{name.lstrip('_')}={show(value) if callable(show) else repr(value)}")
        return f"{self.__class__.__name__}({', '.join(parts)})"
