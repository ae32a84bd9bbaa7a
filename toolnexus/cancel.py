"""
The cancel scope: one object that every wait and every socket of a run answers to.

Cancelling sets a flag first and shuts the sockets after, so that whoever wakes up from a read
can tell a cancel from a broken connection.

A scope may be cancelled from a signal handler or a finalizer, which run at any moment in a thread
that is in the middle of something else. So its lock is one that the same thread may take again, and
nobody waits on a condition here: waits look at the flag now and then.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from toolnexus.errors import ConfigurationError, RunCancelledError, RunTimeoutError, ToolnexusError
from toolnexus.forking import ForkLock

__all__ = ["LONGEST", "CancelScope", "check_seconds"]

#: How often a wait looks at the flag, in seconds.
POLL = 0.02

#: The longest duration in seconds, some 23 days: a system's wait takes its milliseconds as 32 bits.
LONGEST = 2_000_000


def check_seconds(name: str, value: float) -> float:
    """
    Return a duration as it is, if it can be waited for.

    Raises:
        ConfigurationError: It is no number from 0 to `LONGEST`.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LONGEST:
        raise ConfigurationError(f"{name} must be a number of seconds, at most {LONGEST}")
    return value


#: Held while a scope moves to a forked process, for a few steps.
_moving = ForkLock()


