"""Turns what a tool returned into a result for the model."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from typing import Any

import attrs

from toolnexus.content import File, Image, Part
from toolnexus.content import _sniff as sniff
from toolnexus.suspension import pending_of
from toolnexus.tools.base import Tool, ToolResult
from toolnexus.tools.plain import plain, safe_repr
from toolnexus.wording import describe_error

__all__ = ["NO_OUTPUT", "clean_text", "cut_text", "text_of", "to_result"]

#: What the model reads when a tool returned None. An empty text is refused by some providers, and
#: ``null`` looks like an answer.
NO_OUTPUT = "(no output)"


def to_result(value: Any, tool: Tool) -> ToolResult:
    """
    Return the result for what a tool returned.

    Strings stay as they are, None becomes ``(no output)``, images and files (and bytes that are
    not text) become content beside a note, and everything else compact JSON, as well as it can be
    done; an exception that was returned is an error. What is longer than the tool's ``max_output``
    is cut in the middle. Never raises for what the value is.

    Args:
        value: What the tool returned. A `ToolResult` stays what it is, but for its length and for
            text that cannot be encoded; one that suspends the call is not touched.
        tool: The tool.

    >>> to_result({"städte": ["Köln", 2]}, Tool("t")).output
    '{"städte":["Köln",2]}'
    """
    if isinstance(value, ToolResult):
        return value if pending_of(value) is not None else _finished(value, tool)
    if isinstance(value, BaseException):
        return _finished(ToolResult.error(describe_error(value)), tool)
    return _finished(_made(value), tool)


def _made(value: Any) -> ToolResult:
    if isinstance(value, str):
        return ToolResult.ok(value)
    if isinstance(value, list | tuple) and any(isinstance(item, Image | File) for item in value):
        return _mixed(value)
    part = _part_of(value)
    return ToolResult.ok(text_of(value)) if part is None else _mixed([part])


def _mixed(items: Iterable[Any]) -> ToolResult:
    """Return the result for texts and parts that came together."""
    texts, parts = [], []
    for item in items:
        part = _part_of(item)
        if part is None:
            texts.append(text_of(item))
        else:
            parts.append(part)
            texts.append(_note(part))
    return ToolResult("\n".join(texts), content=tuple(parts))


def _part_of(value: Any) -> Part | None:
    """Return the image or file that a value is, or None."""
    if isinstance(value, Image | File):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return _part_of_bytes(bytes(value))
    # What notebooks show as a picture (Pillow's images do) is a picture for the model, too.
    if callable(getattr(type(value), "_repr_png_", None)):
        try:
            data = value._repr_png_()
        except Exception:  # noqa: BLE001 - code of the user's; there are other ways to show it
            return None
        return Image(data, "image/png") if isinstance(data, bytes) else None
    return None


def _part_of_bytes(data: bytes) -> Part | None:
    media_type = sniff(data)
    if media_type is None and _as_text(data) is not None:
        return None
    if media_type is not None and media_type.startswith("image/"):
        return Image(data, media_type)
    return File(data, media_type or "application/octet-stream")


def _as_text(data: bytes) -> str | None:
    """Return the text that bytes are, as the output of a command is, or None for other data."""
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _note(part: Part) -> str:
    kind = "image" if isinstance(part, Image) else "file"
    if isinstance(part.source, bytes):
        return f"[{kind}: {part.media_type or 'unknown type'}, {len(part.source)} bytes]"
    source = str(part.source)
    return f"[{kind}]" if source[:5].lower() == "data:" else f"[{kind}: {source}]"


def text_of(value: Any) -> str:
    """Return the text of a value: itself, or compact JSON."""
    if value is None:
        return NO_OUTPUT
    if isinstance(value, bytes | bytearray | memoryview):
        text = _as_text(bytes(value))
        if text is not None:
            return text
    try:
        value = plain(value)
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except Exception:  # noqa: BLE001 - such as a number with more digits than Python writes out
        return safe_repr(value)


def clean_text(text: str) -> str:
    """Return a text that can be encoded: half a surrogate pair becomes U+FFFD, a whole one its character."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def cut_text(text: str, limit: int | None) -> str:
    """
    Return a text cut to a length in characters, with a note of how much is missing in the middle.

    >>> cut_text("a" * 50 + "b" * 50, 60)
    'aaaaaaaaaaaaaaa\\n[... 70 characters cut ...]\\nbbbbbbbbbbbbbbb'
    """
    if limit is None or len(text) <= limit:
        return text
    room = max(0, limit - len(_cut_note(len(text))))
    head = room - room // 2
    tail = room // 2
    note = _cut_note(len(text) - head - tail)
    return (text[:head] + note + text[len(text) - tail :])[:limit] if room else text[:limit]


def _cut_note(count: int) -> str:
    return f"\n[... {count} characters cut ...]\n"


def _finished(result: ToolResult, tool: Tool) -> ToolResult:
    """Return a result that can be sent: text that can be encoded and fits, files read."""
    output = result.output if isinstance(result.output, str) else text_of(result.output)
    output = cut_text(clean_text(output), tool.max_output)
    if not result.content and output == result.output:
        return result
    try:
        content = tuple(_settled(part) for part in result.content)
    except Exception as error:  # noqa: BLE001 - a file that cannot be read is the tool's failure
        return ToolResult.error(clean_text(describe_error(error)), **result.metadata)
    return attrs.evolve(result, output=output, content=content)


def _settled(part: Part) -> Part:
    """Return a part that holds its data, so that it can be sent and stored whatever becomes of the file."""
    if isinstance(part.source, bytes) or (isinstance(part, Image) and _is_url(part.source)):
        return part
    if isinstance(part, Image):
        return Image(part.to_part()["image_url"]["url"], part.media_type, part.detail)
    file = part.to_part()["file"]
    head, _, data = file["file_data"].partition(";base64,")
    return File(base64.b64decode(data), head.removeprefix("data:"), file["filename"])


def _is_url(source: str | os.PathLike[str] | bytes) -> bool:
    return isinstance(source, str) and source.split(":", 1)[0].lower() in ("http", "https", "data")
