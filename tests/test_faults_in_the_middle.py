"""Hooks, compaction, outputs, people, single calls: a fault in the middle, in every style, both ways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from toolnexus import (
    Answer,
    Client,
    ConfigurationError,
    Error,
    HookError,
    InvalidAnswerError,
    MemoryStore,
    OutputError,
    RunResult,
    Tool,
    ToolnexusError,
)
from toolnexus.compaction import compactor
from toolnexus.hooks import guardrails
from toolnexus.testing import ModelServer

Fault = Callable[[ModelServer], None]

#: What a server does instead of answering; the first three come before, the others inside an answer.
FAULTS: dict[str, Fault] = {
    "500": lambda server: server.fail(status=500, headers={"Retry-After": "0"}),
    "empty": lambda server: server.raw(b""),
    "page": lambda server: server.raw(b"<html><title>Oh</title></html>", content_type="text/html"),
    "closed": lambda server: server.say(["half", " of it"], cut="close"),
    "reset": lambda server: server.say(["half", " of it"], cut="reset"),
    "error in it": lambda server: server.error_in_stream(after=["half"], type="overloaded_error", status=529),
    "cut in a call": lambda server: server.call("echo", {"x": "lost"}, pieces=3, cut="close"),
}


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture(params=["run", "stream"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Fault:
    return FAULTS[request.param]


def make(server: ModelServer, **options: Any) -> Client:
    """Return a client that tries everything again, with a backoff that a test need not wait for."""
    given = {"model": "m", "api_key": "k", "on_error": lambda info: "retry", **options}
    client = Client(base_url=server.base_url, style=server.style, **given)
    retry = attrs.evolve(client._runner.options.retry, base=0.005)
    client._runner.options = attrs.evolve(client._runner.options, retry=retry)
    client._runner.open()
    return client


def go(client: Client, how: str, prompt: Any, tools: Any = None, **options: Any) -> RunResult:
    """Run, or stream with leave to take text back, as a run does."""
    if how == "run":
        return client.run(prompt, tools, **options)
    stream = client.stream(prompt, tools, retry_after_output=True, **options)
    result = stream.result()
    assert stream.text in ("", result.text) or stream.text.endswith(result.text)
    return result


def resume(client: Client, how: str, answers: Any, tools: Any, **options: Any) -> RunResult:
    if how == "run":
        return client.resume("c", answers, tools, **options)
    return client.resume_stream("c", answers, tools, **options).result()


def echo(ran: list[Any], **options: Any) -> Tool:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return Tool("echo", "", schema, lambda args, ctx: ran.append(args["x"]) or f"<{args['x']}>", **options)


def balanced(messages: list[dict[str, Any]]) -> bool:
    asked = [c["id"] for m in messages for c in m.get("tool_calls") or ()]
    return asked == [m["tool_call_id"] for m in messages if m["role"] == "tool"]


# -- hooks -----------------------------------------------------------------------------------------


def test_hooks_are_called_once_a_turn_however_often_it_is_tried(
    server: ModelServer, how: str, fault: Fault
) -> None:
    """A failed try is no turn: no hook hears of it, and no tool runs for it."""
    seen: list[str] = []
    ran: list[Any] = []

    def point(name: str, value: Any = None) -> Callable[[dict[str, Any]], Any]:
        return lambda view: seen.append(f"{name} {view['turn']}") or value

    hooks = [
        *guardrails(lambda call: "no" if call["args"]["x"] == "bad" else None),
        {
            "before_llm": point("before_llm"),
            "after_llm": point("after_llm"),
            "before_tool": point("before_tool", {"args": {"x": "changed"}}),
            "after_tool": point("after_tool", {"result": "hidden"}),
        },
    ]
    fault(server)
    server.call("echo", {"x": "good"}, id="c1")
    fault(server)
    server.call("echo", {"x": "bad"}, id="c2")
    fault(server)
    server.say("done")
    with make(server, hooks=hooks) as client:
        result = go(client, how, "go", [echo(ran)])
    assert (result.text, ran) == ("done", ["changed"])
    assert [call.output for call in result.tool_calls] == ["hidden", "denied: no"]
    assert seen == [
        *("before_llm 1", "after_llm 1", "before_tool 1", "after_tool 1"),
        *("before_llm 2", "after_llm 2"),
        *("before_llm 3", "after_llm 3"),
    ]
    assert [attempt.kind is None for attempt in result.attempts] == [False, True] * 3
    assert balanced(result.messages)


@pytest.mark.parametrize("point", ["before_llm", "after_llm", "before_tool", "after_tool"])
def test_a_hook_that_raises_in_the_second_turn(server: ModelServer, how: str, point: str) -> None:
    """The run ends with its name, has what it had reached, and leaves no trace in the store."""

    def hook(view: dict[str, Any]) -> None:
        if view["turn"] == 2:
            raise KeyError("oops")

    ran: list[Any] = []
    for n in (1, 2):
        server.call("echo", {"x": str(n)}, id=f"c{n}")
    server.say("done")
    with make(server, hooks={point: hook}) as client:
        with pytest.raises(HookError, match=f"{point} .*KeyError: 'oops'") as caught:
            go(client, how, "go", [echo(ran)], id="c")
        assert client.conversation_store.get("c") is None
    assert caught.value.partial is not None
    assert caught.value.partial.tool_calls[0].output == "<1>"
    assert ran == (["1", "2"] if point == "after_tool" else ["1"])


# -- compaction ------------------------------------------------------------------------------------


def talk(turns: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "user", "content": "THE TASK"}]
    for n in range(turns):
        found += [
            {"role": "assistant", "content": f"answer {n} {'x' * 400}"},
            {"role": "user", "content": f"question {n}"},
        ]
    return found


def test_a_summary_is_made_once_however_often_the_call_is_tried(
    server: ModelServer, how: str, fault: Fault
) -> None:
    """The tries of a turn send the same; what is stored is whole, with one marker."""
    made: list[int] = []
    store = MemoryStore()
    store.save("c", talk(12))
    hook = compactor(max_tokens=600, summarize=lambda old: made.append(len(old)) or "IN SHORT")
    with make(server, hooks=hook, store=store, retries=0) as client:
        fault(server)
        with pytest.raises(ToolnexusError):
            client.run("and now?", id="c")
        assert store.get("c") == talk(12)
    made.clear()
    with make(server, hooks=hook, store=store) as client:
        fault(server)
        server.call("echo", {"x": "1"}, id="c1")
        fault(server)
        server.say("done")
        assert go(client, how, "and now?", [echo([])], id="c").text == "done"
    assert len(made) == 1
    _, *sent = (str(request.json) for request in server.requests)
    assert all("IN SHORT" in body and "THE TASK" in body and "answer 1 " not in body for body in sent)
    stored = store.get("c") or []
    plain = [{k: v for k, v in m.items() if k != "toolnexus"} for m in stored]
    assert plain[: len(talk(12))] == talk(12)
    assert sum("compacted" in (m.get("toolnexus") or {}) for m in stored) == 1


def test_a_client_that_summarises_and_fails(server: ModelServer, how: str) -> None:
    """Its error ends the run, which sends nothing and stores nothing; its own retries are its own."""
    store = MemoryStore()
    store.save("c", talk(12))
    with ModelServer() as other, make(other, retries=1) as small:
        hook = compactor(max_tokens=600, summarize=small)
        with make(server, hooks=hook, store=store) as client:
            other.fail(status=500)
            other.fail(status=400, message="summaries are off")
            with pytest.raises(ToolnexusError, match="summaries are off"):
                go(client, how, "and now?", id="c")
            assert store.get("c") == talk(12)
            assert not server.requests
            other.fail(status=500)
            other.say("IN SHORT")
            server.say("done")
            assert go(client, how, "and now?", id="c").text == "done"


# -- output ----------------------------------------------------------------------------------------


@attrs.frozen
class Person:
    name: str
    age: int


def person(server: ModelServer, **data: Any) -> None:
    """Script an answer as the style gives it."""
    if server.style in ("openai", "responses"):
        import json

        server.say(json.dumps(data))
    else:
        server.call("final_answer", data)


def test_a_repair_turn_with_faults_is_still_one(server: ModelServer, how: str, fault: Fault) -> None:
    """Tries that fail are no repairs: an answer that does not fit has its second chance, and no third."""
    with make(server) as client:
        fault(server)
        person(server, name="Ada")
        fault(server)
        person(server, name="Ada", age=36)
        result = go(client, how, "who?", output=Person)
        assert result.output == Person("Ada", 36)
        assert balanced(result.messages) or server.style in ("openai", "responses")
        fault(server)
        person(server, name="Ada")
        fault(server)
        person(server, name="Ada", age="old")
        with pytest.raises(OutputError, match="age") as caught:
            go(client, how, "who?", output=Person)
        assert caught.value.partial is not None
        assert caught.value.partial.turns == 2


def test_a_repair_turn_that_fails_for_good(server: ModelServer, how: str, fault: Fault) -> None:
    """The error is the endpoint's; nothing is stored, and nothing of the wrong answer is an output."""
    with make(server, retries=0) as client:
        person(server, name="Ada")
        fault(server)
        with pytest.raises(ToolnexusError) as caught:
            go(client, how, "who?", output=Person, id="c")
        assert not isinstance(caught.value, OutputError)
        assert caught.value.partial is not None
        assert caught.value.partial.output is None
        assert client.conversation_store.get("c") is None


