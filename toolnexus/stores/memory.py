"""The store for a process that need not remember anything after its end."""

from __future__ import annotations

import time
from typing import Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.forking import ForkLock
from toolnexus.stores._codec import conflict
from toolnexus.stores.base import ConversationInfo, VersionedStore

__all__ = ["MemoryStore"]


@attrs.frozen
class _Conversation:
    """A conversation as it is kept: JSON, so that nobody holds a reference into it."""

    version: int
    bodies: list[str]
    created_at: float
    updated_at: float


class MemoryStore(VersionedStore):
    """
    Keeps conversations in memory, until the process ends.

    What goes in and what comes out are copies: changing a message afterwards changes nothing
    here. Pickling copies the contents.

    Args:
        max_conversations: Forget the conversation that was longest neither read nor saved when
            there would be more than this; None for no limit.

    Raises:
        ConfigurationError: `max_conversations` is not a whole number from 1.

    >>> store = MemoryStore()
    >>> store.save("a", [{"role": "user", "content": "hi"}])
    1
    >>> store.get("a")
    [{'role': 'user', 'content': 'hi'}]
    >>> store
    <MemoryStore: 1 conversation>
    """

    def __init__(self, *, max_conversations: int | None = None) -> None:
        if max_conversations is not None and not _is_count(max_conversations):
            raise ConfigurationError(
                f"max_conversations must be None or a whole number from 1, not {max_conversations!r}"
            )
        self.max_conversations = max_conversations
        # Guards everything below; held for a few steps only, never while JSON is read or written.
        self._lock = ForkLock()
        # In the order of use, the longest unused first.
        self._conversations: dict[str, _Conversation] = {}
        self._states: dict[str, tuple[int, str]] = {}
        self._journals: dict[str, list[str]] = {}
        # The highest version of anything that is no longer here: what is made anew begins above it.
        self._floor = 0

    def __repr__(self) -> str:
        count = len(self._conversations)
        return f"<MemoryStore: {count} conversation{'' if count == 1 else 's'}>"

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {
                "max_conversations": self.max_conversations,
                "_conversations": dict(self._conversations),
                "_states": dict(self._states),
                "_journals": {name: list(entries) for name, entries in self._journals.items()},
                "_floor": self._floor,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ForkLock()

    def _read(self, name: str) -> tuple[list[str] | None, int]:
        with self._lock:
            kept = self._conversations.get(name)
            if kept is None:
                return None, 0
            self._conversations[name] = self._conversations.pop(name)
        return kept.bodies, kept.version

    def _write(self, name: str, bodies: list[str], expected: int | None, clear_journal: bool) -> int:
        now = time.time()
        with self._lock:
            old = self._conversations.get(name)
            version = self._next(f"conversation {name!r}", old.version if old else 0, expected)
            self._conversations.pop(name, None)
            self._conversations[name] = _Conversation(version, bodies, old.created_at if old else now, now)
            if clear_journal:
                self._journals.pop(name, None)
            self._forget_unused()
        return version

    def _next(self, what: str, current: int, expected: int | None) -> int:
        """Return the version that follows the current one, if that is the expected one."""
        if expected is not None and expected != current:
            raise conflict(what, current, expected)
        return (current or self._floor) + 1

    def _forget_unused(self) -> None:
        while self.max_conversations is not None and len(self._conversations) > self.max_conversations:
            self._drop(next(iter(self._conversations)))

    def _drop(self, name: str) -> bool:
        old = self._conversations.pop(name, None)
        self._journals.pop(name, None)
        if old is not None:
            self._floor = max(self._floor, old.version)
        return old is not None

    def _remove(self, name: str) -> bool:
        with self._lock:
            return self._drop(name)

    def _infos(self, prefix: str, limit: int | None) -> list[ConversationInfo]:
        with self._lock:
            kept = [(name, it) for name, it in self._conversations.items() if name.startswith(prefix)]
        kept.sort(key=lambda pair: (-pair[1].updated_at, pair[0]))
        return [
            ConversationInfo(
                id=name,
                version=it.version,
                created_at=it.created_at,
                updated_at=it.updated_at,
                message_count=len(it.bodies),
            )
            for name, it in kept[:limit]
        ]

    def _read_state(self, key: str) -> tuple[str | None, int]:
        with self._lock:
            version, body = self._states.get(key, (0, None))
        return body, version

    def _write_state(self, key: str, body: str, expected: int | None) -> int:
        with self._lock:
            current = self._states[key][0] if key in self._states else 0
            version = self._next(f"state {key!r}", current, expected)
            self._states[key] = (version, body)
        return version

    def _remove_state(self, key: str) -> bool:
        with self._lock:
            old = self._states.pop(key, None)
            if old is not None:
                self._floor = max(self._floor, old[0])
        return old is not None

    def _state_keys(self, prefix: str) -> list[str]:
        with self._lock:
            return [key for key in self._states if key.startswith(prefix)]

    def _add_entry(self, name: str, body: str) -> None:
        with self._lock:
            self._journals.setdefault(name, []).append(body)

    def _entries(self, name: str) -> list[str]:
        with self._lock:
            return list(self._journals.get(name, ()))

    def _remove_entries(self, name: str) -> None:
        with self._lock:
            self._journals.pop(name, None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
