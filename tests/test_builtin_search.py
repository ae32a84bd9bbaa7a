"""grep and glob: what they find, in which order, what they pass over, and that no pattern hangs them."""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus.cancel import CancelScope
from toolnexus.tools.base import Context
from toolnexus.tools.builtins import ignores
from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.globs import Glob
from toolnexus.tools.builtins.matcher import line_matcher

from .support.builtin_calls import Box, running

#: A pattern and a text on which Python's engine would work for years.
ENDLESS = r"(a+)+$", "a" * 60 + "b"


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return the tools."""
    return Box(tmp_path)


# -- grep --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["needle", "n[e]edle", "^.*needle$"])
def test_grep_gives_file_line_and_text(box: Box, pattern: str) -> None:
    """Matches come as file:line:text, sorted by path and line, whether the pattern is plain or not."""
    box.put("b/a.txt", "x\nneedle\r\nneedle\n")
    box.put("b.txt", "a needle")
    box.put("b-c.txt", "needle\n")
    box.put("a.txt", "nothing\n")
    result = box.call("grep", pattern=pattern)
    assert result.output.splitlines() == [
        "b-c.txt:1:needle",
        "b.txt:1:a needle",
        "b/a.txt:2:needle",
        "b/a.txt:3:needle",
    ]
    assert result.metadata == {"count": 4, "truncated": False}


def test_grep_shows_paths_as_the_start_was_given(box: Box) -> None:
    """The start is put before what is found below it, and a file as start is searched."""
    path = box.put("src/a.txt", "needle\n")
    assert box.ok("grep", pattern="needle", path="src") == "src/a.txt:1:needle"
    assert box.ok("grep", pattern="needle", path="src/a.txt") == "src/a.txt:1:needle"
    assert box.ok("grep", pattern="needle", path=str(box.path / "src")) == f"{path}:1:needle"
    assert box.ok("grep", pattern="nothing") == ""
    assert box.error("grep", pattern="x", path="absent").startswith("grep: [Errno 2]")


def test_grep_errors(box: Box) -> None:
    """A pattern that is missing or none is said so, with the engine's words."""
    assert box.error("grep") == "grep: pattern is required"
    assert box.error("grep", pattern="(").startswith(
        "grep: invalid regex: missing ), unterminated subpattern"
    )
    assert box.error("grep", pattern="a{99999999999}").startswith("grep: invalid regex: ")
    assert box.error("grep", pattern="(" * 5000).startswith("grep: ")


def test_grep_survives_files_that_are_no_text(box: Box) -> None:
    """Binary files are passed over, other encodings are searched, and no file ends the search."""
    box.put("a.bin", b"needle\0\n")
    box.put("b.txt", b"\xff\xfe needle \xe9\n".replace(b"\xff\xfe", b"\xe9"))
    box.put("c.txt", "needle é\n".encode("utf-16"))
    box.put("d.txt", b"\xef\xbb\xbfneedle\n")
    (box.path / "e.txt").symlink_to("d.txt")
    expected = ["b.txt:1:\ufffd needle \ufffd", "c.txt:1:needle é", "d.txt:1:needle"]
    assert box.ok("grep", pattern="needle").splitlines() == expected
    assert box.ok("grep", pattern="need.e").splitlines() == expected
    assert box.ok("grep", pattern="^needle").splitlines() == expected[1:]


@pytest.mark.parametrize("pattern", ["hit", "h[i]t"])
def test_grep_takes_the_first_and_says_that_there_are_more(box: Box, pattern: str) -> None:
    """The limit cuts after sorting, and the cut shows; exactly as many as the limit are no cut."""
    for i in reversed(range(30)):
        box.put(f"f{i:02}.txt", "hit\n" * 5)
    result = box.call("grep", pattern=pattern, limit=7)
    lines = result.output.splitlines()
    assert lines[:7] == [f"f00.txt:{i}:hit" for i in range(1, 6)] + ["f01.txt:1:hit", "f01.txt:2:hit"]
    assert lines[7:] == ["[... cut after 7 lines; there are more ...]"]
    assert result.metadata == {"count": 7, "truncated": True}
    assert "cut" not in box.ok("grep", pattern=pattern, limit=150)
    assert len(box.ok("grep", pattern=pattern).splitlines()) == 101


