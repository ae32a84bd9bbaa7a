"""The built-ins that read and write single files: read, write and edit."""

from __future__ import annotations

import io
import os
from typing import Any

import attrs

from toolnexus.forking import ChildLock
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins import texts
from toolnexus.tools.builtins.base import Options, define, integer, text
from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.output import clip
from toolnexus.tools.builtins.root import Place
from toolnexus.tools.builtins.texts import TextFile
from toolnexus.tools.builtins.transaction import recover_quietly
from toolnexus.tools.regular_files import read_up_to

__all__ = ["CHANGING", "MAX_CHANGED", "file_tools", "read_text"]

#: Held while a file is read, changed and written, so that two changes do not undo each other.
CHANGING = ChildLock()
#: The largest file in bytes that is changed; it is held in memory.
MAX_CHANGED = 32 * 1024 * 1024
#: How far a reading with an offset looks for its line, in characters.
MAX_SCANNED = 1 << 29
_STEP = 1 << 16

_PATH = {"type": "string", "description": "The path of the file."}


def file_tools(options: Options) -> list[Tool]:
    """Return read, write and edit."""
    return [_read_tool(options), _write_tool(options), _edit_tool(options)]


def _read_tool(options: Options) -> Tool:
    return define(
        read,
        options,
        description="Read a text file, whole or some of its lines. A long text is cut, and the cut says so.",
        properties={
            "path": _PATH,
            "offset": {"type": "integer", "description": "The first line to read, from 1."},
            "limit": {"type": "integer", "description": "How many lines to read."},
        },
        required=("path",),
        read_only=True,
        prepare=recover_quietly,
    )


def _write_tool(options: Options) -> Tool:
    return define(
        write,
        options,
        description="Write a file whole, and make the folders it needs. What was in it is replaced.",
        properties={"path": _PATH, "content": {"type": "string", "description": "All that it is to hold."}},
        required=("path", "content"),
        prepare=recover_quietly,
    )


def _edit_tool(options: Options) -> Tool:
    return define(
        edit,
        options,
        description=(
            "Replace a text in a file by another. The old text must be there exactly as given, "
            "and only once unless replaceAll is true."
        ),
        properties={
            "path": _PATH,
            "oldString": {"type": "string", "description": "The text to replace."},
            "newString": {"type": "string", "description": "The text to put in its place."},
            "replaceAll": {"type": "boolean", "description": "Replace every occurrence."},
        },
        required=("path", "oldString", "newString"),
        prepare=recover_quietly,
    )


# -- read --------------------------------------------------------------------------------------


