"""Sending one request and reading its answer, cancellable in every phase."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import requests
from requests.cookies import extract_cookies_to_jar
from requests.hooks import dispatch_hook
from sseclient import Event as ServerEvent
from sseclient import SSEClient

from toolnexus.cancel import CancelScope
from toolnexus.errors import LimitError, ToolnexusError
from toolnexus.transport.connection import CancellableAdapter, Lease, leasing
from toolnexus.transport.failures import BODY_ERRORS, Timeouts, before_headers, in_body
from toolnexus.transport.secret import Scrubber
from toolnexus.transport.source import EventSource

__all__ = ["Exchange", "HTTPRequest", "Limits", "Transport"]

_log = logging.getLogger("toolnexus.transport")

#: The most that is read after the end of an answer to be able to use its connection again.
_DRAIN_BYTES = 64 * 1024
_DRAIN_SECONDS = 0.05

_READ = 64 * 1024

#: A read that took longer than this has waited, in seconds.
_WAIT = 0.0005


@attrs.frozen(eq=False)
class Limits:
    """The most bytes of one event, and the most bytes and events of one answer."""

    event_bytes: int = 16 * 2**20
    response_bytes: int = 256 * 2**20
    response_events: int = 2_000_000


@attrs.frozen(eq=False)
class HTTPRequest:
    """One request, ready to be sent."""

    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")
    scrub: Scrubber = attrs.field(repr=False)
    where: str


class _NoAuth(requests.auth.AuthBase):
    """Keeps requests from putting the credentials of a .netrc file over ours."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class Transport:
    """
    Sends requests over one session, from any number of threads.

    Args:
        session: A session of the caller's, used as it is and never closed here; by default one
            of our own whose connections can be cancelled in every phase.
        timeouts: How long each phase may take.
        limits: How much an answer may hold.
    """

    def __init__(self, session: requests.Session | None, timeouts: Timeouts, limits: Limits) -> None:
        self.timeouts = timeouts
        self.limits = limits
        self._own = session is None
        self._session = session
        self._lock = threading.Lock()  # guards _session and _settings
        self._settings: tuple[Any, dict[str, Any]] | None = None
        self._template: requests.PreparedRequest | None = None
        _transports.add(self)

    def session(self) -> requests.Session:
        """Return the session, made at the first need."""
        with self._lock:
            if self._session is None:
                self._session = requests.Session()
                for prefix in ("https://", "http://"):
                    self._session.mount(prefix, CancellableAdapter())
            return self._session

    def close(self) -> None:
        """Close the idle connections; the transport can go on to be used."""
        with self._lock:
            session, self._session = self._session, None if self._own else self._session
        if session is not None and self._own:
            session.close()

    def after_fork(self) -> None:
        """In a child process: take new connections, since the parent goes on with the old ones."""
        self._lock = threading.Lock()
        if self._session is not None:
            for adapter in self._session.adapters.values():
                if isinstance(adapter, requests.adapters.HTTPAdapter):
                    adapter.__setstate__(adapter.__getstate__())

    def open(self, request: HTTPRequest, scope: CancelScope) -> Exchange:
        """
        Send a request and return its answer as soon as the headers are there.

        Raises:
            ToolnexusError: There is no answer, and why.
        """
        scope.check()
        lease = Lease(scope)
        try:
            with leasing(lease):
                response = self._send(request)
        except Exception as error:
            connected = lease.sock is not None
            lease.end()
            raise self._failed(error, request, scope, connected) from self._cause(error, request)
        except BaseException:
            lease.end()
            raise
        return Exchange(response, lease, request, self.timeouts, self.limits)

    def _failed(
        self, error: Exception, request: HTTPRequest, scope: CancelScope, connected: bool
    ) -> Exception:
        if scope.cancelled:
            return scope.error()
        if isinstance(error, ToolnexusError):
            return error
        if isinstance(error, (*BODY_ERRORS, requests.RequestException)):
            if isinstance(error, (AttributeError, ValueError)) and not isinstance(error, requests.RequestException):
                return error
            return before_headers(
                error, connected=connected, timeouts=self.timeouts, scrub=request.scrub, where=request.where
            )
        return error

    def _cause(self, error: Exception, request: HTTPRequest) -> Exception | None:
        """An exception that shows a secret is not chained: a traceback would print it."""
        return None if request.scrub.holds(error) else error

    def _prepare(self, session: requests.Session, request: HTTPRequest) -> requests.PreparedRequest:
        """Return the request as requests wants it, with what the session adds."""
        known = self._template
        if known is not None and known.url == request.url and not session.cookies:
            # Our own session adds nothing, and checking the URL takes longest: only what differs is new.
            prepared = known.copy()
            prepared.prepare_headers(request.headers)
            prepared.body = request.body
            prepared.headers["Content-Length"] = str(len(request.body))
            return prepared
        prepared = session.prepare_request(
            requests.Request(
                "POST",
                request.url,
                headers=request.headers,
                data=request.body,
                auth=None if session.auth else _NoAuth(),
            )
        )
        if self._own and prepared.url == request.url:
            self._template = prepared.copy()
        return prepared

    def _send(self, request: HTTPRequest) -> requests.Response:
        session = self.session()
        prepared = self._prepare(session, request)
        kwargs = dict(self._environment(session, request.url))
        kwargs["timeout"] = (self.timeouts.connect, self.timeouts.response)
        if not self._own:
            return session.send(prepared, allow_redirects=False, **kwargs)
        # Past Session.send, which reads the whole body of a redirect before anybody can say no.
        response = session.get_adapter(request.url).send(prepared, **kwargs)
        response = dispatch_hook("response", prepared.hooks, response, **kwargs)
        extract_cookies_to_jar(session.cookies, prepared, response.raw)
        return response

    def _environment(self, session: requests.Session, url: str) -> dict[str, Any]:
        """Return proxies and certificates; looking them up takes long, so it is done on change only."""
        key = (url, session.verify, session.cert, tuple(session.proxies.items()), *map(os.environ.get, _VARIABLES))
        known = self._settings
        if known is None or known[0] != key:
            settings = session.merge_environment_settings(url, {}, True, None, None)
            self._settings = known = (key, dict(settings))
        return known[1]


