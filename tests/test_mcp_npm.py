"""The official servers from npm: everything, filesystem and memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_servers import call, eventually, free_port, is_running, listens, npm
from toolnexus.cancel import CancelScope
from toolnexus.content import File, Image
from toolnexus.errors import RunTimeoutError
from toolnexus.suspension import Answer, Request, pending_of
from toolnexus.tools.base import Context
from toolnexus.tools.mcp import McpSource

pytestmark = pytest.mark.slow

ASKED: list[Request] = []


def agree(request: Request) -> Answer:
    """Say yes to everything, and fill in the name."""
    ASKED.append(request)
    return Answer(
        request.id, data={"name": "Eve", "interpretation": "technical"} if request.response_schema else None
    )


@pytest.fixture(scope="module")
def everything_url() -> Iterator[str]:
    """Run server-everything as a web server; return its URL."""
    config, port = npm.server("everything", "streamableHttp"), free_port()
    process = subprocess.Popen(
        [config["command"], *config["args"]], env={"PORT": str(port)}, stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: listens(port), 30)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["stdio", "http"])
def source(request: pytest.FixtureRequest) -> Iterator[McpSource]:
    """Return a source with server-everything, over each transport."""
    if request.param == "stdio":
        config = npm.server("everything", "stdio", env={"NAMED": "yes"})
    else:
        config = {"url": request.getfixturevalue("everything_url")}
    with McpSource({"e": config}, wait_for=agree) as made:
        assert made.status["e"].state == "connected", made.status
        yield made


@pytest.fixture(autouse=True)
def _nothing_asked_yet() -> None:
    ASKED.clear()


def test_everything_lists_what_concerns_us(source: McpSource) -> None:
    """All tools of its own, and those for clients that can be asked."""
    names = {tool.metadata["tool"] for tool in source.tools}
    assert len(names) >= 15
    assert {
        "echo",
        "trigger-elicitation-request",
        "trigger-url-elicitation",
        "simulate-research-query",
    } <= names
    assert not {"trigger-sampling-request", "get-roots-list"} & names


def test_everything_texts(source: McpSource) -> None:
    """Plain results and errors."""
    assert call(source, "e_echo", message="h\u00e9llo \U0001f980").output == "Echo: h\u00e9llo \U0001f980"
    assert call(source, "e_get-sum", a=1.5, b=2).output == "The sum of 1.5 and 2 is 3.5."
    wrong = call(source, "e_get-sum", a="x")
    assert (wrong.is_error, "Invalid" in wrong.output) == (True, True)


def test_everything_structured_content(source: McpSource) -> None:
    """Said once, as JSON."""
    result = call(source, "e_get-structured-content", location="Chicago")
    assert json.loads(result.output) == result.metadata["structured"]
    assert set(result.metadata["structured"]) == {"temperature", "conditions", "humidity"}


def test_everything_images_and_annotations(source: McpSource) -> None:
    """An image among texts."""
    result = call(source, "e_get-tiny-image")
    (image,) = result.content
    assert isinstance(image, Image)
    assert image.to_part()["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert len(result.output.splitlines()) == 3
    assert len(call(source, "e_get-annotated-message", messageType="error", includeImage=True).content) == 1


def test_everything_resources(source: McpSource) -> None:
    """Links, texts and blobs."""
    assert call(source, "e_get-resource-links", count=3).output.count("[resource link demo://") == 3
    told = call(source, "e_get-resource-reference", resourceType="Text", resourceId=2).output
    assert "[resource demo://resource/dynamic/text/2]\nResource 2: " in told
    (blob,) = call(source, "e_get-resource-reference", resourceType="Blob", resourceId=1).content
    assert isinstance(blob, File)
    url = "data:text/plain;base64,aGVsbG8="
    (packed,) = call(source, "e_gzip-file-as-resource", name="a.gz", data=url, outputType="resource").content
    assert isinstance(packed.source, bytes)
    assert gzip.decompress(packed.source) == b"hello"


def test_everything_progress(source: McpSource) -> None:
    """Each step is a line."""
    seen: list[str] = []
    context = Context(emit=lambda kind, text: seen.append(text))
    assert not call(source, "e_trigger-long-running-operation", context, duration=1, steps=4).is_error
    assert seen[:3] == ["1/4\n", "2/4\n", "3/4\n"]


def test_everything_cancel(source: McpSource) -> None:
    """A long operation is left at once, and the server goes on."""
    scope = CancelScope(0.5)
    begin = time.monotonic()
    with pytest.raises(RunTimeoutError), scope.running():
        call(source, "e_trigger-long-running-operation", Context(scope=scope), duration=30, steps=2)
    assert time.monotonic() - begin < 1.5
    assert call(source, "e_echo", message="on").output == "Echo: on"


def test_everything_questions(source: McpSource) -> None:
    """A form with fields of every kind, whose defaults are filled in; and a page to open."""
    told = call(source, "e_trigger-elicitation-request", Context(call_id="c1", tool_name="t")).output
    assert "Name: Eve" in told
    assert '"firstLine": "It was a dark and stormy night."' in told
    page = call(source, "e_trigger-url-elicitation", url="https://example.com/x", message="Open it")
    assert '"action": "accept"' in page.output
    assert [(r.kind, r.url) for r in ASKED] == [("input", None), ("authorization", "https://example.com/x")]
    assert ASKED[0].call_id == "c1"


def test_everything_page_before_the_call(source: McpSource) -> None:
    """The error that wants a page opened first suspends the call; with the answer it goes through."""
    args = {"url": "https://example.com/x", "errorPath": True, "elicitationId": f"e{time.monotonic_ns()}"}
    request = pending_of(call(source, "e_trigger-url-elicitation", **args))
    assert request is not None
    assert (request.kind, bool(request.url)) == ("authorization", True)
    again = call(source, "e_trigger-url-elicitation", Context(answers=(Answer(request.id),)), **args)
    assert pending_of(again) is None
    assert not again.is_error


def test_everything_tasks(source: McpSource) -> None:
    """A tool that runs as a task only, with a question in the middle of it."""
    seen: list[str] = []
    context = Context(emit=lambda kind, text: seen.append(text))
    result = call(source, "e_simulate-research-query", context, topic="python", ambiguous=True)
    assert "# Research Report: python (technical)" in result.output
    assert any("Gathering sources" in line for line in seen)
    assert [request.kind for request in ASKED] == ["input"]


def test_everything_task_is_cancelled(source: McpSource) -> None:
    """A task that nobody waits for any more is left at once."""
    scope = CancelScope(0.5)
    begin = time.monotonic()
    with pytest.raises(RunTimeoutError), scope.running():
        call(source, "e_simulate-research-query", Context(scope=scope), topic="x")
    assert time.monotonic() - begin < 1.5
    assert call(source, "e_echo", message="on").output == "Echo: on"


def test_everything_sees_only_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that the server itself shows."""
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    with McpSource({"e": npm.server("everything", "stdio", env={"NAMED": "yes"})}) as source:
        env = json.loads(call(source, "e_get-env").output)
    assert env["NAMED"] == "yes"
    assert "SECRET_KEY" not in env


