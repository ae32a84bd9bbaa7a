"""
Conversations in tables, for every SQL database alike.

One row a message, with a digest of the conversation up to it: a save compares digests, keeps the
rows that are the same, and writes only what is new. Every save is one transaction.
"""

from __future__ import annotations

import abc
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs

from toolnexus.errors import StoreError
from toolnexus.stores._codec import conflict, links
from toolnexus.stores.base import ConversationInfo, VersionedStore

__all__ = ["SCHEMA_VERSION", "Dialect", "RowStore", "Session", "has_tables", "make_tables"]

#: The version of the tables below. A database with a higher one was made by a newer toolnexus.
SCHEMA_VERSION = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS toolnexus_schema (version INTEGER NOT NULL, floor BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS toolnexus_conversations (
    number {counter}, id TEXT NOT NULL UNIQUE, version BIGINT NOT NULL, size BIGINT NOT NULL,
    chain TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL, updated_at DOUBLE PRECISION NOT NULL);
CREATE TABLE IF NOT EXISTS toolnexus_messages (
    conversation BIGINT NOT NULL, position BIGINT NOT NULL, chain TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (conversation, position));
CREATE TABLE IF NOT EXISTS toolnexus_states (
    id TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS toolnexus_journal (number {counter}, id TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS toolnexus_journal_id ON toolnexus_journal (id, number);
"""


@attrs.frozen
class Dialect:
    """
    Where databases differ.

    Args:
        counter: The type of a column that numbers its rows by itself.
        exists: A query that finds the table of the schema's version.
        for_update: What makes a query lock the rows it finds until the transaction ends.
        for_share: The same, for several at a time.
        solo: A statement that lets one connection at a time make the tables, or "".
    """

    counter: str
    exists: str
    for_update: str = ""
    for_share: str = ""
    solo: str = ""

    def locked(self, sql: str) -> str:
        """Return a query that keeps others from the rows it finds until the transaction ends."""
        return sql + self.for_update

    def shared(self, sql: str) -> str:
        """Return a query that keeps others from changing the rows it finds."""
        return sql + self.for_share


class Session(Protocol):
    """A connection in a transaction."""

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a query and return what it finds."""

    def run(self, sql: str, **values: Any) -> None:
        """Run a statement."""

    def run_many(self, sql: str, values: list[dict[str, Any]]) -> None:
        """Run a statement once for each set of values."""


def has_tables(session: Session, dialect: Dialect) -> bool:
    """
    Return whether the tables are there.

    Raises:
        StoreError: They are, and were made by a newer toolnexus.
    """
    if not session.rows(dialect.exists):
        return False
    found = session.rows("SELECT version FROM toolnexus_schema")
    if found and found[0][0] > SCHEMA_VERSION:
        raise StoreError(
            f"the database has the tables of a newer toolnexus (version {found[0][0]}; "
            f"this one knows up to {SCHEMA_VERSION}): update toolnexus"
        )
    return bool(found)


def make_tables(session: Session, dialect: Dialect) -> None:
    """Make the tables, in a transaction, unless somebody else just did."""
    if dialect.solo:
        session.run(dialect.solo)
    for statement in _TABLES.format(counter=dialect.counter).split(";")[:-1]:
        session.run(statement)
    if not has_tables(session, dialect):
        session.run(
            "INSERT INTO toolnexus_schema (version, floor) VALUES (:version, 0)", version=SCHEMA_VERSION
        )


@attrs.frozen
class _Row:
    """A conversation's row. Its version is 0 from when it is made until it is first saved."""

    number: int
    version: int
    size: int
    chain: str


class RowStore(VersionedStore):
    """A store in SQL tables. A database brings its dialect and two kinds of transaction."""

    dialect: Dialect

    @abc.abstractmethod
    def _reading(self) -> AbstractContextManager[Session]:
        """Return a session for one query."""

    @abc.abstractmethod
    def _writing(self) -> AbstractContextManager[Session]:
        """Return a session whose changes are kept together at the end, or on an exception not at all."""

    # -- conversations -----------------------------------------------------------------------

    def _read(self, name: str) -> tuple[list[str] | None, int]:
        with self._reading() as session:
            # One query, so that messages and version belong together in every isolation level.
            found = session.rows(
                "SELECT c.version, m.body FROM toolnexus_conversations c "
                "LEFT JOIN toolnexus_messages m ON m.conversation = c.number "
                "WHERE c.id = :id ORDER BY m.position",
                id=name,
            )
        return ([body for _, body in found if body is not None], found[0][0]) if found else (None, 0)

    def _write(self, name: str, bodies: list[str], expected: int | None, clear_journal: bool) -> int:
        chain = links(bodies)
        with self._writing() as session:
            row = self._find(session, name) or self._create(session, name)
            if expected is not None and expected != row.version:
                raise conflict(f"conversation {name!r}", row.version, expected)
            self._rewrite(session, row, bodies, chain)
            version = (row.version or self._floor(session)) + 1
            session.run(
                "UPDATE toolnexus_conversations SET version = :version, size = :size, chain = :chain, "
                "updated_at = :now WHERE number = :number",
                version=version,
                size=len(bodies),
                chain=chain[-1] if chain else "",
                now=time.time(),
                number=row.number,
            )
            if clear_journal:
                session.run("DELETE FROM toolnexus_journal WHERE id = :id", id=name)
        return version

    def _find(self, session: Session, name: str) -> _Row | None:
        """Return a conversation's row, locked until the transaction ends, or None."""
        sql = "SELECT number, version, size, chain FROM toolnexus_conversations WHERE id = :id"
        found = session.rows(self.dialect.locked(sql), id=name)
        return _Row(*found[0]) if found else None

    def _create(self, session: Session, name: str) -> _Row:
        """Return the locked row of a conversation that was not there a moment ago."""
        self._hold_floor(session)
        session.run(
            "INSERT INTO toolnexus_conversations (id, version, size, chain, created_at, updated_at) "
            "VALUES (:id, 0, 0, '', :now, :now) ON CONFLICT (id) DO NOTHING",
            id=name,
            now=time.time(),
        )
        row = self._find(session, name)
        if row is None:
            raise StoreError(f"conversation {name!r} vanished while it was being saved")
        return row

    def _floor(self, session: Session) -> int:
        """Return the highest version of anything that was deleted; what is made anew begins above it."""
        return int(session.rows("SELECT floor FROM toolnexus_schema")[0][0])

    def _hold_floor(self, session: Session) -> None:
        """Keep deletions away until this transaction ends, so that nothing begins below their versions."""
        session.rows(self.dialect.shared("SELECT floor FROM toolnexus_schema"))

    def _take_floor(self, session: Session) -> None:
        """Keep everybody else who deletes, or makes something anew, away until this transaction ends."""
        session.rows(self.dialect.locked("SELECT floor FROM toolnexus_schema"))

    def _raise_floor(self, session: Session, version: int) -> None:
        session.run("UPDATE toolnexus_schema SET floor = :version WHERE floor < :version", version=version)

    def _rewrite(self, session: Session, row: _Row, bodies: list[str], chain: list[str]) -> None:
        """Make the rows of the messages those that are wanted, and leave alone those that are."""
        same = self._same(session, row, chain)
        if same < row.size:
            session.run(
                "DELETE FROM toolnexus_messages WHERE conversation = :number AND position >= :same",
                number=row.number,
                same=same,
            )
        new = [
            {"number": row.number, "position": position, "chain": chain[position], "body": bodies[position]}
            for position in range(same, len(bodies))
        ]
        if new:
            session.run_many(
                "INSERT INTO toolnexus_messages (conversation, position, chain, body) "
                "VALUES (:number, :position, :chain, :body)",
                new,
            )

    def _same(self, session: Session, row: _Row, chain: list[str]) -> int:
        """Return how many messages from the first are kept as they are."""
        if row.size == 0:
            return 0
        if row.size <= len(chain) and chain[row.size - 1] == row.chain:
            return row.size  # only appended to, the usual case: nothing more to read
        kept = session.rows(
            "SELECT chain FROM toolnexus_messages WHERE conversation = :number ORDER BY position",
            number=row.number,
        )
        pairs = enumerate(zip(chain, kept, strict=False))
        return next((at for at, (new, (old,)) in pairs if new != old), min(len(chain), len(kept)))

    def _remove(self, name: str) -> bool:
        with self._writing() as session:
            self._take_floor(session)
            row = self._find(session, name)
            session.run("DELETE FROM toolnexus_journal WHERE id = :id", id=name)
            if row is None:
                return False
            session.run("DELETE FROM toolnexus_messages WHERE conversation = :number", number=row.number)
            session.run("DELETE FROM toolnexus_conversations WHERE number = :number", number=row.number)
            self._raise_floor(session, row.version)
        return True

    def _infos(self, prefix: str, limit: int | None) -> list[ConversationInfo]:
        sql = (
            "SELECT id, version, created_at, updated_at, size FROM toolnexus_conversations "
            "WHERE substr(id, 1, :length) = :prefix ORDER BY updated_at DESC, id"
        )
        values: dict[str, Any] = {"prefix": prefix, "length": len(prefix)}
        if limit is not None:
            sql, values = sql + " LIMIT :limit", {**values, "limit": limit}
        with self._reading() as session:
            found = session.rows(sql, **values)
        return [
            ConversationInfo(id=name, version=version, created_at=made, updated_at=saved, message_count=size)
            for name, version, made, saved, size in found
        ]

    # -- states ------------------------------------------------------------------------------

    def _read_state(self, key: str) -> tuple[str | None, int]:
        with self._reading() as session:
            found = session.rows("SELECT body, version FROM toolnexus_states WHERE id = :key", key=key)
        return (found[0][0], found[0][1]) if found else (None, 0)

    def _write_state(self, key: str, body: str, expected: int | None) -> int:
        with self._writing() as session:
            current = self._state_version(session, key) or self._new_state(session, key)
            if expected is not None and expected != current:
                raise conflict(f"state {key!r}", current, expected)
            version = (current or self._floor(session)) + 1
            session.run(
                "UPDATE toolnexus_states SET version = :version, body = :body WHERE id = :key",
                version=version,
                body=body,
                key=key,
            )
        return version

    def _state_version(self, session: Session, key: str) -> int:
        """Return the version of a state, its row locked until the transaction ends, or 0."""
        sql = self.dialect.locked("SELECT version FROM toolnexus_states WHERE id = :key")
        found = session.rows(sql, key=key)
        return int(found[0][0]) if found else 0

    def _new_state(self, session: Session, key: str) -> int:
        """Make the row of a state that was not there a moment ago; return its version, as it is now."""
        self._hold_floor(session)
        session.run(
            "INSERT INTO toolnexus_states (id, version, body) VALUES (:key, 0, '') "
            "ON CONFLICT (id) DO NOTHING",
            key=key,
        )
        return self._state_version(session, key)

    def _remove_state(self, key: str) -> bool:
        with self._writing() as session:
            self._take_floor(session)
            version = self._state_version(session, key)
            if version:
                session.run("DELETE FROM toolnexus_states WHERE id = :key", key=key)
                self._raise_floor(session, version)
        return bool(version)

    def _state_keys(self, prefix: str) -> list[str]:
        with self._reading() as session:
            found = session.rows(
                "SELECT id FROM toolnexus_states WHERE substr(id, 1, :length) = :prefix",
                prefix=prefix,
                length=len(prefix),
            )
        return [key for (key,) in found]

    # -- journals ----------------------------------------------------------------------------

    def _add_entry(self, name: str, body: str) -> None:
        with self._writing() as session:
            session.run("INSERT INTO toolnexus_journal (id, body) VALUES (:id, :body)", id=name, body=body)

    def _entries(self, name: str) -> list[str]:
        with self._reading() as session:
            found = session.rows("SELECT body FROM toolnexus_journal WHERE id = :id ORDER BY number", id=name)
        return [body for (body,) in found]

    def _remove_entries(self, name: str) -> None:
        with self._writing() as session:
            session.run("DELETE FROM toolnexus_journal WHERE id = :id", id=name)
