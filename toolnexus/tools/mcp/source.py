"""MCP servers as a source of tools: started together, called from any thread, ended for certain."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolnexus._extras import need
from toolnexus.cancel import CancelScope
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.mcp.bridge import Bridge, Progress
from toolnexus.tools.mcp.calling import call_tool
from toolnexus.tools.mcp.config import parse_mcp_config
from toolnexus.tools.mcp.names import NameBook
from toolnexus.tools.mcp.process import disown_all
from toolnexus.tools.mcp.server import CallInfo, Server
from toolnexus.tools.mcp.status import McpInventory, McpStatus, ToolInfo

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from toolnexus.tools.mcp.elicitation import WaitFor

__all__ = ["McpSource", "list_mcp_tools"]

#: Seconds in which all servers end at `close`, and the bridge after them.
CLOSE_WAIT = 4.0

_QUIET = logging.NullHandler()

_sources: weakref.WeakSet[McpSource] = weakref.WeakSet()
_inherited: list[object] = []


class McpSource:
    """
    The tools of MCP servers, behind a synchronous face.

    The servers start together with the first look at `tools`, or with `start`; one that fails does
    not disturb the others, and `status` says why it failed. A server that dies is started again by the
    next call. Calls may come from any thread, also from inside a running event loop.

    Args:
        config: A path to an ``.mcp.json`` file, or a dict of that shape.
        wait_for: Answers what servers ask a person: gets a `Request`, returns an `Answer`, or None
            where nobody answers. By default whoever answers for the run is asked: the client's
            ``wait_for``, or the reader of the stream.
        timeout: Seconds for each phase of a server that names no timeout of its own: its start, the
            handshake, the list of tools, and a call without a sign of life. None for no limit.

    Raises:
        ConfigurationError: The configuration cannot be read, or is not right.
        MissingExtraError: The package ``mcp`` is not installed; raised when the servers start.

    >>> with McpSource({"mcpServers": {"files": {"command": "file-server", "disabled": True}}}) as source:
    ...     source.status["files"].state
    'disabled'
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any],
        *,
        wait_for: WaitFor | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        self._configs = parse_mcp_config(config, timeout=timeout)
        self._wait_for = wait_for
        self._names = NameBook()
        self._closed = False
        self._revision = 0
        self._fresh()
        _sources.add(self)
        _install_hooks()

    def _fresh(self) -> None:
        """Make what belongs to one process: a forked child begins anew."""
        # Guards the start and the end of the bridge; never held while anything waits for a server.
        self._lock = threading.Lock()
        self._bridge: Bridge | None = None
        self._started: threading.Event | None = None
        self._servers = {c.name: Server(c, self._wait_for, self._changed) for c in self._configs}
        # The tools as last built, with the revision that they were built for.
        self._built: tuple[int, list[Tool]] | None = None

    def __repr__(self) -> str:
        states = ", ".join(f"{name} {status.state}" for name, status in self.status.items())
        return f"<McpSource {states or 'without servers'}>"

    # -- starting ----------------------------------------------------------------------------

    def start(self, scope: CancelScope | None = None) -> Self:
        """
        Start all servers, and wait until each is up or has failed. Does nothing the second time.

        Args:
            scope: Ends the wait when it ends.

        Raises:
            MissingExtraError: The package ``mcp`` is not installed.
        """
        if self._closed or (self._started is not None and self._started.is_set()):
            return self
        scope = scope or CancelScope()
        with self._lock:
            first, self._started = self._started is None, self._started or threading.Event()
        if not first:
            while not self._started.wait(0.02):
                scope.check()
            return self
        try:
            if any(config.enabled for config in self._configs):
                self._ready().run(_all(server.start() for server in self._servers.values()), scope)
        finally:
            self._started.set()
        return self

    def _ready(self) -> Bridge:
        """Return the bridge, made where there is none."""
        need("mcp", "mcp")
        # The library logs tracebacks of lost connections; without a handler they end up on stderr.
        for name in ("mcp", "client"):
            logging.getLogger(name).addHandler(_QUIET)
        with self._lock:
            if self._bridge is None:
                self._bridge = Bridge()
            return self._bridge

    def reconnect(self, name: str) -> McpStatus:
        """
        Start a server that has failed, and return how it is then. One that is connected is left alone.

        Raises:
            KeyError: There is no server of that name.
        """
        server = self._servers[name]
        if not self._closed and server.config.enabled:
            self._ready().run(server.start(), CancelScope())
        return server.status

    # -- looking -----------------------------------------------------------------------------

    @property
    def tools(self) -> list[Tool]:
        """The tools of all servers, in the order of the configuration; starts the servers."""
        self.start()
        revision = self._revision
        if self._built is None or self._built[0] != revision:
            self._built = revision, self._build()
        return list(self._built[1])

    @property
    def revision(self) -> int:
        """A number that changes whenever `tools` may have changed."""
        return self._revision

    @property
    def status(self) -> dict[str, McpStatus]:
        """How each server is, right now. Looking starts nothing."""
        return {name: server.status for name, server in self._servers.items()}

    def _changed(self) -> None:
        self._revision += 1

    def _build(self) -> list[Tool]:
        listed = [
            (server, tool)
            for server in self._servers.values()
            for tool in list(server.tools)
            if server.config.wants(tool.name)
        ]
        names = self._names.assign([(server.config.name, tool.name) for server, tool in listed])
        return [
            self._tool(names[server.config.name, tool.name], server.config.name, tool)
            for server, tool in listed
        ]

    def _tool(self, name: str, server: str, listed: Any) -> Tool:
        """Make a tool of what a server lists."""
        metadata: dict[str, Any] = {"server": server, "tool": listed.name}
        if listed.title:
            metadata["title"] = listed.title
        if listed.annotations is not None:
            metadata["annotations"] = listed.annotations.model_dump(by_alias=True, exclude_none=True)

        def execute(args: dict[str, Any], ctx: Context) -> ToolResult:
            return self._call(server, listed.name, args, ctx)

        return Tool(
            name,
            listed.description or listed.title or "",
            {"properties": {}, **listed.input_schema},
            execute,
            source="mcp",
            metadata=metadata,
        )

    # -- calling -----------------------------------------------------------------------------

    def _call(self, name: str, tool: str, args: dict[str, Any], ctx: Context) -> ToolResult:
        ctx.scope.check()
        if self._closed:
            return ToolResult.error(f"MCP server {name!r}: it is closed", server=name, tool=tool)
        progress = Progress(ctx.output)
        info = CallInfo(tool, args, ctx, progress.put)
        return call_tool(self._ready(), self._servers[name], info, ctx, progress)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """End all servers, within seconds whatever they do. May be called twice."""
        self._closed = True
        with self._lock:
            bridge, self._bridge = self._bridge, None
        servers = list(self._servers.values())
        if bridge is None:
            for server in servers:
                server.mark_closed()
            return
        try:
            bridge.run(_all(server.close() for server in servers), CancelScope(), timeout=CLOSE_WAIT)
        finally:
            bridge.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _all(work: Any) -> None:
    """Do several things at once."""
    await asyncio.gather(*work)


