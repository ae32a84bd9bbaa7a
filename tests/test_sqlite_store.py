"""The SQLite store: processes, locks, crashes, forks, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.support.store_contract", "tests.support.store_crash")

from tests.support.store_contract import ANSWER, USER, together  # noqa: E402 - see above
from tests.support.store_crash import append_from_processes, kill_at_random  # noqa: E402
from toolnexus.errors import ConfigurationError, StoreError  # noqa: E402
from toolnexus.forking import ForkLock, Gate  # noqa: E402
from toolnexus.stores import SqliteStore  # noqa: E402

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX file permissions")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a store may be."""
    return tmp_path / "store.db"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock of a database, as another process would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked child, and return the child's exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
        process = multiprocessing.get_context("fork").Process(target=function)
        process.start()
    process.join(40)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode is not None
    return process.exitcode


# -- processes and threads -------------------------------------------------------------------


def test_his_07_no_update_is_lost_between_processes(path: Path) -> None:
    """Processes that append to the same and to different conversations lose nothing."""
    append_from_processes(str(path), processes=4, count=15)


@pytest.mark.slow
def test_his_07_twenty_processes_append_fifty_times(path: Path) -> None:
    """The same with twenty processes and fifty appends each."""
    append_from_processes(str(path), processes=20, count=50)


def test_a_fresh_file_is_made_once(path: Path) -> None:
    """Stores that open a missing file at the same moment all find the same, whole database."""
    for round_ in range(5):
        stores = [SqliteStore(path.with_name(f"{round_}.db")) for _ in range(8)]
        together(*(lambda s=s, n=n: s.save(str(n), [USER]) for n, s in enumerate(stores)))
        assert len(stores[0].list()) == 8
        for store in stores:
            store.close()


def _save_together(path: Path, name: str, barrier: Barrier) -> None:
    barrier.wait(30)
    SqliteStore(path).save(name, [USER])


