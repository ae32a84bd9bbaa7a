"""Structured output: the answer as a type, by the endpoint's own mode or by a tool, with one repair."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator
from typing import Any, Literal

import attrs
import pytest
from typing_extensions import NotRequired, TypedDict

from toolnexus import (
    Answer,
    Client,
    ConfigurationError,
    Error,
    OutputError,
    SqliteStore,
    Tool,
    ToolnexusError,
)
from toolnexus.testing import ModelServer, RecordedRequest
from toolnexus.tools.arguments import check_arguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Person:
    name: str
    age: int
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Prices:
    prices: dict[str, float]
    extra: Any = None


@attrs.frozen
class Place:
    city: str
    sizes: tuple[int, ...] = ()


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture(params=["run", "stream"])
def ask(request: pytest.FixtureRequest, server: ModelServer) -> Iterator[Any]:
    client = Client(base_url=server.base_url, style=server.style, model="m", api_key="k")

    def go(output: Any, tools: Any = None, **options: Any) -> Any:
        if request.param == "run":
            return client.run("go", tools, output=output, **options)
        return client.stream("go", tools, output=output, **options).result()

    yield go
    client.close()


#: The styles with a mode of their own for answers of a schema.
NATIVE = ("openai", "responses")


def answer(server: ModelServer, data: dict[str, Any] | str) -> None:
    """Let the model give an answer the way its dialect does."""
    if server.style in NATIVE:
        server.say(data if isinstance(data, str) else json.dumps(data))
    else:
        server.call("final_answer", data)


@pytest.mark.parametrize(
    ("output", "data", "value"),
    [
        (Person, {"name": "Ada", "age": 36, "colour": "blue"}, Person("Ada", 36, Colour.BLUE)),
        (Person, {"name": "Ada", "age": 36}, Person("Ada", 36)),
        (Place, {"city": "Rome", "sizes": [1, 2]}, Place("Rome", (1, 2))),
        (Movie, {"title": "M", "year": 1931}, {"title": "M", "year": 1931}),
        (list[int], {"value": [1, 2]}, [1, 2]),
        (Literal["yes", "no"], {"value": "yes"}, "yes"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 1}, {"a": 1}),
    ],
)
def test_the_answer_has_the_type(server: ModelServer, ask: Any, output: Any, data: Any, value: Any) -> None:
    """Dataclass, attrs, TypedDict, containers, literals and schemas come back as what they are."""
    answer(server, data)
    result = ask(output)
    assert result.output == value
    assert type(result.output) is type(value)
    assert result.to_dict()["output"] == data
    assert result.text
    assert result.status == "done"


def test_a_pydantic_model_is_one(server: ModelServer, ask: Any) -> None:
    """Pydantic models are built and validated by pydantic."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Box", width=(int, pydantic.Field(gt=0)))
    answer(server, {"width": -1})
    answer(server, {"width": 4})
    assert ask(model).output == model(width=4)
    assert "width" in str(server.requests[1].messages[-1])


def test_the_endpoint_is_asked_in_its_own_mode(server: ModelServer, ask: Any) -> None:
    """OpenAI's endpoints get the schema of the answer, the others a tool that must be called."""
    answer(server, {"name": "Ada", "age": 36})
    ask(Person)
    body = server.requests[0].json
    if server.style in NATIVE:
        asked = format_of(body)
        schema = asked["schema"]
        assert asked["strict"] is True
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) == {
            "name",
            "age",
            "colour",
        }
        assert "tools" not in body
    elif server.style == "anthropic":
        assert [t["name"] for t in body["tools"]] == ["final_answer"]
        assert body["tool_choice"] == {"type": "any"}
    else:
        assert [t["name"] for t in body["tools"][0]["functionDeclarations"]] == ["final_answer"]
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


@pytest.mark.parametrize(
    ("output", "data", "value"),
    [
        (dict[str, int], {"value": {"a": 1}}, {"a": 1}),
        (Prices, {"prices": {"tea": 2.5}, "extra": 7}, Prices({"tea": 2.5}, 7)),
        (tuple[int, str], {"value": [1, "a"]}, (1, "a")),
        (
            {"type": "object", "properties": {"code": {"type": "string", "minLength": 2}}},
            {"code": "ab"},
            {"code": "ab"},
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"tea": 1}, {"tea": 1}),
    ],
)
def test_what_strict_mode_cannot_say_is_asked_for_without_it(
    server: ModelServer, ask: Any, output: Any, data: dict[str, Any], value: Any
) -> None:
    """A map made strict is an object without keys: the schema goes as it is, and the answer fits it."""
    if server.style not in NATIVE:
        pytest.skip("only OpenAI's endpoints have a strict mode")

    def obedient(request: RecordedRequest) -> str:
        """Answer only where the schema that was sent takes the answer, as a constrained model does."""
        asked = format_of(request.json)
        assert asked["strict"] is False
        assert check_arguments(asked["schema"], data) == []
        return json.dumps(data)

    server.on_request(obedient)
    assert ask(output).output == value


def format_of(body: Any) -> Any:
    """Return how a body asks for the answer's schema."""
    if "text" in body:
        return body["text"]["format"]
    return body["response_format"]["json_schema"]


