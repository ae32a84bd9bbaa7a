"""An HTTP endpoint as a tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool
from toolnexus.tools.http_answer import ResultMode
from toolnexus.tools.http_call import (
    MAX_BYTES,
    MAX_OUTPUT,
    SAFE_METHODS,
    HttpCall,
    check_limits,
    check_mode,
    check_url,
    exchange,
    tool_options,
)
from toolnexus.tools.http_request import Outgoing
from toolnexus.tools.http_secrets import configured_headers
from toolnexus.tools.http_values import (
    ArgumentError,
    check_path,
    encoded,
    json_bytes,
    path_segment,
    query_pairs,
    scalar_text,
    text_bytes,
    urlencoded,
)

if TYPE_CHECKING:
    import requests

__all__ = ["http_tool"]

Body = Literal["json", "form", "raw"]

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")


def http_tool(
    *,
    name: str,
    description: str,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    query: Sequence[str] | None = None,
    body: Body = "json",
    input_schema: dict[str, Any] | None = None,
    timeout: float | None = 30.0,
    result_mode: ResultMode = "text",
    max_bytes: int = MAX_BYTES,
    max_output: int | None = MAX_OUTPUT,
    approval: bool | Callable[[Mapping[str, Any]], bool] = False,
    session: requests.Session | None = None,
) -> Tool:
    """
    Make a tool of an HTTP endpoint.

    A placeholder ``{name}`` in the path or query of the URL is filled in from the argument of that
    name, percent-encoded. The other arguments become the query with GET, HEAD and OPTIONS, and the
    body with POST, PUT, PATCH and DELETE, except those that ``query`` names.

    ``${VARIABLE}`` in a header is filled in from the environment. The variable must be set when the
    tool is made, and is read again at each call, so that a renewed token is used; when it is gone by
    then, the model is told so and nothing is sent. Its value is blotted out of everything that the
    tool returns.

    Args:
        name: The name the model uses.
        description: What it does, for the model.
        method: The HTTP method.
        url: Where it is; without a password in it, and without a placeholder in its host.
        headers: Headers of every request.
        query: Names of the arguments that go into the query.
        body: How the body is sent: "json", "form", or "raw" for the argument ``body`` as it is.
        input_schema: The JSON schema of the arguments; made from the above by default.
        timeout: Seconds for the whole call, or None.
        result_mode: "text" for the body as it came, "json" for compact JSON, "status+text" for both.
        max_bytes: How much of the decoded body is read; a longer text is cut, and the cut says so.
        max_output: The longest output in characters that goes to the model, cut in the middle; or None.
        approval: Whether a person must approve a call first; see `Tool`.
        session: A `requests.Session` of your own, with its proxies, certificates and cookies. By
            default each tool has one that keeps nothing between calls but open connections.

    Returns:
        The tool.

    Raises:
        ConfigurationError: An option is wrong, or a variable that a header names is not set.

    >>> weather = http_tool(
    ...     name="weather",
    ...     description="The weather in a city.",
    ...     method="GET",
    ...     url="https://example.com/weather/{city}",
    ...     query=["days"],
    ... )
    >>> weather.input_schema["required"]
    ['city']
    """
    method = _check_method(method)
    _check_url(url)
    check_mode(result_mode)
    limits = check_limits(timeout, max_bytes)
    if body not in ("json", "form", "raw"):
        raise ConfigurationError(f"body must be 'json', 'form' or 'raw', not {body!r}")
    if isinstance(query, str):
        raise ConfigurationError("query must be a list of argument names, not a string")
    endpoint = _Endpoint(method, url, tuple(query or ()), body)
    call = HttpCall(endpoint, tuple(configured_headers(headers)), exchange(session, limits), result_mode)
    return Tool(
        name,
        description,
        input_schema if input_schema is not None else endpoint.schema(),
        call,
        max_output=max_output,
        approval=approval,
        metadata={"method": method, "url": url},
        **tool_options(method, limits),
    )


def _check_method(method: Any) -> str:
    upper = method.upper() if isinstance(method, str) else ""
    if upper not in _METHODS:
        raise ConfigurationError(f"method must be one of {', '.join(_METHODS)}, not {method!r}")
    return upper


def _check_url(url: str) -> None:
    if "${" in url:
        raise ConfigurationError("url: ${VARIABLE} is for headers only")
    if _PLACEHOLDER.search(check_url(url).netloc):
        raise ConfigurationError("url: a placeholder in the host would let the model choose the server")
    try:
        check_path(_PLACEHOLDER.sub("x", urlsplit(url).path))
    except ArgumentError as error:
        raise ConfigurationError("url: '.' and '..' segments are refused") from error


@attrs.frozen
class _Endpoint:
    """Makes the request of a tool from the model's arguments."""

    method: str
    url: str
    query: tuple[str, ...]
    body: Body

    def __call__(self, args: Mapping[str, Any]) -> Outgoing:
        rest = dict(args)
        url = self._filled(rest)
        if self.method in SAFE_METHODS:
            return Outgoing(self.method, _with_query(url, rest))
        in_query = {name: rest.pop(name) for name in self.query if name in rest}
        if self.body == "raw":
            content = rest.pop("body", None)
            in_query |= rest
            media_type, data = _raw(content)
        else:
            media_type, data = _encoded_body(self.body, rest)
        headers = {"Content-Type": media_type} if data is not None else {}
        return Outgoing(self.method, _with_query(url, in_query), headers, data)

    def _filled(self, rest: dict[str, Any]) -> str:
        """Return the URL with its placeholders filled in; their arguments are taken away."""
        before, mark, query = self.url.partition("#")[0].partition("?")
        given = {name: rest.pop(name, None) for name in _names(self.url)}
        path = _PLACEHOLDER.sub(lambda m: path_segment(m[1], given[m[1]]), before)
        check_path(urlsplit(path).path)
        return path + mark + _PLACEHOLDER.sub(lambda m: _query_value(m[1], given[m[1]]), query)

    def schema(self) -> dict[str, Any]:
        """Return the schema that the URL, the query and the body suggest."""
        required = _names(self.url)
        names = dict.fromkeys([*required, *self.query])
        properties: dict[str, Any] = {name: {"type": "string"} for name in names}
        has_body = self.method not in SAFE_METHODS
        if has_body and self.body == "raw":
            properties.setdefault("body", {"type": "string", "description": "The body of the request."})
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": has_body and self.body != "raw",
        }


def _names(url: str) -> list[str]:
    return list(dict.fromkeys(_PLACEHOLDER.findall(url)))


def _query_value(name: str, value: Any) -> str:
    if value is None:
        raise ArgumentError(f"the argument {name!r} is needed in the query and is missing")
    return encoded(scalar_text(value))


def _with_query(url: str, args: Mapping[str, Any]) -> str:
    pairs = urlencoded(query_pairs(args))
    if not pairs:
        return url
    return url + ("&" if "?" in url else "?") + pairs


def _raw(content: Any) -> tuple[str, bytes | None]:
    if content is None or isinstance(content, str):
        return "text/plain; charset=utf-8", None if content is None else text_bytes(content)
    return "application/json", json_bytes(content)


def _encoded_body(body: Body, args: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """Return the arguments as a body; no arguments make none."""
    if body == "form":
        return "application/x-www-form-urlencoded", urlencoded(query_pairs(args)).encode() if args else None
    return "application/json", json_bytes(dict(args)) if args else None
