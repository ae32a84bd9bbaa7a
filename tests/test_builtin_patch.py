"""apply_patch: its grammar, where hunks belong, and that all of it is done or nothing."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolnexus.tools.base import Context, ToolResult
from toolnexus.tools.builtins.patch_text import apply_hunks, parse_patch
from toolnexus.tools.builtins.texts import TextFile

from .support.builtin_calls import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return the tools."""
    return Box(tmp_path)


def apply(box: Box, text: str, ctx: Context | None = None) -> ToolResult:
    """Apply a patch that is given without its first and last line."""
    return box.call("apply_patch", ctx, patchText=f"*** Begin Patch\n{text}\n*** End Patch")


def test_every_operation_in_one_patch(box: Box) -> None:
    """Files are added, updated, moved and deleted in one step, and the result says what was done."""
    box.put("old.txt", "one\ntwo\nthree\n")
    box.put("gone.txt", "x\n")
    box.put("move.txt", "a\nb\n")
    result = apply(
        box,
        "*** Add File: new/deep.txt\n+first\n+\n+third\n"
        "*** Update File: old.txt\n@@\n one\n-two\n+2\n three\n"
        "*** Update File: move.txt\n*** Move to: moved/here.txt\n@@\n-b\n+B\n"
        "*** Delete File: gone.txt",
    )
    assert result.output == "Applied patch: 4 file operations"
    assert result.metadata == {
        "added": ["new/deep.txt"],
        "updated": ["old.txt", "move.txt"],
        "deleted": ["gone.txt"],
    }
    assert box.names() == ["moved/here.txt", "new/deep.txt", "old.txt"]
    assert (box.path / "new/deep.txt").read_bytes() == b"first\n\nthird\n"
    assert (box.path / "old.txt").read_text() == "one\n2\nthree\n"
    assert (box.path / "moved/here.txt").read_text() == "a\nB\n"
    assert apply(box, "*** Delete File: old.txt").output == "Applied patch: 1 file operation"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "patchText is required"),
        ("nothing", "missing '*** Begin Patch'"),
        ("*** Begin Patch\n*** Add File: a\n+x", "missing '*** End Patch'"),
        ("*** End Patch\n*** Begin Patch", "missing '*** End Patch'"),
        ("*** Begin Patch\nwhat\n*** End Patch", "unexpected line: what"),
        ("*** Begin Patch\n*** Delete File: a.txt\nwhat\n*** End Patch", "unexpected line: what"),
        ("*** Begin Patch\n*** Add File: a.txt\n+x\n*** End Patch", "file already exists: a.txt"),
        ("*** Begin Patch\n*** Add File: dir\n+x\n*** End Patch", "file already exists: dir"),
        ("*** Begin Patch\n*** Delete File: b.txt\n*** End Patch", "file not found: b.txt"),
        ("*** Begin Patch\n*** Update File: b.txt\n-x\n*** End Patch", "file not found: b.txt"),
        ("*** Begin Patch\n*** Update File: a.txt/b\n-x\n*** End Patch", "file not found: a.txt/b"),
        ("*** Begin Patch\n*** Update File: a.txt\n-y\n*** End Patch", "hunk does not match file contents"),
        ("*** Begin Patch\n*** Update File: a.txt\n*** End Patch", "no changes for a.txt"),
        (
            "*** Begin Patch\n*** Update File: a.txt\n*** Move to: c.txt\n*** End Patch",
            "file already exists: c.txt",
        ),
        ("*** Begin Patch\n*** Update File: b.bin\n-x\n*** End Patch", "b.bin is a binary file (2 bytes)"),
        ("*** Begin Patch\n*** Delete File: dir\n*** End Patch", "[Errno 21] Is a directory: 'dir'"),
    ],
)
def test_errors_are_in_words_and_nothing_changes(box: Box, text: str, said: str) -> None:
    """What does not fit is named, and the files are as they were."""
    box.put("a.txt", "x\n")
    box.put("c.txt", "c\n")
    box.put("b.bin", b"\0x")
    (box.path / "dir").mkdir()
    assert box.error("apply_patch", patchText=text) == f"apply_patch: {said}"
    assert box.names() == ["a.txt", "b.bin", "c.txt"]
    assert (box.path / "a.txt").read_text() == "x\n"


