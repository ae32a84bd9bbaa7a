"""How the body of a request is written: JSON, forms, text and bytes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from toolnexus.tools.http_values import ArgumentError, json_bytes, scalar_text, text_bytes
from toolnexus.tools.openapi.references import Node
from toolnexus.tools.openapi.styles import Parameter, form_pairs

__all__ = ["Body", "body_of"]

Kind = Literal["json", "form", "multipart", "text", "bytes"]

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w.+-]+=[\w.+-]+)*(;base64)?,", re.ASCII)
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+*-]+(\s*;\s*[\w.+-]+=[\w.+\"-]+)*", re.ASCII)

#: What is told to the model about an argument that is a file.
FILE_NOTE = "A text, or a data: URL (data:image/png;base64,...) for a file that is not text."


@attrs.frozen
class Body:
    """
    The body of an operation.

    Args:
        media_type: Its content type.
        kind: How it is written.
        required: Whether it must be there.
        schema: Where its schema is.
        encodings: For a form, how those of its properties are written that say so.
        files: For a multipart form, the properties that are files.
    """

    media_type: str
    kind: Kind
    required: bool
    schema: Node
    encodings: Mapping[str, Node] = attrs.field(factory=dict)
    files: frozenset[str] = frozenset()

    def written(self, value: Any) -> tuple[str, bytes]:
        """
        Return the content type and the bytes.

        Raises:
            ArgumentError: The value cannot be written this way.
        """
        if self.kind == "json":
            return self.media_type, json_bytes(value)
        if self.kind == "text":
            return self.media_type, text_bytes(scalar_text(value))
        if self.kind == "bytes":
            media_type, data = file_bytes(value)
            return (media_type if media_type and "*" in self.media_type else self.media_type), data
        if not isinstance(value, dict):
            raise ArgumentError("the argument 'body' is a form and must be an object")
        return self._multipart(value) if self.kind == "multipart" else (self.media_type, self._form(value))

    def _form(self, value: Mapping[str, Any]) -> bytes:
        pairs = [
            pair for name, item in value.items() for pair in form_pairs(self._parameter(name, item), item)
        ]
        return "&".join(f"{k}={v}" for k, v in pairs).encode("ascii")

    def _parameter(self, name: str, value: Any) -> Parameter:
        """Return how a property of a form is written: as it says, else objects are JSON."""
        encoding = self.encodings.get(name)
        said = encoding.value if encoding is not None and isinstance(encoding.value, Mapping) else {}
        if said.keys() & {"style", "explode", "allowReserved"}:
            style = said.get("style", "form")
            return Parameter(name, "query", style, bool(said.get("explode", style == "form")), argument=name)
        media_type = "application/json" if isinstance(value, dict) else None
        return Parameter(name, "query", "form", True, media_type=media_type, argument=name)

    def _multipart(self, value: Mapping[str, Any]) -> tuple[str, bytes]:
        from urllib3.filepost import encode_multipart_formdata

        fields = [
            self._field(name, item)
            for name, items in value.items()
            for item in (items if isinstance(items, list) else [items])
            if item is not None
        ]
        body, content_type = encode_multipart_formdata(fields)
        return content_type, body

    def _field(self, name: str, item: Any) -> Any:
        from urllib3.fields import RequestField

        encoding = self.encodings.get(name)
        said = encoding.text("contentType").split(",")[0] if encoding is not None else ""
        media_type: str | None = said if _MEDIA_TYPE.fullmatch(said) and "*" not in said else None
        filename = None
        if name in self.files:
            given, data = file_bytes(item)
            media_type, filename = media_type or given or "application/octet-stream", name
        elif isinstance(item, dict | list):
            media_type, data = media_type or "application/json", json_bytes(item)
        else:
            data = text_bytes(scalar_text(item))
        text_bytes(name)
        field = RequestField(name, data, filename)
        field.make_multipart(content_type=media_type)
        return field


def file_bytes(value: Any) -> tuple[str | None, bytes]:
    """
    Return the media type, where it says one, and the bytes of a text or a data URL.

    >>> file_bytes("data:image/gif;base64,R0lG")
    ('image/gif', b'GIF')
    """
    text = scalar_text(value)
    match = _DATA_URL.match(text)
    if match is None:
        return None, text_bytes(text)
    from urllib.parse import unquote_to_bytes

    rest = text[match.end() :]
    try:
        data = base64.b64decode(rest, validate=True) if match[3] else unquote_to_bytes(text_bytes(rest))
    except (binascii.Error, ValueError) as error:
        raise ArgumentError(f"a data: URL is not valid: {error}") from error
    return match[1], data


def body_of(operation: Node) -> Body | None:
    """
    Return the body of an operation, in the media type that is easiest for a model.

    Args:
        operation: The operation.
    """
    request = operation.get("requestBody")
    choices = [(_rank(name), name, node) for name, node in request.get("content").members() if _valid(name)]
    if not choices:
        return None
    (_, kind), name, media = min(choices, key=lambda choice: choice[0][0])
    schema = media.child(media.value.get("schema") if isinstance(media.value, Mapping) else None)
    properties = dict(schema.resolved().get("properties").members())
    return Body(
        name,
        kind,
        isinstance(request.value, Mapping) and request.value.get("required") is True,
        schema,
        dict(media.get("encoding").members()),
        frozenset(n for n, p in properties.items() if is_file(p) or is_file(p.get("items"))),
    )


def _valid(media_type: str) -> bool:
    return bool(_MEDIA_TYPE.fullmatch(media_type))


def _rank(media_type: str) -> tuple[int, Kind]:
    """Return how welcome a media type is, smaller is better, and how it is written."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain == "application/json":
        return 0, "json"
    if plain.endswith("+json") or plain in ("text/json", "*/*", "application/*"):
        return 1, "json"
    if plain == "application/x-www-form-urlencoded":
        return 2, "form"
    if plain.startswith("multipart/"):
        return 3, "multipart"
    if plain.startswith("text/") or plain.endswith(("xml", "yaml", "ndjson")):
        return 4, "text"
    return 5, "bytes"


def is_file(node: Node) -> bool:
    """Whether a schema stands for the bytes of a file, in the words of OpenAPI 3.0 or 3.1."""
    schema = node.value
    if not isinstance(schema, Mapping):
        return False
    return schema.get("format") == "binary" or (
        "contentMediaType" in schema and schema.get("contentEncoding") != "base64"
    )
