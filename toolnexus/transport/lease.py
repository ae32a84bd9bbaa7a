"""The connections that one exchange uses, and how they come to it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from toolnexus.cancel import CancelScope

__all__ = ["Lease", "current", "duplicate", "leasing"]


class Leased(Protocol):
    """A connection that knows whom it serves."""

    sock: Any
    #: A duplicate of the socket, which can be shut in every phase.
    handle: socket.socket | None
    lease: Lease | None

    def drop_handle(self) -> None:
        """Close the duplicate."""

    def close(self) -> None:
        """Close the connection."""


class Lease:
    """
    The connections that one exchange uses, tied to its cancel scope.

    Args:
        scope: The scope whose end shuts them.
        patience: Seconds that sending a request may take; by default what connecting may take.
    """

    def __init__(self, scope: CancelScope, patience: float | None = None) -> None:
        self.scope = scope
        self.patience = patience
        #: The socket, once there is a connection that can be asked something.
        self.sock: Any = None
        #: When that was, on ``time.monotonic()``'s clock.
        self.connected_at = 0.0
        #: Who wants to know what is sent first.
        self.learn: Callable[[bytes], object] | None = None
        self._taken: list[Leased] = []

    def take(self, connection: Leased) -> None:
        """Tie a connection to this exchange."""
        if connection not in self._taken:
            self._taken.append(connection)
            connection.lease = self
            if connection.handle is None and connection.sock is not None:
                # It was opened without us: by other code that uses the same session.
                connection.handle = duplicate(connection.sock)
            if connection.handle is not None:
                self.scope.attach(connection.handle)
        self.connected(connection)

    def connected(self, connection: Leased) -> None:
        """Note the socket of a connection; it is None while there is none that can be asked something."""
        self.sock = connection.sock
        self.connected_at = time.monotonic()

    def release(self, connection: Leased) -> None:
        """Let a connection go: from here on it may serve another exchange."""
        if connection not in self._taken:
            return
        self._taken.remove(connection)
        if self.sock is connection.sock:
            self.sock = None  # it is somebody else's to set timeouts on
        if connection.handle is not None:
            self.scope.detach(connection.handle)
        connection.lease = None
        if connection.sock is None:
            connection.drop_handle()

    def end(self) -> None:
        """Let all connections go."""
        for connection in list(self._taken):
            self.release(connection)
        self.sock = None

    def abort(self) -> None:
        """Shut all connections and let them go: an exception may hold on to their sockets for long."""
        taken = list(self._taken)
        for connection in taken:
            if connection.handle is not None:
                with contextlib.suppress(OSError):
                    connection.handle.shutdown(socket.SHUT_RDWR)
        self.end()
        for connection in taken:
            connection.close()


class _Current(threading.local):
    lease: Lease | None = None


current = _Current()


@contextlib.contextmanager
def leasing(lease: Lease) -> Iterator[Lease]:
    """Let the connections that this thread opens or takes from a pool go to a lease."""
    before, current.lease = current.lease, lease
    try:
        yield lease
    finally:
        current.lease = before


def duplicate(sock: Any) -> socket.socket | None:
    """Return another socket for the same connection, TLS or not; None where there is no way."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        return socket.socket(fileno=os.dup(sock.fileno()))
    return None
