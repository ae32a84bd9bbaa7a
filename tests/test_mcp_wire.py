"""The wire of MCP servers: lines, messages, mended lists and results."""

from __future__ import annotations

import base64
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.content import File, Image
from toolnexus.tools.mcp.lines import LineSplitter, Overlong, decode_line
from toolnexus.tools.mcp.mending import mend_result

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at the given places."""
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=20))
def test_lines_do_not_depend_on_how_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    """For any bytes and any way to cut them."""
    splitter = LineSplitter(1000)
    lines = [line for piece in pieces(data, cuts) for line in splitter.feed(piece)]
    assert lines == data.split(b"\n")[:-1]


@given(
    st.lists(st.binary(max_size=60).filter(lambda b: b"\n" not in b), max_size=8),
    st.lists(st.integers(0, 500)),
)
def test_only_lines_that_are_too_long_are_dropped(lines: list[bytes], cuts: list[int]) -> None:
    """The limit counts one line; its length is told whatever the pieces."""
    data = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(30)
    found = [line for piece in pieces(data, cuts) for line in splitter.feed(piece)]
    told = [line.length if isinstance(line, Overlong) else line for line in found]
    assert told == [len(line) if len(line) > 30 else line for line in lines]


def test_splitting_is_linear() -> None:
    """Ten megabytes in tiny pieces take no time to speak of."""
    splitter = LineSplitter(1 << 30)
    begin = time.monotonic()
    for _ in range(160_000):
        splitter.feed(b"x" * 64)
    (line,) = splitter.feed(b"\n")
    assert len(line) == 160_000 * 64 if isinstance(line, bytes) else False
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"%s"}}', 7),
        (b'{"jsonrpc": "2.0", "id": "abc", "error": {"message": "%s"}}', "abc"),
        (b'{"result":{"x":"%s"},"jsonrpc":"2.0","id":8}', 8),
        (b'{"result":{"x":"%s"},"id":8,"jsonrpc":"2.0"}  ', 8),
        (b'{"jsonrpc":"2.0","method":"m","params":{"id":9,"jsonrpc":"2.0","x":"%s"}}', None),
        (b'{"result":{"x":"%s","inner":{"jsonrpc":"2.0","id":9}},"jsonrpc":"2.0"}', None),
        (b'noise "id":3 %s', None),
    ],
)
def test_whose_answer_an_overlong_line_was(line: bytes, found: object) -> None:
    """Only an id of the outermost object counts."""
    splitter = LineSplitter(1024)
    (overlong,) = splitter.feed(line % (b"x" * 5000) + b"\n")
    assert isinstance(overlong, Overlong)
    assert overlong.id == found


@pytest.mark.parametrize(
    "noise", ["", "  ", "42", "null", '"text"', "[]", "[1]", '{"level":"info"}', "Server started", "{", "🖥️"]
)
def test_mcp_05_noise_is_no_message(noise: str) -> None:
    """Whatever is not JSON-RPC is skipped."""
    assert decode_line(noise.encode()) == []


@given(st.binary(max_size=100))
def test_any_bytes_can_be_decoded(data: bytes) -> None:
    """No line makes the reader fail."""
    assert isinstance(decode_line(data), list)


def test_mcp_09_bytes_that_are_no_text_become_replacement_characters() -> None:
    """So do lone surrogates; pairs of them are one character."""
    (message,) = decode_line(
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff","b":"\\ud83d","c":"\\ud83d\\ude00"}}'
    )
    assert message["result"] == {"a": "\ufffd", "b": "\ufffd", "c": "\U0001f600"}


@pytest.mark.parametrize("answer", ['"text"', "[1]", "5"])
def test_an_answer_of_the_wrong_shape_fails_its_request(answer: str) -> None:
    """Its caller would otherwise wait until the time is up."""
    (message,) = decode_line(b'{"jsonrpc":"2.0","id":4,"result":%s}' % answer.encode())
    assert (message["id"], "wrong shape" in message["error"]["message"]) == (4, True)


def test_an_answer_that_is_cut_fails_its_request() -> None:
    """The id at its start is enough."""
    (message,) = decode_line(b'{"jsonrpc":"2.0","id":4,"result":{"content":[{"ty')
    assert (message["id"], "not JSON" in message["error"]["message"]) == (4, True)


def test_a_batch_is_several_messages() -> None:
    """Servers of early 2025 may send one."""
    batch = [{"jsonrpc": "2.0", "method": "a"}, 5, {"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert decode_line(json.dumps(batch).encode()) == [batch[0], batch[2]]


def test_one_bad_tool_does_not_cost_the_list() -> None:
    """What can be mended is, and the rest is named."""
    answer: dict[str, Any] = {
        "tools": [
            {
                "name": "good",
                "inputSchema": {"type": "object", "properties": {"a": True}},
                "description": None,
            },
            {"name": "untyped", "inputSchema": {}},
            {"name": "none"},
            {
                "name": "php",
                "inputSchema": {"type": "object", "properties": [], "required": None},
                "annotations": 1,
            },
            {"name": "array", "inputSchema": []},
            {"inputSchema": {}},
            "text",
            {"name": "out", "inputSchema": {"type": "object"}, "outputSchema": {"type": "string"}},
        ]
    }
    dropped = mend_result(answer)
    assert dropped == ["array", "None", "text"]
    assert [tool["name"] for tool in answer["tools"]] == ["good", "untyped", "none", "php", "out"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in answer["tools"])
    assert "outputSchema" not in answer["tools"][-1]


@given(st.lists(JSON, max_size=4))
def test_mending_never_fails(items: list[Any]) -> None:
    """Whatever a server lists or returns."""
    mend_result({"tools": list(items)})
    result = {"content": list(items)}
    mend_result(result)
    assert all(isinstance(part, dict) for part in result["content"])


def converted(**result: Any) -> Any:
    """Return a server's result as a tool's."""
    from mcp_types import CallToolResult

    from toolnexus.tools.mcp.content import to_tool_result

    return to_tool_result(CallToolResult.model_validate(result), server="s")


def text(value: str) -> dict[str, Any]:
    """Return a part that is text."""
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("texts", "structured", "output"),
    [
        (["a", "b"], None, "a\nb"),
        ([], {"n": 1, "s": "\u00e9"}, '{"n":1,"s":"\u00e9"}'),
        (['{"n": 1}'], {"n": 1}, '{"n":1}'),
        (["5"], {"result": 5}, '{"result":5}'),
        (["plain"], {"result": "plain"}, '{"result":"plain"}'),
        (["x", "y"], {"result": ["x", "y"]}, '{"result":["x","y"]}'),
        (["about it"], {"n": 1}, 'about it\n{"n":1}'),
        (["not 5"], {"result": 5}, 'not 5\n{"result":5}'),
    ],
)
def test_texts_and_structured_content(texts: list[str], structured: Any, output: str) -> None:
    """Nothing is lost, and nothing is said twice."""
    result = converted(content=[text(t) for t in texts], structuredContent=structured)
    assert (result.output, result.is_error) == (output, False)
    assert result.metadata.get("structured") == structured


@pytest.mark.parametrize(
    ("texts", "output"), [([], "MCP tool returned an error"), (["a", " ", "b"], "a\n\nb")]
)
def test_errors(texts: list[str], output: str) -> None:
    """An error says what the server said, or that it said nothing."""
    result = converted(content=[text(t) for t in texts], isError=True)
    assert (result.output, result.is_error) == (output, True)


def test_images_audio_and_resources_come_through() -> None:
    """Each part that is not text is there as a file, and the text has a line for it."""
    data = base64.b64encode(b"abc").decode()
    result = converted(
        content=[
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "image", "data": data, "mimeType": "image/svg+xml"},
            {"type": "audio", "data": data, "mimeType": "audio/wav"},
            {"type": "image", "data": "%%%", "mimeType": "image/png"},
            {
                "type": "resource",
                "resource": {"uri": "f:///a/../x y.pdf?z", "mimeType": "application/pdf", "blob": data},
            },
            {"type": "resource", "resource": {"uri": "f:///a.txt", "text": "inside"}},
            {"type": "resource_link", "uri": "f:///b", "name": "b"},
        ]
    )
    assert result.content == (
        Image(b"abc", "image/png"),
        File(b"abc", "image/svg+xml", "image.svg"),
        File(b"abc", "audio/wav", "audio.wav"),
        File(b"abc", "application/pdf", "x_y.pdf"),
    )
    assert result.output.splitlines()[3:] == [
        "[image: not valid base64]",
        "[resource f:///a/../x y.pdf?z: application/pdf, 3 bytes]",
        "[resource f:///a.txt]",
        "inside",
        "[resource link f:///b b]",
    ]
