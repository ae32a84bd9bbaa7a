"""What a client runs with: its options, its connections, and how a run is made and driven."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import requests

from toolnexus.balance import balanced
from toolnexus.cancel import CancelScope
from toolnexus.collected import collecting
from toolnexus.endpoint import Endpoint
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import wanted
from toolnexus.metrics import Registry, feeds
from toolnexus.options import Options, check_session, make_options, overridden
from toolnexus.preparing import ask_for, joined, make_durable, memory_store
from toolnexus.prompt import check_history, to_message
from toolnexus.pump import Pump
from toolnexus.report import Reporter
from toolnexus.results import Message, RunResult
from toolnexus.run import Run, new_run_id
from toolnexus.storage import Storage, check_store
from toolnexus.stores.locks import ConversationLocks
from toolnexus.stream import Stream
from toolnexus.toolset import ToolSet
from toolnexus.transport.http import Transport
from toolnexus.watching import Observers, RunWatch, check_watches
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.watch import Watch

__all__ = ["Runner", "make_runner"]

_log = logging.getLogger("toolnexus")


class Runner:
    """
    The inside of a client; it is made with the client, which is quick to import without it.

    Args:
        options: The options, checked.
        session: The user's session, if there is one.
        store: Where conversations are kept.
        fallbacks: What other clients run with, whose endpoints are asked when this one fails.
        watches: Who is told what happens.
        generate: A function that is the model, for a client without a wire.
    """

    def __init__(
        self,
        options: Options,
        *,
        session: requests.Session | None,
        store: Any,
        fallbacks: list[Runner],
        watches: list[Watch],
        generate: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.options = options
        self.session = session
        self.store = store
        self.fallbacks = fallbacks
        self.watches = watches
        self.generate = generate
        self.open()

    def open(self) -> None:
        """Make what is not pickled, and what follows from the options."""
        self.transport = Transport(self.session, self.options.timeouts, self.options.limits)
        self.locks = ConversationLocks()
        self.endpoint = Endpoint(self.options, self.transport, self.generate)
        self.registry = Registry()
        self.observe()

    def observe(self) -> None:
        """Tell the watches that there are now of all runs that begin from now on."""
        self.observers = Observers([self.registry, *self.watches])

    def __getstate__(self) -> dict[str, Any]:
        names = ("options", "session", "store", "fallbacks", "watches", "generate")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.open()

    def prepare(
        self,
        prompt: Any,
        tools: Any,
        id: str | None,  # noqa: A002 - the word of the reference
        history: Iterable[Message] | None,
        deps: Any,
        scope: CancelScope | None,
        overrides: dict[str, Any],
        *,
        durable: bool = False,
        output: Any = None,
    ) -> tuple[Run, Storage | None]:
        """Make a run, after checking everything that can be known before anything is sent."""
        options = overridden(self.options, overrides)
        if self.generate is None:
            options.key()
        if id is not None and history is not None:
            raise ConfigurationError("give an id or a history, not both")
        storage = None if id is None else Storage(self.store, id)
        if storage is not None:
            storage.load()  # a store that cannot be read is known now
        run_id = new_run_id()
        run = Run(
            options=options,
            endpoints=[
                Endpoint(options, self.transport, self.generate, self.endpoint.quirks),
                *(other.endpoint for other in self.fallbacks),
            ],
            tools=ToolSet(tools),
            messages=_messages(prompt, history, id),
            scope=_limited(scope, options),
            reporter=Reporter(run_id),
            watch=RunWatch(self.observers),
            deps=deps,
            id=id,
            run_id=run_id,
        )
        make_durable(run, storage, durable)
        ask_for(run, output)
        return run, storage

    def run(
        self, run: Run, storage: Storage | None, collect_events: bool, channels: Iterable[str] | None
    ) -> RunResult:
        """Drive a run in this thread."""
        collected = collecting(run, collect_events, channels)
        try:
            result = self.drive(run, storage, threading.get_ident())
        except BaseException as error:
            run.scope.cancel()  # tells tools that are still running
            if collected is not None:
                collected.failed(error)
            raise
        return result if collected is None else collected.finished(result)

    def stream(
        self,
        run: Run,
        storage: Storage | None,
        channels: Iterable[str] | None,
        keep_events: bool,
        answers: str,
    ) -> Stream:
        """Make the stream of a run."""
        if answers not in ("now", "wait"):
            raise ConfigurationError(f'answers must be "now" or "wait", not {answers!r}')
        wants = wanted(channels)
        from toolnexus.gate import Gate  # here and below, because importing shall be cheap

        gate = run.gate = Gate(answers == "wait")
        creator = threading.get_ident()

        def work(pump: Pump) -> RunResult:
            pump.reached = run.partial
            run.retry_after_output = run.retry_after_output or pump.takes_text_back
            run.reporter = Reporter(run.run_id, wants, pump)
            owner = pump.consumer.ident if pump.consumer is not None else None
            return self.drive(run, storage, owner or creator, pump)

        pump = Pump(
            run.run_id,
            run.scope,
            work,
            queue_size=run.options.queue_size,
            abandon_timeout=run.options.abandon_timeout,
        )
        return Stream(pump, keep_events=keep_events, gate=gate)

    def drive(self, run: Run, storage: Storage | None, owner: int, pump: Pump | None = None) -> RunResult:
        """Drive a run to its end, and save it."""
        from toolnexus.loop import report_usage

        run.started = time.monotonic()  # it was made earlier: a stream begins at its first next()
        with run.watch.running(run) as outcome:
            result = self._driven(run, storage, owner, pump)
            report_usage(run, result)
            outcome.append(result)
        return result

    def _driven(self, run: Run, storage: Storage | None, owner: int, pump: Pump | None) -> RunResult:
        from toolnexus.loop import drive

        try:
            with run.scope.running():
                if storage is None:
                    result = drive(run)
                else:
                    with self.locks.hold(storage.id, run.scope, owner):
                        stored = storage.load()
                        if run.journal is not None:
                            run.journal.open(run.messages, run.answers, storage.version)
                        run.messages = joined(stored, run)
                        result = drive(run)
                        if pump is not None:
                            pump.committing = True
                        run.reporter.flush()  # saving may take a while
                        storage.save(result, clear_journal=run.journal is not None)
        except ToolnexusError as error:
            if run.scope.cancelled:
                _log.debug("%s: ended early: %s", run.run_id, error.message)
            raise
        except Exception as error:
            wrapped = ToolnexusError(f"unexpected {describe_error(error)}", partial=run.partial())
            raise wrapped from error
        return result


def _messages(prompt: Any, history: Iterable[Message] | None, id: str | None) -> list[Message]:  # noqa: A002
    """Return what a run begins with, beside what is stored."""
    messages = [] if history is None else check_history(history)
    if prompt is not None:
        return [*balanced(messages), to_message(prompt)]
    if not messages and id is None:
        raise ConfigurationError("there is no prompt and no history")
    return messages


def _limited(scope: Any, options: Options) -> CancelScope:
    """Return the scope of a run, with the time that it may take."""
    if scope is None:
        return CancelScope(options.timeout)
    if not isinstance(scope, CancelScope):
        raise ConfigurationError(f"scope must be a CancelScope, not {type(scope).__name__}")
    return scope.for_run(options.timeout)


def make_runner(
    *,
    session: Any,
    store: Any,
    fallbacks: list[Runner],
    on_metric: Any,
    watch: Any,
    **options: Any,
) -> Runner:
    """
    Check the arguments of a client, and make what it runs with.

    Raises:
        ConfigurationError: An option has a wrong type or value.
    """
    return Runner(
        make_options(**options),
        session=check_session(session),
        store=memory_store() if store is None else check_store(store),
        fallbacks=fallbacks,
        watches=[*check_watches(watch), *feeds(on_metric)],
    )