def test_filesystem(tmp_path: Path) -> None:
    """Files are written, read, edited and searched; what is outside is refused."""
    root = tmp_path.resolve()
    (root / "pic.png").write_bytes(b"\x89PNG\r\n\x1a\n123")
    with McpSource({"f": npm.server("filesystem", str(root))}) as source:

        def use(tool: str, **args: Any) -> str:
            result = call(source, f"f_{tool}", **args)
            assert not result.is_error, result.output
            return result.output

        use("write_file", path=f"{root}/a.txt", content="one\ntwo\n")
        use("edit_file", path=f"{root}/a.txt", edits=[{"oldText": "two", "newText": "zwei \u2713"}])
        assert (root / "a.txt").read_text(encoding="utf-8") == "one\nzwei \u2713\n"
        assert "zwei" in use("read_text_file", path=f"{root}/a.txt")
        assert "a.txt" in use("list_directory", path=str(root))
        assert "a.txt" in use("search_files", path=str(root), pattern="*.txt")
        (image,) = call(source, "f_read_media_file", path=f"{root}/pic.png").content
        assert image.media_type == "image/png"
        outside = call(source, "f_read_text_file", path="/etc/hostname")
        assert (outside.is_error, "outside allowed directories" in outside.output) == (True, True)


def test_memory(tmp_path: Path) -> None:
    """The graph outlives the server, which is restarted after it was killed."""
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    with McpSource({"m": npm.server("memory", env=env)}) as source:
        entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
        assert not call(source, "m_create_entities", entities=[entity]).is_error
        pid = source.status["m"].pid
        assert pid is not None
        subprocess.run(["kill", "-9", str(pid)], check=True)
        assert eventually(lambda: source.status["m"].state == "failed")
        found = call(source, "m_search_nodes", query="Ada").metadata["structured"]
        assert [node["name"] for node in found["entities"]] == ["Ada"]
        assert source.status["m"].starts == 2


def test_npx_leaves_nothing_behind() -> None:
    """A launcher starts the server as its child; both end."""
    config = {"command": "npm", "args": ["exec", "--", "mcp-server-memory"], "cwd": str(npm.CACHE)}
    npm.install()
    with McpSource({"m": config}) as source:
        assert source.status["m"].state == "connected", source.status
        pid = source.status["m"].pid
        assert pid is not None
        listed = subprocess.run(["pgrep", "-g", str(pid)], capture_output=True, text=True)
        family = [int(line) for line in listed.stdout.split()]
    assert len(family) >= 2
    assert eventually(lambda: not any(is_running(member) for member in family))