def test_several_sections_for_one_file_apply_in_order(box: Box) -> None:
    """Each section sees what the ones before it did, also under another spelling or name."""
    box.put("a.txt", "1\n2\n3\n")
    result = apply(
        box,
        "*** Update File: a.txt\n-1\n+one\n"
        "*** Update File: ./a.txt\n one\n-2\n+two\n"
        "*** Update File: a.txt\n*** Move to: b.txt\n"
        "*** Update File: b.txt\n-3\n+three\n"
        "*** Add File: a.txt\n+anew\n"
        "*** Update File: a.txt\n-anew\n+again",
    )
    assert not result.is_error, result.output
    assert (box.path / "b.txt").read_text() == "one\ntwo\nthree\n"
    assert (box.path / "a.txt").read_text() == "again\n"


def test_delete_and_add_of_one_path_replaces_it(box: Box) -> None:
    """A file may be deleted and made anew in one patch; one that comes and goes leaves nothing."""
    box.put("a.txt", "old\n")
    assert not apply(box, "*** Delete File: a.txt\n*** Add File: a.txt\n+new").is_error
    assert (box.path / "a.txt").read_text() == "new\n"
    assert not apply(box, "*** Add File: b.txt\n+x\n*** Delete File: b.txt").is_error
    assert box.names() == ["a.txt"]


@pytest.mark.parametrize(
    ("before", "hunks", "after"),
    [
        ("a\r\nb\r\nc\r\n", "@@\n a\n-b\n+x\n+y\n c", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\r\nb\nc\r\n", "@@\n a\n-b\n+x\n c", "a\r\nx\nc\r\n"),
        ("a\nb", "@@\n-b\n+x", "a\nx"),
        ("a\nb", "@@\n-b", "a"),
        ("a\nb\n", "@@\n-a\n-b", ""),
        ("a", "@@\n+b", "a\nb"),
        ("", "@@\n+b", "b\n"),
        ("a\n", "@@\n+b", "a\nb\n"),
        ("a\n\nb\n", "@@\n a\n \n-b\n+x", "a\n\nx\n"),
        ("a\n\nb\n", "@@\n a\n\n-b\n+x", "a\n\nx\n"),
        ("a\nb\n", "@@\n-a\n+x\n\n", "x\nb\n"),
        ("a\nb\n", "@@\n-a\n+x\n@@\n-b\n+y", "x\ny\n"),
        ("a\nb\n", "-a\n+x", "x\nb\n"),
        ("x\na\nx\n", "@@ a\n-x\n+y", "x\na\ny\n"),
        ("def f\n  x\ndef g\n  x\n", "@@ def g\n-  x\n+  y", "def f\n  x\ndef g\n  y\n"),
        ("def f\n  x\ndef g\n  x\n", "@@ def f @@\n+  w", "def f\n  w\n  x\ndef g\n  x\n"),
        ("x\nx\nx\n", "@@ -3,1 +3,1 @@\n-x\n+y", "x\nx\ny\n"),
        ("a\nb\n", "@@ -1,0 +2,1 @@\n+x", "a\nx\nb\n"),
        ("x\na\nx\n", "@@\n-x\n+y\n*** End of File", "x\na\ny\n"),
        ("x\nx\n", "@@\n-x\n+y\n@@\n-x\n+z", "y\nz\n"),
        ("x\nx\n", "@@\n-x\n+x1\n+x2\n@@\n x\n+end", "x1\nx2\nx\nend\n"),
        ("b\na\n", "@@\n-a\n+A\n@@\n-b\n+B", "B\nA\n"),
        ("a\n", "@@\n-a\n+b\n\\ No newline at end of file", "b\n"),
        ("\ta\n", "@@\n\ta\n+b", "\ta\nb\n"),
        ("one\x0ctwo\x85\n", "@@\n-one\x0ctwo\x85\n+x", "x\n"),
    ],
)
def test_hunks(before: str, hunks: str, after: str) -> None:
    """Hunks find their place by context, anchor, line number and order; line ends stay as they are."""
    (section,) = parse_patch(f"*** Begin Patch\n*** Update File: f\n{hunks}\n*** End Patch")
    assert apply_hunks(TextFile(before), section.hunks).body == after


def test_patch_may_have_any_line_ends_and_be_wrapped(box: Box) -> None:
    """What stands around the patch is passed over, and its own line ends do not matter."""
    text = "Here it is:\r\n```\r\n*** Begin Patch\r\n*** Add File: a.txt\r\n+x\r\n\r\n*** End Patch\r\n```"
    box.ok("apply_patch", patchText=text)
    assert (box.path / "a.txt").read_bytes() == b"x\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\ufeffé\n".encode("utf-16-le"), "\ufeffü\n".encode("utf-16-le")),
        (b"\xef\xbb\xbf\xc3\xa9\n", b"\xef\xbb\xbf\xc3\xbc\n"),
    ],
)
def test_encoding_and_mode_stay(box: Box, before: bytes, after: bytes) -> None:
    """An updated file keeps what it is written in and its mode, a moved one takes them along."""
    box.put("a.sh", before).chmod(0o751)
    assert not apply(box, "*** Update File: a.sh\n*** Move to: b.sh\n-é\n+ü").is_error
    assert (box.path / "b.sh").read_bytes() == after
    assert stat.S_IMODE((box.path / "b.sh").stat().st_mode) == 0o751