# -- people ----------------------------------------------------------------------------------------


def test_an_approval_with_faults_around_it(server: ModelServer, how: str, fault: Fault) -> None:
    """The person is asked once, the tool runs once, however often the model calls around it are tried."""
    ran: list[Any] = []
    asked: list[Any] = []
    fault(server)
    server.call("echo", {"x": "1"}, id="c1")
    fault(server)
    server.say("done")
    with make(server, wait_for=lambda r: asked.append(r) or Answer.edit(r, {"x": "2"})) as client:
        result = go(client, how, "go", [echo(ran, approval=True)])
    assert (result.text, ran, len(asked)) == ("done", ["2"], 1)
    assert balanced(result.messages)


def test_an_approved_tool_that_raises(server: ModelServer, how: str) -> None:
    """The model is told, in the loop and on resume; the call has its one result."""

    def raising(args: dict[str, Any], ctx: Any) -> str:
        raise OSError("disk full")

    tool = Tool("echo", execute=raising, approval=True)
    with make(server, wait_for=Answer.approve) as client:
        server.call("echo", {}, id="c1")
        server.say("sorry")
        result = go(client, how, "go", [tool])
    assert result.tool_calls[0].output == "OSError: disk full"
    with make(server) as client:
        server.call("echo", {}, id="c1")
        [request] = go(client, how, "go", [tool], id="c").pending
        server.say("sorry")
        result = resume(client, how, Answer.approve(request), [tool])
        assert result.text == "sorry"
        [told] = [m["content"] for m in result.messages if m["role"] == "tool"]
        assert told == "OSError: disk full"
        assert balanced(client.conversation_store.get("c") or [])


