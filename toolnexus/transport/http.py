"""Sending requests over one session, cancellable in every phase."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import requests
from requests.cookies import extract_cookies_to_jar

from toolnexus.cancel import CancelScope
from toolnexus.errors import RunCancelledError, RunTimeoutError, ToolnexusError
from toolnexus.transport.again import Template
from toolnexus.transport.connection import CancellableAdapter
from toolnexus.transport.exchange import Answer, Exchange, HTTPRequest, Limits
from toolnexus.transport.failures import CONNECTION_ERRORS, Timeouts, before_headers
from toolnexus.transport.lease import Lease, leasing

__all__ = ["Exchange", "HTTPRequest", "Limits", "Transport"]


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
        # What stays the same from one request to the next.
        self._template: Template | None = None
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
                    renewed: Any = adapter
                    renewed.__setstate__(renewed.__getstate__())

    def open(self, request: HTTPRequest, scope: CancelScope) -> Exchange:
        """
        Send a request and return its answer as soon as the headers are there.

        Raises:
            ToolnexusError: There is no answer, and why.
        """
        scope.check()
        lease = Lease(scope, self.timeouts.response)
        began = time.monotonic()
        try:
            with leasing(lease):
                answer = self._send(request)
            return Exchange(answer, lease, request, self.timeouts, self.limits)
        except Exception as error:
            connected = lease.sock is not None or self._waited_for_answer(error, began)
            lease.abort()
            failure = self._failed(error, request, scope, connected)
            if failure is error:
                raise
            # What could not be encoded is on its error, whole: a proxy's password, for instance.
            if not isinstance(failure, (RunCancelledError, RunTimeoutError)) and not isinstance(
                error, UnicodeError
            ):
                request.scrub.chain(failure, error)
        except BaseException:
            lease.abort()
            raise
        # Outside of the except block, or what it caught would be the context of this one.
        raise failure

    def _waited_for_answer(self, error: Exception, began: float) -> bool:
        """
        Tell whether there was a connection, where the adapter does not say.

        Its timeouts while connecting and while waiting look alike, but not their lengths.
        """
        late = time.monotonic() - began >= self.timeouts.response
        return not self._own and late and isinstance(error, requests.exceptions.ReadTimeout)

    def _failed(
        self, error: Exception, request: HTTPRequest, scope: CancelScope, connected: bool
    ) -> Exception:
        """Return our error for one that was raised before there was an answer; a bug's own error stays."""
        if scope.cancelled:
            return scope.error()
        if isinstance(error, ToolnexusError) or not isinstance(error, CONNECTION_ERRORS):
            return error
        return before_headers(
            error, connected=connected, timeouts=self.timeouts, scrub=request.scrub, where=request.where
        )

    def _send(self, request: HTTPRequest) -> Answer:
        session = self.session()
        settings = self._environment(session, request.url)
        if self._own:
            return self._ask(session, request, settings)
        prepared = _prepared(session, request)
        timeout = (self.timeouts.connect, self.timeouts.response)
        response = session.send(prepared, allow_redirects=False, timeout=timeout, **settings)
        return Answer(response.raw, response)

    def _ask(self, session: requests.Session, request: HTTPRequest, settings: dict[str, Any]) -> Answer:
        """
        Send a request over our own session.

        Not with `Session.send`, which reads the whole body of a redirect before anybody can say no, and makes
        things of every answer that nobody here looks at.
        """
        template = self._template
        if template is None or not template.fits(request) or session.cookies:
            template = Template(request, _prepared(session, request))
            if not session.cookies:
                self._template = template
        adapter: Any = session.get_adapter(request.url)
        raw = adapter.ask(template, request.body, self.timeouts, settings)
        if "set-cookie" in raw._original_response.headers:
            keep_cookies: Callable[..., None] = extract_cookies_to_jar
            keep_cookies(session.cookies, template.prepared, raw)
        return Answer(raw)

    def _environment(self, session: requests.Session, url: str) -> dict[str, Any]:
        """Return proxies and certificates; looking them up takes long, so it is done on change only."""
        own = (session.trust_env, session.verify, session.cert, *session.proxies.items())
        names = _SECURE if url[:6].lower() == "https:" else _PLAIN
        key = (url, own, *map(os.environ.get, names))
        known = self._settings
        if known is None or known[0] != key:
            # What a user's session says goes before the environment; in requests it would be the other way.
            verify = None if session.verify is True else session.verify
            settings = session.merge_environment_settings(url, {}, True, verify, None)
            self._settings = known = (key, dict(settings))
        return known[1]


def _prepared(session: requests.Session, request: HTTPRequest) -> requests.PreparedRequest:
    """Return the request as requests wants it, with what the session adds."""
    return session.prepare_request(
        requests.Request(
            "POST",
            request.url,
            headers=request.headers,
            data=request.body,
            auth=None if session.auth else _NoAuth(),
        )
    )


def _spelled(*names: str) -> tuple[str, ...]:
    return tuple(form for name in names for form in (name, name.upper()))


#: What counts of the environment for either kind of URL; each look takes longer than one thinks.
_PLAIN = _spelled("http_proxy", "all_proxy", "no_proxy")
_SECURE = (*_spelled("https_proxy", "all_proxy", "no_proxy"), "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _renew_all() -> None:
    for transport in list(_transports):
        transport.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
