"""What the built-in tools have in common: their options, and how a function becomes a tool."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins.failure import ToolFailure

if TYPE_CHECKING:
    from toolnexus.tools.builtins.addresses import Policy
    from toolnexus.tools.builtins.root import Root

__all__ = ["Function", "Options", "define", "integer", "number", "text"]

#: What does the work of a built-in: called with the arguments, the context and the options.
Function = Callable[[dict[str, Any], Context, "Options"], ToolResult]


@attrs.frozen(kw_only=True)
class Options:
    """
    What the built-ins may do, as given to `builtin_tools`.

    Args:
        root: Where paths begin, and whether they must stay there.
        max_output: The longest output in characters.
        patching: Whether `apply_patch` is among the tools, so that one that was cut off is looked for.
        env: The variables that commands see.
        shell: The shell that runs commands.
        policy: Which addresses `webfetch` may connect to.
        ca_bundle: A file of certificates that `webfetch` trusts beside the usual ones.
        max_page: The largest page in bytes, decompressed.
    """

    root: Root
    max_output: int
    patching: bool
    env: dict[str, str] = attrs.field(repr=False)
    shell: str
    policy: Policy
    ca_bundle: str | None
    max_page: int

    def __attrs_post_init__(self) -> None:
        if self.max_output < 100 or self.max_page < 1:
            raise ConfigurationError("max_output is at least 100, max_page at least 1")


def define(
    function: Function,
    options: Options,
    *,
    description: str,
    properties: dict[str, Any],
    required: tuple[str, ...],
    read_only: bool = False,
    prepare: Callable[[Options], None] | None = None,
) -> Tool:
    """
    Make a tool of a function.

    Args:
        function: What does the work; the tool has its name.
        options: Handed on to it.
        description: What the tool does, for the model.
        properties: The schemas of its arguments.
        required: The arguments that must be there.
        read_only: Whether it changes nothing, so that it may run beside others and run again.
        prepare: What to do before each call.
    """
    name = function.__name__

    @functools.wraps(function)
    def execute(args: dict[str, Any], ctx: Context) -> ToolResult:
        try:
            if prepare is not None:
                prepare(options)
            return function(args, ctx, options)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is for the model to know
            return ToolResult.error(f"{name}: {error if str(error) else type(error).__name__}")

    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return Tool(
        name,
        description,
        schema,
        execute,
        source="builtin",
        parallel=read_only,
        idempotent=read_only,
        on_interrupted="retry" if read_only else "ask",
    )


def text(args: dict[str, Any], key: str, *, empty: bool = False) -> str:
    """
    Return a text argument that must be there.

    Args:
        args: The arguments.
        key: The name of the one.
        empty: Whether an empty text will do.

    Raises:
        ToolFailure: It is missing or not usable.
    """
    value = args.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise ToolFailure(f"{key} is required")
    return value


def number(args: dict[str, Any], key: str, default: float) -> float:
    """Return a number argument, or the default where it is missing or not a number."""
    value = args.get(key)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    return value if usable else default  # type: ignore[return-value]


def integer(args: dict[str, Any], key: str, default: int) -> int:
    """Return a whole-number argument, or the default where it is missing or not a number."""
    value = number(args, key, default)
    return int(max(-(2**53), min(2**53, value)))