def test_grep_include(box: Box) -> None:
    """Only files that fit the pattern are searched; a single file is judged by its name."""
    for name in ("a.py", "a.txt", "src/b.py", "src/c.pyi"):
        box.put(name, "x\n")
    assert box.ok("grep", pattern="x", include="*.py").splitlines() == ["a.py:1:x", "src/b.py:1:x"]
    assert box.ok("grep", pattern="x", include="src/*.{py,pyi}").splitlines() == [
        "src/b.py:1:x",
        "src/c.pyi:1:x",
    ]
    assert box.ok("grep", pattern="x", path="a.txt", include="*.py") == ""


@pytest.mark.parametrize("pattern", ["x", "x+"])
def test_grep_shortens_long_lines(box: Box, pattern: str) -> None:
    """A line of minified code is shown in part."""
    box.put("a.js", "x" * 100_000)
    assert box.ok("grep", pattern=pattern) == f"a.js:1:{'x' * 500}[... 99500 characters cut ...]"


@pytest.mark.timeout(30)
def test_endless_pattern_holds_nobody_up() -> None:
    """A pattern that would match for ever is given up, and other threads go on working meanwhile."""
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    pattern, text = ENDLESS
    try:
        with (
            pytest.raises(ToolFailure, match=r"takes too long \(more than 1 s, at f.txt\)"),
            line_matcher(pattern, CancelScope(), seconds=1) as matcher,
        ):
            matcher.find(text.encode(), "f.txt", 10)
    finally:
        stop.set()
        thread.join()
    assert len(ticks) > 10


@pytest.mark.timeout(30)
def test_endless_pattern_can_be_cancelled(box: Box) -> None:
    """The cancel of a run ends a search at once, and its process with it."""
    pattern, text = ENDLESS
    box.put("a.txt", text)
    ctx = Context()
    threading.Timer(0.3, ctx.scope.cancel).start()
    started = time.monotonic()
    assert box.call("grep", ctx, pattern=pattern).output == "grep: the run was cancelled"
    assert time.monotonic() - started < 10
    assert running("grep_worker") == []


