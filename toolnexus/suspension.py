"""A tool that waits for a person: the request that goes out and the answer that comes back."""

from __future__ import annotations

import math
import secrets
import time
from typing import Any, Literal

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import PENDING_KEY, Context, Tool, ToolResult
from toolnexus.values import Value

__all__ = ["Answer", "Request", "pending", "pending_of", "relay_tool"]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Request(Value):
    """
    What a suspended tool wants to know. Plain JSON, so that it can be stored and sent.

    Args:
        id: The request's id; an answer names it.
        kind: What is asked for: "approval", "question", "authorization", "input" or your own word.
        prompt: The question, for a person.
        url: A page to open, or None.
        data: More that an interface may need.
        response_schema: The JSON schema that the answer's data must fit, or None.
        expires_at: The moment after which no answer counts, in seconds since the epoch, or None.
        call_id: The id of the tool call that waits.
        tool_name: The tool that waits.
    """

    id: str = attrs.field(factory=lambda: f"pnd-{secrets.token_hex(8)}")
    kind: str = "question"
    prompt: str = ""
    url: str | None = None
    data: Any = None
    response_schema: dict[str, Any] | None = None
    expires_at: float | None = None
    call_id: str = ""
    tool_name: str = ""

    @property
    def expired(self) -> bool:
        """Whether it is too late for an answer."""
        return self.expires_at is not None and time.time() >= self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain JSON."""
        return {k: v for k, v in attrs.asdict(self).items() if v not in (None, "")}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Request:
        """Make a request from what `to_dict` gave; unknown keys are passed over."""
        known = {a.name for a in attrs.fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in known})


@attrs.frozen(eq=False, repr=False)
class Answer(Value):
    """
    What a person said to a request. Plain JSON, too.

    Args:
        id: The id of the request.
        ok: Whether the answer is a yes.
        data: What was answered.
        reason: Why not: "declined", "cancelled", "expired", or a person's own words.
    """

    id: str
    ok: bool = True
    data: Any = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON."""
        return attrs.asdict(self)

    @classmethod
    def approve(cls, request: Request) -> Answer:
        """Let the call run as it is."""
        return cls(request.id)

    @classmethod
    def edit(cls, request: Request, args: dict[str, Any]) -> Answer:
        """Let the call run with other arguments."""
        return cls(request.id, data={"args": args})

    @classmethod
    def reject(cls, request: Request, message: str = "") -> Answer:
        """Do not let the call run; the model is told why."""
        return cls(request.id, ok=False, reason=message or "rejected")

    @classmethod
    def respond(cls, request: Request, text: str) -> Answer:
        """Do not let the call run, and answer in the tool's place."""
        return cls(request.id, data={"response": text})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Answer:
        """Make an answer from what `to_dict` gave; unknown keys are passed over."""
        known = {a.name for a in attrs.fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in known})


def pending(
    prompt: str,
    *,
    kind: Literal["question", "approval", "authorization", "input"] | str = "question",
    url: str | None = None,
    data: Any = None,
    response_schema: dict[str, Any] | None = None,
    expires_at: float | None = None,
    id: str | None = None,  # noqa: A002 - the word of the reference
) -> ToolResult:
    """
    Return from a tool with this to suspend the call until somebody answers.

    Args:
        prompt: The question, for a person.
        kind: What is asked for.
        url: A page to open.
        data: More that an interface may need.
        response_schema: The JSON schema that the answer's data must fit.
        expires_at: Seconds since the epoch after which no answer counts.
        id: The request's id; made up by default.

    Raises:
        ConfigurationError: Something of it is not plain JSON, or of a wrong type; within a tool that is the
            call's error.

    >>> pending_of(pending("Delete it?", kind="approval")).kind
    'approval'
    """
    for name, value in (("prompt", prompt), ("kind", kind), ("url", url or ""), ("id", id or "")):
        if not isinstance(value, str):
            raise ConfigurationError(f"{name} of a request must be a text, not {value!r:.80}")
    if response_schema is not None and not isinstance(response_schema, dict):
        raise ConfigurationError(f"response_schema must be a dict, not {response_schema!r:.80}")
    if expires_at is not None and not _is_moment(expires_at):
        raise ConfigurationError(f"expires_at must be in seconds since the epoch, not {expires_at!r:.80}")
    chosen = {"id": id} if id else {}
    request = Request(
        kind=kind,
        prompt=prompt,
        url=url,
        data=_json(data),
        response_schema=response_schema,
        expires_at=expires_at,
        **chosen,
    )
    text = prompt + (f"\n{url}" if url else "")
    return ToolResult(text, True, {PENDING_KEY: request})


def _is_moment(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _json(data: Any) -> Any:
    """Return the data of a request as plain JSON, which is what can be stored and sent."""
    from toolnexus.tools.plain import plain_strict  # here, because importing shall be cheap

    try:
        return plain_strict(data)
    except TypeError as error:
        raise ConfigurationError(f"the data of a request must be plain JSON: {error}") from error


def pending_of(result: ToolResult) -> Request | None:
    """Return the request that a result suspends on, or None."""
    request = result.metadata.get(PENDING_KEY)
    return request if isinstance(request, Request) else None


def relay_tool(name: str, description: str, input_schema: dict[str, Any]) -> Tool:
    """
    Declare a tool whose calls the caller executes.

    A call suspends with a request of the kind "tool_call" whose data has ``id``, ``name`` and
    ``arguments``. The answer's data is the output: a text, or ``{"output": text, "is_error": bool}``.

    Args:
        name: The tool's name.
        description: What it does, for the model.
        input_schema: The schema of its arguments.

    >>> relay_tool("pay", "Pay a bill.", {"type": "object"}).source
    'relay'
    """

    def execute(args: dict[str, Any], ctx: Context) -> ToolResult:
        answer = ctx.answer
        if answer is None:
            data = {"id": ctx.call_id, "name": name, "arguments": args}
            return pending(f"relay tool call {name} to the caller for execution", kind="tool_call", data=data)
        if isinstance(answer.data, dict) and "output" in answer.data:
            return ToolResult(str(answer.data["output"]), bool(answer.data.get("is_error")))
        return ToolResult.ok("" if answer.data is None else str(answer.data))

    return Tool(name, description, input_schema, execute, source="relay")
