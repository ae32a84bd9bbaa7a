"""Confinement: every way out of the root that we know, tried on every tool that takes a path."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .support.builtin_calls import Box

SECRET = "the secret of the house"


def patch(*sections: str) -> str:
    """Return the text of a patch."""
    return "\n".join(["*** Begin Patch", *sections, "*** End Patch"])


#: Each tool with a path in each place where it takes one.
CALLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "read": lambda p: {"path": p},
    "read window": lambda p: {"path": p, "offset": 1, "limit": 5},
    "write": lambda p: {"path": p, "content": "overwritten"},
    "edit": lambda p: {"path": p, "oldString": "secret", "newString": "joke"},
    "grep": lambda p: {"pattern": "secret", "path": p},
    "grep regex": lambda p: {"pattern": "s.cret", "path": p},
    "glob": lambda p: {"pattern": "**", "path": p},
    "apply_patch add": lambda p: {"patchText": patch(f"*** Add File: {p}", "+overwritten")},
    "apply_patch update": lambda p: {
        "patchText": patch(f"*** Update File: {p}", f"-{SECRET}", "+overwritten")
    },
    "apply_patch delete": lambda p: {"patchText": patch(f"*** Delete File: {p}")},
    "apply_patch move": lambda p: {"patchText": patch("*** Update File: inside.txt", f"*** Move to: {p}")},
    "bash": lambda p: {"command": "cat secret.txt; ls", "workdir": p},
}

#: Ways of spelling a path that leads out; {out} is the folder outside, {root} the root.
SPELLINGS = [
    "{out}/secret.txt",
    "../out/secret.txt",
    "./../out/secret.txt",
    "deep/../../out/secret.txt",
    "deep//..//..//out/secret.txt",
    "deep/./../../out/./secret.txt",
    "{root}/../out/secret.txt",
    "{root}/deep/../../out/secret.txt",
    "/{out}/secret.txt",
    "//{out}/secret.txt",
    "absent/../../out/secret.txt",
    "link.txt",
    "linkdir/secret.txt",
    "linkdir/../out/secret.txt",
    "hop/secret.txt",
    "deep/up/out/secret.txt",
    "rellink.txt",
    "chain1",
    "/proc/self/root{out}/secret.txt",
    "/proc/self/cwd/../out/secret.txt",
    "~/../out/secret.txt",
    "{root}2/secret.txt",
    "../root2/secret.txt",
]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return a root with links that lead out of it, beside folders with a secret."""
    box = Box(tmp_path / "root")
    for folder in ("out", "root2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "secret.txt").write_text(SECRET + "\n")
    box.put("inside.txt", "inside\n")
    box.put("deep/file.txt", "file\n")
    (box.path / "link.txt").symlink_to(tmp_path / "out" / "secret.txt")
    (box.path / "rellink.txt").symlink_to("../out/secret.txt")
    (box.path / "linkdir").symlink_to(tmp_path / "out")
    (box.path / "hop").symlink_to("deep/hop2")
    (box.path / "deep" / "hop2").symlink_to("../linkdir")
    (box.path / "deep" / "up").symlink_to("../..")
    (box.path / "chain1").symlink_to("chain2")
    (box.path / "chain2").symlink_to("link.txt")
    return box


def state(top: Path) -> dict[str, str]:
    """Return what the folders outside the root hold."""
    files = (p for folder in ("out", "root2") for p in (top / folder).rglob("*"))
    return {str(p.relative_to(top)): p.read_text() for p in files}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_leads_out(box: Box, tmp_path: Path, call: str, spelling: str) -> None:
    """No tool reads, lists, changes or runs anything outside, however the path is written."""
    given_path = spelling.format(out=tmp_path / "out", root=box.path)
    if call in ("glob", "bash"):
        given_path = os.path.dirname(given_path) or given_path
    before = state(tmp_path)
    result = box.call(call.split()[0], **CALLS[call](given_path))
    assert state(tmp_path) == before
    assert SECRET not in result.output
    assert result.is_error or given_path.startswith("~"), result.output  # "~" is a name like any other
    assert "secret.txt" not in result.output.replace(given_path, "")


@pytest.mark.parametrize("call", [c for c in CALLS if c not in ("bash", "glob")])
def test_error_names_the_path_as_it_was_given(box: Box, call: str) -> None:
    """The model learns that its path leads out, and nothing about where it leads."""
    result = box.call(call.split()[0], **CALLS[call]("deep/up/out/secret.txt"))
    assert result.output == f"{call.split()[0]}: path is outside the root: deep/up/out/secret.txt"


def test_walks_do_not_follow_links(box: Box) -> None:
    """A search from the root sees what is in it, and nothing behind its links."""
    assert box.ok("grep", pattern="secret") == ""
    assert box.ok("glob", pattern="**").splitlines() == ["deep/file.txt", "inside.txt"]


def test_links_and_spellings_within_the_root_work(box: Box) -> None:
    """What leads back into the root is as good as a straight path; a write goes through a link."""
    (box.path / "short.txt").symlink_to("deep/file.txt")
    (box.path / "new.txt").symlink_to("deep/made.txt")
    for path in (
        "short.txt",
        "deep/../deep/file.txt",
        f"{box.path}/deep/file.txt",
        "./deep/up/root/deep/file.txt",
    ):
        assert box.ok("read", path=path) == "file\n"
    box.ok("write", path="short.txt", content="changed\n")
    box.ok("write", path="new.txt", content="made\n")
    assert (box.path / "short.txt").is_symlink()
    assert (box.path / "deep/file.txt").read_text() == "changed\n"
    assert (box.path / "deep/made.txt").read_text() == "made\n"


@pytest.mark.parametrize("call", [c for c in CALLS if c != "bash"])
@pytest.mark.parametrize("path", ["loop", "a\0b", "x" * 5000, "\udcff\ud800", ""])
def test_paths_that_are_none_give_an_error(box: Box, call: str, path: str) -> None:
    """Links in a circle, null characters, overlong names and broken text are errors, not crashes."""
    (box.path / "loop").symlink_to("loop")
    result = box.call(call.split()[0], **CALLS[call](path))
    if path or call.split()[0] not in ("grep", "glob"):
        assert result.is_error
        assert result.output.startswith(call.split()[0])


@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", [c for c in CALLS if c != "bash"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "tty"])
def test_only_regular_files_are_touched(box: Box, call: str, kind: str, tmp_path: Path) -> None:
    """Pipes, sockets and devices are neither opened nor replaced, and nothing waits for them."""
    path = box.path / "special"
    server = socket.socket(socket.AF_UNIX)
    with server:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            here = os.getcwd()
            os.chdir(box.path)
            try:
                server.bind("special")  # the whole path is too long for a socket
            finally:
                os.chdir(here)
        else:
            try:
                os.mknod(path, 0o20666, os.makedev(1, 5) if kind == "device" else os.makedev(5, 0))
            except PermissionError:
                pytest.skip("devices can only be made by the administrator")
        before = os.lstat(path)
        result = box.call(call.split()[0], **CALLS[call]("special"))
        after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert result.is_error or result.output == ""


@pytest.mark.timeout(30)
def test_devices_outside_are_refused_without_a_root(tmp_path: Path) -> None:
    """Also where no root confines it, a device is never read."""
    box = Box(tmp_path, root=None)
    for path in ("/dev/zero", "/dev/stdin", "/dev/tty"):
        assert box.call("read", path=path).is_error


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", [b"\0", b"text line\n"], ids=["binary", "text"])
def test_two_gigabytes_are_read_in_bounded_memory(box: Box, first: bytes) -> None:
    """A file of two gigabytes, nearly all of them holes, costs no time and no memory worth the name."""
    import tracemalloc

    path = box.path / "huge.bin"
    with open(path, "wb") as file:
        file.write(first * (9000 // len(first)))
        file.truncate(2 * 1024**3)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    tracemalloc.start()
    try:
        outputs = [
            box.call("read", path="huge.bin"),
            box.call("read", path="huge.bin", offset=3, limit=2),
            box.call("read", path="huge.bin", offset=800, limit=500),
            box.call("edit", path="huge.bin", oldString="text", newString="x"),
            box.call("apply_patch", patchText=patch("*** Update File: huge.bin", "-text line", "+x")),
            box.call("grep", pattern="line"),
            box.call("grep", pattern="text.line"),
        ]
        assert tracemalloc.get_traced_memory()[1] < 300 * 1024**2
    finally:
        tracemalloc.stop()
    assert all(len(r.output) < 40_000 for r in outputs)
    if first == b"\0":
        assert outputs[0].output == f"read: huge.bin is a binary file ({2 * 1024**3 + 8} bytes)"
    else:
        assert outputs[0].output.startswith("text line\n")
        assert outputs[0].output.endswith("the end\n")
        assert "bytes cut" in outputs[0].output
        assert outputs[1].output == "text line\ntext line"
        assert "cut" in outputs[2].output
    assert outputs[3].is_error
    assert outputs[4].is_error
    assert path.stat().st_size == 2 * 1024**3 + 8


def test_what_is_swapped_during_a_call_leads_nowhere(box: Box, tmp_path: Path) -> None:
    """While a folder turns into a link and back all the time, no call ever reads or writes outside."""
    stop = threading.Event()
    (box.path / "flip").mkdir()
    box.put("flip/secret.txt", "harmless\n")
    (box.path / "alias").symlink_to(tmp_path / "out")

    def flip() -> None:
        parts = box.path / "flip", box.path / "alias", box.path / "aside"
        while not stop.is_set():
            for source, target in ((0, 2), (1, 0), (0, 1), (2, 0)):
                os.rename(parts[source], parts[target])

    thread = threading.Thread(target=flip)
    thread.start()
    before = state(tmp_path)
    try:
        deadline = time.monotonic() + 2
        outcomes = set()
        while time.monotonic() < deadline:
            calls: tuple[tuple[str, dict[str, Any]], ...] = (
                ("read", {"path": "flip/secret.txt"}),
                ("edit", {"path": "flip/secret.txt", "oldString": "harm", "newString": "harm"}),
                ("grep", {"pattern": "secret", "path": "flip"}),
                ("glob", {"pattern": "secret*", "path": "flip"}),
            )
            for name, args in calls:
                result = box.call(name, **args)
                outcomes.add((name, result.is_error))
                assert SECRET not in result.output
                assert name != "glob" or result.is_error or result.output in ("", "secret.txt")
    finally:
        stop.set()
        thread.join()
    assert state(tmp_path) == before
    assert ("read", False) in outcomes
    assert ("read", True) in outcomes


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                "..",
                ".",
                "",
                "deep",
                "linkdir",
                "hop",
                "up",
                "out",
                "root",
                "root2",
                "secret.txt",
                "link.txt",
                "~",
            ]
        ),
        min_size=1,
        max_size=8,
    ),
    slash=st.booleans(),
)
def test_any_mixture_of_parts_stays_inside(box: Box, tmp_path: Path, parts: list[str], slash: bool) -> None:
    """Whatever the parts of a path are, the secret never comes out and is never changed."""
    path = ("/" if slash else "") + "/".join(parts)
    before = state(tmp_path)
    for call in ("read", "write", "edit", "grep"):
        assert SECRET not in box.call(call, **CALLS[call](path)).output
    assert state(tmp_path) == before


def test_without_a_root_paths_lead_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No root is no confinement: paths begin in the current folder and may leave it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    box = Box(tmp_path / "here", root=None)
    box.ok("write", path="../there/a.txt", content="x")
    assert (tmp_path / "there" / "a.txt").read_text() == "x"
    assert box.ok("read", path=str(tmp_path / "there" / "a.txt")) == "x"
