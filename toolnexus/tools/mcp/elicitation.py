"""Elicitation: a server's question to a person becomes a `Request`, and the `Answer` goes back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolnexus.abandon import start_thread
from toolnexus.errors import RunCancelledError, RunTimeoutError
from toolnexus.suspension import Answer, Request
from toolnexus.tools.base import Context

if TYPE_CHECKING:
    from mcp_types import ElicitRequestParams, ElicitResult

__all__ = ["CALL", "Asker", "WaitFor", "to_request", "web_url"]

#: The call that the code at hand is part of. In later versions of the protocol a question is asked inside
#: the call that it belongs to; before, it comes by itself and does not say whose it is.
CALL: ContextVar[Context] = ContextVar("CALL")

WaitFor = Callable[[Request], "Answer | None"]

_log = logging.getLogger("toolnexus.mcp")
_prefix = secrets.token_hex(4)
_numbers = itertools.count(1)


def new_id() -> str:
    """Return an id for a request that no other has."""
    return f"elc-{_prefix}-{next(_numbers)}"


def web_url(url: str) -> str | None:
    """Return a URL that may be shown to a person to open, or None: it must be http or https."""
    return url if urlsplit(url).scheme in ("http", "https") else None


def to_request(server: str, params: ElicitRequestParams, call_id: str = "", tool_name: str = "") -> Request:
    """
    Return what a server asks as a request for a person.

    Args:
        server: The server's name.
        params: What it asks: a form to fill in, or a page to open.
        call_id: The call during which it asks, where that is known.
        tool_name: The tool that was called.
    """
    common: dict[str, Any] = {
        "id": new_id(),
        "prompt": params.message,
        "call_id": call_id,
        "tool_name": tool_name,
    }
    if params.mode == "url":
        return Request(kind="authorization", url=params.url, data={"server": server}, **common)
    schema = dict(params.requested_schema)
    fields = schema.get("properties") or {}
    if "required" in schema:  # what is left out gets the server's default
        schema["required"] = [n for n in schema["required"] if "default" not in fields.get(n, ())]
    return Request(kind="input", data={"server": server, "schema": schema}, response_schema=schema, **common)


class Asker:
    """
    Asks a person, which blocks, without the loop having to wait.

    Args:
        server: The server's name.
        wait_for: Gets the request and returns the answer; None means nobody answered. Without it, the
            run that the question belongs to is asked.
        asking: Called with True when a question goes out and with False when it is settled.
        callers: Returns the contexts of the calls in flight.
    """

    def __init__(
        self,
        server: str,
        wait_for: WaitFor | None,
        asking: Callable[[bool], None],
        callers: Callable[[], list[Context]],
    ) -> None:
        self._server = server
        self._wait_for = wait_for
        self._asking = asking
        self._callers = callers

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        """Answer a server's question; the protocol library calls this."""
        from mcp_types import ElicitResult

        if params.mode == "url" and web_url(params.url) is None:
            _log.warning("MCP server %r asks to open what is no web page; declined", self._server)
            return ElicitResult(action="decline")
        call, wait_for = self._whom()
        request = to_request(self._server, params, call.call_id, call.tool_name)
        self._asking(True)
        try:
            answer = await self._ask(request, wait_for)
        finally:
            self._asking(False)
        return _to_result(request, answer)

    def _whom(self) -> tuple[Context, WaitFor]:
        """Return the call that a question belongs to, as far as that is known, and who is asked."""
        callers = self._callers()
        call = CALL.get(None) or (callers[0] if len(callers) == 1 else None)
        if self._wait_for is not None:
            return call or Context(), self._wait_for
        if call is None and len({caller.run_id for caller in callers}) == 1:
            # Whichever of them it is, the same person is asked; but it may not be the one that ends first.
            calls = [caller.call_id for caller in callers]
            return Context(), lambda request: callers[0].wait_for_one_of(request, calls)
        if call is None and callers:
            _log.warning("MCP server %r asks, and several runs call it: nobody is asked", self._server)
        call = call or Context()
        return call, call.wait_for

    async def _ask(self, request: Request, wait_for: WaitFor) -> Answer | None:
        """Call ``wait_for`` in a thread that is left behind when the question is withdrawn."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answer | None] = loop.create_future()

        def settle(answer: Answer | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        def ask() -> None:
            answer = None
            try:
                answer = wait_for(request)
                if answer is not None and not isinstance(answer, Answer):
                    raise TypeError(f"it must return an Answer or None, not {type(answer).__name__}")
            except (RunCancelledError, RunTimeoutError):
                answer = None  # the call is over
            except Exception:  # noqa: BLE001 - the user's code; the server is told that nobody answered
                _log.exception("wait_for failed on a request of MCP server %r", self._server)
                answer = None
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, answer)

        start_thread(ask, "mcp-wait-for")
        return await answered


def _to_result(request: Request, answer: Answer | None) -> ElicitResult:
    """Return the answer as the protocol has it; one to another request, or a late one, does not count."""
    from mcp_types import ElicitResult

    if answer is None or answer.id != request.id or request.expired:
        return ElicitResult(action="cancel")
    if not answer.ok:
        return ElicitResult(action="decline" if answer.reason == "declined" else "cancel")
    if request.response_schema is None:
        return ElicitResult(action="accept")
    try:
        return ElicitResult(action="accept", content=_content(request.response_schema, answer.data))
    except ValueError:
        _log.warning("the answer to %s does not fit the form; cancelled", request.id)
        return ElicitResult(action="cancel")


def _content(schema: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Return the filled-in form; fields left out get the defaults that the server gave."""
    fields = schema.get("properties") or {}
    if data is not None and not isinstance(data, Mapping):
        if len(fields) != 1:
            raise ValueError("the form has several fields, and the answer does not name them")
        data = dict.fromkeys(fields, data)  # a plain answer to the only question
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {**defaults, **(data or {})}
