"""A session of the user's own whose hooks read the answer, and characters that cannot be sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from toolnexus import Client, ConfigurationError, Done, Error, ToolnexusError
from toolnexus.testing import ModelServer

HALF = "\udcff"


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def make(server: ModelServer, **options: Any) -> Client:
    return Client(
        base_url=server.base_url,
        style=server.style,
        **{"model": "m", "api_key": "k", "retries": 0, **options},
    )


def content(response: requests.Response, **kwargs: Any) -> None:
    assert response.content


def json_of_a_whole_one(response: requests.Response, **kwargs: Any) -> None:
    assert response.text
    if "json" in response.headers["content-type"]:
        assert response.json()


def another(response: requests.Response, **kwargs: Any) -> requests.Response:
    made = requests.Response()
    made.status_code, made.headers, made._content = 200, response.headers, response.content
    return made


def iter_content(response: requests.Response, **kwargs: Any) -> None:
    assert b"".join(response.iter_content(16))


def a_line(response: requests.Response, **kwargs: Any) -> None:
    next(response.iter_lines())


def raw_whole(response: requests.Response, **kwargs: Any) -> None:
    response.raw.read()


def raw_in_part(response: requests.Response, **kwargs: Any) -> None:
    response.raw.read(5)


def closed(response: requests.Response, **kwargs: Any) -> None:
    response.close()


@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("hook", [content, json_of_a_whole_one, another])
def test_an_answer_that_a_hook_has_read_and_kept_is_read_again(
    server: ModelServer, session: requests.Session, hook: Any, gzip: bool
) -> None:
    """What requests keeps of a body is the answer, streamed or whole; calls of tools, too."""
    session.hooks["response"] = hook
    with make(server, session=session) as client:
        server.say(["Hel", "lo"], gzip=gzip)
        assert client.run("hi").text == "Hello"
        server.say(["Hel", "lo"], gzip=gzip)
        *events, last = client.stream("hi")
    assert isinstance(last, Done)
    assert [e.type for e in events] == ["text", "text", "usage"]


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize("hook", [iter_content, a_line, raw_whole, raw_in_part, closed])
def test_an_answer_that_a_hook_has_taken_away_is_said_to_be_gone(
    server: ModelServer, session: requests.Session, hook: Any, how: str
) -> None:
    """It is no empty answer, and nobody tries again: the error says who reads it."""
    session.hooks["response"] = hook
    server.say("Hello")
    with make(server, session=session, retries=2) as client:
        if how == "run":
            with pytest.raises(ConfigurationError, match="response hook") as caught:
                client.run("hi")
            error: ToolnexusError = caught.value
        else:
            *_, last = client.stream("hi")
            assert isinstance(last, Error)
            error = last.error
        assert isinstance(error, ConfigurationError)
        assert "response.content" in error.message
        assert len(server.requests) == 1
    session.hooks["response"] = []
    server.say("and on")
    with make(server, session=session) as client:
        assert client.run("hi").text == "and on"


def test_an_error_that_a_hook_has_read_is_that_error(server: ModelServer, session: requests.Session) -> None:
    """The message of a refusal is not lost."""
    session.hooks["response"] = content
    server.fail(status=400, message="no such thing")
    with make(server, session=session) as client, pytest.raises(ToolnexusError, match="no such thing"):
        client.run("hi")


@pytest.mark.parametrize("address", [f"http://{HALF}:1", f"http://me{HALF}:hunter22@127.0.0.1:1"])
@pytest.mark.parametrize("own", [True, False], ids=["own", "user's"])
def test_a_proxy_with_half_a_character_is_a_mistake_in_the_configuration(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, address: str, own: bool
) -> None:
    """It is said as one, without the password, and nothing is sent."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setitem(os.environ, name, address)
    with requests.Session() as session:
        client = make(server, session=None if own else session)
        with client, pytest.raises(ConfigurationError) as caught:
            client.run("hi")
    assert "hunter22" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert not server.requests


@pytest.mark.parametrize("what", ["headers", "params"])
def test_what_a_session_adds_and_nobody_can_send(
    server: ModelServer, session: requests.Session, what: str
) -> None:
    """A header or a parameter of a session with such a character is named as a mistake."""
    setattr(session, what, {"X-Mine": HALF})
    with make(server, session=session) as client, pytest.raises(ConfigurationError, match="cannot be sent"):
        client.run("hi")
    assert not server.requests


def test_a_model_with_half_a_character(server: ModelServer) -> None:
    """It stands in the URL of some endpoints; it is refused for all, as an option and for one run."""
    with pytest.raises(ConfigurationError, match="half a surrogate pair"):
        make(server, model=f"m{HALF}")
    with make(server) as client, pytest.raises(ConfigurationError, match="half a surrogate pair"):
        client.run("hi", model=f"m{HALF}")
