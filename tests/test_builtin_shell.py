"""bash: what it says, that nothing it started outlives it, and that no output is too much."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest

from toolnexus.cancel import CancelScope
from toolnexus.tools.base import Context

from .support.builtin_calls import Box, running


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return the tools."""
    return Box(tmp_path)


@pytest.fixture
def sleep() -> str:
    """Return a length of sleep that no other process has, so that it can be looked for."""
    return f"{uuid.uuid4().int % 10**6 + 1000}.{uuid.uuid4().int % 10**8:08}"


def gone(word: str) -> bool:
    """Whether all processes with a word in their command end within a while."""
    deadline = time.monotonic() + 5
    while running(word) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not running(word)


def test_output_is_both_streams_in_order(box: Box) -> None:
    """Standard output and errors come as one, as they were printed."""
    result = box.call("bash", command="echo one; echo two >&2; printf three", description="Count")
    assert (result.output, result.metadata) == ("one\ntwo\nthree", {"exitCode": 0})
    assert box.ok("bash", command="true") == ""


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("echo hi; exit 3", "hi\n\nbash: command exited with code 3", 3),
        ("exit 7", "bash: command exited with code 7", 7),
        ("kill -9 $$", "bash: command exited with code 137", 137),
        ("nosuchprogram", None, 127),
    ],
)
def test_failure_shows_the_output_and_the_code(box: Box, command: str, output: str | None, code: int) -> None:
    """A code that is not 0 is an error with the output before it."""
    result = box.call("bash", command=command)
    assert result.is_error
    assert result.metadata == {"exitCode": code}
    assert output is None or result.output == output


def test_timeout_keeps_what_was_printed(box: Box) -> None:
    """A command that takes too long is ended, and what it had printed is there."""
    result = box.call("bash", command="echo begun; sleep 30; echo never", timeout=300)
    assert (result.output, result.is_error) == ("bash: command timed out after 300ms\nbegun\n", True)


def test_timeout_asks_before_it_kills(box: Box) -> None:
    """A program that tidies up when it is asked to end has a moment to do so."""
    program = "trap 'touch tidied; exit' TERM; echo ready; while :; do sleep 0.05; done"
    assert "ready" in box.error("bash", command=program, timeout=500)
    assert (box.path / "tidied").exists()


def test_workdir(box: Box) -> None:
    """Commands start in the root, or in a folder below it."""
    box.put("sub/a.txt", "x")
    assert box.ok("bash", command="pwd -P").strip() == os.path.realpath(box.path)
    assert box.ok("bash", command="ls", workdir="sub") == "a.txt\n"
    assert box.error("bash", command="ls", workdir="sub/a.txt").startswith("bash: [Errno 20]")
    assert box.error("bash", command="ls", workdir="absent").startswith("bash: [Errno")
    assert box.error("bash", command="ls", workdir="..") == "bash: path is outside the root: .."
    assert box.error("bash") == "bash: command is required"


def test_there_is_no_input(box: Box) -> None:
    """A command that reads gets the end of the input, and never ours or a terminal's."""
    assert box.ok("bash", command="cat; echo done") == "done\n"
    assert box.call("bash", command="read x < /dev/tty").is_error


# -- nothing outlives it -----------------------------------------------------------------------


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "start", ["sleep {} & disown", "(sleep {} &)", "nohup sleep {} &", "setsid sleep {} &"]
)
def test_background_child_with_the_pipe_blocks_nobody(box: Box, sleep: str, start: str) -> None:
    """The result is there when the shell ends, though a child still holds the output; the child ends, too."""
    started = time.monotonic()
    result = box.call("bash", command=f"echo begun; {start.format(sleep)}\necho ended", timeout=20_000)
    assert time.monotonic() - started < 10
    assert not result.is_error
    assert result.output.replace("nohup: ignoring input\n", "") == "begun\nended\n"
    assert gone(sleep)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("ending", ["timeout", "cancel", "deadline"])
@pytest.mark.parametrize(
    "command",
    [
        "sleep {}",
        "sleep {} | cat",
        "bash -c 'bash -c \"sleep {}; :\"; :'",
        "trap '' TERM INT HUP; while :; do sleep {}; done",
        "setsid sleep {} & wait",
        "setsid bash -c 'trap \"\" TERM; setsid sleep {} & wait' & wait",
        "exec > /dev/null 2>&1; sleep {}",
    ],
)
def test_the_whole_family_dies(box: Box, sleep: str, command: str, ending: str) -> None:
    """Children, grandchildren and those with a session of their own end with the command, however it ends."""
    scope = CancelScope(0.25 if ending == "deadline" else None)
    if ending == "cancel":
        threading.Timer(0.25, scope.cancel).start()
    with scope.running():
        timeout = 250 if ending == "timeout" else 60_000
        started = time.monotonic()
        result = box.call("bash", Context(scope=scope), command=command.format(sleep), timeout=timeout)
    assert time.monotonic() - started < 10
    said = "bash: command timed out after 250ms" if ending == "timeout" else "bash: command was cancelled"
    assert result.output.startswith(said)
    assert gone(sleep)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("detach", ["", "setsid "], ids=["group", "sessions"])
def test_fork_bomb_of_sleeping_children_dies(box: Box, sleep: str, detach: str) -> None:
    """A command that goes on starting children which start children leaves none of them."""
    program = (
        "bomb() { local i; for i in 1 2 3 4 5 6; do "
        f"if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & fi; {detach}sleep {sleep} & done; wait; }}; bomb 2"
    )
    result = box.call("bash", command=program, timeout=1500)
    assert result.output.startswith("bash: command timed out after 1500ms")
    assert gone(sleep)


