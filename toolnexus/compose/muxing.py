"""
Several producers in one stream, through one bounded buffer.

The module has another name than its function: else importing it would put it in the function's place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from toolnexus.cancel import CancelScope
from toolnexus.compose.mux_buffer import POLICIES, BackpressureError, EmitTimeoutError
from toolnexus.compose.mux_merger import Merger, MuxResult, MuxScope, ProducerResult
from toolnexus.compose.mux_sink import Sink, Source
from toolnexus.errors import ConfigurationError, InvalidAnswerError
from toolnexus.events import Event
from toolnexus.options import _number
from toolnexus.stream import Stream

if TYPE_CHECKING:
    from toolnexus.gate import Gate
    from toolnexus.suspension import Answer, Request

__all__ = ["BackpressureError", "EmitTimeoutError", "Mux", "MuxResult", "ProducerResult", "Sink", "mux"]


class _Gates:
    """Hands answers to the stream that waits for them."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def _streams(self) -> list[Stream]:
        return [s.producer for s in self._sources if isinstance(s.producer, Stream)]

    def answer(self, answer: Answer) -> None:
        for stream in self._streams():
            if stream.waiting_for(answer.id) is not None:
                stream.answer(answer)
                return
        raise InvalidAnswerError(f"nobody waits for an answer to the request {answer.id!r}")

    def waiting_for(self, request_id: str) -> Request | None:
        found = (stream.waiting_for(request_id) for stream in self._streams())
        return next((request for request in found if request is not None), None)

    def wait_on(self) -> None:
        for stream in self._streams():
            stream.waits_for_answers()

    def moved_on(self, request_id: str) -> None:
        """The inner stream decides: its own consumer has moved on long ago."""


class Mux(Stream):
    """
    The events of several producers, as one stream. Made by `mux`.

    It ends like every stream with exactly one `Done`, whose result is a `MuxResult`, or `Error`. ``text``
    stays empty: pieces of several answers make no text.
    """

    def __init__(self, merger: Merger) -> None:
        super().__init__(merger, gate=cast("Gate", _Gates(merger.sources)))
        self._merger = merger

    def __next__(self) -> Event:
        event = super().__next__()
        self._text.clear()
        return event

    def close(self) -> None:
        """Cancel all producers that go on, and drop what was not read."""
        super().close()
        self._merger.join()

    def result(self) -> MuxResult:
        """
        Read to the end.

        Returns:
            How every producer ended. One that failed raises nothing here; its ``status`` tells.

        Raises:
            ToolnexusError: The mux was cancelled, or its time was up.
        """
        return cast(MuxResult, super().result())


def mux(
    producers: Iterable[Any],
    *,
    max_buffer: int = 256,
    overflow: str = "block",
    emit_timeout: float | None = 5.0,
    timeout: float | None = None,
    heartbeat: float | None = None,
) -> Mux:
    """
    Merge several producers into one stream, through one bounded buffer.

    Nothing begins before the first ``next()``. Then each producer runs in a thread of its own. Events keep
    the order of their producer, and each producer gets its turn. What an inner run of a producer ends with
    becomes a `Lifecycle`; one that raises is reported so, too, and the others go on.

    Args:
        producers: Streams, other iterables, and functions of a `Sink`; each may be a pair of a name and
            one of these. The names, by default "producer_1" and so on, are the namespaces of their events.
        max_buffer: The most items that wait for the consumer.
        overflow: What happens to an item for which there is no room: "block" waits, "drop_newest" and
            "drop_oldest" drop pieces (text, reasoning, progress, custom payloads), never messages, results or
            what else must not be missed; "error" raises in the producer.
        emit_timeout: Seconds that `Sink.emit` of a function waits for room; None for as long as it takes.
            Streams and iterables always wait.
        timeout: Seconds that all may take, from the first ``next()``; None for no limit.
        heartbeat: Seconds without an event after which a waiting consumer gets a `Heartbeat`; None for none.

    Returns:
        The stream.

    Raises:
        ConfigurationError: An argument is wrong.

    >>> merged = mux([("letters", "ab"), ("numbers", lambda sink: sink.emit(1))])
    >>> sorted(str(event.payload) for event in merged if event.type == "custom")
    ['1', 'a', 'b']
    """
    if overflow not in POLICIES:
        raise ConfigurationError(f"overflow must be one of {', '.join(POLICIES)}, not {overflow!r}")
    size = _number("max_buffer", max_buffer, low=1, whole=True)
    scope = MuxScope(_number("timeout", timeout, low=0, optional=True))
    merger = Merger(
        _sources(producers, scope),
        scope,
        max_buffer=size,
        overflow=overflow,
        emit_timeout=_number("emit_timeout", emit_timeout, low=0, optional=True),
        heartbeat=_number("heartbeat", heartbeat, low=0, optional=True),
    )
    return Mux(merger)


def _sources(producers: Iterable[Any], scope: CancelScope) -> list[Source]:
    found: list[Source] = []
    for number, item in enumerate(producers, 1):
        named = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
        name, producer = item if named else (f"producer_{number}", item)
        if not name or name in {source.name for source in found}:
            raise ConfigurationError(f"producers need different names; {name!r} comes twice or is empty")
        if not isinstance(producer, Iterable) and not callable(producer):
            raise ConfigurationError(f"{name} is neither iterable nor a function: {producer!r:.80}")
        if isinstance(producer, Iterator) and any(producer is source.producer for source in found):
            raise ConfigurationError(f"{name} is a producer already, and can be read once only")
        if inspect.iscoroutinefunction(producer) or inspect.isasyncgenfunction(producer):
            raise ConfigurationError(f"{name} is a coroutine function; a producer must be a plain one")
        found.append(Source(name, producer, CancelScope(parent=scope)))
    if not found:
        raise ConfigurationError("there is no producer")
    return found
