"""Which failed tries are tried again, how long the wait is, and who decides."""

from __future__ import annotations

import datetime
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from typing import Any

import attrs
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exact import DONE, STOP, chunked, delta, event, make, payload
from tests.support.raw import CLOSE, RESET, RawServer, full_backlog
from toolnexus import (
    APIConnectionError,
    APIStatusError,
    AttemptFailed,
    AuthenticationError,
    CancelScope,
    Client,
    ConfigurationError,
    Done,
    Error,
    ErrorInfo,
    HookError,
    QuotaError,
    RateLimitError,
    RunCancelledError,
    RunTimeoutError,
    Text,
    ToolnexusError,
)
from toolnexus.errors import APIError, LimitError
from toolnexus.testing import ModelServer, failure, raw, reply, stream_error
from toolnexus.transport.connection import CancellableAdapter
from toolnexus.transport.retry import RetryPolicy


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


def quick(server: ModelServer, **options: Any) -> Client:
    """Return a client whose backoff is short, so that a test need not wait for it."""
    client = Client(server.base_url, style=server.style, model="m", api_key="k", **options)
    retry = attrs.evolve(client._runner.options.retry, base=0.01)
    client._runner.options = attrs.evolve(client._runner.options, retry=retry)
    client._runner.open()
    return client


def kinds(result: Any) -> list[str | None]:
    return [attempt.kind for attempt in result.attempts]


# -- what is tried again ---------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_these_statuses_are_tried_again(server: ModelServer, status: int) -> None:
    """By run() and stream() alike; the caller sees nothing of it but in the attempts."""
    for _ in range(2):
        server.fail(status=status, message="not now")
        server.say("fine")
    with quick(server) as client:
        result = client.run("hi")
        events = list(client.stream("hi"))
    assert result.text == "fine"
    assert [(a.attempt, a.error is None) for a in result.attempts] == [(1, False), (2, True)]
    assert [e.type for e in events] == ["text", "usage", "done"]
    assert kinds(events[-1].result) == kinds(result)  # type: ignore[attr-defined]
    server.assert_done()


AT_ONCE: dict[str, dict[str, Any]] = {
    "400": {"status": 400},
    "401": {"status": 401},
    "402": {"status": 402},
    "403": {"status": 403},
    "404": {"status": 404},
    "405": {"status": 405},
    "413": {"status": 413},
    "422": {"status": 422},
    "quota by type": {"status": 429, "type": "insufficient_quota"},
    "quota by message": {"status": 429, "message": "You exceeded your current quota"},
    "the server says no": {"status": 503, "headers": {"x-should-retry": "false"}},
}


@pytest.mark.parametrize("options", AT_ONCE.values(), ids=AT_ONCE)
def test_these_fail_at_once(server: ModelServer, options: dict[str, Any]) -> None:
    """Waiting would not help: one request, and the error says so."""
    server.fail(**options)
    with quick(server) as client, pytest.raises(APIStatusError) as caught:
        client.run("hi")
    assert not caught.value.retryable
    assert caught.value.attempt == 1
    assert len(server.requests) == 1


def test_a_server_may_ask_for_another_try(server: ModelServer) -> None:
    """x-should-retry goes before the status."""
    server.fail(status=400, headers={"x-should-retry": "true"})
    server.say("fine")
    with quick(server) as client:
        assert client.run("hi").text == "fine"


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error", "api_error"])
def test_rty_04_05_an_error_inside_the_stream_before_any_text(server: ModelServer, kind: str) -> None:
    """A 200 that turns into an error is tried again, and the caller sees one clean stream."""
    server.error_in_stream(type=kind, message="busy")
    server.say(["a", "b"])
    with quick(server) as client:
        events = list(client.stream("hi"))
    assert [e.type for e in events] == ["text", "text", "usage", "done"]
    assert len({e.message_id for e in events[:2]}) == 1
    server.assert_done()


def test_rty_04_a_stream_that_began_without_text() -> None:
    """A message that only started has handed out nothing."""
    start = {"type": "message_start", "message": {"id": "m", "model": "m", "usage": {"input_tokens": 1}}}
    busy = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with ModelServer(style="anthropic") as server:
        server.raw(chunks=[event(start, "message_start"), event(busy, "error")])
        server.say("fine")
        with quick(server) as client:
            events = list(client.stream("hi"))
    assert [e.type for e in events] == ["text", "usage", "done"]
    assert kinds(events[-1].result) == ["overloaded", None]  # type: ignore[attr-defined]


