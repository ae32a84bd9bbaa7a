"""When a failed model call is tried again, and how long to wait before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

import attrs

from toolnexus.errors import APIError, ToolnexusError
from toolnexus.values import Value

__all__ = ["ErrorInfo", "OnError", "RetryPolicy"]


#: By what a wait is longer than the one before, at least.
_GROWTH = 1.25


@attrs.frozen(eq=False, repr=False)
class ErrorInfo(Value):
    """
    What an ``on_error`` function gets to decide on.

    Args:
        error: What went wrong.
        attempt: The try that failed, from 1.
        retries_left: How many more tries there may be.
        retryable: What would be done without the function.
        status: The HTTP status, or None.
    """

    error: ToolnexusError
    attempt: int
    retries_left: int
    retryable: bool
    status: int | None


OnError = Callable[[ErrorInfo], Literal["retry", "fail"]]


@attrs.frozen(eq=False, repr=False)
class RetryPolicy:
    """
    Exponential backoff with full jitter; each wait is longer than the one before, up to the cap.

    Args:
        retries: How many tries there are after the first one.
        base: Seconds that the first wait may last at most.
        cap: Seconds that any backoff may last at most.
        max_retry_after: Seconds that a server may ask for; if it asks for more, there is no retry.
        on_error: Decides instead of the error's own ``retryable``.
    """

    retries: int = 2
    base: float = 0.5
    cap: float = 8.0
    max_retry_after: float = 120.0
    on_error: OnError | None = None

    def delay(
        self, error: ToolnexusError, attempt: int, remaining: float | None, waited: float = 0.0
    ) -> float | None:
        """
        Return the seconds to wait before the next try, or None where there is none.

        Args:
            error: What went wrong.
            attempt: The try that failed, from 1.
            remaining: Seconds that the run has left, or None.
            waited: Seconds that the wait before this try lasted.
        """
        left = self.retries - (attempt - 1)
        if left <= 0 or not self._wanted(error, attempt, left):
            return None
        asked = error.retry_after if isinstance(error, APIError) else None
        if asked is not None and asked > self.max_retry_after:
            return None
        seconds = asked if asked is not None else self._backoff(attempt, waited)
        if remaining is not None and seconds >= remaining:
            return None
        return seconds

    def _backoff(self, attempt: int, waited: float) -> float:
        # The factor is capped, so that many retries do not make a number too large to be one.
        most = min(self.cap, self.base * 2 ** min(attempt - 1, 30))
        # Jitter alone would make every fourth pair of waits shrink, and the server no time to recover.
        least = waited * _GROWTH
        return random.uniform(least if least < most else 0.0, most)

    def _wanted(self, error: ToolnexusError, attempt: int, left: int) -> bool:
        if self.on_error is None:
            return error.retryable
        status = error.status if isinstance(error, APIError) else None
        verdict = self.on_error(ErrorInfo(error, attempt, left, error.retryable, status))
        if verdict not in ("retry", "fail"):
            raise TypeError(f'it must return "retry" or "fail", not {verdict!r}')
        return verdict == "retry"
