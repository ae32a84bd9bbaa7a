"""What a client does with the arguments of a call before its run begins."""

from __future__ import annotations

from typing import Any

from toolnexus.balance import balanced
from toolnexus.errors import ConfigurationError
from toolnexus.results import Message
from toolnexus.run import Run
from toolnexus.storage import Storage

__all__ = ["ask_for", "joined", "make_durable", "memory_store"]


def ask_for(run: Run, output: Any) -> None:
    if output is not None:
        from toolnexus.output import make_output

        run.ask_for(make_output(output))


def make_durable(run: Run, storage: Storage | None, durable: bool) -> None:
    if not durable:
        return
    if storage is None:
        raise ConfigurationError("a durable run needs the id of a conversation")
    from toolnexus.durable import Journal

    run.journal = Journal(storage.store, storage.id)


def joined(stored: list[Message], run: Run) -> list[Message]:
    """Put what a run brings behind what is stored, where every call then has a result."""
    return [*balanced(stored), *run.messages] if run.messages else stored


def memory_store() -> Any:
    from toolnexus.stores.memory import MemoryStore  # here, because importing shall be cheap

    return MemoryStore()
