"""HTTP as it goes wrong: silence, cuts, trickles, limits, framings, redirects, proxies, certificates."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.exact import (
    DONE,
    HEAD,
    STOP,
    chunk,
    chunked,
    delta,
    event,
    make,
    open_sockets,
    payload,
    until,
)
from tests.support.proxy import Proxy
from tests.support.raw import CLOSE, HOLD, RESET, RawServer, full_backlog, silent_tls
from toolnexus import (
    APIConnectionError,
    APIStatusError,
    CancelScope,
    Client,
    ConfigurationError,
    ConnectTimeoutError,
    Done,
    EmptyResponseError,
    Error,
    IdleTimeoutError,
    LimitError,
    MalformedEventError,
    ResponseTimeoutError,
    RunResult,
    RunTimeoutError,
    Text,
    Tool,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.testing import ModelServer, RecordedRequest, reply
from toolnexus.transport.connection import CancellableAdapter
from toolnexus.transport.failures import Timeouts
from toolnexus.transport.http import HTTPRequest, Limits, Transport
from toolnexus.transport.secret import Scrubber
from toolnexus.transport.source import EventSource


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def client_of(server: ModelServer, **options: Any) -> Client:
    return Client(server.base_url, style=server.style, **{"model": "m", "api_key": "test-key", **options})


def failed(client: Client, **options: Any) -> tuple[ToolnexusError, RunResult]:
    """Stream, and return the error that it must end with, and what was reached."""
    *_, last = client.stream("hi", **options)
    assert isinstance(last, Error), last
    assert last.partial is not None
    return last.error, last.partial


def answered(client: Client, **options: Any) -> str:
    """Stream, and return the text of the result that it must end with."""
    *_, last = client.stream("hi", **options)
    assert isinstance(last, Done), last
    return last.result.text


# -- time ------------------------------------------------------------------------------------


def test_net_01_silence_inside_a_body_is_an_idle_timeout() -> None:
    """Two deltas, then silence: a retryable idle timeout with the text, and the connection goes."""
    with RawServer([chunked(delta("a"), delta("b"), end=False), HOLD]) as server:
        client = make(server.url, idle_timeout=0.3, retries=0)
        began = time.monotonic()
        error, partial = failed(client)
        assert time.monotonic() - began < 3
        assert isinstance(error, IdleTimeoutError)
        assert error.retryable
        assert error.kind == "timeout"
        assert "idle_timeout=0.3 s" in error.message
        assert partial.text == "ab"
        server.wait_for_peer_close()


def test_net_02_a_slow_healthy_stream_outlives_every_timeout_but_the_total(server: ModelServer) -> None:
    """Each pause counts for itself; a total there is only where it was asked for."""
    server.say([f"{n}" for n in range(8)], delay=0.1)
    with client_of(server, connect_timeout=0.3, response_timeout=0.3, idle_timeout=0.3, retries=0) as client:
        assert answered(client) == "01234567"
        server.say(["late"], hold="headers")
        threading.Timer(0.5, server.release).start()
        error, _ = failed(client)
        assert isinstance(error, ResponseTimeoutError)
    server.say(["late"], hold="headers")
    threading.Timer(0.4, server.release).start()
    with client_of(server, response_timeout=5, idle_timeout=0.2) as client:
        assert answered(client) == "late"


def test_net_03_done_ends_the_turn_though_the_body_stays_open() -> None:
    """The end signal is the end; nobody waits for the connection."""
    with RawServer([chunked(delta("a"), STOP, DONE, end=False), HOLD]) as server:
        began = time.monotonic()
        assert answered(make(server.url)) == "a"
        assert time.monotonic() - began < 2
        server.wait_for_peer_close()  # and it is not used again


def test_net_06_comments_count_as_life_and_the_total_guards() -> None:
    """Pings keep a stream from being silent, as the design says; `timeout` ends it all the same."""
    pings: list[bytes | float | str] = [HEAD, chunk(delta("a"))]
    pings += [chunk(b": ping\n\n"), 0.05] * 200
    with RawServer(pings) as server:
        client = make(server.url, idle_timeout=0.2, retries=0)
        error, partial = failed(client, timeout=0.8)
        assert isinstance(error, RunTimeoutError)
        assert "0.8 s" in error.message
        assert partial.text == "a"
        server.wait_for_peer_close()


def test_a_trickle_of_header_bytes_ends_with_the_total() -> None:
    """Slow headers keep the socket alive; `timeout` ends the wait."""
    drip: list[bytes | float | str] = [b"HTTP/1.1 200 OK\r\nX-Slow: "]
    drip += [b"x", 0.05] * 200
    with RawServer(drip) as server:
        began = time.monotonic()
        error, _ = failed(make(server.url, retries=0), timeout=0.4)
        assert isinstance(error, RunTimeoutError)
        assert time.monotonic() - began < 3
        server.wait_for_peer_close()
        with pytest.raises(RunTimeoutError):
            make(server.url, retries=0).run("hi", timeout=0.4)


def test_pings_after_the_last_piece_do_not_keep_an_answer_open() -> None:
    """Once the answer said why it ended, what follows has a bounded time, pings or not."""
    pings: list[bytes | float | str] = [HEAD, chunk(delta("a") + STOP)]
    pings += [chunk(b": ping\n\n"), 0.05] * 200
    with RawServer(pings) as server:
        assert answered(make(server.url, idle_timeout=0.5)) == "a"
        server.wait_for_peer_close()


def test_b108_the_wait_for_headers_has_its_own_timeout() -> None:
    """Accepted, then silence: a response timeout that says so, counted from the connection."""
    with RawServer([HOLD]) as server:
        began = time.monotonic()
        error, _ = failed(make(server.url, response_timeout=0.3, connect_timeout=5, retries=0))
        assert isinstance(error, ResponseTimeoutError)
        assert error.retryable
        assert "response_timeout=0.3 s" in error.message
        assert 0.25 < time.monotonic() - began < 3
        server.wait_for_peer_close()


def test_the_response_timeout_lasts_until_the_first_byte_of_the_body() -> None:
    """Headers alone are no answer: after them only the rest of response_timeout is left."""
    with RawServer([0.3, HEAD, HOLD]) as server:
        began = time.monotonic()
        error, _ = failed(make(server.url, response_timeout=0.6, idle_timeout=60, retries=0))
        assert isinstance(error, ResponseTimeoutError)
        assert 0.5 < time.monotonic() - began < 3


def test_a_full_backlog_is_a_connect_timeout() -> None:
    """No connection within connect_timeout is an error of its own."""
    with full_backlog() as url:
        error, _ = failed(make(url, connect_timeout=0.3, response_timeout=60, retries=0))
    assert isinstance(error, ConnectTimeoutError)
    assert error.retryable
    assert "connect_timeout=0.3 s" in error.message


def test_a_silent_handshake_is_a_connect_timeout() -> None:
    """TLS belongs to connecting."""
    with silent_tls() as (url, server):
        error, _ = failed(make(url, connect_timeout=0.3, response_timeout=60, retries=0))
        assert isinstance(error, ConnectTimeoutError)
        server.wait_for_peer_close()


def test_a_silent_proxy_is_a_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does the way through a proxy."""
    with RawServer([HOLD]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        client = Client("https://model.invalid/v1", model="m", api_key="k", connect_timeout=0.3, retries=0)
        error, _ = failed(client)
        assert isinstance(error, ConnectTimeoutError)
        proxy.wait_for_peer_close()


def test_a_request_that_is_read_slowly_outlives_the_connect_timeout() -> None:
    """Sending a long prompt may take longer than connecting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def read_slowly() -> None:
            sock = listener.accept()[0]
            with sock:
                sock.settimeout(10)
                got = b""
                while b"\r\n\r\n" not in got:
                    got += sock.recv(65536)
                head, _, body = got.partition(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                missing = length - len(body)
                time.sleep(0.8)
                while missing > 0:
                    missing -= len(sock.recv(1 << 20))
                sock.sendall(chunked(delta("read"), STOP, DONE))

        thread = threading.Thread(target=read_slowly)
        thread.start()
        client = make(url, connect_timeout=0.3, response_timeout=10, retries=0)
        *_, last = client.stream("x" * 12_000_000)
        assert isinstance(last, Done), last
        thread.join()


def test_the_first_address_that_hangs_leaves_time_for_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a dead address and a living one is reached: each address gets a share of the time."""
    with full_backlog() as dead, ModelServer() as server:
        server.say("reached")
        ports = [int(url.rsplit(":", 1)[1]) for url in (dead, server.url)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: found)
        client = Client("http://two-addresses.local/v1", model="m", connect_timeout=0.6, retries=0)
        assert answered(client) == "reached"


def test_a_host_that_does_not_exist_is_a_connection_error() -> None:
    """A failed lookup is retryable; a name that cannot be looked up at all is a mistake."""
    error, _ = failed(Client("http://no-such-host.invalid/v1", model="m", api_key="k", retries=0))
    assert isinstance(error, APIConnectionError)
    assert error.retryable
    error, _ = failed(Client(f"http://{'x' * 70}.invalid/v1", model="m", api_key="k", retries=0))
    assert isinstance(error, ConfigurationError)


# -- connections -----------------------------------------------------------------------------


def test_net_05_connections_are_used_again(server: ModelServer) -> None:
    """Streams that ended well, whole answers and HTTP errors that were read all leave their connection."""
    with client_of(server, retries=0) as client:
        for _ in range(3):
            server.say(["a", "b"])
            assert answered(client) == "ab"
            server.say("whole")
            assert client.run("hi").text == "whole"
            server.fail(status=400, message="no")
            failed(client)
    assert server.connections == 1


def test_a_connection_is_not_used_again_after_a_cut(server: ModelServer) -> None:
    """A stream that was left, that failed inside, or that has more to say costs its connection."""
    with client_of(server, retries=0) as client:
        server.say(["a", "b"], hold=True)
        for _ in client.stream("hi"):
            break
        server.wait_for_disconnect(1)
        server.error_in_stream(after=["a"])
        failed(client)
        server.wait_for_disconnect(2)
        more = [delta("a"), STOP, DONE] + [b": " + b"x" * 65_000 + b"\n\n"] * 4
        server.raw(chunks=more)
        assert answered(client) == "a"
        server.wait_for_disconnect(3)
        server.say("well")
        assert answered(client) == "well"
    assert server.connections == 4


def test_what_follows_the_end_is_drained_a_little(server: ModelServer) -> None:
    """A few bytes after the end signal do not cost the connection."""
    with client_of(server, retries=0) as client:
        for _ in range(3):
            server.raw(chunks=[delta("a"), STOP, DONE, b": bye\n\n", b": bye\n\n"])
            assert answered(client) == "a"
    assert server.connections == 1


def test_a_server_that_closes_idle_connections_costs_nothing() -> None:
    """Each request finds its pooled connection closed, and opens another one."""
    whole = chunked(delta("a"), STOP, DONE)
    with RawServer([whole, CLOSE]) as server:
        client = make(server.url, retries=0)
        for n in range(1, 5):
            assert answered(client) == "a"
            assert server.connections == n
            time.sleep(0.05)  # let the FIN arrive: a request that crosses it is a failed try


def test_a_hundred_streams_at_once(server: ModelServer) -> None:
    """The pool grows with the streams, nothing blocks, and the connections serve again afterwards."""
    together = threading.Barrier(100, timeout=30)

    def answer(request: RecordedRequest) -> Any:
        together.wait()
        return reply(["n", request.json["messages"][0]["content"]])

    server.on_request(answer)
    with client_of(server, retries=0) as client:
        texts: dict[int, str] = {}

        def one(n: int) -> None:
            texts[n] = client.stream(str(n)).result().text

        for _ in range(2):
            threads = [threading.Thread(target=one, args=(n,)) for n in range(100)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert texts == {n: f"n{n}" for n in range(100)}
            texts.clear()
        assert server.connections == 100


@pytest.mark.parametrize("kind", ["own", "plain", "cancellable"])
def test_net_16_one_client_in_many_threads(server: ModelServer, kind: str) -> None:
    """Every stream gets its own answer, whoever owns the session."""
    server.on_request(lambda request: reply([request.json["messages"][0]["content"]]))
    session = None if kind == "own" else requests.Session()
    if session is not None and kind == "cancellable":
        session.mount("http://", CancellableAdapter())
    with client_of(server, session=session) as client, ThreadPoolExecutor(16) as pool:
        asked = [f"nonce-{n}" for n in range(160)]
        got = list(pool.map(lambda nonce: client.stream(nonce).result().text, asked))
    assert got == asked
    if session is not None:
        session.close()


def test_net_16_many_hosts_over_one_session() -> None:
    """More hosts than pools are kept: no pool is closed under a request."""
    session = requests.Session()
    session.mount("http://", CancellableAdapter(pool_connections=2))
    servers = [ModelServer() for _ in range(8)]
    try:
        for server in servers:
            server.on_request(lambda request: reply([request.json["messages"][0]["content"]]))
        clients = [client_of(server, session=session, retries=0) for server in servers]
        with ThreadPoolExecutor(16) as pool:
            jobs = [pool.submit(c.stream(f"{n}").result) for n in range(10) for c in clients]
            assert [job.result(30).text for job in jobs] == [f"{n}" for n in range(10) for _ in clients]
    finally:
        session.close()
        for server in servers:
            server.close()


# -- cuts and framings -----------------------------------------------------------------------

CUTS: dict[str, list[bytes | float | str]] = {
    "inside a chunk": [chunked(delta("a"), delta("b"), end=False) + b"5\r\nda", CLOSE],
    "reset": [chunked(delta("a"), delta("b"), end=False), 0.05, RESET],
    "a chunk without a size": [chunked(delta("a"), delta("b"), end=False) + b"\r\n", CLOSE],
    "a chunk size that is none": [chunked(delta("a"), delta("b"), end=False) + b"zz\r\n", CLOSE],
    "between chunks": [chunked(delta("a"), delta("b"), end=False), CLOSE],
    "after the last chunk": [chunked(delta("a"), delta("b")), CLOSE],
    "shorter than its length": [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
        + delta("a")
        + delta("b"),
        CLOSE,
    ],
    "without a length": [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + delta("a") + delta("b"),
        CLOSE,
    ],
    "broken gzip": [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n"
        b"Connection: close\r\n\r\n" + gzip.compress(delta("a") + delta("b"))[:-12],
        CLOSE,
    ],
}


@pytest.mark.parametrize("steps", CUTS.values(), ids=CUTS)
def test_net_07_09_10_a_connection_that_breaks_is_a_truncated_stream(steps: Any) -> None:
    """One error for all of them, never a Done, and the text is kept."""
    with RawServer(steps) as server:
        error, partial = failed(make(server.url, retries=0))
    assert isinstance(error, TruncatedStreamError)
    assert error.retryable
    assert error.kind == "truncated"
    assert partial.text == "ab" or "gzip" in str(steps)


def test_bytes_that_are_no_gzip_are_a_truncated_stream() -> None:
    """A wrong Content-Encoding is an error of ours, not one of a library's."""
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    with RawServer([head + delta("a") + STOP + DONE]) as server:
        error, _ = failed(make(server.url, retries=0))
    assert isinstance(error, TruncatedStreamError)


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_net_08_a_cut_inside_arguments_runs_nothing(style: str) -> None:
    """The call is seen by nobody but on the error."""
    ran: list[Any] = []
    tool = Tool("create", execute=lambda args, ctx: ran.append(args))
    with ModelServer(style=style) as server:
        server.call("create", '{"command": "create', pieces=2, cut="close")
        *_, last = client_of(server, retries=0).stream("go", [tool])
    assert isinstance(last, Error)
    assert isinstance(last.error, TruncatedStreamError)
    assert ran == []


def test_net_17_syn_04_gaps_are_kept_through_every_entry_point(server: ModelServer) -> None:
    """Each delta comes when it was sent, from stream(), text_deltas(), ask(on_text) and chunks()."""

    def spread(moments: list[float]) -> float:
        return min(b - a for a, b in itertools.pairwise(moments))

    class Stopwatch:
        moments: list[float]

        def __call__(self, text: str) -> None:
            self.moments.append(time.monotonic())

    stopwatch = Stopwatch()
    with client_of(server) as client:
        for way in ("stream", "text_deltas", "ask", "chunks"):
            server.say(["a", "b", "c"], delay=0.1)
            moments = stopwatch.moments = []
            if way == "ask":
                client.ask("hi", on_text=stopwatch)
            elif way == "text_deltas":
                for _ in client.stream("hi").text_deltas():
                    moments.append(time.monotonic())
            else:
                items: Any = client.stream("hi") if way == "stream" else client.chunks("hi")
                for item in items:
                    if item.type in ("text", "text_delta"):
                        moments.append(time.monotonic())
            assert len(moments) == 3
            assert spread(moments) > 0.03, way


WHOLE = {
    "id": "x",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


def test_net_18_the_body_decides_not_the_header(server: ModelServer) -> None:
    """JSON where a stream was asked, and a stream under any name, are both read."""
    with client_of(server, retries=0) as client:
        for kind in ("application/json", "text/event-stream", None):
            server.raw(json.dumps(WHOLE).encode(), content_type=kind)
            assert answered(client) == "whole"
            server.raw(b"\n" + json.dumps(WHOLE, indent=2).encode(), content_type=kind)
            assert answered(client) == "whole"
            server.raw(delta("str") + delta("eam") + STOP + DONE, content_type=kind)
            assert answered(client) == "stream"


def test_net_19_a_stream_where_a_whole_answer_was_asked(server: ModelServer) -> None:
    """run() puts the pieces together."""
    server.raw(delta("str") + delta("eam") + STOP + DONE)
    with client_of(server, retries=0) as client:
        assert client.run("hi").text == "stream"


@pytest.mark.parametrize("body", [b"", b"\n\n\n\n", b": ping\n\n", b"\xef\xbb\xbf", b"data: \n\n"])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_net_20_21_an_empty_body_is_an_empty_response(server: ModelServer, body: bytes, kind: str) -> None:
    """Never a success: a retryable error, from stream() and run(), that says how much came."""
    with client_of(server, retries=0) as client:
        server.raw(body, content_type=kind)
        error, _ = failed(client)
        assert isinstance(error, EmptyResponseError)
        assert error.retryable
        assert error.kind == "empty_response"
        assert "empty" in error.message or "holds no event" in error.message
        server.raw(body, content_type=kind)
        with pytest.raises(EmptyResponseError):
            client.run("hi")


def test_a_web_page_is_named_as_one(server: ModelServer) -> None:
    """A captive portal's page with status 200 says its title, and is no answer."""
    page = b"<!DOCTYPE html><html><head><title>Please log in</title></head><body>x</body></html>"
    with client_of(server, retries=0) as client:
        server.raw(page, content_type="text/html")
        error, _ = failed(client)
        assert isinstance(error, MalformedEventError)
        assert "Please log in" in error.message
        server.raw(page, status=502, content_type="text/html")
        error, _ = failed(client)
        assert isinstance(error, APIStatusError)
        assert error.status == 502
        assert "Please log in" in error.message


# -- limits ----------------------------------------------------------------------------------


def test_an_event_may_be_only_so_long(server: ModelServer) -> None:
    """The limit is named; a line without end does not fill the memory."""
    server.raw(chunks=[delta("a"), *([b"data: " + b"x" * 65_536] + [b"x" * 65_536] * 40)])
    with client_of(server, retries=0, max_event_bytes=1_000_000) as client:
        error, partial = failed(client)
    assert isinstance(error, LimitError)
    assert not error.retryable
    assert "max_event_bytes=1000000" in error.message
    assert partial.text == "a"
    server.wait_for_disconnect()


def test_an_answer_may_be_only_so_long(server: ModelServer) -> None:
    """So many bytes in all, streamed or whole."""
    with client_of(server, retries=0, max_response_bytes=100_000) as client:
        server.say(["x" * 1000] * 200)
        error, partial = failed(client)
        assert isinstance(error, LimitError)
        assert "max_response_bytes=100000" in error.message
        assert partial.text.startswith("x")
        server.say("x" * 200_000)
        with pytest.raises(LimitError, match="max_response_bytes=100000"):
            client.run("hi")


def test_an_answer_may_have_only_so_many_events(server: ModelServer) -> None:
    """The transport counts them."""
    server.raw(b"data: x\n\n" * 20)
    transport = Transport(None, Timeouts(), Limits(response_events=10))
    request = HTTPRequest(server.base_url + "/x", {}, b"{}", Scrubber(server.base_url, {}), "server")
    exchange = transport.open(request, CancelScope())
    events = exchange.events(lambda ready: None)
    assert [next(events).data for _ in range(10)] == ["x"] * 10
    with pytest.raises(LimitError, match="more than 10 events"):
        next(events)
    exchange.close()
    transport.close()


def test_a_line_of_four_megabytes_comes_through(server: ModelServer) -> None:
    """Whole, and in time that is linear in its length."""
    with client_of(server) as client:
        took = []
        for size in (2 * 2**20, 4 * 2**20):
            server.raw(chunks=[*_pieces(delta("x" * size), 16_384), STOP, DONE])
            began = time.monotonic()
            assert len(answered(client)) == size
            took.append(time.monotonic() - began)
    assert took[1] < took[0] * 6 + 0.5


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
def test_gzip_is_read_live(server: ModelServer, framing: Any) -> None:
    """A compressed stream arrives event by event."""
    server.say(["a", "b"], gzip=True, framing=framing, hold=framing != "length")
    with client_of(server) as client:
        stream = client.stream("hi")
        assert next(stream) == Text("a")
        assert next(stream) == Text("b")
        server.release()
        assert isinstance(list(stream)[-1], Done)


def test_a_compressed_bomb_is_stopped(server: ModelServer) -> None:
    """max_response_bytes counts what comes out of the decoder."""
    server.raw(b": " + b"x" * 50_000_000 + b"\n\n", gzip=True)
    with client_of(server, retries=0, max_response_bytes=1_000_000) as client:
        error, _ = failed(client)
    assert isinstance(error, LimitError)


@pytest.mark.parametrize("first", [b"data: ", b"{", b"\0"], ids=["events", "document", "zeros"])
@pytest.mark.parametrize("streaming", [True, False])
def test_the_rest_of_an_answer_that_is_too_long_is_not_read(first: bytes, streaming: bool) -> None:
    """It is cut, so it says nothing; joining and decoding it would take longer than unpacking it did."""
    pieces = [first + bytes(1000), *[bytes(1000)] * 200]
    source = EventSource(lambda: pieces.pop(0), max_response_bytes=100_000, streaming=streaming)
    assert list(source) == []
    assert isinstance(source.failure, LimitError)
    assert source.cut_event
    assert 95 < len(pieces) < 105


# -- redirects, cookies, sessions ------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", ["own", "user's"])
def test_no_redirect_is_followed(server: ModelServer, status: int, kind: str) -> None:
    """The key goes where base_url points to, and nowhere else."""
    with ModelServer() as other, requests.Session() as session:
        server.raw(b"moved", status=status, headers={"Location": f"{other.base_url}/chat/completions"})
        with client_of(server, retries=2, session=None if kind == "own" else session) as client:
            error, _ = failed(client)
        assert isinstance(error, APIStatusError)
        assert error.status == status
        assert not error.retryable
        assert "redirect" in error.message
        assert "base_url" in error.message
        assert other.connections == 0
        assert len(server.requests) == 1


def test_a_session_of_the_users_own_keeps_what_it_has(server: ModelServer) -> None:
    """Cookies, headers, hooks, auth and params of the session are used; it is not closed."""
    seen: list[int] = []
    session = requests.Session()
    session.cookies.set("sticky", "yes")
    session.headers["X-Mine"] = "1"
    session.params = {"tenant": "t1"}
    session.hooks["response"].append(lambda response, **kwargs: seen.append(response.status_code))
    server.say("one", headers={"Set-Cookie": "route=a"})
    server.say("two")
    with client_of(server, session=session) as client:
        assert answered(client) == "one"
    with client_of(server, session=session) as client:
        assert answered(client) == "two"
    first, second = server.requests
    assert first.headers["cookie"] == "sticky=yes"
    assert first.headers["x-mine"] == "1"
    assert first.query == "tenant=t1"
    assert "route=a" in second.headers["cookie"]
    assert seen == [200, 200]
    assert first.headers["authorization"] == "Bearer test-key"
    session.close()


def test_cookies_of_our_own_session_are_kept(server: ModelServer) -> None:
    """A balancer that pins a conversation by a cookie finds it again."""
    server.say("one", headers={"Set-Cookie": "route=a"})
    server.say("two")
    with client_of(server) as client:
        answered(client)
        answered(client)
    assert "cookie" not in server.requests[0].headers
    assert server.requests[1].headers["cookie"] == "route=a"


@pytest.mark.parametrize("adapter", [False, True], ids=["plain", "cancellable"])
def test_a_session_of_the_users_own_times_out_as_ours_does(adapter: bool) -> None:
    """Each timeout has its own error there, too."""
    session = requests.Session()
    if adapter:
        for scheme in ("http://", "https://"):
            session.mount(scheme, CancellableAdapter())
    options: dict[str, Any] = {"session": session, "retries": 0}
    with full_backlog() as url:
        error, _ = failed(make(url, connect_timeout=0.2, response_timeout=1, **options))
        assert isinstance(error, ConnectTimeoutError)
    with silent_tls() as (url, _server):
        error, _ = failed(make(url, connect_timeout=0.2, response_timeout=1, **options))
        assert isinstance(error, ConnectTimeoutError)
    with RawServer([HOLD]) as server:
        error, _ = failed(make(server.url, connect_timeout=5, response_timeout=0.2, **options))
        assert isinstance(error, ResponseTimeoutError)
    for head in (HEAD, HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")):
        with RawServer([head + chunk(delta("a")), HOLD]) as server:
            error, partial = failed(make(server.url, response_timeout=30, idle_timeout=0.2, **options))
            assert isinstance(error, IdleTimeoutError)
            assert partial.text == "a"
            server.wait_for_peer_close()
    session.close()


def test_a_connection_that_other_code_opened_can_be_cancelled(server: ModelServer) -> None:
    """A session with our adapter that was used before: its pooled connection obeys the scope, too."""
    with requests.Session() as session:
        session.mount("http://", CancellableAdapter())
        server.raw(b"{}", content_type="application/json")
        assert session.get(server.url + "/models").json() == {}
        server.say(["a", "b"], hold="headers")
        scope = CancelScope()

        def cancel() -> None:
            server.wait_for_request(2)
            scope.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        list(client_of(server, session=session).stream("hi", scope=scope))
        server.wait_for_disconnect()
        assert server.connections == 1
        thread.join()


def test_netrc_does_not_override_the_key(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .netrc for the host stays unused, with our session and with a user's."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login thief password stolen\ndefault login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with requests.Session() as session:
        for given in (None, session):
            server.say("hi")
            answered(client_of(server, session=given))
    assert [r.headers["authorization"] for r in server.requests] == ["Bearer test-key"] * 2


# -- proxies and certificates ----------------------------------------------------------------


def test_net_13_proxies_of_environment_and_session(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY is used, NO_PROXY spares a host, and a session's own proxies work as well."""
    server.on_request(lambda request: reply("hi"))
    with Proxy() as proxy, requests.Session() as session:
        with client_of(server) as client:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.setenv("http_proxy", proxy.url)
            assert answered(client) == "hi"
            assert proxy.targets == [("POST", f"{server.base_url}/chat/completions")]
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            assert answered(client) == "hi"
            assert len(proxy.targets) == 1
        session.trust_env = False
        session.proxies["http"] = proxy.url
        assert answered(client_of(server, session=session)) == "hi"
        assert len(proxy.targets) == 2


def test_a_tunnel_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTPS goes through CONNECT, and the proxy never sees the key."""
    with ModelServer(tls=True) as server, Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.ca_path))
        server.say(["a", "b"])
        with client_of(server) as client:
            assert answered(client) == "ab"
        assert [method for method, _ in proxy.targets] == ["CONNECT"]
        assert b"test-key" not in b"".join(proxy.heads)


@pytest.mark.parametrize(("status", "retryable"), [(407, False), (403, False), (502, True), (429, True)])
def test_a_proxy_that_refuses_a_tunnel(status: int, retryable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing password is not tried again, a busy proxy is; the message has what it said."""
    with RawServer([b"HTTP/1.1 %d Sorry\r\nContent-Length: 0\r\n\r\n" % status, CLOSE]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        error, _ = failed(Client("https://model.invalid/v1", model="m", api_key="k", retries=0))
        assert isinstance(error, APIConnectionError)
        assert f"{status} Sorry" in error.message
        assert error.retryable is retryable


def test_net_14_a_certificate_authority_by_environment_and_by_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ways work; without, the error says what to do, and trying again would not help."""
    with ModelServer(tls=True) as server, requests.Session() as session:
        with client_of(server) as client:
            error, _ = failed(client)
            assert isinstance(error, APIConnectionError)
            assert not error.retryable
            assert "REQUESTS_CA_BUNDLE" in error.message
            assert "session.verify" in error.message
            assert len(server.requests) == 0
            server.say("env")
            with monkeypatch.context() as patch:
                patch.setenv("REQUESTS_CA_BUNDLE", str(server.ca_path))
                assert answered(client) == "env"
        server.say("session")
        session.verify = str(server.ca_path)
        assert answered(client_of(server, session=session)) == "session"
        session.verify = "/no/such/bundle.pem"
        error, _ = failed(client_of(server, session=session))
        assert isinstance(error, ConfigurationError)
        assert "CA bundle" in error.message


def test_a_handshake_that_breaks_is_tried_again() -> None:
    """A TLS connection that is cut is no refusal: the next one may work."""
    with RawServer([b"", CLOSE], read_request=False) as server:
        url = server.url.replace("http:", "https:")
        error, _ = failed(make(url, retries=0))
        assert isinstance(error, APIConnectionError)
        assert error.retryable
    with RawServer([b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSE], read_request=False) as plain:
        error, _ = failed(make(plain.url.replace("http:", "https:"), retries=0))
        assert isinstance(error, APIConnectionError)
        assert not error.retryable


def test_a_proxy_that_is_no_url_is_named(monkeypatch: pytest.MonkeyPatch, server: ModelServer) -> None:
    """The mistake is in the proxy's address, and the message says so."""
    monkeypatch.setenv("HTTP_PROXY", "http:///nowhere")
    monkeypatch.setenv("http_proxy", "http:///nowhere")
    error, _ = failed(client_of(server))
    assert isinstance(error, ConfigurationError)
    assert "proxy" in error.message


# -- nothing left ----------------------------------------------------------------------------


def test_closing_a_client_closes_its_connections(server: ModelServer) -> None:
    """Both sides see it, and the client can be used again."""
    before = open_sockets()
    client = client_of(server)
    for text in ("one", "two"):
        server.say(text)
        assert answered(client) == text
        client.close()
        assert until(lambda: server.live_connections == 0)
    assert until(lambda: open_sockets() <= before)


def test_events_of_any_kind_after_done_are_not_read(server: ModelServer) -> None:
    """Nothing after the end signal can change the result."""
    server.raw(chunks=[delta("a"), STOP, DONE, event(payload(content="ghost")), event({"error": "late"})])
    with client_of(server) as client:
        assert answered(client) == "a"
