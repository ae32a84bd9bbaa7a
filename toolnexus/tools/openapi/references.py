"""References within a document, by the ``referencing`` library; nothing else is fetched or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

import attrs

from toolnexus._extras import need
from toolnexus.errors import ConfigurationError

__all__ = ["Document", "Node", "Retrieve"]

#: Gets the document at a URI, for references that leave the main document.
Retrieve = Callable[[str], Mapping[str, Any]]

_MAX_HOPS = 32


class Document:
    """
    A document whose references can be followed.

    Args:
        contents: The document.
        uri: Where it is from, for relative references.
        retrieve: Gets other documents; None refuses every reference that leaves this one.
    """

    def __init__(self, contents: Mapping[str, Any], uri: str = "", retrieve: Retrieve | None = None) -> None:
        self.uri = uri
        self._retrieve = retrieve
        self._others: dict[str, Any] = {}
        self._found: dict[str, Node] = {}
        self.root = Node(contents, uri, self)
        self._resolver: Any = None

    def lookup(self, uri: str) -> Node:
        """
        Return what an absolute reference points to.

        Raises:
            ConfigurationError: There is nothing, or it may not be fetched.
            MissingExtraError: The ``referencing`` package is not installed.
        """
        if uri not in self._found:
            self._found[uri] = Node(self._resolved(uri), uri.partition("#")[0], self)
        return self._found[uri]

    def _resolved(self, uri: str) -> Any:
        if self._retrieve is None and uri.partition("#")[0] != self.uri:
            raise ConfigurationError(
                f"the reference {uri!r} leaves the document, which is refused unless retrieve= is given"
            )
        exceptions = need("referencing.exceptions", "openapi")
        if self._resolver is None:
            self._resolver = self._new_resolver()
        try:
            return self._resolver.lookup(uri).contents
        except (exceptions.Unresolvable, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(f"the reference {uri!r} leads nowhere") from error

    def _new_resolver(self) -> Any:
        referencing = need("referencing", "openapi")
        main = referencing.Specification.OPAQUE.create_resource(self.root.value)
        registry = referencing.Registry(retrieve=self._other)
        return registry.with_resource(self.uri, main).resolver()

    def _other(self, uri: str) -> Any:
        if uri not in self._others and self._retrieve is not None:
            specification = need("referencing", "openapi").Specification.OPAQUE
            self._others[uri] = specification.create_resource(self._retrieve(uri))
        return self._others[uri]


@attrs.frozen(eq=False)
class Node:
    """
    A place in a document.

    Args:
        value: What is there.
        base: The URI that references in it are relative to.
        document: The document.
    """

    value: Any
    base: str
    document: Document = attrs.field(repr=False)

    @property
    def reference(self) -> str | None:
        """The absolute reference that stands here in place of a value."""
        target = self.value.get("$ref") if isinstance(self.value, Mapping) else None
        return urljoin(self.base, target) if isinstance(target, str) else None

    def resolved(self) -> Node:
        """
        Return the place that this one refers to, itself if it is no reference.

        Raises:
            ConfigurationError: The reference leads nowhere or in a circle.
        """
        node = self
        for _ in range(_MAX_HOPS):
            if node.reference is None:
                return node
            node = self.document.lookup(node.reference)
        raise ConfigurationError(f"the reference {self.reference!r} leads in a circle")

    def child(self, value: Any) -> Node:
        """Return a place for a value found within this one."""
        return Node(value, self.base, self.document)

    def get(self, key: str) -> Node:
        """Return the resolved member of that name, a place with None where there is none."""
        value = self.value.get(key) if isinstance(self.value, Mapping) else None
        return self.child(value).resolved()

    def text(self, key: str) -> str:
        """Return the member of that name if it is a text, else an empty one."""
        value = self.value.get(key) if isinstance(self.value, Mapping) else None
        return value if isinstance(value, str) else ""

    def members(self) -> Iterator[tuple[str, Node]]:
        """Yield the resolved members of a mapping, extensions apart; of anything else, none."""
        if isinstance(self.value, Mapping):
            for key, value in self.value.items():
                if isinstance(key, str) and not key.startswith("x-"):
                    yield key, self.child(value).resolved()

    def items(self) -> Iterator[Node]:
        """Yield the resolved items of a list; of anything else, none."""
        if isinstance(self.value, list):
            for value in self.value:
                yield self.child(value).resolved()
