"""Small MCP servers for the tests: real ones that do what servers in the wild do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolnexus.tools.base import Context, ToolResult
from toolnexus.tools.mcp import McpSource

HERE = Path(__file__).parent


def raw(**options: Any) -> dict[str, Any]:
    """Return the configuration of the raw server; see its module for the options."""
    # Without site-packages: it starts in no time.
    return {"command": sys.executable, "args": ["-I", "-S", str(HERE / "raw.py"), json.dumps(options)]}


def sdk(*arguments: str) -> dict[str, Any]:
    """Return the configuration of the server over the official SDK."""
    return {"command": sys.executable, "args": [str(HERE / "sdk.py"), *(arguments or ("stdio",))]}


@contextmanager
def serving(transport: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the server over the official SDK as a web server; yield its URL and its process."""
    port = free_port()
    config = sdk(transport, str(port))
    process = subprocess.Popen([config["command"], *config["args"]])
    try:
        assert eventually(lambda: listens(port), 20), "the server does not come up"
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}", process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nobody uses right now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Return whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def call(source: McpSource, name: str, ctx: Context | None = None, /, **args: Any) -> ToolResult:
    """Call a tool by the model's name for it."""
    tool = next(tool for tool in source.tools if tool.name == name)
    result = tool.execute(args, ctx or Context(tool_name=name))
    assert isinstance(result, ToolResult)
    return result


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Return whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def is_running(pid: int) -> bool:
    """Return whether a process lives; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
