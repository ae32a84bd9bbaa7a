"""What every dialect offers, and what decoding has in common whatever the dialect."""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

import attrs

from toolnexus.chunks import Chunk, Reply, after_space, finish_reason
from toolnexus.errors import (
    EmptyResponseError,
    IdleTimeoutError,
    LimitError,
    MalformedEventError,
    RunCancelledError,
    RunTimeoutError,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.merge import ReplyBuilder
from toolnexus.results import Message
from toolnexus.tools.base import Tool
from toolnexus.wire.errors import page_title, provider_error, shows_error
from toolnexus.wire.quirks import Quirks

__all__ = ["BARE", "Decoder", "Dialect", "ModelRequest", "Quirks", "count"]

#: The transport's name for a body or line that had no event framing.
BARE = "toolnexus.bare"

#: Raw control characters inside a string are a sloppy server's, and no loss.
_JSON = json.JSONDecoder(strict=False)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelRequest:
    """
    One model call, in neutral terms.

    Args:
        model: The model to ask.
        messages: The transcript, balanced, without system messages.
        system: The system text, or None.
        tools: The tool declarations as the dialect rendered them.
        stream: Whether to ask for a stream.
        quirks: What the endpoint does not take.
        echo_reasoning: "auto", "always" or "never".
    """

    model: str
    messages: list[Message]
    system: str | None = None
    tools: list[dict[str, Any]] = attrs.field(factory=list)
    stream: bool = True
    quirks: Quirks = attrs.field(factory=Quirks)
    echo_reasoning: str = "auto"


class Dialect(Protocol):
    """A provider's wire format. It knows JSON, and nothing of HTTP, threads or tools' code."""

    name: str

    def endpoint(self, base_url: str, request: ModelRequest) -> str:
        """Return the URL of a model call."""

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers that the provider wants."""

    def tools(self, tools: list[Tool]) -> list[dict[str, Any]]:
        """Return the declarations of the tools; done once a run."""

    def choice(self, choice: Any) -> dict[str, Any]:
        """Return a body's keys that say which tool the model must call, from OpenAI's ``tool_choice``."""

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of a model call."""

    def native(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with the parameters that have OpenAI's names, such as ``max_tokens``, in its own."""

    def decoder(self, *, skip_bad_events: bool = False) -> Decoder:
        """Return what reads one answer."""


class Decoder:
    """
    Reads one answer, streamed or whole. A dialect says in `payload` what its JSON means.

    Args:
        skip_bad_events: Whether an event that is no JSON is passed over instead of an error.
    """

    def __init__(self, *, skip_bad_events: bool = False) -> None:
        self.builder = ReplyBuilder()
        #: Whether the provider's own end signal has come.
        self.ended = False
        self.skipped = 0
        self._skip = skip_bad_events
        self._head = ""
        self._late: ToolnexusError | None = None

    # -- what a dialect fills in -------------------------------------------------------------

    def payload(self, name: str, payload: dict[str, Any]) -> list[Chunk]:
        """Take in one decoded event and return what it brings."""
        raise NotImplementedError

    def whole(self, payload: dict[str, Any]) -> bool:
        """Tell whether a document is a whole answer."""
        raise NotImplementedError

    def extra(self) -> dict[str, Any] | None:
        """Return what the provider needs back verbatim."""
        return None

    # -- what is the same for all ------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the answer said why it ended, though more may follow."""
        return self.builder.raw_finish is not None

    def feed(self, name: str, data: str) -> list[Chunk]:
        """
        Take in one event.

        Args:
            name: The event's name.
            data: Its data.

        Raises:
            APIStatusError: It is the provider's report of an error.
            MalformedEventError: It is nothing that the dialect knows.
        """
        if not self._head:
            self._head = data[:200].strip()
        if data.startswith("{"):  # by far the most are one object and nothing else
            try:
                payload, position = _JSON.raw_decode(data)
            except (ValueError, RecursionError):
                position = 0
            if position == len(data):
                return self._one(name, payload)
        return self._odd(name, data)

    def _odd(self, name: str, data: str) -> list[Chunk]:
        """Take in an event that is not just one object."""
        if data.strip() == "[DONE]":
            self.ended = True
            return []
        if not data.strip():
            return self._bad(name, "the provider says no more") if name == "error" else []
        payloads, rest = _documents(data)
        if not payloads:
            return self._bad(name, data)
        chunks: list[Chunk] = []
        try:
            for payload in payloads:
                chunks += self._one(name, payload)
            if rest == "[DONE]":
                self.ended = True
            elif rest:
                self._bad(name, rest)
        except ToolnexusError as error:
            if not chunks:
                raise
            # What came before it in the same event counts: it is handed on first.
            self._late = error
            self.ended = True
        return chunks

    def _one(self, name: str, payload: Any) -> list[Chunk]:
        if shows_error(name, payload):
            raise provider_error(None, payload)
        if payload is None:
            return []
        if name == BARE and isinstance(payload, list) and all(isinstance(item, dict) for item in payload):
            return [chunk for item in payload for chunk in self._one(name, item)]
        if not isinstance(payload, dict):
            return self._bad(name, json.dumps(payload), "is no JSON object")
        try:
            chunks = self.payload(name, payload)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise MalformedEventError(
                f"an event has an unexpected shape: {type(error).__name__}: {error}"
            ) from error
        if name == BARE and self.whole(payload):
            self.ended = True
        return chunks

    def _bad(self, name: str, data: str, what: str = "is not valid JSON") -> list[Chunk]:
        text = data.strip()
        if name == "error":
            raise provider_error(None, text)
        if text.startswith("<"):
            raise MalformedEventError(f"the endpoint answered with a web page: {page_title(text)}")
        if self._skip:
            self.skipped += 1
            return []
        raise MalformedEventError(f"an event {what}: {text[:200]!r}", body=text[:2000])

    def finish(self, failure: ToolnexusError | None, *, received: int = 0, head: str = "") -> list[Chunk]:
        """
        Judge how the answer ended; call it once nothing more comes.

        Args:
            failure: Why the reading stopped before the body ended, or None.
            received: How many bytes came.
            head: The first of them, for a message.

        Returns:
            The last chunks.

        Raises:
            ToolnexusError: It did not end well.
        """
        if failure is not None and not self._may_pass(failure):
            raise failure
        if self._late is not None:
            raise self._late
        if not self.ended and not self.finished:
            raise self._unended(failure, received, head)
        raw = self.builder.raw_finish
        if finish_reason(raw) == "error":
            raise provider_error(
                None, {"error": {"message": f"the provider ended the answer with {raw!r}", "type": raw}}
            )
        if not self.builder.seen and not self.finished:
            raise EmptyResponseError("the answer ended before it began: it has no choice and no block")
        if self.builder.tools.nameless() and finish_reason(raw) not in ("length", "content_filter"):
            raise MalformedEventError("the answer has a tool call without a name")
        return self.builder.flush()

    def _may_pass(self, failure: ToolnexusError) -> bool:
        """After the answer's end a broken connection or silence is no loss; our own end is."""
        if isinstance(failure, (RunCancelledError, RunTimeoutError, LimitError)):
            return False
        return self.ended or (self.finished and isinstance(failure, (TruncatedStreamError, IdleTimeoutError)))

    def _unended(self, failure: ToolnexusError | None, received: int, head: str) -> ToolnexusError:
        if failure is not None:
            return failure
        if self.builder.seen:
            return TruncatedStreamError(
                "the answer broke off: the connection ended before the provider's end signal"
            )
        begin = (self._head or head.strip())[:120]
        if self._head:
            return TruncatedStreamError(
                f"the answer broke off before it said anything; it begins with {begin!r}"
            )
        if begin:
            return EmptyResponseError(f"the answer holds no event; it begins with {begin!r}")
        return EmptyResponseError(f"the answer is empty ({received} bytes)")

    def reply(self) -> Reply:
        """Return the finished answer."""
        return self.builder.reply(self.extra())


def _documents(data: str) -> tuple[list[Any], str]:
    """Decode the JSON documents that stand one behind the other; return them, and what follows them."""
    found: list[Any] = []
    position = 0
    while (position := after_space(data, position)) < len(data):
        try:
            value, position = _JSON.raw_decode(data, position)
        except (ValueError, RecursionError):
            return found, data[position:].strip()
        found.append(value)
    return found, ""


def count(data: Any, *path: str) -> int:
    """
    Return a count of tokens at a path of keys, 0 where there is none: a wrong count costs nobody the answer.

    >>> count({"a": {"b": 3}}, "a", "b"), count({"a": "x"}, "a"), count({"a": float("inf")}, "a")
    (3, 0, 0)
    >>> count({"a": -5}, "a")
    0
    """
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    if isinstance(data, float):
        return max(0, int(data)) if math.isfinite(data) else 0
    return max(0, data) if isinstance(data, int) and not isinstance(data, bool) else 0
