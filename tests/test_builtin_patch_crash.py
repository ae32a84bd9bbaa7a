"""apply_patch and the death of its process: whatever was begun is taken back at the next use."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .support.builtin_calls import Box

REPOSITORY = Path(__file__).parents[1]

#: Applies patches that turn every file from one state to the next, for ever, and says when it begins.
LOOP = """
import sys
from toolnexus.tools.base import Context
from toolnexus.tools.builtins import builtin_tools

root = None if sys.argv[1] == "-" else sys.argv[1]
top = sys.argv[2]
(tool,) = builtin_tools(["apply_patch"], root=root)

def patch(old, new):
    lines = ["*** Begin Patch"]
    for i in range(12):
        lines += [f"*** Update File: {top}/f{i}.txt", f"-{old}", f"+{new}"]
    lines.append(f"*** Delete File: {top}/only{old % 2}/x.txt")
    lines += [f"*** Add File: {top}/only{new % 2}/x.txt", f"+{new}", "*** End Patch"]
    return "\\n".join(lines)

n = int(sys.argv[3])
print("ready", flush=True)
while True:
    result = tool.execute({"patchText": patch(n, n + 1)}, Context())
    assert not result.is_error, result.output
    n += 1
"""


def prepare(top: Path, n: int) -> None:
    """Put the files into a state."""
    shutil.rmtree(top, ignore_errors=True)
    for i in range(12):
        path = top / f"f{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{n}\n")
    (top / f"only{n % 2}").mkdir()
    (top / f"only{n % 2}" / "x.txt").write_text(f"{n}\n")


def consistent(top: Path) -> int:
    """Return the one state that all files are in; fail if there is none."""
    states = {(top / f"f{i}.txt").read_text() for i in range(12)}
    assert len(states) == 1, states
    n = int(states.pop())
    assert (top / f"only{n % 2}" / "x.txt").read_text() == f"{n}\n"
    files = sorted(p.name for p in top.rglob("*") if not p.is_dir())
    assert files == sorted([f"f{i}.txt" for i in range(12)] + ["x.txt"])
    return n


def run_and_kill(root: str, top: Path, n: int, delay: float) -> None:
    """Start the loop and kill it after a while of work."""
    command = [sys.executable, "-c", LOOP, root, str(top), str(n)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def check_many_kills(tmp_path: Path, root: str, rounds: int) -> None:
    """Kill the loop at random moments, and look at the files by way of the tools each time."""
    top = tmp_path / "work"
    prepare(top, 0)
    n, found = 0, 0
    dice = random.Random()
    for _ in range(rounds):
        run_and_kill(root, top, n, dice.uniform(0, 0.08))
        found += any(p.name.startswith(".toolnexus-") for p in tmp_path.rglob("*"))
        box = Box(tmp_path, root=None if root == "-" else root)
        box.ok("read", path=str(top / "f0.txt"))
        n = consistent(top)
    assert found > 0, "no kill came in the middle of a patch: the test shows nothing"


@pytest.mark.timeout(120)
def test_kill_at_any_moment_leaves_one_state(tmp_path: Path) -> None:
    """After a kill the next use of a tool finds every file in the state before the patch or after it."""
    check_many_kills(tmp_path, str(tmp_path), 8)


@pytest.mark.timeout(120)
def test_kill_without_a_root_leaves_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds where no root confines, by way of the journal that is this user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    check_many_kills(tmp_path, "-", 5)


@pytest.mark.slow
def test_many_kills_leave_one_state(tmp_path: Path) -> None:
    """The same, many more times."""
    check_many_kills(tmp_path, str(tmp_path), 150)


def cut_off(tmp_path: Path) -> Box:
    """Return tools over files that a killed patch left half done."""
    top = tmp_path / "work"
    for _ in range(200):
        prepare(top, 0)
        run_and_kill(str(tmp_path), top, 0, random.Random().uniform(0, 0.05))
        journal = tmp_path / ".toolnexus-patch.json"
        mixed = len({(top / f"f{i}.txt").read_text() for i in range(12)}) > 1
        if journal.exists() and mixed:
            return Box(tmp_path)
        Box(tmp_path).ok("read", path="work/f0.txt")
    raise AssertionError("no kill came between two files")


@pytest.mark.slow
def test_what_was_changed_after_the_death_is_left_alone(tmp_path: Path) -> None:
    """A person's own edit of a file after the crash is not undone by the clearing up."""
    box = cut_off(tmp_path)
    (tmp_path / "work" / "f0.txt").write_text("my own work\n")
    box.ok("glob", pattern="*")
    assert (tmp_path / "work" / "f0.txt").read_text() == "my own work\n"
    assert len({(tmp_path / f"work/f{i}.txt").read_text() for i in range(1, 12)}) == 1
    assert not [n for n in box.names() if ".toolnexus-" in n]


@pytest.mark.slow
def test_read_only_tools_do_not_clear_up(tmp_path: Path) -> None:
    """Tools that may not write leave even the remains of a crash as they are."""
    cut_off(tmp_path)
    before = sorted(os.listdir(tmp_path / "work"))
    from toolnexus.tools.base import Context
    from toolnexus.tools.builtins import builtin_tools

    for tool in builtin_tools("read-only", root=tmp_path):
        tool.execute({"path": "work", "pattern": "x"}, Context())
    assert sorted(os.listdir(tmp_path / "work")) == before


def test_patch_in_another_process_is_waited_for(tmp_path: Path) -> None:
    """While one process patches, another waits for its turn, and its readers do not take it for dead."""
    top = tmp_path / "work"
    prepare(top, 0)
    command = [sys.executable, "-c", LOOP, str(tmp_path), str(top), "0"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        box = Box(tmp_path)
        while box.ok("read", path="work/f0.txt") == "0\n":
            time.sleep(0.01)
        for i in range(20):
            box.ok("read", path="work/f0.txt")
            patch = f"*** Begin Patch\n*** Add File: mine{i}.txt\n+x\n*** End Patch"
            box.ok("apply_patch", patchText=patch)
        assert process.poll() is None
        process.kill()
    box.ok("read", path="work/f0.txt")
    assert consistent(top) > 0
    assert len(list(tmp_path.glob("mine*.txt"))) == 20