def test_search_process_does_not_import_from_the_folder(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that lie in the folder that is searched are not taken for the library's."""
    box.put("re.py", "raise SystemExit('taken over')\n")
    box.put("json.py", "raise SystemExit('taken over')\n")
    monkeypatch.chdir(box.path)
    monkeypatch.setenv("PYTHONPATH", str(box.path))
    assert "taken over" in box.ok("grep", pattern="taken.over")


@settings(max_examples=30)
@given(
    st.text(st.sampled_from("ab\n\r .é\u2028"), max_size=60),
    st.sampled_from(["a", "b.", "^a", "a$", r"\s", "é"]),
)
def test_matcher_agrees_with_a_simple_search(text: str, pattern: str) -> None:
    """What the process finds is what the engine finds line by line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    expected = [(i, line) for i, line in enumerate(lines, 1) if re.search(pattern, line)]
    with line_matcher(pattern, CancelScope()) as matcher:
        assert matcher.find(text.encode(), "x", 1000) == expected


# -- glob --------------------------------------------------------------------------------------

FILES = [
    "README.md",
    "a.py",
    "a.pyi",
    "src/b.py",
    "src/deep/c.py",
    "src/deep/[id].tsx",
    "srcs/d.py",
    ".hid/e.py",
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", [".hid/e.py", "a.py", "src/b.py", "src/deep/c.py", "srcs/d.py"]),
        ("**/*.py", [".hid/e.py", "a.py", "src/b.py", "src/deep/c.py", "srcs/d.py"]),
        ("src/*.py", ["src/b.py"]),
        ("./src/*.py", ["src/b.py"]),
        ("src/**", ["src/b.py", "src/deep/[id].tsx", "src/deep/c.py"]),
        ("src/**/c.py", ["src/deep/c.py"]),
        ("src/**.py", ["src/b.py", "src/deep/c.py"]),
        ("s*/?.py", ["src/b.py", "srcs/d.py"]),
        ("a.py?", ["a.pyi"]),
        ("*.{md,pyi}", ["README.md", "a.pyi"]),
        ("[id].tsx", ["src/deep/[id].tsx"]),
        ("*.{x}", []),
        ("nothing", []),
    ],
)
def test_glob_patterns(box: Box, pattern: str, found: list[str]) -> None:
    """Two stars cross folders, one star and a question mark do not, and square brackets are letters."""
    for name in FILES:
        box.put(name, "")
    result = box.call("glob", pattern=pattern)
    assert result.output.splitlines() == found
    assert result.metadata["count"] == len(found)


def test_glob_is_sorted_before_it_is_cut(box: Box) -> None:
    """The first paths in order are given, whatever order the disk has, relative to the start."""
    for name in ("b/x.c", "a/z.c", "a.c", "a-b/y.c", "c.c"):
        box.put(name, "")
    assert box.ok("glob", pattern="*.c").splitlines() == ["a-b/y.c", "a.c", "a/z.c", "b/x.c", "c.c"]
    assert box.ok("glob", pattern="*.c", limit=2).splitlines() == [
        "a-b/y.c",
        "a.c",
        "[... cut after 2 paths; there are more ...]",
    ]
    assert box.ok("glob", pattern="*", path="a") == "z.c"
    assert box.ok("glob", pattern="*.c", path="a/z.c") == "z.c"
    assert box.error("glob") == "glob: pattern is required"


@pytest.mark.timeout(20)
def test_no_glob_is_slow() -> None:
    """A pattern of nothing but stars is followed in a time that does not grow with what it could mean."""
    assert not Glob("*a" * 400 + "b").matches("a" * 250)
    assert not Glob("**/a" * 200 + "b").matches("a/" * 500)
    with pytest.raises(ToolFailure):
        Glob("x" * 1001)
    with pytest.raises(ToolFailure):
        Glob("{a,b}" * 20)


@given(st.text(st.sampled_from("ab*?"), max_size=8), st.text(st.sampled_from("ab"), max_size=8))
def test_glob_agrees_with_the_shell_on_names(pattern: str, name: str) -> None:
    """On names without a slash the patterns mean what they mean to a shell."""
    assert Glob(pattern).matches(name) == fnmatch.fnmatchcase(name, pattern)


@given(st.text(st.sampled_from("ab*?/"), max_size=8), st.text(st.sampled_from("ab/"), max_size=8))
def test_glob_agrees_with_its_definition(pattern: str, path: str) -> None:
    """On paths they mean what the same pattern as a regular expression means."""
    written = pattern.removeprefix("./")
    regex = re.sub(
        r"\*\*/?|\*|\?",
        lambda m: {"*": "[^/]*", "?": "[^/]"}.get(m[0], ".*"),
        re.escape(written).replace("\\", ""),
    )
    target = path if "/" in written else path.rpartition("/")[2]
    assert Glob(pattern).matches(path) == bool(re.fullmatch(regex, target))


# -- what is passed over -----------------------------------------------------------------------


def test_ignored_files_are_passed_over(box: Box) -> None:
    """Each .gitignore holds for its folder and below, and an inner one has the last word."""
    box.put(".gitignore", "*.log\n/build/\n!keep.log\nsecret/*\n[bad\n")
    box.put("pkg/.gitignore", "!b.log\ndata\n")
    for name in (
        "a.log", "keep.log", "build/x.txt", "pkg/build/y.txt", "pkg/b.log", "pkg/c.log", "pkg/data/z.txt",
        "data", "secret/s.txt", "node_modules/m.txt", "pkg/.venv/v.txt", ".git/config", "__pycache__/c.txt",
    ):  # fmt: skip
        box.put(name, "x\n")
    seen = ["data", "keep.log", "pkg/b.log", "pkg/build/y.txt"]
    shown = [p for p in box.ok("glob", pattern="**").splitlines() if not p.endswith(".gitignore")]
    assert shown == seen
    assert [line.split(":")[0] for line in box.ok("grep", pattern="x").splitlines()] == seen
    assert box.ok("glob", pattern="*.log", path="pkg").splitlines() == ["b.log"]


def test_what_is_asked_for_by_name_is_searched(box: Box) -> None:
    """A start that is ignored is searched all the same."""
    box.put(".gitignore", "build/\n*.log\n")
    box.put("build/a.txt", "x\n")
    box.put("node_modules/m/b.txt", "x\n")
    box.put("c.log", "x\n")
    assert box.ok("grep", pattern="x", path="build") == "build/a.txt:1:x"
    assert box.ok("grep", pattern="x", path="node_modules/m") == "node_modules/m/b.txt:1:x"
    assert box.ok("grep", pattern="x", path="c.log") == "c.log:1:x"


def test_search_sees_what_git_sees(box: Box) -> None:
    """On a repository with many rules the files are those that git itself would list."""
    box.put(
        ".gitignore", "*.o\nout/\n!out/keep\n/top.txt\ndocs/**/*.tmp\n**/cache\n# note\n\nsp ace\n\\#hash\n"
    )
    box.put("sub/.gitignore", "*\n!*.py\n!.gitignore\n")
    for name in (
        "a.o", "a.c", "out/keep", "top.txt", "sub/top.txt", "docs/a/b.tmp", "docs/b.tmp", "docs/b.md",
        "x/cache", "sp ace", "#hash", "sub/a.py", "sub/b.txt", "sub/in/c.py",
    ):  # fmt: skip
        box.put(name, "x\n")
    git = ["git", "-C", str(box.path)]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True
    ).stdout
    assert box.ok("glob", pattern="**").splitlines() == sorted(listed.splitlines())


@pytest.mark.timeout(20)
def test_hostile_ignore_file_does_not_hang(box: Box) -> None:
    """Rules made to take for ever, and endless files of rules, are not followed."""
    box.put(".gitignore", "*a*a*a*a*a*a*a*a*a*a*b\n" + "**/a/" * 100 + "b\n" + "x" * 1_000_000)
    box.put("a" * 250, "x\n")
    assert box.ok("glob", pattern="a*") == "a" * 250
    os.unlink(box.path / ".gitignore")
    os.mkfifo(box.path / ".gitignore")
    assert box.ok("glob", pattern="a*") == "a" * 250


def test_without_pathspec_a_warning_says_what_is_not_done(
    box: Box, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library is missing the fixed list still holds, and a warning names the extra, once."""
    box.put(".gitignore", "*.log\n")
    box.put("a.log", "")
    box.put("node_modules/b.log", "")
    monkeypatch.setattr(ignores, "_warned", False)
    monkeypatch.setitem(sys.modules, "pathspec", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING, "toolnexus.builtins"):
        for _ in range(2):
            assert box.ok("glob", pattern="*.log") == "a.log"
    assert caplog.text.count("toolnexus[files]") == 1


def test_deep_and_wide_folders(box: Box) -> None:
    """A deep tree and many files are walked; what lies too deep is said to be missing."""
    deep = box.path
    for _ in range(120):
        deep = deep / "d"
        deep.mkdir()
    box.put("a.txt", "x\n")
    (box.path / ("d/" * 50 + "mid.txt")).write_text("x\n")
    (deep / "low.txt").write_text("x\n")
    result = box.call("glob", pattern="*.txt")
    assert [Path(p).name for p in result.output.splitlines()[:2]] == ["a.txt", "mid.txt"]
    assert "not everything was searched" in result.output
