"""What is sent: bodies of all styles, headers, addresses and keys, as a real server receives them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoint import STYLES, Endpoint, calls, start, stop, tool_block, tools
from toolnexus import (
    Client,
    ConfigurationError,
    File,
    HookError,
    Image,
    ToolResult,
)
from toolnexus.testing import ModelServer, RecordedRequest, failure, tool_call

ALL = (*STYLES, "responses", "gemini")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
JPEG = b"\xff\xd8\xff\xe0" + bytes(8)
PDF = b"%PDF-1.7\n%%EOF"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def asked(endpoint: Endpoint, style: str, prompt: Any = "go", **options: Any) -> RecordedRequest:
    """Ask with a prompt, and return the request that came."""
    made = {k: options.pop(k) for k in tuple(options) if k not in ("history", "tools", "id")}
    endpoint.play("ok")
    with endpoint.client(style, **made) as client:
        client.stream(prompt, options.pop("tools", None), **options).result()
    return endpoint.seen[0]


# -- the plain body --------------------------------------------------------------------------------


def test_the_whole_body_openai(endpoint: Endpoint) -> None:
    """Nothing but what is needed is sent."""
    request = asked(endpoint, "openai", "Hi", system_prompt="Be brief.")
    assert request.path == "/v1/chat/completions"
    assert request.json == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert request.headers["authorization"] == "Bearer test-key"
    assert request.headers["content-type"] == "application/json"


def test_the_whole_body_anthropic(endpoint: Endpoint) -> None:
    """The system text has a field of its own, content is a list of blocks."""
    request = asked(endpoint, "anthropic", "Hi", system_prompt="Be brief.")
    assert request.path == "/v1/messages"
    assert request.json == {
        "model": "m",
        "max_tokens": 4096,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "stream": True,
    }
    assert request.headers["x-api-key"] == "test-key"
    assert request.headers["anthropic-version"]
    assert "authorization" not in request.headers


def test_the_whole_body_responses(endpoint: Endpoint) -> None:
    """Nothing is kept by the provider, and its reasoning comes back to us."""
    request = asked(endpoint, "responses", "Hi", system_prompt="Be brief.")
    assert request.path == "/v1/responses"
    assert request.json == {
        "model": "m",
        "input": [{"role": "user", "content": "Hi"}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be brief.",
        "stream": True,
    }
    assert request.headers["authorization"] == "Bearer test-key"


def test_the_whole_body_gemini(endpoint: Endpoint) -> None:
    """Model and streaming stand in the address."""
    request = asked(endpoint, "gemini", "Hi", system_prompt="Be brief.")
    assert (request.path, request.query) == ("/v1beta/models/m:streamGenerateContent", "alt=sse")
    assert request.json == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    }
    assert request.headers["x-goog-api-key"] == "test-key"
    assert "authorization" not in request.headers


@pytest.mark.parametrize("style", ALL)
def test_run_asks_for_no_stream(style: str, endpoint: Endpoint) -> None:
    """run() asks for a whole answer, and so does a stream with model_stream=False."""
    endpoint.play("ok", "ok")
    client = endpoint.client(style)
    client.run("go")
    assert client.stream("go", model_stream=False).result().text == "ok"
    for request in endpoint.seen:
        assert not {"stream", "stream_options"} & set(request.json)
        assert "stream" not in request.path


@pytest.mark.parametrize("style", ALL)
def test_tools_are_declared(style: str, endpoint: Endpoint) -> None:
    """Each tool goes with its name, description and schema, in the provider's form."""
    request = asked(endpoint, style, tools=tools("f", "g"))
    said: dict[str, Any] = {"name": "f", "description": "The tool f."}
    schema = {"type": "object", "properties": {}}
    wanted: dict[str, Any] = {
        "openai": {"type": "function", "function": {**said, "parameters": schema}},
        "anthropic": {**said, "input_schema": schema},
        "responses": {"type": "function", **said, "parameters": schema, "strict": False},
        "gemini": said,  # which takes no object without properties
    }
    sent = request.json["tools"]
    if style == "gemini":
        sent = sent[0]["functionDeclarations"]
    assert sent[0] == wanted[style]
    assert [(tool.get("function") or tool)["name"] for tool in sent] == ["f", "g"]


# -- prompts of several parts ----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "photo.bin").write_bytes(JPEG)
    (tmp_path / "report.pdf").write_bytes(PDF)
    (tmp_path / "notes.txt").write_text("héllo")
    (tmp_path / "empty.png").write_bytes(b"")
    return tmp_path


URL = "https://example.com/cat.png"


