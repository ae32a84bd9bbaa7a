"""
The client that the official conformance suite runs: it is told a scenario and a URL, and uses what is there.

Arguments: the server's URL. Environment: the scenario, the protocol version to speak, and values
that a scenario wants to see used.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from toolnexus.suspension import Answer, Request
from toolnexus.tools.base import Context, Tool
from toolnexus.tools.mcp import McpSource

SAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 3,
    "number": 5,
    "boolean": True,
    "array": [],
    "object": {},
}


def sample(tool: Tool) -> dict[str, Any]:
    """Return arguments that fit a tool's schema."""
    properties = tool.input_schema.get("properties", {})
    return {
        name: field.get("default", SAMPLES.get(field.get("type"), "x")) for name, field in properties.items()
    }


def calls(tools: dict[str, Tool], context: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return what to call: what the scenario asks for, or each tool once."""
    if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "json-schema-2020-12-preservation":
        (echo,) = [name for name, tool in tools.items() if "schema" in tool.input_schema["properties"]]
        return [(echo, {"schema": tool.input_schema}) for name, tool in tools.items() if name != echo]
    return planned(context) or [(name, sample(tool)) for name, tool in tools.items()]


def planned(context: dict[str, Any]) -> list[tuple[str, dict[str, Any]]] | None:
    """Return the calls that the scenario asks for, or None for one of each tool."""
    calls = context.get("toolCalls")
    return [(call["name"], call.get("arguments") or {}) for call in calls] if calls else None


def main() -> None:
    """List the tools and call them."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
    config = {"url": sys.argv[-1], "protocol": "modern" if version >= "2026" else "auto"}

    def agree(request: Request) -> Answer:
        return Answer(request.id)

    with McpSource({"conformance": config}, wait_for=agree) as source:
        tools = {tool.metadata["tool"]: tool for tool in source.tools}
        status = source.status["conformance"]
        print(status)
        if status.state != "connected":
            sys.exit(1)
        for name, args in calls(tools, context):
            if name in tools:
                print(name, args, tools[name].execute(args, Context(call_id="c1", tool_name=name)))


main()
