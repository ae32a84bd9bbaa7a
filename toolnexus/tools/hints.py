"""Finds out what parameters a callable has and what types their annotations mean."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from toolnexus.errors import SchemaError
from toolnexus.tools.base import Context
from toolnexus.tools.scalars import is_plain_class
from toolnexus.wording import error_text

__all__ = [
    "Parameter",
    "class_hints",
    "constructor_parameters",
    "context_names",
    "is_context",
    "parameters_of",
    "underlying",
]

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@attrs.frozen(eq=False)
class Parameter:
    """
    One parameter of a callable.

    Args:
        name: Its name.
        hint: The type that its annotation means; ``Any`` without one.
        default: The default value, or ``inspect.Parameter.empty``.
        positional: Whether it can only be given by position.
    """

    name: str
    hint: Any
    default: Any
    positional: bool

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def parameters_of(function: Callable[..., Any], label: str, *, skip: int = 0) -> list[Parameter]:
    """
    Return the parameters of a function, method, partial, class or callable object.

    ``*args`` and ``**kwargs`` are left out, and so is what a partial has bound by name: whoever
    bound it has decided, and its type may well have no JSON form.

    Args:
        function: What is called.
        label: How messages call it.
        skip: How many of the first parameters to leave out, too.

    Raises:
        SchemaError: It has no signature, or a name in an annotation cannot be resolved.
    """
    bound = function.keywords if isinstance(function, functools.partial) else {}
    kept = [p for p in _signature(function, label)[skip:] if p.name not in bound]
    annotations = {p.name: p.annotation for p in kept if p.annotation is not p.empty}
    hints = _resolve(annotations, underlying(function), label)
    return [Parameter(p.name, hints.get(p.name, Any), p.default, p.kind is p.POSITIONAL_ONLY) for p in kept]


def context_names(function: Callable[..., Any], label: str) -> list[str]:
    """Return the parameters that ask for the `Context`; those that cannot be resolved do not."""
    names = []
    for parameter in _signature(function, label):
        with contextlib.suppress(SchemaError):
            hints = _resolve({"it": parameter.annotation}, underlying(function), label)
            if is_context(hints["it"]):
                names.append(parameter.name)
    return names


def constructor_parameters(cls: type, label: str) -> list[Parameter]:
    """
    Return what a dataclass, attrs class or named tuple is made from.

    Raises:
        SchemaError: It has no signature, or a name in an annotation cannot be resolved.
    """
    kept = _signature(cls, label)
    hints = class_hints(cls, label)
    for field in getattr(cls, "__attrs_attrs__", ()):
        if field.name in hints:
            hints[field.alias] = hints[field.name]
    # The annotations of the class come first: a constructor that it inherits, or that was generated,
    # may have been written in another module, where the names mean something else or nothing.
    rest = {p.name: p.annotation for p in kept if p.name not in hints and p.annotation is not p.empty}
    hints.update(_resolve(rest, cls, label))
    return [Parameter(p.name, hints.get(p.name, Any), p.default, False) for p in kept]


def _signature(function: Callable[..., Any], label: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{label}: its parameters cannot be found out; pass input_schema=") from error
    return [p for p in signature.parameters.values() if p.kind not in _VARIADIC]


def is_context(hint: Any) -> bool:
    """Whether an annotation asks for the `Context`: ``Context``, ``Context | None``, or annotated so."""
    if is_plain_class(hint):
        return issubclass(hint, Context)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return is_context(hint.__origin__)
    if origin is typing.Union or origin is types.UnionType:
        return any(is_context(member) for member in typing.get_args(hint))
    return False


def underlying(function: Any) -> Any:
    """Return the function (or the class) below partials, methods, decorators and callable objects."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif "__wrapped__" in getattr(function, "__dict__", ()):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not isinstance(function, type) and isinstance(type(function).__call__, types.FunctionType):
            function = type(function).__call__
        else:
            return function


def class_hints(cls: type, label: str) -> dict[str, Any]:
    """
    Return what the annotations of a class's fields mean, those of its bases included.

    Raises:
        SchemaError: A name in an annotation cannot be resolved.
    """
    for names in ({cls.__name__: cls}, _wider_names(cls)):
        try:
            hints = typing.get_type_hints(cls, None, names, include_extras=True)
        except NameError as error:
            failure = error
        except Exception as error:
            raise SchemaError(
                f"{label}: the annotations of {cls.__qualname__} fail: {error_text(error)}"
            ) from error
        else:
            return _settled(hints, {**_globals_of(cls), **names})
    raise SchemaError(
        f"{label}: the name {failure.name!r} in the annotations of {cls.__qualname__} cannot be resolved"
    ) from failure


