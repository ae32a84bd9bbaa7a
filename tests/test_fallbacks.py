"""Another endpoint takes over: with the same question, in its own style, at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from toolnexus import AttemptFailed, Client, ConfigurationError, Done, Error, HookError, Text, Tool
from toolnexus.testing import ModelServer

STYLES = ("openai", "anthropic", "responses", "gemini")
DECLARED = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ONE = {"type": "function", "function": {"name": "add"}}


@attrs.frozen
class Person:
    name: str


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def client_of(server: ModelServer, style: str, **options: Any) -> Client:
    given = {"style": style, "model": f"of-{style}", "api_key": "key-1234", "retries": 0, **options}
    return Client(server.url_for(style), **given)


def say_person(server: ModelServer, style: str) -> None:
    """Script the answer with a person, as a style gives it."""
    if style in ("openai", "responses"):
        server.say('{"name": "Ada"}')
    else:
        server.call("final_answer", {"name": "Ada"})


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(STYLES, 2)))
@pytest.mark.parametrize("choice", ["required", "none", "auto", ONE], ids=str)
def test_a_choice_of_tools_is_made_in_the_style_of_whoever_is_asked(
    server: ModelServer, first: str, second: str, choice: Any
) -> None:
    """The fallback gets the very body that it gets when it is asked alone."""
    arguments: dict[str, Any] = {"tools": DECLARED, "tool_choice": choice, "max_tokens": 9}
    server.say("alone")
    server.fail(status=503)
    server.say("fallen back")
    with client_of(server, second) as spare, client_of(server, first, fallbacks=[spare]) as client:
        assert spare.translate("hi", **arguments).text == "alone"
        assert client.translate("hi", **arguments).text == "fallen back"
    alone, _, fallen = server.requests
    assert (fallen.path, fallen.json) == (alone.path, alone.json)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(STYLES, 2)))
@pytest.mark.parametrize("how", ["run", "stream"])
def test_an_output_is_asked_for_in_the_style_of_whoever_is_asked(
    server: ModelServer, first: str, second: str, how: str
) -> None:
    """The same for a structured answer, which some styles have a mode for and others a tool."""
    say_person(server, second)
    server.fail(status=503)
    say_person(server, second)
    with client_of(server, second) as spare, client_of(server, first, fallbacks=[spare]) as client:
        for each in (spare, client):
            asked = getattr(each, how)("who?", output=Person)
            assert (asked if how == "run" else asked.result()).output == Person("Ada")
    alone, _, fallen = server.requests
    assert (fallen.path, fallen.json) == (alone.path, alone.json)


@pytest.mark.parametrize(("first", "second"), [("openai", "anthropic"), ("gemini", "responses")])
def test_the_system_text_is_the_runs_whoever_is_asked(server: ModelServer, first: str, second: str) -> None:
    """A fallback is another place to ask, not another agent: its own system text is for its own runs."""
    own_text = [{"role": "system", "content": "OWN"}, {"role": "user", "content": "hi"}]
    own = client_of(server, second, system_prompt="SPARE")
    with own as spare, client_of(server, first, system_prompt="CLIENT", fallbacks=[spare]) as client:
        for ask in (
            lambda: client.run("hi"),
            lambda: client.stream("hi").result(),
            lambda: client.run("hi", system_prompt="GIVEN"),
            lambda: client.run("hi", system_prompt=None),
            lambda: client.translate(own_text),
            lambda: client.translate("hi", system="GIVEN"),
        ):
            server.fail(status=503)
            server.say("ok")
            ask()
    words = ("CLIENT", "SPARE", "GIVEN", "OWN")
    found = [[word for word in words if word in str(request.json)] for request in server.requests]
    assert found[0::2] == found[1::2] == [["CLIENT"], ["CLIENT"], ["GIVEN"], [], ["OWN"], ["GIVEN"]]


FAULTS: dict[str, Any] = {
    "500": lambda server: server.fail(status=500),
    "429": lambda server: server.fail(status=429),
    "error in the stream": lambda server: server.error_in_stream(type="overloaded_error", status=529),
    "closed": lambda server: server.raw(b": ping\n\n", cut="close"),
    "reset": lambda server: server.raw(b": ping\n\n", cut="reset"),
    "empty": lambda server: server.raw(b""),
    "page": lambda server: server.raw(b"<html><title>Down</title></html>", content_type="text/html"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("first", "second"), [("openai", "gemini"), ("anthropic", "responses"), ("gemini", "anthropic")]
)
@pytest.mark.parametrize("how", ["run", "stream"])
def test_in_the_middle_of_a_run_the_next_one_goes_on(
    server: ModelServer, first: str, second: str, how: str, fault: str
) -> None:
    """After a tool has run: it runs once, and whoever takes over has its result."""
    ran: list[Any] = []
    tool = Tool("add", execute=lambda args, ctx: ran.append(args) or "five")
    server.call("add", {"a": 2}, id="c1")
    FAULTS[fault](server)
    server.say("it is five")
    with client_of(server, second) as spare, client_of(server, first, fallbacks=[spare]) as client:
        result = client.run("go", [tool]) if how == "run" else client.stream("go", [tool]).result()
    assert (result.text, ran) == ("it is five", [{"a": 2}])
    assert [attempt.kind is None for attempt in result.attempts] == [True, False, True]
    assert [attempt.model for attempt in result.attempts][1:] == [f"of-{first}", f"of-{second}"]
    assert "five" in str(server.requests[-1].json)


@pytest.mark.parametrize(("first", "second"), [("openai", "anthropic"), ("anthropic", "openai")])
@pytest.mark.parametrize("fault", [{"cut": "close"}, {"cut": "reset"}], ids=str)
def test_after_text_went_out(server: ModelServer, first: str, second: str, fault: dict[str, Any]) -> None:
    """A stream ends in its error, unless it may take the text back; a run takes it back always."""

    def script() -> None:
        server.say(["half", " an answer"], **fault)
        server.say("whole")

    with client_of(server, second) as spare, client_of(server, first, fallbacks=[spare]) as client:
        server.say(["half", " an answer"], **fault)
        *events, last = client.stream("hi")
        assert isinstance(last, Error)
        assert last.partial is not None
        assert last.partial.text == "".join(e.delta for e in events if isinstance(e, Text)) != ""
        script()
        stream = client.stream("hi", retry_after_output=True)
        events = list(stream)
        [failed] = [e for e in events if isinstance(e, AttemptFailed)]
        assert failed.text == last.partial.text
        assert isinstance(events[-1], Done)
        assert events[-1].result.text == stream.text == "whole"
        script()
        assert client.run("hi").text == "whole"


@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_policy_that_fails_is_named(server: ModelServer, how: str) -> None:
    """What fallback_on raises ends the run with an error that says so."""
    server.fail(status=503)
    with client_of(server, "anthropic") as spare:
        options: dict[str, Any] = {"fallbacks": [spare], "fallback_on": lambda error: 1 / 0}
        with client_of(server, "openai", **options) as client:
            if how == "run":
                with pytest.raises(HookError, match="fallback_on raised ZeroDivisionError"):
                    client.run("hi")
            else:
                *_, last = client.stream("hi")
                assert isinstance(last, Error)
                assert isinstance(last.error, HookError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("wrong", [{"bogus": 1, "model": "m"}, {}, 5, {"model": ""}])
def test_options_of_a_fallback_that_are_none(server: ModelServer, wrong: Any) -> None:
    """They are a mistake in the configuration, known at once."""
    with pytest.raises(ConfigurationError):
        client_of(server, "openai", fallbacks=[wrong])
