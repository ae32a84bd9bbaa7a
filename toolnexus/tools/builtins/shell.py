"""The built-in that runs commands: bash."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import subprocess
import threading
import time
from typing import Any

import attrs

from toolnexus.cancel import POLL
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins import pipes
from toolnexus.tools.builtins.base import Options, define, number, text
from toolnexus.tools.builtins.output import HeadTail
from toolnexus.tools.builtins.processes import MARK, Group

__all__ = ["shell_tools"]

DEFAULT_TIMEOUT = 60_000
MAX_TIMEOUT = 600_000
#: How long to go on reading after the shell has ended, in seconds, while something still comes.
DRAIN = 0.5
#: How long whoever cancels waits for a command that is just being started, in seconds; it takes milliseconds.
START = 2.0


def shell_tools(options: Options) -> list[Tool]:
    """Return bash."""
    return [
        define(
            bash,
            options,
            description=(
                "Run a shell command. It has no input, and what it leaves running in the background ends "
                "with it. A long output is cut in the middle, and the cut says so."
            ),
            properties={
                "command": {"type": "string", "description": "The command."},
                "workdir": {"type": "string", "description": "The folder to run it in."},
                "timeout": {
                    "type": "number",
                    "description": f"Milliseconds; {DEFAULT_TIMEOUT} by default, {MAX_TIMEOUT} at most.",
                },
                "description": {"type": "string", "description": "What the command does, in a few words."},
            },
            required=("command",),
        )
    ]


def bash(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Run a command and return what it printed."""
    command = text(args, "command")
    workdir = args.get("workdir")
    folder = options.root.resolve(workdir if isinstance(workdir, str) and workdir else ".")
    milliseconds = max(1.0, min(MAX_TIMEOUT, number(args, "timeout", DEFAULT_TIMEOUT)))
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", workdir)
    with _Command(command, folder, ctx, options) as running:
        outcome = running.watch(time.monotonic() + milliseconds / 1000) if running.start() else "cancelled"
        code = running.stop(gently=outcome == "timed out")
    output = running.kept.text()
    if outcome == "timed out":
        return ToolResult.error(f"bash: command timed out after {milliseconds:.0f}ms\n{output}")
    if outcome == "cancelled":
        return ToolResult.error(f"bash: command was cancelled\n{output}")
    if code != 0:
        said = f"bash: command exited with code {code}"
        return ToolResult.error(f"{output}\n{said}" if output else said, exitCode=code)
    return ToolResult.ok(output, exitCode=0)


class _Command:
    """A running command."""

    def __init__(self, command: str, folder: str, ctx: Context, options: Options) -> None:
        self.ctx = ctx
        self.kept = HeadTail(options.max_output)
        self.progress = _Progress(ctx, options.max_output)
        self._command = command
        self._folder = folder
        self._options = options
        # Held while the command is started. A signal handler may cancel in the very thread that starts it.
        self._starting = threading.RLock()
        self._group: Group | None = None

    def __enter__(self) -> _Command:  # noqa: PYI034 - Self is not in the oldest Python
        # The thread that cancels ends the command: this one may be a daemon that never wakes up again.
        self._forget = self.ctx.scope.on_cancel(self._kill)
        return self

    def __exit__(self, *exc: object) -> None:
        self._forget()
        if self._group is not None:
            self._group.end()
            if self._group.process.stdout is not None:
                self._group.process.stdout.close()

    def _kill(self) -> None:
        """End the command, also one that is just being started: nobody else might come to do it."""
        if self._starting.acquire(timeout=START):
            try:
                if self._group is not None:
                    self._group.kill()
            finally:
                self._starting.release()

    def start(self) -> bool:
        """Start the command, unless the run was cancelled before; return whether it was started."""
        mark = secrets.token_hex(16)
        with self._starting:
            if self.ctx.cancelled:
                return False
            process = subprocess.Popen(
                [self._options.shell, "-c", self._command],
                cwd=self._folder,
                env={**self._options.env, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
            self._group = Group(process, mark)
        return True

    def stop(self, *, gently: bool) -> int:
        """End what is still running and return the exit code, counted as a shell does."""
        if self._group is None:
            return 0
        self._group.end(gently=gently)
        code = self._group.process.returncode
        return code if code >= 0 else 128 - code

    def watch(self, deadline: float) -> str:
        """Read the output until the command has ended; return how it did."""
        group = self._group
        assert group is not None  # it was started
        assert group.process.stdout is not None  # it was asked for
        pipe = group.process.stdout.fileno()
        os.set_blocking(pipe, False)
        ended: float | None = None
        while True:
            if self.ctx.cancelled:
                return "cancelled"
            now = time.monotonic()
            if ended is None and group.exited():
                ended = now
            if ended is None and now >= deadline:
                return "timed out"
            more = self._read(pipe, 0 if ended is not None else min(POLL, deadline - now))
            # A child in the background may hold the pipe for ever, so its end is not waited for.
            if ended is not None and (not more or now > ended + DRAIN):
                self.progress.finish()
                return "ended"

    def _read(self, pipe: int, wait: float) -> bool:
        """Take what has arrived, waiting a moment for it; return whether there was anything."""
        readable, _ = pipes.wait(pipe, wait)
        if not readable:
            return False
        with contextlib.suppress(BlockingIOError):
            block = os.read(pipe, 1 << 16)
            if block:
                self.kept.add(block)
                self.progress.add(block)
                return True
            time.sleep(max(0.0, wait))  # closed, with the command still running
        return False


@attrs.define
class _Progress:
    """Reports the output as it comes, up to a limit: nobody reads on through gigabytes."""

    ctx: Context
    left: int
    decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def add(self, block: bytes) -> None:
        self._report(self.decoder.decode(block))

    def finish(self) -> None:
        self._report(self.decoder.decode(b"", final=True))

    def _report(self, delta: str) -> None:
        if not delta or self.left <= 0:
            return
        self.ctx.output(delta[: self.left])
        self.left -= len(delta)
        if self.left <= 0:
            self.ctx.output("\n[... more output is not shown while the command runs ...]\n")
