"""Waiting for pipes, a moment at a time."""

from __future__ import annotations

import select

__all__ = ["wait"]


def wait(source: int, seconds: float, *, sink: int | None = None) -> tuple[bool, bool]:
    """
    Wait until a pipe can be read, or another one written.

    Args:
        source: The pipe to read from.
        seconds: How long to wait at most.
        sink: The pipe to write to, or None.

    Returns:
        Whether the one can be read, and whether the other can be written. A closed one can.
    """
    # Not select(), which cannot do with descriptors above 1023.
    poll = select.poll()
    poll.register(source, select.POLLIN)
    if sink is not None:
        poll.register(sink, select.POLLOUT)
    ready = {fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)}
    return source in ready, sink in ready