def read(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Return the text of a file, or of some of its lines."""
    given = text(args, "path")
    windowed = any(isinstance(args.get(key), (int, float)) for key in ("offset", "limit"))
    with options.root.place(given) as place:
        fd = place.open()
        with open(fd, "rb", buffering=0) as file:
            start = read_up_to(fd, texts.SNIFFED)
            if texts.is_binary(start):
                raise ToolFailure(f"{given} is a binary file ({os.fstat(fd).st_size} bytes)")
            file.seek(0)
            if windowed:
                output = _window(file, sniffed=texts.sniff(start), args=args, ctx=ctx, options=options)
            else:
                output = _whole(fd, given, options.max_output)
    return ToolResult.ok(texts.shown(output))


def _whole(fd: int, given: str, limit: int) -> str:
    """Return the text of a file; of a large one only the ends are read at all."""
    most = max(4096, limit) * 4  # bytes a character
    data = read_up_to(fd, most + 1)
    if len(data) <= most:
        return clip(TextFile.decode(data, given).body, limit)
    mark, encoding = texts.sniff(data)
    size = max(os.fstat(fd).st_size, len(data))
    half = limit // 2
    head = data[len(mark) :].decode(encoding, "replace")[:half]
    os.lseek(fd, max(0, size - most // 2) // 4 * 4, os.SEEK_SET)  # at a character of UTF-16 and UTF-32, too
    tail = read_up_to(fd, most).decode(encoding, "replace")[-half:]
    gone = size - len(head.encode(encoding, "replace")) - len(tail.encode(encoding, "replace"))
    return f"{head}\n[... about {gone} bytes cut; read the rest with offset and limit ...]\n{tail}"


def _window(
    file: io.FileIO, *, sniffed: tuple[bytes, str], args: dict[str, Any], ctx: Context, options: Options
) -> str:
    """Return the lines that were asked for, in memory that does not grow with the file."""
    mark, encoding = sniffed
    file.seek(len(mark))
    first = max(1, integer(args, "offset", 1))
    wanted = integer(args, "limit", 2**53)
    handler = "surrogateescape" if encoding == "utf-8" else "replace"
    reader = io.TextIOWrapper(io.BufferedReader(file), encoding, errors=handler, newline="\n")
    try:
        return _Window(first, max(0, wanted), options.max_output).read(reader, ctx)
    finally:
        reader.detach().detach()  # closing is the caller's


@attrs.define
class _Window:
    """Collects a range of lines from a text that may be endless, or a single line that is."""

    first: int
    wanted: int
    room: int
    lines: list[str] = attrs.field(factory=list)

    def read(self, reader: io.TextIOWrapper, ctx: Context) -> str:
        number, scanned, line = 1, 0, ""
        while len(self.lines) < self.wanted:
            piece = reader.readline(_STEP)
            scanned += len(piece)
            if number >= self.first:
                line += piece
                if len(line) > self.room:
                    return self._cut(number, line)
            elif scanned > MAX_SCANNED:
                raise ToolFailure(f"line {self.first} lies too far into the file; line {number} was reached")
            if piece.endswith("\n") or not piece:
                if number >= self.first and (line or piece):
                    self._take(line)
                number, line = number + 1, ""
                ctx.scope.check()
            if not piece:
                break
        return "\n".join(self.lines)

    def _take(self, line: str) -> None:
        self.room -= len(line)
        self.lines.append(line[:-1] if line.endswith("\n") else line)

    def _cut(self, number: int, line: str) -> str:
        """Return what there is, and where to read on."""
        if not self.lines:
            note = f"[... the rest of line {number} cut; go on with offset={number + 1} ...]"
            return f"{line[: self.room]}\n{note}"
        return "\n".join([*self.lines, f"[... cut before line {number}; go on with offset={number} ...]"])


# -- write and edit ----------------------------------------------------------------------------


def read_text(place: Place) -> tuple[TextFile, os.stat_result]:
    """
    Return the text of a file that is to be changed, and what it was when it was read.

    Raises:
        ToolFailure: It is binary, or too large.
        OSError: There is no such file.
    """
    fd = place.open()
    try:
        info = os.fstat(fd)
        data = read_up_to(fd, MAX_CHANGED + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_CHANGED:
        raise ToolFailure(f"{place.given} is too large to change ({info.st_size} bytes)")
    return TextFile.decode(data, place.given), info


def write(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Replace a file by new content, in the encoding and with the line ends that it has."""
    given, content = text(args, "path"), text(args, "content", empty=True)
    with CHANGING, options.root.place(given, create=True) as place:
        old = place.look()
        data = _like(place, old, content)
        place.replace(data, old)
    return ToolResult.ok(f"Wrote {len(data)} bytes to {given}", bytes=len(data))


def _like(place: Place, old: os.stat_result | None, content: str) -> bytes:
    """Return the bytes of a content, written as the file that it replaces is."""
    style = TextFile()
    if old is not None:
        fd = place.open()
        try:
            start = read_up_to(fd, _STEP)
        finally:
            os.close(fd)
        if not texts.is_binary(start):
            mark, encoding = texts.sniff(start)
            style = TextFile(start[len(mark) :].decode(encoding, "replace"), encoding, mark)
    if style.line_end == "\r\n" and "\r" not in content:
        content = content.replace("\n", "\r\n")
    style.with_body("").check_insert(content, place.given)
    return style.with_body(content).encode()


def edit(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Replace a text in a file."""
    given, old_text, new_text = (
        text(args, "path"),
        text(args, "oldString"),
        text(args, "newString", empty=True),
    )
    with CHANGING, options.root.place(given) as place:
        file, info = read_text(place)
        file.check_insert(new_text, given)
        body, count = _replaced(file, old_text, new_text, given=given, every=args.get("replaceAll") is True)
        place.replace(file.with_body(body).encode(), info)
    return ToolResult.ok(
        f"Edited {given} ({count} replacement{'s' if count != 1 else ''})", replacements=count
    )


def _replaced(file: TextFile, old: str, new: str, *, given: str, every: bool) -> tuple[str, int]:
    """Return the changed text and how often it was changed."""
    if file.line_end == "\r\n":
        # Models give plain newlines. In a file that has none, they can only mean its own.
        native = [part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new)]
        if native[0] in file.body:
            old, new = native
    count = file.body.count(old)
    if count == 0:
        raise ToolFailure(f"oldString not found in {given}")
    if count > 1 and not every:
        raise ToolFailure(f"oldString is not unique in {given} ({count} occurrences); use replaceAll")
    return file.body.replace(old, new), count
