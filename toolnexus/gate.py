"""Where the answers to suspended calls come in while a stream runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from toolnexus.cancel import POLL, CancelScope
from toolnexus.errors import InvalidAnswerError
from toolnexus.suspension import Answer, Request

if TYPE_CHECKING:
    from toolnexus.run import Run

__all__ = ["Gate"]


class Gate:
    """
    Stands between the pump, which waits for answers, and the consumer, who gives them.

    Args:
        wait: Whether to wait for answers however long the consumer goes on without; else the
            consumer's asking for the next item decides.
    """

    def __init__(self, wait: bool) -> None:
        self._wait = wait
        self._lock = threading.Lock()  # guards all below
        self._requests: dict[str, Request] = {}
        self._answers: dict[str, Answer] = {}
        self._run: Run | None = None
        self._last = ""
        self._news = threading.Event()
        self._decided = False

    # -- in the pump's thread ----------------------------------------------------------------

    def open(self, requests: list[Request], run: Run) -> None:
        """Take answers to these requests, and to no others, from now on."""
        with self._lock:
            self._requests = {request.id: request for request in requests}
            self._answers, self._run, self._decided = {}, run, False
            self._last = requests[-1].id
            self._news.clear()

    def wait(self, scope: CancelScope) -> dict[str, Answer]:
        """
        Wait until it is decided, and return the answers.

        Raises:
            RunCancelledError: The run was cancelled meanwhile.
            RunTimeoutError: The run's time was up meanwhile.
        """
        while True:
            with self._lock:
                open_ = [r for r in self._requests.values() if r.id not in self._answers and not r.expired]
                if not open_ or self._decided:
                    return dict(self._answers)
            scope.check()
            self._news.wait(POLL)

    def close(self, requests: list[Request]) -> None:
        """Take no more answers to these requests."""
        with self._lock:
            if any(request.id in self._requests for request in requests):
                self._requests, self._run = {}, None

    def wait_on(self) -> None:
        """Wait for answers from now on, however long the consumer goes on without."""
        self._wait = True

    # -- in the consumer's thread ------------------------------------------------------------

    def answer(self, answer: Answer) -> None:
        """
        Take an answer.

        Raises:
            InvalidAnswerError: Nobody waits for it, or it does not fit; the suspension stays.
        """
        from toolnexus.approval import check_answer

        with self._lock:
            request, run = self._requests.get(answer.id), self._run
            if request is None or run is None:
                raise InvalidAnswerError(f"nobody waits for an answer to the request {answer.id!r}")
            check_answer(run, request, answer)
            self._answers[answer.id] = answer
        self._news.set()

    def waiting_for(self, request_id: str) -> Request | None:
        """Return a request that still waits, by its id."""
        with self._lock:
            return None if request_id in self._answers else self._requests.get(request_id)

    def moved_on(self, request_id: str) -> None:
        """The consumer asks for the item after this request: after the last one that decides."""
        with self._lock:
            if not self._wait and request_id == self._last:
                self._decided = True
        self._news.set()
