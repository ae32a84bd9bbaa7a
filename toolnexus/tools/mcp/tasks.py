"""Tools that only run as a task: the call is handed in, and its result fetched when it is there."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult, Tool

__all__ = ["call_as_task", "runs_as_task"]

#: Seconds between two looks at a task where its server suggests none, and at the least.
LOOK, LOOK_AT_LEAST = 1.0, 0.2
#: Seconds for a server to take note that a task is cancelled.
CANCEL_WAIT = 5.0

# Tasks that tell a server of a cancel: the loop holds them weakly only.
_telling: set[asyncio.Task[None]] = set()


def runs_as_task(tools: list[Tool], name: str) -> bool:
    """Return whether a tool can be called as a task only."""
    tool = next((tool for tool in tools if tool.name == name), None)
    return tool is not None and tool.execution is not None and tool.execution.task_support == "required"


async def call_as_task(
    session: ClientSession, name: str, args: dict[str, Any], progress: ProgressFnT
) -> CallToolResult:
    """
    Call a tool as a task, and wait for its result.

    Args:
        session: The session; it must speak a protocol that has tasks.
        name: The tool.
        args: Its arguments.
        progress: Gets the number of the look, and what the server says of the task, when that changes.
    """
    from mcp_types import (
        CallToolRequest,
        CallToolRequestParams,
        CallToolResult,
        CreateTaskResult,
        GetTaskPayloadRequest,
        GetTaskPayloadRequestParams,
        TaskMetadata,
    )

    params = CallToolRequestParams(name=name, arguments=args, task=TaskMetadata())
    created = await session.send_request(CallToolRequest(params=params), CreateTaskResult)
    task_id, pause = created.task.task_id, (created.task.poll_interval or LOOK * 1000) / 1000
    watcher = asyncio.get_running_loop().create_task(
        _watch(session, task_id, max(pause, LOOK_AT_LEAST), progress)
    )
    try:
        payload = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(task_id=task_id))
        return await session.send_request(payload, CallToolResult)
    except asyncio.CancelledError:
        telling = asyncio.get_running_loop().create_task(_cancel(session, task_id))
        _telling.add(telling)
        telling.add_done_callback(_telling.discard)
        raise
    finally:
        watcher.cancel()


async def _watch(session: ClientSession, task_id: str, pause: float, progress: ProgressFnT) -> None:
    """Look at a task from time to time; each look that is answered is a sign of life."""
    from mcp import MCPError
    from mcp_types import GetTaskRequest, GetTaskRequestParams, GetTaskResult

    request = GetTaskRequest(params=GetTaskRequestParams(task_id=task_id))
    looks, told = 0, None
    with contextlib.suppress(MCPError, ValueError):
        while True:
            state = await session.send_request(request, GetTaskResult)
            looks += 1
            say = state.status_message or state.status
            await progress(looks, None, say if say != told else None)
            told = say
            await asyncio.sleep(pause)


async def _cancel(session: ClientSession, task_id: str) -> None:
    """Tell the server that nobody waits for a task any more."""
    from mcp import MCPError
    from mcp_types import CancelTaskRequest, CancelTaskRequestParams, CancelTaskResult

    request = CancelTaskRequest(params=CancelTaskRequestParams(task_id=task_id))
    with contextlib.suppress(MCPError, ValueError):
        await session.send_request(request, CancelTaskResult, request_read_timeout_seconds=CANCEL_WAIT)