BROKEN: dict[str, Any] = {
    "empty": b"",
    "truncated": event(payload(role="assistant", content="")),
    "malformed": b"data: {nonsense\n\n",
    "a page": b"<html><title>Bad gateway</title></html>",
    "a lone end": DONE,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_broken_stream_before_any_text(body: bytes) -> None:
    """Empty, truncated and malformed answers are tried again."""
    with ModelServer() as server:
        for _ in range(2):
            server.raw(body)
            server.say("fine")
        with quick(server) as client:
            assert client.run("hi").text == "fine"
            assert client.stream("hi").result().text == "fine"


@pytest.mark.parametrize("ending", [CLOSE, RESET])
def test_net_11_a_connection_that_breaks(ending: str) -> None:
    """Closed or reset before an answer and inside one: the same kind of retry, and no text about it."""
    with ModelServer() as server:
        answers: list[Any] = [
            raw(b"", cut="reset" if ending == RESET else "close", framing="length"),
            raw(chunks=[event(payload(role="assistant"))], cut="reset" if ending == RESET else "close"),
            reply("fine"),
        ]
        server.play(answers * 2)
        with quick(server) as client:
            result = client.run("hi")
            events = list(client.stream("hi"))
    assert result.text == "fine"
    assert [e for e in events if isinstance(e, Text)] == [Text("fine")]
    assert len(result.attempts) == 3


def test_a_host_that_cannot_be_reached() -> None:
    """A refused connection is tried again as often as is allowed, and the error counts the tries."""
    client = Client("http://127.0.0.1:1/v1", model="m", api_key="k", retries=1)
    with pytest.raises(APIConnectionError) as caught:
        client.run("hi")
    assert caught.value.attempt == 2
    assert caught.value.partial is not None
    assert len(caught.value.partial.attempts) == 2


def test_a_connection_that_hangs_is_tried_again() -> None:
    """A connect timeout is no reason to give up."""
    with full_backlog() as url, pytest.raises(APIConnectionError) as caught:
        make(url, connect_timeout=0.1, retries=1).run("hi")
    assert caught.value.attempt == 2


def test_a_limit_is_not_tried_again() -> None:
    """An answer that is too long would be so again."""
    with ModelServer() as server:
        server.say("x" * 5000)
        with quick(server, max_response_bytes=1000) as client, pytest.raises(LimitError):
            client.run("hi")
        assert len(server.requests) == 1


def test_an_idle_timeout_is_tried_again() -> None:
    """Silence inside an answer whose text nobody has seen."""
    with ModelServer() as server:
        server.say(["a", "b"], hold=True)
        server.say("fine")
        with quick(server, idle_timeout=0.2) as client:
            assert client.run("hi").text == "fine"


def test_retries_0_is_one_request(server: ModelServer) -> None:
    """No second try whatever the error."""
    server.fail(status=503)
    with quick(server, retries=0) as client, pytest.raises(APIStatusError):
        client.run("hi")
    assert len(server.requests) == 1


def test_rty_02_the_last_error_is_the_servers_own(server: ModelServer) -> None:
    """Status, body, request id and wait of the last try reach the caller."""
    for n in range(3):
        server.fail(
            status=429,
            message=f"daily cap {n}",
            headers={"Retry-After": "0", "x-request-id": f"req-{n}", "request-id": f"req-{n}"},
        )
    with quick(server) as client, pytest.raises(RateLimitError) as caught:
        client.run("hi")
    error = caught.value
    assert (error.status, error.attempt, error.request_id, error.retry_after) == (429, 3, "req-2", 0.0)
    assert "daily cap 2" in error.message
    assert "daily cap 2" in json.dumps(error.body)
    assert len(server.requests) == 3


def test_each_turn_has_its_own_tries(server: ModelServer) -> None:
    """Retries of one turn do not count against the next."""
    from toolnexus import Tool

    for answer in (failure(503), failure(503)):
        server.play(answer)
    server.call("echo", {})
    server.play([failure(503), failure(503)])
    server.say("fine")
    with quick(server) as client:
        result = client.run("go", [Tool("echo", execute=lambda args, ctx: "x")])
    assert result.text == "fine"
    assert [(a.turn, a.attempt) for a in result.attempts] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]


