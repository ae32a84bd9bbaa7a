"""The Responses dialect: its events one by one, what is kept and sent back, and what is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import (
    Chunk,
    Client,
    Done,
    EmptyResponseError,
    Error,
    Image,
    RateLimitError,
    Text,
    Thinking,
    Tool,
    ToolResult,
    TruncatedStreamError,
)
from toolnexus.testing import ModelServer, raw
from toolnexus.wire import DIALECTS, ModelRequest

DIALECT = DIALECTS["responses"]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="responses") as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.base_url, style="responses", model="m", api_key="key-1234", retries=0) as client:
        yield client


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def created() -> bytes:
    return event("response.created", response={"id": "resp_1", "model": "m-1", "status": "in_progress"})


def completed(output: Any = (), status: str = "completed", **fields: Any) -> bytes:
    response = {"id": "resp_1", "status": status, "output": list(output), **fields}
    return event(f"response.{status}", response=response)


def added(index: int, **item: Any) -> bytes:
    return event("response.output_item.added", output_index=index, item=item)


def finished(index: int, **item: Any) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def delta(kind: str, index: int, text: str, **fields: Any) -> bytes:
    return event(f"response.{kind}.delta", output_index=index, delta=text, **fields)


def message(text: str, **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part], **fields}


def call(number: int, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    id_ = {"id": f"fc_{number}", "call_id": f"call_{number}"}
    return {"type": "function_call", **id_, "name": "echo", "arguments": arguments, **fields}


def reasoning(text: str = "", encrypted: str | None = "SECRET") -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": encrypted}


def echo(ran: list[Any] | None = None) -> Tool:
    def run(args: dict[str, Any], ctx: Any) -> str:
        if ran is not None:
            ran.append(args)
        return "echoed"

    return Tool("echo", "Say it again.", {"type": "object", "properties": {"text": {}}}, run)


# -- reading ---------------------------------------------------------------------------------------


def test_f39_the_final_text_goes_before_the_deltas(server: ModelServer, client: Client) -> None:
    """F39: pieces "aaa", then "XXX" as the text in the end: the result has "XXX"."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    deltas = delta("output_text", 0, "aaa", content_index=0)
    server.raw(created() + added(0, **item) + deltas + finished(0, **message("XXX")) + completed())
    assert client.stream("go").result().text == "XXX"


def test_what_only_the_final_text_has_is_streamed(server: ModelServer, client: Client) -> None:
    """Where the pieces are the beginning of the final text, its rest is a piece of its own."""
    pieces = delta("output_text", 0, "Hel", content_index=0)
    done = event("response.output_text.done", output_index=0, content_index=0, text="Hello")
    server.raw(created() + added(0, type="message", content=[]) + pieces + done + completed())
    events = list(client.stream("go"))
    assert events[:2] == [Text("Hel"), Text("lo")]
    assert events[-1].result.text == "Hello"  # type: ignore[attr-defined]


def test_items_that_only_the_end_has_count(server: ModelServer, client: Client) -> None:
    """A stream of nothing but its end is a whole answer; without any item it is empty."""
    server.raw(created() + completed([reasoning("hm"), message("all")]))
    result = client.run("go")
    assert (result.text, result.thinking) == ("all", "hm")
    server.raw(created() + completed())
    with pytest.raises(EmptyResponseError):
        client.run("go")


def test_f41_the_end_without_an_end_mark(server: ModelServer, client: Client) -> None:
    """A stream that ends at response.completed, without [DONE], is a success."""
    body = created() + delta("output_text", 0, "all", content_index=0)
    server.raw(body + finished(0, **message("all")) + completed())
    *before, last = client.stream("go")
    assert before[0] == Text("all")
    assert isinstance(last, Done)
    assert (last.result.text, last.result.status, last.result.finish_reason) == ("all", "done", "stop")


def test_items_in_the_stream_and_an_empty_end(server: ModelServer, client: Client) -> None:
    """final-output-empty: the items are those that came before."""
    server.raw(created() + added(0, **call(1, "")) + finished(0, **call(1, '{"text":"x"}')) + completed())
    server.say("ok")
    ran: list[Any] = []
    assert client.run("go", [echo(ran)]).text == "ok"
    assert ran == [{"text": "x"}]


