"""Calling built-in tools as the loop does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from toolnexus.tools.base import Context, ToolResult
from toolnexus.tools.builtins import builtin_tools

__all__ = ["Box", "running"]


def running(word: str) -> list[str]:
    """Return the command lines of living processes that hold a word, of those that the system shows."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if word in command and folder.name != str(os.getpid()):
                found.append(command)
    return found


class Box:
    """A folder with all built-ins confined to it."""

    def __init__(self, path: Path, **options: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.tools = {tool.name: tool for tool in builtin_tools(True, **{"root": path, **options})}

    def call(self, name: str, ctx: Context | None = None, **args: Any) -> ToolResult:
        """Call a tool."""
        result = self.tools[name].execute(args, ctx or Context())
        assert isinstance(result, ToolResult)
        return result

    def ok(self, name: str, **args: Any) -> str:
        """Call a tool that must succeed and return its output."""
        result = self.call(name, **args)
        assert not result.is_error, result.output
        return result.output

    def error(self, name: str, **args: Any) -> str:
        """Call a tool that must fail and return what it says."""
        result = self.call(name, **args)
        assert result.is_error, result.output
        return result.output

    def put(self, name: str, data: bytes | str) -> Path:
        """Write a file with the folders it needs."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def names(self) -> list[str]:
        """Return the relative paths of all files."""
        return sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if not p.is_dir())
