"""The scripted model server: what it says in each style, what it records, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from toolnexus.results import Usage
from toolnexus.testing import Call, ModelServer, Script, failure, raw, reply, stream_error, tool_call

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server that is closed after the test, and leaves no thread."""
    with ModelServer() as server:
        yield server
    assert not [t for t in threading.enumerate() if t.name.startswith("model-server")]


def post(server: ModelServer, style: str = "openai", **body: Any) -> requests.Response:
    """Ask a server as a client would, on a connection of its own."""
    body = {"model": "m", "messages": [], **body}
    return requests.post(server.url + PATHS[style], json=body, timeout=20, verify=str(server.ca_path or True))


def events(text: str) -> list[Any]:
    """Return the decoded data of a stream's events; the mark of the end as it is."""
    datas = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def deltas(text: str) -> list[dict[str, Any]]:
    """Return the deltas of an OpenAI stream."""
    chunks = [e for e in events(text) if e != "[DONE]" and e["choices"]]
    return [chunk["choices"][0]["delta"] for chunk in chunks]


# -- OpenAI ----------------------------------------------------------------------------------


def test_openai_stream_has_the_shape_of_the_provider(server: ModelServer) -> None:
    """Role chunk, one chunk a delta, finish chunk, [DONE]; the id and the model are in all."""
    server.say(["Hel", "lo"], thinking=["h", "mm"])
    response = post(server, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, end = events(response.text)
    assert end == "[DONE]"
    assert deltas(response.text) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "h"},
        {"reasoning_content": "mm"},
        {"content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["stop"]
    assert {(c["id"], c["model"], c["object"]) for c in chunks} == {
        ("chatcmpl-test-1", "m", "chat.completion.chunk")
    }


def test_openai_usage_comes_only_where_asked_for(server: ModelServer) -> None:
    """With include_usage every chunk has a usage field, and the last one, without choices, the counts."""
    server.say("Hi", usage=Usage(5, 2, 7, cached_tokens=3, reasoning_tokens=1))
    server.say("Hi", usage=(5, 2))
    *chunks, last, _ = events(post(server, stream=True, stream_options={"include_usage": True}).text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 7
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
    assert "usage" not in post(server, stream=True).text


def test_openai_call_is_streamed_in_as_many_pieces_as_asked(server: ModelServer) -> None:
    """The first fragment has id and name, the others a piece of the arguments each."""
    server.call("add", {"a": 2, "b": 3}, id="c1", pieces=2)
    fragments = [d["tool_calls"][0] for d in deltas(post(server, stream=True).text) if "tool_calls" in d]
    assert fragments[0] == {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": ""},
    }
    pieces = [fragment["function"]["arguments"] for fragment in fragments[1:]]
    assert len(pieces) == 2
    assert json.loads("".join(pieces)) == {"a": 2, "b": 3}


def test_openai_whole_answer_says_the_same(server: ModelServer) -> None:
    """Without stream the same script gives one document."""
    server.call_many([("add", {"a": 1}), Call("mul", '{"broken', "x")], text="let me see", thinking="hm")
    response = post(server)
    message = response.json()["choices"][0]["message"]
    assert response.headers["content-type"] == "application/json"
    assert (message["content"], message["reasoning_content"]) == ("let me see", "hm")
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("call_1_0", "add", '{"a":1}'),
        ("x", "mul", '{"broken'),
    ]
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert response.json()["usage"]["total_tokens"] == 15


# -- Anthropic -------------------------------------------------------------------------------


def test_anthropic_stream_has_the_shape_of_the_provider(server: ModelServer) -> None:
    """Event names match the types; blocks in order, the signature last in its block; usage cumulates."""
    server.say(
        "Hi", thinking="hmm", usage=Usage(9, 4, 13, cached_tokens=2, cache_write_tokens=1), calls=[("f", {})]
    )
    text = post(server, "anthropic", stream=True).text
    found = events(text)
    assert [line[7:] for line in text.splitlines() if line.startswith("event: ")] == [
        e["type"] for e in found
    ]
    assert [e["type"].removeprefix("content_block_") for e in found] == [
        *("message_start", "ping", "start", "delta", "delta", "stop", "start", "delta", "stop"),
        *("start", "delta", "delta", "stop", "message_delta", "message_stop"),
    ]
    assert found[0]["message"]["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 1,
        "cache_read_input_tokens": 2,
        "output_tokens": 1,
    }
    assert found[4]["delta"] == {"type": "signature_delta", "signature": "c2lnbmF0dXJl"}
    assert found[9]["content_block"] == {"type": "tool_use", "id": "call_1_0", "name": "f", "input": {}}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert found[-2]["usage"]["output_tokens"] == 4


def test_anthropic_whole_answer_says_the_same(server: ModelServer) -> None:
    """Without stream the same script gives one message."""
    server.call("add", {"a": 2}, id="c1", text="so", thinking="hmm")
    message = post(server, "anthropic").json()
    assert message["content"] == [
        {"type": "thinking", "thinking": "hmm", "signature": "c2lnbmF0dXJl"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
    ]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("finish", "openai", "anthropic"),
    [
        ("stop", "stop", "end_turn"),
        ("length", "length", "max_tokens"),
        ("content_filter", "content_filter", "refusal"),
        ("weird", "weird", "weird"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_finish_reasons_are_in_the_words_of_the_style(
    server: ModelServer, finish: str, openai: str, anthropic: str, stream: bool
) -> None:
    """A neutral reason is translated, a provider's own word goes out as it is."""
    server.play([reply("x", finish=finish), reply("x", finish=finish)])
    assert f'"finish_reason":"{openai}"' in post(server, "openai", stream=stream).text
    assert f'"stop_reason":"{anthropic}"' in post(server, "anthropic", stream=stream).text


def test_no_usage_is_reported_where_the_script_says_so(server: ModelServer) -> None:
    """usage=None leaves the counts out in both styles."""
    for style in PATHS:
        server.play([reply("x", usage=None), reply("x", usage=None)])
        for stream in (True, False):
            asked = post(server, style, stream=stream, stream_options={"include_usage": True})
            assert '"usage":{' not in asked.text


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_failures_have_the_body_of_the_style(server: ModelServer, stream: bool) -> None:
    """Status, headers and body are those that the provider would send."""
    server.fail(429, headers={"Retry-After": "1"}, code="slow")
    server.fail(status=529, message="busy")
    first = post(server, "openai", stream=stream)
    assert (first.status_code, first.headers["Retry-After"]) == (429, "1")
    assert first.json()["error"]["type"] == "rate_limit_error"
    assert first.json()["error"]["code"] == "slow"
    second = post(server, "anthropic", stream=stream).json()
    assert second["type"] == "error"
    assert second["error"] == {"type": "overloaded_error", "message": "busy"}


def test_error_in_stream_comes_after_the_text(server: ModelServer) -> None:
    """The stream begins well; the error is its last event and nothing says that it is complete."""
    server.error_in_stream(["some", "text"], type="overloaded_error", message="busy")
    server.error_in_stream(["some"], type="overloaded_error", message="busy")
    server.error_in_stream(status=503)
    found = events(post(server, stream=True).text)
    assert found[-1]["error"]["type"] == "overloaded_error"
    assert found[-2]["choices"][0]["delta"] == {"content": "text"}
    text = post(server, "anthropic", stream=True).text
    assert text.split("\n\n")[-2].startswith("event: error\ndata: ")
    assert "message_stop" not in text
    assert post(server).status_code == 503


def test_unexpected_requests_are_refused_and_noted(server: ModelServer) -> None:
    """Without an answer a request gets 400, on a wrong path 404 without using an answer up."""
    assert post(server).status_code == 400
    server.say("kept")
    assert requests.post(server.url + "/v1/v1/messages", json={}, timeout=5).status_code == 404
    assert requests.get(server.url + PATHS["openai"], timeout=5).status_code == 404
    with pytest.raises(
        AssertionError, match=r"unexpected request: POST /v1/chat/completions.*never asked for: Turn"
    ):
        server.assert_done()


def test_assert_done_is_silent_when_all_was_used(server: ModelServer) -> None:
    """Every answer used and nothing unexpected: no complaint."""
    server.say("x")
    post(server)
    server.assert_done()


# -- scripts and functions -------------------------------------------------------------------


def test_script_can_be_played_on_any_server() -> None:
    """A script is a value: two servers play the same one."""
    script = Script(tool_call("add", {}), "done", failure(500))
    for style in PATHS:
        with ModelServer(style, script=script) as server:
            assert [post(server, style).status_code for _ in range(3)] == [200, 200, 500]
            server.assert_done()
    assert repr(script) == "Script(Turn, Turn, Failure)"


def test_function_decides_by_the_request(server: ModelServer) -> None:
    """Queued answers go first, then the function is asked; a string is text."""
    server.say("queued")
    server.on_request(lambda request: request.json["messages"][-1]["content"].upper())
    ask = [{"role": "user", "content": "hello"}]
    said = [post(server, messages=ask).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert said == ["queued", "HELLO"]


def test_function_that_fails_is_reported(server: ModelServer) -> None:
    """An exception of the function is an answer with status 400 and a complaint in the end."""
    server.on_request(lambda request: request.json["nothing"])
    response = post(server)
    assert response.status_code == 400
    assert "KeyError" in response.json()["error"]["message"]
    with pytest.raises(AssertionError, match="on_request function failed: KeyError"):
        server.assert_done()


def test_options_are_checked_when_the_answer_is_made(server: ModelServer) -> None:
    """A wrong option is an error at once, not at the request."""
    with pytest.raises(ValueError, match="framing"):
        server.say("x", framing="pigeon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="split"):
        server.say("x", split=0)
    with pytest.raises(TypeError):
        server.say("x", unknown=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="an answer is made by"):
        server.play([42])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'responses', 'gemini', not 'klingon'"):
        ModelServer("klingon")


@settings(max_examples=60)
@given(pieces=st.lists(st.text(), max_size=6), style=st.sampled_from(sorted(PATHS)))
def test_any_text_arrives_as_it_was_scripted(pieces: list[str], style: str) -> None:
    """Property: whatever the pieces hold, the deltas of the stream are these, and the whole is their sum."""
    with ModelServer(style, script=[reply(pieces), reply(pieces)]) as server:
        raw_text = post(server, style, stream=True).content.decode("utf-8")
        datas = [part.split("data: ", 1)[1] for part in raw_text.split("\n\n")[:-1]]
        found = [json.loads(data) for data in datas if data != "[DONE]"]
        whole = post(server, style).json()
    if style == "openai":
        said = [c["choices"][0]["delta"].get("content") for c in found[1:-1]]
        text = whole["choices"][0]["message"]["content"]
    else:
        said = [e["delta"]["text"] for e in found if e["type"] == "content_block_delta"]
        text = whole["content"][0]["text"]
    assert said == pieces
    assert text == "".join(pieces)


def test_lone_surrogates_can_be_scripted(server: ModelServer) -> None:
    """Half a character, which UTF-8 cannot hold, goes out as a JSON escape."""
    server.say(["\ud83d", "é"])
    text = post(server, stream=True).content.decode("utf-8")
    assert "\\ud83d" in text
    assert "é" in text


@given(st.text())
def test_words_of_a_text_make_up_the_text(text: str) -> None:
    """Property: the pieces that a string is streamed in lose nothing."""
    assert "".join(reply(text).text) == text


@given(args=st.dictionaries(st.text(), st.integers()), pieces=st.integers(1, 50))
def test_argument_pieces_make_up_the_arguments(args: dict[str, int], pieces: int) -> None:
    """Property: in however many pieces, the arguments are whole."""
    from toolnexus.testing._render import argument_pieces

    found = argument_pieces(Call("f", args, pieces=pieces))
    assert json.loads("".join(found)) == args
    assert len(found) <= pieces


# -- what is recorded ------------------------------------------------------------------------


def test_requests_are_recorded(server: ModelServer) -> None:
    """Method, path, query, headers in any case, body, order and connection are there."""
    server.say("x")
    server.say("y")
    with requests.Session() as session:
        for name in ("one", "two"):
            session.post(
                server.base_url + "/chat/completions?a=b",
                json={"model": name},
                headers={"X-Thing": name},
                timeout=5,
            )
    first, second = server.requests
    assert (first.method, first.path, first.query) == ("POST", "/v1/chat/completions", "a=b")
    assert first.headers["x-thing"] == first.headers["X-THING"] == first.json["model"] == "one"
    assert second.raw_body == b'{"model": "two"}'
    assert first.received_at <= second.received_at
    assert (first.connection, second.connection, server.connections) == (1, 1, 1)
    server.wait_for_disconnect()
    assert first.closed_by_client_at is None
    assert second.closed_by_client_at is not None
    assert second.answered_at is not None


def test_secrets_of_a_request_stay_out_of_its_repr(server: ModelServer) -> None:
    """The repr of a request or its headers has no header's value."""
    server.say("x")
    requests.post(
        server.base_url + "/chat/completions", json={}, headers={"Authorization": "Bearer s3cret"}, timeout=5
    )
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(server.requests) + repr(server.requests[0].headers) + repr(server)


def test_wait_for_request_gives_the_request(server: ModelServer) -> None:
    """It returns as soon as the request is there, and complains when it does not come."""
    server.say("x")
    thread = threading.Thread(target=post, args=(server,), kwargs={"model": "late"})
    thread.start()
    assert server.wait_for_request().json["model"] == "late"
    thread.join()
    with pytest.raises(AssertionError, match="no 2 request"):
        server.wait_for_request(2, timeout=0.05)
    with pytest.raises(AssertionError, match="no 5 closed connection"):
        server.wait_for_disconnect(5, timeout=0.05)


def test_request_bodies_in_chunks_and_with_expect_are_read(server: ModelServer) -> None:
    """A body in chunks arrives whole; a client that waits for leave to send it gets it."""
    server.say("x")
    requests.post(server.base_url + "/chat/completions", data=iter([b'{"model"', b':"m"}']), timeout=5)
    assert server.requests[0].json == {"model": "m"}


# -- connections, TLS, ends ------------------------------------------------------------------


def test_parallel_connections_are_served_at_the_same_time(server: ModelServer) -> None:
    """Forty held answers are open at once, and all go on at the release."""
    server.on_request(lambda request: reply(request.json["model"], hold=True))
    with ThreadPoolExecutor(40) as pool:
        pending = [pool.submit(post, server, model=f"n{i}") for i in range(40)]
        server.wait_for_request(40)
        assert server.live_connections == 40
        server.release()
        said = [future.result().json()["choices"][0]["message"]["content"] for future in pending]
    assert said == [f"n{i}" for i in range(40)]


def test_tls_server_is_trusted_by_its_authority() -> None:
    """Over TLS everything is the same; without the authority the client refuses."""
    pytest.importorskip("trustme")
    with ModelServer("anthropic", tls=True) as server:
        assert server.base_url.startswith("https://127.0.0.1:")
        server.say(["a", "b"], framing="close")
        assert '"text":"b"' in post(server, "anthropic", stream=True).text
        with pytest.raises(requests.exceptions.SSLError):
            requests.post(server.url, json={}, timeout=5)
        ca = server.ca_path
        assert ca is not None
        assert ca.exists()
    assert not ca.exists()


def test_close_ends_everything_at_once_and_twice() -> None:
    """Held connections and their threads end within a second; a second close is nothing."""
    server = ModelServer()
    server.say("x", hold=True)
    with requests.Session() as session:
        held = session.post(
            server.base_url + "/chat/completions", json={"stream": True}, stream=True, timeout=5
        )
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 1
        server.close()
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            held.content  # noqa: B018 - reads the body
    assert not [t for t in threading.enumerate() if t.name.startswith("model-server")]
    assert server.disconnects == 0
    assert "closed" in repr(server)


def test_rubbish_gets_a_400(server: ModelServer) -> None:
    """What is no HTTP is refused, and the server goes on."""
    import socket

    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as sock:
        sock.sendall(b"\x16\x03\x01 rubbish\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
    server.say("x")
    assert post(server).ok


def test_nothing_is_printed_and_nothing_leaks_when_clients_leave() -> None:
    """Clients that leave in every phase write nothing to stderr, and no socket is left to the collector."""
    program = """
import gc, socket, time, threading
from toolnexus.testing import ModelServer
with ModelServer() as server:
    port = int(server.url.rsplit(":", 1)[1])
    server.on_request(lambda r: None)
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nContent-Length: 15\\r\\n\\r\\n"
    for hold in ("headers", True, "mid-event"):
        server.say(["x"] * 5, hold=hold)
    server.say(["x" * 1000] * 50000)
    for data in (b"", b"POST", head, *[head + b'{"stream":true}'] * 4):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(data)
        time.sleep(0.05)
        sock.close()
    server.wait_for_disconnect(7)
    server.assert_done()
assert not [t for t in threading.enumerate() if t.name.startswith("model-server")]
gc.collect()
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_toolnexus_does_not_import_the_server() -> None:
    """The server is a module that only its users pay for."""
    program = "import sys, toolnexus; assert 'toolnexus.testing' not in sys.modules"
    root = str(Path(__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": root}
    )


def test_pytest_fixture_gives_a_server(tmp_path: Path) -> None:
    """The shipped fixture works in a test suite of a user's own."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["toolnexus.testing.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        "import urllib.request\n"
        "def test_mine(model_server):\n"
        "    model_server.raw(b'hi', framing='length')\n"
        "    assert urllib.request.urlopen(model_server.url).read() == b'hi'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_raw_bytes_are_served_on_any_path(server: ModelServer) -> None:
    """A raw answer is for whatever was asked, by whatever method."""
    server.play(raw(b"<html>", status=502, content_type="text/html"))
    response = requests.get(server.url + "/anything", timeout=5)
    assert (response.status_code, response.headers["content-type"], response.text) == (
        502,
        "text/html",
        "<html>",
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: raw("text"), "encode"),  # type: ignore[arg-type]
        (lambda: raw(None), "bytes, not None"),  # type: ignore[arg-type]
        (lambda: raw(chunks=["text"]), "bytes, not 'text'"),  # type: ignore[list-item]
        (lambda: raw(chunks="text"), "list of bytes"),  # type: ignore[arg-type]
        (lambda: raw(chunks=b"text"), "list of bytes"),  # type: ignore[arg-type]
        (lambda: reply(b"text"), "must be a str"),  # type: ignore[arg-type]
        (lambda: reply(["a", 1]), "must be a str"),  # type: ignore[list-item]
        (lambda: reply(thinking=[b"a"]), "must be a str"),  # type: ignore[list-item]
        (lambda: stream_error(after=b"a"), "must be a str"),  # type: ignore[arg-type]
    ],
)
def test_texts_and_bytes_are_not_mixed_up(make: Any, why: str) -> None:
    """What could not be sent is refused where it is scripted, and not in the server's thread."""
    with pytest.raises(TypeError, match=why):
        make()


def test_raw_is_refused_by_the_server_too(server: ModelServer) -> None:
    """`server.raw` says the same, and queues nothing."""
    with pytest.raises(TypeError, match="encode"):
        server.raw("text")  # type: ignore[arg-type]
    server.assert_done()
