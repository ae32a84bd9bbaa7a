"""MCP servers over the official SDK, in both generations of the protocol: questions, results, changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.mcp_servers import call, eventually, sdk
from toolnexus.cancel import CancelScope
from toolnexus.errors import RunCancelledError
from toolnexus.suspension import Answer, Request
from toolnexus.tools.base import Context
from toolnexus.tools.mcp import McpSource

Reply = Callable[[Request], "Answer | None"]


class Person:
    """Whoever is asked: keeps the requests, and answers as the test says."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.reply: Reply = lambda request: None

    def __call__(self, request: Request) -> Answer | None:
        self.asked.append(request)
        return self.reply(request)


@pytest.fixture(scope="module")
def person() -> Person:
    """Return the one who is asked."""
    return Person()


@pytest.fixture(scope="module", params=["legacy", "modern"])
def _source(request: pytest.FixtureRequest, person: Person) -> Iterator[McpSource]:
    with McpSource(
        {"s": {**sdk(), "protocol": request.param, "timeouts": {"call": 1}}}, wait_for=person
    ) as source:
        yield source


@pytest.fixture
def source(_source: McpSource, person: Person) -> McpSource:
    """Return a source with one server, which is used by several tests."""
    person.asked.clear()
    person.reply = lambda request: None
    return _source


def test_results_of_functions(source: McpSource) -> None:
    """Values, models, errors and pictures."""
    assert call(source, "s_add", a=1, b=2).output == '{"result":3}'
    assert call(source, "s_sum_up", values=[1, 2]).metadata["structured"] == {"total": 3}
    assert call(source, "s_fail", text="no").is_error
    assert call(source, "s_raw_result").output == "first\n\nsecond"
    (image,) = call(source, "s_picture").content
    assert image.media_type == "image/png"


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        (lambda r: Answer(r.id, data={"name": "Eve", "seats": 4}), "booked for Eve, 4"),
        (lambda r: Answer(r.id, data={"name": "Eve"}), "booked for Eve, 2"),
        (lambda r: Answer(r.id, ok=False, reason="declined"), "not booked: decline"),
        (lambda r: Answer(r.id, ok=False, reason="cancelled"), "not booked: cancel"),
        (lambda r: Answer("another", data={"name": "Mallory"}), "not booked: cancel"),
        (lambda r: Answer(r.id, data="Eve"), "not booked: cancel"),
        (lambda r: Answer(r.id, data={"name": {"first": "Eve"}}), "not booked: cancel"),
        (lambda r: None, "not booked: cancel"),
        (lambda r: 1 / 0, "not booked: cancel"),
        (lambda r: True, "not booked: cancel"),
    ],
)
def test_a_form_becomes_a_request(source: McpSource, person: Person, reply: Reply, output: str) -> None:
    """A yes brings the data with the server's defaults; everything else is a no of the right kind."""
    person.reply = reply
    result = call(source, "s_book", Context(call_id="c7", tool_name="s_book"))
    assert output in result.output
    (request,) = person.asked
    assert (request.kind, request.call_id, request.tool_name) == ("input", "c7", "s_book")
    assert request.prompt == "Who books, and how many seats?"
    assert request.response_schema is not None
    assert set(request.response_schema["properties"]) == {"name", "seats"}
    assert Request.from_dict(request.to_dict()) == request


def test_a_page_becomes_a_request(source: McpSource, person: Person) -> None:
    """The URL goes to the person, the answer back; no data is asked for."""
    person.reply = lambda request: Answer(request.id)
    assert "sign in: accept" in call(source, "s_sign_in").output
    (request,) = person.asked
    assert (request.kind, request.url) == ("authorization", "https://example.com/login")
    assert request.id.startswith("elc-")


def test_a_person_may_take_longer_than_a_call(source: McpSource, person: Person) -> None:
    """The time of a call stands still while somebody is asked."""

    def think(request: Request) -> Answer:
        time.sleep(1.4)
        return Answer(request.id, data={"name": "Slow"})

    person.reply = think
    assert "booked for Slow, 2" in call(source, "s_book").output


def test_a_cancel_leaves_the_person_behind(source: McpSource, person: Person) -> None:
    """The call returns at once, although wait_for blocks, and the next one works."""
    release = threading.Event()
    person.reply = lambda request: (release.wait(10), None)[1]
    scope = CancelScope()
    threading.Timer(0.3, scope.cancel).start()
    begin = time.monotonic()
    with pytest.raises(RunCancelledError):
        call(source, "s_book", Context(scope=scope))
    assert time.monotonic() - begin < 1.5
    release.set()
    assert call(source, "s_add", a=1, b=1).output == '{"result":2}'


def test_progress_and_changes(source: McpSource) -> None:
    """Progress is output; a tool that the server adds is there."""
    seen: list[Any] = []
    call(source, "s_count", Context(emit=lambda kind, text: seen.append(text)), steps=3)
    assert seen == ["1/3 at 1\n", "2/3 at 2\n", "3/3 at 3\n"]
    call(source, "s_grow")
    assert eventually(lambda: any(tool.name == "s_grown" for tool in source.tools))
    assert call(source, "s_grown").output == '{"result":"I am new"}'


def test_a_question_outside_of_a_run_is_cancelled_where_nobody_is_there() -> None:
    """The server is told, and the call has the result that the server makes of that."""
    with McpSource({"s": sdk()}) as source:
        assert source.status["s"].protocol == "2025-11-25"
        assert "not booked: cancel" in call(source, "s_book").output
