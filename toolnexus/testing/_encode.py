"""JSON as providers write it: compact, and text as UTF-8 rather than in escapes."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["dump"]

_plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(separators=(",", ":")).encode


def dump(value: Any) -> str:
    """Return a value as JSON; a lone surrogate, which UTF-8 cannot hold, makes it escaped."""
    text = _plain(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _escaped(value)
    return text
