"""
Asking an endpoint again.

From one request to the next only the body differs. So the rest is checked, completed and written once, by
requests, urllib3 and http.client as always; and of the answers that follow nothing is made that nobody looks
at. Where answers are short, that is a tenth of all that is done.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from urllib3 import HTTPHeaderDict, HTTPResponse

if TYPE_CHECKING:
    import requests

    from toolnexus.transport.chunked import ChunkedResponse
    from toolnexus.transport.exchange import HTTPRequest
    from toolnexus.transport.failures import Timeouts

__all__ = ["PlainAnswer", "Template", "ask_again"]

_LENGTH = b"\r\nContent-Length: "


class Template:
    """
    A request as requests has checked and completed it.

    Args:
        request: The request.
        prepared: The same, prepared.
    """

    def __init__(self, request: HTTPRequest, prepared: requests.PreparedRequest) -> None:
        self.prepared = prepared
        self._url = request.url
        self._headers = request.headers
        self._head: tuple[bytes, bytes] | None = None

    def fits(self, request: HTTPRequest) -> bool:
        """Tell whether a request differs from this one in its body only."""
        return self._url == request.url and self._headers == request.headers

    def headers(self, body: bytes) -> Mapping[str, str]:
        """Return the headers of a request with this body."""
        return {**self.prepared.headers, "Content-Length": str(len(body))}

    def learn(self, head: bytes) -> None:
        """Keep a head as it was written, for the requests that follow."""
        before, found, rest = head.partition(_LENGTH)
        number, _, after = rest.partition(b"\r\n")
        whole = head.startswith(b"POST ") and head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1
        if whole and found and number.isdigit() and head.count(_LENGTH) == 1:
            self._head = before + found, b"\r\n" + after

    def written(self, body: bytes) -> bytes | None:
        """Return a whole request with this body; None where no head was learned."""
        if self._head is None:
            return None
        before, after = self._head
        return b"%s%d%s%s" % (before, len(body), after, body)


class PlainAnswer:
    """
    An answer of http.client's, with what is used here of one of urllib3's.

    Args:
        answer: The answer, its headers read.
        connection: Where it comes from.
        pool: Where that belongs.
    """

    def __init__(self, answer: ChunkedResponse, connection: Any, pool: Any) -> None:
        self.status = answer.status
        self._original_response = answer
        self._connection = connection
        self._pool = pool

    @functools.cached_property
    def headers(self) -> HTTPHeaderDict:
        """The headers, those of one name joined."""
        return HTTPHeaderDict(self._original_response.headers.items())

    @property
    def closed(self) -> bool:
        """Whether it was read to its end, or closed."""
        return self._original_response.isclosed()

    def close(self) -> None:
        """Close it and its connection."""
        self._original_response.close()
        if self._connection is not None:
            self._connection.close()

    def release_conn(self) -> None:
        """Give the connection back to its pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool._put_conn(connection)


def ask_again(pool: Any, written: bytes, patience: Timeouts) -> PlainAnswer | HTTPResponse:
    """
    Send a request that is written already over a connection of a pool of ours, and return its answer.

    Args:
        pool: The pool; it leads to the server itself, not to a proxy.
        written: The request.
        patience: How long to wait.

    Raises:
        OSError: The connection failed, or broke.
        urllib3.exceptions.HTTPError: There is no connection.
        http.client.HTTPException: What came is no answer.
    """
    connection = pool._get_conn()
    try:
        connection.timeout = patience.connect
        pool._validate_conn(connection)  # of TLS, which connects here, it is told when nobody verified it
        if connection.sock is None:
            connection.connect()
        try:
            connection.send(written)
        except OSError as error:
            # The server may have answered before it had read all, and then gone.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, getattr(errno, "EPROTOTYPE", None)):
                raise
        connection.sock.settimeout(patience.response)
        answer = connection.response_class(connection.sock, method="POST")
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
    except BaseException:
        connection.close()
        pool._put_conn(None)
        raise
    if answer.will_close:
        connection.close()  # what is left of it goes with the answer
    if answer.chunked and "content-encoding" not in answer.headers:
        return PlainAnswer(answer, connection, pool)
    return HTTPResponse(
        answer,
        HTTPHeaderDict(answer.headers.items()),
        answer.status,
        answer.version,
        reason=answer.reason,
        preload_content=False,
        decode_content=False,
        original_response=answer,
        pool=pool,
        connection=connection,
        request_method="POST",
    )
