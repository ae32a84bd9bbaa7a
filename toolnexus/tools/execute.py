"""Running one call of a tool: arguments checked and converted, whatever comes made into a result."""

from __future__ import annotations

import logging
import types
from typing import Any

from toolnexus.tools.arguments import argument_checker, without_nulls
from toolnexus.tools.base import Context, SuspendTool, Tool, ToolResult
from toolnexus.tools.outcome import clean_text, cut_text, text_of, to_result
from toolnexus.wording import describe_error

__all__ = ["execute_tool"]

_logger = logging.getLogger("toolnexus.tools")


def execute_tool(tool: Tool, args: dict[str, Any], ctx: Context) -> ToolResult:
    """
    Run one call of a tool, in this thread.

    The arguments are checked against the schema and made into the annotated types. A generator
    reports each piece of text that it yields, and its result is what it returns, or all the pieces
    joined; a coroutine is run to its end. Time limits are the caller's business.

    Args:
        tool: The tool.
        args: The arguments as the model gave them; they are not changed.
        ctx: The context of the call.

    Returns:
        The result. Wrong arguments and anything that the tool raises are results, too, with
        ``is_error``, so that the model can do better.

    Raises:
        KeyboardInterrupt: It was raised meanwhile.
        SuspendTool: The tool asks a person.

    >>> shout = Tool(
    ...     "shout",
    ...     "",
    ...     {"type": "object", "properties": {"text": {"type": "string"}}},
    ...     lambda args, ctx: args["text"].upper(),
    ... )
    >>> execute_tool(shout, {"text": "hey"}, Context()).output
    'HEY'
    >>> execute_tool(shout, {"text": 3}, Context()).output
    'shout: wrong arguments: text: expected a string, got 3'
    """
    args = without_nulls(tool.input_schema, args)
    problems = argument_checker(tool)(args)
    if problems:
        return _refused(tool, "; ".join(problems))
    if tool.convert is not None:
        try:
            args = tool.convert(args)
        except Exception as error:  # noqa: BLE001 - constructors of the user's run in there
            return _refused(tool, str(error))
    try:
        return to_result(_run(tool, args, ctx), tool)
    except (KeyboardInterrupt, SuspendTool):
        raise
    except BaseException as error:  # also sys.exit() in a tool ends the tool only
        _logger.debug("tool %s failed", tool.name, exc_info=True)
        return ToolResult.error(cut_text(clean_text(describe_error(error)), tool.max_output))


def _refused(tool: Tool, why: str) -> ToolResult:
    return ToolResult.error(clean_text(f"{tool.name}: wrong arguments: {why}"))


def _run(tool: Tool, args: dict[str, Any], ctx: Context) -> Any:
    value = tool.execute(args, ctx)
    if isinstance(value, types.GeneratorType):
        return _drive(value, ctx)
    if hasattr(type(value), "__await__") or isinstance(value, types.AsyncGeneratorType):
        from toolnexus.tools.coroutines import run_async

        return run_async(value, ctx)
    return value


def _drive(generator: types.GeneratorType[Any, None, Any], ctx: Context) -> Any:
    """Report what a generator yields, and return what it returns, or all that it yielded as one text."""
    pieces: list[str] = []
    try:
        while True:
            piece = text_of(next(generator))
            pieces.append(piece)
            ctx.output(piece)
            ctx.scope.check()
    except StopIteration as stop:
        return "".join(pieces) if stop.value is None and pieces else stop.value
    finally:
        generator.close()
