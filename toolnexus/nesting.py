"""Events of a run inside another one: how they are labelled on their way out of it."""

from __future__ import annotations

import time

import attrs

from toolnexus.events import Done, Error, Event, Lifecycle, Origin, UsageReport
from toolnexus.wording import error_text

__all__ = ["Inner", "ending", "relabel"]

#: How the status of a result is called in a `Lifecycle`.
_ENDS = {"done": "completed", "incomplete": "completed", "pending": "interrupted"}


def relabel(event: Event, namespace: tuple[str, ...], node: str = "", run_id: str = "") -> Event:
    """
    Return an event of an inner stream with where it comes from in the outer one.

    Args:
        event: The event.
        namespace: What is put before its own namespace.
        node: Its node, where it names none itself.
        run_id: Its run, where it names none itself.
    """
    own = event.origin
    origin = attrs.evolve(
        own, namespace=namespace + own.namespace, node=own.node or node, run_id=own.run_id or run_id
    )
    return attrs.evolve(event, origin=origin)


def ending(event: Done | Error) -> tuple[str, str | None]:
    """Return the status and the error that a `Lifecycle` has for a terminal item."""
    if isinstance(event, Done):
        return _ENDS.get(event.result.status, "completed"), None
    error = event.error
    return ("cancelled" if error.kind == "cancelled" else "failed"), error_text(error)


class Inner:
    """
    What is inside a tool call or a node, as seen from the run around it.

    Args:
        namespace: Its path.
        trigger: The id of the call or task that it runs for.
        run_id: The run around it.
    """

    def __init__(self, namespace: tuple[str, ...], trigger: str, run_id: str) -> None:
        self._namespace = namespace
        self._trigger = trigger
        self._run_id = run_id
        self._ended: set[str] = set()  # the runs that have told themselves how they ended

    def label(self, event: Event, place: Origin) -> Event | None:
        """
        Return an event as the run around it reports it.

        Args:
            event: An event of an inner stream, or one that was made by hand.
            place: Where one comes from that was made by hand.

        Returns:
            The event; a `Lifecycle` for a terminal item; None for an end that was told already, and for the
            total of the tokens, since a run has one.
        """
        own = event.origin
        if isinstance(event, UsageReport):
            return None
        if isinstance(event, (Done, Error)):
            status, error = ending(event)  # looking at an error is taking notice: its stream logs it no more
            if own.run_id in self._ended and not own.namespace:
                return None
            event = Lifecycle(status, "", None, error, origin=own)
        if isinstance(event, Lifecycle):
            event = self._triggered(event)
        if own.run_id or event.type == "lifecycle":
            place = attrs.evolve(own, run_id=self._run_id, namespace=self._namespace + own.namespace)
        return attrs.evolve(event, origin=place, timestamp=time.time())

    def _triggered(self, event: Lifecycle) -> Lifecycle:
        """Return the begin or the end of a run with what it ran for, and with a name."""
        path = self._namespace + event.namespace
        name = event.name or path[-1].partition(":")[0]
        if event.namespace:
            return attrs.evolve(event, name=name)
        if event.status != "started":
            self._ended.add(event.run_id)
        return attrs.evolve(event, name=name, trigger_call_id=event.trigger_call_id or self._trigger)
