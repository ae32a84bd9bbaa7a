"""One configured server over all its lives: started, called, restarted, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Context
from toolnexus.tools.mcp.config import McpServerConfig
from toolnexus.tools.mcp.connection import Callbacks, Connection, Forgotten, Refused, Way
from toolnexus.tools.mcp.elicitation import CALL, Asker, WaitFor
from toolnexus.tools.mcp.launch import Launch, prepare
from toolnexus.tools.mcp.lines import scrub
from toolnexus.tools.mcp.status import McpError, McpStatus

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

__all__ = ["CallInfo", "Server"]

#: Seconds that stand for no limit: a year.
FOR_EVER = 365 * 24 * 3600.0

_log = logging.getLogger("toolnexus.mcp")


@attrs.frozen(eq=False)
class CallInfo:
    """
    A call in flight.

    Args:
        tool: The server's own name of the tool.
        args: The arguments.
        ctx: The context of the call.
        progress: Gets each piece of progress as text.
    """

    tool: str
    args: dict[str, Any]
    ctx: Context = attrs.field(factory=Context)
    progress: Callable[[str], None] = lambda text: None


class Server:
    """
    Keeps a server: starts it when it is needed, and again when it died.

    Everything here happens on the bridge's loop, but for reading `status` and `tools`.

    Args:
        config: The server's configuration.
        wait_for: Asks a person; None for what the run has.
        on_change: Called when the list of tools changed.
    """

    def __init__(
        self, config: McpServerConfig, wait_for: WaitFor | None, on_change: Callable[[], None]
    ) -> None:
        self.config = config
        self.tools: list[Tool] = []
        self.status = McpStatus(
            state="connecting" if config.enabled else "disabled", transport=config.transport
        )
        self._wait_for = wait_for
        self._on_change = on_change
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._calls: set[CallInfo] = set()
        self._left: set[asyncio.Task[Any]] = set()
        self._clocks: set[_Clock] = set()
        self._questions = 0

    # -- starting ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the server; how it went is in `status`."""
        if self.config.enabled:
            try:
                await self._alive()
            except (McpError, ConfigurationError) as error:
                _log.warning("MCP server %r failed: %s", self.config.name, error)

    async def _alive(self) -> Connection:
        """Return a connection that works, made anew where there is none."""
        if self.status.state == "closed":
            raise McpError("it is closed")
        if self._connection is not None and self._connection.alive:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opened)
        # Others may wait for the same start: whoever gives up does not end it for them.
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # looked at, even where nobody waits any more

    async def _open(self) -> Connection:
        """Start the server in the first way that it takes."""
        self._set(state="connecting", error=None, pid=None, starts=self.status.starts + 1)
        try:
            launch = prepare(self.config)
            return await self._try_ways(launch)
        except (McpError, ConfigurationError) as error:
            self._set(state="failed", error=error.message)
            raise

    async def _try_ways(self, launch: Launch) -> Connection:
        refusals: list[str] = []
        for way in _ways(self.config):
            connection = Connection(self.config, launch, way, self._callbacks())
            try:
                await connection.open()
            except McpError as error:
                refusals.append(
                    f"{way.transport}: {error.message}" if self.config.fallback else error.message
                )
                if not isinstance(error, Refused):
                    break
            else:
                self._up(connection)
                return connection
        raise McpError("; ".join(dict.fromkeys(refusals)))

    def _callbacks(self) -> Callbacks:
        ask = Asker(self.config.name, self._wait_for, self._asking, self._callers)
        return Callbacks(changed=self._changed, lost=self._lost, ask=ask)

    def _up(self, connection: Connection) -> None:
        self._connection, client = connection, connection.client
        info = client.server_info if client else None
        self._set(
            state="connected",
            transport=connection.way.transport,
            pid=connection.process.pid if connection.process else None,
            protocol=client.protocol_version if client else None,
            server=f"{info.name} {info.version}".strip() if info else None,
        )
        self._changed(connection.tools)

    def _changed(self, tools: list[Tool]) -> None:
        self.tools = tools
        self._set(tools=sum(self.config.wants(tool.name) for tool in tools))
        self._on_change()

    def _lost(self, why: str) -> None:
        _log.warning("MCP server %r is gone: %s", self.config.name, why)
        self._set(state="failed", error=why, pid=None)

    def _set(self, **changes: Any) -> None:
        if self.status.state != "closed":
            self.status = attrs.evolve(self.status, **changes)

    # -- calling -----------------------------------------------------------------------------

    async def call(self, info: CallInfo) -> CallToolResult:
        """
        Call a tool; the server is started first where it is not running.

        Raises:
            McpError: The server cannot be started, died, or gave no sign of life in time.
            mcp.MCPError: It answered with an error.
            Exception: Its answer does not keep to the protocol.
        """
        self._calls.add(info)
        try:
            try:
                return await self._call(await self._alive(), info)
            except Forgotten:
                return await self._call(await self._anew(), info)
        finally:
            self._calls.discard(info)

    async def _anew(self) -> Connection:
        """Introduce ourselves again, after the server has forgotten us."""
        forgotten, self._connection = self._connection, None
        if forgotten is not None:
            await forgotten.close()
        return await self._alive()

    async def _call(self, connection: Connection, info: CallInfo) -> CallToolResult:
        clock = _Clock(self.config.timeouts.call)
        self._clocks.add(clock)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            clock.restart()
            info.progress(_progress_text(progress, total, message))

        async def call() -> CallToolResult:
            CALL.set(info.ctx)
            return await connection.call(info.tool, scrub(info.args), on_progress)

        work = asyncio.get_running_loop().create_task(call())
        self._left.add(work)
        work.add_done_callback(self._done)
        try:
            while not work.done():
                if self._questions:
                    clock.restart()  # a person takes the time a person takes
                if clock.left() <= 0:
                    raise McpError(f"no answer and no progress for {clock.limit:g} s")
                await asyncio.wait({work}, timeout=clock.left())
            return work.result()
        finally:
            self._clocks.discard(clock)
            # Tells the server that nobody waits any more; we do not wait for that to be told.
            work.cancel()

    def _done(self, work: asyncio.Task[Any]) -> None:
        self._left.discard(work)
        if not work.cancelled():
            work.exception()

    def _asking(self, begins: bool) -> None:
        self._questions += 1 if begins else -1
        for clock in self._clocks:
            clock.restart()

    def _callers(self) -> list[Context]:
        """Return the contexts of the calls in flight, one of which a question belongs to."""
        return [info.ctx for info in self._calls]

    # -- closing -----------------------------------------------------------------------------

    def mark_closed(self) -> None:
        """Note that the server will not be started any more."""
        if self.status.state != "disabled":
            self._set(state="closed", error=None, pid=None)

    async def close(self) -> None:
        """End the server for good."""
        self.mark_closed()
        for task in [self._opening, *self._left]:
            if task is not None:
                task.cancel()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._connection is not None:
            await self._connection.close()


class _Clock:
    """How long a call may still go without a sign of life."""

    def __init__(self, limit: float | None) -> None:
        self.limit = FOR_EVER if limit is None else limit
        self.restart()

    def restart(self) -> None:
        self._end = asyncio.get_running_loop().time() + self.limit

    def left(self) -> float:
        return self._end - asyncio.get_running_loop().time()


def _ways(config: McpServerConfig) -> list[Way]:
    """Return the ways to speak to a server, in the order in which to try them."""
    if config.transport == "sse":
        return [Way("sse", "legacy")]
    ways = [Way(config.transport, "legacy"), Way(config.transport, "auto")]
    if config.protocol != "auto":
        ways = ways[:1] if config.protocol == "legacy" else ways[1:]
    return [*ways, Way("sse", "legacy")] if config.fallback else ways


def _progress_text(done: float, total: float | None, message: str | None) -> str:
    """
    Return progress as a line of text.

    >>> _progress_text(1, 4, "reading")
    '1/4 reading\\n'
    """
    count = f"{done:g}" if total is None else f"{done:g}/{total:g}"
    return f"{count} {message}\n" if message else f"{count}\n"
