"""One answer: its status and headers, and its body as events or as bytes."""

from __future__ import annotations

import contextlib
import functools
import io
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import requests
from sseclient import Event as ServerEvent
from sseclient import SSEClient

from toolnexus.errors import ConfigurationError, IdleTimeoutError, LimitError, ToolnexusError
from toolnexus.transport.chunked import ChunkedResponse
from toolnexus.transport.failures import BODY_ERRORS, Timeouts, in_body
from toolnexus.transport.lease import Lease, duplicate
from toolnexus.transport.secret import Scrubber
from toolnexus.transport.source import EventSource

__all__ = ["Answer", "Exchange", "HTTPRequest", "Limits"]

#: The most that is read after the end of an answer to be able to use its connection again.
_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.05

_READ = 64 * 1024

#: The least that a socket may be told to wait: 0 would mean not at all.
_LEAST = 0.001

#: A read that took longer than this has waited, in seconds.
_WAIT = 0.0005


@attrs.frozen(eq=False, repr=False)
class Limits:
    """The most bytes of one event, and the most bytes and events of one answer."""

    event_bytes: int = 16 * 2**20
    response_bytes: int = 256 * 2**20
    response_events: int = 2_000_000


@attrs.frozen(eq=False, repr=False)
class HTTPRequest:
    """One request, ready to be sent."""

    url: str
    headers: dict[str, str]
    body: bytes
    scrub: Scrubber
    where: str


@attrs.frozen(eq=False, repr=False)
class Answer:
    """
    An answer's status and headers, and what its body is read from.

    Args:
        raw: urllib3's response, or what is used of one.
        response: The response of a session of the caller's, where somebody may have read of the body already.
    """

    raw: Any
    response: requests.Response | None = None

    @property
    def status(self) -> int:
        """The status."""
        return int(self.raw.status if self.response is None else self.response.status_code)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers."""
        headers: Mapping[str, str] = self.raw.headers if self.response is None else self.response.headers
        return headers


class _RawShutdown:
    """Stands in for a socket where none can be found."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(Exception):
            self._raw.shutdown()

    def close(self) -> None:
        pass


