"""MCP tools in the agent loop: streamed, in both styles, with progress, suspensions and cancels."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.mcp_servers import raw
from toolnexus import Answer, CancelScope, Client, Request, RunCancelledError
from toolnexus.testing import ModelServer
from toolnexus.tools.mcp import McpSource


@pytest.mark.parametrize("style", ["openai", "anthropic"])
def test_a_streamed_run_calls_an_mcp_tool(style: str) -> None:
    """The call, its progress, its result and the answer are events in this order."""
    with ModelServer(style=style) as model, McpSource({"s": raw()}) as source:
        model.call("s_progress", {"steps": 2})
        model.say("All done.")
        with Client(base_url=model.base_url, style=style, model="test") as client:
            events = list(client.stream("Go", source.tools))
    told = [(event.type, getattr(event, "delta", getattr(event, "output", None))) for event in events]
    assert ("tool_output", "1/2 step 1\n") in told
    assert ("tool_output", "2/2 step 2\n") in told
    assert ("tool_result", "done") in told
    kinds = [event.type for event in events]
    assert (
        kinds.index("tool_call")
        < kinds.index("tool_output")
        < kinds.index("tool_result")
        < kinds.index("text")
    )
    assert kinds[-1] == "done"


def test_a_dead_server_is_a_tool_error_and_the_run_goes_on() -> None:
    """The model is told, and the next call of the same run finds the server again."""
    with ModelServer(style="openai") as model, McpSource({"s": raw()}) as source:
        model.call("s_die", {"code": 9})
        model.call("s_echo", {"text": "back"})
        model.say("ok")
        with Client(base_url=model.base_url, style="openai", model="test") as client:
            result = client.run("Go", source.tools)
    first, second = result.tool_calls
    assert (first.is_error, "exited with code 9" in first.output) == (True, True)
    assert (second.is_error, second.output) == (False, "back")


def test_images_reach_the_model() -> None:
    """In the provider's own form."""
    with ModelServer(style="anthropic") as model, McpSource({"s": raw()}) as source:
        model.call("s_blob", {})
        model.say("nice")
        with Client(base_url=model.base_url, style="anthropic", model="test") as client:
            client.run("Look", source.tools)
        sent = str(model.requests[-1].json)
    assert "iVBORw0KGgo=" in sent


def test_a_page_to_open_is_asked_of_the_run(tmp_path: Path) -> None:
    """The run's own wait_for answers it, and the call runs again."""
    done = tmp_path / "done"
    asked: list[Request] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request)
        done.touch()
        return Answer(request.id)

    with ModelServer(style="openai") as model, McpSource({"s": raw()}) as source:
        model.call("s_url", {"url": "https://example.com/login", "done": str(done)})
        model.say("ok")
        with Client(base_url=model.base_url, style="openai", model="test", wait_for=wait_for) as client:
            result = client.run("Go", source.tools)
    assert [request.url for request in asked] == ["https://example.com/login"]
    assert result.tool_calls[-1].output == "logged in"


def test_cancelling_the_run_cancels_the_call(tmp_path: Path) -> None:
    """The server is told, and the run ends at once."""
    log = tmp_path / "log"
    scope = CancelScope()
    with ModelServer(style="openai") as model, McpSource({"s": raw(log=str(log))}) as source:
        model.call("s_hang", {})
        with Client(base_url=model.base_url, style="openai", model="test") as client:
            tools = source.tools
            threading.Timer(0.7, scope.cancel).start()
            begin = time.monotonic()
            with pytest.raises(RunCancelledError):
                client.run("Go", tools, scope=scope)
            assert time.monotonic() - begin < 2
        deadline = time.monotonic() + 5
        while "notifications/cancelled" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "notifications/cancelled" in log.read_text()
