"""A model that is a function: the same loop, the same endings, whatever the function does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from toolnexus import (
    APIError,
    Client,
    ConfigurationError,
    Done,
    EmptyResponseError,
    Error,
    MalformedEventError,
    MemoryStore,
    RunCancelledError,
    Text,
    Tool,
    ToolnexusError,
    Usage,
    create_in_process_client,
)
from toolnexus.testing import ModelServer

WAYS = ["run", "stream", "chunks", "translate"]


def make(generate: Any, **options: Any) -> Client:
    return create_in_process_client(model="m", generate=generate, **options)


def text_of(client: Client, way: str, prompt: str = "hi") -> str:
    """Ask in one of the ways, and return the text of the answer."""
    if way == "stream":
        return client.stream(prompt).result().text
    if way == "chunks":
        return client.chunks(prompt).collect().text
    return str(getattr(client, way)(prompt).text)


@pytest.mark.parametrize("way", WAYS)
def test_a_text_a_dict_and_a_generator_are_answers(way: str) -> None:
    """What is returned after what was yielded counts, too."""

    def pieces(request: dict[str, Any]) -> Iterator[Any]:
        yield "Hel"
        yield {"content": "lo", "thinking": "hm"}
        return {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    assert text_of(make(lambda request: "Hello"), way) == "Hello"
    assert text_of(make(lambda request: {"content": "Hello"}), way) == "Hello"
    assert text_of(make(pieces), way) == "Hello"
    result = make(pieces).run("hi")
    assert (result.thinking, result.usage) == ("hm", Usage(3, 2, 5))


def test_a_generator_streams() -> None:
    """Each piece is there when it was yielded, before the next one is."""
    go_on = threading.Event()

    def generate(request: dict[str, Any]) -> Iterator[str]:
        yield "a"
        yield "b" if go_on.wait(20) else "nobody had the first piece before the second"

    stream = make(generate).stream("hi")
    assert next(stream) == Text("a")
    go_on.set()
    assert next(stream) == Text("b")
    assert isinstance(list(stream)[-1], Done)


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_that_raises_midway(way: str) -> None:
    """The error names what it raised, and what it had given before is kept."""

    def generate(request: dict[str, Any]) -> Iterator[str]:
        yield "half"
        raise KeyError("gone")

    store = MemoryStore()
    with make(generate, store=store) as client:
        with pytest.raises(APIError, match="the model function raised KeyError: 'gone'") as caught:
            text_of(client, way)
        assert caught.value.partial is not None
        assert caught.value.partial.text == "half"
        assert isinstance(caught.value.__cause__, KeyError)
        *events, last = client.stream("hi", id="c")
        assert isinstance(last, Error)
        assert [e.type for e in events] == ["text"]
    assert store.get("c") is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "given",
    [
        5,
        ["text"],
        {"tool_calls": 5},
        {"tool_calls": [5]},
        {"tool_calls": [{"name": 5}]},
        {"tool_calls": [{"name": "f", "arguments": {"x": ...}}]},
        {"content": "x", "usage": {"prompt_tokens": "many"}},
        {"content": "x", "usage": {"prompt_tokens": float("inf")}},
    ],
    ids=repr,
)
def test_pieces_that_are_none(way: str, given: Any) -> None:
    """They are the function's mistake, said as one, and not tried again."""
    asked: list[Any] = []
    refused = pytest.raises(MalformedEventError, match="model function")
    with make(lambda request: asked.append(request) or given, retries=2) as client, refused:
        text_of(client, way)
    assert len(asked) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_gives_nothing(way: str) -> None:
    """No answer is no empty answer; an empty text is one."""
    with pytest.raises(EmptyResponseError, match="gave nothing"):
        text_of(make(lambda request: None), way)
    assert text_of(make(lambda request: ""), way) == ""


def test_an_error_of_ours_goes_through_and_is_tried_again() -> None:
    """A function may raise what an endpoint would have ended with, and has the same retries."""
    asked: list[Any] = []

    def generate(request: dict[str, Any]) -> Iterator[str]:
        asked.append(request)
        yield f"try {len(asked)}"
        if len(asked) == 1:
            raise ToolnexusError("busy", retryable=True)

    assert make(generate, retries=1).run("hi").text == "try 2"
    asked.clear()
    *_, last = make(generate, retries=1).stream("hi")
    assert isinstance(last, Error)  # the text is out, and is not said twice
    asked.clear()
    events = list(make(generate, retries=1).stream("hi", retry_after_output=True))
    assert [e.type for e in events] == ["text", "attempt_failed", "text", "usage", "done"]


