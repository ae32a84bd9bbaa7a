"""How a scripted server's bytes travel: framing, pieces, compression, pauses, holds, cuts and speed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus.testing import ModelServer, raw, recorded, reply

STREAM = b'{"model":"m","stream":true}'


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    """A server over TCP and over TLS, closed after the test."""
    if request.param:
        pytest.importorskip("trustme")
    with ModelServer(tls=request.param) as server:
        yield server


def connect(server: ModelServer) -> socket.socket:
    """Open a bare connection to a server."""
    sock = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), 10)
    if server.ca_path is None:
        return sock
    import ssl

    return ssl.create_default_context(cafile=str(server.ca_path)).wrap_socket(
        sock, server_hostname="127.0.0.1"
    )


def ask(sock: socket.socket, body: bytes = STREAM, version: str = "1.1", *headers: str) -> None:
    """Send a request for a completion."""
    lines = [
        f"POST /v1/chat/completions HTTP/{version}",
        "Host: test",
        f"Content-Length: {len(body)}",
        *headers,
        "",
        "",
    ]
    sock.sendall("\r\n".join(lines).encode() + body)


def read_all(sock: socket.socket) -> bytes:
    """Return everything up to the end of the connection."""
    data = b""
    while piece := sock.recv(1 << 20):
        data += piece
    return data


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Return what comes until a mark is there."""
    data = b""
    while mark not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


def exchange(server: ModelServer, body: bytes = STREAM, version: str = "1.1") -> tuple[bytes, bytes]:
    """Return head and body, as they are on the wire, of an answer after which the connection ends."""
    with connect(server) as sock:
        ask(sock, body, version, "Connection: close")
        head, _, rest = read_all(sock).partition(b"\r\n\r\n")
    return head, rest


def chunks(body: bytes) -> list[bytes]:
    """Return the chunks of a body; the framing must be right to the last byte."""
    found: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        data, end, body = (
            body[: int(size, 16)],
            body[int(size, 16) : int(size, 16) + 2],
            body[int(size, 16) + 2 :],
        )
        assert end == b"\r\n"
        if not data:
            assert body == b""
            return found
        found.append(data)


# -- framing ---------------------------------------------------------------------------------


def test_stream_has_one_chunk_an_event(server: ModelServer) -> None:
    """Chunked by default, and every event is a chunk of its own."""
    server.say(["a", "b"])
    head, body = exchange(server)
    assert b"Transfer-Encoding: chunked" in head
    found = chunks(body)
    assert len(found) == 5
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in found)


def test_close_framing_ends_with_the_connection(server: ModelServer) -> None:
    """No length and no chunks: the body is what comes until the end, and keep-alive is off."""
    server.raw(b"all of it", framing="close")
    with connect(server) as sock:
        ask(sock)  # which would keep the connection
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert body == b"all of it"
    assert b"Connection: close" in head
    assert b"Length" not in head
    assert b"chunked" not in head


def test_length_framing_says_the_length(server: ModelServer) -> None:
    """The length counts what is sent, compressed where it is."""
    for gzip in (False, True):
        server.say(["a", "b"], framing="length", gzip=gzip)
        head, body = exchange(server)
        assert f"Content-Length: {len(body)}".encode() in head
        assert (zlib.decompress(body, 31) if gzip else body).endswith(b"data: [DONE]\n\n")


def test_http_1_0_gets_no_chunks(server: ModelServer) -> None:
    """A client of HTTP/1.0 gets the body to the end of the connection."""
    server.say("x")
    head, body = exchange(server, version="1.0")
    assert b"chunked" not in head
    assert body.endswith(b"data: [DONE]\n\n")


def test_connection_is_kept_for_the_next_request(server: ModelServer) -> None:
    """After a chunked and after a whole answer the same connection serves on; close framing ends it."""
    server.say(["a"])
    server.say("b")
    server.say("c", framing="close")
    server.say("d")
    with requests.Session() as session:
        for stream in (True, False, True, True):
            body = {"stream": stream}
            url, verify = server.base_url + "/chat/completions", str(server.ca_path or True)
            assert session.post(url, json=body, timeout=10, verify=verify).content
    assert [request.connection for request in server.requests] == [1, 1, 1, 2]


