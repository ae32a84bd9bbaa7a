"""Redacting what is not a text in pieces: payloads, messages, results, errors, requests."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from toolnexus.compose.redaction_buffer import redact_string
from toolnexus.compose.redaction_rules import Rules
from toolnexus.errors import APIError, ToolnexusError
from toolnexus.events import Event
from toolnexus.results import RunResult, ToolCallRecord, Usage
from toolnexus.suspension import Request

__all__ = ["Scrubber"]

#: Fields of events that programs go by, and that no model, tool or person writes.
_PLAIN = {"origin", "seq", "timestamp", "id", "index", "kind", "task_id", "status", "trigger_call_id"}

#: Fields of results that no protected value gets into, or that are redacted in a way of their own.
_KEPT = {"messages", "tool_calls", "pending", "id", "run_id", "model", "events"}

#: The roles of messages that the caller wrote.
_CALLERS = ("user", "system", "developer")

#: The content of a file or an image: changing it would only break it.
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,[A-Za-z0-9+/=\s_-]*")

#: A number below this is none of the values that are looked for.
_BIG = 10**6

#: How many characters a text has at the least whose redacted form is remembered, and how many of those are.
_LONG = 100
_MEMORY = 64

E = TypeVar("E", bound=Event)
T = TypeVar("T")


class Scrubber:
    """
    Replaces the protected values in what it is given; the original is never changed.

    Args:
        rules: What is protected.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: dict[str, str] = {}
        self._types: dict[type, Callable[[Any], Any]] = {
            str: self.text,
            bool: _same,
            type(None): _same,
            Usage: _same,
            int: self._number,
            float: self._number,
            dict: self._mapping,
            list: self._items,
            tuple: self._items,
            set: self._items,
            frozenset: self._items,
        }

    def text(self, text: str) -> str:
        """Redact a text. In one that is JSON, escapes count as what they stand for, and it stays JSON."""
        if len(text) < _LONG:
            return self._text(text)
        # An answer is in the result, in the transcript, and in each state after it.
        known = self._known.get(text)
        if known is None:
            known = self._text(text)
            if len(self._known) >= _MEMORY:
                self._known.clear()
            self._known[text] = known
        return known

    def _text(self, text: str) -> str:
        if text.startswith("data:") and _DATA_URL.fullmatch(text):
            return text
        first = text.lstrip()[:1]
        if first not in ("{", "[", '"') or not first:
            return redact_string(text, self.rules)
        redacted = redact_string(text, self.rules, json_text="\\" in text)
        if redacted == text or _parsed(redacted) is not None:
            return redacted
        original = _parsed(text)
        # A number was replaced, and what stands for it needs quotes.
        return redacted if original is None else json.dumps(self.value(original), ensure_ascii=False)

    def value(self, value: T) -> T:
        """Redact the texts, and the large numbers, in a value of any shape."""
        handle = self._types.get(type(value), self._object)
        changed: T = handle(value)
        return changed

    def _number(self, value: Any) -> Any:
        if -_BIG < value < _BIG:
            return value
        text = str(value)
        redacted = redact_string(text, self.rules)
        return value if redacted == text else redacted

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        if self.rules.lenient is not None and value.get("role") in _CALLERS and "content" in value:
            # What the caller put in is not blocked, but redacted: it is what comes out that is to be stopped.
            return Scrubber(self.rules.lenient).value(value)
        changed: dict[Any, Any] = {}
        same = True
        for key, item in value.items():
            new_key, new_item = self.value(key), self.value(item)
            same = same and new_key is key and new_item is item
            number = 1
            while new_key in changed:  # two values with the same thing in their place
                number += 1
                new_key = f"{self.value(key)} ({number})"
            changed[new_key] = new_item
        return value if same else changed

    def _items(self, value: Any) -> Any:
        changed = [self.value(item) for item in value]
        if all(new is old for new, old in zip(changed, value, strict=True)):
            return value
        return value._make(changed) if hasattr(value, "_make") else type(value)(changed)

    def _object(self, value: Any) -> Any:
        """Redact a subclass of one of the known types, or the fields of an object that has some."""
        if isinstance(value, ToolnexusError):
            return self.error(value)
        if isinstance(value, type):
            return value
        if attrs.has(type(value)):
            names = [(f.name, f.alias) for f in attrs.fields(type(value)) if f.init]
            return self._rebuilt(value, names, attrs.evolve)
        if dataclasses.is_dataclass(value):
            names = [(f.name, f.name) for f in dataclasses.fields(value) if f.init]
            return self._rebuilt(value, names, dataclasses.replace)
        if hasattr(value, "model_copy") and hasattr(type(value), "model_fields"):  # pydantic
            names = [(name, name) for name in type(value).model_fields]
            return self._rebuilt(value, names, lambda old, **new: old.model_copy(update=new))
        if isinstance(value, Exception):
            return self._exception(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        for kind in (str, int, float, list, tuple, set, frozenset):
            if isinstance(value, kind):
                return self._types[kind](value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value)
        return self._opaque(value)

    def _bytes(self, value: Any) -> Any:
        """Redact bytes that are text; any others come back as they are."""
        text = bytes(value).decode("utf-8", "surrogateescape")
        redacted = redact_string(text, self.rules)
        if redacted == text:
            return value
        data = redacted.encode("utf-8", "surrogateescape")
        return bytearray(data) if isinstance(value, bytearray) else data

    def _opaque(self, value: Any) -> Any:
        """Return an object as it is, unless its text, which is what an output makes of it, holds a value."""
        text = str(value)
        redacted = redact_string(text, self.rules)
        return value if redacted == text else redacted

    def _exception(self, value: Exception) -> Exception:
        args = self.value(value.args)
        if args is value.args:
            return value
        changed = Exception(*args)
        changed.__suppress_context__ = True
        return changed

    def _rebuilt(self, value: Any, names: list[tuple[str, str]], evolve: Callable[..., Any]) -> Any:
        changes = {}
        for name, argument in names:
            old = getattr(value, name)
            new = self.value(old)
            if new is not old:
                changes[argument] = new
        return evolve(value, **changes) if changes else value

    # -- what toolnexus itself makes ---------------------------------------------------------

    def event(self, event: E) -> E:
        """Redact the fields of an event."""
        changes = {}
        for field in attrs.fields(type(event)):
            if field.name in _PLAIN:
                continue
            old = getattr(event, field.name)
            new = self.message(old) if field.name == "message" else self.value(old)
            if new is not old:
                changes[field.name] = new
        return attrs.evolve(event, **changes) if changes else event

    def message(self, message: Any) -> Any:
        """Redact a message; the ids in it stay."""
        changed = self.value(message)
        if not isinstance(message, dict) or changed is message:
            return changed
        kept = {key: message[key] for key in ("role", "tool_call_id", "name") if key in message}
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            kept["tool_calls"] = [self._call(call) for call in calls]
        return {**changed, **kept}

    def _call(self, call: Any) -> Any:
        changed = self.value(call)
        if isinstance(call, dict) and changed is not call:
            changed = {**changed, **{key: call[key] for key in ("id", "type") if key in call}}
        return changed

    def request(self, request: Request) -> Request:
        """Redact a request; its ids stay, so that it can be answered."""
        return attrs.evolve(
            request,
            prompt=self.text(request.prompt),
            url=self.value(request.url),
            data=self.value(request.data),
            response_schema=self.value(request.response_schema),
        )

    def result(self, result: RunResult) -> RunResult:
        """Redact a result, its transcript included; events that were collected are left behind."""
        changes: dict[str, Any] = {}
        for field in attrs.fields(type(result)):
            if field.name not in _KEPT:
                changes[field.alias] = self.value(getattr(result, field.name))
        return attrs.evolve(
            result,
            messages=[self.message(message) for message in result.messages],
            tool_calls=[self._record(record) for record in result.tool_calls],
            pending=[self.request(r) if isinstance(r, Request) else self.value(r) for r in result.pending],
            events=None,
            **changes,
        )

    def _record(self, record: ToolCallRecord) -> ToolCallRecord:
        return attrs.evolve(
            record,
            args=self.value(record.args),
            output=self.text(record.output),
            metadata=self.value(record.metadata),
        )

    def error(self, error: ToolnexusError) -> ToolnexusError:
        """Redact an error. What caused it is left behind, since its text is nobody's to foresee."""
        changed = copy.copy(error)
        changed.message = self.text(error.message)
        changed.args = (changed.message,)
        changed.__suppress_context__ = True
        changed.__cause__ = None
        changed.events = None
        if error.partial is not None:
            changed.partial = self.result(error.partial)
        if isinstance(changed, APIError):
            for name in ("type", "code", "param", "body"):
                setattr(changed, name, self.value(getattr(error, name)))
        return changed


def _same(value: Any) -> Any:
    return value


def _parsed(text: str) -> Any:
    """Return what JSON text stands for, wrapped so that ``null`` is something; None if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if value is not None else [None]
