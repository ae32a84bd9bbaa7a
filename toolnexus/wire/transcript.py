"""
Mending a transcript on its way out: what is sent is balanced, whatever is stored.

Every call has exactly one result right behind it, nothing is empty, system texts come first.
The stored transcript stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from toolnexus.results import Message
from toolnexus.values import Value

__all__ = ["Prepared", "merged", "prepare"]

_NAME = r"[a-zA-Z0-9_-]{1,64}"

INTERRUPTED = "This call was interrupted and has no result."


@attrs.frozen(eq=False, repr=False)
class Prepared(Value):
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

    >>> prepare(
    ...     [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}], "Be brief."
    ... ).system
    'Be brief.\\n\\nBe kind.'
    """
    system = [system_prompt] if system_prompt and system_prompt.strip() else []
    repairs: list[str] = []
    results = _Results(messages)
    out: list[Message] = []
    for position, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer"):
            text = _plain(message.get("content"))
            if text.strip() and text not in system:
                system.append(text)
        elif message.get("tool_calls"):
            out.append(_with_valid_names(message))
            out += [results.take(str(call["id"]), position, repairs) for call in message["tool_calls"]]
        elif role != "tool" and _is_empty(message):
            repairs.append(f"an empty {role} message was left out")
        elif role != "tool":
            out.append(message)
    repairs += [f"a result without its call was left out: {id_}" for id_ in results.left()]
    return Prepared(out, "\n\n".join(system) or None, repairs)


def _with_valid_names(message: Message) -> Message:
    """Return a message whose calls have names that can be sent; a model may have made one up that cannot."""
    if all(re.fullmatch(_NAME, call["function"]["name"]) for call in message["tool_calls"]):
        return message
    calls = [
        {**call, "function": {**call["function"], "name": _valid_name(call["function"]["name"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _valid_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


class _Results:
    """The results of a transcript by the id of their call; an id may serve more than one turn."""

    def __init__(self, messages: list[Message]) -> None:
        self._found: dict[str, list[tuple[int, Message]]] = {}
        self._calls: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            if message.get("role") == "tool":
                self._found.setdefault(str(message.get("tool_call_id")), []).append((position, message))
            for call in message.get("tool_calls") or ():
                self._calls.setdefault(str(call["id"]), []).append(position)

    def take(self, id: str, position: int, repairs: list[str]) -> Message:  # noqa: A002
        """Take the result of the call at a position from wherever it stands, or make one up."""
        calls, found = self._calls[id], self._found.get(id, [])
        following = min((p for p in calls if p > position), default=None)
        if len(calls) == 1:
            chosen = found[0] if found else None
        else:  # the results between this call and the next one of the same id are its own
            own = [
                item for item in found if item[0] > position and (following is None or item[0] < following)
            ]
            chosen = own[0] if own else None
        if chosen is not None:
            found.remove(chosen)
            return chosen[1]
        repairs.append(f"a call without a result got one that says so: {id}")
        return {"role": "tool", "tool_call_id": id, "content": INTERRUPTED}

    def left(self) -> list[str]:
        """Return the ids of the results that no call took, once for each."""
        return [id_ for id_, found in self._found.items() for _ in found]


def merged(messages: list[Message]) -> list[Message]:
    """
    Return the messages with those of one role that follow each other made one.

    >>> merged([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    [{'role': 'user', 'content': 'a\\n\\nb'}]
    """
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else {}
        if message["role"] not in ("user", "assistant") or last.get("role") != message["role"]:
            out.append(message)
            continue
        content = _joined(last.get("content"), message.get("content"))
        calls = [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        out[-1] = {**last, **message, "content": content, **({"tool_calls": calls} if calls else {})}
    return out


def _joined(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _is_empty(message: Message) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join("x" if part.get("type") != "text" else part.get("text") or "" for part in content)
    if (content or "").strip():
        return False
    return not message.get("refusal") and not _has_blocks(message)


#: Where each dialect keeps an answer as it came, and what in it does not count without a text or call.
_KEPT = {
    "anthropic": ("blocks", ("text", "thinking", "redacted_thinking")),
    "responses": ("items", ("message", "reasoning")),
}


def _has_blocks(message: Message) -> bool:
    """Tell whether a message of the model has something to send back beside its text."""
    own = message.get("toolnexus") or {}
    for dialect, (key, light) in _KEPT.items():
        if any(block.get("type") not in light for block in (own.get(dialect) or {}).get(key, ())):
            return True
    parts = (own.get("gemini") or {}).get("parts", ())
    return any(set(part) - {"text", "thought", "thoughtSignature"} for part in parts)
