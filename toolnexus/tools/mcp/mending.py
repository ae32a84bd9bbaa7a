"""What servers get wrong in their lists of tools and in their results, mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["mend_result"]

KNOWN_CONTENT = frozenset({"text", "image", "audio", "resource", "resource_link"})


def mend_result(
    result: dict[str, Any], is_valid: Callable[[dict[str, Any]], bool] = lambda tool: True
) -> list[str]:
    """
    Mend a list of tools or a tool's result, in place.

    One bad tool, or one part of an unknown kind, would otherwise cost the whole answer.

    Args:
        result: The ``result`` of a server's answer.
        is_valid: Says of a mended tool whether the protocol library takes it.

    Returns:
        The names of the tools that were dropped because nothing could be made of them.

    >>> answer = {"tools": [{"name": "ping", "inputSchema": {}}, {"title": "nameless"}]}
    >>> mend_result(answer), answer
    (['nameless'], {'tools': [{'name': 'ping', 'inputSchema': {'type': 'object'}}]})
    """
    if isinstance(result.get("tools"), list):
        return _mend_tools(result, is_valid)
    if any(key in result for key in ("content", "structuredContent", "task")):
        content = result.get("content")
        parts = content if isinstance(content, list) else [] if content is None else [content]
        result["content"] = [_mend_part(part) for part in parts]
    return []


def _mend_tools(result: dict[str, Any], is_valid: Callable[[dict[str, Any]], bool]) -> list[str]:
    kept, dropped = [], []
    for tool in result["tools"]:
        if isinstance(tool, dict) and _mend_tool(tool) and is_valid(tool):
            kept.append(tool)
        else:
            dropped.append(_label(tool))
    result["tools"] = kept
    return dropped


def _label(tool: Any) -> str:
    """Return what to call a tool that is none."""
    name = (tool.get("name") or tool.get("title")) if isinstance(tool, dict) else tool
    return str(name)[:64]


def _mend_tool(tool: dict[str, Any]) -> bool:
    """Mend one tool of a list; return whether it can be called at all."""
    schema = {} if tool.get("inputSchema") is None else tool["inputSchema"]
    if not isinstance(tool.get("name"), str) or not tool["name"] or not isinstance(schema, dict):
        return False
    if not isinstance(schema.get("properties", {}), dict):
        schema.pop("properties")
    if not isinstance(schema.get("required", []), list):
        schema.pop("required")
    tool["inputSchema"] = schema if "type" in schema else {"type": "object", **schema}
    for key, kind in (("description", str), ("title", str), ("annotations", dict), ("outputSchema", dict)):
        if not isinstance(tool.get(key), kind):
            tool.pop(key, None)
    if tool.get("outputSchema", {}).get("type") != "object":
        tool.pop("outputSchema", None)
    return True


def _mend_part(part: Any) -> Any:
    """Return a part of a result in a kind that is known; others are shown as JSON."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict) or part.get("type") not in KNOWN_CONTENT:
        return {"type": "text", "text": json.dumps(part, ensure_ascii=False)}
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        text = part.get("text")
        part["text"] = "" if text is None else json.dumps(text, ensure_ascii=False)
    if part["type"] in ("image", "audio") and not isinstance(part.get("mimeType"), str):
        part["mimeType"] = "image/png" if part["type"] == "image" else "application/octet-stream"
    return part
