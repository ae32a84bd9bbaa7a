"""An approval where people are: in a real terminal, and in a real Jupyter kernel."""

from __future__ import annotations

import os
import pty
import select
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest

from toolnexus.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def script(server: ModelServer) -> str:
    return textwrap.dedent(f"""
        from toolnexus import Client, tool

        @tool(approval=True)
        def delete(path: str) -> str:
            "Delete a file."
            print("DELETED", path)
            return "gone"

        client = Client(base_url={server.base_url!r}, model="m")
        stream = client.stream("tidy", [delete])
        for event in stream:
            if event.type == "pending":
                stream.answer(event.request, input(event.request.prompt + " ") == "y")
            elif event.type == "text":
                print(event.delta, end="", flush=True)
        print()
    """)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("key", "deleted"), [("y", True), ("n", False)])
def test_an_approval_in_a_real_terminal(server: ModelServer, key: str, deleted: bool) -> None:
    """input() in the loop answers; the tool runs or does not; the answer arrives."""
    server.call("delete", {"path": "old.txt"})
    server.say("all tidy")
    master, slave = pty.openpty()
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-c", script(server)], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = read_until(master, "Run delete?")
    os.write(master, key.encode() + b"\n")
    shown += read_until(master, "all tidy")
    assert process.wait(timeout=20) == 0
    os.close(master)
    assert ("DELETED old.txt" in shown) is deleted


def read_until(terminal: int, text: str) -> str:
    """Read what the terminal shows until a text has come."""
    shown, end = "", time.monotonic() + 30
    while text not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.slow
def test_an_approval_in_a_real_kernel(server: ModelServer) -> None:
    """A cell's own input() answers; the kernel's loop does not get in the way, and no thread is left."""
    manager_module = pytest.importorskip("jupyter_client.manager")
    server.call("delete", {"path": "old.txt"})
    server.say("all tidy")
    manager, client = manager_module.start_new_kernel(kernel_name="python3")
    try:
        shown: list[str] = []

        def output(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text") or str(content.get("evalue") or ""))

        def stdin(message: dict[str, Any]) -> None:
            assert message["content"]["prompt"] == "Run delete? "
            client.input("y")

        code = script(server) + textwrap.dedent("""
            import threading
            print([t.name for t in threading.enumerate() if t.name.startswith("toolnexus")])
        """)
        reply = client.execute_interactive(
            code, allow_stdin=True, output_hook=output, stdin_hook=stdin, timeout=60
        )
        assert reply["content"]["status"] == "ok", "".join(shown)
        assert "DELETED old.txt" in "".join(shown)
        assert "all tidy" in "".join(shown)
        assert "[]" in "".join(shown)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
