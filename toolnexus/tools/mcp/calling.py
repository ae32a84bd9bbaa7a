"""One call of a tool, from its arguments to its result."""

from __future__ import annotations

from typing import Any

from toolnexus.errors import ConfigurationError
from toolnexus.suspension import pending
from toolnexus.tools.base import Context, ToolResult
from toolnexus.tools.mcp.bridge import Bridge, Progress
from toolnexus.tools.mcp.content import to_tool_result
from toolnexus.tools.mcp.elicitation import new_id, web_url
from toolnexus.tools.mcp.server import CallInfo, Server
from toolnexus.tools.mcp.status import McpError

__all__ = ["call_tool"]


def call_tool(bridge: Bridge, server: Server, info: CallInfo, ctx: Context, progress: Progress) -> ToolResult:
    """
    Call a tool and wait for its result, no longer than the context's scope lives.

    Args:
        bridge: Where the server's connection lives.
        server: The server.
        info: What to call.
        ctx: The context of the call; its ``answer`` is that to a page the server wanted opened.
        progress: Hands out progress while it waits.

    Returns:
        The result; whatever goes wrong at the server is an error result, never an exception.

    Raises:
        RunCancelledError: The scope was cancelled; the server was told.
        RunTimeoutError: The scope's time was up; the server was told.
    """
    from mcp import MCPError

    metadata = {"server": server.config.name, "tool": info.tool}
    if ctx.answer is not None and not ctx.answer.ok:
        return ToolResult.error(f"the person did not agree: {ctx.answer.reason or 'declined'}", **metadata)
    try:
        result = bridge.run(server.call(info), ctx.scope, progress)
    except (McpError, ConfigurationError) as error:
        return ToolResult.error(f"MCP server {server.config.name!r}: {error.message}", **metadata)
    except MCPError as error:
        return _page_to_open(error, metadata) or ToolResult.error(
            error.message or str(error.code), **metadata
        )
    except (ValueError, RuntimeError) as error:  # what the library says of an answer that is not right
        return ToolResult.error(f"MCP server {server.config.name!r}: {_short(error)}", **metadata)
    return to_tool_result(result, **metadata)


def _page_to_open(error: Any, metadata: dict[str, Any]) -> ToolResult | None:
    """Return a suspension if the server wants a page opened before it does anything, or None."""
    from mcp_types import URL_ELICITATION_REQUIRED

    listed = error.data.get("elicitations") if isinstance(error.data, dict) else None
    if error.code != URL_ELICITATION_REQUIRED or not listed or not isinstance(listed[0], dict):
        return None
    url = web_url(str(listed[0].get("url", "")))
    if url is None:
        return None
    prompt = str(listed[0].get("message") or error.message)
    suspended = pending(
        prompt, kind="authorization", url=url, data={"server": metadata["server"]}, id=new_id()
    )
    suspended.metadata.update(metadata)
    return suspended


def _short(error: Exception) -> str:
    """Return the first lines of an error; those of the library can be very long."""
    lines = str(error).splitlines() or [type(error).__name__]
    return " ".join(line.strip() for line in lines[:4])[:600]
