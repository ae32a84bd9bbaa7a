"""A run on a stored conversation: loaded before, saved whole after, under a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from toolnexus.errors import ConfigurationError, StoreError, ToolnexusError
from toolnexus.prompt import check_history
from toolnexus.results import Message, RunResult
from toolnexus.wording import describe_error

T = TypeVar("T")

__all__ = ["Storage", "call_store", "check_store"]


def check_store(store: Any) -> Any:
    """
    Return the store, if it has the two methods that a store needs.

    Raises:
        ConfigurationError: It has not.
    """
    if not callable(getattr(store, "get", None)) or not callable(getattr(store, "save", None)):
        raise ConfigurationError(f"store must have the methods get and save; {type(store).__name__} has not")
    return store


def call_store(what: str, function: Callable[[], T]) -> T:
    """
    Call a store, which may be the user's own.

    Args:
        what: What it shall do, for an error.
        function: The call.

    Raises:
        StoreError: It raised something that is no error of ours.
    """
    try:
        return function()
    except ToolnexusError:
        raise
    except Exception as error:
        raise StoreError(f"cannot {what}: {describe_error(error)}") from error


class Storage:
    """
    One conversation in a store, for the time of one run.

    Args:
        store: Any store; one with versions notices a lost update.
        id: The conversation's id.
    """

    def __init__(self, store: Any, id: str) -> None:  # noqa: A002
        self.store = store
        self.id = id
        self._version: int | None = None
        self._versioned = callable(getattr(store, "load", None))

    def load(self) -> list[Message]:
        """
        Return the messages, none for a new conversation.

        Raises:
            StoreError: They cannot be read.
        """
        if self._versioned:
            messages, self._version = call_store(
                f"read conversation {self.id!r}", lambda: self.store.load(self.id)
            )
        else:
            messages = call_store(f"read conversation {self.id!r}", lambda: self.store.get(self.id))
        try:
            return check_history(messages or [])
        except ConfigurationError as error:
            raise StoreError(f"conversation {self.id!r} is damaged: {error}") from error

    @property
    def version(self) -> int | None:
        """The version that was loaded, for a store that has versions."""
        return self._version

    def save(self, result: RunResult, *, clear_journal: bool = False) -> None:
        """
        Save the messages of a result.

        Args:
            result: The result.
            clear_journal: Whether to drop the journal of a durable run in the same step.

        Raises:
            StoreError: They cannot be written; ``partial`` holds the result, so that nothing is lost.
        """
        try:
            more: dict[str, Any] = {}
            if self._versioned:
                if clear_journal:
                    more["clear_journal"] = True
                more["expected"] = self._version
            call_store(
                f"save conversation {self.id!r}", lambda: self.store.save(self.id, result.messages, **more)
            )
        except ToolnexusError as error:
            error.partial = result
            raise
