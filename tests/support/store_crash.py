"""Processes that are killed while they save, and what must be left after it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tests.support.store_worker import open_store

ROOT = Path(__file__).resolve().parents[2]


def worker(*args: object, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that works on a store."""
    command = [sys.executable, "-m", "tests.support.store_worker", *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=output)


class Victim:
    """A process that saves turns until it is killed."""

    def __init__(self, place: str, name: str) -> None:
        self.place = place
        self.name = name
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill()
        self._process = worker("turns", place, name, output=self._output)

    def has_saved(self) -> bool:
        """Whether a save was told of; fails if the process has ended by itself."""
        assert self._process.poll() is None
        return os.fstat(self._output.fileno()).st_size > 0

    def kill(self) -> None:
        """Kill it, and check what it left."""
        self._process.kill()
        self._process.wait(60)
        self._output.seek(0)
        told = [int(turn) for turn in self._output.read().splitlines(keepends=True) if turn.endswith(b"\n")]
        self._output.close()
        check_turns(self.place, self.name, told)


def append_from_processes(place: str, processes: int, count: int) -> None:
    """Append from several processes at once, and check that nothing is lost."""
    name = f"many-{time.time_ns()}"
    running = [worker("appends", place, f"{name}/{number}", name, count) for number in range(processes)]
    for process in running:
        process.wait(300)
        assert process.returncode == 0
    with open_store(place) as store:
        for number in range(processes):
            kept = store.get(f"{name}/{number}") or []
            assert [m["content"] for m in kept] == [str(turn) for turn in range(count)]
        shared = sorted(m["content"] for m in store.get(name) or [])
    assert shared == sorted(f"{name}/{n}.{t}" for n in range(processes) for t in range(count))


def kill_at_random(place: str, *, seconds: float, least: int, conversations: int) -> None:
    """
    Kill processes that save turns, now one and now another, and check each time what it left.

    Args:
        place: The store.
        seconds: How long to go on.
        least: How many to kill in any case, however slow the machine is.
        conversations: How many processes work at the same time, each on a conversation of its own.
    """
    stamp = time.time_ns()
    running = [Victim(place, f"killed-{stamp}-{number}") for number in range(conversations)]
    end, kills = time.monotonic() + seconds, 0
    while time.monotonic() < end or kills < least:
        time.sleep(random.uniform(0.0, 0.2))
        at_work = [victim for victim in running if victim.has_saved()]
        if at_work:
            victim = random.choice(at_work)
            victim.kill()
            kills += 1
            running[running.index(victim)] = Victim(place, victim.name)
    for victim in running:
        victim.kill()


def check_turns(place: str, name: str, told: list[int]) -> None:
    """Make sure that every turn told of is there, and that what is there is whole."""
    with open_store(place) as store:
        messages, version = store.load(name)
        journal = [entry["turn"] for entry in store.read_journal(name)]
    messages = messages or []
    count = len(messages) // 2
    assert version == count
    assert [m["turn"] for m in messages] == [turn for turn in range(count) for _ in range(2)]
    assert len({m.get("rewritten") for m in messages[: (count - count % 10) * 2 - 2]}) <= 1
    assert journal == sorted(set(journal))
    assert not told or count > told[-1]
    assert set(told) <= set(journal)
