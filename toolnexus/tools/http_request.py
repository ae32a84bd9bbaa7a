"""One exchange over HTTP with every limit kept: time, size, redirects, cancel."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.tools.http_secrets import Redactor, quiet_logs

if TYPE_CHECKING:
    import requests

__all__ = ["Answer", "Exchange", "Failure", "Limits", "Outgoing", "Sessions"]

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_PIECE = 1 << 16
_DEFAULT_HEADERS = {"Accept-Encoding": "gzip, deflate", "User-Agent": "toolnexus", "Accept": "*/*"}


@attrs.frozen
class Limits:
    """
    How long and how large an exchange may be.

    Args:
        timeout: Seconds for the whole exchange, redirects included; None for no limit.
        max_bytes: Bytes of the decoded body that are read.
    """

    timeout: float | None
    max_bytes: int


@attrs.frozen
class Outgoing:
    """A request that is ready to go. Its headers and body stay out of ``repr``."""

    method: str
    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Answer:
    """
    What the server said.

    Args:
        status: The HTTP status.
        headers: The headers, found in any case.
        body: The decoded body, or as much of it as the limit lets through.
        cut: Whether the body was longer.
        redirect: Where the server points to, when that was not followed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)
    cut: bool = False
    redirect: str | None = None


@attrs.frozen
class Failure:
    """Why there is no answer, in words for the model."""

    message: str


class Sessions:
    """
    The `requests.Session` of a tool: made when it is first needed, and anew in a forked child.

    Args:
        session: A session of the user's; its adapters, certificates, cookies and headers are used.
    """

    def __init__(self, session: requests.Session | None = None) -> None:
        self.given = session
        self._own: tuple[int, requests.Session] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sessions, (self.given,)

    def send(self, outgoing: Outgoing, timeout: float | None) -> requests.Response:
        """
        Send a request and return the response with its body unread; no redirect is followed.

        Args:
            outgoing: The request.
            timeout: Seconds for connecting, and for each wait for bytes.
        """
        import requests

        request = requests.Request(
            outgoing.method, outgoing.url, headers=dict(outgoing.headers), data=outgoing.body
        )
        if self.given is not None:
            prepared = self.given.prepare_request(request)
            settings = _environment(self.given, prepared)
            return self.given.send(prepared, allow_redirects=False, timeout=timeout, **settings)
        session = self._session()
        # Not through the session: that would add what ~/.netrc says for the host, and read the
        # whole body of a redirect, however long it is.
        prepared = request.prepare()
        for name, value in _DEFAULT_HEADERS.items():
            prepared.headers.setdefault(name, value)
        adapter = session.get_adapter(str(prepared.url))
        return adapter.send(prepared, timeout=timeout, **_environment(session, prepared))

    def _session(self) -> requests.Session:
        own = self._own
        if own is None or own[0] != os.getpid():
            # Two threads may both make one; the one that is lost was not used for long.
            own = self._own = (os.getpid(), _new_session())
        return own[1]


def _environment(session: requests.Session, prepared: requests.PreparedRequest) -> dict[str, Any]:
    """Return the proxies and certificates that the environment names."""
    # What the session itself says of certificates goes first; requests would let the environment win.
    verify = None if session.verify is True else session.verify
    return dict(session.merge_environment_settings(prepared.url, {}, True, verify, None))


def _new_session() -> requests.Session:
    import requests

    from toolnexus.transport.connection import CancellableAdapter

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, CancellableAdapter())
    return session


class _CallScope(CancelScope):
    """The scope of one exchange: ends with the tool's own scope, or when the time is up."""

    def __init__(self, parent: CancelScope, timeout: float | None) -> None:
        super().__init__(timeout)
        self.parent = parent

    @property
    def cancelled(self) -> bool:
        return self.parent.cancelled or super().cancelled

    def attach(self, sock: socket.socket) -> None:
        super().attach(sock)
        self.parent.attach(sock)

    def detach(self, sock: socket.socket) -> None:
        self.parent.detach(sock)
        super().detach(sock)


