"""A slow consumer: nothing is lost, the socket is not read on, and memory stays flat."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pytest

from toolnexus import Client, Done, Text
from toolnexus.testing import ModelServer


def slow_consumer(server: ModelServer, events: int, size: int, pause: float, every: int) -> float:
    """Read slowly; return by how much memory grew from a tenth to nine tenths, beyond the text."""
    pieces = [f"{n:>{size}}" for n in range(events)]
    server.say(pieces)
    gc.collect()
    marks: list[int] = []
    with Client(server.base_url, model="m", api_key="test-key", queue_size=64) as client:
        stream = client.stream("hi")
        tracemalloc.start()
        try:
            count = 0
            for item in stream:
                if isinstance(item, Text):
                    assert item.delta == pieces[count]
                    count += 1
                    if count % every == 0:
                        time.sleep(pause)
                    if count in (events // 10, events * 9 // 10):
                        marks.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert count == events
        assert isinstance(item, Done)
        assert item.result.text == "".join(pieces)
    return marks[1] - marks[0]


def test_a_slow_consumer_loses_nothing_and_memory_stays_flat() -> None:
    """A full queue stops the reading; what grows is the text itself."""
    with ModelServer() as server:
        grown = slow_consumer(server, events=4000, size=500, pause=0.001, every=10)
    # The text is kept twice: by the stream as it goes, and by the result.
    assert grown < 4000 * 0.8 * (500 + 150) * 2 + 3_000_000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_consumer_that_sleeps_10_ms_an_event_against_50_000() -> None:
    """The same at full size."""
    with ModelServer() as server:
        grown = slow_consumer(server, events=50_000, size=20, pause=0.01, every=1)
    print(f"memory grew by {grown / 1024:.0f} KiB while 40000 events of 20 characters went by")
    assert grown < 40_000 * (20 + 150) * 2 + 3_000_000
