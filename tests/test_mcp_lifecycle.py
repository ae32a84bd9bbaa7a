"""MCP servers and our own end: close, Ctrl-C, crash, exit, fork, threads and running loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.mcp_servers import call, eventually, is_running, raw
from toolnexus.errors import ConfigurationError
from toolnexus.tools.mcp import McpSource

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys, time, os, signal
sys.path.insert(0, {root!r})
from tests.mcp_servers import call, raw
from toolnexus.tools.mcp import McpSource
source = McpSource({{"s": raw()}})
child = call(source, "s_spawn").output if {spawn!r} else "0"
print(call(source, "s_pid").output, child, flush=True)
{ending}
"""


def run_program(ending: str, spawn: bool = False) -> tuple[subprocess.Popen[str], int, int]:
    """Start a program that uses a server; return it and the ids of the server and of its child."""
    code = PROGRAM.format(root=str(ROOT), ending=ending, spawn=spawn)
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    server, child = program.stdout.readline().split()
    return program, int(server), int(child)


def finish(program: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a program; return its exit code and what it wrote to stderr."""
    _, errors = program.communicate(timeout=20)
    return program.returncode, errors


def test_mcp_04_close_ends_what_ignores_everything() -> None:
    """A server that ignores the end of stdin and TERM, with a child that does the same."""
    source = McpSource({"s": raw(stubborn=True)})
    child = int(call(source, "s_spawn").output)
    pid = source.status["s"].pid
    assert pid is not None
    begin = time.monotonic()
    source.close()
    assert time.monotonic() - begin < 3
    assert not is_running(pid)
    assert eventually(lambda: not is_running(child))


def test_close_ends_what_a_good_server_leaves_behind() -> None:
    """The server ends with its stdin; its child, which does not listen to TERM, is ended."""
    source = McpSource({"s": raw()})
    child = int(call(source, "s_spawn").output)
    source.close()
    assert eventually(lambda: not is_running(child))


@pytest.mark.slow
def test_several_stubborn_servers_end_together() -> None:
    """Not one after the other."""
    source = McpSource({f"s{i}": raw(stubborn=True) for i in range(3)}).start()
    pids = [status.pid for status in source.status.values()]
    begin = time.monotonic()
    source.close()
    assert time.monotonic() - begin < 3.5
    assert not any(is_running(pid) for pid in pids if pid)


def test_close_ends_calls_in_flight_and_may_be_called_twice() -> None:
    """A waiting thread gets an error result, and later calls do, too."""
    source = McpSource({"s": raw()}).start()
    tool = next(tool for tool in source.tools if tool.name == "s_hang")
    outputs: list[str] = []
    thread = threading.Thread(target=lambda: outputs.append(call(source, "s_hang").output))
    thread.start()
    time.sleep(0.2)
    source.close()
    source.close()
    thread.join(5)
    assert "closed" in outputs[0]
    from toolnexus.tools.base import Context

    late = tool.execute({}, Context())
    assert (late.is_error, "closed" in late.output) == (True, True)
    assert source.status["s"].state == "closed"
    assert repr(source) == "<McpSource s closed>"


def test_close_without_a_start() -> None:
    """Nothing was started, nothing is to end."""
    source = McpSource({"s": raw()})
    assert source.status["s"].state == "connecting"
    source.close()
    assert (source.status["s"].state, source.tools) == ("closed", [])


def test_an_error_in_the_block_closes_the_source() -> None:
    """The block's own exception comes out, and the server is gone."""
    pids: list[int | None] = []

    def block() -> None:
        with McpSource({"s": raw()}) as source:
            pids.append(source.status["s"].pid)
            raise KeyError("x")

    with pytest.raises(KeyError):
        block()
    assert pids[0] is not None
    assert not is_running(pids[0])


def test_no_file_is_left_open() -> None:
    """Starting and closing many times leaves no descriptor and no thread."""

    def once() -> None:
        with McpSource({"s": raw(), "bad": {"command": "no-such-program"}}) as source:
            call(source, "s_echo", text="x")
            call(source, "s_die")

    once()
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        once()
    gc.collect()
    after = len(os.listdir("/proc/self/fd")) if before else 0
    assert after <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("toolnexus-mcp")]


