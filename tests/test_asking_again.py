"""From the second request on, a client sends what was written for the first: that must not be seen."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.support.listening import Listening
from tests.support.raw import CLOSE, RESET, RawServer, _read_request
from toolnexus import CancelScope, Client, RunResult
from toolnexus.errors import (
    APIConnectionError,
    ResponseTimeoutError,
    RunCancelledError,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.testing import ModelServer
from toolnexus.transport.again import Template, ask_again
from toolnexus.transport.failures import Timeouts
from toolnexus.transport.http import HTTPRequest, Limits, Transport
from toolnexus.transport.secret import Scrubber

EVENTS = (
    b'data: {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "hello"}}]}\n\n'
    b'data: {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


def head(*lines: str, status: str = "200 OK", version: str = "HTTP/1.1") -> bytes:
    return "\r\n".join((f"{version} {status}", "Content-Type: text/event-stream", *lines, "", "")).encode()


def chunks(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)


CHUNKED = head("Transfer-Encoding: chunked") + chunks(EVENTS)


class Answers(Listening):
    """Answers requests in order, over connections that stay open until an answer says how they end."""

    def __init__(self, *answers: bytes | Sequence[bytes | str]) -> None:
        self._answers = [[answer] if isinstance(answer, bytes) else list(answer) for answer in answers]
        self.requests: list[bytes] = []
        super().__init__()

    def serve(self, sock: socket.socket) -> None:
        """Answer what comes over a connection."""
        while True:
            self.requests.append(_read_request(sock))
            for step in self._answers.pop(0):
                if isinstance(step, bytes):
                    sock.sendall(step)
                    continue
                if step == RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return


def texts(server: Answers, count: int, **options: object) -> list[str]:
    """Ask so many times with one client."""
    with Client(server.url, model="m", api_key="sk-test", retries=0, **options) as client:  # type: ignore[arg-type]
        return [client.run(f"question {'x' * 40 * n}").text for n in range(count)]


def test_all_requests_have_the_same_head_but_for_the_length() -> None:
    with Answers(*[CHUNKED] * 4) as server:
        assert texts(server, 4, headers={"X-Title": "t"}) == ["hello"] * 4
    heads, lengths = [], []
    for request in server.requests:
        text, _, body = request.partition(b"\r\n\r\n")
        lines = text.split(b"\r\n")
        lengths += [int(line.split()[1]) for line in lines if line.startswith(b"Content-Length:")]
        heads.append([line for line in lines if not line.startswith(b"Content-Length:")])
        assert lengths[-1] == len(body)
    assert server.connections == 1
    assert len(set(lengths)) == 4
    assert all(lines == heads[0] for lines in heads)
    assert b"Authorization: Bearer sk-test" in heads[0]
    assert b"Host: 127.0.0.1:%d" % server.port in heads[0]


def test_the_second_request_already_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def asked_again(pool: Any, written: bytes, patience: Timeouts) -> Any:
        sent.append(written)
        return ask_again(pool, written, patience)

    monkeypatch.setattr("toolnexus.transport.connection.ask_again", asked_again)
    with Answers(*[CHUNKED] * 4) as server:
        assert texts(server, 4) == ["hello"] * 4
    assert sent == server.requests[1:]


def test_headers_of_one_name_are_joined_each_time() -> None:
    refused = (
        head("Content-Length: 2", "X-Request-Id: a", "X-Request-Id: b", status="400 Bad Request") + b"{}"
    )
    failed = head("Transfer-Encoding: chunked", "X-Request-Id: a", "X-Request-Id: b") + chunks(
        b'data: {"error": {"message": "no"}}\n\n'
    )
    with (
        Answers(*[refused, failed] * 3) as server,
        Client(server.url, model="m", api_key="sk-test", retries=0) as client,
    ):
        for _ in range(6):
            with pytest.raises(ToolnexusError) as caught:
                client.run("hi")
            assert caught.value.request_id == "a, b"


def test_a_key_that_changes_is_the_next_request_s_key() -> None:
    keys = ["sk-first-key", "sk-first-key", "sk-other-key", "sk-first-key"]
    with Answers(*[CHUNKED] * 4) as server:
        transport = Transport(None, Timeouts(), Limits())
        for key in keys:
            headers = {"Authorization": f"Bearer {key}"}
            request = HTTPRequest(f"{server.url}/v1", headers, b"{}", Scrubber(server.url, headers), "here")
            exchange = transport.open(request, CancelScope())
            assert [event.data for event in exchange.events(lambda ready: None)][-1] == "[DONE]"
            exchange.close(reuse=True)
        transport.close()
    sent = [request.partition(b"Bearer ")[2].split(b"\r\n")[0].decode() for request in server.requests]
    assert sent == keys
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        pytest.param(CHUNKED, 1, id="chunked"),
        pytest.param(head(f"Content-Length: {len(EVENTS)}") + EVENTS, 1, id="length"),
        pytest.param([head("Connection: close") + EVENTS, CLOSE], 4, id="until it closes"),
        pytest.param(
            [head("Transfer-Encoding: chunked", "Connection: close") + chunks(EVENTS), CLOSE], 4, id="last"
        ),
        pytest.param([head(version="HTTP/1.0") + EVENTS, CLOSE], 4, id="HTTP/1.0"),
        pytest.param(
            head("Transfer-Encoding: chunked", "Content-Encoding: gzip") + chunks(gzip.compress(EVENTS)),
            1,
            id="gzip",
        ),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + CHUNKED, 1, id="interim"),
    ],
)
def test_every_kind_of_answer_comes_whole_each_time(
    answer: bytes | Sequence[bytes | str], connections: int
) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with Answers(*[answer] * 4) as server:
        assert texts(server, 4) == ["hello"] * 4
        assert server.connections == connections
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param([RESET], APIConnectionError, id="reset"),
        pytest.param([CLOSE], APIConnectionError, id="no answer"),
        pytest.param([b"what?\r\n\r\n", CLOSE], APIConnectionError, id="no HTTP"),
        pytest.param(
            [head(f"Content-Length: {len(EVENTS)}") + EVENTS[:90], CLOSE], TruncatedStreamError, id="length"
        ),
        pytest.param([CHUNKED[:160], CLOSE], TruncatedStreamError, id="chunk"),
    ],
)
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_what_breaks_is_the_same_error_each_time(
    earlier: int, answer: Sequence[bytes | str], error: type[ToolnexusError]
) -> None:
    with (
        Answers(*[CHUNKED] * earlier, answer, CHUNKED) as server,
        Client(server.url, model="m", api_key="sk-test", retries=0) as client,
    ):
        for _ in range(earlier):
            client.run("hi")
        with pytest.raises(error) as caught:
            client.run("hi")
        assert type(caught.value) is error
        assert client.run("hi").text == "hello"


def test_an_answer_before_the_request_was_read_is_read() -> None:
    """The server refuses a long request and goes, while the client is still sending."""
    refusal = head("Content-Length: 2", "Connection: close", status="413 Too Large") + b"{}"

    class Hasty(Answers):
        def serve(self, sock: socket.socket) -> None:
            if not self.requests:
                self.requests.append(_read_request(sock))
                sock.sendall(CHUNKED)
            sock.recv(1000)
            sock.sendall(refusal)
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while sock.recv(65536):
                    pass

    with Hasty() as server, Client(server.url, model="m", api_key="sk-test", retries=0) as client:
        client.run("hi")
        with pytest.raises(ToolnexusError) as caught:
            client.run("x" * 8_000_000)
    assert caught.value.status == 413


def test_silence_is_a_response_timeout_each_time() -> None:
    with (
        Answers(CHUNKED, CHUNKED, [b"", RESET]) as server,
        RawServer([30.0]) as silent,
        Client(server.url, model="m", api_key="k", retries=0, response_timeout=0.2) as client,
    ):
        client.run("hi")
        client.run("hi")
        with Client(silent.url, model="m", api_key="k", retries=0, response_timeout=0.2) as other:
            for _ in range(2):
                with pytest.raises(ResponseTimeoutError):
                    other.run("hi")


def test_cookies_come_back_and_are_those_of_the_last_answer() -> None:
    def setting(value: str) -> bytes:
        return head("Transfer-Encoding: chunked", f"Set-Cookie: lb={value}; Path=/") + chunks(EVENTS)

    with Answers(CHUNKED, setting("a"), setting("b"), CHUNKED, CHUNKED) as server:
        assert texts(server, 5) == ["hello"] * 5
    cookies = [request.partition(b"Cookie: ")[2].split(b"\r\n")[0] for request in server.requests]
    assert cookies == [b"", b"", b"lb=a", b"lb=b", b"lb=b"]


def test_a_proxy_that_appears_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        Answers(CHUNKED, CHUNKED, CHUNKED) as server,
        Answers(CHUNKED, CHUNKED) as proxy,
        Client(server.url, model="m", api_key="k", retries=0) as client,
    ):
        client.run("hi")
        client.run("hi")
        monkeypatch.setenv("http_proxy", proxy.url)
        client.run("hi")
        client.run("hi")
        monkeypatch.delenv("http_proxy")
        client.run("hi")
    wanted = f"POST {server.url}/chat/completions HTTP/1.1".encode()
    assert [request.split(b"\r\n")[0] for request in proxy.requests] == [wanted, wanted]
    assert len(server.requests) == 3
    assert all(request.startswith(b"POST /chat/completions ") for request in server.requests)


@pytest.mark.parametrize("scheme", ["http", "HTTP", "https", "HTTPS", "Https"])
def test_what_the_environment_says_is_looked_up_anew_however_the_url_is_written(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", f"{scheme.lower()}_proxy", f"{scheme.upper()}_PROXY"):
        monkeypatch.delenv(name, raising=False)
    transport = Transport(None, Timeouts(), Limits())
    session = transport.session()
    url = f"{scheme}://host.example/v1"
    assert not transport._environment(session, url)["proxies"]
    monkeypatch.setenv(f"{scheme.lower()}_proxy", "http://proxy.example:1")
    assert transport._environment(session, url)["proxies"][scheme.lower()] == "http://proxy.example:1"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/some/where")
    secure = scheme.lower() == "https"
    assert (transport._environment(session, url)["verify"] == "/some/where") is secure
    transport.close()


def test_two_endpoints_of_one_client_do_not_mix() -> None:
    """A fallback has its own address and key."""
    broken = head("Content-Length: 2", status="401 Unauthorized") + b"{}"
    with Answers(*[broken] * 3) as first, Answers(*[CHUNKED] * 3) as second:
        other = Client(second.url, model="b", api_key="sk-second")
        with Client(first.url, model="a", api_key="sk-first", fallbacks=[other], retries=0) as client:
            results: list[RunResult] = [client.run("hi") for _ in range(3)]
        other.close()
    assert [result.text for result in results] == ["hello"] * 3
    assert all(b"Bearer sk-first\r\n" in request for request in first.requests)
    assert all(b"Bearer sk-second\r\n" in request for request in second.requests)


def test_many_threads_ask_again_at_once() -> None:
    with ModelServer() as server, Client(server.base_url, model="m", api_key="k") as client:
        server.on_request(lambda request: f"echo {request.json['messages'][-1]['content']}")
        wrong: list[str] = []

        def ask(number: int) -> None:
            for turn in range(20):
                said = f"{number}-{turn}-{'x' * (number * 7 + turn)}"
                answer = client.run(said).text
                if answer != f"echo {said}":
                    wrong.append(answer)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "odd",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b'{"a": "\r\nContent-Length: 5\r\n"}',
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nPOST",
    ],
)
def test_a_head_that_is_not_understood_is_not_used(odd: bytes) -> None:
    template = Template.__new__(Template)
    template._head = None
    template.learn(odd)
    assert template.written(b"body") is None


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("phase", ["headers", "mid-event"])
@pytest.mark.parametrize("way", ["stream", "run"])
def test_a_later_request_is_cancelled_as_the_first_is(
    tls: bool, phase: Literal["headers", "mid-event"], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(tls=tls) as server:
        if tls:
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.ca_path))
        with Client(server.base_url, model="m", api_key="k", retries=0) as client:
            for _ in range(2):
                server.say("hello")
                assert client.run("hi").text == "hello"
            server.say(["one ", "two"], hold=phase)
            scope = CancelScope()
            left = server.disconnects

            def cancel() -> None:
                server.wait_for_request(3)
                time.sleep(0.1)
                scope.cancel()

            canceller = threading.Thread(target=cancel)
            canceller.start()
            ask = client.run if way == "run" else lambda *args, **kw: client.stream(*args, **kw).result()
            with pytest.raises(RunCancelledError) as caught:
                ask("hi", scope=scope)
            canceller.join()
            server.wait_for_disconnect(left + 1)
            assert caught.value.partial is not None
            # `run` asks for a whole answer, of which half is nothing yet.
            streamed = way == "stream" and phase == "mid-event"
            assert caught.value.partial.text == ("one two" if streamed else "")
            server.say("again")
            assert client.run("hi").text == "again"


def test_tls_is_agreed_on_once_and_not_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(tls=True) as server:
        for _ in range(3):
            server.say("hello")
        with Client(server.base_url, model="m", api_key="k", retries=0) as client:
            with pytest.raises(APIConnectionError, match="TLS"):
                client.run("hi")
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.ca_path))
            assert [client.run("hi").text for _ in range(3)] == ["hello"] * 3
            monkeypatch.delenv("REQUESTS_CA_BUNDLE")
            with pytest.raises(APIConnectionError, match="TLS"):
                client.run("hi")