def test_bytes_that_are_no_text_survive(box: Box) -> None:
    """A file in an unknown encoding keeps its bytes, and gets ASCII only."""
    box.put("a.txt", b"caf\xe9\nx\n")
    assert not apply(box, "*** Update File: a.txt\n-x\n+y").is_error
    assert (box.path / "a.txt").read_bytes() == b"caf\xe9\ny\n"
    assert "not UTF-8" in apply(box, "*** Update File: a.txt\n-y\n+é").output


def test_binary_file_can_be_deleted(box: Box) -> None:
    """What cannot be changed can still be removed."""
    box.put("a.bin", b"\0\1")
    assert not apply(box, "*** Delete File: a.bin").is_error
    assert box.names() == []


# -- all or nothing ----------------------------------------------------------------------------


def test_failure_halfway_takes_everything_back(box: Box) -> None:
    """When the last file cannot be written, the ones before it are as they were, and no trace is left."""
    box.put("a.txt", "old\n").chmod(0o700)
    box.put("gone.txt", "x\n")
    before = (box.path / "a.txt").stat().st_ino
    result = apply(
        box,
        "*** Update File: a.txt\n-old\n+new\n*** Delete File: gone.txt\n"
        "*** Add File: made/b.txt\n+x\n*** Add File: made/b.txt/c.txt\n+x",
    )
    assert result.is_error
    assert box.names() == ["a.txt", "gone.txt"]
    assert not (box.path / "made").exists()
    assert (box.path / "a.txt").read_text() == "old\n"
    assert (box.path / "a.txt").stat().st_ino == before


def test_cancelled_patch_changes_nothing(box: Box) -> None:
    """A patch that is called after the cancel does nothing."""
    ctx = Context()
    ctx.scope.cancel()
    assert apply(box, "*** Add File: a.txt\n+x", ctx).output == "apply_patch: the run was cancelled"
    assert box.names() == []


