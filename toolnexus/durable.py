"""
Runs that survive: what happens is written down before and after it happens.

A run that is called again after a crash is driven through the same loop once more. Answers of the
model and results of tools that stand in the journal are taken from there; the first thing that does
not stand there is done for real.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.chunks import Reply, ToolRequest
from toolnexus.errors import ConfigurationError, StoreConflictError
from toolnexus.execution import to_part
from toolnexus.results import Message, Usage
from toolnexus.storage import call_store
from toolnexus.suspension import pending
from toolnexus.tools.base import Tool, ToolResult
from toolnexus.tools.plain import plain

if TYPE_CHECKING:
    from toolnexus.suspension import Answer

__all__ = ["Journal"]


class Journal:
    """
    What a durable run has done so far.

    Args:
        store: A store that keeps journals.
        id: The conversation's id.

    Raises:
        ConfigurationError: The store keeps none.
    """

    def __init__(self, store: Any, id: str) -> None:  # noqa: A002
        if not callable(getattr(store, "append_journal", None)):
            raise ConfigurationError(
                f"a durable run needs a store that keeps a journal, such as SqliteStore; "
                f"{type(store).__name__} does not"
            )
        self._store = store
        self._id = id
        self._replies: list[dict[str, Any]] = []
        #: The arguments of the calls that had begun before the crash, and not ended.
        self._interrupted: dict[str, dict[str, Any] | None] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._at = 0

    def open(self, begins: list[Message], answers: list[Answer] | None, version: int | None) -> None:
        """
        Begin the journal of a run, or go on with the one that is there.

        Args:
            begins: The messages that the run brings.
            answers: What it goes on with, for a run that waited.
            version: The version of the conversation that it builds on.

        Raises:
            ConfigurationError: The journal is that of another call.
            StoreConflictError: The conversation has changed since.
        """
        given = {
            "begins": begins,
            "answers": None if answers is None else [answer.to_dict() for answer in answers],
        }
        entries = call_store(f"read the journal of {self._id!r}", lambda: self._store.read_journal(self._id))
        if not entries:
            self._append({"type": "start", "version": version, **given})
            return
        start = entries[0]
        if json.dumps([start.get("begins"), start.get("answers")]) != json.dumps(
            [given["begins"], given["answers"]]
        ):
            raise ConfigurationError(
                f"an interrupted durable run of {self._id!r} was called with something else; "
                "call it again as it was, or give it up with store.clear_journal(id)"
            )
        if start.get("version") != version:
            raise StoreConflictError(
                f"conversation {self._id!r} was changed since its durable run was interrupted"
            )
        for entry in entries[1:]:
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        if entry["type"] == "reply":
            self._replies.append(entry)
        elif entry["type"] == "call":
            self._interrupted[entry["key"]] = entry.get("args")
        elif entry["type"] == "asked":
            self._interrupted.pop(entry["key"], None)
        elif entry["type"] == "result":
            self._interrupted.pop(entry["key"], None)
            self._results[entry["key"]] = entry

    def _append(self, entry: dict[str, Any]) -> None:
        call_store(f"write the journal of {self._id!r}", lambda: self._store.append_journal(self._id, entry))

    # -- answers of the model ----------------------------------------------------------------

    def next_reply(self) -> Reply | None:
        """Return the answer that the model gave before the crash, or None where it must be asked."""
        if self._at >= len(self._replies):
            return None
        self._at += 1
        return _reply_from(self._replies[self._at - 1]["reply"])

    def keep_reply(self, reply: Reply) -> None:
        """Write down an answer of the model."""
        self._at += 1
        entry = {"type": "reply", "reply": _reply_to(reply)}
        self._replies.append(entry)
        self._append(entry)

    # -- calls of tools ----------------------------------------------------------------------

    def known(self, turn: int, request: ToolRequest) -> ToolResult | None:
        """Return the result that a call had before the crash, or None."""
        entry = self._results.get(_key(turn, request))
        return None if entry is None else _result_from(entry)

    def interrupted(self, turn: int, request: ToolRequest) -> ToolRequest | None:
        """
        Return a call that was running when the crash came, as it ran, or None; it is told once.

        A person, or a hook, may have given it other arguments than the model did.
        """
        key = _key(turn, request)
        if key not in self._interrupted:
            return None
        args = self._interrupted.pop(key)
        return request if args is None else attrs.evolve(request, args=args)

    def keep_start(self, turn: int, request: ToolRequest) -> None:
        """Write down that a call begins; only then may it."""
        key, args = _key(turn, request), plain(request.args)
        self._append({"type": "call", "key": key, "name": request.name, "args": args})

    def keep_asked(self, turn: int, request: ToolRequest) -> None:
        """Write down that a call has left to ask somebody: a crash from now on interrupts it no more."""
        self._append({"type": "asked", "key": _key(turn, request)})

    def keep_result(self, turn: int, request: ToolRequest, result: ToolResult) -> None:
        """Write down what a call gave."""
        entry = {"type": "result", "key": _key(turn, request), **_result_to(result)}
        self._results[entry["key"]] = entry
        self._append(entry)


def policy_for(tool: Tool) -> str:
    """Return what to do with a call that was running when the crash came: "retry", "fail" or "ask"."""
    return "retry" if tool.idempotent and tool.on_interrupted == "ask" else tool.on_interrupted


def interrupted_result(tool: Tool | None, request: ToolRequest) -> ToolResult | None:
    """Return the result of an interrupted call, or None where it may simply run again."""
    if tool is None:
        return None  # which is told as for any call of it
    policy = policy_for(tool)
    if policy == "retry":
        return None
    if policy == "fail":
        return ToolResult.error(
            f"{request.name}: the call was interrupted, and it is not known whether it took effect"
        )
    data = {"name": request.name, "args": request.args, "decisions": ["approve", "edit", "reject", "respond"]}
    result = pending(
        f"The call of {request.name} was interrupted, and it is not known whether it took effect. "
        "Run it again?",
        kind="interrupted",
        data=data,
    )
    result.metadata["approval"] = True
    return result


def _key(turn: int, request: ToolRequest) -> str:
    return f"{turn}:{request.id}"


def _reply_to(reply: Reply) -> dict[str, Any]:
    data = {field.name: getattr(reply, field.name) for field in attrs.fields(Reply)}
    data["calls"] = [
        {field.name: getattr(call, field.name) for field in attrs.fields(ToolRequest)} for call in reply.calls
    ]
    data["usage"] = reply.usage.to_dict() if reply.usage is not None else None
    return data


def _reply_from(data: dict[str, Any]) -> Reply:
    usage = data.get("usage")
    return Reply(
        **{
            **data,
            "calls": tuple(ToolRequest(**call) for call in data["calls"]),
            "usage": Usage(**usage) if usage is not None else None,
        }
    )


@attrs.frozen
class _KeptPart:
    """An image or file of a result, as it was written down."""

    part: dict[str, Any]

    def to_part(self) -> dict[str, Any]:
        return self.part


def _result_to(result: ToolResult) -> dict[str, Any]:
    return {
        "output": result.output,
        "is_error": result.is_error,
        "metadata": plain(result.metadata),  # it may hold anything
        "content": [to_part(part) for part in result.content],
    }


def _result_from(entry: dict[str, Any]) -> ToolResult:
    content: Any = tuple(_KeptPart(part) for part in entry.get("content") or ())
    return ToolResult(entry["output"], entry["is_error"], dict(entry.get("metadata") or {}), content)
