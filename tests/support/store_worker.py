"""
What another process does with a store: ``python -m tests.support.store_worker WHAT STORE ...``.

A store is the path of a SQLite file or the URL of a database. Every finished step is reported as a
line on standard output, so that whoever killed the process knows what must be there.
"""

from __future__ import annotations

import sys

from tests.support.store_contract import append
from toolnexus.stores import SqliteStore, SqlStore, VersionedStore


def open_store(place: str) -> VersionedStore:
    """Return the store of a path or URL."""
    return SqlStore(place) if "://" in place else SqliteStore(place)


def say(text: object) -> None:
    """Report a finished step."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def appends(place: str, own: str, shared: str, count: str) -> None:
    """Add messages to a conversation of our own and to one of many processes."""
    with open_store(place) as store:
        for turn in range(int(count)):
            append(store, own, {"role": "user", "content": str(turn)})
            append(store, shared, {"role": "user", "content": f"{own}.{turn}"})


def turns(place: str, name: str) -> None:
    """
    Save one finished turn after the other for ever; every tenth rewrites the whole conversation.

    A turn is two messages with the same number, so that half a save would show. The journal gets
    its number, too.
    """
    with open_store(place) as store:
        kept, version = store.load(name)
        messages = kept or []
        while True:
            turn = len(messages) // 2
            if turn % 10 == 9:
                messages = [{**message, "rewritten": turn} for message in messages]
            padding = "x" * (turn % 7 * 300)
            messages = [
                *messages,
                {"role": "user", "turn": turn, "padding": padding},
                {"role": "assistant", "turn": turn, "padding": padding},
            ]
            version = store.save(name, messages, expected=version)
            store.append_journal(name, {"turn": turn})
            say(turn)


if __name__ == "__main__":
    if sys.argv[1] == "appends":
        appends(*sys.argv[2:])
    else:
        turns(*sys.argv[2:])