def test_patches_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """Many threads that patch the same two files, by tools of their own, keep them in step."""
    Box(tmp_path).put("a.txt", "0\n")
    Box(tmp_path).put("b.txt", "0\n")
    results: list[ToolResult] = []

    def count() -> None:
        mine = Box(tmp_path)
        while True:
            n = int(mine.ok("read", path="a.txt"))
            if n >= 30:
                return
            results.append(
                apply(mine, "".join(f"*** Update File: {f}\n-{n}\n+{n + 1}\n" for f in ("a.txt", "b.txt")))
            )

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not r.is_error for r in results) == 30
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "b.txt").read_text() == "30\n"
    assert Box(tmp_path).names() == ["a.txt", "b.txt"]


def test_journal_of_somebody_else_leads_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A journal that came with the folder cannot touch anything outside, whatever it names."""
    box = Box(tmp_path / "root")
    outside = tmp_path / "outside.txt"
    outside.write_text("precious\n")
    info = outside.stat()
    known = [info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size]
    steps = [
        {"path": p, "new": known, "old": None}
        for p in ("../outside.txt", str(outside), "a/../../outside.txt")
    ]
    journal = {"id": "0" * 16, "phase": "apply", "folders": ["..", "../.."], "steps": steps}
    box.put(".toolnexus-patch.json", json.dumps(journal))
    with caplog.at_level(logging.WARNING, "toolnexus.builtins"):
        assert not apply(box, "*** Add File: a.txt\n+x").is_error
    assert outside.read_text() == "precious\n"
    assert "outside the root" in caplog.text
    assert box.names() == ["a.txt"]


@pytest.mark.parametrize("kind", ["text", "link", "pipe", "folder", "list", "id"])
def test_journal_that_is_none_is_passed_over(box: Box, tmp_path: Path, kind: str) -> None:
    """A file of that name which is no journal stops no reading, and is neither followed nor waited for."""
    path = box.path / ".toolnexus-patch.json"
    box.put("a.txt", "x\n")
    if kind == "link":
        path.symlink_to("a.txt")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text(
            {
                "text": "nonsense",
                "list": "[1]",
                "id": '{"id": "../x", "phase": "apply", "steps": [], "folders": []}',
            }[kind]
        )
    assert box.ok("read", path="a.txt") == "x\n"
    assert box.ok("glob", pattern="*") == "a.txt"
    assert apply(box, "*** Update File: a.txt\n-x\n+y").is_error == (kind == "folder")


def test_without_a_root_the_journal_is_this_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing confines, a journal in the current folder is not believed: ours is elsewhere."""
    work, state = tmp_path / "work", tmp_path / "state"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    box = Box(work, root=None)
    box.put(".toolnexus-patch.json", "planted")
    assert not apply(box, f"*** Add File: {tmp_path}/far/a.txt\n+x").is_error
    assert (tmp_path / "far/a.txt").read_text() == "x\n"
    assert (work / ".toolnexus-patch.json").read_text() == "planted"
    assert stat.S_IMODE((state / "toolnexus").stat().st_mode) == 0o700
    assert list((state / "toolnexus").iterdir()) == []


def line_lists() -> st.SearchStrategy[list[str]]:
    """Return lists of a few short lines, with repetitions."""
    return st.lists(st.sampled_from(["a", "b", "", " c", "-d", "+e", "@f", "é"]), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=line_lists(), after=line_lists(), end=st.sampled_from(["\n", "\r\n"]))
def test_any_text_can_be_patched_into_any_other(
    box: Box, before: list[str], after: list[str], end: str
) -> None:
    """A hunk that replaces all lines of a file by others does exactly that."""
    body = "".join(line + end for line in before)
    path = box.put("f", body)
    hunk = "".join(f"-{line}\n" for line in before) + "".join(f"+{line}\n" for line in after)
    if not hunk:
        return
    assert not apply(box, f"*** Update File: f\n@@\n{hunk}".rstrip("\n")).is_error
    wanted = end if before else "\n"
    assert path.read_bytes().decode() == "".join(line + wanted for line in after)
