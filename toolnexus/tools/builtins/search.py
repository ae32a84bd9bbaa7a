"""The built-ins that look for files and for text in them: grep and glob."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins import texts
from toolnexus.tools.builtins.base import Options, define, integer, text
from toolnexus.tools.builtins.globs import Glob
from toolnexus.tools.builtins.matcher import LineMatcher, Lines, line_matcher
from toolnexus.tools.builtins.output import clip
from toolnexus.tools.builtins.transaction import recover_quietly
from toolnexus.tools.builtins.walk import Found, Walk
from toolnexus.tools.regular_files import read_up_to

__all__ = ["search_tools"]

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000
#: How much of one file is searched, in bytes.
MAX_SEARCHED = 16 * 1024 * 1024

_IGNORING = "Binary and ignored files are passed over, links are not followed."
_FOLDER = {"type": "string", "description": "The folder to search; the working folder by default."}


def search_tools(options: Options) -> list[Tool]:
    """Return grep and glob."""
    return [_grep_tool(options), _glob_tool(options)]


def _grep_tool(options: Options) -> Tool:
    return define(
        grep,
        options,
        description=f"Find lines that match a regular expression, as file:line:text. {_IGNORING}",
        properties={
            "pattern": {"type": "string", "description": "The regular expression, in Python's syntax."},
            "path": {"type": "string", "description": "A folder or a file; the working folder by default."},
            "include": {"type": "string", "description": "Only files that fit this pattern, such as *.py."},
            "limit": {
                "type": "integer",
                "description": f"How many lines at most; {DEFAULT_LIMIT} by default.",
            },
        },
        required=("pattern",),
        read_only=True,
        prepare=recover_quietly,
    )


def _glob_tool(options: Options) -> Tool:
    return define(
        glob,
        options,
        description=f"Find files by a pattern with **, *, ? and {{a,b}}; gives sorted paths. {_IGNORING}",
        properties={
            "pattern": {
                "type": "string",
                "description": "The pattern, such as src/**/*.py; without a slash it is for the name alone.",
            },
            "path": _FOLDER,
            "limit": {
                "type": "integer",
                "description": f"How many paths at most; {DEFAULT_LIMIT} by default.",
            },
        },
        required=("pattern",),
        read_only=True,
        prepare=recover_quietly,
    )


def _limit(args: dict[str, Any]) -> int:
    return max(1, min(MAX_LIMIT, integer(args, "limit", DEFAULT_LIMIT)))


def _start(args: dict[str, Any]) -> str:
    path = args.get("path")
    return path if isinstance(path, str) and path else "."


def grep(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Find lines that match a regular expression."""
    pattern, start, limit = text(args, "pattern"), _start(args), _limit(args)
    include = args.get("include")
    wanted = Glob(include) if isinstance(include, str) and include else None
    walk = Walk(options.root, start, ctx.scope)
    lines: list[str] = []
    with line_matcher(pattern, ctx.scope) as matcher, closing(walk.files()) as files:
        for found in files:
            if wanted is not None and not wanted.matches(found.path or os.path.basename(start)):
                continue
            shown = _joined(start, found.path)
            hits = _search(found, shown, matcher, limit + 1 - len(lines))
            lines += [f"{shown}:{number}:{line}" for number, line in hits]
            if len(lines) > limit:
                break
    return _listed(lines, limit, walk, options, noun="lines")


def _joined(start: str, path: str) -> str:
    """Return the path of a file as it is shown: after the start as it was given."""
    if not path:
        return start
    return path if start == "." else os.path.join(start, path)


def _search(found: Found, shown: str, matcher: LineMatcher, most: int) -> Lines:
    """Return the lines of one file that match; none where it cannot be read or is no text."""
    try:
        fd = found.open()
    except OSError:
        return []
    try:
        start = read_up_to(fd, texts.SNIFFED)
        if texts.is_binary(start):
            return []
        data = start + (read_up_to(fd, MAX_SEARCHED - len(start)) if len(start) == texts.SNIFFED else b"")
    finally:
        os.close(fd)
    mark, encoding = texts.sniff(start)
    data = data[len(mark) :]
    if encoding != "utf-8":
        data = data.decode(encoding, "replace").encode("utf-8", "replace")
    return matcher.find(data, shown, most)


def glob(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Find files by a pattern."""
    pattern, limit = Glob(text(args, "pattern")), _limit(args)
    walk = Walk(options.root, _start(args), ctx.scope)
    paths: list[str] = []
    with closing(walk.files()) as files:
        for found in files:
            path = found.path or os.path.basename(_start(args))
            if pattern.matches(path):
                paths.append(path)
                if len(paths) > limit:
                    break
    return _listed(paths, limit, walk, options, noun="paths")


def _listed(lines: list[str], limit: int, walk: Walk, options: Options, *, noun: str) -> ToolResult:
    """Return lines as a result, and say so where there are more."""
    count = min(len(lines), limit)
    notes = []
    if len(lines) > limit:
        notes.append(f"[... cut after {limit} {noun}; there are more ...]")
    elif walk.cut:
        notes.append("[... not everything was searched: there are too many files or folders ...]")
    body = clip(texts.shown("\n".join(lines[:limit])), options.max_output)
    return ToolResult.ok("\n".join(filter(None, [body, *notes])), count=count, truncated=bool(notes))
