"""What redaction costs, beside the same stream without it, in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from toolnexus import Client, Stream
from toolnexus.compose import redact

PIECES = 2000
ROUNDS = 9

SERVER = f"""
    import sys
    from toolnexus.testing import ModelServer
    words = "Hello there, this is an ordinary answer of a model, with 12 words and (some) punctuation. "
    pieces = [word + " " for word in (words * 200).split()][:{PIECES}]
    with ModelServer(style="openai") as server:
        for _ in range({2 * ROUNDS}):
            server.say(pieces)
        print(server.base_url, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A server in a process of its own, so that only the client's work is measured."""
    command = [sys.executable, "-c", textwrap.dedent(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.mark.bench
def test_redaction_costs_at_most_as_much_again(url: str) -> None:
    """A stream with the default rules takes at most twice the processor time of the bare one."""

    def cost(client: Client, wrap: Callable[[Stream], Stream]) -> float:
        began = time.process_time()
        for _ in wrap(client.stream("hi")):
            pass
        return (time.process_time() - began) / PIECES * 1e6

    with Client(url, model="m") as client:
        rounds = [(cost(client, lambda s: s), cost(client, lambda s: redact(s))) for _ in range(ROUNDS)]
    bare, redacted = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"\n{bare:.1f} us a piece, {redacted:.1f} us redacted: {redacted / bare:.2f} times")
    assert redacted <= 2 * bare
