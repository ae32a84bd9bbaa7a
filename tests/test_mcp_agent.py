"""MCP tools in the agent loop: streamed, in both styles, with progress, suspensions and cancels."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_servers import raw, sdk
from toolnexus import Answer, CancelScope, Client, InvalidAnswerError, Request, RunCancelledError, Toolkit
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


# -- questions in the middle of a call --------------------------------------------------------


@pytest.fixture(params=["legacy", "modern"])
def shop(request: pytest.FixtureRequest) -> Iterator[Toolkit]:
    """Return a toolkit with a server that asks, in either version of the protocol."""
    with Toolkit(mcp_config={"s": {**sdk(), "protocol": request.param}}) as toolkit:
        yield toolkit


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        yield server


def make(model: ModelServer, **options: Any) -> Client:
    return Client(base_url=model.base_url, style="openai", model="test", **options)


@pytest.mark.parametrize("mode", ["run", "stream"])
def test_a_form_is_asked_of_the_client(mode: str, shop: Toolkit, model: ModelServer) -> None:
    """The toolkit has no function of its own: the client's gets the request, and its answer goes back."""
    asked: list[Request] = []

    def wait_for(request: Request) -> Answer:
        asked.append(request)
        return Answer(request.id, data={"name": "Ada"})

    model.call("s_book", {}, id="c1")
    model.say("ok")
    with make(model, wait_for=wait_for) as client:
        result = client.run("Go", shop) if mode == "run" else client.stream("Go", shop).result()
    assert "booked for Ada, 2" in result.tool_calls[0].output
    assert [(r.kind, r.call_id, r.tool_name) for r in asked] == [("input", "c1", "s_book")]


@pytest.mark.parametrize("answers", ["now", "wait"])
def test_a_form_is_answered_through_the_stream(answers: str, shop: Toolkit, model: ModelServer) -> None:
    """Its Pending goes out, an answer that does not fit is refused, and the tool's own time stands still."""
    model.call("s_book", {})
    model.say("ok")
    told = []
    with make(model, tool_timeout=0.5) as client:
        for event in (stream := client.stream("Go", shop, answers=answers)):
            told.append(event.type)
            if event.type == "pending":
                with pytest.raises(InvalidAnswerError):
                    stream.answer(Answer(event.request.id, data={"seats": "many"}))
                time.sleep(0.8)  # a person thinks
                stream.answer(Answer(event.request.id, data={"name": "Bob", "seats": 3}))
    assert told == ["tool_call", "pending", "tool_result", "text", "usage", "done"]
    assert "booked for Bob, 3" in stream.result().tool_calls[0].output


@pytest.mark.parametrize(("ok", "action"), [(True, "accept"), (False, "decline")])
def test_a_page_to_open_in_the_middle_of_a_call(
    ok: bool, action: str, shop: Toolkit, model: ModelServer
) -> None:
    """The reader of the stream gets its address, and a yes or a no goes back."""
    model.call("s_sign_in", {})
    model.say("ok")
    with make(model) as client:
        for event in (stream := client.stream("Go", shop)):
            if event.type == "pending":
                assert (event.request.kind, event.request.url) == (
                    "authorization",
                    "https://example.com/login",
                )
                stream.answer(event.request, ok, reason=None if ok else "declined")
    assert f"sign in: {action}" in stream.result().tool_calls[0].output


@pytest.mark.parametrize("mode", ["run", "stream"])
def test_a_form_that_nobody_answers_is_cancelled(mode: str, shop: Toolkit, model: ModelServer) -> None:
    """The server is told so, and the run goes on: what waits in a server cannot wait for another day."""
    model.call("s_book", {})
    model.say("ok")
    with make(model) as client:
        result = client.run("Go", shop) if mode == "run" else client.stream("Go", shop).result()
    assert "not booked: cancel" in result.tool_calls[0].output
    assert (result.status, result.pending) == ("done", [])


def test_forms_of_calls_side_by_side_are_put_one_after_the_other(shop: Toolkit, model: ModelServer) -> None:
    """Each gets its answer, whichever call it belongs to, while a third call is not held up."""
    model.call_many([("s_book", {}), ("s_book", {}), ("s_add", {"a": 1, "b": 2})])
    model.say("ok")
    told, names = [], iter(["Ada", "Bob"])
    with make(model) as client:
        for event in (stream := client.stream("Go", shop, answers="wait")):
            told.append(event.type)
            if event.type == "pending":
                if "tool_result" not in told:
                    time.sleep(0.5)  # the third call has its result meanwhile
                stream.answer(Answer(event.request.id, data={"name": next(names)}))
    outputs = [call.output for call in stream.result().tool_calls]
    assert sorted(outputs) == [
        '{"result":"booked for Ada, 2"}',
        '{"result":"booked for Bob, 2"}',
        '{"result":3}',
    ]
    assert told.count("pending") == 2


