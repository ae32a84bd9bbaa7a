"""Parts of a message that are not plain text: images and files."""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path
from typing import Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.values import Value

__all__ = ["File", "Image", "Part"]


def _load(source: str | os.PathLike[str] | bytes, media_type: str | None, fallback: str) -> tuple[str, str]:
    """Return the base64 text and the media type of a path or of bytes."""
    if isinstance(source, bytes):
        return base64.b64encode(source).decode("ascii"), media_type or _sniff(source) or fallback
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    guessed = media_type or _sniff(data) or mimetypes.guess_type(path.name)[0] or fallback
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


@attrs.frozen(eq=False, repr=False)
class Image(Value):
    """
    An image in a prompt or in a tool's result.

    Args:
        source: An ``http(s)`` URL, a ``data:`` URL, a path, or the bytes themselves.
        media_type: Its media type; found out where not given.
        detail: How closely to look ("low", "high"), for the providers that take it.

    Raises:
        ConfigurationError: The file cannot be read.

    >>> Image("https://example.com/cat.png").to_part()
    {'type': 'image_url', 'image_url': {'url': 'https://example.com/cat.png'}}
    """

    source: str | os.PathLike[str] | bytes = attrs.field(repr=lambda s: f"<{len(s)} bytes>" if isinstance(s, bytes) else repr(s))
    media_type: str | None = None
    detail: str | None = None

    def to_part(self) -> dict[str, Any]:
        """Return the neutral, OpenAI-shaped part; a path is read now."""
        if isinstance(self.source, str) and self.source.split(":", 1)[0].lower() in ("http", "https", "data"):
            url = self.source
        else:
            data, media_type = _load(self.source, self.media_type, "image/png")
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
        source: A path, or the bytes themselves.
        media_type: Its media type; found out where not given.
        name: The file name the model sees; the path's own by default.

    Raises:
        ConfigurationError: The file cannot be read.
    """

    source: str | os.PathLike[str] | bytes = attrs.field(repr=lambda s: f"<{len(s)} bytes>" if isinstance(s, bytes) else repr(s))
    media_type: str | None = None
    name: str | None = None

    def to_part(self) -> dict[str, Any]:
        """Return the neutral, OpenAI-shaped part; a path is read now."""
        data, media_type = _load(self.source, self.media_type, "application/octet-stream")
        name = self.name or ("file" if isinstance(self.source, bytes) else Path(self.source).name)
        return {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}


Part = Image | File
