"""Python functions as tools: `tool`, `as_tool` and `collect`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import attrs

from toolnexus.errors import ConfigurationError, SchemaError
from toolnexus.tools.base import Context, Execute, Tool
from toolnexus.tools.described import field_schema
from toolnexus.tools.docstrings import read_docstring
from toolnexus.tools.hints import Parameter, context_names, is_context, parameters_of
from toolnexus.tools.scalars import Load, under
from toolnexus.tools.schema import ShapeBuilder

__all__ = ["FunctionTool", "as_tool", "collect", "tool", "unbound"]

Approval = bool | Callable[[Mapping[str, Any]], bool]
Interrupted = Literal["retry", "fail", "ask"]
Convert = Callable[[dict[str, Any]], dict[str, Any]]


@attrs.frozen(eq=False, repr=False)
class FunctionTool(Tool):
    """
    A tool made from a function. It can still be called as the function can.

    In a class, ``@tool`` makes a method into a tool: ``instance.method`` is the tool for that instance.

    Args:
        function: The function.
        options: What `tool` was given beside it.
    """

    function: Callable[..., Any] = attrs.field(kw_only=True, repr=False)
    options: Mapping[str, Any] = attrs.field(kw_only=True, factory=dict, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool:
        """Return the tool for an instance, where the function is a method."""
        if instance is None or not unbound(self.function):
            return self
        return _make(types.MethodType(self.function, instance), dict(self.options))


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: dict[str, Any] | None = None,
    timeout: float | None = None,
    parallel: bool = True,
    max_output: int | None = None,
    approval: Approval = False,
    idempotent: bool = False,
    on_interrupted: Interrupted = "ask",
    metadata: dict[str, Any] | None = None,
) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: dict[str, Any] | None = None,
    timeout: float | None = None,
    parallel: bool = True,
    max_output: int | None = None,
    approval: Approval = False,
    idempotent: bool = False,
    on_interrupted: Interrupted = "ask",
    metadata: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: dict[str, Any] | None = None,
    timeout: float | None = None,
    parallel: bool = True,
    max_output: int | None = None,
    approval: Approval = False,
    idempotent: bool = False,
    on_interrupted: Interrupted = "ask",
    metadata: dict[str, Any] | None = None,
) -> Any:
    """
    Make a tool from a function, a method, a partial or another callable.

    Use it as ``@tool``, as ``@tool(name=...)``, or call it on a function. The schema comes from the
    signature: its annotations, its defaults, and the parameters' texts in the docstring (Google,
    reStructuredText or numpy style) or in ``Annotated[int, "the text"]``. A parameter annotated with
    `Context` is filled in and hidden from the model; ``*args`` and ``**kwargs`` are left alone.
    The function is called with arguments that were checked and made into the annotated types. It may
    be a coroutine function, or a generator that yields its progress.

    Args:
        function: What to call.
        name: The name for the model; the function's own by default.
        description: What it does, for the model; by default the docstring up to its parameters.
        input_schema: The schema of the arguments, in place of the one from the signature. The
            arguments then arrive as JSON has them.
        timeout: Seconds a call may take; None for no limit of its own.
        parallel: Whether it may run beside other calls of the same turn.
        max_output: The longest output in characters that goes to the model; None for no limit.
        approval: True, or a function of the arguments, when a person must approve a call first.
        idempotent: Whether a call that was interrupted may safely run again.
        on_interrupted: What to do with a call of a durable run that was cut: "retry", "fail" or "ask".
        metadata: Anything to keep with the tool.

    Returns:
        The tool; or, called without a function, a decorator that makes it.

    Raises:
        SchemaError: No schema can be made for a parameter.
        ConfigurationError: An option has a wrong value.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> add.name, add.description
    ('add', 'Add two numbers.')
    >>> add.input_schema["properties"]
    {'a': {'type': 'integer'}, 'b': {'type': 'integer', 'default': 1}}
    >>> add(2, 3)
    5
    """
    options = {
        "name": name,
        "description": description,
        "input_schema": input_schema,
        "timeout": timeout,
        "parallel": parallel,
        "max_output": max_output,
        "approval": approval,
        "idempotent": idempotent,
        "on_interrupted": on_interrupted,
        "metadata": metadata,
    }
    _check_options(options)
    return partial(_make, options=options) if function is None else _make(function, options)


def as_tool(obj: Any) -> Tool:
    """
    Return a tool as it is, and any callable as a tool.

    Raises:
        SchemaError: No schema can be made for a parameter.
        ConfigurationError: It is neither.

    >>> as_tool(len).name
    'len'
    """
    return obj if isinstance(obj, Tool) else _make(obj, {})


def collect(source: Any) -> list[Tool]:
    """
    Return the tools of a module or of an object.

    Of a module: its tools, and the public functions that are defined in it (only those that
    ``__all__`` names, where there is one). Of an object: its public methods. Of a class: those that
    need no instance. Names with a leading underscore are private. The order is that of definition.

    Args:
        source: A module, an object or a class.

    Raises:
        SchemaError: No schema can be made for a parameter of one of them.

    >>> class Clock:
    ...     def hour(self) -> int:
    ...         "Tell the hour."
    ...         return 12
    >>> [t.name for t in collect(Clock())]
    ['hour']
    """
    found = _of_module(source) if isinstance(source, types.ModuleType) else _of_object(source)
    return [as_tool(item) for item in found]


def _of_module(module: types.ModuleType) -> Iterator[Any]:
    public = getattr(module, "__all__", None)
    for name, item in vars(module).items():
        if name not in public if public is not None else name.startswith("_"):
            continue
        function = item.function if isinstance(item, FunctionTool) else item
        if isinstance(function, types.FunctionType):
            if public is not None or function.__module__ == module.__name__:
                yield item
        elif isinstance(item, Tool):
            yield item


def _of_object(source: Any) -> Iterator[Any]:
    cls = source if isinstance(source, type) else type(source)
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for name in [*names, *(() if source is cls else getattr(source, "__dict__", ()))]:
        if name.startswith("_"):
            continue
        # Looked at without asking the object: a property would run.
        raw = inspect.getattr_static(source, name, None)
        if isinstance(raw, staticmethod | classmethod | Tool):
            needs_instance = isinstance(raw, FunctionTool) and unbound(raw.function)
        elif isinstance(raw, types.FunctionType):
            needs_instance = name in names
        else:
            continue
        if source is not cls or not needs_instance:
            yield getattr(source, name)


def _check_options(options: Mapping[str, Any]) -> None:
    for name in ("timeout", "max_output"):
        value = options[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and value > 0):
            raise ConfigurationError(f"tool: {name} must be a number above 0 or None, not {value!r}")
    schema = options["input_schema"]
    if schema is not None and not (isinstance(schema, dict) and schema.get("type", "object") == "object"):
        raise ConfigurationError("tool: input_schema must be a dict with the schema of an object")
    if options["on_interrupted"] not in ("retry", "fail", "ask"):
        raise ConfigurationError('tool: on_interrupted must be "retry", "fail" or "ask"')


def _make(function: Any, options: Mapping[str, Any]) -> FunctionTool:
    """Make the tool of a callable."""
    function = _callable(function)
    given = {k: v for k, v in options.items() if v is not None}
    name = given.pop("name", None) or _name(function)
    text, texts = read_docstring(_docstring(function))
    description = given.pop("description", text)
    schema = given.pop("input_schema", None)
    if schema is not None:
        plan = _given_plan(function, schema, f"tool {name!r}")
    else:
        plan = _inferred_plan(function, texts, f"tool {name!r}")
    execute = _executor(function, plan.positional, plan.contexts)
    return FunctionTool(
        name,
        description,
        plan.schema,
        execute,
        convert=plan.convert,
        function=function,
        options=options,
        **given,
    )


class _Plan(NamedTuple):
    """How a function is called: the schema of its arguments, and what becomes of them."""

    schema: dict[str, Any]
    convert: Convert | None
    positional: list[Parameter]
    contexts: list[str]


def _inferred_plan(function: Any, texts: Mapping[str, str], label: str) -> _Plan:
    """Return the plan that a function's signature makes."""
    method = unbound(function)
    try:
        parameters = parameters_of(function, label, skip=method)
    except SchemaError:
        if not method:
            raise
        # Inside a class that is being defined, its own name means nothing yet. The tool that
        # counts is that of an instance, and is made, or refused, when it is asked for.
        parameters = []
    contexts = [p.name for p in parameters if is_context(p.hint)]
    parameters = [p for p in parameters if p.name not in contexts]
    schema, convert = _schema(parameters, texts, label)
    return _Plan(schema, convert, [p for p in parameters if p.positional], contexts)