def test_headers_of_the_script_win(server: ModelServer) -> None:
    """A scripted header replaces ours in any case of its name; None takes it away."""
    server.say("x", headers={"content-type": "text/plain", "X-Request-Id": None, "X-More": "1"})
    head, _ = exchange(server)
    names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert b"content-type: text/plain" in head
    assert b"X-More" in names
    assert not {b"Content-Type", b"x-request-id", b"X-Request-Id"} & set(names)


# -- pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
def test_one_byte_a_piece(server: ModelServer, framing: Any) -> None:
    """split=1 sends every byte as a piece of its own, whatever the framing."""
    body = "data: é\r\n\r\n".encode() * 20
    server.raw(body, framing=framing, split=1)
    _, sent = exchange(server)
    if framing == "chunked":
        assert chunks(sent) == [body[i : i + 1] for i in range(len(body))]
    else:
        assert sent == body


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_recorded_body_goes_out_one_event_a_piece(server: ModelServer, end: bytes) -> None:
    """split="events" cuts after every blank line, and keeps an unterminated tail."""
    server.raw(b"data: 1" + end + b"data: 2" + end + b"tail", split="events")
    assert chunks(exchange(server)[1]) == [b"data: 1" + end, b"data: 2" + end, b"tail"]


def test_raw_chunks_are_writes_of_their_own(server: ModelServer) -> None:
    """With a pause in between, each element arrives alone; empty ones are left out."""
    server.raw(chunks=[b"one", b"", b"two"], framing="close", delay=0.2)
    with connect(server) as sock:
        ask(sock)
        read_until(sock, b"one")
        assert sock.recv(100) == b"two"


@settings(max_examples=40, deadline=None)
@given(
    body=st.binary(max_size=300),
    split=st.one_of(st.none(), st.integers(1, 400), st.just("events")),
    framing=st.sampled_from(["chunked", "close", "length"]),
    gzip=st.booleans(),
)
def test_every_delivery_carries_the_same_bytes(body: bytes, split: Any, framing: Any, gzip: bool) -> None:
    """Property: framing, split and compression change nothing about the body."""
    with ModelServer(script=[raw(body, split=split, framing=framing, gzip=gzip)]) as server:
        assert requests.get(server.url, timeout=10).content == body


