"""Exceptions that fail when they are asked what they say: never a bare exception, and always whose it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import requests

from toolnexus import (
    Client,
    ConfigurationError,
    Error,
    HookError,
    MemoryStore,
    OutputError,
    StoreError,
    Tool,
    ToolnexusError,
    Watch,
    create_in_process_client,
    pending,
)
from toolnexus.compose import Flow
from toolnexus.testing import ModelServer


class UnspeakableError(RuntimeError):
    """Raises when somebody asks what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class UnspeakableConnectionError(requests.ConnectionError):
    """The same, of a family that a session may raise."""

    __str__ = __repr__ = UnspeakableError.__str__


class OwnError(ToolnexusError):
    """The same, of our own family."""

    __str__ = __repr__ = UnspeakableError.__str__


def fail(*args: Any, **kwargs: Any) -> Any:
    raise UnspeakableError


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(
        base_url=server.base_url, style=server.style, model="m", api_key="k", **{"retries": 0, **options}
    )


class _Unreadable(MemoryStore):
    load = fail


class _Unwritable(MemoryStore):
    save = fail


class _Session(requests.Session):
    send = fail


class _Broken(requests.Session):
    def send(self, *args: Any, **kwargs: Any) -> Any:
        raise UnspeakableConnectionError


def _echo() -> Tool:
    return Tool("echo", execute=lambda args, ctx: "echoed")


def _asks() -> Tool:
    return Tool("echo", execute=lambda args, ctx: "thanks" if ctx.answer else pending("Well?"))


#: Where a user's own code runs: the options that bring it in, the tool, the error's class and words.
PLACES: dict[str, tuple[dict[str, Any], Callable[[], Tool], type[ToolnexusError], str]] = {
    "store.load": ({"store": _Unreadable()}, _echo, StoreError, "cannot read conversation 'c': Unspeakable"),
    "store.save": ({"store": _Unwritable()}, _echo, StoreError, "cannot save conversation 'c': Unspeakable"),
    **{
        point: ({"hooks": {point: fail}}, _echo, HookError, f"hook {point} (fail) raised UnspeakableError")
        for point in ("before_llm", "after_llm", "before_tool", "after_tool")
    },
    "own error in a hook": ({"hooks": {"before_llm": lambda v: _raise(OwnError())}}, _echo, OwnError, ""),
    "body_transform": ({"body_transform": fail}, _echo, HookError, "body_transform raised UnspeakableError"),
    "wait_for": ({"wait_for": fail}, _asks, HookError, "wait_for raised UnspeakableError"),
    "approval": (
        {},
        lambda: attrs.evolve(_echo(), approval=fail),
        HookError,
        "approval of echo raised UnspeakableError",
    ),
    "session": ({"session": _Session()}, _echo, ToolnexusError, "unexpected UnspeakableError"),
    "session, connection": ({"session": _Broken()}, _echo, ToolnexusError, "UnspeakableConnectionError"),
}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize("place", PLACES)
def test_it_is_an_error_of_ours_wherever_it_was_raised(server: ModelServer, how: str, place: str) -> None:
    """The class of what was raised is said, in the error that belongs to the place."""
    options, tool, kind, words = PLACES[place]
    server.call("echo", {})
    server.say("done")
    with make(server, **options) as client:
        if how == "run" or place == "store.load":  # which is known before anything is sent
            with pytest.raises(ToolnexusError) as caught:
                getattr(client, how)("go", [tool()], id="c")
            error: ToolnexusError = caught.value
        else:
            last = list(client.stream("go", [tool()], id="c"))[-1]
            assert isinstance(last, Error)
            error = last.error
    assert type(error) is kind or place.startswith("session")
    assert words in error.message
    assert error.describe()


@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_tool_that_raises_it_goes_on(server: ModelServer, how: str) -> None:
    """The model is told the class, and the run goes on."""
    server.call("echo", {})
    server.say("done")
    with make(server) as client:
        tool = Tool("echo", execute=fail)
        result = client.run("go", [tool]) if how == "run" else client.stream("go", [tool]).result()
    assert (result.text, result.tool_calls[0].output) == ("done", "UnspeakableError")


def test_a_policy_that_raises_it(server: ModelServer) -> None:
    """on_error's own failure is a HookError."""
    server.fail(500)
    with (
        make(server, on_error=fail, retries=1) as client,
        pytest.raises(HookError, match="on_error raised Unspeakable"),
    ):
        client.run("go")


@pytest.mark.parametrize("how", ["run", "stream", "translate", "chunks"])
def test_a_model_function_that_raises_it(how: str) -> None:
    """The in-process model's failure names the class."""
    client = create_in_process_client(model="m", generate=fail)
    with pytest.raises(ToolnexusError, match="the model function raised UnspeakableError"):
        _ask(client, how)


@pytest.mark.parametrize("how", ["run", "stream", "translate", "chunks"])
def test_a_session_that_raises_what_it_should_not(server: ModelServer, how: str) -> None:
    """What no network raises is no bare exception either: of no way of asking."""
    expected = pytest.raises(ToolnexusError, match="unexpected UnspeakableError")
    with make(server, session=_Session()) as client, expected as caught:
        _ask(client, how)
    assert caught.value.partial is not None


def _ask(client: Client, how: str) -> object:
    if how == "stream":
        return client.stream("go").result()
    if how == "chunks":
        return client.chunks("go").collect()
    return getattr(client, how)("go")


def test_an_output_that_raises_it(server: ModelServer) -> None:
    """A constructor that fails so is a second chance, and then an OutputError, that name the class."""

    @attrs.define
    class Person:
        name: str = attrs.field(validator=fail)

    for _ in range(2):
        if server.style == "openai":
            server.say('{"name": "Ada"}')
        else:
            server.call("final_answer", {"name": "Ada"})
    with make(server) as client, pytest.raises(OutputError, match="UnspeakableError"):
        client.run("go", output=Person)


def test_whoever_watches_does_not_end_the_run(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    """A watch's and a metric's failure are said once in the log."""

    class Bad(Watch):
        run_started = fail

    server.say("done")
    with make(server, watch=Bad(), on_metric=fail) as client, caplog.at_level(logging.WARNING, "toolnexus"):
        assert client.run("go").text == "done"
    assert "run_started" in caplog.text
    assert "raised UnspeakableError" in caplog.text


def test_a_flow_whose_node_raises_it() -> None:
    """A node's failure names the class, streamed and not."""
    flow = Flow("f")
    flow.node(lambda state: fail(), name="a")
    with pytest.raises(ToolnexusError, match="a raised UnspeakableError"):
        flow.run({})
    last = list(flow.stream({}))[-1]
    assert isinstance(last, Error)
    assert "a raised UnspeakableError" in last.error.message


@pytest.mark.parametrize("how", ["run", "stream", "translate", "chunks"])
def test_a_source_of_tools_that_raises_it(server: ModelServer, how: str) -> None:
    """Tools that cannot be listed are known before anything is sent."""

    class Source:
        tools = property(fail)

    class Called:
        def tools(self) -> list[Tool]:
            return fail()

    with make(server) as client:
        for source in (Source(), Called()):
            given = {"toolkit": source} if how == "translate" else {"tools": source}
            with pytest.raises(ConfigurationError, match="cannot be listed: UnspeakableError"):
                getattr(client, how)("go", **given)
    assert not server.requests