# -- after text went out ---------------------------------------------------------------------


def test_after_text_there_is_no_other_try_by_default(server: ModelServer) -> None:
    """The partial text stays, and the error says that another try may help."""
    server.error_in_stream(after=["half"], type="overloaded_error")
    with quick(server) as client:
        *events, last = client.stream("hi")
    assert events == [Text("half")]
    assert isinstance(last, Error)
    assert last.error.retryable
    assert len(server.requests) == 1


def test_retry_after_output_takes_text_back(server: ModelServer) -> None:
    """Each failed try is announced with its text; when none is left, the error ends the stream."""
    server.play([stream_error(["a"]), stream_error(["b", "c"]), stream_error(["d"])])
    with quick(server) as client:
        stream = client.stream("hi", retry_after_output=True)
        events = list(stream)
    shown: list[Any] = [
        e.text if isinstance(e, AttemptFailed) else getattr(e, "delta", e.type) for e in events
    ]
    assert shown == ["a", "a", "b", "c", "bc", "d", "error"]
    assert stream.text == "d"
    assert isinstance(events[-1], Error)
    assert events[-1].error.attempt == 3


# -- how long --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ({"Retry-After": "0.4"}, 0.4, 3),
        ({"retry-after-ms": "400"}, 0.4, 3),
        ({"retry-after-ms": "400", "Retry-After": "60"}, 0.4, 3),
        ({"Retry-After": "0"}, 0, 2),
        ({"Retry-After": "-5"}, 0, 2),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 2),
        ({"Retry-After": "abc"}, 0, 2),
        ({"Retry-After": ""}, 0, 2),
        ({"Retry-After": "nan"}, 0, 2),
        ({"Retry-After": "1e9"}, 0, 2),
    ],
)
def test_rty_01_retry_after(header: dict[str, str], least: float, most: float) -> None:
    """Seconds and milliseconds are waited for; nonsense and the past are not, and nothing crashes."""
    with ModelServer() as server:
        server.fail(status=429, headers=header)
        server.say("fine")
        with quick(server) as client:
            client.run("hi")
        first, second = server.requests
        assert least <= second.received_at - first.received_at < most


def test_rty_01_retry_after_as_a_date() -> None:
    """A date in the future is waited for."""
    with ModelServer() as server:
        moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
        server.fail(status=503, headers={"Retry-After": format_datetime(moment, usegmt=True)})
        server.say("fine")
        with quick(server) as client:
            client.run("hi")
        first, second = server.requests
        assert 0.7 < second.received_at - first.received_at < 6


@pytest.mark.parametrize("asked", ["100000", "Fri, 31 Dec 2999 23:59:59 GMT"])
def test_rty_02_a_wait_beyond_the_cap_fails_at_once(asked: str) -> None:
    """Nobody sleeps for a year because a header says so; the error keeps what was asked for."""
    with ModelServer() as server:
        server.fail(status=429, headers={"Retry-After": asked})
        began = time.monotonic()
        with quick(server) as client, pytest.raises(RateLimitError) as caught:
            client.run("hi")
        assert time.monotonic() - began < 5
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 1000
        assert len(server.requests) == 1


def test_a_wait_never_goes_beyond_the_runs_timeout() -> None:
    """Where the wait would outlast the run, the error comes at once instead of a timeout later."""
    with ModelServer() as server:
        server.fail(status=503, headers={"Retry-After": "30"})
        began = time.monotonic()
        with quick(server) as client, pytest.raises(APIStatusError):
            client.run("hi", timeout=5)
        assert time.monotonic() - began < 3


def test_tries_that_never_end_end_with_the_runs_timeout() -> None:
    """A total deadline bounds all tries together."""
    with ModelServer() as server:
        server.on_request(lambda request: failure(503, headers={"Retry-After": "0.05"}))
        with quick(server, retries=10_000) as client, pytest.raises(ToolnexusError) as caught:
            client.run("hi", timeout=0.6)
        assert isinstance(caught.value, (RunTimeoutError, APIStatusError))
        assert 2 <= len(server.requests) < 30


