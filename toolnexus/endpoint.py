"""Where a model is asked: one endpoint with its options and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from toolnexus.options import Options
from toolnexus.transport.http import Transport
from toolnexus.wire import DIALECTS, Dialect, Quirks

__all__ = ["Endpoint"]


@attrs.define(eq=False, repr=False)
class Endpoint:
    """
    One place to ask.

    Args:
        options: The options of its client.
        transport: What sends the requests.
        generate: A function that is the model, for a client without a wire.
        quirks: What it was found not to take.
    """

    options: Options
    transport: Transport
    generate: Callable[[dict[str, Any]], Any] | None = None
    quirks: Quirks = attrs.field(factory=Quirks)

    @property
    def dialect(self) -> Dialect:
        """The dialect that it speaks."""
        return DIALECTS[self.options.style]