@attrs.frozen
class Exchange:
    """
    Sends requests and reads the answers.

    Args:
        sessions: Where the session comes from.
        limits: Time and size.
    """

    sessions: Sessions
    limits: Limits

    def send(self, outgoing: Outgoing, scope: CancelScope, redactor: Redactor) -> Answer | Failure:
        """
        Send a request and read the answer, following redirects within the same host.

        Args:
            outgoing: The request.
            scope: Its end shuts the connection.
            redactor: What to keep out of the log.

        Returns:
            The answer, or why there is none.

        Raises:
            RunCancelledError: The scope was cancelled.
            RunTimeoutError: The scope's time is up.
        """
        scope.check()
        call = _CallScope(scope, self.limits.timeout)
        problem: Failure | None = None
        with call.running(), quiet_logs(redactor):
            try:
                answer = self._follow(outgoing, call)
            except Exception as error:  # noqa: BLE001 - cancel makes urllib3 raise nearly anything
                problem = Failure(explain(error, urlsplit(outgoing.url).netloc))
        # Outside of the except block: no exception may carry the URL, which can hold a key, as context.
        scope.check()
        if call.cancelled:
            return Failure(f"no whole answer within {self.limits.timeout:g} s")
        return problem or answer

    def _follow(self, outgoing: Outgoing, call: _CallScope) -> Answer:
        for hop in range(_MAX_REDIRECTS + 1):
            answer = self._once(outgoing, call)
            target = answer.redirect
            if target is None or hop == _MAX_REDIRECTS or not _may_follow(outgoing, answer.status, target):
                break
            outgoing = attrs.evolve(outgoing, url=target)
        return answer

    def _once(self, outgoing: Outgoing, call: _CallScope) -> Answer:
        with self._opened(outgoing, call) as response:
            body, cut = _read(response, self.limits.max_bytes, call)
            answer = Answer(response.status_code, response.headers, body, cut)
            location = response.headers.get("Location") if answer.status in _REDIRECTS else None
            return attrs.evolve(answer, redirect=_joined(outgoing.url, location)) if location else answer

    @contextlib.contextmanager
    def _opened(self, outgoing: Outgoing, call: _CallScope) -> Iterator[requests.Response]:
        """Send, and give the response with its body unread; whatever happens, it is closed."""
        from toolnexus.transport.lease import Lease, leasing

        lease = Lease(call)
        try:
            with leasing(lease):
                response = self.sessions.send(outgoing, call.remaining())
            # A session of the user's may lack our adapter: then the reading at least can be cut.
            undo = call.parent.on_cancel(response.raw.shutdown) if self.sessions.given else lambda: None
            try:
                yield response
            finally:
                undo()
                response.close()
        finally:
            lease.end()


def _joined(base: str, location: str) -> str:
    try:
        return urljoin(base, location)
    except ValueError:
        return location


def _may_follow(outgoing: Outgoing, status: int, target: str) -> bool:
    """Whether a redirect may be followed: to the same host, and with the same method and body."""
    if outgoing.method not in ("GET", "HEAD") and status not in (307, 308):
        return False
    try:
        here, there = urlsplit(outgoing.url), urlsplit(target)
        upgrade = (_origin(here), _origin(there)) == (
            ("http", there.hostname, 80),
            ("https", here.hostname, 443),
        )
        return there.username is None and (_origin(here) == _origin(there) or upgrade)
    except ValueError:
        return False


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _read(response: requests.Response, limit: int, call: CancelScope) -> tuple[bytes, bool]:
    """Read the decoded body up to the limit, a piece at a time; tell whether there was more."""
    body = bytearray()
    while len(body) <= limit:
        piece = response.raw.read1(min(_PIECE, limit + 1 - len(body)), decode_content=True)
        call.check()
        if not piece:
            return bytes(body), False
        body += piece
    return bytes(body[:limit]), True


def explain(error: BaseException, host: str) -> str:
    """
    Return why a request failed, in words that name the host and nothing else of the request.

    Args:
        error: What requests or urllib3 raised.
        host: The host and port that were asked.
    """
    from requests import exceptions
    from urllib3 import exceptions as lower

    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not valid: {cause.verify_message}"
    if isinstance(cause, socket.gaierror):
        return f"the host {host} cannot be found"
    if isinstance(error, exceptions.Timeout | lower.TimeoutError) or isinstance(cause, TimeoutError):
        return f"{host} did not answer in time"
    if isinstance(error, exceptions.ProxyError):
        return f"{host} cannot be reached through the proxy"
    if isinstance(cause, ConnectionRefusedError):
        return f"{host} refused the connection"
    if isinstance(error, exceptions.ContentDecodingError | lower.DecodeError):
        return f"the answer of {host} is not encoded as its headers say"
    if isinstance(error, lower.HTTPError | OSError | AttributeError | ValueError):
        return f"the connection to {host} ended before a whole answer had come{_reason(cause)}"
    return f"the request to {host} failed: {type(error).__name__}"


def _reason(cause: BaseException | None) -> str:
    return f": {cause.strerror}" if isinstance(cause, OSError) and cause.strerror else ""


def _innermost(error: BaseException) -> BaseException | None:
    """Return the error of the operating system or of TLS at the bottom, however it is wrapped."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        item = waiting.pop()
        if isinstance(item, BaseException) and not any(item is known for known in seen):
            seen.append(item)
            waiting += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]
    systemic = [e for e in seen if isinstance(e, OSError) and e.errno is not None]
    return systemic[-1] if systemic else None
