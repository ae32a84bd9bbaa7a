"""
Mending a transcript on its way out: what is sent is balanced, whatever is stored.

Every call has exactly one result right behind it, nothing is empty, system texts come first.
The stored transcript stays as it is.
"""

from __future__ import annotations

from typing import Any

import attrs

from toolnexus.results import Message

__all__ = ["Prepared", "prepare"]

INTERRUPTED = "This call was interrupted and has no result."


@attrs.frozen(eq=False)
class Prepared:
    """
    A transcript that can be sent.

    Args:
        messages: The messages without the system texts.
        system: The system texts, joined, or None.
        repairs: What was mended, a line each.
    """

    messages: list[Message]
    system: str | None
    repairs: list[str]


def prepare(messages: list[Message], system_prompt: str | None) -> Prepared:
    """
    Return a transcript in a form that every provider takes.

    Args:
        messages: The transcript as it is stored.
        system_prompt: The client's own system text.

    >>> prepare([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}], "Be brief.").system
    'Be brief.\\n\\nBe kind.'
    """
    system = [system_prompt] if system_prompt else []
    repairs: list[str] = []
    results: dict[str, list[Message]] = {}
    rest: list[Message] = []
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer"):
            text = _plain(message.get("content"))
            if text and text not in system:
                system.append(text)
        elif role == "tool":
            results.setdefault(str(message.get("tool_call_id")), []).append(message)
        else:
            rest.append(message)
    out: list[Message] = []
    for message in rest:
        if message.get("tool_calls"):
            out.append(message)
            out += [_result(call, results, repairs) for call in message["tool_calls"]]
        elif _is_empty(message):
            repairs.append(f"an empty {message.get('role')} message was left out")
        else:
            out.append(message)
    for id_, orphans in results.items():
        repairs += [f"a result without its call was left out: {id_}" for _ in orphans]
    return Prepared(out, "\n\n".join(system) or None, repairs)


def _result(call: dict[str, Any], results: dict[str, list[Message]], repairs: list[str]) -> Message:
    """Take the call's result from wherever it stands."""
    found = results.get(call["id"])
    if found:
        message = found.pop(0)
        if not found:
            del results[call["id"]]
        return message
    repairs.append(f"a call without a result got one that says so: {call['id']}")
    return {"role": "tool", "tool_call_id": call["id"], "content": INTERRUPTED}


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _is_empty(message: Message) -> bool:
    content = message.get("content")
    if message.get("role") == "assistant" and message.get("toolnexus"):
        return content is None and not _has_blocks(message)
    return not (content.strip() if isinstance(content, str) else content)


def _has_blocks(message: Message) -> bool:
    blocks = message["toolnexus"].get("anthropic", {}).get("blocks", ())
    return any(block.get("type") not in ("text", "thinking", "redacted_thinking") for block in blocks)
