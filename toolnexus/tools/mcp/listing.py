"""Listing a server's tools, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolnexus.tools.mcp.status import McpError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool

__all__ = ["list_all"]

MAX_PAGES = 1000


async def list_all(client: Client) -> list[Tool]:
    """
    Return all tools of a server, the first of each name.

    Raises:
        McpError: The pages do not end.
        mcp.MCPError: The server answered with an error.
    """
    from mcp import MCPError

    tools: dict[str, Tool] = {}
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError:
            if client.server_capabilities.tools is None:
                return []  # it has none, and said so
            raise
        for tool in page.tools:
            tools.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if not cursor:
            return list(tools.values())
        if cursor in seen:
            raise McpError(f"MCP list returned duplicate cursor: {cursor:.100}")
        seen.add(cursor)
    raise McpError(f"the list of tools has more than {MAX_PAGES} pages")
