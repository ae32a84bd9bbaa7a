"""Making tools of small OpenAPI documents, and calling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.http_endpoint import Server
from toolnexus.cancel import CancelScope
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.openapi import openapi_tools


def call(tool: Tool, args: Mapping[str, Any]) -> ToolResult:
    result = tool.execute(dict(args), Context(scope=CancelScope()))
    assert isinstance(result, ToolResult)
    return result


def document(paths: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": dict(paths), **more}


def one(
    server: Server, operation: Mapping[str, Any], *, path: str = "/x", method: str = "get", **options: Any
) -> Tool:
    """Make the tool of a document with one operation."""
    more = {k: options.pop(k) for k in ("components", "security", "openapi") if k in options}
    options = {"base_url": server.url, **options}
    [tool] = openapi_tools(document({path: {method: operation}}, **more), **options)
    return tool


def with_parameter(server: Server, parameter: Mapping[str, Any], path: str = "/x") -> Tool:
    return one(server, {"parameters": [{"name": "p", **parameter}]}, path=path)