@pytest.mark.parametrize("way", ["run", "stream"])
def test_a_wait_ends_at_once_on_cancel(way: str) -> None:
    """Backing off is a phase like the others."""
    with ModelServer() as server:
        server.fail(status=503, headers={"Retry-After": "60"})
        scope = CancelScope()

        def cancel() -> None:
            server.wait_for_request()
            time.sleep(0.05)
            scope.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        began = time.monotonic()
        with quick(server) as client, pytest.raises(RunCancelledError):
            client.run("hi", scope=scope) if way == "run" else client.stream("hi", scope=scope).result()
        assert time.monotonic() - began < 5
        thread.join()


errors = st.builds(
    lambda retryable, asked, status: APIStatusError(
        "x", retryable=retryable, retry_after=asked, status=status
    ),
    st.booleans(),
    st.none() | st.floats(0, 1e6),
    st.sampled_from([None, 429, 503]),
)


@given(
    error=errors,
    retries=st.integers(0, 50),
    attempt=st.integers(1, 2000),
    base=st.floats(0.001, 10),
    cap=st.floats(0.001, 100),
    most=st.floats(0, 1000),
    remaining=st.none() | st.floats(0, 1000),
)
def test_the_delay_stays_within_its_bounds(
    error: APIError,
    retries: int,
    attempt: int,
    base: float,
    cap: float,
    most: float,
    remaining: float | None,
) -> None:
    """Never negative, never over the cap, never beyond the run's time, none when none is left."""
    policy = RetryPolicy(retries=retries, base=base, cap=cap, max_retry_after=most)
    delay = policy.delay(error, attempt, remaining)
    if not error.retryable or attempt > retries:
        assert delay is None
        return
    asked = error.retry_after
    if asked is not None:
        assert delay in (asked, None)
        assert (delay is None) == (asked > most or (remaining is not None and asked >= remaining))
        return
    limit = min(cap, base * 2 ** min(attempt - 1, 100))
    if delay is None:
        assert remaining is not None
        assert remaining <= limit
    else:
        assert 0 <= delay <= limit
        assert remaining is None or delay < remaining


def test_the_backoff_grows_and_varies() -> None:
    """Full jitter: anything from nothing to twice as much with each try."""
    policy = RetryPolicy(retries=10, base=1.0, cap=1000.0)
    error = APIConnectionError("x")
    for attempt in range(1, 6):
        delays = [policy.delay(error, attempt, None) or 0.0 for _ in range(400)]
        most = 2.0 ** (attempt - 1)
        assert max(delays) <= most
        assert max(delays) > most * 0.8
        assert min(delays) < most * 0.2


def test_each_wait_is_longer_than_the_one_before() -> None:
    """Jitter does not make waits shrink; at the cap, where they cannot grow, they vary again."""
    policy = RetryPolicy(retries=20, base=0.5, cap=8.0)
    error = APIConnectionError("x")
    for _ in range(100):
        waited = 0.0
        for attempt in range(1, 6):
            delay = policy.delay(error, attempt, None, waited) or 0.0
            assert delay > waited * 1.2
            waited = delay
    delays = [policy.delay(error, 10, None, 7.9) or 0.0 for _ in range(100)]
    assert max(delays) - min(delays) > 2


# -- who decides -----------------------------------------------------------------------------


def test_on_error_decides_instead(server: ModelServer) -> None:
    """It may retry what would fail and fail what would be retried, and knows what there is to know."""
    seen: list[ErrorInfo] = []

    def on_error(info: ErrorInfo) -> Any:
        seen.append(info)
        return "retry" if info.status == 404 else "fail"

    server.play([failure(404, message="loading"), failure(404, message="loading"), failure(503)])
    with quick(server, on_error=on_error, retries=5) as client, pytest.raises(APIStatusError) as caught:
        client.run("hi")
    assert caught.value.status == 503
    assert [(i.status, i.attempt, i.retries_left, i.retryable) for i in seen] == [
        (404, 1, 5, False),
        (404, 2, 4, False),
        (503, 3, 3, True),
    ]
    assert len(server.requests) == 3


def test_on_error_is_bounded_by_retries(server: ModelServer) -> None:
    """It cannot make more tries than are allowed, and is not asked when none is left."""
    asked: list[int] = []

    def on_error(info: ErrorInfo) -> Any:
        asked.append(info.attempt)
        return "retry"

    server.on_request(lambda request: failure(400))
    with quick(server, on_error=on_error, retries=2) as client, pytest.raises(APIStatusError):
        client.run("hi")
    assert asked == [1, 2]
    assert len(server.requests) == 3