def test_a_resume_whose_model_call_fails_can_be_made_again(
    server: ModelServer, how: str, fault: Fault
) -> None:
    """The conversation still waits for the same answer; a durable one does not run the tool a second time."""
    for durable in (False, True):
        ran: list[Any] = []
        tools = [echo(ran, approval=True)]
        with make(server, retries=0) as client:
            server.call("echo", {"x": "1"}, id="c1")
            [request] = go(client, how, "go", tools, id="c").pending
            before = client.conversation_store.get("c")
            fault(server)
            with pytest.raises(ToolnexusError):
                resume(client, how, Answer.approve(request), tools, durable=durable)
            assert client.conversation_store.get("c") == before
            server.say("done")
            assert resume(client, how, Answer.approve(request), tools, durable=durable).text == "done"
            with pytest.raises(ConfigurationError, match="nothing to resume"):
                resume(client, how, Answer.approve(request), tools, durable=durable)
            assert balanced(client.conversation_store.get("c") or [])
        assert len(ran) == (1 if durable else 2)


def test_answers_that_are_none_change_nothing(server: ModelServer, how: str) -> None:
    """Two for one request, without an id, with an ok that is a word: the suspension stays, nothing runs."""
    ran: list[Any] = []
    tools = [echo(ran, approval=True)]
    with make(server) as client:
        server.call_many([("echo", {"x": "1"}), ("echo", {"x": "2"})])
        first, second = go(client, how, "go", tools, id="c").pending
        before = client.conversation_store.get("c")
        wrong: list[Any] = [
            [Answer.approve(first), Answer.reject(first)],
            {"ok": True},
            {"id": 5},
            {"id": [first.id]},
            {"id": first.id, "ok": "false"},
            Answer(first.id, None),  # type: ignore[arg-type]
            [Answer.approve(first), Answer("other")],
            [Answer.approve(first), Answer.edit(second, {"x": 5})],
            [Answer.approve(first), Answer.edit(second, "x=1")],  # type: ignore[arg-type]
            "approve",
            5,
        ]
        for answers in wrong:
            with pytest.raises((InvalidAnswerError, ConfigurationError)):
                resume(client, how, answers, tools)
            assert client.conversation_store.get("c") == before
        assert ran == []
        server.say("done")
        assert resume(client, how, [Answer.approve(second), Answer.approve(first)], tools).text == "done"
        assert sorted(ran) == ["1", "2"]


