"""Runs tools that are coroutines; imported only where there is one, for it needs asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Awaitable
from typing import Any

from toolnexus.abandon import call_abandonable
from toolnexus.tools.base import Context
from toolnexus.tools.outcome import clean_text, text_of

__all__ = ["run_async"]


def run_async(value: Awaitable[Any] | types.AsyncGeneratorType[Any, None], ctx: Context) -> Any:
    """
    Run an awaitable or an async generator to its end, in an event loop of its own.

    Args:
        value: What the tool returned. What an async generator yields is reported, and all of it
            together is the result.
        ctx: The context of the call; the end of its scope cancels the work.

    Raises:
        RunCancelledError: The scope was cancelled.
        RunTimeoutError: The scope's time was up.
    """
    work = _collect(value, ctx) if isinstance(value, types.AsyncGeneratorType) else _await(value)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_until_cancelled(work, ctx))
    # A notebook's cell has a loop running in this very thread, which cannot run a second one.
    return call_abandonable(lambda: asyncio.run(_until_cancelled(work, ctx)), ctx.scope, name="coroutine")


async def _await(value: Awaitable[Any]) -> Any:
    return await value


async def _collect(generator: types.AsyncGeneratorType[Any, None], ctx: Context) -> str | None:
    pieces: list[str] = []
    async with contextlib.aclosing(generator):
        async for item in generator:
            piece = clean_text(text_of(item))
            pieces.append(piece)
            ctx.output(piece)
    return "".join(pieces) if pieces else None


async def _until_cancelled(work: Any, ctx: Context) -> Any:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    forget = ctx.scope.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        ctx.scope.check()
        raise
    finally:
        forget()
