"""
One place that turns the errors of requests, urllib3 and the socket into ours.

Before the headers requests raises its own errors; reading the raw body raises urllib3's; and a
read timeout inside a body surfaces as a connection error in some paths.
"""

from __future__ import annotations

import http.client
import re
import ssl
from typing import Any

import attrs
import requests
import urllib3

from toolnexus.errors import (
    APIConnectionError,
    APIError,
    ConfigurationError,
    ConnectTimeoutError,
    IdleTimeoutError,
    ResponseTimeoutError,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.transport.secret import Scrubber
from toolnexus.wording import describe_error, error_text

__all__ = ["BODY_ERRORS", "CONNECTION_ERRORS", "Timeouts", "before_headers", "in_body"]


#: Addresses that no connection can be made to, whatever the network.
_BAD_ADDRESS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.MissingSchema,
    urllib3.exceptions.LocationParseError,
)

#: A proxy that says no, for want of a password as a rule, and not because it is busy.
_PROXY_REFUSAL = re.compile(r"Tunnel connection failed: 4(?!08|29)\d\d")

#: What reading from a connection may raise, in all the libraries' families. A shutdown from
#: another thread shows as AttributeError or ValueError in some versions.
BODY_ERRORS = (
    OSError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    AttributeError,
    ValueError,
)


#: What sending a request may raise that is the network's fault, or the configuration's.
CONNECTION_ERRORS = (
    OSError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    UnicodeEncodeError,
)


@attrs.frozen(eq=False, repr=False)
class Timeouts:
    """
    How long each phase may take, in seconds.

    Args:
        connect: Until there is a connection: the host looked up, TLS agreed on, the proxy passed.
        response: From then to the first byte of the answer's body.
        idle: Silence after that; any byte counts as life, a comment's too.
    """

    connect: float = 10.0
    response: float = 600.0
    idle: float = 120.0


def before_headers(
    error: Exception, *, connected: bool, timeouts: Timeouts, scrub: Scrubber, where: str
) -> ToolnexusError:
    """Return our error for one that was raised before there was an answer."""
    if _is_timeout(error):
        if connected:
            return _no_answer(where, timeouts)
        return ConnectTimeoutError(f"no connection to {where} within connect_timeout={timeouts.connect:g} s")
    if isinstance(error, requests.exceptions.InvalidProxyURL):
        return ConfigurationError(f"the proxy cannot be used: {scrub(error_text(error))}")
    if isinstance(error, _BAD_ADDRESS):
        return ConfigurationError(f"the base_url, or the proxy, cannot be used: {scrub(error_text(error))}")
    if isinstance(error, UnicodeEncodeError):
        return ConfigurationError(
            "the request cannot be sent: the base_url, the proxy's address, or what the session adds to it, "
            f"has a character that {error.encoding} does not have, at position {error.start}"
        )
    # Once there is a connection, the header that is wrong is one of the answer's.
    ours = isinstance(error, requests.exceptions.InvalidHeader) and not connected
    if ours or isinstance(error, requests.exceptions.InvalidSchema):
        return ConfigurationError(scrub(error_text(error)))
    if not connected and _is_refusal(error):
        return APIConnectionError(
            f"the TLS connection to {where} failed: {scrub(_reason(error))} (give a CA bundle with "
            "session.verify, or REQUESTS_CA_BUNDLE in the environment)",
            retryable=False,
        )
    if isinstance(error, OSError) and "invalid path" in error_text(error):
        return ConfigurationError(
            f"the CA bundle or client certificate cannot be read: {scrub(error_text(error))}"
        )
    doing = "the connection to {} broke before an answer" if connected else "cannot connect to {}"
    reason = _reason(error)
    refused = _PROXY_REFUSAL.search(reason) is not None
    return APIConnectionError(f"{doing.format(where)}: {scrub(reason)}", retryable=not refused)


def in_body(error: Exception, *, began: bool, timeouts: Timeouts, scrub: Scrubber, where: str) -> APIError:
    """Return our error for one that was raised while the body was read."""
    if _is_timeout(error):
        if began:
            return IdleTimeoutError(f"the answer of {where} fell silent for idle_timeout={timeouts.idle:g} s")
        return _no_answer(where, timeouts)
    return TruncatedStreamError(f"the connection to {where} broke inside the answer: {scrub(_reason(error))}")


def _no_answer(where: str, timeouts: Timeouts) -> ResponseTimeoutError:
    return ResponseTimeoutError(f"{where} gave no answer within response_timeout={timeouts.response:g} s")


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception with all that it wraps: as cause, as context, or as an argument."""
    found: list[BaseException] = []
    todo: list[Any] = [error]
    while todo:
        current = todo.pop()
        # The reason is an exception in urllib3's errors, a word in those of TLS.
        if not isinstance(current, BaseException) or any(current is known for known in found):
            continue
        found.append(current)
        todo += [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
    return found


def _is_refusal(error: BaseException) -> bool:
    """Tell whether TLS was refused by one side; a handshake that merely broke may work the next time."""
    broke = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    found = [item for item in _chain(error) if isinstance(item, ssl.SSLError)]
    return bool(found) and not any(isinstance(item, broke) for item in found)


def _is_timeout(error: BaseException) -> bool:
    kinds = (TimeoutError, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
    # urllib3 derives a refused connection and a host that nobody knows from its timeouts.
    failed = urllib3.exceptions.NewConnectionError
    return any(isinstance(item, kinds) and not isinstance(item, failed) for item in _chain(error))


def _reason(error: BaseException) -> str:
    """Return the innermost message: what the libraries wrap around it says less, and at length."""
    for item in reversed(_chain(error)):
        plain = isinstance(item, (OSError, http.client.HTTPException))
        if plain and not isinstance(item, requests.RequestException) and error_text(item):
            return describe_error(item)
    return describe_error(error)