def test_an_on_error_that_raises_is_a_hook_error(server: ModelServer) -> None:
    """A bug in it is said so, and not retried."""

    def on_error(info: ErrorInfo) -> Any:
        raise ZeroDivisionError("mine")

    server.fail(status=503)
    with (
        quick(server, on_error=on_error) as client,
        pytest.raises(HookError, match="on_error raised ZeroDivisionError"),
    ):
        client.run("hi")
    assert len(server.requests) == 1


def test_an_on_error_that_says_neither_is_a_hook_error(server: ModelServer) -> None:
    """A True is no verdict: the mistake is told, not taken for a no."""
    server.fail(status=503)
    said = 'must return "retry" or "fail", not True'
    with quick(server, on_error=lambda info: True) as client, pytest.raises(HookError, match=said):
        client.run("hi")


def test_b101_what_is_no_failure_of_the_network_is_not_tried_again() -> None:
    """A bug in a session's hook leaves as what it is, after one request."""
    session = requests.Session()
    session.mount("http://", CancellableAdapter())

    def hook(response: Any, **kwargs: Any) -> None:
        raise KeyError("mine")

    session.hooks["response"].append(hook)
    with ModelServer() as server:
        server.on_request(lambda request: reply("hi"))
        client = Client(server.base_url, model="m", api_key="k", session=session)
        with pytest.raises(ToolnexusError, match="KeyError") as caught:
            client.run("hi")
        assert isinstance(caught.value.__cause__, KeyError)
        assert len(server.requests) == 1
        *_, last = client.stream("hi")
        assert isinstance(last, Error)
        assert "KeyError" in last.error.message
        assert len(server.requests) == 2
    session.close()


@pytest.mark.parametrize("way", ["hook", "signal"])
def test_b101_keyboard_interrupt_leaves_after_one_request(way: str) -> None:
    """Ctrl-C is no network fault: raised by a hook or by a signal, it is not tried again."""
    with ModelServer() as server:
        server.on_request(lambda request: reply("hi", hold="headers" if way == "signal" else False))
        code = textwrap.dedent(f"""
            import requests
            from toolnexus import Client
            session = requests.Session()
            def hook(response, **kwargs):
                raise KeyboardInterrupt
            if {way!r} == "hook":
                session.hooks["response"].append(hook)
            client = Client({server.base_url!r}, model="m", api_key="k", session=session)
            try:
                client.run("hi")
            except KeyboardInterrupt:
                print("interrupted")
        """)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        server.wait_for_request(timeout=20)
        if way == "signal":
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        assert out == "interrupted\n"
        assert len(server.requests) == 1


def test_a_missing_key_is_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known before anything is sent raises from the call, and is not retried."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError):
        Client("https://api.openai.com/v1", model="m").run("hi")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (failure(401), AuthenticationError),
        (failure(429, code="insufficient_quota"), QuotaError),
        (failure(402), QuotaError),
    ],
)
def test_quota_and_auth_have_their_own_errors(answer: Any, kind: type[ToolnexusError]) -> None:
    """A program can tell them from a rate limit."""
    with ModelServer() as server:
        server.play(answer)
        with quick(server) as client, pytest.raises(kind):
            client.run("hi")


def test_connections_are_used_again_between_tries() -> None:
    """An error whose body was read does not cost its connection."""
    with ModelServer() as server:
        server.play([failure(503), failure(429), reply("fine")])
        with quick(server) as client:
            *_, last = client.stream("hi")
        assert isinstance(last, Done)
        assert server.connections == 1


def test_a_try_after_a_cut_has_a_new_connection() -> None:
    """What broke is not used again."""
    first = chunked(event(payload(role="assistant")), end=False)
    with RawServer([first, RESET]) as server:
        asked: list[Callable[[], Any]] = []
        with pytest.raises(APIConnectionError):
            make(server.url, retries=1).run("hi", deps=asked)
        assert server.connections == 2
    with RawServer([chunked(delta("a"), STOP, DONE)]) as server:
        assert make(server.url).run("hi").text == "a"