def list_mcp_tools(
    config: str | os.PathLike[str] | Mapping[str, Any], *, timeout: float | None = 30.0
) -> McpInventory:
    """
    Start the servers of a configuration, list what they offer, and end them.

    Args:
        config: A path to an ``.mcp.json`` file, or a dict of that shape.
        timeout: Seconds for each phase of a server that names no timeout of its own.

    Returns:
        The tools by their servers' own names, before any filter, and how each server was.

    Raises:
        ConfigurationError: The configuration cannot be read, or is not right.
        MissingExtraError: The package ``mcp`` is not installed.
    """
    with McpSource(config, timeout=timeout) as source:
        status = source.status
        tools = {
            name: [
                ToolInfo(name=t.name, description=t.description or "", input_schema=dict(t.input_schema))
                for t in server.tools
            ]
            for name, server in source._servers.items()
            if status[name].state == "connected"
        }
    return McpInventory(tools=tools, status=status)


# -- the end of the process, and its children ------------------------------------------------

_hooks = threading.Lock()
_installed = False


def _install_hooks() -> None:
    """Have sources closed at exit, and begun anew in forked children."""
    global _installed
    with _hooks:
        if _installed:
            return
        _installed = True
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_begin_anew)


def _close_all() -> None:
    for source in list(_sources):
        with contextlib.suppress(Exception):
            source.close()


def _begin_anew() -> None:
    """In a forked child: the parent's servers and its thread are the parent's."""
    _inherited.extend(disown_all())
    for source in list(_sources):
        _inherited.append((source._bridge, source._servers))
        known = {name: server.tools for name, server in source._servers.items()}
        source._fresh()
        for name, server in source._servers.items():
            server.tools = known[name]
