"""How toolnexus is used, for the type checker: `make types` reads this file, nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import requests
from typing_extensions import assert_type

import toolnexus
from toolnexus import (
    AttemptFailed,
    CancelScope,
    Client,
    Context,
    Done,
    Error,
    Event,
    MemoryStore,
    RunResult,
    SqliteStore,
    Stream,
    Text,
    Tool,
    ToolCall,
    ToolnexusError,
    ToolResult,
    Usage,
    UsageReport,
    tool,
)
from toolnexus.testing import ModelServer, RecordedRequest, Script, reply, tool_call


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="search", timeout=5.0)
def find(text: str, ctx: Context) -> ToolResult:
    """Search."""
    ctx.output("searching")
    return ToolResult.ok(text)


def plain(text: str) -> str:
    """Repeat a text."""
    return text


shout = Tool(
    name="shout",
    description="Say it loud.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
    execute=lambda args, ctx: args["text"].upper(),
)

tools: list[Tool] = [add, find, shout]


def clients() -> None:
    """A client takes keyword options and is a context manager."""
    with Client(base_url="http://127.0.0.1:1/v1", style="openai", model="m") as client:
        assert_type(client, Client)
    toolnexus.create_client(
        base_url="http://127.0.0.1:1",
        style="anthropic",
        model="m",
        api_key="k",
        headers={"X-Team": "a"},
        system_prompt="Be brief.",
        max_turns=3,
        retries=1,
        timeout=60,
        connect_timeout=5.0,
        response_timeout=30.0,
        idle_timeout=30.0,
        store=SqliteStore("conversations.db"),
        request_params={"temperature": 0},
        session=requests.Session(),
        queue_size=16,
    ).close()


def runs(client: Client) -> None:
    """`run` and `ask` return a result."""
    result = client.run("hi", [add, find, plain, shout], deps=object(), scope=CancelScope(timeout=5.0))
    assert_type(result, RunResult)
    assert_type(result.text, str)
    assert_type(result.usage, Usage)
    assert_type(result.to_dict(), dict[str, Any])
    assert_type(client.ask("hi", on_text=print), RunResult)
    assert_type(client.conversation([add]).send("hi"), RunResult)


def streams(client: Client) -> str:
    """A stream is an iterator of events, and a context manager."""
    stream = client.stream("hi", [add], id="a", channels=["messages"])
    assert_type(stream, Stream)
    for event in stream:
        assert_type(event, Event)
        match event:
            case Text(delta=piece):
                assert_type(piece, str)
            case ToolCall(name=name, args=args):
                assert_type(name, str)
                assert_type(args, dict[str, Any])
            case AttemptFailed(will_retry=will_retry):
                assert_type(will_retry, bool)
            case UsageReport(usage=usage):
                assert_type(usage, Usage)
            case Done(result=result):
                return result.text
            case Error(error=error, partial=partial):
                assert_type(error, ToolnexusError)
                assert_type(partial, RunResult | None)
    with client.stream("hi") as other:
        assert_type(other.text_deltas(), Iterator[str])
        assert_type(other.result(), RunResult)
        other.cancel()
    return ""


class Mine:
    """A store of one's own needs two methods."""

    def get(self, id: str) -> list[dict[str, Any]] | None:  # noqa: A002 - the word of the protocol
        """Load a conversation."""
        return None

    def save(self, id: str, messages: list[dict[str, Any]]) -> None:  # noqa: A002 - as above
        """Save a conversation."""


def stores() -> None:
    """Every store fits where one is asked for."""
    for store in (MemoryStore(), SqliteStore("conversations.db"), Mine()):
        Client(base_url="http://127.0.0.1:1/v1", style="openai", model="m", store=store)


def servers() -> None:
    """The scripted server is typed, too."""
    with ModelServer(style="openai", script=Script(tool_call("add", {"a": 1, "b": 2}), "three")) as server:
        server.play([reply("hi"), "you"])
        server.on_request(lambda request: request.path)
        assert_type(server.wait_for_request(), RecordedRequest)
        assert_type(server.base_url, str)