def test_a_function_that_nobody_listens_to_ends() -> None:
    """After a cancel, a close or a failed try its thread does not go on, and its generator is closed."""
    closed: list[str] = []
    asked: list[Any] = []

    def endless(request: dict[str, Any]) -> Iterator[Any]:
        asked.append(request)
        try:
            while True:
                yield "x" if len(asked) != 2 else 5
                time.sleep(0.001)
        finally:
            closed.append("closed")

    with make(endless) as client:
        with client.stream("hi") as stream:
            next(stream)
        _expect(lambda: closed == ["closed"])
        with pytest.raises(MalformedEventError):
            client.run("hi")
        _expect(lambda: closed == ["closed"] * 2)
        chunks = client.chunks("hi")
        next(chunks)
        del chunks
        _expect(lambda: closed == ["closed"] * 3)
        stream = client.stream("hi")
        next(stream)
        stream.cancel()
        last = list(stream)[-1]
        assert isinstance(last, Error)
        assert isinstance(last.error, RunCancelledError)
        _expect(lambda: closed == ["closed"] * 4)


def _expect(seen: Any) -> None:
    until = time.monotonic() + 5
    while not seen() and time.monotonic() < until:
        time.sleep(0.005)
    assert seen()


@pytest.mark.parametrize("how", ["run", "stream"])
def test_tools_are_called_and_a_fault_in_one_is_told(how: str) -> None:
    """The loop is that of every client."""

    def generate(request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        if last["role"] == "tool":
            return f"it said {last['content']}"
        return {"tool_calls": [{"name": "fail", "arguments": {"a": 1}}]}

    tool = Tool("fail", execute=lambda args, ctx: 1 / 0)
    client = make(generate)
    result = client.run("hi", [tool]) if how == "run" else client.stream("hi", [tool]).result()
    assert result.text == "it said ZeroDivisionError: division by zero"
    assert result.tool_calls[0].args == {"a": 1}


def test_the_function_is_asked_as_an_endpoint_would_be() -> None:
    """The system text, parameters, the output's format and the body's transformation are in what it gets."""
    seen: list[dict[str, Any]] = []

    @attrs.frozen
    class Person:
        name: str

    def transform(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "more": 1}

    with make(
        lambda request: seen.append(request) or '{"name": "Ada"}',
        system_prompt="Be kind.",
        request_params={"temperature": 0},
        body_transform=transform,
    ) as client:
        assert client.run("Who?", output=Person).output == Person("Ada")
    [request] = seen
    assert request["messages"][0] == {"role": "system", "content": "Be kind."}
    assert request["body"]["temperature"] == 0
    assert request["body"]["more"] == 1
    assert request["body"]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("style", ["openai", "anthropic", "responses", "gemini"])
@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_function_as_a_fallback_and_with_one(style: str, how: str) -> None:
    """It takes over from an endpoint of any style, and the other way round."""

    def broken(request: dict[str, Any]) -> Any:
        raise ToolnexusError("down", retryable=True)

    with ModelServer(style=style) as server:
        wire = {"base_url": server.base_url, "style": style, "model": "w", "api_key": "k", "retries": 0}
        local = make(lambda request: "local")
        server.fail(status=503)
        with Client(**wire, fallbacks=[local]) as client:
            assert _asked(client, how) == "local"
        server.say("wire")
        with make(broken, fallbacks=[wire], fallback_on=["error"]) as client:
            assert _asked(client, how) == "wire"


def _asked(client: Client, how: str) -> str:
    return client.run("hi").text if how == "run" else client.stream("hi").result().text


@pytest.mark.parametrize("option", ["base_url", "api_key", "style", "session", "headers"])
def test_there_is_no_wire_to_configure(option: str) -> None:
    """Options of a wire are refused, and so is a model that is no function."""
    with pytest.raises(ConfigurationError, match=option):
        make(lambda request: "x", **{option: "y"})
    for wrong in (None, "text", _coroutine):
        with pytest.raises(ConfigurationError, match="generate must be"):
            make(wrong)


async def _coroutine(request: dict[str, Any]) -> str:
    return "x"
