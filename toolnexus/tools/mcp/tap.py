"""What comes from a server, looked at on its way to the protocol library."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toolnexus.tools.mcp.mending import mend_result

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from typing_extensions import Self

__all__ = ["Tap"]

_log = logging.getLogger("toolnexus.mcp")


class Tap:
    """
    A stream of messages that mends results on the way, and tells when it ends.

    Args:
        inner: The transport's own stream.
        name: The server's name, for the log.
        on_end: Called when there will be no more messages.
    """

    def __init__(self, inner: Any, name: str, on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._name = name
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """The context of the message's sender, where the transport knows it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        import anyio

        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            dropped = mend_result(result, _is_valid)
            if dropped:
                names = ", ".join(dropped)
                _log.warning("MCP server %r: tools that make no sense are left out: %s", self._name, names)
        return item

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Tap:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        await self._inner.__aexit__(kind, error, trace)
        return None


def _is_valid(tool: dict[str, Any]) -> bool:
    """Return whether the protocol library takes a tool."""
    from mcp_types import methods

    try:
        methods.validate_server_result("tools/list", "2025-11-25", {"tools": [tool]})
    except ValueError:
        return False
    return True