@pytest.mark.parametrize(
    ("make", "media_type", "content"),
    [
        (lambda d: Image(d / "cat.png"), "image/png", PNG),
        (lambda d: Image(str(d / "cat.png")), "image/png", PNG),
        (lambda d: Image(d / "photo.bin"), "image/jpeg", JPEG),
        (lambda d: Image(PNG), "image/png", PNG),
        (lambda d: Image(b"GIF89a....."), "image/gif", b"GIF89a....."),
        (lambda d: Image(b"RIFF\0\0\0\0WEBPVP8 "), "image/webp", b"RIFF\0\0\0\0WEBPVP8 "),
        (lambda d: Image(b"raw", media_type="image/webp"), "image/webp", b"raw"),
        (lambda d: Image(f"data:image/gif;base64,{encoded(b'GIF8')}"), "image/gif", b"GIF8"),
        (lambda d: Image(f"DATA:image/gif;base64,{encoded(b'GIF8')}"), "image/gif", b"GIF8"),
    ],
    ids=["path", "text-path", "sniffed", "bytes", "gif", "webp", "given", "data-url", "data-url-capitals"],
)
def test_images_by_path_and_bytes(
    make: Any, media_type: str, content: bytes, files: Path, endpoint: Endpoint
) -> None:
    """An image goes as data, its type found out, in each provider's form."""
    image = make(files)
    sent = asked(endpoint, "openai", ["What is it?", image]).messages[0]["content"]
    url = f"data:{media_type};base64,{encoded(content)}"
    assert sent == [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    sent = asked(endpoint, "anthropic", ["What is it?", image]).messages[0]["content"]
    source = {"type": "base64", "media_type": media_type, "data": encoded(content)}
    assert sent == [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]


def test_images_by_url(endpoint: Endpoint) -> None:
    """A URL is handed on as one; the detail goes where it is known. A prompt may be an image alone."""
    sent = asked(endpoint, "openai", Image(URL, detail="low")).messages[0]["content"]
    assert sent == [{"type": "image_url", "image_url": {"url": URL, "detail": "low"}}]
    sent = asked(endpoint, "anthropic", Image(URL, detail="low")).messages[0]["content"]
    assert sent == [{"type": "image", "source": {"type": "url", "url": URL}}]


@pytest.mark.parametrize("given", ["path", "bytes", "data-url"])
def test_documents(given: str, files: Path, endpoint: Endpoint) -> None:
    """A PDF goes with its name, as a file or a document."""
    url = f"data:application/pdf;base64,{encoded(PDF)}"
    sources: dict[str, Any] = {"path": files / "report.pdf", "bytes": PDF, "data-url": url}
    document = File(sources[given], name=None if given == "path" else "report.pdf")
    sent = asked(endpoint, "openai", [document, "Sum it up."]).messages[0]["content"]
    assert sent[0] == {"type": "file", "file": {"filename": "report.pdf", "file_data": url}}
    sent = asked(endpoint, "anthropic", [document, "Sum it up."]).messages[0]["content"]
    assert sent[0] == {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": encoded(PDF)},
        "title": "report.pdf",
    }


def test_documents_by_url(endpoint: Endpoint) -> None:
    """A URL is handed on, with the name that stands in it."""
    document = File("https://example.com/a/report.pdf?x=1")
    sent = asked(endpoint, "openai", document).messages[0]["content"]
    assert sent[0]["file"] == {"filename": "report.pdf", "file_data": "https://example.com/a/report.pdf?x=1"}
    sent = asked(endpoint, "anthropic", document).messages[0]["content"]
    assert sent[0]["source"] == {"type": "url", "url": "https://example.com/a/report.pdf?x=1"}
    assert sent[0]["title"] == "report.pdf"


def test_text_files_are_documents_of_text(files: Path, endpoint: Endpoint) -> None:
    """Anthropic takes base64 of PDFs only: a text goes as text."""
    sent = asked(endpoint, "anthropic", File(files / "notes.txt")).messages[0]["content"]
    assert sent[0]["source"] == {"type": "text", "media_type": "text/plain", "data": "héllo"}
    sent = asked(endpoint, "anthropic", File("data:text/plain,a%20b")).messages[0]["content"]
    assert sent[0]["source"]["data"] == "a b"


def test_parts_of_the_users_own(endpoint: Endpoint) -> None:
    """A part dict goes through: OpenAI-shaped ones are translated, others were written for the API."""
    part = {"type": "image_url", "image_url": {"url": URL}}
    assert asked(endpoint, "openai", [part]).messages[0]["content"] == [part]
    own = {"type": "search_result", "source": "x", "title": "t", "content": []}
    sent = asked(endpoint, "anthropic", [part, own]).messages[0]["content"]
    assert sent == [{"type": "image", "source": {"type": "url", "url": URL}}, own]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ([], "empty"),
        ([""], "empty"),
        (3, "text or a list"),
        ({"role": "user"}, "text or a list"),
        (b"bytes", "text or a list"),
        ([3], "a part of the prompt"),
        ([{"no": "type"}], "a part of the prompt"),
        ([{"type": "text", "text": 5}], "a part of the prompt"),
        ([{"type": "image_url", "image_url": "http://x"}], "a part of the prompt"),
        ([{"type": "image_url"}], "a part of the prompt"),
        ([{"type": "file", "file": 5}], "a part of the prompt"),
        ([{"type": "file", "file": {"file_data": 5}}], "a part of the prompt"),
        (None, "no prompt"),
    ],
)
def test_prompts_that_are_none(prompt: Any, why: str, endpoint: Endpoint) -> None:
    """A prompt that cannot be sent is refused by the call itself, and nothing is sent."""
    endpoint.play()
    for ask in (endpoint.client().stream, endpoint.client().run):
        with pytest.raises(ConfigurationError, match=why):
            ask(prompt)
    assert not endpoint.seen


