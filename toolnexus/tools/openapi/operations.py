"""The operations of a document: which there are, what they are called, and how they are chosen."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.http_call import check_url
from toolnexus.tools.openapi.references import Document, Node

__all__ = ["Operation", "Place", "Selection", "operations_of", "selected", "server_of", "tool_name"]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_NAME_LENGTH = 64
_VARIABLE = re.compile(r"\{([^{}]+)\}")


@attrs.frozen
class Operation:
    """
    An operation of a document, for choosing.

    Args:
        id: Its ``operationId``, or an empty text.
        name: The name of its tool.
        method: The HTTP method in capitals.
        path: The path as the document has it.
        tags: Its tags.
        summary: Its summary.
        description: Its description.
        deprecated: Whether the document says that it is deprecated.
    """

    id: str
    name: str
    method: str
    path: str
    tags: tuple[str, ...] = ()
    summary: str = ""
    description: str = ""
    deprecated: bool = False


#: Which operations are wanted: names, ids, tags or "GET /path"; or a function that says so.
Selection = Iterable[str] | Callable[[Operation], bool] | None


@attrs.frozen
class Place:
    """
    Where an operation stands.

    Args:
        operation: What it is.
        item: Its path item.
        node: The operation itself.
    """

    operation: Operation
    item: Node = attrs.field(repr=False)
    node: Node = attrs.field(repr=False)


def operations_of(document: Document) -> list[Place]:
    """
    Return all operations, with names that are valid for every provider and no two alike.

    Raises:
        ConfigurationError: A reference leads nowhere.
    """
    places, taken = [], set[str]()
    for path, item in document.root.get("paths").members():
        for method in _METHODS:
            node = item.get(method)
            if isinstance(node.value, Mapping):
                name = tool_name(node.text("operationId") or f"{method}_{path}", taken)
                places.append(Place(_operation(node, name, method.upper(), path), item, node))
    return places


def _operation(node: Node, name: str, method: str, path: str) -> Operation:
    tags = node.value.get("tags")
    return Operation(
        node.text("operationId"),
        name,
        method,
        path,
        tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        node.text("summary"),
        node.text("description"),
        node.value.get("deprecated") is True,
    )


def tool_name(text: str, taken: set[str]) -> str:
    """
    Return a name of at most 64 letters, digits, ``_`` and ``-`` that is not taken, and take it.

    >>> taken = set()
    >>> tool_name("get_/users/{id}", taken), tool_name("get users id", taken)
    ('get_users_id', 'get_users_id_2')
    """
    stem = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_-]", "_", text)).strip("_") or "operation"
    if len(stem) > _NAME_LENGTH:
        # The digest keeps long names apart that differ only in what is cut off.
        stem = f"{stem[: _NAME_LENGTH - 9]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    name, number = stem, 1
    while name.lower() in taken:
        number += 1
        name = f"{stem[: _NAME_LENGTH - 1 - len(str(number))]}_{number}"
    taken.add(name.lower())
    return name


def selected(places: list[Place], selection: Selection) -> list[Place]:
    """
    Return the operations that are wanted, in the document's order.

    Raises:
        ConfigurationError: A text of the selection fits no operation.
    """
    if selection is None:
        return places
    if isinstance(selection, str):
        raise ConfigurationError("operations must be a list of texts or a function, not a string")
    if callable(selection):
        return [place for place in places if selection(place.operation)]
    wanted = list(selection)
    known = {word for place in places for word in _words(place.operation)}
    for word in wanted:
        if word not in known:
            near = difflib.get_close_matches(str(word), known, 3)
            hint = f"; near it are {', '.join(map(repr, near))}" if near else ""
            raise ConfigurationError(f"operations: no operation, tag or path is called {word!r}{hint}")
    return [place for place in places if any(word in wanted for word in _words(place.operation))]


def _words(operation: Operation) -> Iterator[str]:
    yield operation.name
    yield f"{operation.method} {operation.path}"
    yield from operation.tags
    if operation.id:
        yield operation.id


def server_of(place: Place, document: Document, base_url: str | None, variables: Mapping[str, str]) -> str:
    """
    Return the URL that an operation's path is appended to.

    Args:
        place: The operation.
        document: The document.
        base_url: The URL to use in place of what the document says.
        variables: Values of server variables, in place of their defaults.

    Raises:
        ConfigurationError: The document names no server that can be reached.
    """
    if base_url is not None:
        check_url(base_url)
        return base_url.rstrip("/")
    for node in (place.node, place.item, document.root):
        server = next(node.get("servers").items(), None)
        if server is not None:
            break
    url = _filled(server, variables) if server is not None else "/"
    if document.uri.startswith(("http://", "https://")):
        url = urljoin(document.uri, url)
    try:
        check_url(url)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the document's server {url!r} cannot be used ({error}); give base_url="
        ) from error
    return url.partition("?")[0].rstrip("/")


def _filled(server: Node, variables: Mapping[str, str]) -> str:
    """Return a server's URL with its variables filled in."""
    declared = dict(server.get("variables").members())

    def fill(match: re.Match[str]) -> str:
        node = declared.get(match[1])
        allowed: Any = (
            node.value.get("enum") if node is not None and isinstance(node.value, Mapping) else None
        )
        value = variables.get(match[1], str(node.value.get("default", "")) if node is not None else "")
        if not value or (isinstance(allowed, list) and allowed and value not in map(str, allowed)):
            raise ConfigurationError(
                f"the server variable {match[1]!r} needs a value, one of {allowed or 'any'}"
            )
        return value

    return _VARIABLE.sub(fill, server.text("url"))
