"""
Questions of running tools that cannot be left and called again: they wait where they are.

An MCP server that asks in the middle of a call is the case: its question is lost if the call ends.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from toolnexus.abandon import start_thread
from toolnexus.approval import wait_for
from toolnexus.cancel import POLL, CancelScope
from toolnexus.events import Pending
from toolnexus.suspension import Answer, Request

if TYPE_CHECKING:
    from toolnexus.run import Run

__all__ = ["Question", "Questions"]


class Question:
    """
    A question that a running tool waits for.

    Args:
        request: What is asked.
        calls: The scope of the call, or of those of which one asks.
        within: The scope that it ends with.
        alive: Tells whether one of them still runs: a thread of the tool's may outlive it.
    """

    def __init__(
        self,
        request: Request,
        calls: Collection[CancelScope],
        *,
        within: CancelScope,
        alive: Callable[[], bool],
    ) -> None:
        self.request = request
        self.calls = calls
        self.scope = CancelScope(parent=within)
        self._alive = alive
        # What it came to: whether that went well, and the answer or the exception.
        self._outcome: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def wait(self) -> Answer | None:
        """
        Wait for the answer, no longer than the call lives.

        Raises:
            RunCancelledError: The call was cancelled meanwhile, or is over.
            RunTimeoutError: Its time, or that of the run, was up meanwhile.
            HookError: The client's ``wait_for`` failed.
            InvalidAnswerError: Its answer does not fit.
        """
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    worked, value = self._outcome.get(timeout=POLL)
                    if not worked:
                        raise value
                    return value  # type: ignore[no-any-return]
                if not self._alive():
                    self.scope.cancel("the call is over")
                self.scope.check()
        finally:
            self.scope.cancel()  # whoever is still being asked need not answer any more

    def settle(self, worked: bool, value: Any) -> None:
        """Say what it came to."""
        self._outcome.put((worked, value))


class Questions:
    """
    Puts the questions of one turn's tools to whoever answers for the run, one after the other.

    All but what answers happens in the loop's thread, which goes on looking after the other calls.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: deque[Question] = deque()
        self._open = False  # set by the loop's thread, taken back by the one that answers

    def add(self, question: Question) -> None:
        """Take a question in line."""
        self._waiting.append(question)

    def step(self) -> None:
        """Put the next question, if none is open."""
        while self._waiting and not self._open:
            question = self._waiting.popleft()
            if not question.scope.cancelled:
                self._put(question)

    def _put(self, question: Question) -> None:
        run = self._run
        self._open = True
        if run.gate is not None:
            run.gate.open([question.request], run)
        run.reporter.send(Pending, question.request)
        run.reporter.flush()
        # A person takes the time a person takes: the tool's own time stands still meanwhile.
        now = time.monotonic()
        left = [(call, call.deadline - now) for call in question.calls if call.deadline is not None]
        for call, _ in left:
            call.deadline = None

        def answer() -> None:
            outcome: tuple[bool, Any]
            try:
                outcome = True, self._answer(question)
            except BaseException as error:  # noqa: BLE001 - raised where the tool waits
                outcome = False, error
            finally:
                for call, seconds in left:
                    call.deadline = time.monotonic() + seconds
                self._open = False
            question.settle(*outcome)

        start_thread(answer, "asking")

    def _answer(self, question: Question) -> Answer | None:
        """Return the answer of whoever can answer now, or None."""
        run, request = self._run, question.request
        answer = None
        try:
            if run.options.wait_for is not None:
                answer = wait_for(run, request, question.scope)
            if answer is None and run.gate is not None:
                answer = run.gate.wait(question.scope).get(request.id)
        finally:
            if run.gate is not None:
                run.gate.close([request])
        return answer
