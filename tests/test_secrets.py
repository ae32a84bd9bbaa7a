"""Keys stay out of everything that people read; and what the log does say."""

from __future__ import annotations

import contextlib
import copy
import http.client
import io
import json
import logging
import pickle
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.exact import chunked, delta, make, until
from tests.support.proxy import Proxy
from tests.support.raw import CLOSE, HOLD, RawServer, full_backlog, silent_tls
from toolnexus import CancelScope, Client, Error, RunCancelledError, ToolnexusError
from toolnexus.testing import ModelServer
from toolnexus.transport.connection import CancellableAdapter

KEY = "sk-TESTKEY123/+"
QUERY = "QUERYKEY456"
HEADER = "HEADERKEY789"
SECRETS = ("TESTKEY123", QUERY, HEADER)


@contextlib.contextmanager
def everything_said() -> Iterator[io.StringIO]:
    """Collect what all loggers say at DEBUG, and what http.client prints."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(n) for n in ("urllib3", "requests", "toolnexus"))]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    before, http.client.HTTPConnection.debuglevel = http.client.HTTPConnection.debuglevel, 1
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield said
    finally:
        http.client.HTTPConnection.debuglevel = before
        root.removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def secret_client(url: str, **options: Any) -> Client:
    """Return a client with a secret in each place that can hold one."""
    return Client(
        f"{url}/v1?key={QUERY}",
        model="m",
        api_key=KEY,
        headers={"X-Own": HEADER},
        **{"retries": 0, **options},
    )


def shown_by(error: BaseException) -> str:
    """Return all that an exception shows: itself, its traceback with causes, its fields, its pickled form."""
    parts = ["".join(traceback.format_exception(error)), repr(error), str(error), repr(vars(error))]
    parts += [pickle.dumps(error).decode("latin-1"), repr(copy.deepcopy(error))]
    cause: BaseException | None = error
    while cause is not None:
        parts.append(f"{cause!r} {cause} {vars(cause)!r}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, ToolnexusError) and error.partial is not None:
        parts += [repr(error.partial), json.dumps(error.partial.to_dict())]
    return "\n".join(parts)


def assert_discreet(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, text[max(0, text.index(secret) - 200) :][:400]


@contextlib.contextmanager
def failing(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the URL of an endpoint that fails in some way, and options for the client."""
    if kind == "refused":
        yield "http://127.0.0.1:1", {}
    elif kind == "no such host":
        yield "http://no-such-host.invalid", {}
    elif kind == "full backlog":
        with full_backlog() as url:
            yield url, {"connect_timeout": 0.1}
    elif kind == "handshake":
        with silent_tls() as (url, _):
            yield url, {"connect_timeout": 0.1}
    elif kind == "not tls":
        with RawServer([b"HTTP/1.1 400 Bad\r\n\r\n"], read_request=False) as server:
            yield server.url.replace("http:", "https:"), {}
    else:
        echo = f"you sent {KEY} and ?key={QUERY} and X-Own: {HEADER}"
        body = json.dumps({"error": {"message": echo, "code": KEY, "x": [{KEY: HEADER}]}}).encode()
        sized = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        in_stream = b"data: " + body + b"\n\n"
        steps: dict[str, list[Any]] = {
            "no headers": [HOLD],
            "closed before the headers": [CLOSE],
            "no http": [b"NOT HTTP AT ALL " + KEY.encode() + b"\r\n\r\n"],
            "echo in an error": [sized % (b"401 Unauthorized", len(body), body)],
            "echo in a text": [sized % (b"500 Oops", len(echo), echo.encode())],
            "redirect": [
                b"HTTP/1.1 302 Found\r\nLocation: /x?key=%b\r\nContent-Length: 0\r\n\r\n" % QUERY.encode()
            ],
            "cut": [chunked(delta("a"), end=False) + b"5\r\nda", CLOSE],
            "silence": [chunked(delta("a"), end=False), HOLD],
            "echo in a stream": [chunked(in_stream)],
            "echo without JSON": [chunked(b"data: " + echo.encode() + b"\n\n")],
        }
        with RawServer(steps[kind]) as server:
            yield server.url, {"response_timeout": 0.2, "idle_timeout": 0.2}


