"""From an operation of a document to a tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool
from toolnexus.tools.http_answer import ResultMode
from toolnexus.tools.http_call import MAX_BYTES, MAX_OUTPUT, HttpCall, check_limits, check_mode, tool_options
from toolnexus.tools.http_request import Exchange, Outgoing, Sessions
from toolnexus.tools.http_secrets import Credential, configured_headers
from toolnexus.tools.http_values import check_path
from toolnexus.tools.openapi.arguments import Arguments, arguments_of
from toolnexus.tools.openapi.load import Source, load
from toolnexus.tools.openapi.operations import Operation, Place, Selection, operations_of, selected, server_of
from toolnexus.tools.openapi.references import Document, Node, Retrieve
from toolnexus.tools.openapi.security import Auth, Guard
from toolnexus.tools.openapi.styles import Parameter, cookie_pairs, header_text, path_text, query_pairs

if TYPE_CHECKING:
    import requests

__all__ = ["openapi_tools"]

#: The longest description that every provider takes.
_DESCRIPTION = 1024
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def openapi_tools(
    document: Source,
    *,
    base_url: str | None = None,
    operations: Selection = None,
    headers: Mapping[str, str] | None = None,
    auth: Auth = None,
    timeout: float | None = 30.0,
    result_mode: ResultMode = "text",
    max_bytes: int = MAX_BYTES,
    max_output: int | None = MAX_OUTPUT,
    server_variables: Mapping[str, str] | None = None,
    retrieve: Retrieve | None = None,
    session: requests.Session | None = None,
) -> list[Tool]:
    """
    Make tools of the operations of an OpenAPI document, 3.0 or 3.1, in JSON or YAML.

    A tool is named after its ``operationId``, else after its method and path. Its arguments are the
    operation's parameters, and ``body`` for the request body; where a name occurs in two places,
    the place is put before it: ``path_id``, ``query_id``.

    Each security scheme takes its value from ``auth``, else from the environment variable
    ``TOOLNEXUS_AUTH_`` and its name in capitals (``bearerAuth``: ``TOOLNEXUS_AUTH_BEARER_AUTH``):
    a token, a key, or ``user:password`` for basic authentication. As with `http_tool`, the values
    are read anew at each call and never shown.

    Args:
        document: A path, an ``http(s)`` URL, or the document as a dict.
        base_url: Where the paths begin, in place of the servers that the document names.
        operations: Which operations: a list of ids, tool names, tags or ``"GET /path"``, or a
            function of an `Operation`. All by default.
        headers: Headers of every request; a value may hold ``${VARIABLE}``.
        auth: Values by security scheme, which may hold ``${VARIABLE}``; False to send none.
        timeout: Seconds for each call, and for fetching the document; None for no limit.
        result_mode: As for `http_tool`.
        max_bytes: As for `http_tool`.
        max_output: As for `http_tool`.
        server_variables: Values for the variables of the document's server, in place of defaults.
        retrieve: A function that gets the document at a URI, for references that leave this one.
            Without it they are refused: nothing else is fetched or read.
        session: A `requests.Session` of your own for all of them.

    Returns:
        The tools, in the document's order.

    Raises:
        ConfigurationError: The document cannot be read, is not OpenAPI 3, or refers to what is not
            there; an option is wrong; a credential is missing.
        MissingExtraError: PyYAML or ``referencing`` is needed and not installed.

    >>> [pet] = openapi_tools(
    ...     {
    ...         "openapi": "3.1.0",
    ...         "paths": {
    ...             "/pets/{id}": {
    ...                 "get": {
    ...                     "parameters": [
    ...                         {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}
    ...                     ]
    ...                 }
    ...             }
    ...         },
    ...     },
    ...     base_url="https://example.com",
    ... )
    >>> pet.name, pet.input_schema["properties"]
    ('get_pets_id', {'id': {'type': 'integer'}})
    """
    check_mode(result_mode)
    limits = check_limits(timeout, max_bytes)
    sessions = Sessions(session)
    loaded, uri = load(document, timeout, sessions)
    configured = configured_headers(headers)
    source = Document(loaded, uri, retrieve)
    guard = Guard(
        source.root.get("components").get("securitySchemes"),
        auth,
        frozenset(c.name.lower() for c in configured),
    )
    guard.check()
    maker = _Maker(
        source,
        guard,
        configured,
        Exchange(sessions, limits),
        result_mode,
        max_output,
        base_url,
        server_variables or {},
    )
    tools = [maker.tool(place) for place in selected(operations_of(source), operations)]
    guard.refuse_missing()
    return tools


@attrs.frozen
class _Maker:
    """Makes the tools of one document."""

    document: Document
    guard: Guard
    configured: list[Credential]
    exchange: Exchange
    mode: ResultMode
    max_output: int | None
    base_url: str | None
    variables: Mapping[str, str]

    def tool(self, place: Place) -> Tool:
        """
        Make the tool of an operation.

        Raises:
            ConfigurationError: The operation cannot be understood; the message names it.
        """
        try:
            return self._tool(place)
        except RecursionError as error:
            raise ConfigurationError(f"{_where(place.operation)}: it is nested too deeply") from error
        except ConfigurationError as error:
            if type(error) is not ConfigurationError:
                raise
            raise ConfigurationError(f"{_where(place.operation)}: {error.message}") from error

    def _tool(self, place: Place) -> Tool:
        operation = place.operation
        security = place.node.value.get("security", self.document.root.value.get("security"))
        credentials = (*self.configured, *self.guard.credentials(security))
        old = str(self.document.root.value.get("openapi")).startswith("3.0")
        arguments = arguments_of(place, old, {(c.place, c.name.lower()) for c in credentials})
        server = server_of(place, self.document, self.base_url, self.variables)
        build = _Request(operation.method, server, operation.path, arguments, _accepted(place.node))
        return Tool(
            operation.name,
            _description(operation),
            arguments.schema,
            HttpCall(build, credentials, self.exchange, self.mode),
            max_output=self.max_output,
            metadata={"operation": operation},
            **tool_options(operation.method, self.exchange.limits),
        )


def _where(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def _description(operation: Operation) -> str:
    parts = [operation.summary.strip(), operation.description.strip()]
    if parts[0] and parts[1].startswith(parts[0]):
        parts = parts[1:]
    if operation.deprecated:
        parts.insert(0, "Deprecated.")
    text = "\n\n".join(part for part in parts if part) or _where(operation)
    return text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 4].rstrip() + " ..."


def _accepted(node: Node) -> str:
    """Return the Accept header: the types that the operation's good answers have, JSON first."""
    types = [
        name
        for status, answer in node.get("responses").members()
        if status[:1] == "2" or status == "default"
        for name, _ in answer.get("content").members()
    ]
    fit = [t for t in dict.fromkeys(types) if re.fullmatch(r"[\w.+*-]+/[\w.+*-]+", t, re.ASCII)]
    return ", ".join([*sorted(fit, key=lambda t: "json" not in t), "*/*;q=0.1" if fit else "*/*"])


