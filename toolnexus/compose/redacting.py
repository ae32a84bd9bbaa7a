"""Redacting a stream: protected values never get out of it, in however many pieces they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import attrs

from toolnexus.compose.derived import DerivedStream
from toolnexus.compose.redaction_buffer import Buffer, JsonBuffer, redact_string
from toolnexus.compose.redaction_rules import PII, Rules, compiled
from toolnexus.compose.redaction_values import Scrubber
from toolnexus.errors import ToolnexusError
from toolnexus.events import (
    AttemptFailed,
    Done,
    Error,
    Event,
    Heartbeat,
    Lifecycle,
    Message,
    Pending,
    Text,
    Thinking,
    ToolCall,
    ToolCallDelta,
    ToolFinished,
    ToolOutput,
    UsageReport,
)
from toolnexus.results import RunResult

__all__ = ["PII", "RedactedStream", "redact", "redact_text"]

#: What is held back of a reasoning that ends in this is too likely a part of a value to be let go early.
_TELLING = re.compile(r"@|://|(?:[0-9].?){6}")

#: With these a message of the model is over.
_ENDS = (ToolCall, ToolFinished, Pending, UsageReport, Message)

_Key = tuple[Any, ...]


def redact(
    events: Iterable[Event],
    *rules: str | PII,
    strategy: str = "redact",
    replacement: str | None = None,
    key: str | None = None,
) -> RedactedStream:
    """
    Keep protected values out of a stream.

    What is not protected passes unchanged, and as soon as it is clear that it is not the beginning of a
    protected value. Texts, reasoning, calls, progress, results, payloads, states, requests, errors and the
    final result are all covered.

    Args:
        events: A stream, or another iterable of events.
        rules: What is protected: kinds such as "email", or `PII` objects. By default "email", "card", "ip",
            "mac" and "url".
        strategy: What stands in the place of a value: "redact" (``[REDACTED_EMAIL]``), "mask"
            (``ada@****.com``) or "hash" (``<email_hash:1f5f0c2b>``, the same for the same value); or "block",
            which ends the stream with a `PIIDetectedError`.
        replacement: What stands there with "redact", instead.
        key: A secret for "hash". Without one, whoever guesses a value can check the guess.

    Returns:
        A stream; it has all methods of the one that it was made from, and closing it closes that.

    Raises:
        ConfigurationError: There is no such kind or strategy.
        MissingExtraError: A rule needs a package that is missing.

    >>> from toolnexus import Text
    >>> [event.delta for event in redact([Text("Ask ada@exam"), Text("ple.com now")], "email")]
    ['Ask ', '[REDACTED_EMAIL] ', 'now']
    """
    return RedactedStream(events, compiled(rules, strategy, replacement, key))


def redact_text(
    text: str,
    *rules: str | PII,
    strategy: str = "redact",
    replacement: str | None = None,
    key: str | None = None,
) -> str:
    """
    Replace the protected values in a text; the arguments are those of `redact`.

    Raises:
        PIIDetectedError: There is a value, and the strategy is "block".

    >>> redact_text("Ask ada@example.com now", "email", strategy="mask")
    'Ask ada@****.com now'
    """
    return redact_string(text, compiled(rules, strategy, replacement, key))


class _Piecewise:
    """A text that comes in events, each a piece."""

    __slots__ = ("buffer", "key", "last", "taken")

    def __init__(self, key: _Key, buffer: Buffer | JsonBuffer, last: Event) -> None:
        self.key = key
        self.buffer = buffer
        self.last = last
        self.taken = 0  # how many characters have gone out


class RedactedStream(DerivedStream):
    """A stream without protected values. Made by `redact`."""

    def __init__(self, source: Iterable[Event], rules: Rules) -> None:
        super().__init__(source)
        self._rules = rules
        self._scrubber = Scrubber(rules)
        self._pieces: dict[_Key, _Piecewise] = {}
        # Most events are pieces of the same text as the one before.
        self._origin: Any = None
        self._kind: type[Event] | None = None
        self._current: _Piecewise | None = None

    def _take(self, event: Event) -> None:
        try:
            kind = type(event)
            if kind is Text or kind is Thinking:
                self._take_delta(event)  # type: ignore[arg-type]
            else:
                self._current = None
                self._HANDLERS.get(kind, RedactedStream._take_other)(self, event)
        except ToolnexusError as error:
            self._stop(error)
        except Exception as error:  # noqa: BLE001 - what cannot be redacted must not get out
            self._stop(ToolnexusError(f"could not redact a {event.type} event: {type(error).__name__}"))

    def _ended(self) -> None:
        try:
            self._flush(lambda key: True)
        except ToolnexusError as error:
            self._stop(error)

    def _abandoned(self) -> None:
        self._pieces.clear()
        self._current = None

    def _stop(self, error: ToolnexusError) -> None:
        """End the stream with an error of our own; what is held back is dropped, and the run cancelled."""
        self._over = True
        self._pieces.clear()
        sent = "".join(event.delta for event in self._ready if isinstance(event, Text))
        error.partial = RunResult(status="incomplete", text=self.text + sent, run_id=self.run_id)
        self._ready.append(self._speaking(Error(error)))
        self._close_source()

    # -- pieces ------------------------------------------------------------------------------

    def _take_delta(self, event: Text | Thinking) -> None:
        origin = event.origin
        if origin is self._origin and type(event) is self._kind and self._current is not None:
            piece = self._current
        else:
            piece = self._current = self._piecewise(event, event.type)
            self._origin, self._kind = origin, type(event)
            if type(event) is Text:
                self._close_thinking(piece.key)
        piece.last = event
        delta = event.delta
        out = piece.buffer.feed(delta)
        if not out:
            return
        piece.taken += len(out)
        if out == delta:
            self._ready.append(event)
        else:
            # Made anew rather than evolved, which costs several times as much.
            self._ready.append(type(event)(out, origin=origin, seq=event.seq, timestamp=event.timestamp))

    def _piecewise(self, event: Event, *what: Any) -> _Piecewise:
        """Return the text that an event is a piece of."""
        origin = event.origin
        key = (origin.run_id, origin.namespace, origin.message_id, *what)
        piece = self._pieces.get(key)
        if piece is None:
            json_text = isinstance(event, ToolCallDelta)
            buffer = JsonBuffer(self._rules) if json_text else Buffer(self._rules)
            piece = self._pieces[key] = _Piecewise(key, buffer, event)
        return piece

    def _close_thinking(self, key: _Key) -> None:
        """
        Let go of the last word of the reasoning where the answer begins, or it would come after the answer.

        Should the reasoning go on after all, the rest of a value is still seen for what it is.
        """
        piece = self._pieces.get((*key[:3], "thinking"))
        buffer = piece.buffer if piece is not None else None
        if piece is not None and isinstance(buffer, Buffer) and not _TELLING.search(buffer.held):
            self._send(piece, buffer.flush(goes_on=True))

    def _send(self, piece: _Piecewise, text: str) -> None:
        if not text:
            return
        piece.taken += len(text)
        name = "arguments" if isinstance(piece.last, ToolCallDelta) else "delta"
        changes: dict[str, Any] = {name: text}
        self._ready.append(attrs.evolve(piece.last, **changes))

    def _flush(self, choose: Callable[[_Key], bool]) -> None:
        """Hand out what is held back of texts that are over."""
        for key in [key for key in self._pieces if choose(key)]:
            piece = self._pieces.pop(key)
            self._send(piece, piece.buffer.flush())

    def _flush_messages(self, event: Event) -> None:
        origin = event.origin
        where = (origin.run_id, origin.namespace)
        self._flush(lambda key: key[:2] == where and key[3] != "tool_output")

    def _take_call_delta(self, event: ToolCallDelta) -> None:
        which = event.index if event.index is not None else event.id
        piece = self._piecewise(event, event.type, which)
        piece.last = attrs.evolve(event, id=None, name=None, arguments="")
        out = piece.buffer.feed(event.arguments)
        if out or event.id or event.name:
            self._ready.append(event if out == event.arguments else attrs.evolve(event, arguments=out))

    def _take_output(self, event: ToolOutput) -> None:
        piece = self._piecewise(event, event.type, event.id)
        piece.last = event
        self._send(piece, piece.buffer.feed(event.delta))

    # -- whole events ------------------------------------------------------------------------

    def _take_other(self, event: Event) -> None:
        if not isinstance(event, Event):
            self._ready.append(self._scrubber.value(event))
            return
        if isinstance(event, _ENDS):
            self._flush_messages(event)
        if isinstance(event, ToolFinished):
            origin = event.origin
            inside = (
                *origin.namespace,
                f"{event.name}:{event.id}",
            )  # an agent that the tool ran is over, too
            self._flush(
                lambda key: (
                    (*key[:2], *key[3:]) == (origin.run_id, origin.namespace, "tool_output", event.id)
                    or (key[0] == origin.run_id and key[1][: len(inside)] == inside)
                )
            )
        self._ready.append(self._scrubber.event(event))

    def _take_lifecycle(self, event: Lifecycle) -> None:
        if event.status != "started":
            where = (event.run_id, event.namespace)
            self._flush(lambda key: key[:2] == where)
        self._ready.append(self._scrubber.event(event))

    def _take_as_it_is(self, event: Event) -> None:
        self._ready.append(event)

    def _take_usage(self, event: UsageReport) -> None:
        self._flush_messages(event)
        self._ready.append(event)

    def _take_pending(self, event: Pending) -> None:
        self._flush_messages(event)
        self._ready.append(attrs.evolve(event, request=self._scrubber.request(event.request)))

    def _take_failed(self, event: AttemptFailed) -> None:
        """Drop what is held back of a try that failed; its void text is what went out of it."""
        origin = event.origin
        text = ""
        inside = False
        for key in [k for k in self._pieces if k[0] == origin.run_id and event.concerns(k[1])]:
            if key[3] == "tool_output" or (origin.message_id and key[2] != origin.message_id):
                continue
            piece = self._pieces.pop(key)
            if key[3] == "text":
                # Whatever its pieces were, the same text has the same beginning.
                text += Buffer(self._rules).feed(event.text)[: piece.taken]
                inside = inside or key[1] != origin.namespace
        if inside or (event.text and not text and not origin.message_id):
            text = Buffer(self._rules).feed(event.text)  # of a node: all that its agents said is void
        error = self._scrubber.error(event.error)
        self._ready.append(attrs.evolve(event, error=error, text=text))

    def _take_done(self, event: Done) -> None:
        self._flush(lambda key: True)
        self._over = True
        self._ready.append(attrs.evolve(event, result=self._scrubber.result(event.result)))

    def _take_error(self, event: Error) -> None:
        error = self._scrubber.error(event.error)
        partial = event.partial
        self._flush(lambda key: True)
        self._over = True
        redacted = Error(
            error,
            None if partial is None else self._scrubber.result(partial),
            origin=event.origin,
            seq=event.seq,
            timestamp=event.timestamp,
        )
        self._ready.append(self._speaking(redacted))

    _HANDLERS: ClassVar[dict[type[Event], Callable[[RedactedStream, Any], None]]] = {
        ToolCallDelta: _take_call_delta,
        ToolOutput: _take_output,
        AttemptFailed: _take_failed,
        Pending: _take_pending,
        UsageReport: _take_usage,
        Lifecycle: _take_lifecycle,
        Heartbeat: _take_as_it_is,
        Done: _take_done,
        Error: _take_error,
    }
