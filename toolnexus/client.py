"""The front door: the client, its options and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toolnexus.closing import Closing
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.model_calls import ModelCalls

if TYPE_CHECKING:
    import requests

    from toolnexus.cancel import CancelScope
    from toolnexus.conversation import Conversation
    from toolnexus.results import Message, RunResult
    from toolnexus.runner import Runner
    from toolnexus.stream import Stream
    from toolnexus.suspension import Answer, Request
    from toolnexus.transport.retry import OnError
    from toolnexus.watch import Watch

__all__ = ["Client", "create_client"]


class Client(Closing, ModelCalls):
    """
    Runs and streams agents on one endpoint.

    It may be used from many threads at once, is a context manager, can be pickled, and works on
    in a forked child. Nothing is sent before the first run.

    Args:
        base_url: The endpoint's URL; by default the one of the style in the environment, such as
            ``OPENAI_BASE_URL``, else the provider's own.
        style: The dialect: "openai" (chat completions), "anthropic", "responses" (OpenAI's Responses API) or
            "gemini".
        model: The model to ask.
        api_key: The key; by default that of the environment which belongs to the endpoint's host
            and style (``OPENAI_API_KEY``, ``ANTHROPIC_API_KEY``, ``OPENROUTER_API_KEY``, ...). An
            endpoint on this machine needs none.
        headers: More headers for each request; they replace ours of the same name.
        system_prompt: What the model is told first.
        max_turns: The most model calls of a run.
        retries: How often a failed model call is tried again.
        timeout: Seconds that a whole run may take: model, tools, waiting; None for no limit.
        connect_timeout: Seconds until there is a connection.
        response_timeout: Seconds from then to the first byte of an answer.
        idle_timeout: Seconds of silence within an answer.
        store: Where conversations with an ``id`` are kept; in memory by default.
        request_params: More keys for each request's body; None as a value takes a key out.
        body_transform: A function that gets each request's body last; it may change it or return
            another one.
        session: A `requests.Session` of your own, for proxies, certificates and adapters. It is not
            closed here. To cancel within milliseconds before the headers, too, mount a
            `toolnexus.transport.connection.CancellableAdapter` on it.
        queue_size: The most events that wait for a consumer; then the socket is not read on.
        max_event_bytes: The most bytes of one event of an answer.
        max_response_bytes: The most bytes of one answer.
        on_bad_event: What to do with an event that is no JSON: "error" or "skip".
        on_error: A function that gets an `ErrorInfo` and says "retry" or "fail"; ``retries`` stays
            the limit.
        echo_reasoning: Whether reasoning goes back to an OpenAI-style endpoint: "auto" (beside tool
            calls of the same run), "always" or "never".
        tool_concurrency: The most tool calls that run at once.
        tool_timeout: Seconds that a tool call may take unless the tool says otherwise.
        wait_for: A function that gets a `Request` of a suspended tool and returns a person's `Answer`,
            or None where nobody answers.
        hooks: One hook, or several in order: see `toolnexus.hooks`.
        fallbacks: Clients, or options of clients, whose endpoints are asked in order when this one fails;
            the run then stays with the one that answered, and the result says which that was.
        fallback_on: After which errors: their kinds, or a function of the error; by default all but
            an invalid request and the content filter.
        abandon_timeout: Seconds that a full queue waits for its consumer before the run is
            cancelled; None for ever.
        log_content: Whether the debug log may hold prompts.
        on_metric: A function, or several, that get a dict about each try of a model call, each tool call
            and each run, when it has ended. They are called in the run's thread and must be quick.
        watch: A `Watch`, or several, that are told when each of these begins and ends.

    Raises:
        ConfigurationError: An option has a wrong type or value.

    >>> Client(base_url="http://localhost:1234/v1", model="m", api_key="sk-secret")
    Client(base_url='http://localhost:1234/v1', style='openai', model='m')
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        style: str = "openai",
        model: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        system_prompt: str | None = None,
        max_turns: int = 10,
        retries: int = 2,
        timeout: float | None = None,
        connect_timeout: float = 10.0,
        response_timeout: float = 600.0,
        idle_timeout: float = 120.0,
        store: Any = None,
        request_params: Mapping[str, Any] | None = None,
        body_transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
        session: requests.Session | None = None,
        queue_size: int = 256,
        max_event_bytes: int = 16 * 2**20,
        max_response_bytes: int = 256 * 2**20,
        on_bad_event: str = "error",
        on_error: OnError | None = None,
        echo_reasoning: str = "auto",
        tool_concurrency: int = 8,
        tool_timeout: float | None = None,
        wait_for: Callable[[Request], Answer | None] | None = None,
        hooks: Any = None,
        fallbacks: Iterable[Client | Mapping[str, Any]] = (),
        fallback_on: Iterable[str] | Callable[[ToolnexusError], bool] | None = None,
        abandon_timeout: float | None = None,
        log_content: bool = False,
        on_metric: Callable[[dict[str, Any]], object]
        | Iterable[Callable[[dict[str, Any]], object]]
        | None = None,
        watch: Watch | Iterable[Watch] | None = None,
    ) -> None:
        from toolnexus.runner import make_runner  # here, because importing shall be cheap

        self._runner = make_runner(
            base_url=base_url,
            style=style,
            model=model,
            api_key=api_key,
            headers=headers,
            system_prompt=system_prompt,
            max_turns=max_turns,
            retries=retries,
            timeout=timeout,
            connect_timeout=connect_timeout,
            response_timeout=response_timeout,
            idle_timeout=idle_timeout,
            request_params=request_params,
            body_transform=body_transform,
            queue_size=queue_size,
            max_event_bytes=max_event_bytes,
            max_response_bytes=max_response_bytes,
            on_bad_event=on_bad_event,
            on_error=on_error,
            echo_reasoning=echo_reasoning,
            tool_concurrency=tool_concurrency,
            tool_timeout=tool_timeout,
            wait_for=wait_for,
            hooks=hooks,
            fallback_on=fallback_on,
            abandon_timeout=abandon_timeout,
            log_content=log_content,
            session=session,
            store=store,
            fallbacks=_as_runners(fallbacks),
            on_metric=on_metric,
            watch=watch,
        )

    def __repr__(self) -> str:
        options = self._runner.options
        url = options.base_url.partition("?")[0]
        return f"Client(base_url={url!r}, style={options.style!r}, model={options.model!r})"

    def close(self) -> None:
        """Close the idle connections. Running streams go on, and the client can be used again."""
        self._runner.transport.close()

    @property
    def conversation_store(self) -> Any:
        """The store of the conversations with an ``id``."""
        return self._runner.store

    def metrics(self) -> str:
        """
        Return what the client's runs have counted so far, as Prometheus text.

        For a registry of `prometheus_client`, see `toolnexus.prometheus.Collector`.
        """
        return self._runner.registry.text()

    # -- running -----------------------------------------------------------------------------

    def run(
        self,
        prompt: Any,
        tools: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the reference
        history: Iterable[Message] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        durable: bool = False,
        output: Any = None,
        collect_events: bool = False,
        channels: Iterable[str] | None = None,
        **overrides: Any,
    ) -> RunResult:
        """
        Run an agent to its end, in this thread.

        Args:
            prompt: A text, or a list of texts, `Image` and `File` parts.
            tools: Tools and functions, or a toolkit.
            id: A conversation of the store: loaded before, saved after a run that finished.
            history: Messages that come before the prompt, instead of an ``id``.
            deps: An object of yours for the tools, as ``ctx.deps``.
            scope: What can cancel the run from another thread.
            durable: Whether to write down in the store what happens while it happens. The same call then
                goes on after a crash: what has finished is not done again. One process at a time.
            output: The type that the answer shall have: a dataclass, attrs class, TypedDict, pydantic
                model, any other annotated type, or an object schema. ``result.output`` is of that type.
            collect_events: Whether to keep what a stream would have yielded: in ``result.events``, or in
                ``error.events`` of a run that failed.
            channels: The channels to collect; None for the default set.
            overrides: ``model``, ``system_prompt``, ``max_turns`` or ``timeout`` for this run only.

        Returns:
            The result.

        Raises:
            ToolnexusError: The run failed; ``partial`` holds what it had reached.
        """
        run, storage = self._runner.prepare(
            prompt, tools, id, history, deps, scope, overrides, durable=durable, output=output
        )
        run.streaming = False
        return self._runner.run(run, storage, collect_events, channels)

    def stream(
        self,
        prompt: Any,
        tools: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the reference
        history: Iterable[Message] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        channels: Iterable[str] | None = None,
        keep_events: bool = False,
        retry_after_output: bool = False,
        model_stream: bool = True,
        answers: str = "now",
        durable: bool = False,
        output: Any = None,
        **overrides: Any,
    ) -> Stream:
        """
        Run an agent in the background and iterate over what happens.

        Nothing is sent before the first ``next()``.

        Args:
            prompt: A text, or a list of texts, `Image` and `File` parts.
            tools: Tools and functions, or a toolkit.
            id: A conversation of the store: loaded before, saved after a run that finished.
            history: Messages that come before the prompt, instead of an ``id``.
            deps: An object of yours for the tools, as ``ctx.deps``.
            scope: What can cancel the run, beside the stream itself.
            channels: The channels to report, such as "messages" or "tools"; None for the default set.
            keep_events: Whether to keep what was yielded in ``stream.events``.
            retry_after_output: Whether a model call that fails after text went out is tried again; an
                `AttemptFailed` then says which text is void.
            model_stream: Whether to ask the endpoint for streams; if not, texts come whole.
            answers: When a suspended call must be answered with `Stream.answer`: "now", before the item
                after its `Pending` is asked for, or the run ends as pending; "wait" keeps it open.
            durable: Whether the same call goes on after a crash, see `run`.
            output: The type that the answer shall have, see `run`.
            overrides: ``model``, ``system_prompt``, ``max_turns`` or ``timeout`` for this run only.

        Returns:
            The stream, which ends with exactly one `Done` or `Error`.

        Raises:
            ToolnexusError: Something that can be known before anything is sent: a wrong argument, a
                store that cannot be read.
        """
        run, storage = self._runner.prepare(
            prompt, tools, id, history, deps, scope, overrides, durable=durable, output=output
        )
        run.streaming = model_stream
        run.retry_after_output = retry_after_output
        return self._runner.stream(run, storage, channels, keep_events, answers)

    def resume(
        self,
        id: str | None,  # noqa: A002 - the word of the reference
        answers: Any,
        tools: Any = None,
        *,
        history: Iterable[Message] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        durable: bool = False,
        output: Any = None,
        collect_events: bool = False,
        channels: Iterable[str] | None = None,
        **overrides: Any,
    ) -> RunResult:
        """
        Go on with a run that ended as pending: in any process, whenever the answer is there.

        Calls that have a result are not run again, and the model is not asked before all calls have one.

        Args:
            id: The conversation; None with a ``history``.
            answers: An `Answer`, its dict, or several of them.
            tools: The tools of the run.
            history: The messages of the pending result, instead of an ``id``.
            deps: An object of yours for the tools.
            scope: What can cancel the run from another thread.
            durable: Whether the same call goes on after a crash, see `run`.
            output: The type that the answer shall have, see `run`.
            collect_events: Whether to keep the events, see `run`.
            channels: The channels to collect, see `run`.
            overrides: ``model``, ``system_prompt``, ``max_turns`` or ``timeout`` for this run only.

        Returns:
            The result; pending again where not everything was answered.

        Raises:
            InvalidAnswerError: An answer does not fit; nothing was changed.
            ToolnexusError: The run failed.
        """
        from toolnexus.resume import to_answers  # here and below, because importing shall be cheap

        run, storage = self._runner.prepare(
            None, tools, id, history, deps, scope, overrides, durable=durable, output=output
        )
        run.streaming = False
        run.answers = to_answers(answers)
        return self._runner.run(run, storage, collect_events, channels)

    def resume_stream(
        self,
        id: str | None,  # noqa: A002 - the word of the reference
        answers: Any,
        tools: Any = None,
        *,
        history: Iterable[Message] | None = None,
        deps: Any = None,
        scope: CancelScope | None = None,
        channels: Iterable[str] | None = None,
        keep_events: bool = False,
        durable: bool = False,
        output: Any = None,
        **overrides: Any,
    ) -> Stream:
        """
        Go on with a run that ended as pending, and iterate over what happens.

        The arguments are those of `resume` and `stream`.
        """
        from toolnexus.resume import to_answers

        run, storage = self._runner.prepare(
            None, tools, id, history, deps, scope, overrides, durable=durable, output=output
        )
        run.answers = to_answers(answers)
        return self._runner.stream(run, storage, channels, keep_events, "now")

    def ask(
        self,
        prompt: Any,
        tools: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the reference
        on_text: Callable[[str], object] | None = None,
        **options: Any,
    ) -> RunResult:
        """
        Run an agent to its end; with ``on_text`` its text is handed out while it arrives.

        Args:
            prompt: A text, or a list of texts, `Image` and `File` parts.
            tools: Tools and functions, or a toolkit.
            id: A conversation of the store.
            on_text: A function that gets each piece of the text.
            options: What `run`, or with ``on_text`` `stream`, takes besides.

        Returns:
            The result.

        Raises:
            ToolnexusError: The run failed; ``partial`` holds what it had reached.
        """
        if on_text is None:
            return self.run(prompt, tools, id=id, **options)
        with self.stream(prompt, tools, id=id, **options) as stream:
            for delta in stream.text_deltas():
                on_text(delta)
            return stream.result()

    def conversation(self, tools: Any = None, *, id: str | None = None) -> Conversation:  # noqa: A002
        """
        Begin a conversation that remembers.

        Args:
            tools: The tools for every message.
            id: A conversation of the store to go on with; by default one that only this object knows.
        """
        from toolnexus.conversation import Conversation

        return Conversation(self, tools, id=id)


def _as_runners(items: Any) -> list[Runner]:
    if isinstance(items, (str, Mapping)) or not isinstance(items, Iterable):
        raise ConfigurationError(f"fallbacks must be a list of clients, not {items!r}")
    return [_as_client(item)._runner for item in items]


def _as_client(item: Any) -> Client:
    if isinstance(item, Client):
        return item
    if isinstance(item, Mapping):
        try:
            return Client(**item)
        except TypeError as error:
            raise ConfigurationError(f"these are not the options of a fallback: {error}") from error
    raise ConfigurationError(f"a fallback must be a Client or the options of one, not {item!r}")


def create_client(base_url: str | None = None, **options: Any) -> Client:
    """
    Make a `Client`; the arguments are the same.

    Raises:
        ConfigurationError: An option has a wrong type or value.
    """
    return Client(base_url, **options)
