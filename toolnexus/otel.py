"""
OpenTelemetry: spans and metrics of runs, after the conventions for generative AI.

It needs ``opentelemetry-api`` (``pip install "toolnexus[otel]"``); which SDK and exporter get the
spans is the application's choice.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from toolnexus import otel_attributes as attributes
from toolnexus import semconv as names
from toolnexus._extras import need
from toolnexus._version import __version__
from toolnexus.watch import Watch, Watched, WatchedAttempt, WatchedRun, WatchedTool
from toolnexus.wording import error_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from toolnexus.client import Client

__all__ = ["Tracing", "instrument", "uninstrument"]


class Tracing(Watch):
    """
    Makes spans and metrics of what happens in runs.

    A run is a span ``invoke_agent``, each try of a model call in it a span ``chat``, each tool call a span
    ``execute_tool``. What a tool does is inside its span; the run's is inside the one that was active
    where the run was asked for.

    Args:
        tracer_provider: Where spans go; by default the global one.
        meter_provider: Where metrics go; by default the global one.
        capture_content: Whether spans hold prompts, answers, arguments, results and the texts of errors;
            None to do what the environment variable of the conventions says, which by default is no.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
    ) -> None:
        self._given = (tracer_provider, meter_provider, capture_content)
        self._trace = need("opentelemetry.trace", "otel")
        self._current = need("opentelemetry.context", "otel").get_current
        self._tracer = self._trace.get_tracer("toolnexus", __version__, tracer_provider, names.SCHEMA_URL)
        metrics = need("opentelemetry.metrics", "otel")
        self._meters = _Meters(metrics.get_meter("toolnexus", __version__, meter_provider, names.SCHEMA_URL))
        if capture_content is None:
            asked = os.environ.get(names.CAPTURE_CONTENT, "")
            capture_content = asked.strip().lower() in names.CAPTURING
        self.capture_content = capture_content

    def __repr__(self) -> str:
        return f"<Tracing {'with' if self.capture_content else 'without'} content>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._given

    # -- runs --------------------------------------------------------------------------------

    def run_started(self, run: WatchedRun) -> None:
        """Begin the span of a run."""
        found = attributes.run_starts(run)
        name = " ".join(filter(None, (names.INVOKE_AGENT, found.get(names.AGENT_NAME))))
        span = self._begin(run, name, "INTERNAL", found, run)
        if self._records(span):
            span.set_attributes(attributes.input_content(run.messages, run.system))

    def run_finished(self, run: WatchedRun) -> None:
        """End it."""
        span = self._span(run)
        if self._records(span) and run.reached.text:
            span.set_attributes(attributes.run_output(run))
        self._end(run, span, attributes.run_ends(run), run.error)
        self._meters.run(run, self._trace.set_span_in_context(span))

    # -- tries of a model call ---------------------------------------------------------------

    def attempt_started(self, call: WatchedAttempt) -> None:
        """Begin the span of a try of a model call."""
        kind = "INTERNAL" if call.base_url is None else "CLIENT"
        # A call without a run around it has the caller's span as its parent.
        outer = call.run if self not in call.run.notes else None
        self._begin(call, f"{names.CHAT} {call.model}", kind, attributes.attempt_starts(call), outer)

    def attempt_finished(self, call: WatchedAttempt) -> None:
        """End it."""
        span = self._span(call)
        if self._records(span):
            if call.request is not None:
                span.set_attributes(attributes.input_content(call.request.messages, call.request.system))
            if call.reply is not None:
                span.set_attributes(attributes.output_content(call.reply))
        self._end(call, span, attributes.attempt_ends(call), call.error)
        self._meters.attempt(call, self._trace.set_span_in_context(span))

    # -- tool calls --------------------------------------------------------------------------

    def tool_started(self, call: WatchedTool) -> None:
        """Begin the span of a tool call."""
        # A name that the model made up is an attribute only: names of spans shall be few.
        name = f"{names.EXECUTE_TOOL} {call.name}" if call.tool is not None else names.EXECUTE_TOOL
        span = self._begin(call, name, "INTERNAL", attributes.tool_starts(call))
        if self._records(span):
            span.set_attributes(attributes.tool_input(call))

    def tool_finished(self, call: WatchedTool) -> None:
        """End it."""
        span = self._span(call)
        if self._records(span):
            span.set_attributes(attributes.tool_output(call))
        found = attributes.tool_ends(call)
        self._end(call, span, found, call.error, failed=names.ERROR_TYPE in found)
        self._meters.tool(call, found, self._trace.set_span_in_context(span))

    # -- spans -------------------------------------------------------------------------------

    def inside(self, what: Watched) -> contextlib.AbstractContextManager[Any]:
        """Make the span the active one."""
        manager: contextlib.AbstractContextManager[Any] = self._trace.use_span(
            self._span(what), end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return manager

    def _begin(
        self, what: Watched, name: str, kind: str, found: dict[str, Any], run: WatchedRun | None = None
    ) -> Span:
        """Start a span; of a run that was asked for elsewhere, inside the span that was active there."""
        span: Span = self._tracer.start_span(
            name,
            context=None if run is None else self._outer(run),
            kind=getattr(self._trace.SpanKind, kind),
            attributes=found,
        )
        what.notes[self] = span
        return span

    def _outer(self, run: WatchedRun) -> Context | None:
        context: Context = run.caller.run(self._current)
        active = self._trace.get_current_span(context).get_span_context().is_valid
        return context if active else None

    def _span(self, what: Watched) -> Span:
        span: Span = what.notes.get(self, self._trace.INVALID_SPAN)
        return span

    def _records(self, span: Span) -> bool:
        return self.capture_content and span.is_recording()

    def _end(
        self,
        what: Watched,
        span: Span,
        found: dict[str, Any],
        error: BaseException | None,
        *,
        failed: bool = False,
    ) -> None:
        span.set_attributes(found)
        if error is not None and self._records(span):
            with contextlib.suppress(Exception):  # one of the user's may fail at its own text
                span.record_exception(error)
        if error is not None or failed:
            # The text of an error may quote a prompt or an answer.
            said = error_text(error) if error is not None and self.capture_content else ""
            text = said or found[names.ERROR_TYPE]
            span.set_status(self._trace.StatusCode.ERROR, text)
        span.end()


def _again(tracer: Any, meter: Any, capture: bool | None) -> Tracing:
    return Tracing(tracer_provider=tracer, meter_provider=meter, capture_content=capture)


class _Meters:
    """The histograms of the conventions."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str) -> Histogram:
            return meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=names.SECOND_BOUNDS
            )

        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BOUNDS,
        )
        self._call = seconds(names.OPERATION_DURATION, "Duration of a try of a model call.")
        self._first = seconds(names.TIME_TO_FIRST_CHUNK, "Time to the first piece of a streamed answer.")
        self._tool = seconds(names.TOOL_DURATION, "Duration of a tool call.")
        self._run = seconds(names.AGENT_DURATION, "Duration of a run.")

    def attempt(self, call: WatchedAttempt, context: Context) -> None:
        """Record a try of a model call."""
        labels = attributes.dimensions(names.CHAT, call)
        if call.reply is not None and call.reply.model:
            labels[names.RESPONSE_MODEL] = call.reply.model
        for kind, count in (("input", call.usage.prompt_tokens), ("output", call.usage.completion_tokens)):
            if count:
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind}, context)
        if attributes.is_streamed(call) and call.time_to_first_token is not None:
            self._first.record(call.time_to_first_token, labels, context)
        if call.error is not None:
            labels[names.ERROR_TYPE] = attributes.error_type(call.error)
        self._call.record(call.seconds or 0.0, labels, context)

    def tool(self, call: WatchedTool, found: dict[str, Any], context: Context) -> None:
        """Record a tool call; the names of tools that do not exist are left out: there is no end of them."""
        labels = {names.OPERATION_NAME: names.EXECUTE_TOOL, names.TOOL_TYPE: "function"}
        if call.tool is not None:
            labels[names.TOOL_NAME] = call.name
        if names.ERROR_TYPE in found:
            labels[names.ERROR_TYPE] = found[names.ERROR_TYPE]
        self._tool.record(call.seconds or 0.0, labels, context)

    def run(self, run: WatchedRun, context: Context) -> None:
        """Record a run."""
        labels = {names.OPERATION_NAME: names.INVOKE_AGENT, **attributes.agent(run)}
        if run.error is not None:
            labels[names.ERROR_TYPE] = attributes.error_type(run.error)
        self._run.record(run.seconds or 0.0, labels, context)


def instrument(
    client: Client,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    capture_content: bool | None = None,
) -> Client:
    """
    Make spans and metrics of all that a client does from now on.

    The same as ``Client(..., watch=Tracing(...))``; doing it again replaces what was there.

    Args:
        client: The client.
        tracer_provider: Where spans go; by default the global one.
        meter_provider: Where metrics go; by default the global one.
        capture_content: Whether spans hold prompts, answers, arguments and results; see `Tracing`.

    Returns:
        The client itself.

    Raises:
        MissingExtraError: ``opentelemetry-api`` is not installed.
    """
    tracing = Tracing(
        tracer_provider=tracer_provider, meter_provider=meter_provider, capture_content=capture_content
    )
    uninstrument(client)
    client._runner.watches = [*client._runner.watches, tracing]
    client._runner.observe()
    return client


def uninstrument(client: Client) -> None:
    """Make no more spans and metrics of what a client does; runs that have begun are traced to their end."""
    runner = client._runner
    runner.watches = [watch for watch in runner.watches if not isinstance(watch, Tracing)]
    runner.observe()