def test_files_that_cannot_be_sent(files: Path, endpoint: Endpoint) -> None:
    """Absent, a folder, empty, no image: the message says which, before anything is sent."""
    endpoint.play()
    for part, why in (
        (Image(files / "none.png"), "No such file"),
        (Image(files), "cannot read"),
        (Image(files / "empty.png"), "empty.png is empty"),
        (Image(b""), "empty"),
        (Image(files / "report.pdf"), "no image; use File"),
        (Image("a\0b"), "cannot read"),
        (File(files / "none.pdf"), "No such file"),
        (Image(3), "not int"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match=why):
            endpoint.client().stream([part])
    assert not endpoint.seen


def test_blank_texts_beside_other_parts_are_left_out(endpoint: Endpoint) -> None:
    """An empty text block is refused by some providers."""
    sent = asked(endpoint, "openai", ["", Image(URL), " "]).messages[0]["content"]
    assert [p["type"] for p in sent] == ["image_url"]


# -- Unicode ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ALL)
def test_unicode_goes_as_utf_8(style: str, endpoint: Endpoint) -> None:
    """Text is sent as it is, in UTF-8 and not in escapes."""
    wanted = "näïve 日本 😀 \u2028 \x00"
    request = asked(endpoint, style, wanted, system_prompt="señor")
    assert "日本 😀".encode() in request.raw_body
    assert wanted in texts_of(request.json)
    assert "señor" in texts_of(request.json)


def texts_of(value: Any) -> list[str]:
    """Return every text in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_of(item)]


@pytest.mark.parametrize("style", ALL)
def test_his_10_lone_surrogates(style: str, endpoint: Endpoint) -> None:
    """Half a character in prompt, history, system text or tool result is U+FFFD; pairs are joined."""
    bad = "a\udc9db \ud83d\ude00"
    good = "a\ufffdb \U0001f600"
    first = tool_call("f", id="c")
    client = endpoint.client(style, system_prompt=bad)
    offered = tools("f", execute=lambda args, ctx: bad)
    endpoint.play(first, "ok", "ok")
    result = client.stream([bad, {"type": "text", "text": bad}], offered, id="surrogates").result()
    json.dumps(result.to_dict(), ensure_ascii=False).encode()
    assert result.tool_calls[0].output == good
    client.stream(bad, offered, id="surrogates").result()
    for request in endpoint.seen:
        body = json.dumps(request.json, ensure_ascii=False)
        body.encode()
        assert good in body
    stored = client.conversation_store.get("surrogates")
    json.dumps(stored, ensure_ascii=False).encode()
    client.conversation_store.delete("surrogates")
    history = [{"role": "user", "content": bad}, {"role": "assistant", "content": bad}]
    assert good in asked(endpoint, style, "go", history=history).raw_body.decode()


# -- histories -------------------------------------------------------------------------------------


def call(id: str = "c1", name: str = "f", arguments: str = "{}") -> dict[str, Any]:  # noqa: A002
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(content: str | None = None, *made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(made)} if made else {})}


def result_of(id: str, content: str = "4") -> dict[str, Any]:  # noqa: A002
    return {"role": "tool", "tool_call_id": id, "content": content}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_his_05_several_system_messages(endpoint: Endpoint) -> None:
    """They become one text in front, in order, ours first, none twice."""
    history = [
        {"role": "system", "content": "A"},
        user("1"),
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        {"role": "system", "content": "A"},
        {"role": "system", "content": "  "},
        said("2"),
    ]
    sent = asked(endpoint, "openai", "3", history=history, system_prompt="S").messages
    assert [(m["role"], m["content"]) for m in sent] == [
        ("system", "S\n\nA\n\nB"),
        ("user", "1"),
        ("assistant", "2"),
        ("user", "3"),
    ]
    request = asked(endpoint, "anthropic", "3", history=history, system_prompt="S")
    assert request.json["system"] == "S\n\nA\n\nB"
    assert [m["role"] for m in request.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("style", ALL)
def test_no_system_text_no_field(style: str, endpoint: Endpoint) -> None:
    """A missing or blank system text is not sent at all."""
    for prompt in (None, "", " \n"):
        request = asked(endpoint, style, system_prompt=prompt)
        assert not {"system", "instructions", "systemInstruction"} & set(request.json)
        sent = next(request.json[key] for key in ("messages", "input", "contents") if key in request.json)
        assert [m["role"] for m in sent] == ["user"]


def test_his_01_calls_without_results(endpoint: Endpoint) -> None:
    """A missing result is made up right behind its call; the transcript keeps what it had."""
    history = [
        user("1"),
        said(None, call("a"), call("b")),
        result_of("b", "B"),
        user("2"),
        said(None, call("c")),
    ]
    sent = asked(endpoint, "openai", "3", history=history).messages
    assert [(m["role"], m.get("tool_call_id")) for m in sent] == [
        ("user", None),
        ("assistant", None),
        ("tool", "a"),
        ("tool", "b"),
        ("user", None),
        ("assistant", None),
        ("tool", "c"),
        ("user", None),
    ]
    assert "interrupted" in sent[2]["content"]
    sent = asked(endpoint, "anthropic", "3", history=history).messages
    assert [m["role"] for m in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert [b["type"] for b in sent[2]["content"]] == ["tool_result", "tool_result", "text"]


def test_his_02_results_without_calls(endpoint: Endpoint) -> None:
    """A result whose call is not there is left out, and so is a second one for the same call."""
    history = [
        user("1"),
        result_of("ghost"),
        said(None, call("a")),
        result_of("a", "A"),
        result_of("a", "again"),
    ]
    for style in ALL:
        body = asked(endpoint, style, "2", history=history).raw_body.decode()
        assert "ghost" not in body
        assert "again" not in body
        assert '"A"' in body


def test_his_06_results_that_stand_elsewhere(endpoint: Endpoint) -> None:
    """A result that came after a message of the user's goes right behind its call."""
    history = [user("1"), said(None, call("a")), user("never mind"), result_of("a", "A")]
    sent = asked(endpoint, "openai", "2", history=history).messages
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "user", "user"]


