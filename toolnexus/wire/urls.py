"""Making the URL of a model call from what a user gives as base URL."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

__all__ = ["join"]


def join(base_url: str, path: str, *, version: str = "") -> str:
    """
    Append a path to a base URL, before its query, and only what is missing of it.

    Args:
        base_url: What the user gave.
        path: The path of the call.
        version: A path segment that must stand before it, once.

    >>> join("http://h/v1/", "/chat/completions")
    'http://h/v1/chat/completions'
    >>> join("http://h/v1/chat/completions?api-version=1", "/chat/completions")
    'http://h/v1/chat/completions?api-version=1'
    >>> join("http://h/v1", "/messages", version="/v1"), join("http://h", "/messages", version="/v1")
    ('http://h/v1/messages', 'http://h/v1/messages')
    """
    parts = urlsplit(base_url)
    stem = parts.path.rstrip("/").removesuffix(path)
    if version and not stem.endswith(version):
        stem += version
    return urlunsplit((parts.scheme, parts.netloc, stem + path, parts.query, ""))
