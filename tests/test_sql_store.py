"""The store in a database: on a real PostgreSQL, and what can be known without one."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.support.store_contract", "tests.support.store_crash")

from tests.support.postgres import Postgres, postgres  # noqa: E402 - see above
from tests.support.store_contract import ANSWER, USER, StoreContract, together  # noqa: E402
from tests.support.store_crash import append_from_processes, kill_at_random  # noqa: E402
from toolnexus.errors import ConfigurationError, StoreError  # noqa: E402
from toolnexus.stores import SqlStore, VersionedStore  # noqa: E402

has_sqlalchemy = pytest.mark.skipif(
    importlib.util.find_spec("sqlalchemy") is None, reason="SQLAlchemy is not installed"
)
has_driver = pytest.mark.skipif(
    importlib.util.find_spec("sqlalchemy") is None or importlib.util.find_spec("psycopg") is None,
    reason="SQLAlchemy or psycopg is not installed",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Return a running PostgreSQL."""
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres) -> str:
    """Return the URL of an empty database."""
    return server.make_database()


@pytest.fixture(scope="module")
def store(server: Postgres) -> Iterator[VersionedStore]:
    """Return a store in one database for all tests of the contract."""
    with SqlStore(server.make_database()) as made:
        yield made


@pytest.mark.slow
class TestPostgres(StoreContract):
    """The contract, on PostgreSQL."""


# -- PostgreSQL: processes, locks, crashes ----------------------------------------------------


@pytest.mark.slow
def test_his_07_postgres_loses_no_update_between_processes(url: str) -> None:
    """Processes that append to the same and to different conversations lose nothing."""
    append_from_processes(url, processes=6, count=20)


@pytest.mark.slow
def test_postgres_a_kill_loses_no_finished_save(url: str) -> None:
    """Processes killed at random moments leave every save that had returned, and none by halves."""
    kill_at_random(url, seconds=20.0, least=5, conversations=3)


@pytest.mark.slow
def test_postgres_tables_are_made_once(url: str) -> None:
    """Stores that find an empty database at the same moment all work."""
    stores = [SqlStore(url) for _ in range(6)]
    together(*(lambda s=s, n=n: s.save(str(n), [USER]) for n, s in enumerate(stores)))
    assert len(stores[0].list()) == 6
    for store in stores:
        store.close()


@pytest.mark.slow
def test_his_08_postgres_a_lock_that_stays_is_an_error(url: str) -> None:
    """A save that does not get its turn says so, and changes nothing; one that gets it goes on."""
    import psycopg

    with SqlStore(url, timeout=0.5) as store, psycopg.connect(url) as other:
        store.save("a", [USER])
        other.execute("SELECT 1 FROM toolnexus_conversations FOR UPDATE")
        with pytest.raises(StoreError, match=r"stayed locked for 0\.5 s") as caught:
            store.save("a", [ANSWER])
        assert caught.value.retryable
        assert store.get("a") == [USER]
        timer = threading.Timer(0.2, other.rollback)
        timer.start()
        store.save("a", [ANSWER])
        timer.join()
        assert store.get("a") == [ANSWER]


@pytest.mark.slow
def test_b153_postgres_a_save_is_one_transaction(url: str) -> None:
    """When the database refuses the fiftieth row of a rewriting, the old messages are still there."""
    import psycopg

    old = [{"role": "user", "content": f"old {number}"} for number in range(100)]
    with SqlStore(url) as store:
        store.save("a", old)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(
                "ALTER TABLE toolnexus_messages ADD CONSTRAINT no CHECK (position <> 49 OR body LIKE '%old%')"
            )
        with pytest.raises(StoreError, match="violates check constraint"):
            store.save("a", [{"role": "user", "content": f"new {number}"} for number in range(60)])
        assert store.load("a") == (old, 1)


@pytest.mark.slow
def test_postgres_a_restart_is_survived() -> None:
    """After a crash and a start of the server, what was saved is there, and the same store goes on."""
    with postgres() as server, SqlStore(server.make_database(), timeout=5) as store:
        store.save("a", [USER])
        server.stop("immediate")
        with pytest.raises(StoreError, match="the database 'postgresql://127"):
            store.get("a")
        server.start()
        assert store.get("a") == [USER]
        store.save("a", [USER, ANSWER], expected=1)


@pytest.mark.slow
def test_postgres_a_newer_database_is_refused(url: str) -> None:
    """Tables of a newer version are left alone."""
    import psycopg

    with SqlStore(url) as store:
        store.save("a", [USER])
    with psycopg.connect(url) as other:
        other.execute("UPDATE toolnexus_schema SET version = 2")
    with SqlStore(url) as store, pytest.raises(StoreError, match=r"newer toolnexus \(version 2"):
        store.get("a")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_postgres_parent_and_child_both_go_on(url: str) -> None:
    """After a fork both processes use the same store object, each with connections of its own."""
    with SqlStore(url) as store:
        store.save("a", [USER])

        def child() -> None:
            for number in range(20):
                store.save("child", [{"n": number}])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
        for number in range(20):
            store.save("parent", [{"n": number}])
        process.join(40)
        assert process.exitcode == 0
        assert [store.get(name) for name in ("a", "child", "parent")] == [[USER], [{"n": 19}], [{"n": 19}]]


