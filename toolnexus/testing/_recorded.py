"""Recorded bodies: served again as they came."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolnexus.testing._answers import DeliveryOptions, Raw, raw

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["recorded"]


def recorded(
    source: str | os.PathLike[str] | bytes,
    *,
    status: int | None = None,
    content_type: str | None = None,
    **delivery: Unpack[DeliveryOptions],
) -> Raw:
    """
    Return a recorded body as an answer.

    Beside a file ``name.sse`` or ``name.json`` may lie ``name.meta.json`` with the fields ``status`` and
    ``response_headers``; the answer has them.

    Args:
        source: The path of the body, or its bytes.
        status: The HTTP status; by default the recorded one, or 200.
        content_type: The Content-Type; by default the recorded one, or what the body looks like.
        delivery: How it travels, see :class:`~toolnexus.testing.Delivery`.

    Raises:
        OSError: The file cannot be read.
    """
    body = source if isinstance(source, bytes) else Path(source).read_bytes()
    meta = {} if isinstance(source, bytes) else _meta(Path(source))
    given = delivery.get("headers") or {}
    headers = {name.lower(): str(value) for name, value in (meta.get("response_headers") or {}).items()}
    kind = content_type or headers.pop("content-type", None) or _looks_like(body)
    headers.pop("content-type", None)
    kept = {name: value for name, value in headers.items() if name not in {key.lower() for key in given}}
    delivery["headers"] = {**kept, **given}
    return raw(body, status=status or meta.get("status") or 200, content_type=kind, **delivery)


def _meta(path: Path) -> dict[str, Any]:
    """Return what is recorded about a body, or nothing."""
    beside = path.with_suffix(".meta.json")
    if not beside.exists():
        return {}
    meta = json.loads(beside.read_text("utf-8"))
    return meta if isinstance(meta, dict) else {}


def _looks_like(body: bytes) -> str:
    """Return the content type of a body of which nothing else is known."""
    return "application/json" if body.lstrip()[:1] in (b"{", b"[") else "text/event-stream"