def test_ids_that_serve_several_turns(endpoint: Endpoint) -> None:
    """Some providers count their ids anew in each turn: each call keeps its own result, ids become unique."""
    history = [
        user("1"),
        said(None, call("0")),  # interrupted
        user("2"),
        said(None, call("0")),
        result_of("0", "second"),
    ]
    sent = asked(endpoint, "openai", "3", history=history).messages
    assert "interrupted" in sent[2]["content"]
    assert sent[5]["content"] == "second"
    sent = asked(endpoint, "anthropic", "3", history=history).messages
    used = [b["id"] for m in sent for b in m["content"] if b["type"] == "tool_use"]
    answered = [b["tool_use_id"] for m in sent for b in m["content"] if b["type"] == "tool_result"]
    assert used == answered
    assert len(set(used)) == 2


def test_ids_of_another_provider(endpoint: Endpoint) -> None:
    """An id with characters that Anthropic refuses is mapped, call and result alike, always in one way."""
    history = [user("1"), said(None, call("functions.f:0")), result_of("functions.f:0")]
    seen = set()
    for _ in range(2):
        sent = asked(endpoint, "anthropic", "2", history=history).messages
        id_ = sent[1]["content"][0]["id"]
        assert sent[2]["content"][0]["tool_use_id"] == id_
        assert id_.replace("_", "").replace("-", "").isalnum()
        seen.add(id_)
    assert len(seen) == 1


