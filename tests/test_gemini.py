"""The Gemini dialect: its parts one by one, what is kept and sent back, and what is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import (
    APIStatusError,
    Client,
    Done,
    Error,
    Image,
    MalformedEventError,
    QuotaError,
    RateLimitError,
    Tool,
    ToolResult,
    TruncatedStreamError,
)
from toolnexus.testing import ModelServer, raw
from toolnexus.wire import DIALECTS, ModelRequest
from toolnexus.wire.partial import PartialArguments

DIALECT = DIALECTS["gemini"]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="gemini") as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.base_url, style="gemini", model="flash", api_key="key-1234", retries=0) as client:
        yield client


def piece(*parts: dict[str, Any], finish: str | None = None, **top: Any) -> dict[str, Any]:
    """Return one chunk."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    return {"candidates": [{**candidate, **({"finishReason": finish} if finish else {})}], **top}


def stream(*pieces: Any) -> bytes:
    """Return the chunks as an event stream with this provider's line ends."""
    return b"".join(f"data: {json.dumps(p)}\r\n\r\n".encode() for p in pieces)


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"text": said, **fields}


def call(name: str = "echo", args: Any = None, **fields: Any) -> dict[str, Any]:
    """Return the part of a call; ``id`` goes into the call, all else beside it."""
    inner = {"id": fields.pop("id")} if "id" in fields else {}
    return {"functionCall": {**inner, "name": name, "args": {} if args is None else args}, **fields}


def echo(ran: list[Any] | None = None) -> Tool:
    def run(args: dict[str, Any], ctx: Any) -> str:
        if ran is not None:
            ran.append(args)
        return f"echoed {args.get('text')}"

    return Tool("echo", "Say it again.", {"type": "object", "properties": {"text": {"type": "string"}}}, run)


# -- reading ---------------------------------------------------------------------------------------


def test_f35_two_calls_of_one_name(server: ModelServer, client: Client) -> None:
    """F35: they are told apart by ids made for them, run both, and their results keep their order."""
    server.raw(stream(piece(call(args={"text": "a"}), call(args={"text": "b"}), finish="STOP")))
    server.say("ok")
    ran: list[Any] = []
    result = client.run("go", [echo(ran)])
    assert sorted(a["text"] for a in ran) == ["a", "b"]
    assert len({c.id for c in result.tool_calls}) == 2
    model, user = server.requests[1].json["contents"][1:]
    assert [part["functionCall"]["args"] for part in model["parts"]] == [{"text": "a"}, {"text": "b"}]
    responses = [part["functionResponse"] for part in user["parts"]]
    assert [r["response"] for r in responses] == [{"output": "echoed a"}, {"output": "echoed b"}]
    assert not any("id" in r for r in responses)


def test_the_ids_that_were_given_go_back(server: ModelServer, client: Client) -> None:
    """An id of the endpoint's own stands on the call and on its result."""
    server.raw(stream(piece(call(id="x1", args={"text": "a"}), finish="STOP")))
    server.say("ok")
    assert client.run("go", [echo()]).tool_calls[0].id == "x1"
    model, user = server.requests[1].json["contents"][1:]
    assert model["parts"][0]["functionCall"]["id"] == "x1"
    assert user["parts"][0]["functionResponse"]["id"] == "x1"


def test_f33_usage_alone_and_candidates_without_content(server: ModelServer, client: Client) -> None:
    """F33: no crash; the last counts stand, and thinking counts as output."""
    server.raw(
        stream(
            {"usageMetadata": {"promptTokenCount": 7, "trafficType": "ON_DEMAND"}},
            {"candidates": [{"index": 0}]},
            {"candidates": [{"content": {"role": "model"}}]},
            piece(text("hi"), usageMetadata={"promptTokenCount": 7, "candidatesTokenCount": 1}),
            piece(finish="STOP", usageMetadata={"candidatesTokenCount": 2, "thoughtsTokenCount": 5}),
        )
    )
    result = client.stream("go").result()
    assert result.text == "hi"
    usage = result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (7, 7, 5)


