"""What the loop tells of a run, and how it gets to the watches."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from toolnexus.errors import ConfigurationError
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.chunks import ToolRequest
    from toolnexus.endpoint import Endpoint
    from toolnexus.results import RunResult
    from toolnexus.run import Run
    from toolnexus.tools.base import ToolResult
    from toolnexus.trial import Trial
    from toolnexus.watch import Watch, Watched, WatchedRun, WatchedTool

__all__ = ["SILENT", "Observers", "RunWatch", "check_watches"]

_log = logging.getLogger("toolnexus")


class Observers:
    """
    The watches of a client.

    Args:
        watches: The watches, in the order in which they are told.
    """

    def __init__(self, watches: Iterable[Watch] = ()) -> None:
        self._watches = tuple(watches)
        self._blamed: set[int] = set()
        self._around: list[Watch] = []
        if not self._watches:
            return
        from toolnexus.watch import Watch  # here and below, because importing shall be cheap

        self._around = [w for w in self._watches if type(w).inside is not Watch.inside]

    def __bool__(self) -> bool:
        return bool(self._watches)

    def tell(self, moment: str, what: Watched) -> None:
        """Tell every watch."""
        for watch in self._watches:
            try:
                getattr(watch, moment)(what)
            except Exception as error:  # noqa: BLE001 - whoever watches does not end what is watched
                self._blame(watch, moment, error)

    @contextlib.contextmanager
    def inside(self, what: Watched) -> Iterator[None]:
        """Be inside of every watch."""
        if not self._around:
            yield
            return
        with contextlib.ExitStack() as stack:
            for watch in self._around:
                self._enter(watch, what, stack)
            yield

    def _enter(self, watch: Watch, what: Watched, stack: contextlib.ExitStack) -> None:
        def leave() -> None:
            try:
                manager.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001
                self._blame(watch, "inside", error)

        try:
            manager = watch.inside(what)
            manager.__enter__()
        except Exception as error:  # noqa: BLE001
            self._blame(watch, "inside", error)
        else:
            stack.callback(leave)

    def _blame(self, watch: Watch, moment: str, error: Exception) -> None:
        level = logging.DEBUG if id(watch) in self._blamed else logging.WARNING
        self._blamed.add(id(watch))
        _log.log(
            level,
            "%s of the watch %s raised %s (the runs go on; this is said once)",
            moment,
            watch,
            describe_error(error),
            exc_info=level == logging.WARNING,
        )


class RunWatch:
    """
    What the loop tells of one run.

    Args:
        observers: Who is told.
    """

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._caller = contextvars.copy_context() if observers else _NO_CONTEXT
        self._watched: WatchedRun | None = None

    def _about(self, run: Run) -> WatchedRun:
        if self._watched is None:
            from toolnexus.watch import WatchedRun

            self._watched = WatchedRun(
                run_id=run.run_id,
                id=run.id,
                name=run.name,
                streaming=run.streaming,
                messages=run.messages,
                system=run.options.system_prompt,
                caller=self._caller,
                **_place(run.endpoint),
            )
        return self._watched

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[list[RunResult]]:
        """Tell that the run begins, and how it ends; the block puts its result into the list."""
        outcome: list[RunResult] = []
        if not self._observers:
            yield outcome
            return
        watched = self._about(run)
        self._observers.tell("run_started", watched)
        try:
            with self._observers.inside(watched):
                yield outcome
        except BaseException as error:
            watched.error = error
            raise
        finally:
            self._close(run, watched, outcome)
            # An error knows its frames: if they knew it, too, all would live until the next collection.
            del watched

    def _close(self, run: Run, watched: WatchedRun, outcome: list[RunResult]) -> None:
        watched.result = outcome[0] if outcome and watched.error is None else None
        watched.seconds = time.monotonic() - run.started
        watched.messages = run.messages
        for name, value in _place(run.endpoint).items():
            setattr(watched, name, value)
        self._observers.tell("run_finished", watched)
        self._watched = None

    @contextlib.contextmanager
    def attempt(self, trial: Trial) -> Iterator[None]:
        """Tell that a try of a model call begins, and how it ends."""
        if not self._observers:
            yield
            return
        from toolnexus.watch import WatchedAttempt

        run = trial.run
        watched = WatchedAttempt(
            run=self._about(run),
            turn=run.turns + 1,
            attempt=trial.number,
            params={**trial.endpoint.options.request_params, **run.extra},
            **_place(trial.endpoint),
        )
        self._observers.tell("attempt_started", watched)
        try:
            with self._observers.inside(watched):
                yield
        except BaseException as error:
            watched.error = error
            raise
        finally:
            kept = trial.record(None)
            watched.request, watched.reply = trial.request, trial.reply
            watched.usage = kept.usage
            watched.seconds, watched.time_to_first_token = kept.duration, kept.time_to_first_token
            self._observers.tell("attempt_finished", watched)
            del watched  # as above

    def tool_started(self, run: Run, request: ToolRequest) -> WatchedTool | None:
        """Tell that a tool is called; returns what `inside` and `tool_finished` want."""
        if not self._observers:
            return None
        from toolnexus.watch import WatchedTool

        watched = WatchedTool(
            run=self._about(run),
            turn=run.turns,
            id=request.id,
            name=request.name,
            args=request.args,
            tool=run.tools.get(request.name),
        )
        self._observers.tell("tool_started", watched)
        return watched

    def inside(self, watched: WatchedTool | None) -> contextlib.AbstractContextManager[None]:
        """Be inside of a tool call, for the thread that is started there."""
        return contextlib.nullcontext() if watched is None else self._observers.inside(watched)

    def tool_finished(
        self,
        watched: WatchedTool | None,
        result: ToolResult | None,
        error: BaseException | None = None,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Tell how a tool call ended."""
        if watched is None:
            return
        watched.result, watched.error, watched.seconds = result, error, seconds
        self._observers.tell("tool_finished", watched)

    def tool(self, run: Run, request: ToolRequest, result: ToolResult) -> None:
        """Tell of a call that has its result without having run."""
        self.tool_finished(self.tool_started(run, request), result)


_NO_CONTEXT = contextvars.Context()

#: Tells nobody.
SILENT = RunWatch(Observers())


def _place(endpoint: Endpoint) -> dict[str, Any]:
    options = endpoint.options
    local = endpoint.generate is not None
    return {
        "model": options.model,
        "style": options.style,
        "base_url": None if local else options.base_url.partition("?")[0],
    }


def check_watches(given: Any) -> list[Watch]:
    """
    Return the watches as a list.

    Raises:
        ConfigurationError: Something is no watch.
    """
    from toolnexus.watch import Watch

    listed = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for item in listed:
        if not isinstance(item, Watch):
            raise ConfigurationError(f"watch must be a Watch or a list of them, not {item!r}")
    return listed
