"""Rules of single providers: what each refuses, and what is sent instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import STYLES, Endpoint, completion, message, tools
from toolnexus import BadRequestError, Client, ConfigurationError, Tool
from toolnexus.testing import RecordedRequest, failure, tool_call


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("none", [None, [], ()], ids=["None", "list", "tuple"])
def test_prv_01_no_tools_no_field(style: str, none: Any, endpoint: Endpoint) -> None:
    """Without tools neither ``tools`` nor a choice among them is sent, streamed or whole."""
    client = endpoint.client(style, request_params={"tool_choice": "auto", "parallel_tool_calls": False})
    endpoint.stream(style, "ok", tools=none, client=client)
    endpoint.play("ok")
    client.run("go", none)
    for request in endpoint.seen:
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(request.json)


def test_prv_01_with_tools_the_choice_is_sent(endpoint: Endpoint) -> None:
    """With tools, both are sent, and the user's parameters count."""
    client = endpoint.client(request_params={"tool_choice": "required", "parallel_tool_calls": False})
    endpoint.stream("openai", "ok", tools=tools("f"), client=client)
    body = endpoint.seen[0].json
    assert body["tools"][0]["function"]["name"] == "f"
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)


def test_prv_01_a_null_list_of_calls_is_not_sent(endpoint: Endpoint) -> None:
    """An empty list of calls in a stored message would be refused as one."""
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [], "function_call": None},
    ]
    endpoint.stream("openai", "ok", history=history)
    assert endpoint.seen[0].messages[1] == {"role": "assistant", "content": "b"}


def refusing(name: str) -> Any:
    """Return what answers as an endpoint that refuses a parameter."""

    def answer(request: RecordedRequest) -> Any:
        if request.option(name) is not None:
            return failure(
                400, "invalid_request_error", f"Unsupported parameter: '{name}'", code="unsupported"
            )
        return "ok"

    return answer


@pytest.mark.parametrize(
    ("refused", "taken"),
    [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")],
)
def test_prv_02_the_name_of_the_limit_is_the_users(refused: str, taken: str, endpoint: Endpoint) -> None:
    """request_params decides under which name the limit goes; the refusal of a wrong one says which."""
    endpoint.play()
    endpoint.server.on_request(refusing(refused))
    with pytest.raises(BadRequestError, match=refused) as caught:
        endpoint.client(request_params={refused: 100}).run("go")
    assert (caught.value.status, caught.value.code) == (400, "unsupported")
    assert not caught.value.retryable
    assert endpoint.client(request_params={taken: 100}).run("go").text == "ok"
    assert len(endpoint.seen) == 2


def test_prv_02_no_limit_is_invented(endpoint: Endpoint) -> None:
    """An OpenAI-style request has no limit of ours; Anthropic's, which must be there, can be set."""
    endpoint.run("openai", completion({"content": "ok"}))
    assert set(endpoint.seen[0].json) == {"model", "messages"}
    client = endpoint.client("anthropic", request_params={"max_tokens": 99})
    endpoint.run("anthropic", message([{"type": "text", "text": "ok"}]), client=client)
    assert endpoint.seen[0].json["max_tokens"] == 99


def test_prv_03_too_many_tools(endpoint: Endpoint) -> None:
    """The refusal of 150 tools says how many there were, and how many are usual."""
    endpoint.play(failure(400, "invalid_request_error", "Invalid 'tools': array too long."))
    with pytest.raises(BadRequestError) as caught:
        endpoint.client().run("go", tools(*[f"f{i}" for i in range(150)]))
    assert "150 tools" in str(caught.value)
    assert "128" in caught.value.message


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("key", ["additionalProperties", "strict"])
def test_prv_04_keys_that_only_make_a_schema_stricter(style: str, key: str, endpoint: Endpoint) -> None:
    """An endpoint that refuses them is asked again without; a property of that name stays."""

    def answer(request: RecordedRequest) -> Any:
        tool = request.json["tools"][0]
        schema = tool["function"]["parameters"] if style == "openai" else tool["input_schema"]
        if key in schema or key in schema["properties"]["inner"]:
            return failure(400, "invalid_request_error", f'Unknown name "{key}" at tools[0]: no such field.')
        return "ok"

    inner = {"type": "object", "properties": {}, "additionalProperties": False, "strict": True}
    properties = {"inner": inner, "strict": {"type": "string"}, "additionalProperties": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False, "strict": True}
    offered = [Tool("f", "A tool.", schema, lambda args, ctx: "")]
    client = endpoint.client(style)
    endpoint.play()
    endpoint.server.on_request(answer)
    for _ in range(2):
        assert client.run("go", offered).text == "ok"
    assert len(endpoint.seen) == 3
    tool = endpoint.seen[-1].json["tools"][0]
    sent = tool["function"]["parameters"] if style == "openai" else tool["input_schema"]
    assert set(sent["properties"]) == set(properties)
    assert sent["properties"]["inner"] == {"type": "object", "properties": {}}
    assert set(sent) == {"type", "properties"}


def test_prv_04_a_function_on_an_endpoint_of_few_words(endpoint: Endpoint) -> None:
    """A tool made from a function works there, too; the check of its arguments is ours all the same."""

    def add(a: int, b: int = 1) -> int:
        "Add two numbers."
        return a + b

    def answer(request: RecordedRequest) -> Any:
        if b"additionalProperties" in request.raw_body or b'"strict"' in request.raw_body:
            return failure(400, "INVALID_ARGUMENT", 'Unknown name "additionalProperties": Cannot find field.')
        return "fine" if len(request.messages) > 1 else tool_call("add", {"a": 1, "c": 2})

    endpoint.play()
    endpoint.server.on_request(answer)
    result = endpoint.client().run("go", [add])
    assert result.text == "fine"
    assert result.tool_calls[0].is_error


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"api_key": "sk-test—SECRET"}, "API key"),
        ({"api_key": "sk-test\nX-Evil: 1"}, "API key"),
        ({"api_key": "k", "headers": {"X-Token": "sk-test—SECRET"}}, "header 'X-Token'"),
    ],
)
def test_b173_a_key_that_no_header_can_carry(options: dict[str, Any], what: str) -> None:
    """It is refused at construction, with the place of the character and not the key."""
    with pytest.raises(ConfigurationError) as caught:
        Client(base_url="http://127.0.0.1:1/v1", model="m", **options)
    assert f"the {what} has a character that a header cannot carry" in str(caught.value)
    assert "position 7" in str(caught.value)
    assert "sk-test" not in str(caught.value)
    assert "SECRET" not in repr(caught.value)


def test_b173_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same goes for a key that comes from the environment: no codec error, and no key shown."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test—SECRET")
    client = Client(model="m")
    with pytest.raises(ConfigurationError) as caught:
        client.stream("go")
    assert "position 7" in str(caught.value)
    assert "SECRET" not in str(caught.value)
