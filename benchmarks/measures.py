"""
The measurements, each in a process of its own: `python measures.py NAME PORT [--quick]`.

Base and ours take turns in short pairs, so that both see the same noise. Each pair gives one ratio;
between two runs of the base stands the same ratio of the base to itself, which says how much
of the rest is noise. The rows go to the standard output as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from peers import Floor, Loop, Peer, Toolnexus

from toolnexus.compose import redact
from toolnexus.events import CHANNELS, Event
from toolnexus.report import Reporter

Sample = Callable[[], float]
Send = Callable[..., bool]
Clock = Callable[[], float]

#: On a busy machine the second one says more: what other programs do is not in it.
CLOCKS: dict[str, Clock] = {"wall time": time.perf_counter, "CPU time": time.process_time}


def row(what: str, target: float, pairs: list[tuple[float, float]], again: list[float]) -> dict[str, Any]:
    """
    Return a row of the table.

    Args:
        what: What was measured.
        target: The most that is wanted.
        pairs: What base and ours took, one pair after the other.
        again: The ratios of the base to itself.
    """
    ratios = [ours / base for base, ours in pairs]
    return {
        "what": what,
        "target": target,
        "ratio": statistics.median(ratios),
        "ratios": _middle_half(ratios),
        "noise": _middle_half(again),
        "base": statistics.median(base for base, _ in pairs),
        "ours": statistics.median(ours for _, ours in pairs),
    }


def _middle_half(values: list[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (1.0, 1.0)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def in_turns(base: Sample, ours: Sample, count: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Take so many pairs; return them and the ratios of each base to the one before."""
    pairs = []
    for _ in range(count):
        gc.collect()
        first = base()
        gc.collect()
        pairs.append((first, ours()))
    again = [pairs[n][0] / pairs[n - 1][0] for n in range(1, count)]
    return pairs, again


