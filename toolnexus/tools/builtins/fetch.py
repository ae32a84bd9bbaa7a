"""
Getting a page from an address that was checked.

The connection is made here and handed to the HTTP library: it goes to the very address that was
judged, and the name is used for the certificate and the Host header alone. Proxies of the
environment are not used, for a proxy resolves names by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, urljoin, urlsplit

import attrs
import certifi
import idna
from requests.utils import requote_uri

from toolnexus._version import __version__
from toolnexus.abandon import call_abandonable
from toolnexus.cancel import CancelScope
from toolnexus.tools.builtins.addresses import Policy
from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["Page", "fetch"]

MAX_REDIRECTS = 5
MAX_URL = 8192
_BLOCK = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}


@attrs.frozen
class Page:
    """
    What a server answered.

    Args:
        url: Where it came from, after redirects.
        status: The HTTP status.
        content_type: The header, or an empty text.
        body: The bytes, decompressed.
        cut: Whether there was more than was wanted.
    """

    url: str
    status: int
    content_type: str
    body: bytes = attrs.field(repr=False)
    cut: bool


@attrs.frozen
class _Target:
    """A checked address of a page: the URL, and its host as it goes over the wire."""

    parts: SplitResult
    host: str
    port: int

    @property
    def secure(self) -> bool:
        return self.parts.scheme == "https"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.parts.scheme] else f"{host}:{self.port}"

    @property
    def path(self) -> str:
        return (self.parts.path or "/") + (f"?{self.parts.query}" if self.parts.query else "")


def fetch(url: str, *, policy: Policy, scope: CancelScope, most: int, ca_bundle: str | None = None) -> Page:
    """
    Get a page, following redirects.

    Args:
        url: An http or https URL.
        policy: Which addresses may be connected to; asked again for each redirect.
        scope: Its end shuts the connection.
        most: How many bytes of the body to take, decompressed.
        ca_bundle: A file of certificates to trust beside the usual ones.

    Raises:
        ToolFailure: The URL or where it leads is not allowed, or the answer is not usable.
        OSError: The connection failed.
    """
    for _ in range(MAX_REDIRECTS + 1):
        with _answered(_target(url), policy, scope, ca_bundle) as response:
            location = response.getheader("Location")
            if response.status not in _REDIRECTS or not location:
                body, cut = _body(response, most, scope)
                return Page(url, response.status, response.getheader("Content-Type", ""), body, cut)
        url = urljoin(url, location)
    raise ToolFailure(f"more than {MAX_REDIRECTS} redirects")


def _target(url: str) -> _Target:
    """
    Take a URL apart.

    Raises:
        ToolFailure: It is none of http or https, or is written so that programs disagree about it.
    """
    if len(url) > MAX_URL:
        raise ToolFailure(f"the URL is longer than {MAX_URL} characters")
    if "\\" in url or any(c.isspace() or not c.isprintable() for c in url):
        raise ToolFailure("the URL holds characters that no URL has")
    try:
        parts = urlsplit(requote_uri(url))
        port = parts.port
    except ValueError as error:
        raise ToolFailure("the URL is malformed") from error
    if parts.scheme not in _PORTS:
        raise ToolFailure("only http and https URLs can be fetched")
    if parts.username is not None or parts.password is not None:
        raise ToolFailure("a URL with a user name or password is not fetched")
    return _Target(parts, _host(parts.hostname), _PORTS[parts.scheme] if port is None else port)


def _host(host: str | None) -> str:
    """Return a host in ASCII."""
    if not host:
        raise ToolFailure("the URL has no host")
    if host.isascii():
        return host
    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except idna.IDNAError as error:
        raise ToolFailure("the host of the URL is malformed") from error


@contextlib.contextmanager
def _answered(
    target: _Target, policy: Policy, scope: CancelScope, ca_bundle: str | None
) -> Iterator[http.client.HTTPResponse]:
    """Connect, ask, and give the answer up to the end of its headers."""
    addresses = call_abandonable(
        lambda: policy.addresses(target.host, target.port), scope, name="resolve", deadline=scope.deadline
    )
    with contextlib.ExitStack() as stack:
        sock = _connected(addresses, target, scope, stack)
        if target.secure:
            context = ssl.create_default_context()
            context.load_verify_locations(ca_bundle or certifi.where())
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname=target.host))
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = sock
        stack.callback(connection.close)
        connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", target.host_header)
        connection.putheader("User-Agent", f"toolnexus/{__version__}")
        connection.putheader("Accept", "text/html, text/plain;q=0.9, */*;q=0.5")
        connection.putheader("Accept-Encoding", "gzip, deflate")
        connection.endheaders()
        response = connection.getresponse()
        stack.callback(response.close)
        yield response


def _connected(
    addresses: list[str], target: _Target, scope: CancelScope, stack: contextlib.ExitStack
) -> socket.socket:
    """Connect to the first address that answers; the end of the scope shuts the socket."""
    failure: OSError | None = None
    for address in addresses:
        scope.check()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        # A second handle on the same connection, for TLS takes the first one for itself.
        guard = sock.dup()
        scope.attach(guard)
        try:
            sock.settimeout(_patience(scope))
            sock.connect((address, target.port))
        except OSError as error:
            scope.detach(guard)
            guard.close()
            sock.close()
            failure = error
            continue
        stack.callback(guard.close)
        stack.callback(scope.detach, guard)
        return stack.enter_context(sock)
    scope.check()
    raise failure or ToolFailure(f"{target.host} has no address")


def _patience(scope: CancelScope) -> float:
    left = None if scope.deadline is None else scope.deadline - time.monotonic()
    return 30.0 if left is None else max(0.001, left)


def _body(response: http.client.HTTPResponse, most: int, scope: CancelScope) -> tuple[bytes, bool]:
    """Return the decompressed body, or as much of it as is wanted."""
    decoder = _decoder(response.getheader("Content-Encoding", ""))
    body = bytearray()
    while len(body) <= most:
        block = response.read1(_BLOCK)
        scope.check()
        if not block:
            if response.length:  # what a body without an end of its own leaves here is None
                raise ToolFailure("the connection ended before the page did")
            break
        body += decoder(block, most + 1 - len(body))
    return bytes(body[:most]), len(body) > most


class _Inflate:
    """Decompresses no more than is wanted, however much there would be."""

    def __init__(self) -> None:
        self.zlib = zlib.decompressobj(wbits=47)  # gzip or zlib, whichever it is

    def __call__(self, block: bytes, most: int) -> bytes:
        # What does not fit stays unread, for there is no further use of it.
        try:
            return self.zlib.decompress(block, most)
        except zlib.error as error:
            raise ToolFailure("the page is not compressed as it says") from error


def _as_it_is(block: bytes, most: int) -> bytes:
    return block


def _decoder(encoding: str) -> Callable[[bytes, int], bytes]:
    """Return what decodes the blocks of a body, given how many bytes are wanted at most."""
    known = encoding.strip().lower()
    if known in ("", "identity"):
        return _as_it_is
    if known in ("gzip", "x-gzip", "deflate"):
        return _Inflate()
    raise ToolFailure(f"the page is compressed as {encoding[:40]!r}, which was not asked for")
