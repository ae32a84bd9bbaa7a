"""The lock of a conversation: who waits, who is told, and that nothing is left."""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import random
import threading
import time
import warnings

import pytest

from toolnexus.cancel import CancelScope
from toolnexus.errors import ConversationBusyError, RunCancelledError, RunTimeoutError
from toolnexus.stores.locks import ConversationLocks


@pytest.fixture
def locks() -> ConversationLocks:
    """Return locks that nobody holds."""
    return ConversationLocks()


def me() -> int:
    """Return the number of this thread."""
    return threading.get_ident()


class Holder:
    """A thread that holds a conversation until it is told to let go."""

    def __init__(
        self,
        locks: ConversationLocks,
        name: str,
        *,
        owner: int | None = None,
        scope: CancelScope | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.locks, self.name, self.owner, self.scope = locks, name, owner, scope or CancelScope()
        self.holding = threading.Event()
        self.let_go = threading.Event()
        self.error: BaseException | None = None
        run = (context or contextvars.copy_context()).run
        self.thread = threading.Thread(target=run, args=(self._run,))
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.scope.running(), self.locks.hold(self.name, self.scope, self.owner or me()):
                self.holding.set()
                assert self.let_go.wait(30)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Let go, and wait until the thread has ended."""
        self.let_go.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_one_after_the_other(locks: ConversationLocks) -> None:
    """A second thread waits until the first is done; another conversation is free."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    second = Holder(locks, "a")
    with locks.hold("b", CancelScope(), me()):
        assert repr(locks) == "<ConversationLocks: 2 in use>"
    assert not second.holding.wait(0.1)
    first.end()
    assert second.holding.wait(10)
    second.end()
    assert (first.error, second.error) == (None, None)
    assert repr(locks) == "<ConversationLocks: 0 in use>"


def test_no_two_at_once(locks: ConversationLocks) -> None:
    """However many threads want it, only one has it, and all get it."""
    inside, seen = [0], []

    def work() -> None:
        for _ in range(20):
            with locks.hold("a", CancelScope(), me()):
                inside[0] += 1
                seen.append(inside[0])
                time.sleep(random.uniform(0, 0.0005))
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [1] * 160
    assert repr(locks) == "<ConversationLocks: 0 in use>"


def test_first_come_first_served(locks: ConversationLocks) -> None:
    """Those who wait get their turn in the order in which they came."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    waiting = []
    for _ in range(4):
        waiting.append(Holder(locks, "a"))
        time.sleep(0.05)
    first.end()
    for number, holder in enumerate(waiting):
        assert holder.holding.wait(10)
        assert not any(later.holding.is_set() for later in waiting[number + 1 :])
        holder.end()


def test_the_same_thread_is_told_at_once(locks: ConversationLocks) -> None:
    """Who has a conversation and comes in again would wait for itself: it is an error."""
    with locks.hold("a", CancelScope(), me()):
        with pytest.raises(ConversationBusyError, match="'a' is in use by this very thread"):
            locks.hold("a", CancelScope(), me()).__enter__()
        with locks.hold("b", CancelScope(), me()):
            pass
    with locks.hold("a", CancelScope(), me()):
        pass


def test_the_thread_that_iterates_is_told_at_once(locks: ConversationLocks) -> None:
    """A stream's own thread holds for the one that iterates: that one comes in again, and is told."""
    pump = Holder(locks, "a", owner=me())
    assert pump.holding.wait(10)
    with pytest.raises(ConversationBusyError, match="by this very thread"):
        locks.hold("a", CancelScope(), me()).__enter__()
    other = Holder(locks, "a")
    assert not other.holding.wait(0.1)
    pump.end()
    other.end()
    assert other.error is None


def test_the_thread_of_a_waiting_stream_is_told_too(locks: ConversationLocks) -> None:
    """A started stream that still waits would wait for its reader for ever, once it had its turn."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    pump = Holder(locks, "a", owner=me())
    time.sleep(0.1)
    with pytest.raises(ConversationBusyError, match="by this very thread"):
        locks.hold("a", CancelScope(), me()).__enter__()
    first.end()
    pump.end()


def test_a_tool_of_the_run_is_told_at_once(locks: ConversationLocks) -> None:
    """Code that a run calls in another thread, with a copy of its context, may not wait for that run."""
    with locks.hold("a", CancelScope(), me()):
        tool = Holder(locks, "a", context=contextvars.copy_context())
        tool.thread.join(10)
        assert isinstance(tool.error, ConversationBusyError)
        assert "a run that this one is a part of" in str(tool.error)
    other = Holder(locks, "a", context=contextvars.copy_context())
    assert other.holding.wait(10)
    other.end()


def test_a_context_that_outlives_its_run_may_wait(locks: ConversationLocks) -> None:
    """A thread that a run left behind is no part of the runs that come after it."""
    with locks.hold("a", CancelScope(), me()):
        left = contextvars.copy_context()
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    second = Holder(locks, "a", context=left)
    assert not second.holding.wait(0.1)
    assert second.error is None
    first.end()
    second.end()
    assert second.error is None


def test_other_locks_are_others(locks: ConversationLocks) -> None:
    """Two clients know nothing of each other's locks."""
    with locks.hold("a", CancelScope(), me()), ConversationLocks().hold("a", CancelScope(), me()):
        pass


def test_waiting_ends_with_the_timeout(locks: ConversationLocks) -> None:
    """Who waits longer than its run may take gets the run's own error, and leaves the queue."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    scope = CancelScope(timeout=0.1)
    with scope.running(), pytest.raises(RunTimeoutError):
        locks.hold("a", scope, me()).__enter__()
    first.end()
    assert repr(locks) == "<ConversationLocks: 0 in use>"


def test_waiting_ends_with_a_cancel(locks: ConversationLocks) -> None:
    """Who waits can be cancelled from another thread, and the next one moves up."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)
    scope = CancelScope()
    second = Holder(locks, "a", scope=scope)
    time.sleep(0.05)
    third = Holder(locks, "a")
    scope.cancel("enough")
    second.thread.join(10)
    assert isinstance(second.error, RunCancelledError)
    first.end()
    assert third.holding.wait(10)
    third.end()


def test_a_run_that_ended_before_it_began_takes_nothing(locks: ConversationLocks) -> None:
    """With a cancelled scope nothing is held, not even what is free."""
    scope = CancelScope()
    scope.cancel()
    with pytest.raises(RunCancelledError):
        locks.hold("a", scope, me()).__enter__()
    assert repr(locks) == "<ConversationLocks: 0 in use>"


def test_a_cancelled_stream_is_waited_for(locks: ConversationLocks) -> None:
    """After leaving a stream, its thread may come in again: the old run is about to let go."""
    scope = CancelScope()
    pump = Holder(locks, "a", owner=me(), scope=scope)
    assert pump.holding.wait(10)
    scope.cancel()
    threading.Timer(0.1, pump.let_go.set).start()
    with locks.hold("a", CancelScope(), me()):
        assert pump.let_go.is_set()
    pump.end()


def test_a_cancelled_run_of_the_same_thread_is_not_waited_for(locks: ConversationLocks) -> None:
    """Within the block nobody else can let go, cancelled or not."""
    scope = CancelScope()
    with locks.hold("a", scope, me()):
        scope.cancel()
        with pytest.raises(ConversationBusyError):
            locks.hold("a", CancelScope(), me()).__enter__()


def test_a_thread_with_the_number_of_a_dead_one_waits(locks: ConversationLocks) -> None:
    """The system gives out the numbers of threads anew; the new thread is not the old one."""
    started = threading.Event()
    owner = threading.Thread(target=started.wait)
    owner.start()
    pump = Holder(locks, "a", owner=owner.ident)
    assert pump.holding.wait(10)
    started.set()
    owner.join(10)
    for _ in range(50):
        heir = Holder(locks, "a")
        if heir.thread.ident == owner.ident:
            break
        heir.scope.cancel()
        heir.thread.join(10)
    else:
        pump.end()
        pytest.skip("this system gave no number out again")
    assert not heir.holding.wait(0.1)
    assert heir.error is None
    pump.end()
    heir.end()
    assert heir.error is None


def test_an_exception_lets_go(locks: ConversationLocks) -> None:
    """However the block ends, the conversation is free after it."""
    with pytest.raises(ZeroDivisionError), locks.hold("a", CancelScope(), me()):
        raise ZeroDivisionError
    assert repr(locks) == "<ConversationLocks: 0 in use>"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_holds_nothing(locks: ConversationLocks) -> None:
    """What threads of the parent hold is free in the child, and stays held in the parent."""
    first = Holder(locks, "a")
    assert first.holding.wait(10)

    def child() -> None:
        with locks.hold("a", CancelScope(timeout=10), me()):
            pass

    with locks.hold("b", CancelScope(), me()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
        process.join(20)
    assert process.exitcode == 0
    second = Holder(locks, "a")
    assert not second.holding.wait(0.1)
    first.end()
    second.end()