@pytest.mark.slow
@needs_fork
def test_a_fresh_file_is_made_once_by_processes(path: Path) -> None:
    """The same with processes: SQLite itself does not wait when several turn on the log at once."""
    context = multiprocessing.get_context("fork")
    for round_ in range(100):
        place, barrier = path.with_name(f"{round_}.db"), context.Barrier(8)
        children = [context.Process(target=_save_together, args=(place, str(n), barrier)) for n in range(8)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 8
        with SqliteStore(place) as store:
            assert len(store.list()) == 8


def test_his_08_a_save_waits_for_a_lock(path: Path) -> None:
    """While another process writes for two seconds, a save waits, and is done after it."""
    with SqliteStore(path) as store:
        store.save("a", [USER])
        with locked(path) as other:
            timer = threading.Timer(2.0, lambda: other.execute("COMMIT"))
            timer.start()
            began = time.monotonic()
            store.save("a", [USER, ANSWER])
            assert time.monotonic() - began > 1.5
            timer.join()
        assert store.get("a") == [USER, ANSWER]


def test_his_08_a_lock_that_stays_is_an_error(path: Path) -> None:
    """A save that does not get its turn in time says so, and changes nothing; reading goes on."""
    with SqliteStore(path, timeout=0.3) as store:
        store.save("a", [USER])
        with locked(path):
            for write in (
                lambda: store.save("a", [ANSWER]),
                lambda: store.put_state("k", {}),
                lambda: store.append_journal("a", {}),
                lambda: store.delete("a"),
            ):
                with pytest.raises(StoreError, match=r"stayed locked for 0\.3 s") as caught:
                    write()
                assert caught.value.retryable
            assert store.get("a") == [USER]
        store.save("a", [ANSWER])
        assert store.get("a") == [ANSWER]


def test_his_08_a_lock_while_opening_is_an_error(path: Path) -> None:
    """A file that another process holds for itself from the start is reported just so."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with SqliteStore(path, timeout=0.2) as store, pytest.raises(StoreError, match="stayed locked"):
            store.get("a")


def test_his_08_turning_on_the_log_waits_for_readers(path: Path) -> None:
    """A database of another making that somebody is reading is waited for, until the time is up."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.executescript("CREATE TABLE mine (text); INSERT INTO mine VALUES ('a'); BEGIN;")
        assert other.execute("SELECT * FROM mine").fetchall() == [("a",)]
        with SqliteStore(path, timeout=0.2) as store, pytest.raises(StoreError, match="stayed locked"):
            store.get("a")
        timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        timer.start()
        with SqliteStore(path) as store:
            store.save("a", [USER])
        timer.join()
        other.execute("SELECT * FROM mine")
        assert other.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_b153_a_save_is_one_transaction(path: Path) -> None:
    """When the database refuses the fiftieth row of a rewriting, the hundred old messages are still there."""
    old = [{"role": "user", "content": f"old {number}"} for number in range(100)]
    with SqliteStore(path) as store:
        store.save("a", old)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute(
                "CREATE TRIGGER no BEFORE INSERT ON toolnexus_messages WHEN NEW.position = 49 "
                "BEGIN SELECT RAISE(ABORT, 'the fiftieth'); END"
            )
        with pytest.raises(StoreError, match="the fiftieth"):
            store.save("a", [{"role": "user", "content": f"new {number}"} for number in range(60)])
        assert store.load("a") == (old, 1)


def test_only_what_is_new_is_written(path: Path) -> None:
    """Appending inserts the new rows, a change rewrites from there on, saving again writes none."""
    history = [{"role": "user", "content": str(number)} for number in range(50)]
    with SqliteStore(path) as store:
        store.save("a", history)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.executescript(
                "CREATE TABLE written (position INTEGER);"
                "CREATE TRIGGER note AFTER INSERT ON toolnexus_messages "
                "BEGIN INSERT INTO written VALUES (NEW.position); END;"
            )
            wanted: list[int] = []
            for messages, new in (
                ([*history, USER, ANSWER], [50, 51]),
                ([*history, USER, ANSWER], []),
                ([*history, USER], []),
                ([*history[:48], USER, ANSWER], [48, 49]),
            ):
                store.save("a", messages)
                wanted += new
                assert [p for (p,) in other.execute("SELECT position FROM written")] == wanted
                assert store.get("a") == messages


# -- crashes -----------------------------------------------------------------------------------


@needs_posix
def test_a_kill_loses_no_finished_save(path: Path) -> None:
    """Processes killed at random moments leave every save that had returned, and none by halves."""
    kill_at_random(str(path), seconds=3.0, least=2, conversations=2)


@needs_posix
@pytest.mark.slow
def test_a_minute_of_kills_loses_no_finished_save(path: Path) -> None:
    """The same for a minute, with six processes on one file."""
    kill_at_random(str(path), seconds=60.0, least=20, conversations=6)


@needs_posix
def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    """When the file may not grow, a save is an error, and what was there stays."""
    code = """
import resource, signal, sys
from toolnexus.errors import StoreError
from toolnexus.stores import SqliteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SqliteStore(sys.argv[1])
store.save("a", [{"content": "small"}])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    store.save("a", [{"content": "x" * 1_000_000}])
except StoreError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.get("a"))
store.save("a", [{"content": "again"}])
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "refused: the database" in done.stdout
    assert "[{'content': 'small'}]" in done.stdout
    with SqliteStore(path) as store:
        assert store.load("a") == ([{"content": "again"}], 2)


# -- forks ---------------------------------------------------------------------------------------


@needs_fork
def test_parent_and_child_both_go_on(path: Path) -> None:
    """After a fork both processes use the same store object, and see each other's saves."""
    with SqliteStore(path) as store:
        store.save("a", [USER])

        def child() -> None:
            assert store.get("a") == [USER]
            store.save("a", [USER, ANSWER], expected=1)

        assert in_child(child) == 0
        assert store.load("a") == ([USER, ANSWER], 2)
        store.save("a", [USER], expected=2)


@needs_fork
def test_a_child_loses_nothing_when_its_parent_closes(path: Path) -> None:
    """The child's locks are its own: the parent that closes the file does not take the log from under it."""
    store = SqliteStore(path)
    store.save("a", [USER])
    read, write = os.pipe()
    done_read, done_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            store.save("b", [USER])
            os.write(done_write, b".")
            os.read(read, 1)
            store.save("b", [USER, ANSWER])
            status = 0
        finally:
            os._exit(status)
    os.read(done_read, 1)
    store.save("a", [USER, ANSWER])
    store.close()
    os.write(write, b".")
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (read, write, done_read, done_write):
        os.close(descriptor)
    with SqliteStore(path) as again:
        assert again.get("b") == [USER, ANSWER]
        assert again.get("a") == [USER, ANSWER]


@needs_fork
def test_forks_beside_busy_threads(path: Path) -> None:
    """Forking in the middle of other threads' saves breaks neither them nor the child."""
    stop = threading.Event()
    saved = [0, 0]
    with SqliteStore(path) as store:

        def busy(number: int) -> None:
            while not stop.is_set():
                store.save(f"busy {number}", [{"n": saved[number]}])
                saved[number] += 1

        def fork() -> None:
            try:
                for number in range(4):
                    assert in_child(partial(store.save, "child", [{"n": number}])) == 0
            finally:
                stop.set()

        together(lambda: busy(0), lambda: busy(1), fork)
        assert store.get("child") == [{"n": 3}]
        assert store.get("busy 0") == [{"n": saved[0] - 1}]
        assert store.load("busy 1")[1] == saved[1]
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@needs_fork
def test_a_fork_waits_for_the_operations_before_it_takes_their_locks() -> None:
    """Whoever is inside of a store may need one of our locks to get out, so those are taken last."""

    class Quiet(Gate):
        def quiet(self) -> None:
            """There is nothing to close."""

    gate, locks = Quiet(), [ForkLock() for _ in range(16)]
    inside = threading.Event()

    def operation() -> None:
        with gate.operation():
            inside.set()
            time.sleep(0.2)
            for lock in locks:
                with lock:
                    pass

    def child() -> None:
        with gate.operation():
            pass

    worker = threading.Thread(target=operation)
    worker.start()
    assert inside.wait(10)
    assert in_child(child) == 0
    worker.join(10)


@needs_fork
@pytest.mark.slow
def test_a_child_torn_out_of_a_save_is_told(path: Path) -> None:
    """Forked while another thread hangs in a save, the child gets an error, and the parent goes on."""
    with SqliteStore(path, timeout=60) as store:
        store.save("a", [USER])

        def child() -> None:
            with pytest.raises(StoreError, match="forked while another thread"):
                store.get("a")

        with locked(path) as other:
            saving = threading.Thread(target=lambda: store.save("a", [USER, ANSWER]))
            saving.start()
            time.sleep(0.3)
            assert in_child(child) == 0
            other.execute("COMMIT")
            saving.join(60)
        assert store.get("a") == [USER, ANSWER]


# -- what is at the path -----------------------------------------------------------------------


def test_a_directory_is_told(tmp_path: Path) -> None:
    """A directory in place of the file is named as one."""
    with SqliteStore(tmp_path) as store, pytest.raises(StoreError, match="is a directory"):
        store.get("a")


def test_a_file_of_another_kind_is_told_and_kept(path: Path) -> None:
    """A file that is no database is an error, and not a byte of it changes."""
    path.write_bytes(b"my diary\n" * 200)
    with SqliteStore(path) as store:
        for call in (lambda: store.get("a"), lambda: store.save("a", [USER])):
            with pytest.raises(StoreError, match="is not a SQLite database"):
                call()
    assert path.read_bytes() == b"my diary\n" * 200


def test_a_damaged_file_is_told(path: Path) -> None:
    """A database with holes in it is an error that says so."""
    with SqliteStore(path) as store:
        store.save("a", [{"content": "x" * 100_000}])
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(bytes(data))
    with SqliteStore(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.get("a")


def test_a_damaged_message_is_told(path: Path) -> None:
    """A row that was changed from outside into no JSON is an error that says which."""
    with SqliteStore(path) as store:
        store.save("a", [USER, ANSWER])
        for body in ("{oops", "[]"):
            with contextlib.closing(sqlite3.connect(path)) as other, other:
                other.execute("UPDATE toolnexus_messages SET body = ? WHERE position = 1", [body])
            with pytest.raises(StoreError, match="message 1 of conversation 'a' is damaged"):
                store.get("a")


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    """No directory is made for a store."""
    with (
        SqliteStore(tmp_path / "no" / "a.db") as store,
        pytest.raises(StoreError, match="cannot be made: No such"),
    ):
        store.get("a")
    assert not (tmp_path / "no").exists()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that every user can get at: those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@needs_posix
def test_a_path_that_may_not_be_written_is_told(public_folder: Path) -> None:
    """Without the right to write, the error says so, and what was there stays."""
    path = public_folder / "a.db"
    with SqliteStore(path) as store:
        store.save("a", [USER])
    path.chmod(0o444)
    public_folder.chmod(0o555)
    code = """
import os, sqlite3, sys
from toolnexus.errors import StoreError
from toolnexus.stores import SqliteStore
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in ("a.db", "new.db"):
    try:
        SqliteStore(os.path.join(sys.argv[1], name)).save("a", [])
    except StoreError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, public_folder], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"the database {str(path)!r} cannot be")
    assert second == f"the database '{public_folder}/new.db' cannot be made: Permission denied"
    with SqliteStore(path) as store:
        assert store.get("a") == [USER]


def test_a_newer_database_is_refused(path: Path) -> None:
    """Tables of a newer version are left alone."""
    with SqliteStore(path) as store:
        store.save("a", [USER])
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE toolnexus_schema SET version = 2")
    with SqliteStore(path) as store, pytest.raises(StoreError, match=r"newer toolnexus \(version 2"):
        store.get("a")


def test_other_tables_are_left_alone(path: Path) -> None:
    """A database that has tables already can be used, and keeps them."""
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE messages (text)")
        other.execute("INSERT INTO messages VALUES ('mine')")
    with SqliteStore(path) as store:
        store.save("a", [USER])
        assert store.get("a") == [USER]
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT * FROM messages").fetchall() == [("mine",)]


@needs_posix
def test_the_file_is_private(path: Path) -> None:
    """A new file, and the two beside it, can be read by their owner only."""
    old = os.umask(0)
    try:
        with SqliteStore(path) as store:
            store.save("a", [USER])
            files = list(path.parent.glob("store.db*"))
            assert len(files) == 3
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(old)


def test_a_file_that_was_removed_is_noticed(path: Path) -> None:
    """Nothing is written into a file that nobody can find any more."""
    with SqliteStore(path) as store:
        store.save("a", [USER])
        for file in path.parent.glob("store.db*"):
            file.unlink()
        assert store.get("a") is None
        store.save("b", [USER])
    with SqliteStore(path) as again:
        assert again.get("b") == [USER]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (":memory:", r"use MemoryStore\(\)"),
        ("", "no path"),
        ("a\0b", "no path"),
        (None, "not NoneType"),
        (7, "not int"),
    ],
)
def test_what_is_no_path_is_refused(path: Any, message: str) -> None:
    """A path that cannot be one is a mistake that is told at once."""
    with pytest.raises(ConfigurationError, match=message):
        SqliteStore(path)


@pytest.mark.parametrize("timeout", [-1, True, "3", None, float("nan"), float("inf")])
def test_what_is_no_timeout_is_refused(path: Path, timeout: Any) -> None:
    """A timeout is a number of seconds."""
    with pytest.raises(ConfigurationError, match="timeout must be"):
        SqliteStore(path, timeout=timeout)


def test_a_path_stays_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the directory in which the store was made; a URL is just a name."""
    monkeypatch.chdir(tmp_path)
    with SqliteStore("file:a.db?mode=memory") as store:
        monkeypatch.chdir("/")
        store.save("a", [USER])
    assert (tmp_path / "file:a.db?mode=memory").exists()


# -- holding on to it ------------------------------------------------------------------------


def test_making_a_store_opens_nothing(path: Path) -> None:
    """The file is made at the first use."""
    with SqliteStore(path):
        pass
    assert not path.exists()


def test_closing(path: Path) -> None:
    """A closed store says so, can be closed again, and leaves one file without its log."""
    store = SqliteStore(path)
    store.save("a", [USER])
    assert repr(store) == f"<SqliteStore {str(path)!r}>"
    store.close()
    store.close()
    assert repr(store) == f"<SqliteStore {str(path)!r} (closed)>"
    with pytest.raises(StoreError, match="is closed"):
        store.get("a")
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_pickling_carries_the_path_only(path: Path) -> None:
    """A pickled store is another store on the same file."""
    with SqliteStore(path, timeout=7) as store:
        store.save("a", [USER])
        data = pickle.dumps(store)
        assert b"hi" not in data
        with pickle.loads(data) as copy:
            assert (copy.path, copy.timeout) == (store.path, 7.0)
            assert copy.get("a") == [USER]


def descriptors(path: Path) -> int:
    """Return how many descriptors this process has open on a database and the files beside it."""
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sum(link.startswith(str(path.resolve())) for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_nothing_stays_open(path: Path) -> None:
    """Connections do not grow in number with the threads that come and go, and end with the store."""
    store = SqliteStore(path)
    for _ in range(6):
        together(*(partial(store.save, str(number), [USER]) for number in range(10)))
    assert 0 < descriptors(path) <= 30  # three for each that ever worked at the same time
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del store
        gc.collect()
    assert descriptors(path) == 0
    assert [str(w.message) for w in seen] == []


def test_a_process_ends_without_a_word(path: Path) -> None:
    """A store that nobody closed is closed at the end of the process, also one used in many threads."""
    code = """
import sys, threading
from toolnexus.stores import SqliteStore
store = SqliteStore(sys.argv[1])
threads = [threading.Thread(target=store.save, args=(str(n), [])) for n in range(5)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


@needs_posix
def test_an_interrupt_in_a_save_changes_nothing(path: Path) -> None:
    """Ctrl-C while a save waits for its turn is raised, and the store goes on."""
    with SqliteStore(path) as store:
        store.save("a", [USER])
        with locked(path) as other:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            timer = threading.Timer(0.8, lambda: other.execute("COMMIT"))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                store.save("a", [ANSWER])
            timer.join()
        assert store.load("a") == ([USER], 1)
        store.save("a", [ANSWER])