def test_f34_a_thousand_small_parts(server: ModelServer, client: Client) -> None:
    """F34: all of them, in order; they are kept as one part."""
    letters = "".join(chr(97 + i % 26) for i in range(1000))
    server.raw(
        stream(piece(*[text(c) for c in letters]), piece(text("", thoughtSignature="S"), finish="STOP"))
    )
    result = client.run("go")
    assert result.text == letters
    kept = result.messages[-1]["toolnexus"]["gemini"]["parts"]
    assert kept == [{"text": letters}, {"text": "", "thoughtSignature": "S"}]


def test_a_finish_reason_does_not_end_the_answer(server: ModelServer, client: Client) -> None:
    """More text may follow it, up to the end of the body; only the end of the body is the end."""
    server.raw(stream(piece(text("one "), finish="STOP"), piece(text("two"), finish="STOP")))
    assert client.stream("go").result().text == "one two"
    server.raw(stream(piece(text("one"), finish="STOP"), {"error": {"code": 503, "message": "away"}}))
    *_, error = client.stream("go")
    assert isinstance(error, Error)
    assert error.error.message == "away"


def test_without_a_finish_reason_it_is_cut(server: ModelServer, client: Client) -> None:
    """A connection that just ends is a truncated stream; no call runs."""
    ran: list[Any] = []
    server.raw(stream(piece(text("par")), piece(call())))
    *_, error = client.stream("go", [echo(ran)])
    assert isinstance(error, Error)
    assert isinstance(error.error, TruncatedStreamError)
    assert error.partial is not None
    assert error.partial.text == "par"
    assert ran == []


@pytest.mark.parametrize(
    ("raw_reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("OTHER", "unknown"),
        ("BRAND_NEW", "stop"),
    ],
)
def test_f22_finish_reasons(raw_reason: str, finish: str, server: ModelServer, client: Client) -> None:
    """F22: each has its neutral word, and the provider's own is kept."""
    server.raw(stream(piece(text("x"), finish=raw_reason)))
    result = client.run("go")
    assert (result.finish_reason, result.raw_finish_reason) == (finish, raw_reason)


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
def test_finish_reasons_that_are_errors(reason: str, server: ModelServer, client: Client) -> None:
    """They end the run in an error that names them."""
    server.raw(stream(piece(finish=reason)))
    with pytest.raises(APIStatusError, match=reason):
        client.run("go")


def test_a_blocked_prompt(server: ModelServer, client: Client) -> None:
    """It is no empty success: the finish reason says that it was filtered."""
    server.raw(stream({"promptFeedback": {"blockReason": "SAFETY"}}))
    result = client.stream("go").result()
    assert (result.text, result.finish_reason, result.raw_finish_reason) == (
        "",
        "content_filter",
        "blockReason:SAFETY",
    )


def test_sse_18_a_json_array_in_any_pieces(server: ModelServer, client: Client) -> None:
    """Without event framing the body is one pretty array, of which the first chunk may be a lone ``{``."""
    items = [piece(text("Hel")), piece(text("lo"), finish="STOP")]
    body = b"[" + b"\n,\n".join(json.dumps(i, indent=2).encode() for i in items) + b"]"
    for size in (1, 7, len(body)):
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        server.play(raw(chunks=parts, content_type="application/json"))
        assert client.stream("go").result().text == "Hello"
    server.play(raw(body[:-30], content_type="application/json"))
    *_, error = client.stream("go")
    assert isinstance(error, Error)


