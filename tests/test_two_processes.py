"""Two processes on one store, killed at random: every finished turn is there, nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.conversation_job import CONVERSATIONS
from tests.support.postgres import postgres
from tests.support.store_worker import open_store
from toolnexus.testing import ModelServer, reply, tool_call

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "conversations.db")
        return
    with postgres() as server:
        yield server.make_database()


def decide(request: Any) -> Any:
    """Ask for a tool first, then answer with what the newest prompt said."""
    last = request.json["messages"][-1]
    if last["role"] == "tool":
        prompt = next(m["content"] for m in reversed(request.json["messages"]) if m["role"] == "user")
        return reply(f"heard {prompt}")
    return tool_call("look", {})


class Worker:
    """A process that is killed and started again."""

    def __init__(self, server: ModelServer, place: str, name: str, said: list[str]) -> None:
        self.server, self.place, self.name, self.said = server, place, name, said
        self.lives = 0

    def live(self, seconds: float) -> None:
        self.lives += 1
        command = [
            sys.executable, "-m", "tests.support.conversation_job",
            self.server.base_url, "openai", self.place, f"{self.name}{self.lives}",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        killer = threading.Timer(seconds, os.kill, args=(process.pid, signal.SIGKILL))
        killer.start()
        out, err = process.communicate(timeout=60)
        killer.join()
        assert process.returncode == -9, err
        whole = out[: out.rfind("\n") + 1]
        self.said += whole.splitlines()


@pytest.mark.timeout(300)
def test_two_processes_killed_at_random_lose_nothing(place: str) -> None:
    """20 conversations, a minute of kills: finished turns are there once, transcripts are balanced."""
    said: list[str] = []
    dice = random.Random(4)
    end = time.monotonic() + 60
    with ModelServer() as server:
        server.on_request(decide)
        open_store(place).close()

        def keep_killing(worker: Worker) -> None:
            while time.monotonic() < end:
                worker.live(1.0 + dice.random() * 3)

        threads = [
            threading.Thread(target=keep_killing, args=(Worker(server, place, n, said),)) for n in "ab"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    done = [line.split()[1:] for line in said if line.startswith("done")]
    lost = {line.split()[2] for line in said if line.startswith("lost")}
    assert len(done) > 100
    with open_store(place) as store:
        stored = {f"talk-{n}": store.get(f"talk-{n}") or [] for n in range(CONVERSATIONS)}
    for messages in stored.values():
        assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"] * (
            len(messages) // 4
        )
        for turn in range(0, len(messages), 4):
            assert messages[turn + 3]["content"] == f"heard {messages[turn]['content']}"
    there = Counter(
        (id_, m["content"]) for id_, messages in stored.items() for m in messages if m["role"] == "user"
    )
    assert set(there.values()) == {1}
    for id_, prompt in done:
        assert (id_, prompt) in there, f"the finished turn {prompt} of {id_} was lost"
    assert not {prompt for _, prompt in there} & lost
