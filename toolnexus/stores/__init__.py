"""Where conversations are kept: in memory, in a file, in a database, or wherever you like."""

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