def test_his_03_empty_messages(endpoint: Endpoint) -> None:
    """Empty and blank messages and blocks are left out; a message with calls and no text stays."""
    history = [
        user("1"),
        said(""),
        said("  "),
        {"role": "user", "content": [{"type": "text", "text": " "}]},
        said("", call("a")),
        result_of("a", ""),
    ]
    sent = asked(endpoint, "openai", "2", history=history).messages
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "user"]
    sent = asked(endpoint, "anthropic", "2", history=history).messages
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert [b["type"] for b in sent[1]["content"]] == ["tool_use"]
    texts = [b["text"] for m in sent for b in m["content"] if b["type"] == "text"]
    assert all(t.strip() for t in texts)
    assert sent[2]["content"][0] == {"type": "tool_result", "tool_use_id": "a"}


def test_his_04_repeated_roles(endpoint: Endpoint) -> None:
    """Anthropic gets alternating roles at once; a strict endpoint of the other style once it says so."""
    history = [user("1"), user("2"), said("3"), said("4")]
    sent = asked(endpoint, "anthropic", "5", history=history).messages
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert [b["text"] for b in sent[0]["content"]] == ["1", "2"]

    def strict(request: RecordedRequest) -> Any:
        roles = [m["role"] for m in request.messages if m["role"] != "system"]
        if any(a == b for a, b in pairwise(roles)):
            return failure(400, message="Conversation roles must alternate user/assistant/user/assistant/...")
        return "ok"

    endpoint.play()
    endpoint.server.on_request(strict)
    client = endpoint.client()
    result = client.run("5", history=history)
    assert [m["content"] for m in result.messages] == ["1", "2", "3", "4", "5", "ok"]  # as it was
    assert [m["content"] for m in endpoint.seen[1].messages] == ["1\n\n2", "3\n\n4", "5"]


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ("text", "list of message"),
        ({"role": "user"}, "list of message"),
        ([3], r"history\[0\]"),
        ([{"role": "robot", "content": "x"}], r"history\[0\] is no message with a role"),
        ([user("x"), {"role": "tool", "content": "x"}], r"history\[1\] is a tool result without"),
        ([{"role": "user", "content": 3}], "content of type int"),
        ([{"role": "user", "content": ["x"]}], "no part dict"),
        ([{"role": "user", "content": [{"type": "text", "text": ["x"]}]}], "no part dict"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "no part dict"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "a tool call without"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "a tool call without"),
        ([{"role": "assistant", "content": "x", "toolnexus": "x"}], "not of ours"),
        ([{"role": "assistant", "content": "x", "toolnexus": {"pending": 5}}], "not of ours"),
        ([{"role": "assistant", "content": "x", "toolnexus": {"pending": [{"request": 5}]}}], "not of ours"),
    ],
)
def test_histories_that_are_none(history: Any, why: str, endpoint: Endpoint) -> None:
    """What is no history is refused by the call itself; the message says which entry and why."""
    endpoint.play()
    with pytest.raises(ConfigurationError, match=why):
        endpoint.client().stream("go", history=history)
    assert not endpoint.seen


