"""The stdio transport: a server's process as the pair of streams that the protocol library speaks over."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from toolnexus.tools.mcp.lines import Overlong, decode_line, failure
from toolnexus.tools.mcp.process import ServerProcess

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Streams = tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
    ]

__all__ = ["stdio_streams"]

_log = logging.getLogger("toolnexus.mcp")


@asynccontextmanager
async def stdio_streams(process: ServerProcess, name: str, limit: int) -> AsyncIterator[Streams]:
    """
    Speak with a process; the process is stopped at the end.

    Args:
        process: The server's process.
        name: The server's name, for the log.
        limit: The longest message in bytes, for the error that names it.
    """
    import anyio

    to_session, read = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    write, from_session = anyio.create_memory_object_stream["SessionMessage"](0)
    async with anyio.create_task_group() as tasks, to_session, read, write, from_session:
        tasks.start_soon(_hear, process, to_session, name, limit)
        tasks.start_soon(_tell, process, from_session, to_session)
        try:
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):
                await process.stop()
            tasks.cancel_scope.cancel()


async def _hear(
    process: ServerProcess, out: MemoryObjectSendStream[SessionMessage | Exception], name: str, limit: int
) -> None:
    """Hand the server's messages to the session until its stdout ends."""
    import anyio

    noise = 0
    async with out:
        async for line in process.lines():
            messages = _overlong(line, name, limit) if isinstance(line, Overlong) else decode_line(line)
            if not messages and isinstance(line, bytes) and line.strip():
                noise += 1
                level = logging.WARNING if noise == 1 else logging.DEBUG
                _log.log(level, "MCP server %r wrote to stdout what is no message: %.200r", name, line)
            for message in filter(None, map(_session_message, messages)):
                try:
                    await out.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return


def _overlong(line: Overlong, name: str, limit: int) -> list[dict[str, Any]]:
    """Return the error that stands in for an answer that was too long."""
    text = f"the answer is too long: {line.length} bytes, allowed are {limit} (max_message)"
    _log.warning("MCP server %r: %s", name, text)
    return [] if line.id is None else [failure(line.id, text)]


def _session_message(message: dict[str, Any]) -> SessionMessage | None:
    """Return a message as the library has it, or None where it is not one after all."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValueError as error:
        _log.debug("no JSON-RPC message: %s", error)
        return None


async def _tell(
    process: ServerProcess,
    source: MemoryObjectReceiveStream[SessionMessage],
    out: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Send what the protocol library says to the server."""
    async with source:
        async for item in source:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            if not await process.write(text.encode() + b"\n"):
                await out.aclose()  # so that nobody waits for an answer
                return
