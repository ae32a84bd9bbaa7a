"""
Putting tool calls together from fragments, and a reply from everything that came.

Providers contradict each other: one gives two calls the same index, another changes the id
inside one call. The rules here are those of the design, section 7.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toolnexus.chunks import (
    Chunk,
    Reply,
    ToolRequest,
    decode_arguments,
    finish_reason,
    mend_deep,
    mend_surrogates,
    parse_arguments,
)
from toolnexus.chunks import (
    call_id as new_id,
)
from toolnexus.results import FinishReason, Message, Usage

__all__ = ["PROVIDER_KEY", "ReplyBuilder", "ToolCallMerger"]

#: The key of ours in an assistant message under which a provider's own data rides.
PROVIDER_KEY = "toolnexus"


_TOKEN = r'(?s)\\.|["{}\[\]]'


class _Brackets:
    """Follows the brackets of a JSON text that comes in pieces; each piece is looked at once."""

    __slots__ = ("_carry", "_depth", "_in_string", "seen")

    def __init__(self) -> None:
        self.seen = False
        self._depth = 0
        self._in_string = False
        self._carry = ""

    def take(self, piece: str) -> None:
        """Take in the next piece; an escape may be split over two."""
        piece = self._carry + piece
        self._carry = "\\" if (len(piece) - len(piece.rstrip("\\"))) % 2 else ""
        for token in re.findall(_TOKEN, piece):
            if token == '"':
                self._in_string = not self._in_string
            elif not self._in_string and len(token) == 1:
                self.seen = True
                self._depth += 1 if token in "{[" else -1

    @property
    def closed(self) -> bool:
        """Whether there were brackets, and all of them are closed."""
        return self.seen and self._depth == 0 and not self._in_string


class _Call:
    """One call that is being put together."""

    __slots__ = ("_brackets", "_broken", "_looked", "id", "index", "name", "order", "parts")

    def __init__(self, order: int, index: int | None) -> None:
        self.order = order
        self.index = index
        self.id: str | None = None
        self.name: str | None = None
        self.parts: list[str] = []
        self._brackets = _Brackets()
        self._looked = 0
        self._broken = False

    def add(self, id: str | None, name: str | None, arguments: str) -> None:  # noqa: A002
        self.id = self.id or id
        self.name = self.name or name
        if arguments:
            self.parts.append(arguments)

    def is_whole(self) -> bool:
        """Tell whether the arguments so far are whole JSON; over all fragments the time is linear."""
        for part in self.parts[self._looked :]:
            self._brackets.take(part)
        self._looked = len(self.parts)
        if not self._brackets.seen:
            return len(self.parts) < 8 and "".join(self.parts).strip() == "null"
        if self._broken or not self._brackets.closed:
            return False
        try:
            decode_arguments("".join(self.parts))
        except (ValueError, RecursionError):
            self._broken = True
        return not self._broken


class ToolCallMerger:
    """
    Collects the fragments of the tool calls of one answer.

    >>> merger = ToolCallMerger()
    >>> merger.add(0, "a", "f", '{"x"')
    >>> merger.add(0, None, None, ":1}")
    >>> [(c.id, c.name, c.args) for c in merger.finish()]
    [('a', 'f', {'x': 1})]
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, index: int | None, id: str | None, name: str | None, arguments: str) -> None:  # noqa: A002
        """Take in one fragment; empty ids, names and arguments count as missing."""
        call_id = id or None
        call = self._current(index, call_id)
        if call is None or (name and self._starts_new(call, index, call_id, name)):
            call = _Call(len(self._calls), index)
            self._calls.append(call)
        call.add(call_id, name or None, arguments)
        if index is not None:
            self._by_index[index] = call
        if call.id is not None:
            self._by_id[call.id] = call

    def _current(self, index: int | None, id: str | None) -> _Call | None:  # noqa: A002
        if id is not None and id in self._by_id:
            return self._by_id[id]
        if index is not None:
            return self._by_index.get(index)
        return self._calls[-1] if self._calls else None

    def _starts_new(self, call: _Call, index: int | None, id: str | None, name: str) -> bool:  # noqa: A002
        """Tell whether a fragment with a name begins a call of its own beside the current one."""
        if index is not None and index not in self._by_index:
            return True
        if id is not None and call.id is not None:
            return call.id != id
        if call.name is None or (call.name == name and (id or call.id) is not None):
            return False
        return call.is_whole()

    def nameless(self) -> bool:
        """Tell whether there is a call that never got a name."""
        return any(call.name is None for call in self._calls)

    def finish(self) -> tuple[ToolRequest, ...]:
        """Return the calls, by index and then by arrival; a call that never got a name is left out."""
        last = -1
        keyed: list[tuple[int, int, _Call]] = []
        for call in self._calls:
            last = call.index if call.index is not None else last
            keyed.append((last, call.order, call))
        keyed.sort(key=lambda item: item[:2])
        taken: set[str] = set()
        return tuple(self._request(call, taken) for _, _, call in keyed if call.name is not None)

    def _request(self, call: _Call, taken: set[str]) -> ToolRequest:
        text = "".join(call.parts)
        args, error = parse_arguments(text)
        # Two calls of one answer may not share an id: their results could not be told apart.
        id_ = call.id if call.id is not None and call.id not in taken else new_id()
        taken.add(id_)
        return ToolRequest(id_, call.name or "", args, text, error)