def test_a_conversation_changes_its_provider(endpoint: Endpoint) -> None:
    """The transcript is neutral: what one style said goes to the other, without the first one's own data."""
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}]
    history = [user("1"), {**said("a"), "toolnexus": {"anthropic": {"blocks": thought}}}]
    sent = asked(endpoint, "openai", "2", history=history).messages
    assert sent[1] == {"role": "assistant", "content": "a"}
    sent = asked(endpoint, "anthropic", "2", history=history).messages
    assert sent[1]["content"] == thought
    foreign = [user("1"), {**said("a"), "toolnexus": {"openai": {"reasoning_content": "hm"}}}]
    sent = asked(endpoint, "anthropic", "2", history=foreign).messages
    assert sent[1]["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("edit", ["text", "name", "arguments", "id"])
def test_an_edited_message_goes_as_it_was_edited(edit: str, endpoint: Endpoint) -> None:
    """Kept blocks that no longer say what the message says are not sent in its place."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
    ]
    changed = {"text": ("b", call("c1", "f", '{"x":1}')), "name": ("a", call("c1", "g", '{"x":1}'))}
    changed |= {"arguments": ("a", call("c1", "f", '{"x":2}')), "id": ("a", call("c2", "f", '{"x":1}'))}
    content, made = changed[edit]
    own = {"toolnexus": {"anthropic": {"blocks": blocks}}}
    sent = asked(endpoint, "anthropic", "2", history=[user("1"), {**said(content, made), **own}]).messages
    used = sent[1]["content"]
    assert used[0] == {"type": "text", "text": content}
    assert (used[1]["id"], used[1]["name"]) == (made["id"], made["function"]["name"])
    assert used[1]["input"] == json.loads(made["function"]["arguments"])


# -- results of tools ------------------------------------------------------------------------------


def first_call(style: str, *ids: str) -> bytes:
    if style == "openai":
        return calls(*[(n, id_, "f", "{}") for n, id_ in enumerate(ids)])
    return start() + b"".join(tool_block(n, id_, "f") for n, id_ in enumerate(ids)) + stop("tool_use")


@pytest.mark.parametrize("whole", [False, True], ids=["image", "result"])
def test_exe_03_images_of_tools(whole: bool, endpoint: Endpoint) -> None:
    """An image that a tool returned reaches the model as an image, in each provider's form."""
    value: Any = ToolResult("a cat", content=(Image(PNG),)) if whole else Image(PNG)
    offered = tools("f", execute=lambda args, ctx: value)
    data_url = f"data:image/png;base64,{encoded(PNG)}"
    result = endpoint.result("openai", first_call("openai", "a", "b"), "ok", tools=offered)
    sent = endpoint.seen[1].messages
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert all(isinstance(m["content"], str) and encoded(PNG) not in m["content"] for m in sent[2:4])
    images = [p for p in sent[4]["content"] if p["type"] == "image_url"]
    assert images == [{"type": "image_url", "image_url": {"url": data_url}}] * 2
    assert encoded(PNG) not in result.tool_calls[0].output
    json.dumps(result.to_dict())

    endpoint.result("anthropic", first_call("anthropic", "a"), "ok", tools=offered)
    block = endpoint.seen[1].messages[2]["content"][0]
    source = {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}
    assert (block["type"], block["tool_use_id"]) == ("tool_result", "a")
    assert {"type": "image", "source": source} in block["content"]


@pytest.mark.parametrize("style", STYLES)
def test_exe_03_an_image_that_cannot_be_read(style: str, endpoint: Endpoint) -> None:
    """A tool that names a file that is not there does not end the run; the model is told."""
    offered = tools("f", execute=lambda args, ctx: ToolResult("see", content=(Image("/no/such.png"),)))
    result = endpoint.result(style, first_call(style, "a"), "ok", tools=offered)
    assert result.text == "ok"
    assert "cannot read" in endpoint.seen[1].raw_body.decode()


def test_errors_of_tools_are_marked(endpoint: Endpoint) -> None:
    """Anthropic has a mark for a failed call; the other style gets the text alone."""
    offered = tools("f", execute=lambda args, ctx: ToolResult.error("no"))
    endpoint.result("anthropic", first_call("anthropic", "a"), "ok", tools=offered)
    assert endpoint.seen[1].messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}
    ]
    endpoint.result("openai", first_call("openai", "a"), "ok", tools=offered)
    assert endpoint.seen[1].messages[2] == {"role": "tool", "tool_call_id": "a", "content": "no"}


# -- parameters, transforms, headers ---------------------------------------------------------------


@pytest.mark.parametrize("style", ALL)
def test_request_params(style: str, endpoint: Endpoint) -> None:
    """They are added to each body, replace ours, and None takes a key out."""
    request = asked(endpoint, style, request_params={"temperature": 0, "max_tokens": None, "model": "other"})
    body = request.json.get("generationConfig") or request.json  # where Gemini has its parameters
    assert body["temperature"] == 0
    assert not {"max_tokens", "max_output_tokens", "maxOutputTokens"} & set(body)
    assert request.json["model"] == "other"


def test_request_params_that_would_break_the_loop() -> None:
    """messages, tools and stream are ours."""
    for key in ("messages", "tools", "stream"):
        with pytest.raises(ConfigurationError, match=key):
            Client(base_url="http://127.0.0.1:1", model="m", request_params={key: []})


@pytest.mark.parametrize("style", ALL)
def test_body_transform(style: str, endpoint: Endpoint) -> None:
    """It gets each body last, and may change it or return another one."""

    def replace(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "seen": sorted(body)}

    def change(body: dict[str, Any]) -> None:
        body["changed"] = True

    request = asked(endpoint, style, body_transform=replace, request_params={"top_p": 1})
    assert ("generationConfig" if style == "gemini" else "top_p") in request.json["seen"]
    assert asked(endpoint, style, body_transform=change).json["changed"] is True


@pytest.mark.parametrize(
    ("transform", "why"),
    [(lambda body: 1 / 0, "division"), (lambda body: {**body, "x": object()}, "not JSON")],
)
def test_body_transform_that_fails(transform: Any, why: str, endpoint: Endpoint) -> None:
    """Its mistakes are named, and nothing is sent."""
    error = endpoint.error("openai", "never", client=endpoint.client(body_transform=transform))
    assert isinstance(error, (HookError, ConfigurationError))
    assert why in error.message
    assert not endpoint.seen


