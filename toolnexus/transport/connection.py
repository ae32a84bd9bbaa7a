"""
Connections that hand their socket to whoever may have to shut it.

`Response.close()` from another thread waits for the reader; shutting the socket does not. The
socket that is handed out is a duplicate made before the connection is made, because a TLS
handshake takes the original away, and because it must work in every phase: connecting,
handshake, proxy, headers, body.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import queue
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidURL
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    LocationParseError,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
)
from urllib3.poolmanager import PoolManager
from urllib3.util import Timeout
from urllib3.util.wait import wait_for_write

from toolnexus.abandon import call_abandonable
from toolnexus.transport.again import PlainAnswer, Template, ask_again
from toolnexus.transport.chunked import ChunkedResponse
from toolnexus.transport.failures import Timeouts
from toolnexus.transport.lease import Lease, current

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from toolnexus.cancel import CancelScope

__all__ = ["CancellableAdapter"]

#: How long one wait for a connection lasts before the scope is looked at.
_SLICE = 0.02

#: The most answers that may come before the answer: they must not defeat the time limit.
_INTERIM = 100

#: How many idle connections to one host are kept.
_KEPT = 100


class _Discreet(str):
    """A request target that does not show its query, in which a key may be, to a log."""

    __slots__ = ()

    def __str__(self) -> str:
        path, mark, _ = self.partition("?")
        return path + mark


class _Answer(ChunkedResponse):
    """Passes over answers that come before the answer (102, 103); http.client does so for 100 only."""

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(_INTERIM):
            line: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 101 < line[1] < 200:
                return line
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException(f"more than {_INTERIM} interim answers")


class _Handing:
    """What both kinds of connection add to urllib3's."""

    # A debug level set on http.client's class would print the headers, the key among them.
    debuglevel = 0

    response_class: Any = _Answer

    sock: Any
    host: str
    port: int
    timeout: Any
    source_address: Any
    socket_options: Any
    _dns_host: str

    lease: Lease | None = None
    handle: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        lease = current.lease
        if lease is None:
            return super()._new_conn()  # type: ignore[misc, no-any-return]
        try:
            sock = self._connect_any(lease)
        except UnicodeError as error:
            raise LocationParseError(f"{self.host!r}, label empty or too long") from error
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
        except TimeoutError as error:
            raise ConnectTimeoutError(
                self, f"Connection to {self.host} timed out. (connect timeout={self.timeout})"
            ) from error
        except OSError as error:
            raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error  # type: ignore[arg-type]
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _connect_any(self, lease: Lease) -> socket.socket:
        """Connect to the first of the host's addresses that answers."""
        problem: OSError | None = None
        deadline = time.monotonic() + self.timeout if isinstance(self.timeout, (int, float)) else None
        found = list(_resolve(self._dns_host, self.port, lease.scope, deadline))
        for position, info in enumerate(found):
            # Each address gets its share of the time: the first one may be a black hole.
            until = _share(deadline, len(found) - position)
            try:
                sock = self._connect_one(info, lease, until)
            except OSError as error:
                problem = error
                lease.end()
                lease.scope.check()
            except BaseException:
                lease.end()
                raise
            else:
                sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
                return sock
        raise problem or OSError("the host has no address")

    def _connect_one(self, info: Any, lease: Lease, until: float | None) -> socket.socket:
        family, kind, protocol, _, address = info
        sock = socket.socket(family, kind, protocol)
        try:
            for option in self.socket_options or ():
                sock.setsockopt(*option)
            if self.source_address:
                sock.bind(self.source_address)
            self.handle = sock.dup()
            lease.take(self)
            _connect(sock, address, lease.scope, until)
        except BaseException:
            sock.close()
            raise
        return sock

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        if self.lease is not None:
            self.lease.connected(self)

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        super().putrequest(method, str.__str__(url), *args, **kwargs)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        asking = current.lease  # ours is not there yet where this connects
        if asking is not None and asking.learn is not None:
            asking.learn(data)
            asking.learn = None
        lease = self.lease
        if lease is not None and lease.patience is not None and lease.sock is not None:
            # The time for connecting is over; a long request may take longer than that.
            self.sock.settimeout(lease.patience)
        super().send(data)  # type: ignore[misc]

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        # http.client closes the connection at the headers when no other request can follow, while
        # the body is still to be read: the handle must live as long as the exchange does.
        if self.lease is None:
            self.drop_handle()

    def drop_handle(self) -> None:
        """Close the duplicate; without this the peer would never see the connection close."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.close()


def _resolve(host: str, port: int, scope: CancelScope, deadline: float | None) -> Any:
    """Look the host up; a lookup that hangs is left behind when the scope or the time ends."""
    host = host.strip("[]")
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return call_abandonable(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
        scope,
        name="lookup",
        deadline=deadline,
    )


def _connect(sock: socket.socket, address: Any, scope: CancelScope, deadline: float | None) -> None:
    """Connect, looking at the scope now and then: no shutdown reaches a connecting socket everywhere."""
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN, getattr(errno, "WSAEWOULDBLOCK", -1)):
        while not wait_for_write(sock, _SLICE):
            scope.check()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("timed out")
        scope.check()
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _share(deadline: float | None, among: int) -> float | None:
    """Return until when the next of so many tries may last."""
    if deadline is None:
        return None
    now = time.monotonic()
    return now + max(0.0, deadline - now) / among


class _Connection(_Handing, HTTPConnection):
    pass


class _SecureConnection(_Handing, HTTPSConnection):
    pass


class _Taking:
    """What both kinds of pool add to urllib3's."""

    pool: queue.LifoQueue[Any] | None

    def _make_request(self, conn: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        return super()._make_request(conn, method, _Discreet(url), *args, **kwargs)  # type: ignore[misc]

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection = super()._get_conn(timeout)  # type: ignore[misc]
        if current.lease is not None and connection.sock is not None:
            current.lease.take(connection)
        return connection

    def _put_conn(self, conn: Any) -> None:
        # Before anybody else can take it: a cancel of ours must not reach their exchange.
        if conn is not None and conn.lease is not None:
            conn.lease.release(conn)
        if self.pool is not None and self.pool.full():
            # urllib3 would close it just the same, with a warning that helps nobody.
            if conn:
                conn.close()
            return
        super()._put_conn(conn)  # type: ignore[misc]

    def close_idle(self) -> None:
        """Close the connections that serve nobody; those in use go on, and the pool can be used again."""
        places = self.pool
        closed = 0
        with contextlib.suppress(queue.Empty):
            while places is not None:
                connection = places.get(block=False)
                closed += 1
                if connection is not None:
                    connection.close()
        with contextlib.suppress(queue.Full):
            for _ in range(closed):
                self.pool.put(None, block=False)  # type: ignore[union-attr]


class _Pool(_Taking, HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(_Taking, HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS: dict[str, type] = {"http": _Pool, "https": _SecurePool}


class CancellableAdapter(HTTPAdapter):
    """
    A requests adapter whose connections can be cancelled in every phase.

    A client's own session has it. Mount it on a session of your own to have the same there::

        session.mount("https://", CancellableAdapter())
    """

    def __init__(self, pool_connections: int = 16, pool_maxsize: int = _KEPT, **kwargs: Any) -> None:
        super().__init__(pool_connections, pool_maxsize, **kwargs)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **pool_kwargs: Any
    ) -> None:
        super().init_poolmanager(connections, maxsize, block, **pool_kwargs)
        self._latest: tuple[Any, Any] = (None, None)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def ask(
        self, template: Template, body: bytes, patience: Timeouts, settings: Mapping[str, Any]
    ) -> BaseHTTPResponse | PlainAnswer:
        """
        Send a request as `send` does, and return its answer as it is.

        Args:
            template: The request without its body.
            body: The body.
            patience: How long to wait.
            settings: Proxies, verify and cert, as a session merges them.

        Raises:
            requests.RequestException: The URL, the proxy's or the certificates cannot be used.
            urllib3.exceptions.HTTPError, OSError, http.client.HTTPException: There is no answer.
        """
        request = template.prepared
        proxies, verify, cert = settings["proxies"], settings["verify"], settings["cert"]
        try:
            pool = self.get_connection_with_tls_context(request, verify, proxies, cert)
        except LocationValueError as error:
            raise InvalidURL(error, request=request) from error
        check_certificates: Callable[..., None] = self.cert_verify
        check_certificates(pool, request.url, verify, cert)
        written = template.written(body) if pool.proxy is None and isinstance(pool, _Taking) else None
        if written is not None:
            return ask_again(pool, written, patience)
        if current.lease is not None and pool.proxy is None:
            current.lease.learn = template.learn
        answer: BaseHTTPResponse = pool.urlopen(
            "POST",
            self.request_url(request, proxies),
            body,
            template.headers(body),
            retries=self.max_retries,
            redirect=False,
            assert_same_host=False,
            timeout=Timeout(connect=patience.connect, read=patience.response),
            preload_content=False,
            decode_content=False,
        )
        return answer

    def get_connection_with_tls_context(
        self, request: Any, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        # Finding the pool takes requests several times as long as asking whether it is the same one again.
        address = urlsplit(request.url)
        key = (address.scheme, address.netloc, verify, cert, *(proxies or {}).items())
        known, pool = self._latest
        if known != key:
            pool = super().get_connection_with_tls_context(request, verify, proxies, cert)
            self._latest = (key, pool)
        return pool

    def close(self) -> None:
        self._latest = (None, None)
        # urllib3 closes idle connections only when their pool is collected.
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():  # noqa: SIM118 - no mapping that can be iterated
                pool = manager.pools.get(key)
                if isinstance(pool, _Taking):
                    pool.close_idle()
        super().close()

    def proxy_manager_for(self, proxy: str, **proxy_kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **proxy_kwargs)
        # A SOCKS proxy has connections of its own kind: there only the read can be cut.
        if isinstance(manager, PoolManager) and not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager
