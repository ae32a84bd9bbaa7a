"""Keeping a long conversation within a model's context: a hook that sends less than is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from toolnexus.errors import ConfigurationError
from toolnexus.merge import PROVIDER_KEY
from toolnexus.results import Message

__all__ = ["Compactor", "compactor", "estimate_tokens"]

#: Where, under our key of a message, it stands that all up to it was summarised, and how.
MARKER = "compacted"

_HEADING = "[Summary of earlier conversation]\n"

_INSTRUCTION = (
    "Summarise the conversation below for an assistant who goes on with it. Keep the task, decisions, "
    "facts, names, numbers, file paths and what is still to do. Leave out pleasantries. "
    "Answer with the summary only.\n\n"
)

Summarize = Callable[[list[Message]], str]


def estimate_tokens(messages: list[Message]) -> int:
    """
    Return a rough count of the tokens of messages: a quarter of the characters of their JSON.

    >>> estimate_tokens([{"role": "user", "content": "Hi"}])
    8
    """
    return sum(-(-len(json.dumps(m, ensure_ascii=False, separators=(",", ":"))) // 4) for m in messages)


def compactor(
    *,
    max_tokens: int,
    summarize: Any,
    keep_tail: int | None = None,
    count_tokens: Callable[[list[Message]], int] = estimate_tokens,
    prune_over: int = 2000,
) -> Compactor:
    """
    Make a hook that keeps what is sent below a size.

    Long results of old tool calls are cut first. If that is not enough, all but the task and the
    newest messages is summarised. Calls and their results are never parted. The stored history stays
    whole: a marker in it says what was summarised, and the summary is used again until it is too old.

    Args:
        max_tokens: The most tokens to send.
        summarize: A function that gets messages and returns their summary, or a `Client` to ask for it.
        keep_tail: The tokens of newest messages to keep as they are; half of ``max_tokens`` by default.
        count_tokens: Counts the tokens of messages.
        prune_over: The characters of an old tool result that are kept when results are cut.

    Raises:
        ConfigurationError: An argument has a wrong type or value.

    Example::

        client = Client(..., hooks=compactor(max_tokens=100_000, summarize=small_client))
    """
    tail = max_tokens // 2 if keep_tail is None else keep_tail
    if not isinstance(max_tokens, int) or max_tokens < 1 or not 0 < tail <= max_tokens:
        raise ConfigurationError("max_tokens must be a positive number, and keep_tail at most that")
    if not callable(summarize) and not callable(getattr(summarize, "run", None)):
        raise ConfigurationError("summarize must be a function of messages, or a Client")
    return Compactor(max_tokens, _summarizer(summarize), tail, count_tokens, prune_over)


def _summarizer(summarize: Any) -> Summarize:
    if callable(summarize):
        return summarize  # type: ignore[no-any-return]

    def ask(messages: list[Message]) -> str:
        plain = [{k: v for k, v in m.items() if k != PROVIDER_KEY} for m in messages]
        return str(summarize.run(_INSTRUCTION + json.dumps(plain, ensure_ascii=False)).text)

    return ask


class Compactor:
    """The hook that `compactor` makes."""

    def __init__(
        self,
        max_tokens: int,
        summarize: Summarize,
        keep_tail: int,
        count: Callable[[list[Message]], int],
        prune_over: int,
    ) -> None:
        self._max = max_tokens
        self._summarize = summarize
        self._tail = keep_tail
        self._count = count
        self._prune_over = prune_over

    def before_llm(self, view: dict[str, Any]) -> dict[str, Any] | None:
        """Send less where the transcript is too long."""
        messages: list[Message] = view["messages"]
        start, summary = _marked(messages)
        sent = _assembled(messages, start, summary)
        if self._count(sent) <= self._max:
            return {"messages": sent} if summary is not None else None
        pruned = self._pruned(sent)
        if self._count(pruned) <= self._max:
            return {"messages": pruned}
        split = self._split(messages, start)
        if split <= start:
            return {"messages": pruned}  # nothing is left that could be summarised
        old = messages[start:split] if summary is None else [_note(summary), *messages[start:split]]
        summary = self._summarize(old)
        if not isinstance(summary, str) or not summary.strip():
            raise ValueError("summarize gave no text")
        sent = self._pruned(_assembled(messages, split, summary))
        return {"messages": sent, "marker": {"at": split - 1, "key": MARKER, "value": {"summary": summary}}}

    def _split(self, messages: list[Message], start: int) -> int:
        """Return where the newest messages begin: the earliest place from which all of them fit."""
        safe = [i for i in range(start, len(messages)) if messages[i].get("role") in ("user", "assistant")]
        for position in safe:
            if self._count(messages[position:]) <= self._tail:
                return position
        return safe[-1] if safe else start

    def _pruned(self, messages: list[Message]) -> list[Message]:
        """Cut the long results of old tool calls; those of the last turn stay whole."""
        last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=len(messages))
        return [self._cut(m) if m.get("role") == "tool" and i < last else m for i, m in enumerate(messages)]

    def _cut(self, message: Message) -> Message:
        content = message.get("content")
        if isinstance(content, list):
            texts = [part.get("text", "") for part in content if part.get("type") == "text"]
            content = "\n".join([*texts, "[images and files of this old result were left out]"])
        if not isinstance(content, str) or len(content) <= self._prune_over:
            return {**message, "content": content}
        half = self._prune_over // 2
        left_out = len(content) - 2 * half
        return {
            **message,
            "content": f"{content[:half]}\n[{left_out} characters left out]\n{content[-half:]}",
        }


def _note(summary: str) -> Message:
    return {"role": "system", "content": _HEADING + summary}


def _marked(messages: list[Message]) -> tuple[int, str | None]:
    """Return where what was not summarised begins, and the summary of what was."""
    for position in range(len(messages) - 1, -1, -1):
        marker = (messages[position].get(PROVIDER_KEY) or {}).get(MARKER)
        if isinstance(marker, dict):
            return position + 1, str(marker.get("summary", ""))
    return 0, None


def _assembled(messages: list[Message], start: int, summary: str | None) -> list[Message]:
    """Return what is sent: system texts, the task, the summary, the newest prompt, and what came since."""
    if summary is None:
        return list(messages)
    old = messages[:start]
    system = [m for m in old if m.get("role") in ("system", "developer")]
    prompts = [m for m in old if m.get("role") == "user"]
    kept = prompts[:1] + (prompts[-1:] if len(prompts) > 1 else [])
    return [*system, _note(summary), *kept, *messages[start:]]