@pytest.mark.parametrize("style", ALL)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(number: float, style: str, endpoint: Endpoint) -> None:
    """They are refused with their place before anything is sent, wherever they come from."""
    part = {"type": "text", "text": "a", "weight": [number]}
    for options, prompt, place in (
        ({"body_transform": lambda body: {**body, "x": {"y": [0, number]}}}, "go", "['x']['y'][1]"),
        ({"request_params": {"seed": number}}, "go", "seed'] is"),
        ({"request_params": {"metadata": {"t": (number,)}}}, "go", "['metadata']['t'][0]"),
        ({"hooks": {"before_llm": lambda view: {"tools": [{"n": number}]}}}, "go", "[0]['n'] is"),
        ({}, [part], "weight")
        if style == "openai"
        else ({"request_params": {"seed": number}}, "go", "seed'] is"),
    ):
        endpoint.seen.clear()
        with endpoint.client(style, **options) as client, pytest.raises(ConfigurationError) as caught:
            client.run(prompt)
        assert "is not JSON" in caught.value.message
        assert place in caught.value.message
        assert str(number) in caught.value.message
        assert not endpoint.seen


@pytest.mark.parametrize("style", ALL)
@pytest.mark.parametrize("number", [1.5, math.nan])
def test_a_body_inside_itself(number: float, style: str, endpoint: Endpoint) -> None:
    """It is refused as no JSON, also while what is wrong with it is looked for."""
    numbers: list[Any] = [number]
    numbers.insert(0, numbers)
    for options in (
        {"body_transform": lambda body: {**body, "x": numbers}},
        {"request_params": {"x": numbers}},
    ):
        with (
            endpoint.client(style, **options) as client,
            pytest.raises(ConfigurationError, match="is not JSON"),
        ):
            client.run("go")
    assert not endpoint.seen


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_headers_replace_ours_in_any_capitals(name: str, endpoint: Endpoint) -> None:
    """A header of the user's takes the place of ours; there are never two."""
    headers = {name: "Bearer mine", "user-AGENT": "me", "X-Team": "blue"}
    request = asked(endpoint, "openai", headers=headers)
    assert request.headers["authorization"] == "Bearer mine"
    assert request.headers["user-agent"] == "me"
    assert request.headers["x-team"] == "blue"


def test_headers_of_anthropic_can_be_replaced(endpoint: Endpoint) -> None:
    """The version and the key, too."""
    headers = {"Anthropic-Version": "2099-01-01", "X-API-Key": "other", "anthropic-beta": "x"}
    request = asked(endpoint, "anthropic", headers=headers)
    assert request.headers["anthropic-version"] == "2099-01-01"
    assert request.headers["x-api-key"] == "other"
    assert request.headers["anthropic-beta"] == "x"


@pytest.mark.parametrize("headers", [{"X": 1}, {3: "x"}, {"X": "a\r\nY: b"}, {"X\r\nY": "b"}, {"": "b"}, "X"])
def test_headers_that_are_none(headers: Any) -> None:
    """A header that is no text, or would be two, is refused at construction."""
    with pytest.raises(ConfigurationError, match="header"):
        Client(base_url="http://127.0.0.1:1", model="m", headers=headers)


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "given", "wanted"),
    [
        ("openai", "/v1", "/v1/chat/completions"),
        ("openai", "/v1/", "/v1/chat/completions"),
        ("openai", "/v1//", "/v1/chat/completions"),
        ("openai", "", "/chat/completions"),
        ("openai", "/", "/chat/completions"),
        ("openai", "/v1/chat/completions", "/v1/chat/completions"),
        ("openai", "/v1/chat/completions/", "/v1/chat/completions"),
        ("openai", "/api/v1?api-version=2", "/api/v1/chat/completions?api-version=2"),
        ("openai", "/v1/chat/completions?api-version=2", "/v1/chat/completions?api-version=2"),
        ("openai", "/v1#fragment", "/v1/chat/completions"),
        ("anthropic", "", "/v1/messages"),
        ("anthropic", "/", "/v1/messages"),
        ("anthropic", "/v1", "/v1/messages"),
        ("anthropic", "/v1/", "/v1/messages"),
        ("anthropic", "/v1/messages", "/v1/messages"),
        ("anthropic", "/anthropic", "/anthropic/v1/messages"),
        ("anthropic", "/proxy/v1/?key=k1", "/proxy/v1/messages?key=k1"),
    ],
)
def test_spellings_of_the_base_url(style: str, given: str, wanted: str, endpoint: Endpoint) -> None:
    """Slash or not, version or not, the whole path, a query: the request goes where it was meant."""
    request = asked(endpoint, style, base_url=f" {endpoint.server.url}{given} ")
    assert request.target == wanted