def _given_plan(function: Any, schema: dict[str, Any], label: str) -> _Plan:
    """Return the plan for a schema that somebody wrote; only the context is looked for."""
    schema = {"type": "object", **schema}
    try:
        contexts = context_names(function, label)
    except SchemaError:
        return _Plan(schema, None, [], [])  # a built-in without a signature: called by name
    kinds = inspect.signature(function).parameters.values()
    positional = [Parameter(p.name, Any, p.default, True) for p in kinds if p.kind is p.POSITIONAL_ONLY]
    return _Plan(schema, None, positional, contexts)


def _callable(function: Any) -> Any:
    """Return what is really to be called, or raise if nothing can be."""
    if isinstance(function, types.MethodType) and isinstance(function.__func__, FunctionTool):
        function = types.MethodType(function.__func__.function, function.__self__)
    elif isinstance(function, FunctionTool):
        function = function.function
    elif isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, classmethod):
        raise ConfigurationError("tool: put @tool below @classmethod, not above it")
    if isinstance(function, Tool) or not callable(function):
        raise ConfigurationError(f"expected a function or a tool, got {type(function).__name__}")
    return function


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        name = type(function).__name__
    if not name.isidentifier():
        raise ConfigurationError(f"tool: {name} has no name to use; pass name=")
    return name


