"""What an endpoint was found not to take, and how that is learned from its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from toolnexus.errors import APIStatusError, ToolnexusError
from toolnexus.merge import PROVIDER_KEY

if TYPE_CHECKING:
    from toolnexus.wire.base import ModelRequest

__all__ = ["Quirks", "learn"]


@attrs.define(eq=False, repr=False)
class Quirks:
    """
    What an endpoint was found not to take; learned from its refusals and kept for the client.

    Args:
        stream: Whether it streams.
        stream_options: Whether it takes ``stream_options``.
        short_ids: Whether call ids must be nine letters and digits.
        echo_reasoning: Whether it takes its reasoning back beside tool calls.
        echo_all: Whether it wants that of earlier runs, too.
        plain_schemas: Whether it refuses what only makes a schema stricter.
        alternate: Whether two messages of one role may not follow each other.
        encrypted_reasoning: Whether it can be asked for encrypted reasoning.
        dummy_signatures: Whether it wants a signature on calls of other models, too.
    """

    stream: bool = True
    stream_options: bool = True
    short_ids: bool = False
    echo_reasoning: bool = True
    echo_all: bool = False
    plain_schemas: bool = False
    alternate: bool = False
    encrypted_reasoning: bool = True
    dummy_signatures: bool = False


_ANY = ("openai", "anthropic", "responses", "gemini")

#: Statuses under which an endpoint refuses a part of a request.
_STATUSES = (400, 404, 405, 415, 422, 501)


@attrs.frozen(eq=False, repr=False)
class _Refusal:
    """A refusal that can be met: how it reads, what to change then, and which requests it can be about."""

    said: str
    field: str
    value: bool
    about: Callable[[ModelRequest], bool]
    dialects: tuple[str, ...] = ("openai",)


def _has_reasoning(request: ModelRequest) -> bool:
    return any(((m.get(PROVIDER_KEY) or {}).get("openai")) for m in request.messages)


def _has_items(request: ModelRequest) -> bool:
    return any(((m.get(PROVIDER_KEY) or {}).get("responses")) for m in request.messages)


def _has_calls(request: ModelRequest) -> bool:
    return any(m.get("tool_calls") for m in request.messages)


def _has_repeated_roles(request: ModelRequest) -> bool:
    roles = [m["role"] for m in request.messages]
    return any(a == b != "tool" for a, b in pairwise(roles))


_REFUSALS = (
    _Refusal(r"stream_options|include_usage", "stream_options", False, lambda r: r.stream),
    _Refusal(
        r"\bstream(ing)?\b.*(support|allow|disabl|verified|unavailable|must be false)"
        r"|(support|allow|disabl).*\bstream(ing)?\b|^stream ",
        "stream",
        False,
        lambda r: r.stream,
        _ANY,
    ),
    _Refusal(
        r"(?<!not )(missing|required|must be (present|passed|provided|included|sent)).*\breasoning"
        r"|\breasoning.*(?<!not )(missing|required|must be (present|passed|provided|included|sent))",
        "echo_all",
        True,
        _has_reasoning,
    ),
    _Refusal(r"reasoning_content|reasoning_details|\breasoning\b", "echo_reasoning", False, _has_reasoning),
    _Refusal(r"(tool.?call.?id|tool_calls\S*id|call id).*(9|nine|length|a-z)", "short_ids", True, _has_calls),
    _Refusal(
        r"additional_?properties|\bstrict\b|\$schema", "plain_schemas", True, lambda r: bool(r.tools), _ANY
    ),
    _Refusal(
        r"\balternat|consecutive.*(role|message|user)|(role|message|user).*consecutive",
        "alternate",
        True,
        _has_repeated_roles,
    ),
    _Refusal(
        r"encrypted.*(verif|decrypt|pars|invalid)|(reasoning|\bitem)\b.*(not found|without|required)",
        "echo_reasoning",
        False,
        _has_items,
        ("responses",),
    ),
    _Refusal(r"encrypted|\binclude\b", "encrypted_reasoning", False, lambda r: True, ("responses",)),
    _Refusal(r"thought_?\s?signature", "dummy_signatures", True, _has_calls, ("gemini",)),
)


def learn(quirks: Quirks, error: ToolnexusError, request: ModelRequest, dialect: str) -> str | None:
    """
    Note what an endpoint does not take, where it refused something that can be left out or put otherwise.

    Args:
        quirks: What is known so far; it is changed.
        error: What the endpoint said.
        request: What it was asked, with what was known then.
        dialect: In which dialect.

    Returns:
        What was learned, or None where the refusal is about something else.
    """
    if not isinstance(error, APIStatusError) or error.status not in _STATUSES:
        return None
    said = f"{error.param or ''} {error.code or ''} {error.message}".lower().lstrip()
    for refusal in _REFUSALS:
        if dialect not in refusal.dialects or getattr(request.quirks, refusal.field) == refusal.value:
            continue
        if not refusal.about(request):
            continue
        if re.search(refusal.said, said, re.DOTALL):
            setattr(quirks, refusal.field, refusal.value)
            return refusal.field
    return None
