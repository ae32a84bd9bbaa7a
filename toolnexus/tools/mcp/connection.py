"""One connection to a server: from its start to its end, in one task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal

import attrs

from toolnexus._version import __version__
from toolnexus.tools.mcp.config import McpServerConfig
from toolnexus.tools.mcp.launch import Launch
from toolnexus.tools.mcp.listing import list_all
from toolnexus.tools.mcp.process import ServerProcess
from toolnexus.tools.mcp.status import McpError
from toolnexus.tools.mcp.stdio import stdio_streams
from toolnexus.tools.mcp.tap import Tap
from toolnexus.tools.mcp.tasks import call_as_task, runs_as_task
from toolnexus.tools.mcp.web import HttpTrace, http_streams, sse_streams

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool

    from toolnexus.tools.mcp.elicitation import Asker

__all__ = ["Callbacks", "Connection", "Forgotten", "Lost", "Refused", "Way"]

#: Seconds to wait for an exit code, for the reason of an end, and for a connection to clean up.
EXIT_CODE_WAIT, REASON_WAIT, CLOSE_WAIT = 0.5, 0.7, 2.6
#: Statuses after which another way of speaking may work.
REFUSALS = (400, 404, 405, 406, 415, 501)
#: What the library says when a server has forgotten us, which it may: we introduce ourselves again.
FORGOTTEN = "Session terminated"
#: What it says of an HTTP error; we know which one.
UNNAMED = "Server returned an error response"

Phase = Literal["start", "initialize", "list"]
PHASES: tuple[Phase, ...] = ("start", "initialize", "list")

_log = logging.getLogger("toolnexus.mcp")


class Lost(McpError):
    """The connection ended."""


class Forgotten(McpError):
    """The server no longer knows our session."""


class Refused(McpError):
    """The server answered, and does not want to be spoken to in this way: another may work."""


@attrs.frozen
class Way:
    """One way to speak to a server: the transport, and which handshake."""

    transport: Literal["stdio", "http", "sse"]
    mode: Literal["legacy", "auto"]


@attrs.define(kw_only=True)
class Callbacks:
    """
    What a connection tells its server's keeper.

    Args:
        changed: The server says that its list of tools changed, and this is the new one.
        lost: The connection ended, for this reason.
        ask: Answers the server's questions to a person.
    """

    changed: Callable[[list[Tool]], None]
    lost: Callable[[str], None]
    ask: Asker


class Connection:
    """
    A server that was started or reached, once.

    Args:
        config: Its configuration.
        launch: The same with its variables filled in.
        way: How to speak to it.
        callbacks: Whom to tell what happens.
    """

    def __init__(self, config: McpServerConfig, launch: Launch, way: Way, callbacks: Callbacks) -> None:
        self.config = config
        self.way = way
        self.tools: list[Tool] = []
        self.process: ServerProcess | None = None
        self.client: Client | None = None
        self._launch = launch
        self._callbacks = callbacks
        self._trace = HttpTrace(every=way.transport == "sse", on_broken=self._end)
        self._over = asyncio.Event()
        self._closing = False
        self._cause: BaseException | None = None
        self._refusal = False
        self._fate: str | None = None  # how the process ended by itself
        self._up: dict[Phase, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._relist = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether calls can be sent."""
        return self.client is not None and not self._over.is_set()

    # -- opening -----------------------------------------------------------------------------

    async def open(self) -> None:
        """
        Start the server, shake hands and list its tools, each within its time.

        Raises:
            Refused: The server answered the handshake with an error.
            McpError: Anything else went wrong; the message says what, with the server's stderr.
        """
        loop = asyncio.get_running_loop()
        self._up = {phase: loop.create_future() for phase in PHASES}
        self._task = task = loop.create_task(self._live())
        try:
            for phase in PHASES:
                await self._reach(phase, task)
        except BaseException:
            await self.close()
            raise

    async def _reach(self, phase: Phase, task: asyncio.Task[None]) -> None:
        """Wait until a phase is through, or fail with what went wrong in it."""
        limit = getattr(self.config.timeouts, phase)
        done, _ = await asyncio.wait(
            {self._up[phase], task}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
        )
        if self._up[phase].done():
            return
        if not done:
            raise McpError(self._quote(f"{phase} took longer than {limit:g} s"))
        why = await self._why()
        raise (Refused if self._refusal else McpError)(why if phase == "start" else f"{phase} failed: {why}")

    async def _live(self) -> None:
        """Enter everything, wait for the end, and leave everything, in one task as scopes demand."""
        error: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._enter(stack)
                    await self._over.wait()
                except BaseException as problem:
                    self._note_refusal(problem)
                    raise
                finally:
                    ended = self._over.is_set()
                    self._over.set()  # first of all: calls in flight look at it when they fail
                    await self._note_fate(ended)
        except BaseException as problem:  # noqa: BLE001 - a cancel, too, ends here: it was ours
            error = problem
        self._cause = error
        self._over.set()
        if self._up["list"].done() and not self._closing:
            self._callbacks.lost(self._quote(self._reason()))

    def _note_refusal(self, problem: BaseException) -> None:
        """Note whether the server lives, and answered the handshake with an error of its own."""
        from mcp import MCPError

        if self._up["initialize"].done() or self._over.is_set():
            return
        if self._trace.status is not None:
            self._refusal = self._trace.code in REFUSALS
        else:
            self._refusal = isinstance(_leaf(problem), MCPError)

    async def _note_fate(self, ended: bool) -> None:
        """Note how the process ended, where it was not we who ended it."""
        if self.process is not None and not self._closing:
            self._fate = await self.process.how_it_ended(EXIT_CODE_WAIT if ended else 0)

    async def _enter(self, stack: AsyncExitStack) -> None:
        from mcp import Client

        read, write = await stack.enter_async_context(await self._streams())
        self._up["start"].set_result(None)
        tap = Tap(read, self.config.name, self._end)
        client = Client(
            _Opened(tap, write),
            mode=self.way.mode,
            cache=None,
            client_info=_client_info(),
            elicitation_callback=self._callbacks.ask,
            message_handler=self._on_message,
            logging_callback=self._on_log,
        )
        await stack.enter_async_context(client)
        self._up["initialize"].set_result(None)
        self.tools = await list_all(client)
        self.client = client
        follower = asyncio.get_running_loop().create_task(self._follow(client))
        stack.callback(follower.cancel)
        self._up["list"].set_result(None)

    async def _streams(self) -> AbstractAsyncContextManager[Any]:
        """Start or reach the server."""
        config, launch = self.config, self._launch
        if launch.command is not None:
            self.process = await ServerProcess.start(launch.command)
            return stdio_streams(self.process, config.name, config.max_message)
        if self.way.transport == "sse":
            return sse_streams(launch.url, launch.headers, config.timeouts, self._trace)
        return http_streams(launch.url, launch.headers, config.timeouts, self._trace, config.max_message)

    # -- while it lasts ----------------------------------------------------------------------

    async def call(self, tool: str, args: dict[str, Any], progress: ProgressFnT) -> CallToolResult:
        """
        Call a tool, for as long as it takes.

        Raises:
            Lost: The connection ended meanwhile.
            Forgotten: The server no longer knows us, and so has not run the tool.
            mcp.MCPError: The server answered with an error.
            Exception: Its answer does not keep to the protocol.
        """
        from mcp import MCPError

        if self.client is None or self._over.is_set():
            raise Lost(await self._why())
        try:
            if self.client.session.initialize_result is not None and runs_as_task(self.tools, tool):
                return await call_as_task(self.client.session, tool, args, progress)
            return await self.client.call_tool(tool, args, progress_callback=progress)
        except Exception as error:
            if isinstance(error, MCPError) and error.message == FORGOTTEN:
                raise Forgotten(FORGOTTEN) from None
            if isinstance(error, MCPError) and error.message == UNNAMED and self._trace.status:
                raise McpError(f"the server answered {self._trace.status}") from None
            if not self._over.is_set():
                raise
        raise Lost(await self._why())

    async def _on_message(self, message: object) -> None:
        """Note that the list of tools changed."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._relist.set()

    async def _on_log(self, params: Any) -> None:
        """Pass the server's log messages on, quietly."""
        _log.debug("MCP server %r: %s: %.500s", self.config.name, params.level, params.data)

    async def _follow(self, client: Client) -> None:
        """List the tools anew whenever the server says that they changed."""
        from mcp import MCPError

        listener = asyncio.get_running_loop().create_task(self._listen(client))
        try:
            while True:
                await self._relist.wait()
                self._relist.clear()
                try:
                    self.tools = await asyncio.wait_for(list_all(client), self.config.timeouts.list)
                except (MCPError, McpError, ValueError, asyncio.TimeoutError) as error:
                    _log.warning("MCP server %r: cannot list its tools anew: %s", self.config.name, error)
                    continue
                self._callbacks.changed(self.tools)
        finally:
            listener.cancel()

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes where the protocol wants that; older ones just tell us."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = client.server_capabilities.tools
        if client.session.initialize_result is not None or not (tools and tools.list_changed):
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self._relist.set()
            except (SubscriptionLost, TimeoutError):
                await asyncio.sleep(1)
                self._relist.set()  # what happened in between is not told again
            except (ListenNotSupportedError, MCPError) as error:
                _log.debug("MCP server %r: no news of its tools: %s", self.config.name, error)
                return

    # -- the end -----------------------------------------------------------------------------

    def _end(self) -> None:
        self._over.set()

    async def close(self) -> None:
        """End the connection; a process ends within three seconds."""
        self._closing = True
        self._over.set()
        if self._task is None:
            return
        if not all(future.done() for future in self._up.values()):
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_WAIT)
        if not self._task.done():
            self._task.cancel()

    async def _why(self) -> str:
        """Return why the connection ended or was not made."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=REASON_WAIT)
        return self._quote(self._reason())

    def _reason(self) -> str:
        if self._fate is not None:
            return f"the server {self._fate}"
        if self._trace.status is not None:
            return f"the server answered {self._trace.status}"
        if self._trace.error is not None:
            return f"the connection failed: {self._trace.error}"
        leaf = _leaf(self._cause)
        if isinstance(leaf, McpError):
            return leaf.message
        if leaf is not None and str(leaf) not in ("", "Connection closed"):
            return str(leaf)
        return "the connection was closed" if self.process is None else "the server closed its output"

    def _quote(self, why: str) -> str:
        """Return a reason with the last that the server wrote to stderr, and without our secrets."""
        tail = self.process.stderr_tail() if self.process is not None else ""
        return self._launch.redact(f"{why}; its stderr ends with:\n{tail}" if tail else why)


class _Opened:
    """Streams that are open already, as the transport that the library wants to open."""

    def __init__(self, read: Any, write: Any) -> None:
        self._streams = (read, write)

    async def __aenter__(self) -> tuple[Any, Any]:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


def _client_info() -> Any:
    from mcp_types import Implementation

    return Implementation(name="toolnexus", version=__version__)


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return the first real error in a group of them."""
    while error is not None and getattr(error, "exceptions", None):
        inner = error.exceptions  # type: ignore[attr-defined]
        error = next((e for e in inner if not isinstance(e, asyncio.CancelledError)), inner[0])
    return error
