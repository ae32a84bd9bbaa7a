"""What a store is: two methods for your own, and more for those that come with toolnexus."""

from __future__ import annotations

import abc
import builtins
import json
from typing import Any, Protocol, runtime_checkable

import attrs

from toolnexus.closing import Closing
from toolnexus.errors import StoreError
from toolnexus.results import Message
from toolnexus.stores._codec import (
    check_id,
    check_limit,
    check_prefix,
    check_version,
    decode,
    decode_messages,
    encode_dict,
    encode_messages,
)

__all__ = ["ConversationInfo", "ConversationStore", "VersionedStore"]

#: What an exported conversation says that it is.
EXPORT_FORMAT = "toolnexus.conversation"
EXPORT_VERSION = 1


@runtime_checkable
class ConversationStore(Protocol):
    """
    The least that a store must do. Any object with these two methods is one.

    Both are called in the thread of the run, may block, and may raise whatever they like: a
    `get` that raises fails the call before anything is sent, a `save` that raises ends the run
    with an error that carries the finished result.

    >>> class Files:
    ...     def __init__(self):
    ...         self.kept = {}
    ...
    ...     def get(self, id):
    ...         return self.kept.get(id)
    ...
    ...     def save(self, id, messages):
    ...         self.kept[id] = messages
    >>> isinstance(Files(), ConversationStore)
    True
    """

    def get(self, id: str) -> list[Message] | None:  # noqa: A002 - the word of the reference
        """Return the messages of a conversation, or None where there is none."""

    def save(self, id: str, messages: list[Message]) -> object:  # noqa: A002 - the word of the reference
        """Keep the messages in place of what was kept before; what it returns is not looked at."""


@attrs.frozen(kw_only=True)
class ConversationInfo:
    """
    What a list of conversations says about each.

    Args:
        id: Its id.
        version: Its version; it grows with every save.
        created_at: The moment of the first save, in seconds since the epoch.
        updated_at: The moment of the last save, in seconds since the epoch.
        message_count: How many messages it has.
    """

    id: str
    version: int
    created_at: float
    updated_at: float
    message_count: int


