"""
Where conversations are kept: in memory, in a file, in a database, or wherever you like.

Each store is imported when it is asked for: a client needs none before its first conversation.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolnexus.stores.base import ConversationInfo, ConversationStore, VersionedStore
    from toolnexus.stores.memory import MemoryStore
    from toolnexus.stores.sql import SqlStore
    from toolnexus.stores.sqlite import SqliteStore

__all__ = [
    "ConversationInfo",
    "ConversationStore",
    "MemoryStore",
    "SqlStore",
    "SqliteStore",
    "VersionedStore",
]

_LATER = {
    "ConversationInfo": "base",
    "ConversationStore": "base",
    "MemoryStore": "memory",
    "SqlStore": "sql",
    "SqliteStore": "sqlite",
    "VersionedStore": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
