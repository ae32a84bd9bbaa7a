"""A process that forks in the middle of anything: no lock that another thread holds stops the child."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolnexus.testing import ModelServer, reply

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

#: Runs a function in a child, which has ten seconds, and fails where it failed or hung.
PRELUDE = """
import os, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: that is what is tried here
from toolnexus import *

def in_child(work):
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def busy(*works):
    "Call functions over and over, each in a thread of its own, until the program ends."
    def go(work):
        while True:
            work()
    for work in works:
        threading.Thread(target=go, args=(work,), daemon=True).start()
"""


def run_script(code: str) -> str:
    """Run a script that must end well and say nothing on stderr; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)], capture_output=True, text=True, timeout=90
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        server.on_request(lambda request: reply([request.json["messages"][-1]["content"]]))
        yield server


def test_net_15_a_fork_in_the_middle_of_runs(server: ModelServer, tmp_path: Path) -> None:
    """Threads run, save, count and register tools with what the children go on using, which works there."""
    out = run_script(f"""
            def add(a: int, b: int) -> int:
                "Add."
                return a + b
            toolkit = Toolkit([add])
            store = SqliteStore({str(tmp_path / "c.db")!r})
            scope = CancelScope()
            client = Client({server.base_url!r}, model="m", api_key="k", store=store)
            plain = Client({server.base_url!r}, model="m", api_key="k")

            def register(name="theirs"):
                toolkit.register(Tool(name))
                assert toolkit.unregister(name)

            names = iter(range(10**9))
            works = [
                lambda: client.run("t", toolkit, id=f"parent-{{next(names)}}"),
                lambda: plain.stream("t", toolkit, id="parent", scope=scope).result(),
                register,
                lambda: (client.metrics(), plain.conversation_store.get("parent")),
            ]
            for work in works:
                work()  # imports what is imported late: Python's own locks for that do not survive a fork
            busy(*works)

            def child():
                for _ in range(2):
                    assert client.run("a", toolkit, id="child").text == "a"
                    assert plain.stream("b", toolkit, id="parent", scope=scope).result().text == "b"
                register("mine")
                assert toolkit.execute("add", {{"a": 1, "b": 2}}).output == "3"
                assert client.metrics()

            for _ in range(25):
                in_child(child)
            print("done", flush=True)
            os._exit(0)
        """)
    assert out == "done\n"


def test_a_change_of_a_file_in_another_thread_does_not_stop_the_child(tmp_path: Path) -> None:
    """The file tools change one file at a time; whoever does so at the fork is in the other process only."""
    out = run_script(f"""
            from toolnexus.tools.builtins.files import CHANGING
            toolkit = Toolkit(builtins=True, root={str(tmp_path)!r})
            held, release = threading.Event(), threading.Event()

            def hold():
                with CHANGING:
                    held.set()
                    release.wait(20)

            threading.Thread(target=hold, daemon=True).start()
            held.wait()

            def child():
                result = toolkit.execute("write", {{"path": "a.txt", "content": "from the child"}})
                assert not result.is_error, result

            in_child(child)
            release.set()
            print(toolkit.execute("read", {{"path": "a.txt"}}).output)
        """)
    assert "from the child" in out


def test_a_patch_at_the_time_of_a_fork_does_not_lock_out_anybody(tmp_path: Path) -> None:
    """The child has the open journal folder of its parent; once the parent's patch is done, both go on."""
    out = run_script(f"""
            toolkit = Toolkit(builtins=True, root={str(tmp_path)!r})
            names = iter(range(10**9))

            def patch(name):
                text = "*** Begin Patch\\n*** Add File: " + name + "\\n+hello\\n*** End Patch"
                result = toolkit.execute("apply_patch", {{"patchText": text}})
                assert not result.is_error, result.output

            patch("first.txt")
            busy(lambda: patch(f"parent-{{next(names)}}.txt"))
            for n in range(15):
                in_child(lambda: patch(f"child-{{n}}.txt"))
            patch("last.txt")
            print("done", flush=True)
            os._exit(0)
        """)
    assert out == "done\n"
    assert {path.name for path in tmp_path.glob("child-*")} == {f"child-{n}.txt" for n in range(15)}


def test_a_scope_that_was_busy_at_the_fork_serves_the_child(server: ModelServer) -> None:
    """Its lock is free there, and cancelling there does not touch the sockets of the parent."""
    server.say(["a", "b"], hold=True)
    out = run_script(f"""
            scope = CancelScope()
            client = Client({server.base_url!r}, model="m", api_key="k")
            stream = client.stream("hi", scope=scope)
            assert next(stream).delta == "a"
            held, release = threading.Event(), threading.Event()

            def hold():
                with scope._lock:
                    held.set()
                    release.wait(20)

            threading.Thread(target=hold, daemon=True).start()
            held.wait()

            def child():
                assert client.run("mine", scope=scope).text == "mine"
                told = []
                scope.on_cancel(lambda: told.append(1))
                scope.cancel()
                assert told == [1]

            in_child(child)
            release.set()
            stream.scope.check()
            assert client.run("still there").text == "still there"
            stream.close()
            print("done")
        """)
    assert out == "done\n"
