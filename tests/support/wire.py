"""The recorded answers of providers, and what each must give."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import attrs

_HERE = Path(__file__).resolve()
_SHARED = _HERE.parents[3] / "shared" / "wire"
_OWN = _HERE.parents[1] / "data" / "wire"

#: All recordings where they are there, else those that travel with the suite.
ROOT = _SHARED if _SHARED.is_dir() else _OWN

STYLES = {
    "openai-chat": "openai",
    "anthropic": "anthropic",
    "responses": "responses",
    "gemini": "gemini",
}


@attrs.frozen
class Recording:
    """A recorded body with what is known about it."""

    path: Path
    meta: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def style(self) -> str:
        return STYLES[self.meta["style"]]

    @property
    def expect(self) -> dict[str, Any]:
        return dict(self.meta["expect"])

    @property
    def body(self) -> bytes:
        return self.path.read_bytes()


def recordings(*, stream: bool | None = None, ok: bool | None = None) -> list[Recording]:
    """Return the recordings of our styles: streams or whole answers, answers or HTTP errors."""
    found = []
    for meta_path in sorted(ROOT.glob("*/*.meta.json")):
        meta = json.loads(meta_path.read_text("utf-8"))
        # Where the status was not recorded, the name says whether it was an error.
        status = meta["status"] or (500 if meta_path.name.startswith("error-") else 200)
        if meta["style"] not in STYLES or (ok is not None and ok != (status < 300)):
            continue
        stem = meta_path.name.removesuffix(".meta.json")
        for suffix in (".sse", ".json"):
            path = meta_path.with_name(stem + suffix)
            if path.exists() and (stream is None or stream == (suffix == ".sse")):
                found.append(Recording(path, meta))
    return found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