class CancelScope:
    """
    Cancels a run from anywhere, and ends it when its time is up.

    Give one to ``client.run(..., scope=scope)`` to be able to cancel it from another thread.
    It may be cancelled before the run begins, and a run that fails, or whose stream is left early, does not
    cancel it: it may serve further runs.

    Args:
        timeout: Seconds until the scope ends by itself, counted from the start of the run;
            None for no limit.

    Raises:
        ConfigurationError: The timeout is no number of seconds that can be waited for.

    >>> scope = CancelScope()
    >>> scope.cancelled
    False
    >>> scope.cancel("changed my mind")
    >>> scope.cancelled
    True
    """

    def __init__(self, timeout: float | None = None, *, parent: CancelScope | None = None) -> None:
        self.timeout = timeout if timeout is None else check_seconds("timeout", timeout)
        self.deadline: float | None = None
        self._parent = parent
        self._of_run = parent is None
        self._reason: str | None = None
        self._cancelled = False
        self._expired = False
        # Guards _sockets against a shutdown of a number that was closed and given out anew.
        # A finalizer only tries to take it, see abandon().
        self._lock = threading.RLock()
        self._sockets: list[socket.socket] = []
        # The process that the sockets belong to: a forked child shall not shut those of its parent.
        self._process = 0
        self._callbacks: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "expired" if self._expired else "active"
        return f"<CancelScope {state}>"

    @property
    def cancelled(self) -> bool:
        """Whether the scope has ended: cancelled, or out of time."""
        if self._cancelled or self._expired:
            return True
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._expired = True
            return True
        return self._parent is not None and self._parent.cancelled

    @property
    def is_alone(self) -> bool:
        """Whether nothing ends the scope that would not tell it: no outer scope, no deadline that was set."""
        return self._parent is None and self.deadline is None

    def cancel(self, reason: str | None = None) -> None:
        """
        Cancel: from any thread, from a signal handler, any number of times.

        Args:
            reason: A word for the error message.
        """
        if self._reason is None:
            self._reason = reason
        self._cancelled = True
        self._shut()

    def abandon(self) -> None:
        """Cancel from a finalizer: waits for no lock, and calls nobody."""
        self._cancelled = True
        if self._is_elsewhere():
            return
        if self._lock.acquire(blocking=False):
            try:
                self._shut_sockets()
            finally:
                self._lock.release()

    def expire(self) -> None:
        """End the scope because its time is up."""
        self._expired = True
        self._shut()

    def _is_elsewhere(self) -> bool:
        """Tell whether the run goes on in the process that this one was forked from."""
        return self._process != 0 and self._process != os.getpid()

    def _shut(self) -> None:
        if self._is_elsewhere():
            return  # the lock may have been held at the fork, and nobody here will let go of it
        with self._lock:
            self._shut_sockets()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback()

    def _shut_sockets(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def error(self) -> ToolnexusError:
        """Return the error that the run ends with, now that the scope has ended."""
        if self._parent is not None and self._parent.cancelled:
            return self._parent.error()
        if self._cancelled:
            why = f": {self._reason}" if self._reason else ""
            return RunCancelledError(f"the run was cancelled{why}")
        what = "run" if self._of_run else "call"
        limit = f" of {self.timeout:g} s" if self.timeout is not None else ""
        return RunTimeoutError(f"the {what} took longer than its timeout{limit}")

    def check(self) -> None:
        """
        Raise if the scope has ended.

        Raises:
            RunCancelledError: It was cancelled.
            RunTimeoutError: Its time is up.
        """
        if self.cancelled:
            raise self.error()

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, never negative; None without one."""
        outer = self._parent.remaining() if self._parent is not None else None
        own = max(0.0, self.deadline - time.monotonic()) if self.deadline is not None else None
        return own if outer is None else outer if own is None else min(own, outer)

    def for_run(self, timeout: float | None = None) -> CancelScope:
        """
        Return the scope of one run: it ends with this one, and what ends the run leaves this one alone.

        Args:
            timeout: Seconds that the run may take, unless this scope says how long.
        """
        inner = CancelScope(timeout, parent=self)
        inner._of_run = True
        # A deadline that is set holds for the run, too, as it does for everything inside.
        if self.timeout is not None and self.deadline is None:
            inner.timeout = self.timeout
        return inner

    @contextlib.contextmanager
    def child(self, timeout: float | None = None) -> Iterator[CancelScope]:
        """
        Open a scope that ends with this one, or earlier; ending it leaves this one alone.

        Args:
            timeout: Seconds the child may take, counted from now; None for no limit of its own.
        """
        inner = CancelScope(timeout, parent=self)
        if timeout is not None:
            inner.deadline = time.monotonic() + timeout
        take_back = self.on_cancel(inner.cancel)
        try:
            yield inner
        finally:
            take_back()

    def sleep(self, seconds: float) -> None:
        """
        Wait, but no longer than the scope lives.

        Raises:
            RunCancelledError: The scope was cancelled meanwhile.
            RunTimeoutError: Its time was up first.
        """
        end = time.monotonic() + seconds
        while True:
            self.check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, POLL))

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """
        Have a function called when the scope ends, at once if it has ended.

        It runs in the thread that cancels, must be quick, and is not called for an abandoned
        stream; its exceptions are dropped.

        Returns:
            A function that takes the callback back.
        """
        self._settle_here()
        with self._lock:
            if not self.cancelled:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _settle_here(self) -> None:
        """Note the process that this scope works in; what it has of the one before is left to that one."""
        if self._process != (here := os.getpid()):
            with _moving:
                if self._process not in (0, here):
                    # The lock may have been held at the fork; the sockets go on being the parent's.
                    self._lock, self._sockets, self._callbacks = threading.RLock(), [], []
                self._process = here

    def _forget(self, callback: Callable[[], object]) -> None:
        if self._is_elsewhere():
            return
        with self._lock, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def attach(self, sock: socket.socket) -> None:
        """Have a socket shut when the scope ends; at once if it has ended."""
        self._settle_here()
        with self._lock:
            self._sockets.append(sock)
        # After the append: whoever cancels sets the flag before walking the list.
        if self.cancelled:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def detach(self, sock: socket.socket) -> None:
        """Take a socket back. Only then may it be closed or serve another run."""
        if self._is_elsewhere():
            return
        with self._lock, contextlib.suppress(ValueError):
            self._sockets.remove(sock)

    @contextlib.contextmanager
    def running(self) -> Iterator[CancelScope]:
        """Let the clock of ``timeout`` run, and end when the outer scope ends, until the end of the block."""
        take_back = self._parent.on_cancel(self.cancel) if self._of_run and self._parent is not None else None
        try:
            with self._timed(self.timeout) if self.timeout is not None else contextlib.nullcontext():
                yield self
        finally:
            if take_back is not None:
                take_back()

    @contextlib.contextmanager
    def _timed(self, timeout: float) -> Iterator[None]:
        self.deadline = time.monotonic() + timeout
        stop = threading.Event()
        # A thread of its own, and only where a timeout was asked for: it must be able to end a
        # read that a trickle of bytes keeps alive, which no timeout of the socket's does.
        threading.Thread(target=self._watch, args=(stop,), name="toolnexus-deadline", daemon=True).start()
        try:
            yield
        finally:
            stop.set()
            self._expired = self._expired or time.monotonic() >= self.deadline
            self.deadline = None  # the scope may serve another run

    def _watch(self, stop: threading.Event) -> None:
        left = self.remaining()
        if left is not None and not stop.wait(left):
            self.expire()
