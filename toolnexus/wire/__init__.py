"""The dialects, one file each; none of them knows HTTP, threads or what a tool does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from toolnexus.wire.base import Decoder, Dialect, ModelRequest
from toolnexus.wire.quirks import Quirks

__all__ = ["DIALECTS", "Decoder", "Dialect", "ModelRequest", "Quirks"]

#: Where each dialect stands, by the name of the option ``style``.
_PLACES = {"openai": "OpenAI", "anthropic": "Anthropic", "responses": "Responses", "gemini": "Gemini"}


class _Dialects(Mapping[str, Dialect]):
    """The dialects by the name of the option ``style``; each is imported when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Dialect] = {}

    def __getitem__(self, style: str) -> Dialect:
        if style not in self._made:
            name = _PLACES[style]
            self._made[style] = getattr(import_module(f"toolnexus.wire.{style}"), name)()
        return self._made[style]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


#: The dialects by the name of the option ``style``.
DIALECTS: Mapping[str, Dialect] = _Dialects()
