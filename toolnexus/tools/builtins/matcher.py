"""Finding the lines that match a pattern of the model's, without letting the pattern hang anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from toolnexus.cancel import POLL, CancelScope
from toolnexus.tools.builtins import grep_worker, pipes
from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["LineMatcher", "Lines", "line_matcher"]

#: How long one search may match, in seconds.
MATCH_SECONDS = 20.0

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")

Lines = list[tuple[int, str]]


class LineMatcher:
    """Matches plain text; to be used as a context manager, as its other form is."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted

    def __enter__(self) -> LineMatcher:  # noqa: PYI034 - Self is not in the oldest Python
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """There is nothing to close."""

    def find(self, text: bytes, shown: str, most: int) -> Lines:
        """
        Return the numbers and texts of the first lines that match.

        Args:
            text: The text, in UTF-8.
            shown: The file that errors name.
            most: How many lines at most.

        Raises:
            ToolFailure: The pattern takes too long.
        """
        if self.wanted.encode("utf-8", "replace") not in text:
            return []
        lines = enumerate(text.decode("utf-8", "replace").split("\n"), 1)
        found = [(number, grep_worker.shorten(line)) for number, line in lines if self.wanted in line]
        return found[:most]


class _WorkerMatcher(LineMatcher):
    """Has a process of its own match a regular expression."""

    def __init__(self, pattern: str, scope: CancelScope, seconds: float) -> None:
        super().__init__(pattern)
        self.scope = scope
        self.left = seconds
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LineMatcher:
        # Isolated: neither the environment nor the current folder decides what is imported.
        command = [sys.executable, "-I", "-S", grep_worker.__file__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        try:
            answer = self._ask(json.dumps({"pattern": self.wanted}).encode("ascii") + b"\n", "compiling it")
        except BaseException:
            self._end()
            raise
        if answer.get("error") is not None:
            self._end()
            raise ToolFailure(f"invalid regex: {answer['error']}")
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def find(self, text: bytes, shown: str, most: int) -> Lines:
        head = json.dumps({"size": len(text), "most": most}).encode("ascii")
        return [(int(number), str(line)) for number, line in self._ask(head + b"\n" + text, shown)]

    def _ask(self, request: bytes, shown: str) -> Any:
        """Send a request and return the answer, within the time that is left."""
        assert self.process is not None  # it runs from enter to exit
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        started = time.monotonic()
        answer = bytearray()
        view = memoryview(request)
        source, sink = self.process.stdout.fileno(), self.process.stdin.fileno()
        os.set_blocking(sink, False)
        while not answer.endswith(b"\n"):
            readable, writable = pipes.wait(source, POLL, sink=sink if view else None)
            self.scope.check()
            if time.monotonic() - started > self.left:
                raise ToolFailure(f"the pattern takes too long (more than {self.seconds:g} s, at {shown})")
            if writable:
                view = view[_write(sink, view) :]
            if readable:
                block = os.read(source, 1 << 16)
                if not block:
                    raise ToolFailure("the search process ended")
                answer += block
        self.left -= time.monotonic() - started
        return json.loads(answer)


def _write(sink: int, view: memoryview) -> int:
    """Write what fits into a pipe."""
    try:
        return os.write(sink, view[: 1 << 16])
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(view)  # its output says why


def line_matcher(pattern: str, scope: CancelScope, *, seconds: float = MATCH_SECONDS) -> LineMatcher:
    """
    Return what finds the lines that match a pattern.

    Args:
        pattern: A regular expression.
        scope: Its end ends the search.
        seconds: How long all of the matching may take.

    >>> with line_matcher("b+c", CancelScope()) as matcher:
    ...     matcher.find(b"abc\\nabbc\\nac", "x", 10)
    [(1, 'abc'), (2, 'abbc')]
    """
    if _SPECIAL.search(pattern) or "\n" in pattern:
        return _WorkerMatcher(pattern, scope, seconds)
    return LineMatcher(pattern)
