"""How the loop reports what happens, and how events get from it to whoever reads them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import attrs

from toolnexus.events import Event, Origin, Task, Update, Value

if TYPE_CHECKING:
    from toolnexus.nesting import Inner

__all__ = ["Outlet", "Reporter"]


class Outlet(Protocol):
    """Where events go."""

    def put(self, event: Event) -> None:
        """Take an event; it need not be handed on at once."""

    def flush(self) -> None:
        """Hand on what was taken, waiting while there is no room."""

    def before_wait(self, ready: Callable[[], bool]) -> None:
        """
        The loop is about to wait: hand on what was taken.

        Args:
            ready: Tells whether the wait will be over at once, so that handing on can wait, too.
        """


class Reporter:
    """
    Builds the events that somebody wants, and no others.

    Args:
        run_id: The run.
        wants: The event classes that are wanted.
        outlet: Where they go; None where nobody listens.
        namespace: The path of nested agents.
    """

    def __init__(
        self,
        run_id: str,
        wants: frozenset[type[Event]] = frozenset(),
        outlet: Outlet | None = None,
        namespace: tuple[str, ...] = (),
    ) -> None:
        self.wants = wants if outlet is not None else frozenset()
        #: Whether anybody wants to know of the loop's nodes.
        self.watches_nodes = not self.wants.isdisjoint({Task, Update, Value})
        self.outlet = outlet
        self.origin = Origin(run_id, namespace)
        self._seq = 0

    def at(self, node: str, step: int, message_id: str = "", attempt: int = 0) -> None:
        """Say where the events that follow come from."""
        here = self.origin
        self.origin = Origin(here.run_id, here.namespace, node, step, message_id, attempt)

    def send(self, event: type[Event], *args: object) -> bool:
        """
        Report an event, if anybody wants it.

        Args:
            event: Its class.
            args: Its fields.

        Returns:
            Whether anybody does.
        """
        if event not in self.wants or self.outlet is None:
            return False
        self._seq += 1  # this is done for every delta: no call for it
        self.outlet.put(event(*args, origin=self.origin, seq=self._seq, timestamp=time.time()))
        return True

    def pass_on(self, event: Event, inner: Inner) -> None:
        """
        Report an event of a run inside this one, if anybody wants it.

        Args:
            event: The event.
            inner: What it is inside of.
        """
        labelled = inner.label(event, self.origin)
        if labelled is None or type(labelled) not in self.wants or self.outlet is None:
            return
        self._seq = self._next_seq()
        self.outlet.put(attrs.evolve(labelled, seq=self._seq))

    def _next_seq(self) -> int:
        return self._seq + 1

    def flush(self) -> None:
        """Hand on what was reported."""
        if self.outlet is not None:
            self.outlet.flush()

    def before_wait(self, ready: Callable[[], bool]) -> None:
        """The loop is about to wait for the server."""
        if self.outlet is not None:
            self.outlet.before_wait(ready)
