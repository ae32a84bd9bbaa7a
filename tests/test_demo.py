"""The demo: what somebody sees who tries toolnexus for the first time."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolnexus.testing import ModelServer

ROOT = Path(__file__).parents[1]
KEYS = ("MODEL", "STYLE", "BASE_URL", "NO_COLOR", "FORCE_COLOR", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")


def environment(**more: str) -> dict[str, str]:
    """Return an environment without anything that steers the demo, and with what is given."""
    kept = {k: v for k, v in os.environ.items() if k not in KEYS and not k.endswith("_API_KEY")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **more}


def demo(**more: str) -> subprocess.CompletedProcess[str]:
    """Run the demo without a terminal."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "demo.py")],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_demo_shows_both_styles_plainly_without_a_terminal() -> None:
    """Text, thinking, both tools with their results, and the tokens; no escape code in it."""
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033" not in done.stdout
    for style in ("openai", "anthropic"):
        part = done.stdout.split(f"[{style} style", 1)[1].split("\n\n")[0]
        assert "Let me work that out." in part
        assert "-> add(a=2, b=3)" in part
        assert "<- add: 5" in part
        assert "<- weekday: Sunday" in part
        assert "2 + 3 is 5, and 1969-07-20 was a Sunday." in part
        assert "tokens: 502 in, 67 out" in part
        assert "done: 2 turns, 2 tool calls" in part


def test_demo_is_coloured_where_it_is_forced_and_never_against_the_wish() -> None:
    """FORCE_COLOR colours a pipe; NO_COLOR wins over it."""
    assert "\033[36m-> add(a=2, b=3)\033[0m" in demo(FORCE_COLOR="1").stdout
    assert "\033" not in demo(FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_demo_is_coloured_in_a_terminal(no_color: str) -> None:
    """A terminal gets colours unless NO_COLOR is set."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    process = subprocess.Popen(command, env=environment(NO_COLOR=no_color), stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # what the end of a terminal looks like
        pass
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    assert (b"\033[2m" in shown) == (not no_color)
    assert re.sub(rb"\033\[\d*m", b"", shown).count(b"was a Sunday.") == 2


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_demo_talks_to_the_endpoint_that_it_is_given(style: str) -> None:
    """MODEL, STYLE and BASE_URL choose the endpoint; the key comes from the environment."""
    with ModelServer(style, script=["Hello there"]) as server:
        key = "OPENAI_API_KEY" if style == "openai" else "ANTHROPIC_API_KEY"
        done = demo(MODEL="some-model", STYLE=style, BASE_URL=server.base_url, **{key: "k"})
        assert done.returncode == 0, done.stderr
        assert "Hello there" in done.stdout
        assert server.requests[0].json["model"] == "some-model"
        server.assert_done()


def test_demo_fails_where_the_run_fails() -> None:
    """An error is shown with what is known about it, and the exit code says so."""
    with ModelServer() as server:
        server.fail(401, message="wrong key")
        done = demo(MODEL="m", BASE_URL=server.base_url, OPENAI_API_KEY="k")
    assert done.returncode == 1
    assert "failed: AuthenticationError: wrong key (status 401" in done.stdout
    assert done.stderr == ""


def test_demo_says_what_is_missing() -> None:
    """An option that cannot be right is a line of text, not a traceback."""
    done = demo(MODEL="m", STYLE="klingon")
    assert done.returncode == 1
    assert "failed: ConfigurationError: " in done.stdout
    assert "klingon" in done.stdout
    assert done.stderr == ""