@pytest.mark.timeout(30)
def test_cancel_kills_from_the_thread_that_cancels(box: Box, sleep: str) -> None:
    """When the cancel returns, the command is dead, though the thread of the tool may never run again."""
    ctx = Context()
    thread = threading.Thread(
        target=box.call, args=("bash", ctx), kwargs={"command": f"sleep {sleep} & sleep {sleep}"}, daemon=True
    )
    thread.start()
    while len(running(sleep)) < 2:
        time.sleep(0.01)
    ctx.scope.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert gone(sleep)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("late", [0, 0.5])
def test_ctrl_c_of_the_program_ends_the_command(tmp_path: Path, sleep: str, late: float) -> None:
    """
    A program that is interrupted, and cancels as it goes, leaves no command behind.

    Nor where the command runs already while the thread that started it has not gone on yet.
    """
    code = f"""
import subprocess, threading, time
class Late(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        time.sleep({late})
subprocess.Popen = Late
from toolnexus.tools.base import Context
from toolnexus.tools.builtins import builtin_tools
tool = builtin_tools(["bash"], root={str(tmp_path)!r})[0]
ctx = Context()
args = ({{"command": "echo up; sleep {sleep}; sleep {sleep}"}}, ctx)
threading.Thread(target=tool.execute, args=args, daemon=True).start()
print("ready", flush=True)
try:
    threading.Event().wait()
except KeyboardInterrupt:
    ctx.scope.cancel()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while not [c for c in running(f"sleep {sleep}") if c.startswith("sleep")]:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert gone(sleep)


# -- how much it prints ------------------------------------------------------------------------


def test_long_output_keeps_its_ends(box: Box) -> None:
    """The beginning and the end stay, and the cut says how many bytes are gone."""
    output = box.ok("bash", command="echo first; yes 0123456789 | head -n 100000; echo last")
    assert output.startswith("first\n")
    assert output.endswith("last\n")
    match = re.search(r"\n\[\.\.\. (\d+) bytes cut \.\.\.\]\n", output)
    assert match is not None
    assert len(output) - len(match[0]) + int(match[1]) == 6 + 1_100_000 + 5


@pytest.mark.timeout(60)
def test_gigabytes_take_no_memory(box: Box) -> None:
    """A command that prints without end is read in bounded memory and ended in time."""
    deltas = []
    ctx = Context(emit=lambda kind, delta: deltas.append(delta))
    tracemalloc.start()
    try:
        result = box.call("bash", ctx, command="head -c 300000000 /dev/zero | tr '\\0' x; yes", timeout=2000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert len(result.output) < 31_000
    assert sum(map(len, deltas)) < 31_000


def test_progress_comes_while_the_command_runs(box: Box) -> None:
    """What is printed is reported as it comes, in whole letters."""
    seen: list[tuple[float, str]] = []

    def emit(kind: str, delta: Any) -> None:
        assert kind == "output"
        seen.append((time.monotonic(), delta))

    command = "echo one; sleep 0.4; printf '\\303'; sleep 0.2; printf '\\251\\n'; printf '\\377'"
    result = box.call("bash", Context(emit=emit), command=command)
    assert "".join(delta for _, delta in seen) == result.output == "one\né\n\ufffd"
    assert seen[0][1] == "one\n"
    assert seen[-1][0] - seen[0][0] > 0.3


# -- what it sees ------------------------------------------------------------------------------


def test_secrets_of_the_environment_are_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands see what they need and what was named, and no key that happens to be there."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-TESTKEY123")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk-TESTKEY123")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "evil.sh"))
    seen = dict(line.split("=", 1) for line in Box(tmp_path).ok("bash", command="env").splitlines())
    usual = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"}
    shell = {"PWD", "OLDPWD", "SHLVL", "_", "TOOLNEXUS_COMMAND"}
    assert {name for name in seen if not name.startswith("LC_")} <= usual | shell
    assert seen["LC_ALL"] == "C.UTF-8"
    assert seen["PATH"] == os.environ["PATH"]


def test_named_variables_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of names hands on what is there; a map sets what it says."""
    monkeypatch.setenv("MY_TOKEN", "t0ken")
    listed = Box(tmp_path, env=["MY_TOKEN", "ABSENT"])
    assert listed.ok("bash", command="echo $MY_TOKEN ${ABSENT-none}") == "t0ken none\n"
    assert Box(tmp_path, env={"MY_TOKEN": "other"}).ok("bash", command="echo $MY_TOKEN") == "other\n"
    assert "t0ken" not in repr(listed.tools["bash"])


def test_another_shell(tmp_path: Path) -> None:
    """The shell is the one that is named; one that is not there is an error of the call."""
    assert Box(tmp_path, shell="/bin/sh").ok("bash", command="echo $0").strip() == "/bin/sh"
    assert Box(tmp_path, shell="/absent").error("bash", command="true").startswith("bash: [Errno 2]")


@pytest.mark.timeout(60)
def test_many_commands_leave_nothing_open(box: Box) -> None:
    """Neither descriptors nor processes pile up, also above the number that select() can do with."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        before = len(os.listdir("/dev/fd"))
        for _ in range(10):
            assert box.ok("bash", command="echo x & wait; sleep 100 &") == "x\n"
            box.put("a.txt", "x")
            assert box.ok("grep", pattern="x|y") == "a.txt:1:x"
        assert len(os.listdir("/dev/fd")) == before
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