KINDS = [
    "refused", "no such host", "full backlog", "handshake", "not tls", "no headers",
    "closed before the headers", "no http", "echo in an error", "echo in a text", "redirect", "cut",
    "silence", "echo in a stream", "echo without JSON",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("session", ["own", "cancellable", "plain"])
def test_sec_01_02_no_key_in_an_error_or_a_log(kind: str, session: str) -> None:
    """Whatever fails: no key in the error with all its causes, pickled or not, nor in any log."""
    given = None if session == "own" else requests.Session()
    if given is not None and session == "cancellable":
        given.mount("http://", CancellableAdapter())
        given.mount("https://", CancellableAdapter())
    with everything_said() as said, failing(kind) as (url, options):
        if session == "plain":
            # What urllib3 and http.client themselves print cannot be helped without our adapter.
            http.client.HTTPConnection.debuglevel = 0
            logging.getLogger("urllib3").setLevel(logging.INFO)
        client = secret_client(url, session=given, **options)
        *_, last = client.stream("hi")
        with pytest.raises(ToolnexusError) as caught:
            client.run("hi")
    assert isinstance(last, Error)
    for error in (last.error, caught.value):
        assert_discreet(shown_by(error))
    assert_discreet(repr(last))
    assert_discreet(said.getvalue())
    assert "toolnexus" in said.getvalue() or kind not in ("cut", "silence")
    if given is not None:
        given.close()


def test_sec_01_no_key_in_a_client_nor_in_what_goes_well() -> None:
    """repr, vars and results of a client that works, and all that is logged meanwhile."""
    with everything_said() as said, ModelServer() as server:
        server.say("hello")
        server.say("hello")
        client = secret_client(server.url)
        events = list(client.stream("hi"))
        result = client.run("hi")
        stream = client.stream("hi")
        shown = [
            repr(client),
            repr(vars(client._runner)),
            repr(client._runner.options),
            str(client),
            repr(stream),
        ]
        shown += [repr(events), repr(result), json.dumps(result.to_dict()), repr(vars(stream))]
        stream.close()
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[0].query == f"key={QUERY}"
    assert_discreet("\n".join(shown))
    assert_discreet(said.getvalue())
    assert "/v1/chat/completions" in said.getvalue()  # urllib3 was heard


def test_no_proxy_password_in_an_error_or_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of a proxy are secrets, too."""
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(variable, "http://user:PROXYPASS@127.0.0.1:1")
    with everything_said() as said:
        for scheme in ("http", "https"):
            *_, last = Client(f"{scheme}://model.invalid/v1", model="m", api_key="k", retries=0).stream("hi")
            assert isinstance(last, Error)
            assert "PROXYPASS" not in shown_by(last.error)
    assert "PROXYPASS" not in said.getvalue()
    with Proxy() as proxy, ModelServer() as server:
        for variable in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, f"http://user:PROXYPASS@127.0.0.1:{proxy.port}")
        server.say("hi")
        with everything_said() as said:
            assert Client(server.base_url, model="m", api_key="k").run("hi").text == "hi"
        assert b"Proxy-Authorization: Basic" in proxy.heads[0]
        assert "PROXYPASS" not in said.getvalue()


# -- what the log says -----------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("toolnexus")]


def test_one_line_a_request_a_retry_and_a_cancel(caplog: pytest.LogCaptureFixture) -> None:
    """At debug, under "toolnexus", with the run's id in front."""
    caplog.set_level(logging.DEBUG, "toolnexus")
    with ModelServer() as server:
        client = make(server.url)
        server.fail(status=503, headers={"Retry-After": "0"})
        server.say("fine")
        stream = client.stream("hi")
        list(stream)
        said = lines(caplog)
        assert len(said) == 3, said
        assert all(line.startswith(stream.run_id) for line in said)
        assert "answered 503" in said[0]
        assert "answered 200" in said[2]
        assert "attempt 1 failed (server)" in said[1]
        assert "next one in" in said[1]
        caplog.clear()
        server.say(["a", "b"], hold=True)
        scope = CancelScope()
        threading.Timer(0.1, scope.cancel, args=("enough",)).start()
        with pytest.raises(RunCancelledError):
            client.run("hi", scope=scope)
        assert [line for line in lines(caplog) if "ended early" in line and "enough" in line]
        caplog.clear()
        server.say(["a", "b"], hold=True)
        for _ in client.stream("hi"):
            break
        assert until(lambda: any("ended early" in line for line in lines(caplog)))
    assert len([line for line in lines(caplog) if "ended early" in line]) == 1


def test_the_log_is_quiet_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed without a handler, and no handler of ours is there to swallow anything."""
    assert logging.getLogger("toolnexus").handlers == []
    with ModelServer() as server:
        client = make(server.url)
        server.fail(status=503, headers={"Retry-After": "0"})
        server.say("fine")
        assert client.run("hi").text == "fine"
        server.say(["a"], hold=True)
        for _ in client.stream("hi"):
            break
    assert capfd.readouterr() == ("", "")


def test_prompts_are_logged_only_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """log_content turns them on; the key is not among them."""
    caplog.set_level(logging.DEBUG)
    with ModelServer() as server:
        server.say("an ANSWERTEXT")
        make(server.url).run("a PROMPTTEXT")
        assert "PROMPTTEXT" not in caplog.text
        assert "ANSWERTEXT" not in caplog.text
        server.say("answer")
        secret_client(server.url, log_content=True).run("a PROMPTTEXT")
        assert "PROMPTTEXT" in caplog.text
        assert_discreet(caplog.text)
