"""
An MCP server over the official SDK.

Its first argument is the transport: "stdio", or "streamable-http" or "sse" with the port as the second.
"""

import sys
from typing import Annotated, Any

import anyio
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)
from pydantic import BaseModel

server = MCPServer("sdk-server", log_level="ERROR")


class Booking(BaseModel):
    """What the person fills in."""

    name: str
    seats: int = 2


class Sum(BaseModel):
    """A structured result."""

    total: int


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def sum_up(values: list[int]) -> Sum:
    """Sum up."""
    return Sum(total=sum(values))


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool()
def picture() -> Image:
    """A tiny picture."""
    return Image(data=b"\x89PNG\r\n\x1a\n....", format="png")


@server.tool()
async def count(steps: int, ctx: Context[Any, Any]) -> str:
    """Count with progress."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"at {step}")
        await anyio.sleep(0.01)
    return "counted"


def ask_for_booking() -> Elicit[Booking]:
    """Ask the person; the SDK asks in the way of the protocol's version."""
    return Elicit("Who books, and how many seats?", Booking)


@server.tool()
async def book(answer: Annotated[ElicitationResult[Booking], Resolve(ask_for_booking)]) -> str:
    """Ask the person for a name and a number of seats."""
    if answer.action != "accept":
        return f"not booked: {answer.action}"
    return f"booked for {answer.data.name}, {answer.data.seats}"


@server.tool()
async def sign_in(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Ask the person to open a page."""
    message, url = "Sign in, please", "https://example.com/login"
    if ctx.protocol_version == "2025-11-25":
        return f"sign in: {(await ctx.elicit_url(message, url, 'e-1')).action}"
    if ctx.input_responses is None:
        question = ElicitRequest(params=ElicitRequestURLParams(message=message, url=url))
        return InputRequiredResult(input_requests={"login": question})
    answer = ctx.input_responses["login"]
    assert isinstance(answer, ElicitResult)
    return f"sign in: {answer.action}"


@server.tool()
async def slow(seconds: float) -> str:
    """Sleep."""
    await anyio.sleep(seconds)
    return "slept"


@server.tool()
async def grow(ctx: Context[Any, Any]) -> str:
    """Add a tool, and say so."""

    def grown() -> str:
        """Tell that it is there."""
        return "I am new"

    server.add_tool(grown)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
def raw_result() -> CallToolResult:
    """An error with two texts."""
    parts = [TextContent(type="text", text="first"), TextContent(type="text", text="second")]
    return CallToolResult(content=list(parts), is_error=True)


def main() -> None:
    """Serve."""
    if sys.argv[1] == "stdio":
        server.run("stdio")
    elif sys.argv[1] == "sse":
        server.run("sse", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))


main()
