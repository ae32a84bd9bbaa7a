"""Ending a command with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

__all__ = ["MARK", "Group"]

#: The variable by which processes that left the group are still known as the command's.
MARK = "TOOLNEXUS_COMMAND"
#: How long processes have to end by themselves after they were asked to, in seconds.
GRACE = 0.3
_ROUNDS = 50


class Group:
    """
    The processes of one command: those of its session, and those that left it but carry its mark.

    Args:
        process: The shell, which leads a session of its own.
        mark: The value of `MARK` in its environment.
    """

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.process = process
        self.mark = mark
        # Guards _reaped: the number of the group must not be used once it may be somebody else's.
        self._lock = threading.Lock()
        self._reaped = False

    def kill(self) -> None:
        """End all processes at once; from any thread, any number of times."""
        with self._lock:
            if not self._reaped:
                self._signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)

    def end(self, *, gently: bool = False) -> None:
        """
        End all processes and collect the shell.

        Args:
            gently: Whether to ask first, and wait a moment for those that tidy up.
        """
        if gently:
            with self._lock:
                self._signal(signal.SIGTERM)
            deadline = time.monotonic() + GRACE
            while not self.exited() and time.monotonic() < deadline:
                time.sleep(0.01)
        self.kill()
        with self._lock:
            self._reaped = True
        self.process.wait()
        self._kill_marked()

    def exited(self) -> bool:
        """Whether the shell has ended. It is not collected yet, so that its group stays its own."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return info is not None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def _kill_marked(self) -> None:
        """End the processes that made a session of their own, where the system lets us find them."""
        for _ in range(_ROUNDS):
            found = _marked(f"{MARK}={self.mark}".encode())
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.005)


def _marked(entry: bytes) -> list[int]:
    """Return the living processes whose environment began with an entry."""
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    pids = []
    for name in names:
        # Dead processes that nobody has collected yet have an empty environment.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if entry in file.read().split(b"\0"):
                pids.append(int(name))
    return pids
