"""A server's result as a tool's result: text for the model, images and files in their own form."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from toolnexus.content import File, Image, Part
from toolnexus.tools.base import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, EmbeddedResource

__all__ = ["to_tool_result"]

NO_MESSAGE = "MCP tool returned an error"
#: What models take as images; other kinds go as files.
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

Piece = tuple[str, "Part | None"]


def to_tool_result(result: CallToolResult, **metadata: Any) -> ToolResult:
    """
    Return a server's result as a tool's.

    Texts are joined. Structured content follows as compact JSON, unless a text says the same.
    Images, audio and binary resources become parts, each with a line in the text that names it.

    Args:
        result: What the server sent.
        metadata: What to note beside it; structured content is added as ``structured``.
    """
    pieces = [_piece(block) for block in result.content]
    parts = tuple(part for _, part in pieces if part is not None)
    texts = [text for text, _ in pieces if text.strip()]
    structured = result.structured_content
    if structured is not None:
        metadata["structured"] = structured
    if result.is_error:
        return ToolResult("\n\n".join(texts) or NO_MESSAGE, True, metadata, parts)
    if structured is not None:
        texts = _with_structured(texts, structured)
    return ToolResult("\n".join(texts), False, metadata, parts)


def _with_structured(texts: list[str], structured: Any) -> list[str]:
    """Return the texts and the structured content, without those that say the same."""
    own = [text for text in texts if not _same(text, structured)]
    values = _only_value(structured)
    if own and values is not None and own == [_plain(value) for value in values]:
        own = []
    return [*own, json.dumps(structured, ensure_ascii=False, separators=(",", ":"))]


def _same(text: str, structured: Any) -> bool:
    """Return whether a text is the structured content, or the only value in it, as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value == structured or {"result": value} == structured)


def _only_value(structured: Any) -> list[Any] | None:
    """Return the items of a result that servers wrap when a function returns no object."""
    if not isinstance(structured, dict) or set(structured) != {"result"}:
        return None
    value = structured["result"]
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _piece(block: ContentBlock) -> Piece:
    """Return one part of the result: its text for the model, and its file."""
    if block.type == "text":
        return block.text, None
    if block.type == "resource":
        return _resource(block)
    if block.type == "resource_link":
        about = ": ".join(filter(None, (block.name, block.description)))
        return f"[resource link {block.uri} {about}]".replace("  ", " "), None
    return _binary(block.type, block.data, block.mime_type)


def _resource(block: EmbeddedResource) -> Piece:
    inner = block.resource
    text = getattr(inner, "text", None)
    if text is not None:
        return f"[resource {inner.uri}]\n{text}", None
    return _binary(f"resource {inner.uri}", getattr(inner, "blob", ""), inner.mime_type, str(inner.uri))


def _binary(label: str, data: str, media_type: str | None, uri: str = "") -> Piece:
    """Return base64 data as an image or a file, with a line that names it."""
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return f"[{label}: not valid base64]", None
    kind = (media_type or "application/octet-stream").split(";")[0].strip().lower()
    note = f"[{label}: {kind}, {len(raw)} bytes]"
    if kind in IMAGES:
        return note, Image(raw, kind)
    return note, File(raw, kind, _file_name(uri, kind))


def _file_name(uri: str, media_type: str) -> str:
    """Return a name for a file that is safe wherever it goes: the model's side only shows it."""
    last = re.sub(r"[^A-Za-z0-9._-]", "_", uri.split("?")[0].rstrip("/").rsplit("/", 1)[-1])[-64:]
    if last.strip("._"):
        return last
    major, _, minor = media_type.partition("/")
    suffix = re.sub(r"[^a-z0-9]", "", minor.removeprefix("x-").split("+")[0])
    return f"{re.sub('[^a-z]', '', major) or 'file'}.{suffix or 'bin'}"
