"""What a run gives back: results, token counts and records of what was done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import attrs

from toolnexus.values import Value

if TYPE_CHECKING:
    from toolnexus.events import Event

__all__ = ["AttemptRecord", "FinishReason", "Message", "RunResult", "ToolCallRecord", "Usage"]

#: One message of the neutral transcript: an OpenAI-shaped dict of plain JSON values.
Message = dict[str, Any]

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "pause", "error", "unknown"]

Status = Literal["done", "pending", "incomplete"]


@attrs.frozen(eq=False, repr=False)
class Usage(Value):
    """
    Token counts.

    Args:
        prompt_tokens: All tokens of the prompt, those read from a cache included.
        completion_tokens: All tokens of the answer, reasoning included.
        total_tokens: Their sum, or what the provider says.
        cached_tokens: Of the prompt, those read from a cache.
        cache_write_tokens: Of the prompt, those written to a cache.
        reasoning_tokens: Of the answer, those spent on reasoning.

    >>> Usage(5, 2, 7) + Usage(1, 1, 2)
    Usage(prompt_tokens=6, completion_tokens=3, total_tokens=9)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def __repr__(self) -> str:
        fields = attrs.asdict(self)
        shown = {k: v for i, (k, v) in enumerate(fields.items()) if i < 3 or v}
        return f"Usage({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain JSON."""
        return attrs.asdict(self)


@attrs.frozen(eq=False, repr=False)
class ToolCallRecord(Value):
    """
    One tool call of a run, as it ended.

    Args:
        id: The call's id in the transcript.
        name: The tool's name.
        args: The arguments it was called with; None where they did not parse.
        output: What went back to the model.
        is_error: Whether the call failed.
        metadata: What the tool said beside its output.
    """

    id: str
    name: str
    args: dict[str, Any] | None
    output: str
    is_error: bool = False
    metadata: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class AttemptRecord(Value):
    """
    One try of a model call.

    Args:
        turn: The turn, from 1.
        attempt: The try within the turn, from 1.
        model: The model that was asked.
        error: What went wrong, or None for the try that succeeded.
        kind: The error's kind, or None.
        usage: The tokens that the provider reported for this try.
        duration: Seconds that it took.
        time_to_first_token: Seconds from its start to the first piece of an answer, or None.
    """

    turn: int
    attempt: int
    model: str
    error: str | None = None
    kind: str | None = None
    usage: Usage = Usage()
    duration: float = attrs.field(default=0.0, eq=False, repr=False)
    time_to_first_token: float | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunResult(Value):
    """
    What a run reached.

    Args:
        text: The text of the last answer.
        thinking: The reasoning of the last answer, never mixed into the text.
        messages: The whole transcript, neutral and JSON-serialisable.
        tool_calls: Every tool call in order.
        turns: How many model calls succeeded.
        usage: The tokens of the attempts that counted.
        model: The model that answered, as the provider names it.
        finish_reason: Why the last answer ended, normalised.
        raw_finish_reason: The same in the provider's own word.
        status: "done", "pending" (a tool waits for a person) or "incomplete" (a limit was hit).
        limit: The limit that ended the run: "max_turns", "length", or None.
        pending: The requests that wait for an answer.
        output: The answer as the type that was asked for with ``output=``, or None.
        output_json: The same as plain JSON.
        refusal: The model's refusal, where it gave one.
        id: The conversation's id.
        attempts: Every try of every model call.
        run_id: The id of this run.
        duration: Seconds from start to end.
        time_to_first_token: Seconds from start to the first piece of an answer: of one that was handed
            out or counts, not of a try that was made again unseen.
        events: What happened, if it was asked for with ``collect_events=True``, or None.
    """

    text: str = ""
    thinking: str = ""
    messages: list[Message] = attrs.field(factory=list)
    tool_calls: list[ToolCallRecord] = attrs.field(factory=list)
    turns: int = 0
    usage: Usage = Usage()
    model: str = ""
    finish_reason: FinishReason | None = None
    raw_finish_reason: str | None = None
    status: Status = "done"
    limit: str | None = None
    pending: list[Any] = attrs.field(factory=list)
    output: Any = None
    output_json: Any = attrs.field(default=None, repr=False)
    refusal: str | None = None
    id: str | None = None
    attempts: list[AttemptRecord] = attrs.field(factory=list)
    run_id: str = attrs.field(default="", eq=False)
    duration: float = attrs.field(default=0.0, eq=False, repr=False)
    time_to_first_token: float | None = attrs.field(default=None, eq=False, repr=False)
    events: list[Event] | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def tool_call_count(self) -> int:
        """How many tool calls the run made."""
        return len(self.tool_calls)

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        data = attrs.asdict(attrs.evolve(self, output=self.output_json, events=None))
        del data["output_json"], data["events"]
        data["pending"] = [p.to_dict() if hasattr(p, "to_dict") else p for p in self.pending]
        data["tool_call_count"] = self.tool_call_count
        return data

    def to_json(self) -> str:
        """Return the result as a JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_markdown_(self) -> str:
        """Show the result in a notebook: the text, then one line about the run."""
        tokens = f"{self.usage.prompt_tokens}+{self.usage.completion_tokens} tokens"
        parts = [self.model or "model", f"{self.turns} turn{'s' if self.turns != 1 else ''}", tokens]
        if self.tool_calls:
            parts.append("tools: " + ", ".join(f"`{c.name}`" for c in self.tool_calls))
        if self.status != "done":
            parts.append(f"**{self.status}**" + (f" ({self.limit})" if self.limit else ""))
        body = self.text or "*(no text)*"
        return f"{body}\n\n---\n<small>{' · '.join(parts)}</small>"
