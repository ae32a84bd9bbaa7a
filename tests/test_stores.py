"""Stores: what all have in common, and the one in memory."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.register_assert_rewrite("tests.support.store_contract")

from tests.support.store_contract import ANSWER, USER, StoreContract, together  # noqa: E402 - see above
from toolnexus.errors import ConfigurationError, StoreConflictError  # noqa: E402
from toolnexus.stores import (  # noqa: E402
    ConversationInfo,
    ConversationStore,
    MemoryStore,
    SqliteStore,
    SqlStore,
    VersionedStore,
)
from toolnexus.stores._codec import mend  # noqa: E402


@pytest.fixture(params=["memory", "sqlite", "sql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VersionedStore]:
    """Return an empty store of each kind."""
    made: VersionedStore
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path / "store.db")
    else:
        pytest.importorskip("sqlalchemy")
        made = SqlStore(f"sqlite:///{tmp_path}/store.db")
    with made:
        yield made
    assert not (tmp_path.parent / "evil").exists()


class TestEveryStore(StoreContract):
    """The contract, for the stores that need no server."""


# -- the store in memory ---------------------------------------------------------------------


def test_memory_forgets_what_was_longest_unused() -> None:
    """With a limit, the conversation neither read nor saved for the longest time goes first."""
    store = MemoryStore(max_conversations=2)
    store.save("a", [USER])
    store.save("b", [USER])
    store.append_journal("b", {})
    store.get("a")
    store.save("c", [USER])
    assert {i.id for i in store.list()} == {"a", "c"}
    assert store.read_journal("b") == []
    with pytest.raises(StoreConflictError):
        store.save("b", [USER], expected=1)


@pytest.mark.parametrize("count", [0, -1, True, "3", 1.5])
def test_memory_refuses_a_limit_that_is_none(count: Any) -> None:
    """The limit is a whole number from 1."""
    with pytest.raises(ConfigurationError, match="max_conversations"):
        MemoryStore(max_conversations=count)


def test_memory_can_be_pickled() -> None:
    """The copy has the same contents, limit and versions, and is independent."""
    store = MemoryStore(max_conversations=3)
    store.save("a", [USER])
    store.put_state("k", {"n": 1})
    store.append_journal("a", {"n": 2})
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.load("a"), copy.get_state("k"), copy.read_journal("a")) == (
        ([USER], 1),
        {"n": 1},
        [{"n": 2}],
    )
    assert copy.max_conversations == 3
    copy.save("a", [USER, ANSWER])
    copy.append_journal("a", {"n": 3})
    assert store.get("a") == [USER]
    assert store.read_journal("a") == [{"n": 2}]


def test_memory_shows_what_it_holds() -> None:
    """The repr has the number of conversations, and nothing of their contents."""
    store = MemoryStore()
    store.save("secret", [USER])
    store.save("b", [USER])
    assert repr(store) == "<MemoryStore: 2 conversations>"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_memory_works_in_a_forked_child() -> None:
    """A fork in the middle of other threads' saves leaves no lock behind that nobody opens."""
    store = MemoryStore()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            store.save("busy", [USER] * 20)

    def fork() -> None:
        try:
            for _ in range(20):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    child = multiprocessing.get_context("fork").Process(target=store.save, args=("c", [USER]))
                    child.start()
                child.join(20)
                assert child.exitcode == 0
        finally:
            stop.set()

    together(busy, busy, fork)
    store.save("after", [USER])


# -- what users bring and see ----------------------------------------------------------------


def test_two_methods_make_a_store() -> None:
    """An object with `get` and `save` is a store for everybody, one without is not."""

    class Own:
        def get(self, id: str) -> list[dict[str, Any]] | None:  # noqa: A002
            return None

        def save(self, id: str, messages: list[dict[str, Any]]) -> None:  # noqa: A002
            pass

    assert isinstance(Own(), ConversationStore)
    assert not isinstance(Own(), VersionedStore)
    assert not isinstance(object(), ConversationStore)


def test_infos_cannot_be_changed() -> None:
    """What a list gives are values."""
    info = ConversationInfo(id="a", version=1, created_at=0.0, updated_at=0.0, message_count=0)
    with pytest.raises(AttributeError):
        info.version = 2  # type: ignore[misc]


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_mending_changes_only_what_must_be(text: str) -> None:
    """Mended text can be encoded, and text that can be encoded stays as it is."""
    mended = mend(text)
    mended.encode()
    assert mend(mended) == mended
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert mended == text


def test_importing_the_stores_loads_no_database() -> None:
    """Neither sqlite3 nor SQLAlchemy is loaded before a store of theirs is used."""
    code = (
        "import sys, toolnexus.stores, toolnexus.stores.locks; toolnexus.stores.SqliteStore('x');"
        "print(sorted({'sqlite3', 'sqlalchemy', '_sqlite3'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("sqlalchemy") is None, reason="SQLAlchemy is not installed")
def test_the_two_kinds_share_a_file(tmp_path: Path) -> None:
    """A file of one store can be gone on with in the other."""
    with SqliteStore(tmp_path / "a.db") as one, SqlStore(f"sqlite:///{tmp_path}/a.db") as other:
        assert one.save("x", [USER]) == 1
        assert other.save("x", [USER, ANSWER], expected=1) == 2
        assert one.load("x") == ([USER, ANSWER], 2)