_VARIABLES = [
    form
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    for form in (name, name.upper())
] + ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]

_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _renew_all() -> None:
    for transport in list(_transports):
        transport.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class _RawShutdown:
    """Stands in for a socket where the session's adapter does not hand one over."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(Exception):
            self._raw.shutdown()


class Exchange:
    """
    One answer: its status and headers, and its body as events or as bytes.

    Close it, whatever happens.
    """

    def __init__(
        self, response: requests.Response, lease: Lease, request: HTTPRequest, timeouts: Timeouts, limits: Limits
    ) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._raw = response.raw
        self._lease = lease
        self._request = request
        self._timeouts = timeouts
        self._limits = limits
        self._began = False
        self._waited = False
        self._encoded = "content-encoding" in response.headers
        self._ended = False
        self._stand_in: Any = None
        self._sock = lease.sock
        self._ready = _readiness(self._sock)
        if self._sock is None:
            self._stand_in = _RawShutdown(self._raw)
            lease.scope.attach(self._stand_in)

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
            before_read=lambda: before_wait(self._more),
            max_event_bytes=self._limits.event_bytes if streaming else self._limits.response_bytes,
            max_response_bytes=self._limits.response_bytes,
            streaming=streaming,
        )
        count = 0
        for event in SSEClient(source).events():
            count += 1
            if count > self._limits.response_events:
                raise LimitError(f"the answer has more than {self._limits.response_events} events")
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
                self._set_timeout(max(0.01, until - time.monotonic()))
                data = self._read()
                if not data:
                    break
                parts.append(data)
                size += len(data)
        self._lease.scope.check()
        return b"".join(parts)[:limit]

    def expect_end(self, seconds: float) -> None:
        """The answer is whole: wait no longer than this for what may still follow."""
        self._set_timeout(min(seconds, self._timeouts.idle))

    def _more(self) -> bool:
        """
        Tell whether a read would find bytes at once.

        Where the last read had to wait, the next one most likely has to, too: then the system is
        not asked, which saves a paced stream a call an event.
        """
        return not self._waited and self._ready()

    def _read(self) -> bytes:
        """Return what has arrived, waiting only when nothing has."""
        try:
            began = time.monotonic()
            data: bytes = self._raw.read1(_READ, decode_content=self._encoded)
            self._waited = time.monotonic() - began > _WAIT
        except BODY_ERRORS as error:
            scope = self._lease.scope
            if scope.cancelled:
                raise scope.error() from None
            request = self._request
            cause = None if request.scrub.holds(error) else error
            raise in_body(
                error, began=self._began, timeouts=self._timeouts, scrub=request.scrub, where=request.where
            ) from cause
        if not data:
            self._ended = True
            # A socket that was shut by us looks like the end of a body that has no length.
            self._lease.scope.check()
        elif not self._began:
            self._began = True
            self._set_timeout(self._timeouts.idle)
        return data

    def _set_timeout(self, seconds: float) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.settimeout(seconds)

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
        if not self._ended:
            with contextlib.suppress(Exception):
                self._response.close()
        with contextlib.suppress(Exception):
            self._raw.release_conn()
        self._lease.end()

    def _drain(self) -> None:
        self._set_timeout(_DRAIN_SECONDS)
        left = _DRAIN_BYTES
        until = time.monotonic() + _DRAIN_SECONDS
        with contextlib.suppress(ToolnexusError):
            while left > 0 and not self._ended and time.monotonic() < until:
                left -= len(self._read())


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
