"""The servers that other tests stand on do what they promise."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from tests.support.proxy import Proxy
from tests.support.raw import CLOSE, HOLD, RESET, RawServer, full_backlog, silent_tls
from toolnexus.testing import ModelServer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every server ends its threads."""
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith(("RawServer", "Proxy"))]


def connect(server: RawServer) -> socket.socket:
    """Open a connection and send a request."""
    sock = socket.create_connection(("127.0.0.1", server.port), 5)
    sock.sendall(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
    return sock


def test_raw_server_sends_exactly_its_bytes() -> None:
    """The bytes of the steps, a pause between them, then the end; the request is kept."""
    with RawServer([b"one", 0.1, b"two", CLOSE]) as server, connect(server) as sock:
        began = time.monotonic()
        data = b""
        while piece := sock.recv(100):
            data += piece
        assert data == b"onetwo"
        assert time.monotonic() - began >= 0.09
        assert server.received == [b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"]
        assert server.connections == 1


def test_raw_server_is_a_server_for_requests() -> None:
    """A real client reads an answer made of bytes."""
    with RawServer([ANSWER]) as server:
        assert requests.post(server.url, data=b"x", timeout=5).text == "hi"


def test_raw_server_resets() -> None:
    """RESET is seen as a reset, after the bytes before it."""
    with RawServer([b"one", RESET]) as server, connect(server) as sock:
        assert sock.recv(3) == b"one"
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


@pytest.mark.parametrize("steps", [[HOLD], [b"one", 30.0], [b"x" * 50_000_000]])
def test_raw_server_notices_that_the_client_left(steps: list[bytes | float | str]) -> None:
    """In a hold, in a pause and with a full window the server knows when the client closed."""
    with RawServer(steps) as server:
        sock = connect(server)
        server.wait_for_connection()
        time.sleep(0.05)
        left = time.monotonic()
        sock.close()
        assert server.wait_for_peer_close() - left < 2
        with pytest.raises(AssertionError, match="1 of 2 clients left"):
            server.wait_for_peer_close(2, timeout=0.05)


def test_connect_to_a_full_backlog_hangs() -> None:
    """Nobody accepts and the queue is full: connecting times out."""
    with full_backlog() as url, socket.socket() as sock:
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))


def test_silent_tls_never_shakes_hands() -> None:
    """The connection is there, the handshake never ends, and the server sees the client give up."""
    with silent_tls() as (url, server):
        with pytest.raises((requests.exceptions.ConnectionError, requests.exceptions.Timeout)):
            requests.get(url, timeout=0.3)
        server.wait_for_peer_close()


def test_proxy_forwards_absolute_requests() -> None:
    """Plain HTTP goes through with the path alone, and the target is recorded."""
    with ModelServer() as server, Proxy() as proxy:
        server.raw(b"hi")
        response = requests.get(server.url + "/a?b=c", proxies={"http": proxy.url}, timeout=5)
        assert response.text == "hi"
        assert proxy.targets == [("GET", server.url + "/a?b=c")]
        assert (server.requests[0].target, len(proxy.heads)) == ("/a?b=c", 1)


def test_proxy_tunnels_tls() -> None:
    """HTTPS goes through CONNECT, and the client's leaving reaches the server."""
    pytest.importorskip("trustme")
    with ModelServer(tls=True) as server, Proxy() as proxy:
        server.raw(b"hi", hold=True)
        response = requests.get(
            server.url, proxies={"https": proxy.url}, verify=str(server.ca_path), stream=True, timeout=5
        )
        assert response.raw.read1(2) == b"hi"
        assert proxy.targets == [("CONNECT", server.url.removeprefix("https://"))]
        assert proxy.live_tunnels == 2
        response.raw.shutdown()
        response.close()
        server.wait_for_disconnect()


def test_proxy_says_when_the_target_is_not_there() -> None:
    """A target that refuses is a 502."""
    with socket.socket() as unused, Proxy() as proxy:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        assert requests.get(url, proxies={"http": proxy.url}, timeout=5).status_code == 502
