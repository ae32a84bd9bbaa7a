"""read, write and edit: what they say, and what of a file they leave as it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolnexus.tools.builtins.output import HeadTail, clip

from .support.builtin_calls import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return the tools."""
    return Box(tmp_path)


# -- read --------------------------------------------------------------------------------------


def test_read_gives_the_whole_text(box: Box) -> None:
    """Without a window the text comes as it is, carriage returns and all, without a byte-order mark."""
    box.put("a.txt", "\ufeffone\r\ntwo\r\n")
    box.put("empty", "")
    assert box.ok("read", path="a.txt") == "one\r\ntwo\r\n"
    assert box.ok("read", path="empty") == ""


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({"offset": 2}, "two\nthree"),
        ({"limit": 2}, "one\ntwo"),
        ({"offset": 2, "limit": 1}, "two"),
        ({"offset": 0, "limit": 1}, "one"),
        ({"offset": 9}, ""),
        ({"limit": 0}, ""),
        ({"offset": 3, "limit": 9}, "three"),
        ({"offset": 2.0, "limit": 1.0}, "two"),
        ({"limit": -1}, ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("ended", ["", "\n"], ids=["open", "ended"])
def test_read_gives_a_window_of_lines(
    box: Box, window: dict[str, float], text: str, encoding: str, ended: str
) -> None:
    """An offset counts from 1, a window beyond the end is empty, in each encoding that we know."""
    box.put("a.txt", f"one\ntwo\nthree{ended}".encode(encoding))
    assert box.ok("read", path="a.txt", **window) == text


def test_read_errors(box: Box) -> None:
    """What is missing or no text is said in words."""
    box.put("b.bin", b"\x7fELF\0\0\0")
    (box.path / "dir").mkdir()
    assert box.error("read") == "read: path is required"
    assert box.error("read", path="x") == "read: [Errno 2] No such file or directory: 'x'"
    assert box.error("read", path="x/y") == "read: [Errno 2] No such file or directory: 'x/y'"
    assert box.error("read", path="dir") == "read: [Errno 21] Is a directory: 'dir'"
    assert box.error("read", path=".") == "read: [Errno 21] Is a directory: '.'"
    assert box.error("read", path="b.bin/x") == "read: [Errno 20] Not a directory: 'b.bin/x'"
    assert box.error("read", path="b.bin") == "read: b.bin is a binary file (7 bytes)"


def test_read_shows_bytes_that_are_no_text_as_such(box: Box) -> None:
    """A byte that is not UTF-8 becomes a replacement character, and the rest is right."""
    box.put("a.txt", b"caf\xe9 \xc3\xa9")
    assert box.ok("read", path="a.txt") == "caf\ufffd é"
    assert box.ok("read", path="a.txt", limit=1) == "caf\ufffd é"


@pytest.mark.parametrize("size", [150_000, 5_000_000], ids=["small", "large"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_long_text_keeps_its_ends(box: Box, size: int, encoding: str) -> None:
    """The beginning and the end stay, and the cut says how much is gone."""
    box.put("a.txt", ("start" + "é" * size + "end.").encode(encoding))
    output = box.ok("read", path="a.txt")
    assert output.startswith("starté")
    assert output.endswith("éend.")
    assert "cut" in output
    assert "\ufffd" not in output
    assert len(output) < 31_000


def test_long_window_says_where_to_go_on(box: Box) -> None:
    """A window that is too long ends after a whole line, and names the next one."""
    box.put("a.txt", "".join(f"{i:09}\n" for i in range(1, 9000)))
    first = box.ok("read", path="a.txt", limit=9000)
    *lines, note = first.split("\n")
    assert note == f"[... cut before line {len(lines) + 1}; go on with offset={len(lines) + 1} ...]"
    assert box.ok("read", path="a.txt", offset=len(lines) + 1, limit=1) == f"{len(lines) + 1:09}"


def test_long_line_in_a_window_is_cut(box: Box) -> None:
    """A single line that is too long is shown as far as it goes."""
    box.put("a.txt", "x\n" + "y" * 100_000 + "\nz\n")
    output = box.ok("read", path="a.txt", offset=2)
    assert output.startswith("yyyy")
    assert output.endswith("[... the rest of line 2 cut; go on with offset=3 ...]")


# -- write -------------------------------------------------------------------------------------


def test_write_makes_folders_and_counts_bytes(box: Box) -> None:
    """A new file is what was given, in UTF-8, with the folders it needs."""
    result = box.call("write", path="a/b/c.txt", content="é\n")
    assert result.output == "Wrote 3 bytes to a/b/c.txt"
    assert result.metadata == {"bytes": 3}
    assert (box.path / "a/b/c.txt").read_bytes() == b"\xc3\xa9\n"
    assert box.ok("write", path="empty", content="") == "Wrote 0 bytes to empty"


def test_write_errors(box: Box) -> None:
    """What cannot be written is left alone, and nothing is left beside it."""
    (box.path / "dir").mkdir()
    box.put("file", "x")
    assert box.error("write") == "write: path is required"
    assert box.error("write", path="x") == "write: content is required"
    assert box.error("write", path="dir", content="x") == "write: [Errno 21] Is a directory: 'dir'"
    assert "Errno" in box.error("write", path="file/x", content="x")
    assert "surrogate" in box.error("write", path="y", content="\ud800")
    assert box.names() == ["file"]


@pytest.mark.parametrize("name", ["write", "edit"])
def test_permissions_stay(box: Box, name: str) -> None:
    """A file that is written anew keeps its mode; a new one has the usual mode."""
    path = box.put("run.sh", "old\n")
    path.chmod(0o750)
    args = {"content": "new\n"} if name == "write" else {"oldString": "old", "newString": "new"}
    box.ok(name, path="run.sh", **args)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert path.read_text() == "new\n"
    umask = os.umask(0)
    os.umask(umask)
    box.ok("write", path="fresh", content="")
    assert stat.S_IMODE((box.path / "fresh").stat().st_mode) == 0o666 & ~umask


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() == 0, reason="the administrator may write anything"
)
@pytest.mark.parametrize("name", ["write", "edit"])
def test_a_file_that_may_not_be_written_is_not_replaced(box: Box, name: str) -> None:
    """That the folder allows a rename does not make a read-only file writable."""
    path = box.put("locked", "old\n")
    path.chmod(0o444)
    args = {"content": "new\n"} if name == "write" else {"oldString": "old", "newString": "new"}
    assert "Permission denied" in box.error(name, path="locked", **args)
    assert path.read_text() == "old\n"


@pytest.mark.parametrize(
    ("old", "content", "new"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\r\nb\n", "x\ny\n", b"x\ny\n"),
        (b"a\r\nb\r\n", "x\r\ny\n", b"x\r\ny\n"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        ("a\r\n".encode("utf-16"), "é\n", "é\r\n".encode("utf-16")),
        ("\ufeffa\n".encode("utf-16-be"), "é\n", "\ufeffé\n".encode("utf-16-be")),
        (b"bin\0ary\r\n", "x\n", b"x\n"),
        (b"caf\xe9\n", "é\n", "é\n".encode()),
    ],
)
def test_write_keeps_line_ends_and_encoding(box: Box, old: bytes, content: str, new: bytes) -> None:
    """What a file was written in is what it is written in again."""
    path = box.put("a.txt", old)
    box.ok("write", path="a.txt", content=content)
    assert path.read_bytes() == new


# -- edit --------------------------------------------------------------------------------------


def test_edit_strings(box: Box) -> None:
    """What edit says, word for word."""
    box.put("a.txt", "one two two\n")
    result = box.call("edit", path="a.txt", oldString="one", newString="1")
    assert (result.output, result.metadata) == ("Edited a.txt (1 replacement)", {"replacements": 1})
    twice = "edit: oldString is not unique in a.txt (2 occurrences); use replaceAll"
    assert box.error("edit", path="a.txt", oldString="two", newString="2") == twice
    assert (
        box.ok("edit", path="a.txt", oldString="two", newString="2", replaceAll=True)
        == "Edited a.txt (2 replacements)"
    )
    assert (
        box.error("edit", path="a.txt", oldString="x", newString="") == "edit: oldString not found in a.txt"
    )
    assert box.error("edit", path="a.txt", oldString="", newString="") == "edit: oldString is required"
    assert box.error("edit", oldString="x", newString="") == "edit: path is required"
    assert box.error("edit", path="b.txt", oldString="x", newString="").startswith("edit: [Errno 2]")
    assert (box.path / "a.txt").read_text() == "1 2 2\n"


@pytest.mark.parametrize(
    ("data", "old", "new", "result"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x", b"x\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\nc\r\n", "b\nc", "x\ny", b"a\r\nx\ny\r\n"),
        (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
        ("a é\r\n".encode("utf-16"), "é\n", "ü\n", "a ü\r\n".encode("utf-16")),
        (b"caf\xe9 \xff\n", "caf", "tea", b"tea\xe9 \xff\n"),
        (b"no end", "end", "$& \\1 end", b"no $& \\1 end"),
        (b"old\rmac\r", "mac", "x", b"old\rx\r"),
        (b"form\x0cfeed\x85\n", "form", "x", b"x\x0cfeed\x85\n"),
    ],
)
def test_edit_changes_nothing_else(box: Box, data: bytes, old: str, new: str, result: bytes) -> None:
    """Line ends, marks, encodings and bytes that are no text stay as they are."""
    path = box.put("a.txt", data)
    box.ok("edit", path="a.txt", oldString=old, newString=new)
    assert path.read_bytes() == result


def test_edit_does_not_mix_encodings(box: Box) -> None:
    """A file in an unknown encoding gets no letters whose form in it we cannot know."""
    path = box.put("a.txt", b"caf\xe9\n")
    said = box.error("edit", path="a.txt", oldString="caf", newString="é")
    assert said == "edit: a.txt is not UTF-8; only ASCII text can be put into it"
    assert "binary" in box.error("edit", path=box.put("b", b"\0x").name, oldString="x", newString="y")
    assert path.read_bytes() == b"caf\xe9\n"


def test_edit_refuses_what_is_too_large(box: Box) -> None:
    """A file that would have to be held in memory whole is not changed beyond a size."""
    path = box.path / "big.txt"
    path.write_bytes(b"x\n" * (17 * 1024 * 1024))
    assert "too large" in box.error("edit", path="big.txt", oldString="x", newString="y")


def test_edits_at_the_same_time_do_not_undo_each_other(box: Box) -> None:
    """Of many edits of one file from many threads none is lost."""
    box.put("a.txt", "".join(f"line {i}.\n" for i in range(40)))
    threads = [
        threading.Thread(
            target=box.ok,
            args=("edit",),
            kwargs={"path": "a.txt", "oldString": f"line {i}.", "newString": f"done {i}."},
        )
        for i in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (box.path / "a.txt").read_text() == "".join(f"done {i}.\n" for i in range(40))
    assert box.names() == ["a.txt"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_survive_an_edit(box: Box, data: bytes) -> None:
    """Whatever a file holds, an edit changes exactly what it names, or fails and changes nothing."""
    path = box.put("a", data + b"MARK" + data)
    result = box.call("edit", path="a", oldString="MARK", newString="DONE")
    expected = data + (b"MARK" if result.is_error else b"DONE") + data
    assert path.read_bytes() == expected


# -- cutting -----------------------------------------------------------------------------------


@given(st.text(max_size=300), st.integers(2, 60))
def test_clip_keeps_both_ends(text: str, limit: int) -> None:
    """A cut text begins and ends as the whole one does, and says how much is gone."""
    cut = clip(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    tail = limit // 2
    assert cut == f"{text[: limit - tail]}\n[... {len(text) - limit} characters cut ...]\n{text[-tail:]}"


@given(st.text(max_size=200), st.lists(st.integers(1, 50), max_size=30), st.integers(2, 80))
def test_head_and_tail_of_any_blocks(text: str, sizes: list[int], limit: int) -> None:
    """However the bytes arrive, what is kept is the same, holds no broken letter, and counts what is gone."""
    data = text.encode("utf-8", "replace")
    kept = HeadTail(limit)
    rest = data
    for size in sizes:
        kept.add(rest[:size])
        rest = rest[size:]
    kept.add(rest)
    whole = HeadTail(limit)
    whole.add(data)
    assert kept.text() == whole.text()
    shown = kept.text()
    if len(data) <= limit:
        assert shown == data.decode()
        return
    head, _, tail = shown.partition("\n[... ")
    gone, _, tail = tail.partition(" bytes cut ...]\n")
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert len(head.encode()) + int(gone) + len(tail.encode()) == len(data)