def test_an_array_that_holds_an_error(server: ModelServer, client: Client) -> None:
    """It is the error, under a bad status and inside a stream."""
    body = json.dumps([{"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}]).encode()
    for status in (429, 200):
        server.play(raw(body, status=status, content_type="application/json"))
        *_, last = client.stream("go")
        assert isinstance(last, Error)
        assert isinstance(last.error, RateLimitError)
        assert last.error.message == "slow"


def test_the_wait_that_google_asks_for(server: ModelServer, client: Client) -> None:
    """A quota by the minute is a rate limit, with the wait of its details; one by the day is a quota."""

    def refusal(quota: str) -> bytes:
        details = [{"violations": [{"quotaId": quota}]}, {"retryDelay": "34.4s"}]
        message = "You exceeded your current quota."
        return json.dumps({"error": {"code": 429, "message": message, "details": details}}).encode()

    server.play(raw(refusal("RequestsPerMinute-FreeTier"), status=429, content_type="application/json"))
    with pytest.raises(RateLimitError) as caught:
        client.run("go")
    assert (caught.value.retry_after, caught.value.retryable) == (34.4, True)
    server.play(raw(refusal("RequestsPerDay-FreeTier"), status=429, content_type="application/json"))
    with pytest.raises(QuotaError):
        client.run("go")


def test_only_the_first_candidate_is_the_answer(server: ModelServer, client: Client) -> None:
    """The others are other answers."""
    second = {"content": {"parts": [text("other")]}, "index": 1, "finishReason": "STOP"}
    first = piece(text("this"), finish="STOP")["candidates"][0]
    server.raw(stream({"candidates": [second, first]}))
    assert client.run("go").text == "this"


def test_arguments_that_are_no_object(server: ModelServer, client: Client) -> None:
    """The tool does not run with something else in their place; the model is told."""
    ran: list[Any] = []
    server.raw(stream(piece(call(args=["a"]), finish="STOP")))
    server.say("ok")
    result = client.run("go", [echo(ran)])
    assert ran == []
    assert result.tool_calls[0].is_error


def test_a_call_without_a_name(server: ModelServer, client: Client) -> None:
    """It is a malformed event, not an answer without calls."""
    server.raw(stream(piece({"functionCall": {"args": {"text": "x"}}}, finish="STOP")))
    with pytest.raises(MalformedEventError):
        client.run("go", [echo()])


# -- arguments value by value ----------------------------------------------------------------------


def begun(name: str) -> dict[str, Any]:
    return piece({"functionCall": {"name": name, "willContinue": True}, "thoughtSignature": "S"})


def value(path: str, said: Any, *, more: bool = False, open: bool = True) -> dict[str, Any]:  # noqa: A002
    key = {str: "stringValue", bool: "boolValue", type(None): "nullValue"}.get(type(said), "numberValue")
    part = {"jsonPath": path, key: said, **({"willContinue": True} if more else {})}
    return piece({"functionCall": {"partialArgs": [part], **({"willContinue": True} if open else {})}})


def test_arguments_value_by_value(server: ModelServer, client: Client) -> None:
    """They are put together by their paths; the signature stays on the part that is sent back."""
    server.raw(
        stream(
            begun("echo"),
            value("$.text", "Bos", more=True),
            value("$.text", "ton"),
            value("$.more[1]['a.b']", 2),
            value("$.flag", True),
            value("$.none", None),
            piece({"functionCall": {}}),
            piece(finish="STOP"),
        )
    )
    server.say("ok")
    ran: list[Any] = []
    client.run("go", [echo(ran)])
    wanted = {"text": "Boston", "more": [None, {"a.b": 2}], "flag": True, "none": None}
    assert ran == [wanted]
    part = server.requests[1].json["contents"][1]["parts"][0]
    assert part == {"functionCall": {"name": "echo", "args": wanted}, "thoughtSignature": "S"}


def test_a_call_whose_arguments_were_cut_does_not_run(server: ModelServer, client: Client) -> None:
    """Without the end of the arguments they are not all there, whatever the finish reason says."""
    ran: list[Any] = []
    server.raw(stream(begun("echo"), value("$.text", "Bos", more=True), piece(finish="STOP")))
    server.say("ok")
    result = client.run("go", [echo(ran)])
    assert ran == []
    assert result.tool_calls[0].is_error


@pytest.mark.parametrize("path", ["", "$", "text", "$[0]", "$.a[99999999]", "$..a", "$.text.deeper"])
def test_a_path_that_is_none(path: str, server: ModelServer, client: Client) -> None:
    """It is a malformed event, not a wrong argument."""
    server.raw(stream(begun("echo"), value("$.text", "x"), value(path, 1, open=False), piece(finish="STOP")))
    with pytest.raises(MalformedEventError):
        client.run("go", [echo()])


NAMES = st.text(min_size=1, max_size=6)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


def leaves(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path."""
    if isinstance(found, dict):
        for name, inner in found.items():
            quoted = name.replace("\\", "\\\\").replace("'", "\\'")
            yield from leaves(inner, f"{path}['{quoted}']")
    elif isinstance(found, list):
        for position, inner in enumerate(found):
            yield from leaves(inner, f"{path}[{position}]")
    else:
        yield path, found


@given(wanted=st.dictionaries(NAMES, NESTED, max_size=4), cut=st.integers(0, 8))
def test_any_arguments_value_by_value(wanted: dict[str, Any], cut: int) -> None:
    """Any arguments, any names, texts in two pieces: what comes out is what was meant."""
    arguments = PartialArguments()
    for path, found in leaves(wanted, "$"):
        if isinstance(found, str):
            arguments.add({"jsonPath": path, "stringValue": found[:cut], "willContinue": True})
            arguments.add({"jsonPath": path, "stringValue": found[cut:]})
        else:
            part = value(path, found)["candidates"][0]["content"]["parts"][0]["functionCall"]
            arguments.add(part["partialArgs"][0])
    assert arguments.value() == wanted


# -- what is kept and sent back --------------------------------------------------------------------


def test_parts_go_back_as_they_came(server: ModelServer, client: Client) -> None:
    """Thoughts, signatures, code that the model ran, pictures that it made, unknown parts: verbatim."""
    parts = [
        text("hm", thought=True),
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
        {"brandNew": [1]},
        text("Look"),
        call(args={"text": "a"}, thoughtSignature="S1"),
    ]
    server.raw(stream(*[piece(p) for p in parts], piece(finish="STOP")))
    server.say("ok")
    result = client.run("go", [echo()])
    assert server.requests[1].json["contents"][1] == {"role": "model", "parts": parts}
    assert "hm" not in result.text


def test_an_edited_message_goes_out_as_edited(server: ModelServer, client: Client) -> None:
    """Kept parts count only as long as they say what the message says."""
    server.raw(stream(piece(text("old", thoughtSignature="S"), finish="STOP")))
    history = client.run("go").messages
    history[-1]["content"] = "new"
    server.say("ok")
    client.run("and?", history=history)
    assert server.requests[-1].json["contents"][1] == {"role": "model", "parts": [{"text": "new"}]}


def test_a_picture_alone_is_not_lost(server: ModelServer, client: Client) -> None:
    """An answer without a text is no empty message: it is sent back in the next run."""
    picture = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
    server.raw(stream(piece(picture, finish="STOP")))
    server.say("ok")
    history = client.run("draw").messages
    client.run("again", history=history)
    assert server.requests[1].json["contents"][1]["parts"] == [picture]


# -- the request -----------------------------------------------------------------------------------


def test_the_request(server: ModelServer) -> None:
    """Path, key, system text, functions and the parameters in their places."""
    with Client(
        server.base_url,
        style="gemini",
        model="flash",
        api_key="key-1234",
        system_prompt="Be brief.",
        request_params={
            "max_tokens": 50,
            "temperature": 0,
            "stop": "END",
            "generationConfig": {"temperature": 1, "candidateCount": 1},
        },
    ) as client:
        server.say("ok")
        client.run("go", [echo(), Tool("bare", "No arguments.", {"type": "object", "properties": {}})])
        server.say("ok")
        client.stream("go").result()
    first, second = server.requests
    assert first.path == "/v1beta/models/flash:generateContent"
    assert (second.path, second.query) == ("/v1beta/models/flash:streamGenerateContent", "alt=sse")
    assert first.headers["x-goog-api-key"] == "key-1234"
    assert "authorization" not in first.headers
    body = first.json
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "go"}]}]
    assert body["generationConfig"] == {
        "maxOutputTokens": 50,
        "temperature": 1,
        "stopSequences": ["END"],
        "candidateCount": 1,
    }
    assert set(body) == {"contents", "systemInstruction", "tools", "generationConfig"}
    [tools] = body["tools"]
    assert [f["name"] for f in tools["functionDeclarations"]] == ["echo", "bare"]
    assert "parameters" not in tools["functionDeclarations"][1]


@pytest.mark.parametrize(
    ("base", "model", "url"),
    [
        ("http://h", "m", "http://h/v1beta/models/m:generateContent"),
        ("http://h/v1beta/", "models/m", "http://h/v1beta/models/m:generateContent"),
        ("http://h/v1?key=k", "m", "http://h/v1/models/m:generateContent?key=k"),
        ("http://h/v1/projects/p/publishers/google", "m", "http://h/v1/projects/p/publishers/google/models/m:generateContent"),
        ("http://h/v1", "tunedModels/t", "http://h/v1/tunedModels/t:generateContent"),
        ("http://h/v1", "a?b#c d", "http://h/v1/models/a%3Fb%23c%20d:generateContent"),
    ],
)  # fmt: skip
def test_addresses(base: str, model: str, url: str) -> None:
    """The model stands in the path, once, and cannot leave it; a stream is asked for in the query."""
    request = ModelRequest(model=model, messages=[], stream=False)
    assert DIALECT.endpoint(base, request) == url
    streamed = DIALECT.endpoint(base, ModelRequest(model=model, messages=[]))
    assert streamed.endswith("alt=sse")
    assert ":streamGenerateContent?" in streamed


def test_images_files_and_addresses(server: ModelServer, client: Client) -> None:
    """Data go inline, addresses as they are; a tool's images follow behind all results of the turn."""
    png = b"\x89PNG\r\n\x1a\n123"
    look = Tool("look", execute=lambda args, ctx: ToolResult("seen", content=(Image(png),)))
    server.call_many([("look", {}), ("echo", {"text": "x"})])
    server.say("ok")
    client.run(["What?", Image("https://example.com/a.png?x=1")], [look, echo()])
    user, _, results, media = server.requests[1].json["contents"]
    assert user["parts"][1] == {
        "fileData": {"fileUri": "https://example.com/a.png?x=1", "mimeType": "image/png"}
    }
    assert [p["functionResponse"]["name"] for p in results["parts"]] == ["look", "echo"]
    assert media["parts"][0] == {"text": "What the call of look returned:"}
    assert media["parts"][1]["inlineData"]["mimeType"] == "image/png"


def test_a_failed_call_is_said_to_have_failed(server: ModelServer, client: Client) -> None:
    """Its response has an error in place of an output."""
    server.call("echo", {"text": 1})
    server.say("ok")
    broken = Tool("echo", execute=lambda args, ctx: 1 / 0)
    client.run("go", [broken])
    [part] = server.requests[1].json["contents"][2]["parts"]
    assert list(part["functionResponse"]["response"]) == ["error"]


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ({"type": "function", "function": {"name": "f"}}, {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    ],
)
def test_choices(choice: Any, config: dict[str, Any]) -> None:
    """OpenAI's tool_choice as this API says it."""
    assert DIALECT.choice(choice) == {"toolConfig": {"functionCallingConfig": config}}


def test_calls_of_another_model_get_a_signature_where_one_is_wanted(
    server: ModelServer, client: Client
) -> None:
    """Its own calls are sent as they came; a refusal for want of a signature is learned once."""
    made = {"id": "a", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
    ]
    server.fail(status=400, message="Function call is missing a thought_signature in functionCall parts.")
    server.say("ok")
    assert client.run(None, [echo()], history=history).text == "ok"
    parts = [r.json["contents"][1]["parts"][0] for r in server.requests]
    assert [part.get("thoughtSignature") for part in parts] == [None, "skip_thought_signature_validator"]


def test_an_endpoint_that_does_not_stream(server: ModelServer, client: Client) -> None:
    """Once it said so it is asked at the other address, and its whole answer is a stream's, too."""
    server.fail(status=400, message="streaming is not supported for this model")
    server.say("whole")
    *_, done = client.stream("go")
    assert isinstance(done, Done)
    assert done.result.text == "whole"
    assert server.requests[1].path.endswith(":generateContent")
