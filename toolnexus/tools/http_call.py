"""What HTTP and OpenAPI tools have in common: from arguments to a request to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Context, ToolResult
from toolnexus.tools.http_answer import ResultMode, to_result
from toolnexus.tools.http_request import Exchange, Limits, Outgoing, Sessions
from toolnexus.tools.http_secrets import Credential, Redactor
from toolnexus.tools.http_values import ArgumentError

__all__ = [
    "MAX_BYTES",
    "MAX_OUTPUT",
    "SAFE_METHODS",
    "HttpCall",
    "check_limits",
    "check_mode",
    "check_url",
    "exchange",
    "merged_headers",
    "tool_options",
]

#: 4 MiB: room for a photo.
MAX_BYTES = 4 << 20

#: Characters: what a model can read at once, several times over.
MAX_OUTPUT = 100_000

#: Methods that change nothing, so that a call may be repeated.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_REPEATABLE = (*SAFE_METHODS, "PUT", "DELETE")


@attrs.frozen
class HttpCall:
    """
    Executes one tool.

    Args:
        build: Makes the request from the model's arguments, without any credential.
        credentials: What goes out with every request, configured headers included.
        exchange: Sends it.
        mode: How a good answer is shown.
    """

    build: Callable[[Mapping[str, Any]], Outgoing]
    credentials: tuple[Credential, ...]
    exchange: Exchange
    mode: ResultMode

    def __call__(self, args: dict[str, Any], ctx: Context) -> ToolResult:
        """Send the request that the arguments make, and return the answer."""
        try:
            outgoing = _with(self.build(args), self.credentials)
            secrets = [s for c in self.credentials for s in c.template.secrets()]
        except (ArgumentError, ConfigurationError) as error:
            return ToolResult.error(str(error))
        redactor = Redactor(secrets)
        answer = self.exchange.send(outgoing, ctx.scope, redactor)
        return to_result(answer, self.mode, redactor, outgoing.method)


def _with(outgoing: Outgoing, credentials: Iterable[Credential]) -> Outgoing:
    """Return the request with the credentials in their places."""
    headers, url = dict(outgoing.headers), outgoing.url
    for credential in credentials:
        value = credential.value()
        if credential.place == "query":
            pair = f"{quote(credential.name, safe='')}={quote(value, safe='')}"
            url += ("&" if "?" in url else "?") + pair
        elif credential.place == "cookie":
            before = f"{headers['Cookie']}; " if headers.get("Cookie") else ""
            headers["Cookie"] = f"{before}{credential.name}={value}"
        else:
            headers = merged_headers(headers, {credential.name: value})
    return attrs.evolve(outgoing, headers=headers, url=url)


def merged_headers(headers: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """
    Return both sets of headers, the second one winning whatever the case of its names.

    >>> merged_headers({"Accept": "*/*", "X": "1"}, {"accept": "text/plain"})
    {'X': '1', 'accept': 'text/plain'}
    """
    names = {name.lower() for name in over}
    return {**{k: v for k, v in headers.items() if k.lower() not in names}, **over}


def check_limits(timeout: Any, max_bytes: Any) -> Limits:
    """
    Check the options that limit a call.

    Raises:
        ConfigurationError: One of them is not a positive number.
    """
    if timeout is not None and not _positive(timeout, int | float):
        raise ConfigurationError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
    if not _positive(max_bytes, int):
        raise ConfigurationError(f"max_bytes must be a positive number of bytes, not {max_bytes!r}")
    return Limits(timeout, max_bytes)


def _positive(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and value > 0


def check_mode(mode: str) -> None:
    """
    Check ``result_mode``.

    Raises:
        ConfigurationError: It is none of the three.
    """
    if mode not in ("text", "json", "status+text"):
        raise ConfigurationError(f"result_mode must be 'text', 'json' or 'status+text', not {mode!r}")


def check_url(url: str) -> SplitResult:
    """
    Check a URL that somebody configured.

    Returns:
        Its parts.

    Raises:
        ConfigurationError: It is not for HTTP, has no host, or holds a password.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"url: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError("url must begin with http:// or https:// and have a host")
    if "@" in parts.netloc:
        raise ConfigurationError("url: put the password into a header, not into the URL")
    return parts


def tool_options(method: str, limits: Limits) -> dict[str, Any]:
    """Return the options of a `Tool` that follow from the method and the limits."""
    return {
        "source": "http",
        # The exchange keeps the time itself and says more; this is for what Python cannot interrupt.
        "timeout": None if limits.timeout is None else limits.timeout + 1.0,
        "idempotent": method in _REPEATABLE,
        "on_interrupted": "retry" if method in SAFE_METHODS else "ask",
    }


def exchange(session: Any, limits: Limits) -> Exchange:
    """Return what sends requests: over the caller's session, or over one of its own."""
    return Exchange(Sessions(session), limits)