def test_f40_calls_are_told_apart_by_their_place(server: ModelServer, client: Client) -> None:
    """F40: fragments are keyed by item, the result goes under call_id, the item id is kept."""
    body = created() + added(0, **call(1, "")) + added(1, **call(2, ""))
    for piece in ('{"te', 'xt":'):
        for index in (0, 1):
            kind = "function_call_arguments"
            body += delta(kind, index, piece, item_id=f"fc_{index + 1}")
    body += delta("function_call_arguments", 1, '"b"}') + delta("function_call_arguments", 0, '"a"}')
    server.raw(
        body + finished(0, **call(1, '{"text":"a"}')) + finished(1, **call(2, '{"text":"b"}')) + completed()
    )
    server.say("ok")
    ran: list[Any] = []
    result = client.run("go", [echo(ran)])
    assert [c.id for c in result.tool_calls] == ["call_1", "call_2"]
    assert sorted(a["text"] for a in ran) == ["a", "b"]
    sent = server.requests[1].json["input"]
    assert [i.get("id") for i in sent[1:3]] == ["fc_1", "fc_2"]
    assert [(i["type"], i["call_id"]) for i in sent[3:]] == [
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
    ]


def test_an_id_of_two_calls(server: ModelServer, client: Client) -> None:
    """Two calls of one answer never share an id, and each has its result."""
    twins = [call(1, '{"text":"a"}'), call(1, '{"text":"b"}', id="fc_2")]
    server.raw(created() + finished(0, **twins[0]) + finished(1, **twins[1]) + completed(twins))
    server.say("ok")
    result = client.run("go", [echo()])
    assert len({c.id for c in result.tool_calls}) == 2
    sent = server.requests[1].json["input"][1:]
    assert [i["call_id"] for i in sent[:2]] == [i["call_id"] for i in sent[2:]]


def test_both_forms_of_the_reasoning_are_one(server: ModelServer, client: Client) -> None:
    """Summary and text of one item say the same: the first that comes is taken."""
    item = {**reasoning("short"), "content": [{"type": "reasoning_text", "text": "long"}]}
    body = created() + added(0, type="reasoning", summary=[])
    body += delta("reasoning_text", 0, "lo", content_index=0) + delta("reasoning_summary_text", 0, "sh")
    server.raw(body + finished(0, **item) + finished(1, **message("x")) + completed())
    events = list(client.stream("go"))
    assert [e.delta for e in events if isinstance(e, Thinking)] == ["lo", "ng"]


def test_the_message_is_cut_without_its_end(server: ModelServer, client: Client) -> None:
    """No response.completed: the stream is truncated, what came is kept, nothing runs."""
    server.raw(created() + added(0, type="message") + delta("output_text", 0, "par"))
    *_, error = client.stream("go")
    assert isinstance(error, Error)
    assert isinstance(error.error, TruncatedStreamError)
    assert error.partial is not None
    assert error.partial.text == "par"
    ran: list[Any] = []
    server.raw(created() + finished(0, **call(1)))
    with pytest.raises(TruncatedStreamError):
        client.run("go", [echo(ran)])
    assert ran == []


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
def test_an_incomplete_answer(reason: str, finish: str, server: ModelServer, client: Client) -> None:
    """Its reason is the finish reason; a call in it is not run."""
    ran: list[Any] = []
    cut = completed([message("so fa"), call(1, '{"te')], "incomplete", incomplete_details={"reason": reason})
    server.raw(created() + cut)
    result = client.run("go", [echo(ran)])
    assert (result.finish_reason, result.raw_finish_reason, result.text) == (finish, reason, "so fa")
    assert ran == []


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_an_answer_that_failed(status: str, server: ModelServer, client: Client) -> None:
    """It is an error, streamed and whole."""
    error = {"code": "rate_limit_exceeded", "message": "slow down"} if status == "failed" else None
    server.raw(created() + completed(status=status, error=error))
    *_, last = client.stream("go")
    assert isinstance(last, Error)
    document: dict[str, Any] = {"object": "response", "status": status, "output": [], "error": error}
    server.raw(json.dumps(document).encode(), content_type="application/json")
    *_, whole = client.stream("go")
    assert isinstance(whole, Error)
    assert type(last.error) is type(whole.error)
    assert (type(last.error) is RateLimitError) == (status == "failed")


def test_an_error_event_gives_way_to_the_failure_behind_it(server: ModelServer, client: Client) -> None:
    """response.failed says more than the error in front of it; alone, the error counts."""
    first = event("error", code="unknown", message="Foobar", param=None)
    failed = completed(status="failed", error={"code": "rate_limit_exceeded", "message": "too large"})
    server.raw(created() + first + failed)
    *_, last = client.stream("go")
    assert isinstance(last, Error)
    assert isinstance(last.error, RateLimitError)
    server.raw(created() + first)
    *_, last = client.stream("go")
    assert isinstance(last, Error)
    assert "Foobar" in last.error.message


def test_events_without_places_and_unknown_events(server: ModelServer, client: Client) -> None:
    """An item is found by its id, else it is the last one; what is not known is passed over."""
    body = created() + event("keepalive") + event("response.new_thing", delta=3, output_index="x")
    body += event("response.output_item.added", item={"type": "message", "id": "a"})
    body += event("response.output_text.delta", item_id="a", delta="Hel")
    body += event("response.output_text.delta", delta="lo")
    server.raw(body + event("response.output_item.done", item=message("Hello", id="a")) + completed())
    assert client.stream("go").result().text == "Hello"