def test_there_is_one_repair_turn(server: ModelServer, ask: Any) -> None:
    """The model is told what is wrong, once; then it is an error with the partial result."""
    answer(server, {"name": "Ada", "age": "old"})
    answer(server, {"name": "Ada", "age": 36})
    result = ask(Person)
    assert result.output == Person("Ada", 36)
    assert result.turns == 2
    assert "age" in str(server.requests[1].messages[-1])
    answer(server, {"name": "Ada"})
    answer(server, {"name": 1})
    with pytest.raises(OutputError, match="name") as caught:
        ask(Person)
    assert caught.value.partial is not None
    assert caught.value.partial.turns == 2


def test_tools_run_before_the_answer(server: ModelServer, ask: Any) -> None:
    """Other tools work as ever; the answer ends the run; the transcript is balanced."""
    server.call("look", {})
    answer(server, {"name": "Ada", "age": 36})
    result = ask(Person, [Tool("look", execute=lambda a, c: "Ada, 36")])
    assert result.output == Person("Ada", 36)
    asked = [c["id"] for m in result.messages for c in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    assert asked == answered
    assert [c.name for c in result.tool_calls] == ["look"]


def test_an_endpoint_without_the_mode_gets_a_tool(ask: Any, server: ModelServer) -> None:
    """A refusal of response_format is met with a tool, in the same run."""
    if server.style not in NATIVE:
        pytest.skip("only OpenAI's endpoints have the mode")
    server.fail(status=400, message="response_format json_schema is not supported")
    server.call("final_answer", {"name": "Ada", "age": 36})
    assert ask(Person).output == Person("Ada", 36)
    body = server.requests[1].json
    assert not {"response_format", "text"} & set(body)
    assert body["tool_choice"] == "required"


def test_fences_and_plain_texts_are_understood(server: ModelServer, ask: Any) -> None:
    """JSON in a fence counts, and so does JSON as text where a call was asked for."""
    server.say('```json\n{"name": "Ada", "age": 36}\n```')
    assert ask(Person).output == Person("Ada", 36)


def test_a_cut_answer_is_no_output(server: ModelServer, ask: Any) -> None:
    """An answer cut by length is incomplete, without an output and without a repair turn."""
    if server.style in NATIVE:
        server.say('{"name": "A', finish="length")
    else:
        server.call("final_answer", '{"name": "A', finish="length")
    result = ask(Person)
    assert (result.status, result.limit, result.output) == ("incomplete", "length", None)


def test_syn_06_a_stream_ends_in_an_error_when_nothing_fits(server: ModelServer) -> None:
    """Pieces are never validated, the whole is; a stream's Error carries what came."""
    answer(server, {"age": 1})
    answer(server, {"age": 1})
    with Client(base_url=server.base_url, style=server.style, model="m", api_key="k") as client:
        *_, last = client.stream("go", output=Person)
    assert isinstance(last, Error)
    assert last.error.kind == "output"


def test_a_type_without_a_schema_is_told_at_once(server: ModelServer, ask: Any) -> None:
    """What has no schema is an error before anything is sent."""
    with pytest.raises(ConfigurationError, match="output"):
        ask(lambda x: x)
    assert server.requests == []


def test_an_output_in_a_conversation(server: ModelServer, tmp_path: Any) -> None:
    """With an id the transcript is saved and goes on."""
    with SqliteStore(tmp_path / "c.db") as store:
        options = {"base_url": server.base_url, "style": server.style, "model": "m", "api_key": "k"}
        with Client(**options, store=store) as client:
            answer(server, {"name": "Ada", "age": 36})
            client.run("who?", id="c", output=Person)
            server.say("you asked who")
            assert client.run("what did I ask?", id="c").text == "you asked who"


@pytest.mark.parametrize("how", ["resume", "resume_stream"])
def test_an_output_after_a_person_was_asked(server: ModelServer, how: str) -> None:
    """A run that waits is gone on with for the same type, one repair included."""
    tool = Tool("look", execute=lambda args, ctx: "she is 36", approval=True)
    options = {"base_url": server.base_url, "style": server.style, "model": "m", "api_key": "k"}
    with Client(**options) as client:
        server.call("look", {}, id="c1")
        [request] = client.run("who?", [tool], id="c", output=Person).pending
        answer(server, {"name": "Ada"})
        answer(server, {"name": "Ada", "age": 36})
        result = getattr(client, how)("c", Answer.approve(request), [tool], output=Person)
        if how == "resume_stream":
            result = result.result()
    assert result.output == Person("Ada", 36)
    asked, *_, last = server.requests
    for key in ("response_format", "text", "tool_choice", "toolConfig"):
        assert asked.json.get(key) == last.json.get(key)


@pytest.mark.parametrize("how", ["run", "stream"])
def test_a_durable_run_for_an_output(server: ModelServer, how: str) -> None:
    """Answers that did not fit are taken from the journal as well: the second chance stays the second."""
    options = {"base_url": server.base_url, "style": server.style, "model": "m", "api_key": "k", "retries": 0}
    with Client(**options) as client:

        def go() -> Any:
            asked = getattr(client, how)("who?", id="c", output=Person, durable=True)
            return asked if how == "run" else asked.result()

        answer(server, {"name": "Ada"})
        server.fail(status=500)
        with pytest.raises(ToolnexusError):
            go()
        answer(server, {"name": "Ada", "age": 36})
        result = go()
        assert (result.output, result.turns, len(server.requests)) == (Person("Ada", 36), 2, 3)
        client.conversation_store.delete("c")
        answer(server, {"name": "Ada"})
        server.fail(status=500)
        with pytest.raises(ToolnexusError):
            go()
        answer(server, {"name": "Ada"})
        with pytest.raises(OutputError):
            go()
