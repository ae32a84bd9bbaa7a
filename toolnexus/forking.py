"""
Locks and databases in a process that forks.

A lock that another thread holds at the moment of the fork stays locked in the child for ever, and
a database connection that both processes own is worse: SQLite in the child believes in locks that
the child does not have, and what it then writes can vanish without an error. So whatever is
watched here is brought to rest before a fork and set going again after it, in both processes.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from toolnexus.errors import StoreError

__all__ = ["ChildLock", "ForkLock", "Gate", "watch"]

#: Seconds that a fork waits for operations under way in other threads.
PATIENCE = 10.0


class Watched(Protocol):
    """What can be brought to rest."""

    def before_fork(self) -> None: ...
    def after_fork(self, *, child: bool) -> None: ...


class _Watch:
    """All that is watched. The lock is held over a fork, so that nothing new comes in between."""

    def __init__(self) -> None:
        self.forking = threading.RLock()  # one fork at a time
        self.lock = threading.RLock()
        self.members: weakref.WeakSet[Watched] = weakref.WeakSet()
        self.at_rest: list[Watched] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self.before, after_in_parent=self.after_in_parent, after_in_child=self.after_in_child
            )

    def before(self) -> None:
        self.forking.acquire()
        # Those that wait for operations go first, and before any lock is held: an operation may need one.
        with self.lock:
            gates = [member for member in self.members if isinstance(member, Gate)]
        for gate in gates:
            gate.before_fork()
        self.lock.acquire()
        others = [member for member in self.members if member not in gates]
        for member in others:
            member.before_fork()
        self.at_rest = [*gates, *others]

    def after_in_parent(self) -> None:
        at_rest, self.at_rest = self.at_rest, []
        for member in at_rest:
            member.after_fork(child=False)
        self.lock.release()
        self.forking.release()

    def after_in_child(self) -> None:
        at_rest, self.at_rest = self.at_rest, []
        for member in at_rest:
            member.after_fork(child=True)
        self.lock = threading.RLock()
        self.forking = threading.RLock()


_watch = _Watch()


def watch(member: Watched) -> None:
    """Bring an object to rest before every fork, for as long as it lives."""
    with _watch.lock:
        _watch.members.add(member)


class ForkLock:
    """
    A lock for a few quick steps; free in the child, whoever held it when the process forked.

    No other one may be taken within these steps.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        watch(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait until nobody is inside."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Let others in again."""
        if child:
            self._lock = threading.RLock()
        else:
            self._lock.release()


class ChildLock:
    """
    A lock that may be held for long: a fork does not wait for it, and it is free in the child.

    For what another process may do at the same time anyway.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _child_locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a child: whoever held it is not here."""
        self._lock = threading.RLock()


_child_locks: weakref.WeakSet[ChildLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_child_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Gate(abc.ABC):
    """
    What every operation on a database passes through.

    Before a fork it lets nobody in, waits until everybody is out, and closes the connections.
    """

    def __init__(self) -> None:
        # Guards the three below. It is never held while a database works.
        self._changed = threading.Condition()
        self._inside = 0
        self._forking = False
        self._torn = False
        watch(self)

    @abc.abstractmethod
    def quiet(self) -> None:
        """Close the connections that are not in use."""

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Count an operation, from before it takes a connection until it has given it back."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._forking, timeout=2 * PATIENCE):
                raise StoreError("the store is used in the middle of a fork")
            if self._torn:
                raise StoreError(
                    "the process forked while another thread was inside this store; "
                    "make a new store in the child, or start it with the 'spawn' method"
                )
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let nobody in, wait for those inside, and close the connections."""
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: not self._inside, timeout=PATIENCE)
        self.quiet()

    def after_fork(self, *, child: bool) -> None:
        """Open again; in a child that has inherited a connection at work, only to say so."""
        if child:
            self._torn = self._torn or self._inside > 0
            self._inside = 0
            self._changed = threading.Condition()
        with self._changed:
            self._forking = False
            self._changed.notify_all()
