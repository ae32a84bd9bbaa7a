"""
How a parameter is written into a path, a query, a header or a cookie.

The styles are those of RFC 6570, with ``spaceDelimited``, ``pipeDelimited`` and ``deepObject``
beside them. A value that a style cannot say without doubt is refused: the server would read
something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from toolnexus.tools.http_values import (
    ArgumentError,
    check_header_value,
    encoded,
    json_text,
    path_segment,
    scalar_text,
)

__all__ = ["Parameter", "cookie_pairs", "form_pairs", "header_text", "path_text", "query_pairs"]

Location = Literal["path", "query", "header", "cookie"]

#: What ``allowReserved`` leaves as it is: only what cannot end a value or begin another.
_RESERVED = ":/?@!$'()*"
#: What a cookie's value may hold as it is.
_COOKIE = "!#$&'()*+-./:<=>?@[]^_`{|}~"

Pairs = list[tuple[str, str]]


@attrs.frozen
class Parameter:
    """
    One parameter of an operation.

    Args:
        name: Its name on the wire.
        location: Where it goes.
        style: How lists and objects are written.
        explode: Whether each of their items stands for itself.
        reserved: Whether reserved characters are left as they are.
        media_type: The type that its value is written in, in place of a style.
        argument: The name that the model uses.
    """

    name: str
    location: Location
    style: str
    explode: bool
    reserved: bool = False
    media_type: str | None = None
    argument: str = ""

    def plain(self, value: Any) -> Any:
        """Return the value to write: one text, where the parameter is of a media type."""
        if self.media_type is None:
            return value
        return json_text(value) if "json" in self.media_type else scalar_text(value)


def _items(value: Any) -> list[Any]:
    return [item for item in value if item is not None]


def _entries(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(str(key), item) for key, item in value.items() if item is not None]


def _flat(value: Mapping[str, Any]) -> list[Any]:
    return [part for entry in _entries(value) for part in entry]


def path_text(parameter: Parameter, value: Any) -> str:
    """
    Return a path parameter as it stands in the path.

    Raises:
        ArgumentError: It is missing or empty, would leave its segment, or cannot be written.
    """
    value = parameter.plain(value)
    if value is None or value == "" or (isinstance(value, list | dict) and not value):
        raise ArgumentError(f"the argument {parameter.argument!r} is needed in the path")

    def segment(item: Any) -> str:
        return path_segment(parameter.argument, item)

    if parameter.style == "matrix":
        return "".join(f";{k}={v}" for k, v in _matrix(parameter, value, segment))
    prefix, between = (".", "." if parameter.explode else ",") if parameter.style == "label" else ("", ",")
    if isinstance(value, dict) and parameter.explode:
        texts = [f"{segment(k)}={segment(v)}" for k, v in _entries(value)]
    elif isinstance(value, list | dict):
        texts = [segment(item) for item in (_flat(value) if isinstance(value, dict) else _items(value))]
    else:
        return prefix + segment(value)
    if between == "." and any("." in text for text in texts):
        raise ArgumentError(f"the argument {parameter.argument!r} is a list whose items may have no dot")
    return prefix + between.join(texts)


def _matrix(parameter: Parameter, value: Any, segment: Callable[[Any], str]) -> Pairs:
    name = encoded(parameter.name)
    if isinstance(value, dict) and parameter.explode:
        return [(segment(k), segment(v)) for k, v in _entries(value)]
    if isinstance(value, list) and parameter.explode:
        return [(name, segment(item)) for item in _items(value)]
    if isinstance(value, list | dict):
        parts = _flat(value) if isinstance(value, dict) else _items(value)
        return [(name, ",".join(segment(part) for part in parts))]
    return [(name, segment(value))]


def query_pairs(parameter: Parameter, value: Any) -> Pairs:
    """Return a query parameter as pairs of texts that are percent-encoded already."""
    return form_pairs(parameter, value, _RESERVED if parameter.reserved else "")


def form_pairs(parameter: Parameter, value: Any, safe: str = "") -> Pairs:
    """
    Return a parameter of a query, a form or a cookie as encoded pairs.

    Args:
        parameter: The parameter.
        value: Its value; null makes no pair.
        safe: Characters of values that are left as they are.
    """
    value = parameter.plain(value)
    name = encoded(parameter.name)

    def text(item: Any) -> str:
        return encoded(scalar_text(item), safe)

    if value is None:
        return []
    if parameter.style == "deepObject" and isinstance(value, dict):
        return [(encoded(path), text(item)) for path, item in _deep(parameter.name, value)]
    if isinstance(value, dict) and parameter.explode:
        return [(encoded(k), text(v)) for k, v in _entries(value)]
    if isinstance(value, list) and (parameter.explode or parameter.style == "deepObject"):
        return [(name, text(item)) for item in _items(value)]
    if isinstance(value, list | dict):
        parts = _flat(value) if isinstance(value, dict) else _items(value)
        return [(name, _delimited(parameter, [text(part) for part in parts]))] if parts else []
    return [(name, text(value))]


def _delimited(parameter: Parameter, texts: list[str]) -> str:
    delimiter = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(parameter.style, ",")
    if any(delimiter in text for text in texts):
        between = "blank" if delimiter == "%20" else "vertical bar"
        raise ArgumentError(
            f"the argument {parameter.argument!r} is a list whose items may have no {between}"
        )
    return delimiter.join(texts)


def _deep(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return what is in a nested object, each value with its path: ``filter[by][name]``."""
    if isinstance(value, dict):
        return [pair for k, v in _entries(value) for pair in _deep(f"{path}[{k}]", v)]
    if isinstance(value, list):
        return [(path, item) for item in _items(value)]
    return [(path, value)]


def cookie_pairs(parameter: Parameter, value: Any) -> Pairs:
    """Return a cookie parameter as pairs; what may not stand in a cookie is percent-encoded."""
    return form_pairs(parameter, value, _COOKIE)


def header_text(parameter: Parameter, value: Any) -> str | None:
    """
    Return a header parameter as the header's value, or None for no header.

    Raises:
        ArgumentError: It has a line break or anything beyond printable ASCII.
    """
    if value is None:
        return None
    if parameter.media_type is not None and "json" in parameter.media_type:
        text = json.dumps(value)  # in ASCII, as a header must be
    else:
        text = _header_parts(parameter, parameter.plain(value))
    return check_header_value(parameter.argument, text)


def _header_parts(parameter: Parameter, value: Any) -> str:
    if isinstance(value, dict) and parameter.explode:
        pairs = [(k, scalar_text(v)) for k, v in _entries(value)]
        _refuse(parameter, [part for pair in pairs for part in pair], ",=")
        return ",".join(f"{k}={v}" for k, v in pairs)
    if isinstance(value, list | dict):
        parts = [scalar_text(p) for p in (_flat(value) if isinstance(value, dict) else _items(value))]
        _refuse(parameter, parts, ",")
        return ",".join(parts)
    return scalar_text(value)


def _refuse(parameter: Parameter, texts: list[str], delimiters: str) -> None:
    if any(delimiter in text for text in texts for delimiter in delimiters):
        raise ArgumentError(
            f"the argument {parameter.argument!r} goes into a header: its items may have none of {delimiters}"
        )
