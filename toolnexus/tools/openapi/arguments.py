"""The arguments of an operation's tool: their names, their schema, and where each goes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.openapi.bodies import FILE_NOTE, Body, body_of
from toolnexus.tools.openapi.operations import Place
from toolnexus.tools.openapi.references import Node
from toolnexus.tools.openapi.schemas import Schemas, numbered
from toolnexus.tools.openapi.styles import Location, Parameter

__all__ = ["Arguments", "arguments_of"]

_STYLES: dict[str, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
#: Headers that the specification, or HTTP itself, does not leave to a parameter.
_NOT_PARAMETERS = frozenset(
    [
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


@attrs.frozen
class Arguments:
    """
    What a tool's arguments are.

    Args:
        parameters: The parameters, each with the name that the model uses.
        body: The body, or None.
        body_argument: The name of the body's argument.
        schema: The schema of all of them.
    """

    parameters: tuple[Parameter, ...]
    body: Body | None
    body_argument: str
    schema: dict[str, Any] = attrs.field(repr=False)


@attrs.frozen
class _Declared:
    """A parameter as the document has it."""

    name: str
    location: Location
    node: Node


def arguments_of(place: Place, old: bool, hidden: set[tuple[str, str]]) -> Arguments:
    """
    Return the arguments of an operation.

    Args:
        place: The operation.
        old: Whether the document is OpenAPI 3.0.
        hidden: Places and lower-case names that are filled in without the model.

    Raises:
        ConfigurationError: A parameter or schema cannot be understood.
    """
    declared = [d for d in _declared(place) if (d.location, d.name.lower()) not in hidden]
    body = body_of(place.node) if place.operation.method not in ("GET", "HEAD") else None
    names, body_name = _names(declared)
    schemas = Schemas(old)
    properties: dict[str, Any] = {}
    required, parameters = [], []
    for name, item in zip(names, declared, strict=True):
        parameter = attrs.evolve(_parameter(item), argument=name)
        parameters.append(parameter)
        properties[name] = _schema(item.node, schemas)
        if item.location == "path" or _flag(item.node, "required"):
            required.append(name)
    if body is not None:
        properties[body_name] = _body_schema(body, place.node.get("requestBody"), schemas)
        required += [body_name] if body.required else []
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Arguments(tuple(parameters), body, body_name, schemas.finished(schema))


def _declared(place: Place) -> list[_Declared]:
    """Return the parameters of an operation: its own before those of its path item."""
    found: dict[tuple[str, str], _Declared] = {}
    for owner in (place.item, place.node):
        for node in owner.get("parameters").items():
            name, location = node.text("name"), node.text("in")
            if location not in _STYLES or not name:
                raise ConfigurationError(f"a parameter has no name, or is in {location!r}")
            if location == "header" and (name.lower() in _NOT_PARAMETERS or not _TOKEN.fullmatch(name)):
                continue
            found[location, name] = _Declared(name, cast(Location, location), node)
    placed = list(dict.fromkeys(_PLACEHOLDER.findall(place.operation.path)))
    for name in placed:  # a document may forget to declare what its path has
        nothing = place.node.child({"schema": {"type": "string"}})
        found.setdefault(("path", name), _Declared(name, "path", nothing))
    return [d for (location, name), d in found.items() if location != "path" or name in placed]


def _names(declared: list[_Declared]) -> tuple[list[str], str]:
    """Return the name of each parameter's argument, and that of the body: valid, and no two alike."""
    plain = Counter(_valid(d.name) for d in declared)
    taken: set[str] = set()
    names = []
    for item in declared:
        name = _valid(item.name)
        names.append(_free(name if plain[name] == 1 else _valid(f"{item.location}_{item.name}"), taken))
    return names, _free("body", taken)


def _valid(name: str) -> str:
    """Return a name of the characters that every provider takes."""
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_.-]", "_", name)).strip("_")[:60] or "value"


def _free(name: str, taken: set[str]) -> str:
    candidate = next(n for n in numbered(name) if n not in taken)
    taken.add(candidate)
    return candidate


def _flag(node: Node, key: str) -> bool:
    return isinstance(node.value, Mapping) and node.value.get(key) is True


def _content(node: Node) -> tuple[str, Node] | None:
    """Return the media type of a parameter that has one in place of a style."""
    return next(node.get("content").members(), None)


def _parameter(item: _Declared) -> Parameter:
    styles = _STYLES[item.location]
    style = item.node.text("style") or styles[0]
    if style not in styles:
        raise ConfigurationError(f"the parameter {item.name!r} has the style {style!r}, not one of {styles}")
    explode = item.node.value.get("explode") if isinstance(item.node.value, Mapping) else None
    content = _content(item.node)
    return Parameter(
        item.name,
        item.location,
        style,
        explode if isinstance(explode, bool) else style == "form",
        _flag(item.node, "allowReserved"),
        content[0] if content else None,
    )


def _schema(node: Node, schemas: Schemas) -> Any:
    """Return a parameter's schema, with what the parameter itself says about it."""
    content = _content(node)
    owner = content[1] if content else node
    schema = schemas.convert(
        owner.child(owner.value.get("schema") if isinstance(owner.value, Mapping) else None)
    )
    return _noted(schema, node)


def _noted(schema: Any, node: Node) -> Any:
    if not isinstance(schema, dict):
        return schema
    notes: dict[str, Any] = {}
    if node.text("description"):
        notes["description"] = node.text("description")
    if _flag(node, "deprecated"):
        notes["deprecated"] = True
    return {**schema, **notes}


def _body_schema(body: Body, request: Node, schemas: Schemas) -> Any:
    schema = schemas.convert(body.schema)
    if body.kind == "bytes":
        return _noted({"type": "string", "description": FILE_NOTE}, request)
    if body.kind == "text" and not (isinstance(schema, dict) and schema.get("type") == "string"):
        return _noted({"type": "string"}, request)
    return _noted(schema, request)
