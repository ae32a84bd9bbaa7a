"""One model call of a turn: its attempts, until one succeeds or none is left."""

from __future__ import annotations

import logging

from toolnexus.chunks import Reply
from toolnexus.errors import (
    ConfigurationError,
    HookError,
    RunCancelledError,
    RunTimeoutError,
    ToolnexusError,
)
from toolnexus.events import AttemptFailed
from toolnexus.run import Run
from toolnexus.trial import Trial
from toolnexus.wording import describe_error

__all__ = ["call_model"]

_log = logging.getLogger("toolnexus")

#: These end the run at once, whoever else could be asked.
_FINAL = (RunCancelledError, RunTimeoutError, ConfigurationError, HookError)


def call_model(run: Run) -> Reply:
    """
    Ask the model for the next answer, trying again and elsewhere as the policy says.

    Returns:
        The answer of the attempt that succeeded.

    Raises:
        ToolnexusError: None succeeded; the last one's error.
    """
    run.tries = 0
    run.final = False
    while True:
        try:
            return _ask(run)
        except _FINAL:
            raise
        except ToolnexusError as error:
            other = run.next_endpoint(error)
            if other is None:
                raise
            _log.debug(
                "%s: %s failed (%s), now %s",
                run.run_id,
                run.endpoint.options.model,
                error.kind,
                other.options.model,
            )
            run.forget_try()
            run.use(other)
            run.outgoing = run.options.hooks.before_llm(run)


def _ask(run: Run) -> Reply:
    """Ask one endpoint, trying again as the policy says."""
    failures = 0
    waited = 0.0
    while True:
        run.tries += 1
        trial = Trial(run, run.tries) if run.endpoint.generate is None else _local(run)
        try:
            with run.watch.attempt(trial):
                reply = trial.reply = trial.run_once()
        except _FINAL:
            raise
        except ToolnexusError as error:
            error.attempt = run.tries
            run.attempts.append(trial.record(error))
            run.scope.check()
            if run.do_without_native_output(error):
                run.forget_try()
                run.outgoing = run.options.hooks.before_llm(run)
                continue
            if trial.learn(error):
                run.forget_try()  # it was asked wrongly: that was no failure of the endpoint's
                continue
            failures += 1
            waited = _wait_or_raise(trial, error, failures, waited)
            continue
        run.attempts.append(trial.record(None, reply))
        return reply


def _local(run: Run) -> Trial:
    from toolnexus.in_process import LocalTrial

    return LocalTrial(run, run.tries)


def _wait_or_raise(trial: Trial, error: ToolnexusError, failures: int, waited: float) -> float:
    """Wait before the next try and return for how long, or raise where there is none."""
    run = trial.run
    may_go_on = not trial.handed_out or run.retry_after_output
    try:
        policy = run.endpoint.options.retry
        delay = policy.delay(error, failures, run.scope.remaining(), waited) if may_go_on else None
    except Exception as raised:
        raise HookError(f"on_error raised {describe_error(raised)}") from raised
    goes_on = delay is not None or (may_go_on and run.next_endpoint(error) is not None)
    run.final = not may_go_on
    if goes_on and trial.handed_out:
        run.reporter.send(AttemptFailed, trial.number, error, True, trial.text())
    if delay is None:
        raise error
    _log.debug("%s: attempt %d failed (%s), next one in %.2f s", run.run_id, trial.number, error.kind, delay)
    run.forget_try()
    run.reporter.flush()
    run.scope.sleep(delay)
    return delay