def test_a_form_outlives_the_calls_beside_it(shop: Toolkit, model: ModelServer) -> None:
    """In the older protocol nobody knows whose question it is; it stands until the last call is over."""
    model.call_many([*[("s_slow", {"seconds": 0.5})] * 6, ("s_book", {})])
    model.say("ok")
    with make(model) as client:
        for event in (stream := client.stream("Go", shop, answers="wait")):
            if event.type == "pending":
                time.sleep(1.5)  # the calls that only sleep are over meanwhile
                stream.answer(Answer(event.request.id, data={"name": "Ada"}))
    outputs = [call.output for call in stream.result().tool_calls]
    assert outputs == ['{"result":"slept"}'] * 6 + ['{"result":"booked for Ada, 2"}']


def test_a_run_is_cancelled_while_a_form_is_asked(shop: Toolkit, model: ModelServer) -> None:
    """At once, and nothing of it is left; the server goes on."""
    model.call("s_book", {})
    with make(model) as client:
        for event in (stream := client.stream("Go", shop, answers="wait")):
            if event.type == "pending":
                threading.Timer(0.2, stream.cancel).start()
                begin = time.monotonic()
        assert event.type == "error"
        assert time.monotonic() - begin < 1.2
        model.call("s_add", {"a": 1, "b": 2})
        model.say("ok")
        assert client.run("Go", shop).tool_calls[0].output == '{"result":3}'
    deadline = time.monotonic() + 2
    asking = ("toolnexus-asking", "toolnexus-mcp-wait-for")
    while any(t.name.startswith(asking) for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [t.name for t in threading.enumerate() if t.name.startswith(asking)]


def test_a_form_of_one_of_several_runs_goes_to_its_own() -> None:
    """Two clients share a toolkit; where the protocol tells whose question it is, each answers its own."""
    outputs: dict[str, str] = {}
    together = threading.Barrier(2)

    def go(toolkit: Toolkit, name: str) -> None:
        def wait_for(request: Request) -> Answer:
            together.wait(10)  # both questions are open now
            return Answer(request.id, data={"name": name})

        with ModelServer(style="openai") as own, make(own, wait_for=wait_for) as client:
            own.call("s_book", {})
            own.say("ok")
            outputs[name] = client.run("Go", toolkit).tool_calls[0].output

    with Toolkit(mcp_config={"s": {**sdk(), "protocol": "modern"}}) as toolkit:
        threads = [threading.Thread(target=go, args=(toolkit, name)) for name in ("Ada", "Bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert outputs == {name: f'{{"result":"booked for {name}, 2"}}' for name in ("Ada", "Bob")}


def test_a_question_that_may_be_of_either_of_two_runs_is_asked_of_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The older protocol does not say whose it is; the wrong person must not answer, the source's own may."""
    config = {"s": {**sdk(), "protocol": "legacy"}}
    asked: list[str] = []

    def asking(who: str) -> Any:
        return lambda request: asked.append(who) or Answer(request.id, data={"name": who})

    def outcome(toolkit: Toolkit) -> str:
        with ModelServer(style="openai") as slow, ModelServer(style="openai") as own:
            slow.call("s_slow", {"seconds": 3})
            own.call("s_book", {})
            for server in (slow, own):
                server.say("ok")
            with make(slow, wait_for=asking("other")) as other, make(own, wait_for=asking("own")) as client:
                stream = other.stream("Go", toolkit)
                assert next(stream).type == "tool_call"
                time.sleep(0.5)  # the call is on its way
                output = client.run("Go", toolkit).tool_calls[0].output
                stream.close()
        return output

    with Toolkit(mcp_config=config) as toolkit:
        assert "not booked: cancel" in outcome(toolkit)
    assert asked == []
    assert "several runs call it" in caplog.text
    with Toolkit(mcp_config=config, wait_for=asking("source")) as toolkit:
        assert "booked for source, 2" in outcome(toolkit)
    assert asked == ["source"]
