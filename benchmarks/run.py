"""
Measure toolnexus against its base and print the ratios as a Markdown table.

    python benchmarks/run.py                    everything, about five minutes
    python benchmarks/run.py --quick            the same with few repetitions: that it works, no more
    python benchmarks/run.py agent many         some of it

Where the system allows, the server has a processor for itself and what is measured has another one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measures import MEASURES

HERE = Path(__file__).parent


def pin(position: int) -> None:
    """Stay on one of the processors that there are."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[position % len(mine)]})


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run the server, and yield its port."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: pin(1),
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def measure(name: str, port: str, quick: bool) -> list[dict[str, Any]]:
    """Take one measurement in a process of its own."""
    command = [sys.executable, str(HERE / "measures.py"), name, port, *(["--quick"] if quick else [])]
    environment = {**os.environ, "NO_PROXY": "*"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, preexec_fn=lambda: pin(0)
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def line(row: dict[str, Any]) -> str:
    def span(values: tuple[float, float]) -> str:
        return " to ".join(f"{value:.3g}" for value in values)

    cells = (
        row["what"],
        f"{row['target']:g}",
        f"**{row['ratio']:.3g}**",
        span(row["ratios"]),
        span(row["noise"]),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of toolnexus.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="few repetitions, small sizes")
    options = parser.parse_args()
    names = options.names or list(MEASURES)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("requests", "urllib3", "sseclient-py"))
    print(f"CPython {platform.python_version()}, {libraries}, {os.cpu_count()} processors\n")
    print("| what | at most | median | middle half | the base against itself |")
    print("|---|---|---|---|---|")
    with serving() as port:
        for name in names:
            for row in measure(name, port, options.quick):
                print(line(row), flush=True)


if __name__ == "__main__":
    main()
