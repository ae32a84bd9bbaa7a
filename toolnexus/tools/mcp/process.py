"""A server's process: started in a group of its own, heard to the last byte, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

import attrs

from toolnexus.tools.mcp.lines import LineSplitter, Overlong
from toolnexus.tools.mcp.status import McpError

__all__ = ["Command", "ServerProcess"]

#: Bytes of stderr that are kept, and how many of its last lines an error quotes.
STDERR_BYTES, STDERR_LINES = 16 * 1024, 20
#: Bytes of unread messages from which on we stop reading.
HIGH_WATER = 4 * 1024 * 1024
#: Seconds for a server to end after the end of its stdin, after TERM, and after KILL.
GRACE_EOF, GRACE_TERM, GRACE_KILL = 0.9, 0.7, 0.5
#: Seconds in which the last output of a dead process is read, where others hold its pipe open.
LAST_WORDS = 0.2

_live: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


@attrs.frozen(kw_only=True)
class Command:
    """What to start: variables are filled in, so it must not be shown."""

    argv: tuple[str, ...] = attrs.field(repr=False)
    env: dict[str, str] = attrs.field(repr=False)
    cwd: str | None = None
    max_message: int

    def program(self) -> str:
        """
        Return the program's path.

        Raises:
            McpError: There is none, or the folder to start it in does not exist.
        """
        name = self.argv[0]
        if self.cwd is not None and not os.path.isdir(self.cwd):
            raise McpError(f"cannot start {name!r}: the folder {self.cwd!r} does not exist")
        if os.path.dirname(name):
            return name
        # Also finds npx.cmd by the name npx, where launchers have extensions.
        found = shutil.which(name, path=self.env.get("PATH"))
        if found is None:
            hint = "; put the arguments into args" if " " in name else ""
            raise McpError(f"cannot start {name!r}: no such program on PATH{hint}")
        return found


class ServerProcess(asyncio.SubprocessProtocol):
    """
    A running server.

    Everything here happens on the bridge's loop. Make one with `start`.
    """

    def __init__(self, max_message: int) -> None:
        self._splitter = LineSplitter(max_message)
        self._lines: deque[bytes | Overlong] = deque()
        self._waiting = 0
        self._paused = self._deaf = self._silent = False
        self._stderr = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.exited = asyncio.Event()
        self._gone = asyncio.Event()
        self._transport: asyncio.SubprocessTransport  # from connection_made on

    @classmethod
    async def start(cls, command: Command) -> ServerProcess:
        """
        Start a server.

        Raises:
            McpError: It cannot be started.
        """
        program = command.program()
        loop = asyncio.get_running_loop()
        try:
            _, process = await loop.subprocess_exec(
                lambda: cls(command.max_message),
                program,
                *command.argv[1:],
                env=command.env,
                cwd=command.cwd,
                # A group of its own: so that all of it can be ended, and Ctrl-C is for us alone.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise McpError(f"cannot start {command.argv[0]!r}: {why}") from None
        _live.add(process)
        return process

    # -- what the loop tells us --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what the server wrote."""
        if fd == 2:
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]
        elif not self._deaf:
            lines = self._splitter.feed(data)
            self._lines.extend(lines)
            self._waiting += sum(len(line) for line in lines if isinstance(line, bytes))
            if self._waiting > HIGH_WATER and not self._paused:
                self._paused = True
                self._stdout().pause_reading()
            self._news.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that a pipe ended."""
        if fd == 1:
            self._silent = True
            self._news.set()
        elif fd == 0:
            self._writable.set()

    def process_exited(self) -> None:
        """Note that the process ended; others may hold its pipes open still."""
        self.exited.set()
        self._writable.set()
        asyncio.get_running_loop().call_later(LAST_WORDS, self._fall_silent)

    def _fall_silent(self) -> None:
        self._silent = True
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that process and pipes are gone."""
        self._gone.set()

    def pause_writing(self) -> None:
        """Hold back what we send: the server does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Send on."""
        self._writable.set()

    # -- what the connection asks for --------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process's id, which is its group's, too."""
        return self._transport.get_pid()

    async def lines(self) -> AsyncIterator[bytes | Overlong]:
        """Yield the lines of stdout until it ends."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                self._waiting -= len(line) if isinstance(line, bytes) else 0
                if self._paused and self._waiting <= HIGH_WATER // 2:
                    self._paused = False
                    self._stdout().resume_reading()
                yield line
            if self._silent:
                return
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> bool:
        """Send to stdin, waiting while the server does not read; return whether it still has ears."""
        await self._writable.wait()
        stdin = self._stdin()
        if stdin is None or stdin.is_closing() or self.exited.is_set():
            return False
        stdin.write(data)
        return True

    def stderr_tail(self) -> str:
        """Return the last lines of what the server wrote to stderr."""
        text = self._stderr.decode("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-STDERR_LINES:])

    async def how_it_ended(self, wait: float) -> str | None:
        """Return with what code the process ended, or None if it has not after so many seconds."""
        if not await self._ends_within(wait):
            return None
        code = self._transport.get_returncode()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    async def stop(self) -> None:
        """
        End the process and all of its group: by the end of its stdin, by TERM, by KILL.

        Takes less than three seconds, whatever the server does.
        """
        self._deaf = True  # what it still writes is read and dropped, so that it can end
        if self._paused:
            self._paused = False
            self._stdout().resume_reading()
        stdin = self._stdin()
        if stdin is not None:
            stdin.close()
        if not await self._ends_within(GRACE_EOF):
            await self._signal("SIGTERM")
            if not await self._ends_within(GRACE_TERM):
                await self._signal("SIGKILL")
                await self._ends_within(GRACE_KILL)
        await self._end_group()
        self._transport.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), GRACE_KILL)
        _live.discard(self)

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.exited.wait(), seconds)
        return self.exited.is_set()

    async def _end_group(self) -> None:
        """End what the server has left behind in its group."""
        if not await self._signal("SIGTERM"):
            return
        deadline = time.monotonic() + GRACE_KILL
        while time.monotonic() < deadline:
            if not await self._signal(None):
                return
            await asyncio.sleep(0.02)
        await self._signal("SIGKILL")

    async def _signal(self, name: str | None) -> bool:
        """Signal the group; return whether there is any."""
        if sys.platform == "win32":
            if name is None or self.exited.is_set():
                return False
            killer = await asyncio.create_subprocess_exec(
                "taskkill", "/F", "/T", "/PID", str(self.pid), stdout=asyncio.subprocess.DEVNULL
            )
            await killer.wait()
            return True
        try:
            os.killpg(self.pid, signal.Signals[name] if name else 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _stdout(self) -> asyncio.ReadTransport:
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))

    def _stdin(self) -> asyncio.WriteTransport | None:
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    def disown(self) -> None:
        """In a forked child: let go of our copy of its stdin, which would keep the server alive."""
        stdin = self._stdin()
        if stdin is not None:
            with contextlib.suppress(OSError):
                stdin.get_extra_info("pipe").close()


def disown_all() -> list[ServerProcess]:
    """In a forked child: let go of the parent's servers; return them, for they must not be finalized."""
    servers = list(_live)
    for server in servers:
        server.disown()
    _live.clear()
    return servers