class ReplyBuilder:
    """
    Gathers one answer from what a dialect reads, and hands each piece on as a chunk.

    The same builder serves a streamed and a whole answer, so that both give the same reply.
    """

    def __init__(self) -> None:
        self.tools = ToolCallMerger()
        self.usage: Usage | None = None
        self.raw_finish: str | None = None
        self.model = ""
        self.id = ""
        self.refusal: list[str] = []
        self.seen = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._held = {"text": "", "thinking": ""}

    def text(self, delta: str) -> list[Chunk]:
        """Take in a piece of text."""
        if self._held["text"] or not delta.isascii():
            delta = self._whole("text", delta)
        if not delta:
            return []
        self.seen = True
        self._text.append(delta)
        return [Chunk("text_delta", delta)]

    def thinking(self, delta: str) -> list[Chunk]:
        """Take in a piece of reasoning."""
        delta = self._whole("thinking", delta)
        if not delta:
            return []
        self._thinking.append(delta)
        return [Chunk("thinking_delta", delta)]

    def tool(self, index: int | None, id: str | None, name: str | None, arguments: str) -> list[Chunk]:  # noqa: A002
        """Take in a fragment of a tool call."""
        self.seen = True
        self.tools.add(index, id, name, arguments)
        return [Chunk("tool_call_delta", "", index, id, name, arguments)]

    def _whole(self, kind: str, delta: str) -> str:
        """Hold back the first half of a surrogate pair until its second half is there."""
        if delta:
            self.seen = True
        held = self._held[kind]
        if not held and (delta.isascii() or not _has_surrogates(delta)):
            return delta
        delta = held + delta
        self._held[kind] = ""
        if delta and "\ud800" <= delta[-1] <= "\udbff":
            self._held[kind] = delta[-1]
            delta = delta[:-1]
        return mend_surrogates(delta)

    def flush(self) -> list[Chunk]:
        """Hand out what was held back, at the end of the answer."""
        chunks: list[Chunk] = []
        for kind, take in (("text", self.text), ("thinking", self.thinking)):
            if self._held[kind]:
                self._held[kind] = ""
                chunks += take("\ufffd")
        return chunks

    def correct(self, text: str) -> None:
        """Put the text that the provider says in the end in the place of the pieces."""
        self._text = [mend_surrogates(text)] if text else []
        self._held["text"] = ""

    def joined_text(self) -> str:
        """Return the text so far."""
        return "".join(self._text)

    def joined_thinking(self) -> str:
        """Return the reasoning so far."""
        return "".join(self._thinking)

    def reply(self, extra: dict[str, Any] | None = None) -> Reply:
        """
        Return the finished answer.

        Args:
            extra: What the provider needs back verbatim, under its dialect's name.
        """
        calls = self.tools.finish()
        text = self.joined_text()
        refusal = mend_surrogates("".join(self.refusal))
        reason = _decide(finish_reason(self.raw_finish), bool(calls), bool(refusal))
        return Reply(
            text=text,
            thinking=self.joined_thinking(),
            message=_message(text, calls, refusal, mend_deep(extra)),
            calls=calls,
            finish_reason=reason,
            raw_finish_reason=self.raw_finish,
            usage=self.usage,
            model=self.model,
            id=self.id,
            refusal=refusal or None,
        )


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _decide(reason: FinishReason | None, has_calls: bool, refused: bool) -> FinishReason:
    """The presence of calls decides over what the provider calls it, except for a cut answer."""
    if has_calls and reason in (None, "stop", "unknown", "tool_calls"):
        return "tool_calls"
    if reason == "tool_calls" and not has_calls:
        return "stop"
    if refused and reason in (None, "stop"):
        return "content_filter"
    return reason or "stop"


def _message(
    text: str, calls: tuple[ToolRequest, ...], refusal: str, extra: dict[str, Any] | None
) -> Message:
    message: Message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    # Broken arguments would be refused by every server on the next turn.
                    "arguments": "{}" if call.args is None else json.dumps(call.args, ensure_ascii=False),
                },
            }
            for call in calls
        ]
    if refusal:
        message["refusal"] = refusal
    if extra:
        message[PROVIDER_KEY] = extra
    return message
