"""Runs that stand still in a phase of one's choice, until somebody ends them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tests.support.proxy import Proxy
from tests.support.raw import full_backlog, silent_tls
from toolnexus import Client, Context, Tool
from toolnexus.suspension import Answer, Request, pending
from toolnexus.testing import ModelServer

__all__ = ["PHASES", "Scene", "Servers", "scene"]

#: Each phase with the kinds of connection in which there is one.
PHASES: dict[str, tuple[str, ...]] = {
    "connecting": ("tcp",),
    "handshake": ("tls",),
    "headers": ("tcp", "tls", "proxy", "tunnel"),
    "mid-event": ("tcp", "tls", "proxy", "tunnel"),
    "between events": ("tcp", "tls"),
    "backoff": ("tcp", "tls"),
    "tool": ("tcp", "tls"),
    "person": ("tcp",),
    "full queue": ("tcp", "tls"),
}


class Servers:
    """A model server of each kind, and a proxy, for many scenes."""

    def __init__(self) -> None:
        self.tcp = ModelServer()
        self.tls = ModelServer(tls=True)
        self.proxy = Proxy()

    def of(self, kind: str) -> ModelServer:
        """Return the server of a kind of connection."""
        return self.tls if kind in ("tls", "tunnel") else self.tcp

    def environment(self, kind: str) -> dict[str, str]:
        """Return the environment that a client needs for a kind of connection."""
        found = {"REQUESTS_CA_BUNDLE": str(self.tls.ca_path)}
        if kind in ("proxy", "tunnel"):
            found.update(HTTP_PROXY=self.proxy.url, http_proxy=self.proxy.url)
            found.update(HTTPS_PROXY=self.proxy.url, https_proxy=self.proxy.url)
        return found

    def close(self) -> None:
        """End them."""
        self.tcp.close()
        self.tls.close()
        self.proxy.close()


@attrs.define(eq=False)
class Scene:
    """
    A run that will stand still.

    Args:
        url: The server's address.
        events: How many events come before the phase.
        wait: Waits until the run is in the phase, given that these events were taken.
        options: Options of the client.
        tools: Tools of the run.
        stalls: Whether the phase is that the consumer takes nothing more.
        left: Waits until the server saw the connection close; None where it is idle in the phase.
        finish: Lets go of what is left behind.
        asked: How many requests the server has got.
    """

    url: str
    events: int = 0
    wait: Callable[[], object] = lambda: time.sleep(0.1)
    options: dict[str, Any] = attrs.field(factory=dict)
    tools: list[Tool] = attrs.field(factory=list)
    stalls: bool = False
    left: Callable[[], object] | None = None
    finish: Callable[[], object] = lambda: None
    asked: Callable[[], int] = lambda: 0

    def client(self) -> Client:
        """Return a client for it."""
        return Client(f"{self.url}/v1", model="m", api_key="k", **{"retries": 1, **self.options})


@contextlib.contextmanager
def scene(phase: str, kind: str, servers: Servers) -> Iterator[Scene]:
    """Set a scene; in the end nothing of it is left."""
    if phase == "connecting":
        with full_backlog() as url:
            yield Scene(url, options={"connect_timeout": 60})
        return
    if phase == "handshake":
        with silent_tls() as (url, server):
            yield Scene(
                url,
                wait=server.wait_for_connection,
                options={"connect_timeout": 60},
                left=server.wait_for_peer_close,
            )
        return
    made = _SCENES[phase](servers.of(kind))
    try:
        yield made
    finally:
        made.finish()


def _next(server: ModelServer) -> tuple[Callable[[], object], Callable[[], object], Callable[[], int]]:
    """Return what waits for the next request, what for the next disconnect, and what counts requests."""
    asked, left = len(server.requests), server.disconnects
    return (
        lambda: server.wait_for_request(asked + 1),
        lambda: server.wait_for_disconnect(left + 1),
        lambda: len(server.requests) - asked,
    )


def _headers(server: ModelServer) -> Scene:
    wait, left, asked = _next(server)
    server.say("late", hold="headers")
    return Scene(server.url, wait=wait, left=left, asked=asked, finish=server.release)


def _mid_event(server: ModelServer) -> Scene:
    return _body(server, "mid-event")


def _between(server: ModelServer) -> Scene:
    return _body(server, True)


def _body(server: ModelServer, hold: Any) -> Scene:
    wait, left, asked = _next(server)
    server.say(["a", "b"], hold=hold, one_write_per_event=True)

    def settled() -> None:
        wait()
        time.sleep(0.05)

    return Scene(server.url, events=2, wait=settled, left=left, asked=asked, finish=server.release)


def _backoff(server: ModelServer) -> Scene:
    wait, _, asked = _next(server)
    server.fail(status=503, headers={"Retry-After": "60"})

    def settled() -> None:
        wait()
        time.sleep(0.05)

    return Scene(server.url, wait=settled, asked=asked)


def _tool(server: ModelServer) -> Scene:
    _, _, asked = _next(server)
    started, let_go = threading.Event(), threading.Event()

    def hang(args: dict[str, Any], ctx: Context) -> str:
        started.set()
        let_go.wait(30)
        return "late"

    server.call("hang", {})
    return Scene(
        server.url,
        events=1,
        wait=lambda: started.wait(5),
        tools=[Tool("hang", execute=hang)],
        asked=asked,
        finish=let_go.set,
    )


def _person(server: ModelServer) -> Scene:
    _, _, asked = _next(server)
    started, let_go = threading.Event(), threading.Event()

    def wait_for(request: Request) -> Answer | None:
        started.set()
        let_go.wait(30)
        return None

    server.call("ask", {})
    return Scene(
        server.url,
        events=2,
        wait=lambda: started.wait(5),
        options={"wait_for": wait_for},
        tools=[Tool("ask", execute=lambda args, ctx: pending("May I?"))],
        asked=asked,
        finish=let_go.set,
    )


def _full_queue(server: ModelServer) -> Scene:
    _, left, asked = _next(server)
    server.say(["x" * 1000] * 20_000)
    return Scene(
        server.url, events=1, wait=lambda: time.sleep(0.1), options={"queue_size": 2}, stalls=True, left=left,
        asked=asked,
    )  # fmt: skip


_SCENES: dict[str, Callable[[ModelServer], Scene]] = {
    "headers": _headers,
    "mid-event": _mid_event,
    "between events": _between,
    "backoff": _backoff,
    "tool": _tool,
    "person": _person,
    "full queue": _full_queue,
}
