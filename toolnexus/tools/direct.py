"""Running one call of a tool outside a run: for people with a loop of their own."""

from __future__ import annotations

from typing import Any

import attrs

from toolnexus.abandon import call_abandonable
from toolnexus.chunks import ToolRequest
from toolnexus.errors import HookError, ToolnexusError
from toolnexus.tools.base import Context, SuspendTool, Tool, ToolResult
from toolnexus.tools.execute import execute_tool
from toolnexus.wording import describe_error

__all__ = ["execute_directly"]


def execute_directly(tool: Tool, args: dict[str, Any], ctx: Context) -> ToolResult:
    """
    Run one call of a tool, with its time limit, and after a person approved where it wants that.

    Args:
        tool: The tool.
        args: The arguments as the model gave them.
        ctx: The context of the call. Its answers are what a person said so far; where the tool wants
            approval, the first of them is about that.

    Returns:
        The result. One that waits for a person holds the request, see `toolnexus.suspension.pending_of`.
    """
    try:
        if tool.approval is not False:
            judged = _judged(tool, args, ctx)
            if isinstance(judged, ToolResult):
                return judged
            args, ctx = judged
        return execute_tool(tool, args, ctx) if tool.timeout is None else _limited(tool, args, ctx)
    except SuspendTool as asking:
        return asking.result


def _judged(tool: Tool, args: dict[str, Any], ctx: Context) -> ToolResult | tuple[dict[str, Any], Context]:
    """Return the call as a person let it pass, or its result where nobody did."""
    from toolnexus.approval import approval_of

    try:
        asking = approval_of(tool, ToolRequest(ctx.call_id, tool.name, args))
    except HookError as error:
        return ToolResult.error(error.message)
    if asking is None:
        return args, ctx
    if not ctx.answers:
        return asking
    answer = ctx.answers[0]
    if not answer.ok:
        why = f" ({answer.reason})" if answer.reason else ""
        return ToolResult.error(f"rejected{why}: {asking.output}")
    data = answer.data if isinstance(answer.data, dict) else {}
    if "response" in data:
        return ToolResult.ok(str(data["response"]))
    return data.get("args", args), attrs.evolve(ctx, answers=ctx.answers[1:])


def _limited(tool: Tool, args: dict[str, Any], ctx: Context) -> ToolResult:
    """Run a call in a thread that is left behind when its time is up."""
    with ctx.scope.child(tool.timeout) as scope:
        context = attrs.evolve(ctx, scope=scope)
        try:
            result = call_abandonable(lambda: execute_tool(tool, args, context), scope, name="tool")
            scope.check()  # what a tool returns because it was told to stop is no result
        except ToolnexusError as error:
            if ctx.scope.cancelled:
                return ToolResult.error(describe_error(error))
            scope.expire()
            return ToolResult.error(f"{tool.name}: timed out after {tool.timeout:g} s")
        return result