@attrs.frozen
class _Request:
    """Makes the request of an operation from the model's arguments."""

    method: str
    server: str
    path: str
    arguments: Arguments
    accept: str

    def __call__(self, args: Mapping[str, Any]) -> Outgoing:
        query: list[tuple[str, str]] = []
        cookies: list[tuple[str, str]] = []
        headers: dict[str, str] = {"Accept": self.accept}
        for parameter in self.arguments.parameters:
            value = args.get(parameter.argument)
            if parameter.location == "query":
                query += query_pairs(parameter, value)
            elif parameter.location == "cookie":
                cookies += cookie_pairs(parameter, value)
            elif parameter.location == "header" and (text := header_text(parameter, value)) is not None:
                headers[parameter.name] = text
        if cookies:
            headers["Cookie"] = "; ".join(f"{k}={v}" for k, v in cookies)
        content = self._body(args)
        if content is not None:
            headers["Content-Type"] = content[0]
        return Outgoing(self.method, self._url(args, query), headers, content[1] if content else None)

    def _body(self, args: Mapping[str, Any]) -> tuple[str, bytes] | None:
        body = self.arguments.body
        if body is None or self.arguments.body_argument not in args:
            return None
        return body.written(args[self.arguments.body_argument])

    def _url(self, args: Mapping[str, Any], query: list[tuple[str, str]]) -> str:
        in_path: dict[str, Parameter] = {p.name: p for p in self.arguments.parameters if p.location == "path"}

        def fill(match: re.Match[str]) -> str:
            parameter = in_path[match[1]]
            return path_text(parameter, args.get(parameter.argument))

        url = self.server + "/" + _PLACEHOLDER.sub(fill, self.path).lstrip("/")
        check_path(urlsplit(url).path)
        pairs = "&".join(f"{k}={v}" for k, v in query)
        return url + (("&" if "?" in url else "?") + pairs if pairs else "")