def test_refusals_are_no_text(server: ModelServer, client: Client) -> None:
    """They come as refusal, once, and the finish reason says so."""
    part = {"type": "refusal", "refusal": "I cannot."}
    body = created() + added(0, type="message") + delta("refusal", 0, "I can", content_index=0)
    body += event("response.refusal.done", output_index=0, content_index=0, refusal="I cannot.")
    server.raw(body + finished(0, type="message", content=[part]) + completed())
    result = client.run("go")
    assert (result.text, result.refusal, result.finish_reason) == ("", "I cannot.", "content_filter")


PIECES = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=5)), max_size=12)


@given(pieces=PIECES, whole_only=st.booleans())
def test_any_interleaving_of_texts(pieces: list[tuple[int, str]], whole_only: bool) -> None:
    """Texts of several items, interleaved in any way: each is whole, in the order of the items."""
    decoder = DIALECT.decoder()
    texts = {place: "".join(t for p, t in pieces if p == place) for place in range(3)}
    chunks: list[Chunk] = []
    for place, text in pieces if not whole_only else ():
        payload = {"type": "response.output_text.delta", "output_index": place, "delta": text}
        chunks += decoder.feed("message", json.dumps(payload))
    output = [message(texts[place], id=f"m{place}") for place in range(3)]
    end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
    chunks += decoder.feed("message", json.dumps(end))
    decoder.finish(None)
    assert decoder.reply().text == "".join(texts.values())


# -- what is kept and sent back --------------------------------------------------------------------


def sent_items(answer: list[dict[str, Any]], server: ModelServer, client: Client) -> list[Any]:
    """Let the model give an answer with calls, and return what of it is sent back."""
    server.raw(created() + completed(answer))
    server.say("ok")
    client.run("go", [echo()])
    sent: list[Any] = server.requests[-1].json["input"][1:]
    return sent[:-1]


def test_items_go_back_as_they_came(server: ModelServer, client: Client) -> None:
    """Reasoning with its ciphertext, a built-in tool's item, an unknown one, texts with a phase: verbatim."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    odd = {"type": "brand_new", "id": "x_1", "stuff": [1, 2]}
    answer = [reasoning("hm"), search, odd, message("Look:", phase="commentary"), call(1, '{"text": "x"}')]
    assert sent_items(answer, server, client) == answer
    assert server.requests[-1].json["store"] is False
    assert server.requests[-1].json["include"] == ["reasoning.encrypted_content"]


def test_reasoning_that_was_not_given_cannot_be_sent(server: ModelServer, client: Client) -> None:
    """Nothing is stored: a bare id would not be found, nor would what depends on it."""
    answer = [reasoning("hm", encrypted=None), call(1)]
    assert sent_items(answer, server, client) == [{k: v for k, v in call(1).items() if k != "id"}]


def test_reasoning_stays_out_where_it_is_told_to(server: ModelServer) -> None:
    """echo_reasoning="never" sends the calls without it."""
    with Client(server.base_url, style="responses", model="m", api_key="k", echo_reasoning="never") as client:
        sent = sent_items([reasoning("hm"), call(1)], server, client)
    assert [item["type"] for item in sent] == ["function_call"]
    assert "id" not in sent[0]


def test_an_edited_message_goes_out_as_edited(server: ModelServer, client: Client) -> None:
    """Kept items count only as long as they say what the message says."""
    server.raw(created() + completed([message("old", phase="final_answer")]))
    history = client.run("go").messages
    history[-1]["content"] = "new"
    server.say("ok")
    client.run("and?", history=history)
    assert server.requests[-1].json["input"][1] == {"role": "assistant", "content": "new"}


def test_broken_arguments_do_not_go_back(server: ModelServer, client: Client) -> None:
    """The model is told; the endpoint gets an empty object in their place."""
    ran: list[Any] = []
    server.raw(created() + completed([reasoning(), call(1, '{"text": ')]))
    server.say("sorry")
    result = client.run("go", [echo(ran)])
    assert ran == []
    assert result.tool_calls[0].is_error
    sent = server.requests[-1].json["input"]
    assert sent[2]["arguments"] == "{}"
    assert "not valid JSON" in sent[3]["output"]


def test_a_free_text_call_is_answered_in_its_own_form(server: ModelServer, client: Client) -> None:
    """A custom tool's call has an output of its own kind, and is never run with a text as arguments."""
    custom = {"type": "custom_tool_call", "id": "ct", "call_id": "c1", "name": "echo", "input": "SELECT 1"}
    ran: list[Any] = []
    server.raw(created() + completed([custom]))
    server.say("ok")
    client.run("go", [echo(ran)])
    assert ran == []
    sent = server.requests[-1].json["input"]
    assert sent[1] == custom
    assert (sent[2]["type"], sent[2]["call_id"]) == ("custom_tool_call_output", "c1")