def test_ctrl_c_ends_the_servers() -> None:
    """The interrupt is ours alone, and at our exit the servers end, with all that they started."""
    program, server, child = run_program("call(source, 's_hang')", spawn=True)
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    code, errors = finish(program)
    assert code != 0
    assert "KeyboardInterrupt" in errors
    assert eventually(lambda: not is_running(server) and not is_running(child))


@pytest.mark.slow
def test_the_end_of_the_program_ends_the_servers() -> None:
    """Also where nobody called close, and without a word on stderr."""
    program, server, child = run_program("", spawn=True)
    assert finish(program) == (0, "")
    assert eventually(lambda: not is_running(server) and not is_running(child))


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), signal.SIGKILL)", pytest.param("os._exit(9)", marks=pytest.mark.slow)]
)
def test_a_crash_of_ours_ends_the_servers(ending: str) -> None:
    """They end at the end of their stdin."""
    program, server, _ = run_program(ending)
    finish(program)
    assert eventually(lambda: not is_running(server))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_servers_of_its_own() -> None:
    """It starts its own, closes only those, and does not disturb the parent's."""
    with McpSource({"s": raw()}) as source:
        mine = call(source, "s_pid").output
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # no test may go on in here, whatever happens
            try:
                theirs = call(source, "s_pid").output
                source.close()
                os.write(write, f"{theirs} {is_running(int(theirs))}".encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            theirs, running = pipe.read().split()
        os.waitpid(child, 0)
        assert theirs != mine
        assert running == "False"
        assert call(source, "s_pid").output == mine


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_servers_of_a_dead_parent() -> None:
    """The child's copy of a server's stdin is closed."""
    program, server, _ = run_program(
        "if os.fork() == 0:\n    os.close(1), os.close(2), time.sleep(5)\nos._exit(0)"
    )
    assert eventually(lambda: program.poll() is not None)
    assert eventually(lambda: not is_running(server))
    program.communicate(timeout=20)


def test_mcp_14_plain_scripts_need_no_loop() -> None:
    """From a script without asyncio, in one call."""
    with McpSource({"s": raw()}) as source:
        assert call(source, "s_add", a=2, b=3).output == "5"


def test_mcp_14_calls_work_inside_a_running_loop() -> None:
    """As in a notebook; from a coroutine and from its threads."""

    async def main() -> list[str]:
        with McpSource({"s": raw()}) as source:
            here = call(source, "s_add", a=1, b=1).output
            there = await asyncio.to_thread(lambda: call(source, "s_add", a=2, b=2).output)
            return [here, there]

    assert asyncio.run(main()) == ["2", "4"]


def test_two_threads_may_start_a_source() -> None:
    """The servers start once, and both see all tools."""
    with McpSource({"s": raw()}) as source:
        source.close()
    source = McpSource({"s": raw(names=["echo"])})
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(len(source.tools))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    starts = source.status["s"].starts
    source.close()
    assert (seen, starts) == ([1, 1, 1, 1], 1)


def test_disabled_servers_are_not_started_and_need_no_sdk() -> None:
    """A source of disabled servers starts no thread."""
    before = threading.active_count()
    with McpSource({"s": {**raw(), "enabled": False}}) as source:
        assert (source.status["s"].state, source.tools) == ("disabled", [])
        assert threading.active_count() == before


def test_what_is_wrong_in_the_configuration_is_said_at_once() -> None:
    """By the constructor, before anything starts."""
    with pytest.raises(ConfigurationError, match="'s' needs a command or a url"):
        McpSource({"s": {"args": ["x"]}})