def test_gzip_can_be_read_event_by_event(server: ModelServer) -> None:
    """Every event is flushed: the first can be decoded while the rest is held."""
    server.say(["first"], gzip=True, hold=True)
    with connect(server) as sock:
        ask(sock)
        data = read_until(sock, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
        unpacker = zlib.decompressobj(31)
        text = b""
        while b"first" not in text:
            while b"\r\n" not in data or len(data) < int(data.split(b"\r\n")[0], 16) + 2:
                data += sock.recv(65536)
            size, _, rest = data.partition(b"\r\n")
            text += unpacker.decompress(rest[: int(size, 16)])
            data = rest[int(size, 16) + 2 :]
    server.wait_for_disconnect()


# -- holds, pauses and who leaves ------------------------------------------------------------


@pytest.mark.parametrize("hold", ["headers", True, "mid-event"])
@pytest.mark.parametrize("stream", [True, False])
def test_held_answer_goes_on_at_the_release(server: ModelServer, hold: Any, stream: bool) -> None:
    """Nothing of the end comes before the release, and everything after it; the gate closes again."""
    for _ in range(2):
        server.say(["a", "b"], hold=hold)
    for number in (1, 2):
        with connect(server) as sock:
            ask(sock, json.dumps({"stream": stream}).encode(), "1.1", "Connection: close")
            server.wait_for_request(number)
            before = b""
            if hold != "headers":
                before = read_until(sock, b'"b"' if stream else b"chat.completion")
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                before += read_until(sock, b"never")
            assert b"[DONE]" not in before
            sock.settimeout(10)
            server.release()
            assert read_all(sock)
    assert all(request.answered_at is not None for request in server.requests)


def test_release_before_the_hold_is_reached_counts(server: ModelServer) -> None:
    """A release lets go every answer whose request was received by then, held yet or not."""
    server.say(["a"] * 3, delay=0.1, hold=True)
    with connect(server) as sock:
        ask(sock, STREAM, "1.1", "Connection: close")
        server.wait_for_request()
        server.release()
        assert read_all(sock).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_pings_come_while_an_answer_is_held(style: str) -> None:
    """Keep-alive pings in the way of the style, until the client leaves."""
    with ModelServer(style, script=[reply("x", hold=True, pings=0.02)]) as server:
        path = "/v1/messages" if style == "anthropic" else "/v1/chat/completions"
        response = requests.post(server.url + path, json={"stream": True}, stream=True, timeout=10)
        lines = response.iter_lines(chunk_size=1)
        mark = b"event: ping" if style == "anthropic" else b": ping"
        assert len([line for line, _ in zip(filter(mark.__eq__, lines), range(4), strict=False)]) == 4
        response.close()
        server.wait_for_disconnect()


@pytest.mark.parametrize("phase", ["headers", True, "mid-event", "delay", "window"])
def test_client_that_leaves_is_noticed_in_every_phase(server: ModelServer, phase: Any) -> None:
    """Before headers, held, in a pause, with a full window: the server knows within moments."""
    if phase == "delay":
        server.say(["a"] * 3, delay=30)
    elif phase == "window":
        server.say(["x" * 100_000] * 500)
    else:
        server.say(["a"], hold=phase)
    sock = connect(server)
    ask(sock)
    server.wait_for_request()
    time.sleep(0.1)  # so that the server is where it is meant to be
    left = time.monotonic()
    sock.close()
    server.wait_for_disconnect(timeout=5)
    closed = server.requests[0].closed_by_client_at
    assert closed is not None
    assert -0.01 <= closed - left < 2
    assert server.requests[0].answered_at is None
    deadline = time.monotonic() + 5
    while server.live_connections and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.live_connections == 0


def test_shutdown_is_noticed_though_the_window_is_full() -> None:
    """A client that shuts down its socket without closing it is noticed by a server that cannot write."""
    with ModelServer(script=[reply(["x" * 100_000] * 500)]) as server, connect(server) as sock:
        ask(sock)
        server.wait_for_request()
        time.sleep(0.1)
        sock.shutdown(socket.SHUT_RDWR)
        server.wait_for_disconnect(timeout=5)


def test_delay_is_before_every_event_but_the_first(server: ModelServer) -> None:
    """The first event comes at once, the others with a pause each."""
    server.say(["a", "b"], delay=0.1)
    with connect(server) as sock:
        began = time.monotonic()
        ask(sock)
        read_until(sock, b'"role"')
        read_until(sock, b"0\r\n\r\n")
    assert time.monotonic() - began >= 0.4  # a, b, finish, end


def test_delay_of_a_whole_answer_is_before_it(server: ModelServer) -> None:
    """A whole answer comes after one pause."""
    server.say("x", delay=0.15)
    began = time.monotonic()
    exchange(server, b"{}")
    assert time.monotonic() - began >= 0.15


# -- cuts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("make", ["say", "raw"])
def test_cut_answer_lacks_its_end(server: ModelServer, framing: Any, make: str) -> None:
    """The connection just ends: the end mark is missing, and so is the framing's own end."""
    if make == "say":
        server.say(["a"], cut="close", framing=framing)
    else:
        server.raw(b'data: "a"\n\n', cut="close", framing=framing)
    head, body = exchange(server)
    assert b'"a"' in body
    assert b"[DONE]" not in body
    if framing == "chunked":
        assert not body.endswith(b"0\r\n\r\n")
    elif framing == "length":
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        assert int(length.split(b":")[1]) > len(body)
    assert server.requests[0].answered_at is None
    assert server.requests[0].closed_by_client_at is None


def test_reset_is_a_reset() -> None:
    """The client sees the reset of the connection, after what was sent."""
    with ModelServer(script=[reply(["a"], cut="reset")]) as server, connect(server) as sock:
        ask(sock)
        assert b'"a"' in read_until(sock, b'"a"')
        with pytest.raises(ConnectionResetError):
            read_all(sock)


def test_reset_over_tls_ends_the_answer(server: ModelServer) -> None:
    """Over TLS, where Python may report a reset as a plain end, the answer lacks its end all the same."""
    server.say(["a"], cut="reset")
    data = b""
    with connect(server) as sock, contextlib.suppress(ConnectionResetError):
        ask(sock)
        while piece := sock.recv(65536):
            data += piece
    assert b'"a"' in data
    assert not data.endswith(b"0\r\n\r\n")


# -- recordings ------------------------------------------------------------------------------


def test_recording_is_served_with_what_lies_beside_it(server: ModelServer, tmp_path: Path) -> None:
    """Status and headers come from the file beside the body; arguments win over them."""
    body = tmp_path / "a.b.json"
    body.write_bytes(b'{"error": "x"}')
    meta = {"status": 429, "response_headers": {"content-type": "application/x", "retry-after": "3"}}
    (tmp_path / "a.b.meta.json").write_text(json.dumps(meta))
    server.replay(body, framing="length")
    head, sent = exchange(server)
    assert sent == b'{"error": "x"}'
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 3" in head
    assert b"Content-Type: application/x" in head
    server.replay(str(body), status=500, content_type="text/plain", headers={"Retry-After": "9"})
    head, _ = exchange(server)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"Content-Type: text/plain" in head
    assert b"Retry-After: 9" in head
    assert b"retry-after: 3" not in head


def test_recording_without_anything_beside_it_is_looked_at() -> None:
    """Bytes and lone files get the content type that they look like."""
    assert recorded(b' {"a": 1}').content_type == "application/json"
    assert recorded(b"data: x\n\n").content_type == "text/event-stream"


def test_every_recorded_answer_is_served_unchanged(shared_dir: Path) -> None:
    """Each recorded body arrives byte for byte, with its status."""
    paths = sorted(p for p in (shared_dir / "wire").glob("*/*.*") if not p.name.endswith(".meta.json"))
    paths = [p for p in paths if p.suffix in (".sse", ".json")]
    with ModelServer() as server, requests.Session() as session:
        for index, path in enumerate(paths):
            server.replay(path, split=(None, "events", 7)[index % 3], gzip=index % 2 == 0)
            response = session.post(server.base_url + "/chat/completions", json={}, timeout=20)
            meta = json.loads(path.with_suffix(".meta.json").read_text("utf-8"))
            assert response.status_code == (meta["status"] or 200)
            assert response.content == path.read_bytes()
        server.assert_done()
        assert server.connections == 1


# -- speed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_fifty_thousand_deltas_are_no_bottleneck(style: str) -> None:
    """A long stream is rendered and sent in a fraction of what a client needs to read it."""
    with ModelServer(style, script=[reply(["twenty bytes of text"] * 50_000)]) as server:
        path = "/v1/messages" if style == "anthropic" else "/v1/chat/completions"
        began = time.monotonic()
        response = requests.post(server.url + path, json={"stream": True}, timeout=60)
        took = time.monotonic() - began
    assert response.content.count(b"twenty bytes of text") == 50_000
    assert took < 20


def test_one_write_per_event_writes_each_alone() -> None:
    """With one_write_per_event the first event is there although the second is not made yet."""
    made = threading.Event()
    go_on = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"data: 1\n\n"
        made.set()
        go_on.wait(10)
        yield b"data: 2\n\n"

    from toolnexus.testing._answers import Delivery
    from toolnexus.testing._connection import Connection
    from toolnexus.testing._deliver import Gate, Sender
    from toolnexus.testing._render import Rendered

    ours, theirs = socket.socketpair()
    plan = Delivery(one_write_per_event=True)
    response = Rendered(status=200, headers={}, body=pieces(), whole=False, delivery=plan)
    connection = Connection(theirs, 1)
    sender = Sender(connection, Gate(), response, keep_alive=True, http_1_0=False)
    thread = threading.Thread(target=sender.send)
    thread.start()
    with ours:
        assert made.wait(10)
        assert b"data: 1" in read_until(ours, b"data: 1")
        go_on.set()
        assert b"data: 2" in read_until(ours, b"0\r\n\r\n")
    thread.join()
    connection.close()
