"""A durable job of ten tool calls that kills itself at a given point of its first life."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from toolnexus import Client, Context, SqliteStore, Tool

CALLS = 10


def main(base_url: str, style: str, folder: str, crash: str, policy: str) -> None:
    log = Path(folder, "log")
    first_life = not Path(folder, "second").exists()
    Path(folder, "second").touch()

    def note(text: str) -> None:
        with log.open("a") as file:
            file.write(text + "\n")

    def die_at(point: str) -> None:
        if first_life and point == crash:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(args: dict[str, Any], ctx: Context) -> str:
        number = args["n"]
        die_at(f"before-{number}")
        note(f"did {number}")
        die_at(f"in-{number}")
        return f"result {number}"

    class Hooks:
        def before_llm(self, view: dict[str, Any]) -> None:
            die_at(f"before-model-{view['turn']}")
            note(f"asked {view['turn']}")

        def after_llm(self, view: dict[str, Any]) -> None:
            die_at(f"after-model-{view['turn']}")

        def after_tool(self, view: dict[str, Any]) -> None:
            die_at(f"after-{view['args']['n']}")

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = Tool("step", "", schema, step, on_interrupted=policy)
    store = SqliteStore(Path(folder, "store.db"))
    with Client(
        base_url=base_url, style=style, model="m", api_key="k", store=store, hooks=Hooks(), max_turns=20
    ) as client:
        result = client.run("do all ten", [tool], id="nightly", durable=True)
    print(result.status, result.text, len(result.tool_calls), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