@pytest.mark.parametrize(
    "url", ["", "  ", "localhost:1", "ftp://h/v1", "http://", "http://h:99999/", "http://u:p@h/v1", 3]
)
def test_addresses_that_are_none(url: Any) -> None:
    """A base_url that cannot be used is refused at construction; a password in it is not shown."""
    with pytest.raises(ConfigurationError, match="base_url") as caught:
        Client(base_url=url, model="m")
    assert "u:p" not in str(caught.value)


def test_addresses_of_the_environment(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    """OPENAI_BASE_URL and ANTHROPIC_BASE_URL are honoured, each for its style."""
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.server.url + "/v1/")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", endpoint.server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-anthropic")
    endpoint.play("ok", "ok")
    for style in STYLES:
        with Client(style=style, model="m") as client:
            assert client.run("go").text == "ok"
    first, second = endpoint.seen
    assert (first.path, first.headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-openai")
    assert (second.path, second.headers["x-api-key"]) == ("/v1/messages", "sk-anthropic")


# -- keys ------------------------------------------------------------------------------------------

KEYS = {
    "OPENAI_API_KEY": "sk-openai",
    "ANTHROPIC_API_KEY": "sk-anthropic",
    "OPENROUTER_API_KEY": "sk-openrouter",
    "GROQ_API_KEY": "sk-groq",
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with a key for every provider."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def key_at(host: str, style: str, environment: pytest.MonkeyPatch) -> str | None:
    """Return the key that a host would receive: a proxy of ours stands for all hosts."""
    with ModelServer(script=["ok"]) as everywhere:
        environment.setenv("http_proxy", everywhere.url)
        environment.delenv("no_proxy", raising=False)
        environment.delenv("NO_PROXY", raising=False)
        with Client(base_url=f"http://{host}/v1", style=style, model="m", retries=0) as client:
            client.run("go")
        headers = everywhere.requests[0].headers
        assert everywhere.requests[0].target.startswith(f"http://{host}/")
    sent = headers.get("authorization", headers.get("x-api-key"))
    return sent.removeprefix("Bearer ") if sent else None


@pytest.mark.parametrize(
    ("host", "style", "wanted"),
    [
        ("api.openai.com", "openai", "sk-openai"),
        ("api.anthropic.com", "anthropic", "sk-anthropic"),
        ("openrouter.ai", "openai", "sk-openrouter"),
        ("openrouter.ai", "anthropic", "sk-openrouter"),
        ("api.groq.com", "openai", "sk-groq"),
        ("gateway.example.com", "openai", "sk-openai"),
        ("gateway.example.com", "anthropic", "sk-anthropic"),
        ("evil-openrouter.ai", "openai", "sk-openai"),
        ("openrouter.ai.example.com", "openai", "sk-openai"),
        ("api.anthropic.com", "openai", "sk-anthropic"),
    ],
)
def test_keys_go_to_their_hosts(host: str, style: str, wanted: str, keys: pytest.MonkeyPatch) -> None:
    """The key is that of the endpoint's host, else of its style; OpenRouter's goes nowhere else."""
    assert key_at(host, style, keys) == wanted


def test_a_missing_key_is_said_before_anything_is_sent(keys: pytest.MonkeyPatch) -> None:
    """A host with a key of its own gets no other one: the message names the variable."""
    keys.delenv("OPENROUTER_API_KEY")
    client = Client(base_url="https://openrouter.ai/api/v1", model="m")
    for ask in (client.run, client.stream):
        with pytest.raises(ConfigurationError, match="OPENROUTER_API_KEY") as caught:
            ask("go")
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("style", STYLES)
def test_a_local_endpoint_needs_no_key_and_gets_none(
    style: str, keys: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    """The keys of the environment do not go to a server on this machine."""
    request = asked(endpoint, style, api_key=None)
    assert "authorization" not in request.headers
    assert "x-api-key" not in request.headers


def test_a_key_that_is_given_goes_before_the_environment(
    keys: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    """api_key counts; an empty one means none."""
    assert asked(endpoint, "openai", api_key=" mine ").headers["authorization"] == "Bearer mine"
    assert "authorization" not in asked(endpoint, "openai", api_key="").headers


def test_a_netrc_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    """Credentials of a .netrc file for the host do not take our key's place."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert asked(endpoint, "openai").headers["authorization"] == "Bearer test-key"
