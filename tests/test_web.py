"""Streams to the web: real WSGI servers, clients that leave and come back, background readers."""

from __future__ import annotations

import gc
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
import requests

from toolnexus import Client, ConfigurationError, Custom, Done, Error, Event, Text, Tool, pending
from toolnexus.compose import continue_sse, event_to_dict, record, redact, replay, run_in_background, web
from toolnexus.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(base_url=server.base_url, model="m", retries=0) as client:
        yield client


class Threaded(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return None


@pytest.fixture
def site(client: Client) -> Iterator[Callable[..., str]]:
    """Serve client.stream("hi").sse(...) with the standard library's own WSGI server."""
    started: list[WSGIServer] = []

    def serve(**options: Any) -> str:
        def app(environ: dict[str, Any], start_response: Any) -> Any:
            last = environ.get("HTTP_LAST_EVENT_ID")
            body = client.stream("hi").sse(**options) if last is None else continue_sse(last)
            if body is None:
                start_response("204 No Content", [])
                return []
            start_response("200 OK", list(body.headers.items()))
            return body

        server = make_server("127.0.0.1", 0, app, server_class=Threaded, handler_class=Quiet)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for each in started:
        each.shutdown()
        each.server_close()


def pieces(response: requests.Response) -> Iterator[bytes]:
    """Yield what arrives when it arrives, whatever the framing."""
    while data := response.raw.read1(65536):
        yield data


def events_of(response: requests.Response) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Read a response as (id, event, data)."""
    buffer = b""
    for piece in pieces(response):
        buffer += piece
        while b"\n\n" in buffer:
            block, _, buffer = buffer.partition(b"\n\n")
            fields = dict(
                line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":")
            )
            if "data" in fields:
                yield fields["id"], fields["event"], json.loads(fields["data"])


def test_a_stream_is_an_event_stream(server: ModelServer, site: Callable[..., str]) -> None:
    """Every event has an id, its type and its fields as JSON; the last is the terminal one."""
    server.say(["Hel", "lo\n\u2028"], usage=(5, 2))
    response = requests.get(site(), stream=True, timeout=10)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = list(events_of(response))
    assert [kind for _, kind, _ in events] == ["text", "text", "usage", "done"]
    assert [data["delta"] for _, kind, data in events if kind == "text"] == ["Hel", "lo\n\u2028"]
    assert events[-1][2]["result"]["text"] == "Hello\n\u2028"
    assert [id_.rpartition(":")[2] for id_, _, _ in events] == ["1", "2", "3", "4"]


def test_events_arrive_while_the_run_goes_on_and_silence_has_heartbeats(
    server: ModelServer, site: Callable[..., str]
) -> None:
    """The first delta is there before the answer ends; comments fill the silence."""
    server.say(["first", "last"], hold=True)
    with requests.get(site(heartbeat=0.1), stream=True, timeout=10) as response:
        got = b""
        for piece in pieces(response):
            got += piece
            if b": heartbeat" in got and b"first" in got:
                break
        assert b"event: done" not in got
        server.release()
        for piece in pieces(response):
            got += piece
    assert b"event: done" in got


def test_f121_a_client_that_leaves_cancels_the_run(server: ModelServer, site: Callable[..., str]) -> None:
    """The WSGI server's close() reaches the model's connection."""
    server.say(["a", "b"], hold=True)
    response = requests.get(site(heartbeat=0.05), stream=True, timeout=10)
    next(pieces(response))
    response.raw.shutdown()
    response.close()
    server.wait_for_disconnect(timeout=5)


def test_within_the_grace_a_client_may_come_back(server: ModelServer, site: Callable[..., str]) -> None:
    """Last-Event-ID continues the run behind that event; nothing is lost, nothing said twice."""
    server.say(["one ", "two ", "three"], hold=True)
    url = site(heartbeat=0.05, resume_grace=5.0)
    response = requests.get(url, stream=True, timeout=10)
    first_id, _, data = next(events_of(response))
    assert data["delta"] == "one "
    response.raw.shutdown()
    response.close()
    deadline = time.monotonic() + 5
    while not web._waiting and time.monotonic() < deadline:  # the server has to notice that we left
        time.sleep(0.01)
    again = requests.get(url, headers={"Last-Event-ID": first_id}, stream=True, timeout=10)
    server.release()
    events = list(events_of(again))
    assert [d["delta"] for _, kind, d in events if kind == "text"] == ["two ", "three"]
    assert events[-1][1] == "done"
    assert len(server.requests) == 1


def test_after_the_grace_the_run_is_cancelled(server: ModelServer, client: Client) -> None:
    """Who comes back too late gets nothing, and the server sees the close."""
    server.say(["a", "b"], hold=True)
    body = client.stream("hi").sse(resume_grace=0.1)
    first = next(body).decode()
    body.close()
    server.wait_for_disconnect(timeout=5)
    assert continue_sse(first.splitlines()[0].removeprefix("id: ")) is None
    assert continue_sse(None) is None
    assert continue_sse("nonsense") is None


def test_a_client_may_come_back_before_its_old_connection_has_ended(
    server: ModelServer, site: Callable[..., str]
) -> None:
    """The server has not noticed that the first one is gone: the new one takes over and gets the rest."""
    server.say(["one ", "two ", "three"], hold=True)
    url = site(heartbeat=None, resume_grace=5.0)
    response = requests.get(url, stream=True, timeout=10)
    first_id, _, data = next(events_of(response))
    assert data["delta"] == "one "
    again = requests.get(url, headers={"Last-Event-ID": first_id}, stream=True, timeout=10)
    assert again.status_code == 200
    server.release()
    events = list(events_of(again))
    assert [d["delta"] for _, kind, d in events if kind == "text"] == ["two ", "three"]
    assert events[-1][1] == "done"
    assert b"done" not in b"".join(pieces(response))
    assert len(server.requests) == 1
    # A browser comes back after the end, too: there is nothing more, and no second run.
    last = {"Last-Event-ID": events[-1][0]}
    assert requests.get(url, headers=last, timeout=10).content == b""
    assert requests.get(url, headers={"Last-Event-ID": "run-0:1"}, timeout=10).status_code == 204
    assert len(server.requests) == 1


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "1.0", "", "٣"])
def test_an_event_id_that_is_none_harms_nobody(number: str, server: ModelServer, client: Client) -> None:
    """What a client sends may be anything: it gets nothing, and the run still waits for the right one."""
    server.say(["a", "b"])
    body = client.stream("hi").sse(resume_grace=5)
    id_ = next(body).decode().splitlines()[0].removeprefix("id: ")
    body.close()
    run_id = id_.rpartition(":")[0]
    assert continue_sse(f"{run_id}:{number}") is None
    assert continue_sse(f"{run_id}:77") is None
    again = continue_sse(id_)
    assert again is not None
    assert b"event: done" in b"".join(again)


def test_a_client_that_has_missed_too_much_gets_nothing(server: ModelServer, client: Client) -> None:
    """What is no longer kept cannot be sent again, and a gap would not be seen."""
    server.say(["x"] * 1200)
    body = client.stream("hi").sse(resume_grace=5)
    ids = [next(body).decode().splitlines()[0].removeprefix("id: ") for _ in range(1100)]
    body.close()
    assert continue_sse(ids[98]) is None
    again = continue_sse(ids[99])
    assert again is not None
    rest = list(again)
    assert rest[0].decode().startswith(f"id: {ids[100]}\n")
    assert len(rest) == 1200 - 100 + 2


def test_a_body_that_is_dropped_without_close(server: ModelServer, client: Client) -> None:
    """Nobody can come back to it, so the run ends, whatever the grace."""
    server.say(["a", "b"], hold=True)
    body = client.stream("hi").sse(resume_grace=60)
    next(body)
    del body
    gc.collect()
    server.wait_for_disconnect(timeout=5)


def test_wrong_durations_are_told(client: Client) -> None:
    """A heartbeat of nothing or a negative grace is an error."""
    for wrong in ({"heartbeat": 0}, {"resume_grace": -1}):
        with pytest.raises(ConfigurationError):
            client.stream("hi").sse(**wrong)


def test_next_within_waits_no_longer_than_asked(server: ModelServer, client: Client) -> None:
    """None comes when nothing does; then the stream goes on."""
    server.say(["a", "b"], hold=True)
    stream = client.stream("hi")
    assert stream.next_within(5) == Text("a")
    assert stream.next_within(5) == Text("b")
    assert stream.next_within(0.05) is None
    server.release()
    assert isinstance(list(stream)[-1], Done)


def test_a_background_reader_gets_every_event_and_one_end(server: ModelServer, client: Client) -> None:
    """on_event for each, on_finish once with the terminal item; the run id tells runs apart."""
    seen: list[Event] = []
    ends: list[Any] = []
    server.say(["a", "b"])
    handle = run_in_background(client.stream("hi"), seen.append, ends.append)
    assert handle.join(10)
    assert seen[:2] == [Text("a"), Text("b")]
    assert len(ends) == 1
    assert isinstance(ends[0], Done)
    assert {e.run_id for e in seen} == {handle.run_id}


def test_f120_a_callback_that_raises_ends_the_run(
    server: ModelServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """on_finish is called once, with the error; the connection is closed."""
    ends: list[Any] = []
    server.say(["a", "b"], hold=True)
    handle = run_in_background(client.stream("hi"), lambda event: 1 / 0, ends.append)
    assert handle.join(10)
    assert len(ends) == 1
    assert isinstance(ends[0], Error)
    assert ends[0].error.kind == "cancelled"
    assert "ZeroDivisionError" in caplog.text
    server.wait_for_disconnect(timeout=5)


def test_a_background_run_can_be_cancelled_answered_and_tied_to_an_owner(
    server: ModelServer, client: Client
) -> None:
    """cancel() ends it, answer() answers, and the end of its owner ends it."""
    ends: list[Any] = []
    server.say(["a", "b"], hold=True)
    handle = run_in_background(client.stream("hi"), lambda e: None, ends.append)
    server.wait_for_request(timeout=5)
    handle.cancel()
    assert handle.join(10)
    assert isinstance(ends[0], Error)
    server.call("ask", {})
    server.say("ok")
    tool = Tool("ask", execute=lambda a, c: c.answer.data if c.answer else pending("?"))
    stream = client.stream("hi", [tool], answers="wait")

    def react(event: Event) -> None:
        if event.type == "pending":
            handle.answer(event.request, data="yes")  # type: ignore[attr-defined]

    handle = run_in_background(stream, react, ends.append)
    assert handle.join(10)
    assert isinstance(ends[-1], Done)

    class Window:
        pass

    window = Window()
    server.say(["a", "b"], hold=True)
    handle = run_in_background(client.stream("hi"), lambda e: None, ends.append, owner=window)
    server.wait_for_request(len(server.requests) + 0, timeout=5)
    del window
    gc.collect()
    assert handle.join(10)
    assert isinstance(ends[-1], Error)


def test_events_are_plain_json(server: ModelServer, client: Client) -> None:
    """Whatever an event holds has a JSON form, errors without what the provider sent as a whole."""
    server.call("odd", {})
    server.fail(status=400, message="no", code="bad")
    tool = Tool("odd", execute=lambda a, c: c.emit({"when": object()}))
    events = list(client.stream("hi", [tool], channels=["messages", "tools", "custom", "tasks", "values"]))
    data = json.loads(json.dumps([event_to_dict(e) for e in events]))
    assert data[-1]["error"]["status"] == 400
    assert "body" not in data[-1]["error"]
    assert {d["type"] for d in data} >= {"custom", "task", "value", "tool_call", "error"}


class _Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _endless() -> list[Any]:
    inside: list[Any] = [1]
    inside.append(inside)
    return inside


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("payload", "plain"),
    [
        (float("nan"), "nan"),
        ({"a": [float("inf"), 1.5]}, {"a": ["inf", 1.5]}),
        ({(1, 2): 3, None: 4, True: 5, 6: 7}, {"(1, 2)": 3, "null": 4, "true": 5, "6": 7}),
        ({b"k": {1}}, {"b'k'": "{1}"}),
        (_Mute(), "<_Mute>"),
        ([_Mute()], ["<_Mute>"]),
    ],
)
def test_whatever_a_payload_is_it_goes_to_a_browser(
    payload: Any, plain: Any, server: ModelServer, client: Client, tmp_path: Path
) -> None:
    """What has no JSON form becomes text, for a browser and for a recording, and nothing is missing."""
    tool = Tool("odd", execute=lambda a, c: c.emit(payload))
    server.call("odd", {})
    server.say("ok")
    sent = b"".join(client.stream("hi", [tool]).sse()).decode()
    lines = [line.removeprefix("data: ") for line in sent.split("\n") if line.startswith("data: ")]

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert next(e["payload"] for e in events if e["type"] == "custom") == plain
    assert events[-1]["type"] == "done"
    server.call("odd", {})
    server.say("ok")
    recorded = list(record(client.stream("hi", [tool]), tmp_path / "r.jsonl"))
    assert [e.type for e in replay(tmp_path / "r.jsonl")] == [e.type for e in recorded]


def test_a_payload_inside_itself_or_too_deep_is_cut() -> None:
    """It is shown as far as that makes sense."""
    for payload in (_endless(), _deep()):
        shown = json.dumps(event_to_dict(Custom(payload)))
        assert '"..."' in shown
        assert len(shown) < 1000


def test_a_payload_that_is_only_large_is_whole() -> None:
    """Many lists beside each other are not deep, nor are brackets in a text."""
    beside = [[number] for number in range(2000)]
    for payload in (beside, {"a": {"b": beside}}, ["[" * 3000, 'a "quoted" \\ [' * 600]):
        assert event_to_dict(Custom(payload))["payload"] == payload


class _Window:
    """What a GUI has: an object with the callbacks as its methods."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event)


def test_the_methods_of_an_owner_do_not_keep_it_alive(server: ModelServer, client: Client) -> None:
    """A window that is closed ends its run, though the run has called its methods."""
    server.say(["a", "b"], hold=True)
    window = _Window()
    handle = run_in_background(client.stream("hi"), window.on_event, window.on_event, owner=window)
    until = time.monotonic() + 5
    while not window.seen and time.monotonic() < until:
        time.sleep(0.005)
    assert window.seen[:1] == [Text("a")]
    del window
    gc.collect()
    assert handle.join(5)
    server.wait_for_disconnect(timeout=5)


@pytest.mark.parametrize("owner", [5, (1,), {}, "text"])
def test_an_owner_whose_end_cannot_be_known(owner: object, client: Client) -> None:
    """It is told at once, before anything runs."""
    with pytest.raises(ConfigurationError, match="owner"):
        run_in_background(client.stream("hi"), print, owner=owner)


@pytest.mark.parametrize("kind", ["consumed", "closed", "endless"])
def test_on_finish_is_called_however_little_there_is(kind: str, server: ModelServer, client: Client) -> None:
    """A stream that was read or closed before, or that has no terminal item, has an end, too."""
    stream: Any = redact([Text("a ")]) if kind == "endless" else client.stream("hi")
    if kind == "consumed":
        server.say("x")
        list(stream)
    elif kind == "closed":
        stream.close()
    ends: list[Any] = []
    assert run_in_background(stream, lambda event: None, ends.append).join(5)
    assert [type(end) for end in ends] == [Error]
    assert ends[0].error.kind


@pytest.mark.parametrize("raised", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
def test_f120_the_error_says_what_the_callback_raised(
    raised: BaseException, server: ModelServer, client: Client
) -> None:
    """on_finish is called once, and its error has what was raised as its cause."""

    def fail(event: Event) -> None:
        raise raised

    server.say(["a", "b"], hold=True)
    ends: list[Any] = []
    assert run_in_background(client.stream("hi"), fail, ends.append).join(5)
    assert len(ends) == 1
    assert ends[0].error.__cause__ is raised
    server.wait_for_disconnect(timeout=5)