class Exchange:
    """
    One answer: its status and headers, and its body as events or as bytes.

    Close it, whatever happens.
    """

    def __init__(
        self,
        answer: Answer,
        lease: Lease,
        request: HTTPRequest,
        timeouts: Timeouts,
        limits: Limits,
    ) -> None:
        self.status = answer.status
        self._answer = answer
        self._raw = answer.raw
        self._lease = lease
        self._request = request
        self._timeouts = timeouts
        self._limits = limits
        self._began = False
        self._waited = False
        self._read1 = _reader(answer)
        self._ended = False
        self._end_by: float | None = None
        self._stand_in: Any = None
        self._sock = lease.sock
        if self._sock is None:  # the adapter is not ours
            self._sock = _socket_of(self._raw)
            self._stand_in = duplicate(self._sock) or _RawShutdown(self._raw)
            lease.scope.attach(self._stand_in)
        self._ready = _readiness(self._sock)
        waited = time.monotonic() - (lease.connected_at or time.monotonic())
        self._set_timeout(timeouts.response - waited)

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers."""
        return self._answer.headers

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in small letters."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    def events(
        self, before_wait: Callable[[Callable[[], bool]], None], *, streaming: bool = True
    ) -> Iterator[ServerEvent]:
        """
        Yield the events of the body as they come.

        Args:
            before_wait: Called before each read, with a function that tells whether the read will find
                bytes at once.
            streaming: Whether a stream was asked for.

        Raises:
            ToolnexusError: The reading ended before the body did; what came before was yielded.
        """
        source = self.source = EventSource(
            self._read,
            before_read=functools.partial(before_wait, self._more),
            max_event_bytes=self._limits.event_bytes if streaming else self._limits.response_bytes,
            max_response_bytes=self._limits.response_bytes,
            streaming=streaming,
        )
        most = self._limits.response_events
        pieces: Any = source  # an iterable with close() is what the parser asks for
        for number, event in enumerate(SSEClient(pieces).events(), 1):
            if number > most:
                raise LimitError(f"the answer has more than {most} events")
            yield event
        if source.failure is not None:
            raise source.failure

    def read(self, limit: int, seconds: float) -> bytes:
        """Return the body of an error: no more than ``limit`` bytes, for no longer than ``seconds``."""
        until = time.monotonic() + seconds
        parts: list[bytes] = []
        size = 0
        with contextlib.suppress(ToolnexusError):
            while size < limit and time.monotonic() < until:
                self._set_timeout(until - time.monotonic())
                data = self._read()
                if not data:
                    break
                parts.append(data)
                size += len(data)
        self._lease.scope.check()
        return b"".join(parts)[:limit]

    def expect_end(self, seconds: float) -> None:
        """The answer is whole: wait no longer than this for what may still follow, pings or not."""
        self._end_by = time.monotonic() + min(seconds, self._timeouts.idle)

    def _more(self) -> bool:
        """
        Tell whether a read would find bytes at once.

        Where the last read had to wait, the next one most likely has to, too: then the system is
        not asked, which saves a paced stream a call an event.
        """
        return not self._waited and self._ready()

    def _read(self) -> bytes:
        """Return what has arrived, waiting only when nothing has."""
        if self._end_by is not None:
            left = self._end_by - time.monotonic()
            if left <= 0:
                raise IdleTimeoutError(f"the answer of {self._request.where} did not end in time")
            self._set_timeout(left)
        failure: ToolnexusError | None = None
        try:
            began = time.monotonic()
            data = self._read1(_READ)
            self._waited = time.monotonic() - began > _WAIT
        except BODY_ERRORS as error:
            failure = self._failed(error)
        if failure is not None:
            raise failure  # outside of the except block, or what it caught would be its context
        if not data:
            # A socket that was shut by us looks like the end of a body that has no length.
            self._lease.scope.check()
            self._ended = True
        elif not self._began:
            self._began = True
            self._set_timeout(self._timeouts.idle)
        return data

    def _failed(self, error: Exception) -> ToolnexusError:
        """Return our error for one that was raised while the body was read."""
        if self._lease.scope.cancelled:
            return self._lease.scope.error()
        request = self._request
        failure = in_body(
            error, began=self._began, timeouts=self._timeouts, scrub=request.scrub, where=request.where
        )
        request.scrub.chain(failure, error)
        return failure

    def _set_timeout(self, seconds: float) -> None:
        # Once the body is read to its end, the socket may serve somebody else's exchange already.
        if self._sock is not None and not self._raw.closed:
            with contextlib.suppress(OSError):
                self._sock.settimeout(max(_LEAST, seconds))

    def close(self, *, reuse: bool = False) -> None:
        """
        End the exchange.

        Args:
            reuse: Whether the answer ended well, so that its connection may serve another one; a
                little of what follows its end is read for that.
        """
        if reuse and not self._ended:
            self._drain()
        if self._stand_in is not None:
            self._lease.scope.detach(self._stand_in)
            self._stand_in.close()
        if not self._ended:
            with contextlib.suppress(Exception):
                self._raw.close()
        with contextlib.suppress(Exception):
            self._raw.release_conn()
        self._lease.end()
        self.__dict__.pop("source", None)  # it refers to us, and nobody shall have to wait for the collector

    def _drain(self) -> None:
        self._end_by = time.monotonic() + _DRAIN_SECONDS
        left = _DRAIN_BYTES
        with contextlib.suppress(ToolnexusError):
            while left > 0 and not self._ended:
                left -= len(self._read())


def _reader(answer: Answer) -> Callable[[int], bytes]:
    """
    Return what reads the body: our own answer itself where urllib3 adds nothing but its time.

    Raises:
        ConfigurationError: A response hook, or an adapter, of the user's session has read the body away.
    """
    response = answer.response
    kept = getattr(response, "_content", False)
    if isinstance(kept, bytes):
        return io.BytesIO(kept).read1  # a response hook has read it, and requests has kept it
    if response is not None and _is_gone(response):
        response.close()  # it may have been read in part, and nobody else will
        raise ConfigurationError(
            "the answer was read or closed on its way, by a response hook or an adapter of the session: "
            "such a hook may use response.content or response.text, which keep it, not raw or iter_content"
        )
    own = getattr(answer.raw, "_original_response", None)
    if isinstance(own, ChunkedResponse) and own.chunked and "content-encoding" not in own.headers:
        return own.read1
    encoded = "content-encoding" in answer.headers
    return functools.partial(answer.raw.read1, decode_content=encoded)


def _is_gone(response: requests.Response) -> bool:
    """Tell whether somebody has read of the body, or closed it, and nobody has kept it."""
    raw = response.raw
    if raw is None or getattr(response, "_content_consumed", False):
        return True
    tell = getattr(raw, "tell", None)
    if callable(tell) and tell():
        return True
    # An answer without a body is closed from the start; a chunked one, or one that has a length, is not.
    expected = getattr(raw, "chunked", False) or getattr(raw, "length_remaining", 0)
    return bool(expected and getattr(raw, "closed", False))


def _socket_of(raw: Any) -> Any:
    """Return the socket of a response whose adapter is not ours, where it can be found."""
    for path in (("connection", "sock"), ("_fp", "fp", "raw", "_sock")):
        found = raw
        for name in path:
            found = getattr(found, name, None)
        if hasattr(found, "settimeout"):
            return found
    return None


def _readiness(sock: Any) -> Callable[[], bool]:
    """Return a function that tells whether a read would find bytes on the socket right now."""
    if not isinstance(sock, socket.socket):
        return lambda: False
    fileno = sock.fileno()
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        return lambda: bool(poll.poll(0))
    return lambda: bool(select.select([fileno], [], [], 0)[0])