def _docstring(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        call = type(function).__call__
        return inspect.getdoc(call if call.__doc__ else type(function)) or ""
    return inspect.getdoc(function) or ""


def unbound(function: Any) -> bool:
    """Whether a function is a method that was not taken from an instance: its ``self`` is still open."""
    if not isinstance(function, types.FunctionType):
        return False
    outer = function.__qualname__.rpartition(".")[0]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return bool(outer) and not outer.endswith("<locals>") and names[:1] in (("self",), ("cls",))


def _schema(
    parameters: list[Parameter], texts: Mapping[str, str], label: str
) -> tuple[dict[str, Any], Convert]:
    """Return the schema of parameters, and what makes their values of checked arguments."""
    builder = ShapeBuilder(label)
    properties: dict[str, Any] = {}
    loads: dict[str, Load] = {}
    for parameter in parameters:
        builder.label = f"{label}: parameter {parameter.name!r}"
        shape = builder.shape(parameter.hint)
        properties[parameter.name] = field_schema(shape, parameter, texts.get(parameter.name))
        if shape.load is not None:
            loads[parameter.name] = shape.load
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [p.name for p in parameters if p.required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    if builder.defs:
        schema["$defs"] = builder.defs
    return schema, partial(_converted, loads)


def _converted(loads: Mapping[str, Load], args: dict[str, Any]) -> dict[str, Any]:
    out = dict(args)
    for name, load in loads.items():
        if name in out:
            try:
                out[name] = load(out[name])
            except Exception as error:
                raise under(f".{name}", error) from error
    return out


def _executor(function: Callable[..., Any], positional: list[Parameter], contexts: list[str]) -> Execute:
    """Return what calls a function with its arguments by name."""

    def execute(args: dict[str, Any], ctx: Context) -> Any:
        named = dict(args)
        for name in contexts:
            named[name] = ctx
        given = []
        for parameter in positional:
            if parameter.name not in named and parameter.required:
                break  # the function itself says what is missing
            given.append(named.pop(parameter.name, parameter.default))
        return function(*given, **named)

    return execute
