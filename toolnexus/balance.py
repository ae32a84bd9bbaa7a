"""Giving every call of a stored transcript its result, before something new comes behind it."""

from __future__ import annotations

from toolnexus.merge import PROVIDER_KEY
from toolnexus.prompt import WAITING_KEY
from toolnexus.results import Message
from toolnexus.wire.transcript import INTERRUPTED

__all__ = ["balanced"]


def balanced(messages: list[Message]) -> list[Message]:
    """
    Return a transcript in which every call has a result, for a new prompt that comes after it.

    A call that waited for a person, or that was cut short, gets a result that says so.

    >>> call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    >>> balanced([{"role": "assistant", "content": None, "tool_calls": [call]}])[-1]["content"]
    'This call was interrupted and has no result.'
    """
    have = {m.get("tool_call_id") for m in messages if m.get("role") == "tool"}
    out: list[Message] = []
    missing: list[Message] = []
    for message in messages:
        if missing and message.get("role") != "tool":
            out += missing
            missing = []
        own = message.get(PROVIDER_KEY) or {}
        prompts = {
            e["request"].get("call_id"): e["request"].get("prompt", "") for e in own.get(WAITING_KEY) or ()
        }
        if prompts:
            rest = {k: v for k, v in own.items() if k != WAITING_KEY}
            message = {k: v for k, v in message.items() if k != PROVIDER_KEY}
            message = {**message, PROVIDER_KEY: rest} if rest else message
        out.append(message)
        for call in message.get("tool_calls") or ():
            if call.get("id") not in have:
                said = prompts.get(call.get("id"))
                content = INTERRUPTED if said is None else f"unanswered: {said}"
                own_key = {PROVIDER_KEY: {"is_error": True}}
                missing.append(
                    {"role": "tool", "tool_call_id": call.get("id"), "content": content, **own_key}
                )
    return out + missing
