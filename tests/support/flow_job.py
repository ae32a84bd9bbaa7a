"""A flow in a process of its own, which dies where it is told to: ``flow_job.py STORE LOG DIE_AT``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from toolnexus import Flow, SqliteStore


def make(store: Any, log: Path, die_at: str = "") -> Flow:
    """Make a flow whose second node is a flow; each node notes that it ran, and one may kill the process."""

    def noting(name: str) -> Any:
        def note(state: dict[str, Any]) -> dict[str, Any]:
            with log.open("a") as file:
                file.write(f"{name}\n")
            if name == die_at:
                os._exit(9)
            return {name: True}

        return note

    inner = Flow("inner")
    for name in ("in_1", "in_2", "in_3"):
        inner.node(name=name)(noting(name))
    inner.edge("in_1", "in_2")
    inner.edge("in_2", "in_3")
    flow = Flow("outer", store=store)
    flow.node(name="one")(noting("one"))
    flow.nest("two", inner)
    flow.node(name="three")(noting("three"))
    flow.edge("one", "two")
    flow.edge("two", "three")
    return flow


def main() -> None:
    """Run the flow until it dies."""
    store, log, die_at = sys.argv[1:]
    print(make(SqliteStore(store), Path(log), die_at).run({"n": 1}, id="job").status)


if __name__ == "__main__":
    main()
