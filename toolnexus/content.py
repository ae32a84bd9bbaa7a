"""Parts of a message that are not plain text: images and files."""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.values import Value

__all__ = ["File", "Image", "Part", "split_data_url"]


def split_data_url(url: str) -> tuple[str, str]:
    """
    Return the media type and the base64 text of a ``data:`` URL, whether or not it was base64.

    >>> split_data_url("data:text/plain,a%20b"), split_data_url("data:image/png;base64,iVBO")
    (('text/plain', 'YSBi'), ('image/png', 'iVBO'))
    """
    head, _, data = url[5:].partition(",")
    media_type, *parameters = (word.strip() for word in head.split(";"))
    if "base64" not in map(str.lower, parameters):
        data = base64.b64encode(unquote_to_bytes(data)).decode("ascii")
    return media_type.lower() or "text/plain", data


def _url(source: str | os.PathLike[str] | bytes) -> str | None:
    """Return a source that is a URL, its scheme in small letters; None for a path or bytes."""
    if not isinstance(source, str):
        return None
    scheme, colon, rest = source.strip().partition(":")
    return f"{scheme.lower()}:{rest}" if colon and scheme.lower() in ("http", "https", "data") else None


def _load(source: str | os.PathLike[str] | bytes, media_type: str | None, fallback: str) -> tuple[str, str]:
    """Return the base64 text and the media type of a path or of bytes."""
    if not isinstance(source, (str, os.PathLike, bytes)):
        raise ConfigurationError(f"an image or file is a path, a URL or bytes, not {type(source).__name__}")
    name = "" if isinstance(source, bytes) else Path(source).name
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot read {os.fspath(source)!r}: {reason}") from error
    if not data:
        raise ConfigurationError(f"{name or 'an image or file'} is empty")
    guessed = media_type or _sniff(data) or mimetypes.guess_type(name)[0] or fallback
    return base64.b64encode(data).decode("ascii"), guessed


def _sniff(data: bytes) -> str | None:
    """Return the media type that the first bytes show, for the formats that models take."""
    for magic, media_type in (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
    ):
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _name(source: str | os.PathLike[str] | bytes) -> str:
    """Return the file name in a path or URL, or "file"."""
    url = _url(source)
    if isinstance(source, bytes) or (url or "").startswith("data:"):
        return "file"
    return Path(urlsplit(url).path if url else os.fspath(source)).name or "file"


def _show(source: Any) -> str:
    return f"<{len(source)} bytes>" if isinstance(source, bytes) else repr(source)


@attrs.frozen(eq=False, repr=False)
class Image(Value):
    """
    An image in a prompt or in a tool's result.

    Args:
        source: An ``http(s)`` URL, a ``data:`` URL, a path, or the bytes themselves.
        media_type: Its media type; found out where not given.
        detail: How closely to look ("low", "high"), for the providers that take it.

    Raises:
        ConfigurationError: The file cannot be read, is empty, or is no image.

    >>> Image("https://example.com/cat.png").to_part()
    {'type': 'image_url', 'image_url': {'url': 'https://example.com/cat.png'}}
    """

    source: str | os.PathLike[str] | bytes = attrs.field(repr=_show)
    media_type: str | None = None
    detail: str | None = None

    def to_part(self) -> dict[str, Any]:
        """Return the neutral, OpenAI-shaped part; a path is read now."""
        url = _url(self.source)
        if url is None:
            data, media_type = _load(self.source, self.media_type, "image/png")
            if not media_type.startswith("image/"):
                raise ConfigurationError(f"{media_type} is no image; use File for a document")
            url = f"data:{media_type};base64,{data}"
        image: dict[str, Any] = {"url": url}
        if self.detail is not None:
            image["detail"] = self.detail
        return {"type": "image_url", "image_url": image}


@attrs.frozen(eq=False, repr=False)
class File(Value):
    """
    A document, such as a PDF, in a prompt or in a tool's result.

    Args:
        source: A path, the bytes themselves, a ``data:`` URL, or an ``http(s)`` URL for the endpoints
            that fetch files.
        media_type: Its media type; found out where not given.
        name: The file name the model sees; the path's own by default.

    Raises:
        ConfigurationError: The file cannot be read, or is empty.

    >>> File(b"%PDF-1.7", name="a.pdf").to_part()["file"]["file_data"]
    'data:application/pdf;base64,JVBERi0xLjc='
    """

    source: str | os.PathLike[str] | bytes = attrs.field(repr=_show)
    media_type: str | None = None
    name: str | None = None

    def to_part(self) -> dict[str, Any]:
        """Return the neutral, OpenAI-shaped part; a path is read now."""
        url = _url(self.source)
        if url is None:
            data, media_type = _load(self.source, self.media_type, "application/octet-stream")
            url = f"data:{media_type};base64,{data}"
        return {"type": "file", "file": {"filename": self.name or _name(self.source), "file_data": url}}


Part = Image | File