def _resolve(annotations: Mapping[str, Any], owner: Any, label: str) -> dict[str, Any]:
    """Return the types that annotations mean; the plain classes among them need no work."""
    hints = {name: hint for name, hint in annotations.items() if is_plain_class(hint)}
    if len(hints) < len(annotations):
        names = _closure_names(owner)
        for name, annotation in annotations.items():
            if name not in hints:
                known = _known_class(annotation, owner, names)
                hints[name] = known or _resolve_one(name, annotation, owner, names, label)
    return hints


def _known_class(annotation: Any, owner: Any, names: Mapping[str, Any]) -> type | None:
    """Return the class that an annotation simply names, as most do; None for any other annotation."""
    if not isinstance(annotation, str):
        return None
    for namespace in (names, _globals_of(owner), vars(builtins)):
        if annotation in namespace:
            found = namespace[annotation]
            return found if is_plain_class(found) else None
    return None


def _resolve_one(name: str, annotation: Any, owner: Any, names: dict[str, Any], label: str) -> Any:
    """Return the type that one annotation means, looking further afield where a name is missing."""
    try:
        return _evaluate(annotation, _globals_of(owner), names)
    except NameError as error:
        failure: Exception = error
    except Exception as error:
        raise SchemaError(
            f"{label}: parameter {name!r}: its annotation {annotation!r} fails: {error_text(error)}"
        ) from error
    try:
        return _evaluate(annotation, _globals_of(owner), _wider_names(owner) | names)
    except NameError as error:
        failure = error
    raise SchemaError(
        f"{label}: parameter {name!r}: its annotation {annotation!r} has a name that cannot be resolved"
        f" ({failure}); define it before the tool is made, or pass input_schema="
    ) from failure


def _evaluate(annotation: Any, namespace: dict[str, Any], names: Mapping[str, Any]) -> Any:
    # get_type_hints also resolves names that are nested, as in list["Point"]; of the whole function
    # it would resolve the return type, too, which may be out of reach and is not needed.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    hints = typing.get_type_hints(holder, namespace, dict(names), include_extras=True)
    return _settled(hints, {**namespace, **names})["it"]


if sys.version_info >= (3, 11):

    def _settled(hints: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
        return hints

else:

    def _settled(hints: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
        """Resolve the strings that Python 3.10 leaves inside ``list["Point"]`` and its like."""

        def settle(hint: Any) -> Any:
            if isinstance(hint, str):
                return _evaluate(hint, dict(names), {})
            if isinstance(hint, types.GenericAlias):
                return types.GenericAlias(typing.get_origin(hint), tuple(map(settle, hint.__args__)))
            return hint

        return {name: settle(hint) for name, hint in hints.items()}


def _globals_of(owner: Any) -> dict[str, Any]:
    """Return the namespace of the module that a function or class was written in."""
    found = getattr(owner, "__globals__", None)
    if found is None:
        found = vars(sys.modules.get(getattr(owner, "__module__", None) or "builtins", typing))
    return typing.cast("dict[str, Any]", found)


def _closure_names(owner: Any) -> dict[str, Any]:
    """Return what a function refers to in the functions around it, and its type parameters."""
    names = {p.__name__: p for p in getattr(owner, "__type_params__", ())}
    code, cells = getattr(owner, "__code__", None), getattr(owner, "__closure__", None)
    for name, cell in zip(code.co_freevars, cells, strict=True) if code and cells else ():
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not filled yet: it is assigned further down
            continue
    return names


def _wider_names(owner: Any) -> dict[str, Any]:
    """
    Return names that an annotation may mean though Python itself would not find them.

    These are the class itself, what is nested in its class, the local names of the functions that
    the owner is defined in, as long as they run, and ours, which may be imported for type checkers
    only.
    """
    names: dict[str, Any] = {"Context": Context, "toolnexus": sys.modules["toolnexus"]}
    outer: Any = None
    for part in getattr(owner, "__qualname__", "").split(".")[:-1]:
        outer = _globals_of(owner).get(part) if outer is None else vars(outer).get(part)
        if not isinstance(outer, type):
            break
        names.update(vars(outer))
    for local in reversed(list(_enclosing_locals(owner))):
        names.update(local)
    if isinstance(owner, type):
        names[owner.__name__] = owner
    return names


def _enclosing_locals(owner: Any) -> Iterator[dict[str, Any]]:
    """Yield the local names of the running functions and class bodies around an owner, inner ones first."""
    enclosing = set(getattr(owner, "__qualname__", "").split(".")[:-1]) - {"<locals>"}
    namespace = _globals_of(owner)
    frame = sys._getframe(1) if enclosing else None
    while frame is not None:
        if frame.f_globals is namespace and frame.f_code.co_name in enclosing:
            yield frame.f_locals
        frame = frame.f_back
