"""
MCP servers as a source of tools.

`McpSource` starts the servers of an ``.mcp.json`` file and offers their tools; `list_mcp_tools`
only looks what there is. The official ``mcp`` package does the talking and is imported when the
first server starts: ``pip install "toolnexus[mcp]"``.
"""

from toolnexus.tools.mcp.config import McpServerConfig, McpTimeouts, parse_mcp_config
from toolnexus.tools.mcp.source import McpSource, list_mcp_tools
from toolnexus.tools.mcp.status import McpError, McpInventory, McpStatus, ToolInfo

__all__ = [
    "McpError",
    "McpInventory",
    "McpServerConfig",
    "McpSource",
    "McpStatus",
    "McpTimeouts",
    "ToolInfo",
    "list_mcp_tools",
    "parse_mcp_config",
]