def seconds(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    began = clock()
    action()
    return clock() - began


def _nothing(delta: str) -> None:
    pass


def streaming(peer: Peer, model: str, clock: Clock = time.perf_counter) -> Sample:
    peer.stream(model, _nothing)
    return lambda: seconds(lambda: peer.stream(model, _nothing), clock)


def running(peer: Peer, model: str, times: int = 1, clock: Clock = time.perf_counter) -> Sample:
    def work() -> None:
        for _ in range(times):
            peer.agent(model)

    work()
    return lambda: seconds(work, clock)


def _unfiltered(self: Reporter, event: type[Event], *args: object) -> bool:
    """Report an event whatever was asked for."""
    assert self.outlet is not None
    self._seq += 1
    self.outlet.put(event(*args, origin=self.origin, seq=self._seq, timestamp=time.time()))
    return True


def _bare(self: Reporter, event: type[Event], *args: object) -> bool:
    """Report an event that does not know where it comes from."""
    if event not in self.wants or self.outlet is None:
        return False
    self.outlet.put(event(*args))
    return True


@contextlib.contextmanager
def reporting(send: Send | None) -> Iterator[None]:
    """Have runs report in another way, for a base that there is no option for."""
    kept = Reporter.send
    if send is not None:
        Reporter.send = send  # type: ignore[method-assign]
    try:
        yield
    finally:
        Reporter.send = kept  # type: ignore[method-assign]


def delta(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time a streamed delta, one a chunk."""
    model = "text-1000" if quick else "text-5000"
    base, ours = Floor(port), Toolnexus(port)
    return [
        row(
            f"{name} a streamed delta, over http.client",
            3.0,
            *in_turns(streaming(base, model, clock), streaming(ours, model, clock), 5 if quick else 40),
        )
        for name, clock in CLOCKS.items()
    ]


#: What a stream has beside its deltas: the row, the most that is wanted, the options of the stream, and what
#: the reporter of its base leaves out.
LAYERS: tuple[tuple[str, float, dict[str, Any], Send | None], ...] = (
    ("the default channels, over no choice of channels at all", 1.02, {}, _unfiltered),
    ("all channels, over the default ones", 1.2, {"channels": list(CHANNELS)}, None),
    ("events that know where they come from, over bare ones", 1.2, {}, _bare),
    ("redacted with the default rules, over not redacted", 2.0, {"wrap": redact}, None),
)


def layers(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time what channels, envelope and redaction add to a streamed delta."""
    peer, model, count = Toolnexus(port), "words-1000" if quick else "words-5000", 5 if quick else 40

    def sample(send: Send | None, **options: Any) -> Sample:
        def work() -> None:
            with reporting(send):
                peer.events(model, **options)

        work()
        return lambda: seconds(work, time.process_time)

    return [
        row(f"CPU time a delta, {what}", target, *in_turns(sample(send), sample(None, **options), count))
        for what, target, options, send in LAYERS
    ]


def latency(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time from the sending of a paced delta until the caller has it, in microseconds."""
    model = "paced-40-5" if quick else "paced-200-5"

    def late(peer: Peer) -> Sample:
        return lambda: statistics.median(_lateness(peer, model)) / 1000

    pairs, _ = in_turns(late(Floor(port)), late(Toolnexus(port)), 2 if quick else 10)
    above = [ours - base for base, ours in pairs]
    bases = [base for base, _ in pairs]
    return [
        {
            "what": "delivery of a paced delta, above http.client, µs",
            "target": 200,
            "ratio": statistics.median(above),
            "ratios": _middle_half(above),
            "noise": _middle_half([second - first for first, second in itertools.pairwise(bases)]),
            "base": statistics.median(bases),
            "ours": statistics.median(ours for _, ours in pairs),
        }
    ]


def _lateness(peer: Peer, model: str) -> list[int]:
    """Return how late each delta of an answer came, in nanoseconds."""
    late: list[int] = []
    peer.stream(model, lambda sent: late.append(time.monotonic_ns() - int(sent)))
    return late


def agent(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time an agent loop of two requests and two tools."""
    base, ours = Loop(port), Toolnexus(port)
    return [
        row(
            f"{name} of an agent loop, streaming, over requests and sseclient-py by hand",
            1.1,
            *in_turns(
                running(base, "agent", 10, clock), running(ours, "agent", 10, clock), 5 if quick else 40
            ),
        )
        for name, clock in CLOCKS.items()
    ]


def large(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time one large event, and arguments in many fragments at two sizes."""
    event = "event-1" if quick else "event-8"
    sizes = (64, 256) if quick else (1024, 4096)
    count = 2 if quick else 5
    rows = [
        row(
            f"one event of {event[6:]} MB",
            2.0,
            *in_turns(streaming(Floor(port), event), streaming(Toolnexus(port), event), count * 2),
        )
    ]
    times = []
    for size in sizes:
        model = f"arguments-{size}"
        pairs, again = in_turns(running(Floor(port), model), running(Toolnexus(port), model), count)
        times.append(statistics.median(ours for _, ours in pairs))
        rows.append(row(f"{size} kB of arguments in fragments of 20 bytes", 2.0, pairs, again))
    growth = times[1] / times[0] / (sizes[1] / sizes[0])
    rows.append(row("the same, time a byte when there are 4 times as many", 1.2, [(1.0, growth)], [1.0]))
    return rows


def many(port: int, quick: bool) -> list[dict[str, Any]]:
    """Run a hundred streams at once, a delta each 10 ms, against as many threads with a loop by hand."""
    streams, model = (20, "paced-50-10") if quick else (100, "paced-200-10")
    results: dict[str, list[tuple[float, float]]] = {"base": [], "ours": []}
    for _ in range(2 if quick else 9):
        for name, peer in (("base", Loop(port)), ("ours", Toolnexus(port))):
            gc.collect()
            results[name].append(_at_once(peer, model, streams))
    rows = []
    named = (("p99 of delivery", 3.0), ("CPU time", 1.7))
    for position, (what, target) in enumerate(named):
        bases = [result[position] for result in results["base"]]
        ours = [result[position] for result in results["ours"]]
        again = [second / first for first, second in itertools.pairwise(bases)]
        what = f"{streams} streams at once, {what}, over {streams} threads by hand"
        rows.append(row(what, target, list(zip(bases, ours, strict=True)), again))
    return rows


def _at_once(peer: Peer, model: str, streams: int) -> tuple[float, float]:
    """Return the 99th percentile of the lateness, and the CPU time, in seconds; all ask in one moment."""
    peer.stream("paced-5-2", _nothing)
    late: list[list[int]] = [[] for _ in range(streams)]
    line = threading.Barrier(streams + 1)

    def ask(mine: list[int]) -> None:
        line.wait()
        mine.extend(_lateness(peer, model))

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in late]
    before = _cpu()
    for thread in threads:
        thread.start()
    line.wait()
    for thread in threads:
        thread.join()
    spent = _cpu() - before
    every = sorted(nanoseconds for mine in late for nanoseconds in mine)
    return every[len(every) * 99 // 100] / 1e9, spent


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def importing(port: int, quick: bool) -> list[dict[str, Any]]:
    """Time imports in fresh interpreters, with bytecode on the disk."""
    base = "import requests, sseclient, attrs"
    rows = []
    names = "from toolnexus import Client, tool, Text, ToolCall, Done, Error"
    client = f'{names}; Client(base_url="http://127.0.0.1/v1", model="m")'
    for ours, what in (
        ("import toolnexus", "`import toolnexus`"),
        (names, "`from toolnexus import` what the README imports"),
        (client, "the same, and a first `Client`, which loads the rest"),
    ):
        pairs, again = in_turns(_import(base), _import(ours), 3 if quick else 25)
        rows.append(row(f"{what}, over importing the three dependencies", 1.2, pairs, again))
    return rows


def _import(statement: str) -> Sample:
    code = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def sample() -> float:
        with tempfile.TemporaryDirectory() as elsewhere:
            command = [sys.executable, "-c", code]
            done = subprocess.run(
                command, env=environment, cwd=elsewhere, capture_output=True, text=True, check=True
            )
        return float(done.stdout)

    sample()
    return sample


MEASURES = {f.__name__: f for f in (delta, layers, latency, agent, large, many, importing)}


if __name__ == "__main__":
    name, port = sys.argv[1:3]
    print(json.dumps(MEASURES[name](int(port), "--quick" in sys.argv)), flush=True)
