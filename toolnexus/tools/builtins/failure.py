"""The one exception of the built-in tools: what it says goes to the model."""

from __future__ import annotations

__all__ = ["ToolFailure"]


class ToolFailure(Exception):
    """A built-in tool cannot do what it was asked; the message is for the model."""