# -- the request -----------------------------------------------------------------------------------


def test_the_body(server: ModelServer, client: Client) -> None:
    """Instructions, flat tools that are not made strict, the parameters' own names."""
    server.say("ok")
    with Client(
        server.base_url,
        style="responses",
        model="m",
        api_key="key-1234",
        system_prompt="Be brief.",
        request_params={"max_tokens": 50, "reasoning_effort": "low", "temperature": 0},
    ) as other:
        other.run("go", [echo()])
    request = server.requests[0]
    body = request.json
    assert request.path == "/v1/responses"
    assert request.headers["authorization"] == "Bearer key-1234"
    assert body["instructions"] == "Be brief."
    assert body["input"] == [{"role": "user", "content": "go"}]
    assert body["max_output_tokens"] == 50
    assert body["reasoning"] == {"effort": "low"}
    assert body["temperature"] == 0
    assert "max_tokens" not in body
    [tool] = body["tools"]
    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "echo", False)
    assert "stream" not in body


def test_images_and_files_in_prompts_and_results(server: ModelServer, client: Client) -> None:
    """Both go as input parts; a tool's result may hold them, too."""
    png = b"\x89PNG\r\n\x1a\n123"
    look = Tool("look", execute=lambda args, ctx: ToolResult("see", content=(Image(png),)))
    server.call("look", {}, id="c1")
    server.say("ok")
    client.run(["What?", Image("https://example.com/a.png", detail="low")], [look])
    sent = server.requests[1].json["input"]
    assert sent[0]["content"] == [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
    ]
    output = sent[-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]
    assert output[1]["image_url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("file", "part"),
    [
        (
            {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        ),
        (
            {"filename": "a.pdf", "file_data": "https://example.com/a.pdf"},
            {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        ),
        ({"file_id": "file_1"}, {"type": "input_file", "file_id": "file_1"}),
        (
            {"file_data": "data:image/png;base64,iVBO"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBO", "detail": "auto"},
        ),
    ],
)
def test_files(file: dict[str, Any], part: dict[str, Any]) -> None:
    """Data, an address or an id; an image is an image whatever it came as."""
    user = {"role": "user", "content": [{"type": "file", "file": file}]}
    body = DIALECT.body(ModelRequest(model="m", messages=[user]))
    assert body["input"][0]["content"] == [part]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("any", "required"),
        ("none", "none"),
        ({"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
        ({"type": "web_search"}, {"type": "web_search"}),
    ],
)
def test_choices(choice: Any, sent: Any) -> None:
    """OpenAI's tool_choice in the flat form."""
    assert DIALECT.choice(choice) == {"tool_choice": sent}


def test_an_endpoint_without_encrypted_reasoning(server: ModelServer, client: Client) -> None:
    """A refusal of it is learned once, and the run goes on."""
    server.fail(status=400, message="Encrypted content is not supported with this model.")
    server.say("a")
    server.say("b")
    assert client.run("go").text == "a"
    assert client.run("go").text == "b"
    assert ["include" in r.json for r in server.requests] == [True, False, False]


def test_reasoning_that_an_endpoint_cannot_read(server: ModelServer, client: Client) -> None:
    """Ciphertext of another endpoint is left out once it was refused."""
    server.raw(created() + completed([reasoning("hm"), message("x")]))
    history = client.run("go").messages
    server.fail(status=400, message="The encrypted content gAAA could not be verified.")
    server.say("ok")
    assert client.run("and?", history=history).text == "ok"
    kinds = [[i.get("type") for i in r.json["input"]] for r in server.requests[1:]]
    assert "reasoning" in kinds[0]
    assert "reasoning" not in kinds[1]


def test_a_long_id_of_another_provider_is_made_short() -> None:
    """Call and result go under the same id of at most 64 characters."""
    long = "x" * 90
    made = {"id": long, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": long, "content": "r"},
    ]
    _, first, second = DIALECT.body(ModelRequest(model="m", messages=messages))["input"]
    assert first["call_id"] == second["call_id"]
    assert len(first["call_id"]) <= 64


def test_a_whole_document_where_a_stream_was_asked_for(server: ModelServer, client: Client) -> None:
    """It is taken as the answer."""
    document = {"object": "response", "status": "completed", "output": [message("whole")]}
    server.play(raw(json.dumps(document).encode(), content_type="application/json"))
    *_, done = client.stream("go")
    assert isinstance(done, Done)
    assert done.result.text == "whole"
