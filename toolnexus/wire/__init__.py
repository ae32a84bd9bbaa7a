"""The dialects, one file each; none of them knows HTTP, threads or what a tool does."""

from __future__ import annotations

from toolnexus.wire.anthropic import Anthropic
from toolnexus.wire.base import Decoder, Dialect, ModelRequest
from toolnexus.wire.openai import OpenAI
from toolnexus.wire.quirks import Quirks

__all__ = ["DIALECTS", "Decoder", "Dialect", "ModelRequest", "Quirks"]

#: The dialects by the name of the option ``style``.
DIALECTS: dict[str, Dialect] = {"openai": OpenAI(), "anthropic": Anthropic()}