@pytest.mark.slow
def test_postgres_a_wrong_password_is_told_without_it(server: Postgres) -> None:
    """What goes wrong at connecting is told, the password nowhere."""
    with SqlStore(server.url(password="wr0ng/word")) as store, pytest.raises(StoreError) as caught:
        store.get("a")
    shown = "".join(traceback.format_exception(caught.value))
    assert "password authentication failed" in str(caught.value)
    assert "wr0ng" not in shown


@pytest.mark.slow
def test_postgres_a_process_ends_without_a_word(url: str) -> None:
    """A store that nobody closed leaves no warning at the end of the process."""
    code = (
        "import sys; from toolnexus.stores import SqlStore; s = SqlStore(sys.argv[1]); print(s.save('a', []))"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# -- without a server ------------------------------------------------------------------------


@has_driver
def test_secrets_stay_out() -> None:
    """Neither the repr nor an error shows user, password or options of the URL."""
    store = SqlStore("postgresql://bob:s3cret%2Fword@127.0.0.1:1/db?application_name=opt10n")
    assert repr(store) == "<SqlStore 'postgresql://127.0.0.1:1/db'>"
    with pytest.raises(StoreError, match="the database 'postgresql://127") as caught:
        store.get("a")
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown for secret in ("s3cret", "opt10n"))
    store.close()
    assert repr(store) == "<SqlStore 'postgresql://127.0.0.1:1/db' (closed)>"
    with pytest.raises(StoreError, match="is closed"):
        store.get("a")


@has_sqlalchemy
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", r"use MemoryStore\(\)"),
        ("sqlite:///:memory:", r"use MemoryStore\(\)"),
        ("mysql://bob:s3cret@host/db", "knows postgresql and sqlite, not 'mysql'"),
        ("bob:s3cret@host", "cannot be read"),
        ("", "cannot be read"),
        (None, "cannot be read"),
        (7, "cannot be read"),
        ("postgresql+nothing://bob:s3cret@host/db", "driver 'postgresql.nothing' is not installed"),
    ],
)
def test_what_is_no_url_is_refused(url: Any, message: str) -> None:
    """A URL that cannot be used is a mistake that is told at once, without what it holds."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        SqlStore(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@has_sqlalchemy
@pytest.mark.parametrize("timeout", [-1, True, "3", None])
def test_what_is_no_timeout_is_refused(timeout: Any) -> None:
    """A timeout is a number of seconds."""
    with pytest.raises(ConfigurationError, match="timeout must be"):
        SqlStore("sqlite:///a.db", timeout=timeout)


@has_sqlalchemy
def test_pickling_carries_the_url(tmp_path: Path) -> None:
    """A pickled store is another store on the same database."""
    with SqlStore(f"sqlite:///{tmp_path}/a.db", timeout=7) as store:
        store.save("a", [USER])
        with pickle.loads(pickle.dumps(store)) as copy:
            assert copy.timeout == 7.0
            assert copy.get("a") == [USER]


@has_sqlalchemy
def test_sqlite_through_sqlalchemy_tells_what_is_wrong(tmp_path: Path) -> None:
    """The errors are those of the other SQLite store."""
    (tmp_path / "diary").write_bytes(b"dear diary" * 100)
    with SqlStore(f"sqlite:///{tmp_path}/diary") as store, pytest.raises(StoreError, match="is not a SQLite"):
        store.get("a")
    with SqlStore(f"sqlite:///{tmp_path}") as store, pytest.raises(StoreError, match="is a directory"):
        store.get("a")
    with (
        SqlStore(f"sqlite:///{tmp_path}/no/a.db") as store,
        pytest.raises(StoreError, match="cannot be made"),
    ):
        store.get("a")


@has_sqlalchemy
def test_sqlite_through_sqlalchemy_waits_and_says_so(tmp_path: Path) -> None:
    """A write that does not get its turn is an error after the timeout."""
    import sqlite3

    with SqlStore(f"sqlite:///{tmp_path}/a.db", timeout=0.3) as store:
        store.save("a", [USER])
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"stayed locked for 0\.3 s"):
            store.save("a", [ANSWER])
        assert time.monotonic() - began > 0.25
        other.close()
        assert store.get("a") == [USER]


def test_a_missing_package_names_the_extra() -> None:
    """Without SQLAlchemy the error has the line that installs it."""
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from toolnexus.errors import MissingExtraError\nfrom toolnexus.stores import SqlStore\n"
        "try: SqlStore('sqlite:///a.db')\nexcept MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'pip install "toolnexus[sql]"' in done.stdout, done.stderr
