"""What is known about the servers: their state, and what they offer."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from toolnexus.errors import ToolnexusError

__all__ = ["McpError", "McpInventory", "McpState", "McpStatus", "ToolInfo"]

McpState = Literal["connecting", "connected", "failed", "disabled", "closed"]


class McpError(ToolnexusError):
    """An MCP server cannot be started or reached, or does not keep to the protocol."""

    kind = "mcp"


@attrs.frozen(kw_only=True)
class McpStatus:
    """
    How a server is.

    Args:
        state: "connecting" (not up yet), "connected", "failed" (``error`` says why), "disabled" by its
            configuration, or "closed".
        error: Why it failed, with the end of what its process wrote to stderr; None if it did not.
        tools: How many tools it offers, after the filter.
        transport: "stdio", "http" or "sse".
        pid: The id of its process, or None.
        protocol: The protocol version that was agreed on, or None.
        server: The name and version that the server gives itself, or None.
        starts: How often it was started.
    """

    state: McpState
    error: str | None = None
    tools: int = 0
    transport: str = "stdio"
    pid: int | None = None
    protocol: str | None = None
    server: str | None = None
    starts: int = 0


@attrs.frozen(kw_only=True)
class ToolInfo:
    """
    A tool as its server lists it.

    Args:
        name: The server's own name for it.
        description: What it does.
        input_schema: The JSON schema of its arguments.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class McpInventory:
    """
    What the servers of a configuration offer.

    Args:
        tools: Each connected server's tools, without its filter.
        status: How each server is.
    """

    tools: dict[str, list[ToolInfo]]
    status: dict[str, McpStatus]