class VersionedStore(Closing, abc.ABC):
    """
    A store that notices when somebody else has saved in between.

    Every conversation has a version. It is 0 where there is none, and grows with every save; no
    version of an id ever comes twice, even when the conversation is deleted and made anew. Who
    saves with the version that was loaded overwrites nothing that was not seen.

    Beside conversations a store keeps two more kinds of plain JSON just as safely: states, one
    dict a key, and journals, a growing list of dicts an id.

    An id is any text of 1 to 512 characters, without NUL and lone surrogates; it is only ever
    data, never a path. All methods may be called from any thread.

    Methods raise `ConfigurationError` for an id or a version that cannot be one, and `StoreError`
    for everything that goes wrong in reading or writing. What is stored must be plain JSON: text,
    numbers, booleans, None, lists, and dicts with text as keys. Bytes, other objects, NaN and the
    infinities raise `StoreError` that names the place, before anything is written. Lone
    surrogates in text are stored as U+FFFD.

    >>> from toolnexus.stores import MemoryStore
    >>> store = MemoryStore()
    >>> store.save("trip", [{"role": "user", "content": "Where to?"}])
    1
    >>> messages, version = store.load("trip")
    >>> store.save("trip", messages + [{"role": "assistant", "content": "Rome."}], expected=version)
    2
    >>> store.save("trip", messages, expected=version)
    Traceback (most recent call last):
    toolnexus.errors.StoreConflictError: conversation 'trip' has version 2, not 1: somebody else saved it
    """

    # -- conversations -----------------------------------------------------------------------

    def get(self, id: str) -> builtins.list[Message] | None:  # noqa: A002
        """Return the messages of a conversation, or None where there is none."""
        return self.load(id)[0]

    def load(self, id: str) -> tuple[builtins.list[Message] | None, int]:  # noqa: A002
        """Return the messages and the version; None and 0 where there is no such conversation."""
        name = check_id(id)
        bodies, version = self._read(name)
        return (None if bodies is None else decode_messages(bodies, name)), version

    def save(
        self,
        id: str,  # noqa: A002
        messages: builtins.list[Message],
        *,
        expected: int | None = None,
        clear_journal: bool = False,
    ) -> int:
        """
        Keep the messages in place of those kept before: all of them, or on any failure none.

        Args:
            id: The conversation's id.
            messages: The whole conversation.
            expected: The version that `load` returned, 0 for a conversation that must be new,
                or None to overwrite whatever is there.
            clear_journal: Drop the journal of the same id in the same step.

        Returns:
            The new version.

        Raises:
            StoreConflictError: The conversation has another version than expected.
            StoreError: The messages are not plain JSON, or could not be written.
        """
        name, expected = check_id(id), check_version(expected)
        return self._write(name, encode_messages(messages), expected, clear_journal)

    def delete(self, id: str) -> bool:  # noqa: A002
        """Drop a conversation and its journal. Returns whether there was such a conversation."""
        return self._remove(check_id(id))

    def list(self, prefix: str = "", limit: int | None = None) -> builtins.list[ConversationInfo]:
        """
        Return what there is, the conversation saved last coming first.

        Args:
            prefix: Only conversations whose id begins so.
            limit: At most so many; None for all.
        """
        return self._infos(check_prefix(prefix), check_limit(limit))

    def fork(self, id: str, new_id: str) -> int:  # noqa: A002
        """
        Copy a conversation, so that both can go on separately. The journal is not copied.

        Returns:
            The version of the copy.

        Raises:
            StoreError: There is no such conversation.
            StoreConflictError: The new id is taken.
        """
        check_id(new_id, "new conversation id")
        messages = self.get(id)
        if messages is None:
            raise StoreError(f"there is no conversation {id!r}")
        return self.save(new_id, messages, expected=0)

    def export(self, id: str) -> str:  # noqa: A002
        """
        Return a conversation as JSON text, for `import_` of any store.

        Raises:
            StoreError: There is no such conversation.
        """
        messages = self.get(id)
        if messages is None:
            raise StoreError(f"there is no conversation {id!r}")
        return json.dumps(
            {"format": EXPORT_FORMAT, "format_version": EXPORT_VERSION, "id": id, "messages": messages},
            ensure_ascii=False,
        )

    def import_(self, text: str, id: str | None = None) -> str:  # noqa: A002
        """
        Keep a conversation that `export` gave.

        Args:
            text: The JSON text.
            id: The id to keep it under; its own by default.

        Returns:
            The id.

        Raises:
            StoreError: The text is no exported conversation.
            StoreConflictError: The id is taken.
        """
        data = _exported(text)
        wanted = check_id(data["id"] if id is None else id)
        self.save(wanted, data["messages"], expected=0)
        return wanted

    # -- states: one dict a key ----------------------------------------------------------------

    def get_state(self, key: str) -> dict[str, Any] | None:
        """Return the dict kept under a key, or None."""
        return self.load_state(key)[0]

    def load_state(self, key: str) -> tuple[dict[str, Any] | None, int]:
        """Return the dict kept under a key and its version; None and 0 where there is none."""
        key = check_id(key, "state key")
        body, version = self._read_state(key)
        return (None if body is None else decode(body, f"state {key!r}")), version

    def put_state(self, key: str, value: dict[str, Any], *, expected: int | None = None) -> int:
        """
        Keep a dict under a key.

        Args:
            key: A key of the caller's choice; the same texts are allowed as for ids.
            value: Plain JSON.
            expected: The version that `load_state` returned, 0 for a key that must be new, or
                None to overwrite whatever is there.

        Returns:
            The new version.

        Raises:
            StoreConflictError: The state has another version than expected.
            StoreError: The value is not a dict of plain JSON, or could not be written.
        """
        key, expected = check_id(key, "state key"), check_version(expected)
        return self._write_state(key, encode_dict(value, "the state"), expected)

    def delete_state(self, key: str) -> bool:
        """Drop a state. Returns whether there was one."""
        return self._remove_state(check_id(key, "state key"))

    def list_states(self, prefix: str = "") -> builtins.list[str]:
        """Return the keys that begin with a prefix, in the order of their characters."""
        return sorted(self._state_keys(check_prefix(prefix)))

    # -- journals: a growing list of dicts an id -----------------------------------------------

    def append_journal(self, id: str, entry: dict[str, Any]) -> None:  # noqa: A002
        """
        Add an entry to a journal; it is kept for good when this returns.

        Raises:
            StoreError: The entry is not a dict of plain JSON, or could not be written.
        """
        self._add_entry(check_id(id), encode_dict(entry, "the journal entry"))

    def read_journal(self, id: str) -> builtins.list[dict[str, Any]]:  # noqa: A002
        """Return the entries of a journal in the order they were added."""
        name = check_id(id)
        return [decode(body, f"a journal entry of {name!r}") for body in self._entries(name)]

    def clear_journal(self, id: str) -> None:  # noqa: A002
        """Drop all entries of a journal."""
        self._remove_entries(check_id(id))

    # -- holding on to it ------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what the store holds open. Closing twice does no harm."""

    # -- what a kind of store brings: ids are checked, and every body is a line of JSON ------------

    @abc.abstractmethod
    def _read(self, name: str) -> tuple[builtins.list[str] | None, int]:
        """Return a conversation's bodies and its version, or None and 0."""

    @abc.abstractmethod
    def _write(self, name: str, bodies: builtins.list[str], expected: int | None, clear_journal: bool) -> int:
        """Do what `save` promises."""

    @abc.abstractmethod
    def _remove(self, name: str) -> bool:
        """Do what `delete` promises."""

    @abc.abstractmethod
    def _infos(self, prefix: str, limit: int | None) -> builtins.list[ConversationInfo]:
        """Do what `list` promises."""

    @abc.abstractmethod
    def _read_state(self, key: str) -> tuple[str | None, int]:
        """Return a state's body and its version, or None and 0."""

    @abc.abstractmethod
    def _write_state(self, key: str, body: str, expected: int | None) -> int:
        """Do what `put_state` promises."""

    @abc.abstractmethod
    def _remove_state(self, key: str) -> bool:
        """Do what `delete_state` promises."""

    @abc.abstractmethod
    def _state_keys(self, prefix: str) -> builtins.list[str]:
        """Return the keys that begin with a prefix, in any order."""

    @abc.abstractmethod
    def _add_entry(self, name: str, body: str) -> None:
        """Do what `append_journal` promises."""

    @abc.abstractmethod
    def _entries(self, name: str) -> builtins.list[str]:
        """Return the bodies of a journal in order."""

    @abc.abstractmethod
    def _remove_entries(self, name: str) -> None:
        """Do what `clear_journal` promises."""


def _exported(text: str) -> dict[str, Any]:
    """Return what an exported conversation holds, checked."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"this is no exported conversation: {error}") from error
    if not isinstance(data, dict) or data.get("format") != EXPORT_FORMAT:
        raise StoreError(f"this is no exported conversation: its format is not {EXPORT_FORMAT!r}")
    if data.get("format_version") != EXPORT_VERSION:
        raise StoreError(
            f"the conversation was exported in format {data.get('format_version')!r}; "
            f"this toolnexus reads format {EXPORT_VERSION}"
        )
    encode_messages(data.get("messages"))
    return {"id": data.get("id"), "messages": data["messages"]}