def test_two_threads_resume_and_one_does(server: ModelServer, how: str) -> None:
    """The tool runs once; whoever comes second is told that nothing waits any more."""
    ran: list[Any] = []
    tools = [echo(ran, approval=True)]
    with make(server) as client:
        server.call("echo", {"x": "1"}, id="c1")
        [request] = go(client, how, "go", tools, id="c").pending
        server.say("done", delay=0.05)
        ends: list[str] = []
        barrier = threading.Barrier(2)

        def work() -> None:
            barrier.wait()
            try:
                ends.append(resume(client, how, Answer.approve(request), tools).text)
            except ToolnexusError as error:
                ends.append(error.message)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert ran == ["1"]
    assert sorted(text.split(":")[0] for text in ends) == ["done", "there is nothing to resume"]


# -- single calls ----------------------------------------------------------------------------------


def test_chunks_and_translations_end_once_whatever_happens(server: ModelServer, fault: Fault) -> None:
    """One done chunk, last, with the error; one error object, last; an exception with what there was."""
    with make(server, retries=0) as client:
        fault(server)
        chunks = list(client.chunks("go", [echo([])]))
        assert [chunk.type for chunk in chunks].count("done") == 1
        assert chunks[-1].error is not None
        fault(server)
        *pieces, last = client.translate_stream("go")
        assert set(last["error"]) == {"message", "type", "code"}
        assert not any("error" in piece for piece in pieces)
        fault(server)
        with pytest.raises(ToolnexusError) as caught:
            client.translate("go")
        assert caught.value.partial is not None


@pytest.mark.parametrize("way", ["chunks", "translate_stream"])
@pytest.mark.parametrize("leave", ["close", "drop"])
def test_single_calls_that_are_left_hang_up(server: ModelServer, way: str, leave: str) -> None:
    """Closed or dropped early, the connection goes, and no thread stays."""
    with make(server) as client:
        server.say(["a", "b", "c"], hold=True)
        pieces: Any = getattr(client, way)("go")
        assert next(pieces)
        assert next(pieces)
        if leave == "close":
            pieces.close()
            server.wait_for_disconnect()
        del pieces
        server.wait_for_disconnect()
        assert len(server.requests) == 1


def test_a_stream_in_the_middle_of_which_the_tool_and_the_wire_fail(server: ModelServer) -> None:
    """Without leave to take text back the stream ends in its error, with all that it had reached."""

    def raising(args: dict[str, Any], ctx: Any) -> str:
        raise OSError("disk full")

    with make(server) as client:
        server.call("echo", {}, id="c1", text="first ")
        server.say(["half", " of it"], cut="close")
        *events, last = client.stream("go", [Tool("echo", execute=raising)], id="c")
        assert isinstance(last, Error)
        assert last.partial is not None
        assert last.partial.tool_calls[0].output == "OSError: disk full"
        assert last.partial.text == "".join(e.delta for e in events if e.type == "text")[len("first ") :]  # type: ignore[attr-defined]
        assert client.conversation_store.get("c") is None
