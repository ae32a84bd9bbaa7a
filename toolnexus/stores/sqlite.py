"""The embedded store: one file, for any number of threads and processes of a machine."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolnexus.errors import ConfigurationError, StoreError
from toolnexus.forking import ForkLock, Gate
from toolnexus.stores._rows import Dialect, RowStore, has_tables, make_tables

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteStore"]

#: Connections that stay open while nobody uses them. More are made when more work at once.
MAX_IDLE = 4

DIALECT = Dialect(
    counter="INTEGER PRIMARY KEY AUTOINCREMENT",
    exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'toolnexus_schema'",
)

# Closing any descriptor of a file drops all of the process's locks on it, those of SQLite too. So
# no thread may open the database while another is still making the file.
_making = ForkLock()


class SqliteStore(RowStore):
    """
    Keeps conversations in a SQLite file.

    Several threads, processes and stores may use one file at the same time; a process that forks
    may go on using the store in both. A save is one transaction with a full sync to the disk
    (write-ahead log, ``synchronous=FULL``): once it has returned, neither ``kill -9`` nor a power
    cut undoes it, and one that was cut short leaves what was there before. Only what is new in a
    conversation is written.

    The file is made at the first use, readable for its owner only. Beside it there are two more
    files, with ``-wal`` and ``-shm`` at the end, while it is in use: copy a database with SQLite's
    own backup, or when nobody uses it. The file must be on a disk of the machine; SQLite's locks
    do not hold on network drives such as NFS, for those use `SqlStore` with a database server.

    Args:
        path: The file. Its directory must be there.
        timeout: Seconds to wait while another process writes, before `StoreError`.

    Raises:
        ConfigurationError: The path or the timeout cannot be one.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SqliteStore(os.path.join(folder, "agent.db")) as store:
    ...         store.save("trip", [{"role": "user", "content": "Where to?"}])
    ...         store.get("trip")
    1
    [{'role': 'user', 'content': 'Where to?'}]
    """

    dialect = DIALECT

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 30.0) -> None:
        self.path = check_path(path)
        self.timeout = check_timeout(timeout)
        self._pool = _Pool(self.path, self.timeout)
        self._finalizer = weakref.finalize(self, self._pool.close)

    def __repr__(self) -> str:
        return f"<SqliteStore {self.path!r}{' (closed)' if self._pool.closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.path, self.timeout)

    def close(self) -> None:
        """Close the file. The store cannot be used any more. Closing twice does no harm."""
        self._finalizer()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[SqliteSession]:
        with self._pool.connection() as connection:
            yield SqliteSession(connection)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[SqliteSession]:
        with self._pool.connection() as connection, transaction(connection):
            yield SqliteSession(connection)


def _unpickle(path: str, timeout: float) -> SqliteStore:
    return SqliteStore(path, timeout=timeout)


class SqliteSession:
    """A SQLite connection, for the common code."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a query and return what it finds."""
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, **values: Any) -> None:
        """Run a statement."""
        self._connection.execute(sql, values)

    def run_many(self, sql: str, values: list[dict[str, Any]]) -> None:
        """Run a statement once for each set of values."""
        self._connection.executemany(sql, values)


class _Pool(Gate):
    """
    The connections to one file: each serves one operation at a time, the last used comes first.

    They are not bound to threads: every stream has a thread of its own, and would pay for a
    connection of its own each time.
    """

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        self.path = path
        self.timeout = timeout
        self.closed = False
        # With the device and inode of the file that each was opened on. Appending to and popping
        # from a list are atomic.
        self._idle: list[tuple[sqlite3.Connection, tuple[int, int]]] = []

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection; what goes wrong with it comes out as `StoreError`."""
        import sqlite3

        with self.operation():
            try:
                connection, file = self._take()
                try:
                    yield connection
                except BaseException:
                    connection.close()
                    raise
                self._give_back(connection, file)
            except (sqlite3.Error, OverflowError) as error:
                raise explain(error, self.path, self.timeout) from error

    def _take(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        if self.closed:
            raise StoreError(f"the store of {self.path!r} is closed")
        file = _identity(self.path)
        while True:
            try:
                connection, opened = self._idle.pop()
            except IndexError:
                break
            if opened == file:
                return connection, opened
            connection.close()  # the file was replaced or removed: nobody would see what goes there
        connection = connect(self.path, self.timeout)
        return connection, _identity(self.path)

    def _give_back(self, connection: sqlite3.Connection, file: tuple[int, int]) -> None:
        if self.closed or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append((connection, file))

    def quiet(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].close()

    def close(self) -> None:
        """Close the connections, those in use as soon as they are not."""
        self.closed = True
        self.quiet()


def check_path(path: object) -> str:
    """
    Return the absolute path of a database.

    Raises:
        ConfigurationError: It is no path to a file.
    """
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]  # it raises for what it cannot take
    except TypeError as error:
        raise ConfigurationError(f"the path must be text or a path, not {type(path).__name__}") from error
    if text.startswith(":memory:"):
        raise ConfigurationError("SqliteStore keeps a file; for a store in memory use MemoryStore()")
    if not text or "\0" in text:
        raise ConfigurationError(f"{text!r} is no path to a file")
    return os.path.abspath(text)


def check_timeout(timeout: object) -> float:
    """
    Return a timeout in seconds.

    Raises:
        ConfigurationError: It is no number from 0.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= 1e6:
        raise ConfigurationError(f"timeout must be a number of seconds from 0 to a million, not {timeout!r}")
    return float(timeout)


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """
    Open a database, and make it with its tables where it is missing.

    Raises:
        sqlite3.Error: It cannot be opened.
        StoreError: It cannot be made, or is of a newer toolnexus.
    """
    import sqlite3

    _make_private(path)
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        _use_log(connection, timeout)
        session = SqliteSession(connection)
        if not has_tables(session, DIALECT):
            with transaction(connection):
                make_tables(session, DIALECT)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: str) -> None:
    """Make an empty file that only its owner may read; SQLite gives its two other files the same rights."""
    with _making:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stat.S_IRUSR | stat.S_IWUSR))
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreError(f"the database {path!r} cannot be made: {error.strerror}") from error


def _use_log(connection: sqlite3.Connection, timeout: float) -> None:
    """Turn on the write-ahead log. SQLite does not wait by itself when two processes do so at once."""
    import sqlite3

    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.005, 0.02))
        else:
            return


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Keep all changes of the block, or on an exception none. Waits for its turn at the beginning."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):  # the first exception is the one to hear of
            connection.rollback()
        raise


def is_locked(error: BaseException) -> bool:
    """Whether another connection was in the way. Python 3.10 tells only by the message."""
    return "locked" in str(error)


def explain(error: BaseException, path: str, timeout: float) -> StoreError:
    """Return the error for a person, from SQLite's."""
    name = repr(path)
    if is_locked(error):
        return StoreError(f"the database {name} stayed locked for {timeout:g} s", retryable=True)
    if os.path.isdir(path):
        return StoreError(f"{name} is a directory, not a database")
    text = str(error)
    if "not a database" in text:
        return StoreError(f"{name} is not a SQLite database")
    if "malformed" in text:
        return StoreError(f"the database {name} is damaged: {text}")
    if "readonly" in text:
        return StoreError(f"the database {name} cannot be written: {text}")
    if "unable to open" in text:
        return StoreError(
            f"the database {name} cannot be opened: no permission, or the directory is not there"
        )
    return StoreError(f"the database {name}: {text}")


def _identity(path: str) -> tuple[int, int]:
    """Return what tells a file from another one of the same name; zeros where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
