"""Asking a person: from wait_for, inside the loop, and later; approvals; nothing twice, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolnexus import (
    Answer,
    Client,
    ConfigurationError,
    Context,
    Done,
    Error,
    HookError,
    InvalidAnswerError,
    Pending,
    Request,
    RunResult,
    SqliteStore,
    Tool,
    ToolCall,
    ToolFinished,
    pending,
    relay_tool,
)
from toolnexus.testing import ModelServer

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="m", api_key="k", **options)


def question(ran: list[Any] | None = None, **request: Any) -> Tool:
    """A tool that asks once and then says what was answered."""

    def execute(args: dict[str, Any], ctx: Context) -> Any:
        if ran is not None:
            ran.append(args)
        if ctx.answer is None:
            return pending("What colour?", **request)
        return f"it is {ctx.answer.data}"

    return Tool("ask", execute=execute)


def deleting(ran: list[Any], approval: Any = True) -> Tool:
    return Tool(
        "delete",
        "",
        SCHEMA,
        lambda args, ctx: ran.append(args) or f"deleted {args['path']}",
        approval=approval,
    )


def results_of(result: RunResult) -> list[str]:
    return [m["content"] for m in result.messages if m["role"] == "tool"]


def balanced(result: RunResult) -> bool:
    asked = [c["id"] for m in result.messages for c in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in result.messages if m["role"] == "tool"]
    return sorted(asked) == sorted(answered)


def test_wait_for_answers_in_the_run(server: ModelServer) -> None:
    """wait_for gets the request and its answer goes to the tool; run() and stream() alike."""
    seen: list[Request] = []

    def wait_for(request: Request) -> Answer:
        seen.append(request)
        return Answer(request.id, data="blue")

    with make(server, wait_for=wait_for) as client:
        for _ in range(2):
            server.call("ask", {}, id="c1")
            server.say("ok")
        assert results_of(client.run("go", [question()])) == ["it is blue"]
        events = list(client.stream("go", [question()]))
    kinds = [e.type for e in events]
    assert kinds[:3] == ["tool_call", "pending", "tool_result"]
    assert events[2] == ToolFinished("c1", "ask", "it is blue", False)
    assert (seen[0].call_id, seen[0].tool_name, seen[0].prompt) == ("c1", "ask", "What colour?")


def test_nobody_to_ask_ends_as_pending_and_nothing_is_approved(server: ModelServer) -> None:
    """Without an answer the run ends as pending; the tool of an approval has not run."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"}, id="c1")
    with make(server) as client:
        result = client.run("go", [deleting(ran)])
    assert (result.status, ran) == ("pending", [])
    [request] = result.pending
    assert request.kind == "approval"
    assert request.data["args"] == {"path": "x"}
    json.dumps(result.to_dict())


def test_the_consumer_answers_inside_the_loop(server: ModelServer) -> None:
    """stream.answer() from the loop's own thread, before the item after the Pending is asked for."""
    server.call("ask", {}, id="c1")
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [question()])
        for event in stream:
            if event.type == "pending":
                stream.answer(event.request, True, data="red")  # type: ignore[attr-defined]
        assert results_of(stream.result()) == ["it is red"]
        assert stream.result().text == "ok"


def test_going_on_without_an_answer_ends_as_pending(server: ModelServer) -> None:
    """Asking for the item after the Pending decides."""
    server.call("ask", {}, id="c1")
    with make(server) as client:
        events = list(client.stream("go", [question()]))
    assert [e.type for e in events] == ["tool_call", "pending", "usage", "done"]
    assert events[-1].result.status == "pending"  # type: ignore[attr-defined]


def test_answers_wait_keeps_the_stream_open(server: ModelServer) -> None:
    """With answers="wait" another thread may answer later."""
    server.call("ask", {}, id="c1")
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [question()], answers="wait")
        for event in stream:
            if isinstance(event, Pending):
                threading.Timer(0.15, stream.answer, args=(event.request, True, "late")).start()
        assert results_of(stream.result()) == ["it is late"]


def test_waiting_for_a_person_can_be_cancelled(server: ModelServer) -> None:
    """wait_for and the gate answer to the scope."""
    let_go = threading.Event()
    server.call("ask", {})
    with make(server, wait_for=lambda r: let_go.wait(30) and None) as client:
        *_, error = client.stream("go", [question()], timeout=0.2)
        assert isinstance(error, Error)
        assert error.error.kind == "timeout"
    let_go.set()
    server.call("ask", {})
    with make(server) as client:
        stream = client.stream("go", [question()], answers="wait")
        threading.Timer(0.1, stream.cancel).start()
        *_, error = stream
        assert isinstance(error, Error)
        assert error.error.kind == "cancelled"


def test_several_suspensions_are_reported_together_and_siblings_run_once(server: ModelServer) -> None:
    """All requests of a turn come before any is decided; a finished sibling is not run again."""
    ran: list[Any] = []
    sibling = Tool("echo", execute=lambda a, c: ran.append("echo") or "done")
    server.call_many([("ask", {"n": 1}), ("echo", {}), ("ask", {"n": 2})])
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [question(), sibling])
        requests: list[Request] = []
        for event in stream:
            if isinstance(event, Pending):
                requests.append(event.request)
                if len(requests) == 2:
                    for position, request in enumerate(requests):
                        stream.answer(request, data=position)
        result = stream.result()
    assert ran == ["echo"]
    assert results_of(result) == ["it is 0", "done", "it is 1"]
    assert balanced(result)


def test_apr_01_02_one_answer_of_two_leaves_the_other_pending(server: ModelServer) -> None:
    """Answered one by one: each call runs once, each has exactly one result, on resume, too."""
    ran: list[Any] = []
    tool = deleting(ran)
    server.call_many([("delete", {"path": "a"}), ("delete", {"path": "b"})])
    server.say("ok")
    with make(server) as client:
        result = client.run("go", [tool], id="c")
        first, second = result.pending
        result = client.resume("c", Answer.approve(first), [tool])
        assert (result.status, ran) == ("pending", [{"path": "a"}])
        assert [r.id for r in result.pending] == [second.id]
        result = client.resume("c", Answer.approve(second), [tool])
    assert (result.status, result.text, ran) == ("done", "ok", [{"path": "a"}, {"path": "b"}])
    assert balanced(result)
    assert len(server.requests) == 2
    sent = server.requests[1].messages
    assert "deleted a" in str(sent)
    assert "deleted b" in str(sent)


def test_f92_approve_edit_reject_respond(server: ModelServer) -> None:
    """The four decisions: run, run with other arguments, tell the model why not, answer in its place."""
    decisions = {
        "approve": (lambda r: Answer.approve(r), [{"path": "x"}], "deleted x", False),
        "edit": (lambda r: Answer.edit(r, {"path": "y"}), [{"path": "y"}], "deleted y", False),
        "reject": (lambda r: Answer.reject(r, "too risky"), [], "rejected (too risky): Run delete?", True),
        "respond": (lambda r: Answer.respond(r, "it was gone"), [], "it was gone", False),
    }
    for answer, ran_with, output, is_error in decisions.values():
        ran: list[Any] = []
        server.call("delete", {"path": "x"}, id="c1")
        server.say("ok")
        with make(server, wait_for=answer) as client:
            stream = client.stream("go", [deleting(ran)], keep_events=True)
            result = stream.result()
        assert ran == ran_with
        assert [(c.output, c.is_error) for c in result.tool_calls] == [(output, is_error)]
        kinds = [e.type for e in stream.events or ()]
        assert kinds.count("tool_call") == kinds.count("tool_result") == kinds.count("pending") == 1
        assert balanced(result)


def test_an_edit_must_fit_and_the_suspension_stays(server: ModelServer) -> None:
    """A wrong answer is a clear error; the right one still counts."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"}, id="c1")
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [deleting(ran)])
        for event in stream:
            if isinstance(event, Pending):
                with pytest.raises(InvalidAnswerError, match="path"):
                    stream.answer(Answer.edit(event.request, {"path": 3}))
                with pytest.raises(InvalidAnswerError, match="nobody waits"):
                    stream.answer(Answer("other"))
                stream.answer(Answer.edit(event.request, {"path": "z"}))
        assert stream.result().status == "done"
    assert ran == [{"path": "z"}]


def test_approval_may_depend_on_the_arguments_and_fails_closed(server: ModelServer) -> None:
    """approval=callable; one that raises ends the run and nothing runs."""
    ran: list[Any] = []
    server.call_many([("delete", {"path": "/tmp/x"}), ("delete", {"path": "/etc"})])
    with make(server) as client:
        result = client.run("go", [deleting(ran, lambda args: not args["path"].startswith("/tmp"))])
        assert ran == [{"path": "/tmp/x"}]
        assert len(result.pending) == 1
        server.call("delete", {"path": "x"})
        with pytest.raises(HookError, match="approval of delete"):
            client.run("go", [deleting(ran, lambda args: 1 / 0)])
    assert len(ran) == 1


def test_f94_a_response_schema_is_checked_before_the_run_goes_on(server: ModelServer) -> None:
    """F94: an answer that does not fit is refused, in the loop, from wait_for and on resume."""
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    with make(server, wait_for=lambda r: Answer(r.id, data={"age": "old"})) as client:
        server.call("ask", {})
        with pytest.raises(InvalidAnswerError, match="age"):
            client.run("go", [question(response_schema=schema)])
    with make(server) as client:
        server.call("ask", {})
        result = client.run("go", [question(response_schema=schema)], id="c")
        wrong = Answer(result.pending[0].id, data={})
        with pytest.raises(InvalidAnswerError, match="age"):
            client.resume("c", wrong, [question()])
        server.say("ok")
        assert client.resume("c", Answer(wrong.id, data={"age": 3}), [question()]).status == "done"


def test_an_expired_request_takes_no_answer(server: ModelServer) -> None:
    """expires_at is honoured, in a waiting stream and on resume."""
    with make(server) as client:
        server.call("ask", {})
        server.say("ok")
        soon = question(expires_at=time.time() + 0.2)
        result = client.stream("go", [soon], answers="wait").result()
        assert results_of(result) == ["expired: What colour?"]
        server.call("ask", {})
        result = client.run("go", [question(expires_at=(late := time.time() + 1.0))], id="c")
        time.sleep(max(0.0, late - time.time()) + 0.05)
        server.say("ok")
        result = client.resume("c", Answer(result.pending[0].id, data="red"), [question()])
        assert results_of(result) == ["expired: What colour?"]


def test_declined_and_unresolved(server: ModelServer) -> None:
    """A no is an error result; a tool that only asks again is given up on."""
    with make(server, wait_for=lambda r: Answer(r.id, ok=False, reason="declined")) as client:
        server.call("ask", {})
        server.say("ok")
        assert results_of(client.run("go", [question()])) == ["declined (declined): What colour?"]
    stubborn = Tool("ask", execute=lambda a, c: pending("Again?"))
    with make(server, wait_for=lambda r: Answer(r.id)) as client:
        server.call("ask", {})
        server.say("ok")
        assert results_of(client.run("go", [stubborn])) == ["unresolved: Again?"]


def test_f97_ctx_ask_asks_in_sequence_and_replays(server: ModelServer, tmp_path: Path) -> None:
    """ctx.ask leaves the tool and comes back with the answer; earlier answers are replayed in order."""
    started: list[int] = []

    def talk(args: dict[str, Any], ctx: Context) -> str:
        started.append(1)
        name = ctx.ask("Name?")
        age = ctx.ask("Age?")
        return f"{name} is {age}"

    tool = Tool("talk", execute=talk)
    said = {"Name?": "Ada", "Age?": 36}
    with make(server, wait_for=lambda r: Answer(r.id, data=said[r.prompt])) as client:
        server.call("talk", {})
        server.say("ok")
        assert results_of(client.run("go", [tool])) == ["Ada is 36"]
        assert len(started) == 3
    with make(server, store=SqliteStore(tmp_path / "c.db")) as client:
        server.call("talk", {})
        result = client.run("go", [tool], id="c")
        result = client.resume("c", Answer(result.pending[0].id, data="Bob"), [tool])
        assert (result.status, result.pending[0].prompt) == ("pending", "Age?")
        server.say("ok")
        result = client.resume("c", Answer(result.pending[0].id, data=7), [tool])
        assert results_of(result) == ["Bob is 7"]
        assert result.status == "done"
        client.conversation_store.close()


def test_apr_03_apr_05_b147_b148_another_process_resumes(server: ModelServer, tmp_path: Path) -> None:
    """In a new process: the stored arguments, no model call before the tool, the reason kept."""
    path = tmp_path / "conversation.db"
    endpoint = f"base_url={server.base_url!r}, style={server.style!r}, model='m', api_key='k'"
    options = f"{endpoint}, store=SqliteStore({str(path)!r})"
    tool = """
        def commit(rev: int) -> str:
            "Commit."
            print("ran", rev)
            return f"committed {rev}"
        commit = tool(commit, approval=True)
    """
    first = f"""
        from toolnexus import Client, SqliteStore, tool
        {tool}
        result = Client({options}).run("go", [commit], id="c")
        print(result.status, result.pending[0].id)
    """
    server.call("commit", {"rev": 3}, id="c1", pieces=3)
    printed = run_python(first)
    status, request_id = printed.split()
    assert status == "pending"
    second = f"""
        from toolnexus import Answer, Client, SqliteStore, tool
        {tool}
        print(Client({options}).resume("c", Answer({request_id!r}), [commit]).text)
    """
    server.say("fine")
    assert run_python(second).splitlines() == ["ran 3", "fine"]
    assert len(server.requests) == 2
    assert "committed 3" in str(server.requests[1].messages)
    server.call("commit", {"rev": 4}, id="c2")
    with make(server, store=SqliteStore(path)) as client:
        from toolnexus import tool as make_tool

        def commit(rev: int) -> str:
            return str(rev)

        tools = [make_tool(commit, approval=True)]
        result = client.run("again", tools, id="c")
        server.say("ok")
        client.resume("c", Answer.reject(result.pending[0], "not on a Friday"), tools)
        client.conversation_store.close()
    assert "not on a Friday" in str(server.requests[-1].messages)


def run_python(code: str) -> str:
    lines = textwrap.dedent(code).strip()
    # The tool's source is indented by its own; dedent both parts.
    body = "\n".join(line.removeprefix("        ") for line in lines.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resume_can_be_streamed(server: ModelServer) -> None:
    """resume_stream yields what happens from the answer on."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"}, id="c1")
    with make(server) as client:
        result = client.run("go", [deleting(ran)], id="c")
        server.say(["o", "k"])
        events = list(client.resume_stream("c", Answer.approve(result.pending[0]), [deleting(ran)]))
    assert [e.type for e in events][:2] == ["tool_call", "tool_result"]
    assert events[0] == ToolCall("c1", "delete", {"path": "x"})
    assert isinstance(events[-1], Done)
    assert events[-1].result.text == "ok"


def test_resume_without_an_id_takes_the_history(server: ModelServer) -> None:
    """result.messages is enough to go on."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"})
    server.say("ok")
    with make(server) as client:
        result = client.run("go", [deleting(ran)])
        history = json.loads(json.dumps(result.messages))
        answer = json.loads(json.dumps(Answer.approve(result.pending[0]).to_dict()))
        assert client.resume(None, answer, [deleting(ran)], history=history).text == "ok"
    assert ran == [{"path": "x"}]


def test_resume_refuses_what_does_not_belong(server: ModelServer) -> None:
    """No suspension, an answer for another request: a clear error, and nothing changes."""
    ran: list[Any] = []
    with make(server) as client:
        with pytest.raises(ConfigurationError, match="nothing to resume"):
            client.resume("none", Answer("x"), [deleting(ran)])
        server.call("delete", {"path": "x"})
        result = client.run("go", [deleting(ran)], id="c")
        before = client.conversation_store.get("c")
        with pytest.raises(InvalidAnswerError, match="none of the requests"):
            client.resume("c", Answer("other"), [deleting(ran)])
        assert client.conversation_store.get("c") == before
        server.say("ok")
        client.resume("c", Answer.approve(result.pending[0]), [deleting(ran)])
        with pytest.raises(ConfigurationError, match="nothing to resume"):
            client.resume("c", Answer.approve(result.pending[0]), [deleting(ran)])
    assert ran == [{"path": "x"}]


def test_a_new_prompt_closes_what_was_pending(server: ModelServer) -> None:
    """Whoever writes on without answering gets a balanced transcript that says so."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"})
    server.say("ok")
    with make(server) as client:
        client.run("go", [deleting(ran)], id="c")
        result = client.run("never mind", [deleting(ran)], id="c")
    assert results_of(result) == ["unanswered: Run delete?"]
    assert balanced(result)
    assert ran == []


def test_relay_tools_hand_the_calls_to_the_caller(server: ModelServer) -> None:
    """A declaration-only tool suspends with its calls; the answer's data is the output."""
    tool = relay_tool("pay", "Pay.", {"type": "object", "properties": {"sum": {"type": "integer"}}})
    server.call("pay", {"sum": 3}, id="c1")
    server.say("paid")
    with make(server) as client:
        result = client.run("go", [tool])
        [request] = result.pending
        assert (request.kind, request.data) == (
            "tool_call",
            {"id": "c1", "name": "pay", "arguments": {"sum": 3}},
        )
        answer = Answer(request.id, data={"output": "no money", "is_error": True})
        result = client.resume(None, answer, [tool], history=result.messages)
    assert [(c.output, c.is_error) for c in result.tool_calls] == [("no money", True)]


def test_requests_and_answers_are_plain_json() -> None:
    """to_dict, JSON, from_dict: the same again."""
    request = Request(kind="input", prompt="?", data={"a": [1]}, expires_at=1.5, call_id="c", tool_name="t")
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    answer = Answer("x", False, {"b": 1}, "no")
    assert Answer.from_dict(json.loads(json.dumps(answer.to_dict()))) == answer


def test_a_wait_for_that_raises_or_lies_ends_the_run(server: ModelServer) -> None:
    """The error names it; nothing runs."""
    ran: list[Any] = []
    for wrong, error in (
        (lambda r: 1 / 0, HookError),
        (lambda r: "yes", HookError),
        (lambda r: Answer("other"), InvalidAnswerError),
    ):
        server.call("delete", {"path": "x"})
        with make(server, wait_for=wrong) as client, pytest.raises(error):
            client.run("go", [deleting(ran)])
    assert ran == []


def waiting(request: Request, after: threading.Event | None = None) -> Tool:
    """A tool that asks and waits where it is."""

    def execute(args: dict[str, Any], ctx: Context) -> Any:
        answer = ctx.wait_for(request)
        if after is not None:
            after.set()
        return "nobody" if answer is None else f"{answer.ok} {answer.data}"

    return Tool("ask", execute=execute)


def test_a_tool_may_wait_where_it_is(server: ModelServer) -> None:
    """It runs once; its Pending says whose it is; the answer comes from the stream, the client, or nobody."""
    request = Request(kind="input", prompt="How many?", response_schema={"type": "integer"})
    for _ in range(4):
        server.call("ask", {}, id="c1")
        server.say("ok")
    with make(server) as client:
        for event in (stream := client.stream("go", [waiting(request)])):
            if isinstance(event, Pending):
                assert (event.request.id, event.request.call_id, event.request.tool_name) == (
                    request.id,
                    "c1",
                    "ask",
                )
                stream.answer(request, data=3)
        assert stream.result().tool_calls[0].output == "True 3"
        assert results_of(client.stream("go", [waiting(request)]).result()) == ["nobody"]
        assert results_of(client.run("go", [waiting(request)])) == ["nobody"]
    with make(server, wait_for=lambda r: Answer(r.id, ok=False)) as client:
        assert results_of(client.run("go", [waiting(request)])) == ["False None"]
    assert Context().wait_for(request) is None


def test_a_tool_that_waits_is_told_of_a_wrong_answer(server: ModelServer) -> None:
    """As an exception where it waits, which becomes its result."""
    request = Request(prompt="How many?", response_schema={"type": "integer"})
    for wrong in (lambda r: 1 / 0, lambda r: "yes", lambda r: Answer(r.id, data="three")):
        server.call("ask", {})
        server.say("ok")
        with make(server, wait_for=wrong) as client:
            call = client.run("go", [waiting(request)]).tool_calls[0]
        assert call.is_error
        assert "wait_for" in call.output or "does not fit" in call.output


def test_the_time_of_a_tool_stands_still_while_it_waits(server: ModelServer) -> None:
    """And goes on after it: what it had used before counts."""
    request = Request(prompt="Go on?")

    def execute(args: dict[str, Any], ctx: Context) -> str:
        assert ctx.wait_for(request) is not None
        ctx.sleep(args["seconds"])
        return "done"

    properties = {"seconds": {"type": "number"}}
    tool = Tool("ask", "", {"type": "object", "properties": properties}, execute, timeout=0.6)
    for seconds in (0, 5):
        server.call("ask", {"seconds": seconds})
    server.say("ok")

    def slowly(request: Request) -> Answer:
        time.sleep(0.9)
        return Answer(request.id)

    with make(server, wait_for=slowly) as client:
        first, second = client.run("go", [tool]).tool_calls
    assert (first.is_error, first.output) == (False, "done")
    assert (second.is_error, second.output) == (True, "ask: timed out after 0.6 s")


def test_a_question_ends_with_its_call(server: ModelServer) -> None:
    """A thread that the tool left behind is told that the call is over, and does not stay."""
    asking: list[threading.Thread] = []
    told: list[BaseException] = []

    def execute(args: dict[str, Any], ctx: Context) -> str:
        def ask() -> None:
            try:
                ctx.wait_for(Request(prompt="Still there?"))
            except BaseException as error:
                told.append(error)

        asking.append(threading.Thread(target=ask))
        asking[0].start()
        return "left"

    server.call("ask", {})
    server.say("ok")
    with make(server) as client:
        assert client.stream("go", [Tool("ask", execute=execute)], answers="wait").result().text == "ok"
    asking[0].join(2)
    assert not asking[0].is_alive()
    assert [type(error).__name__ for error in told] in (["RunCancelledError"], [])


@pytest.mark.parametrize("how", ["run", "stream"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"data": ...}, "plain JSON"),
        ({"data": {"at": [float("nan")]}}, "plain JSON"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": float("inf")}, "expires_at"),
        ({"response_schema": "integer"}, "response_schema"),
        ({"kind": 5}, "kind"),
        ({"url": ...}, "url"),
        ({"id": 5}, "id"),
    ],
    ids=str,
)
def test_a_request_that_could_not_be_stored_is_the_tools_mistake(
    server: ModelServer, how: str, wrong: dict[str, Any], why: str
) -> None:
    """The call has an error that says so, and the run goes on: it is not lost when it is saved."""
    server.call("ask", {}, id="c1")
    server.call("replay", {}, id="c2")
    server.say("ok")
    replay = Tool("replay", execute=lambda args, ctx: ctx.ask("What?", **wrong))
    if "id" in wrong:
        replay = question(**wrong)
        replay = Tool("replay", execute=replay.execute)
    with make(server) as client:
        tools = [question(**wrong), replay]
        result = (
            client.run("go", tools, id="c") if how == "run" else client.stream("go", tools, id="c").result()
        )
    assert result.status == "done"
    assert [call.is_error for call in result.tool_calls] == [True, True]
    assert all(f"ConfigurationError: {why}" in o or why in o for o in results_of(result))


def test_data_of_a_request_may_be_what_has_a_json_form(server: ModelServer) -> None:
    """Dates, tuples and dataclasses come out as plain JSON, for every process alike."""
    from datetime import date

    server.call("ask", {}, id="c1")
    with make(server) as client:
        [request] = client.run("go", [question(data={"days": (date(2026, 3, 1),)})], id="c").pending
    assert request.data == {"days": ["2026-03-01"]}


@pytest.mark.parametrize("answer", ["yes", None, 5, {"id": "x"}])
def test_what_is_no_answer_is_refused_in_the_loop(server: ModelServer, answer: Any) -> None:
    """A clear error, and the suspension stays."""
    server.call("ask", {}, id="c1")
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [question()])
        for event in stream:
            if isinstance(event, Pending):
                with pytest.raises(InvalidAnswerError, match="answer takes the request"):
                    stream.answer(answer)
                stream.answer(event.request, data="green")
        assert results_of(stream.result()) == ["it is green"]


def test_the_last_answer_before_the_next_item_counts(server: ModelServer) -> None:
    """Whoever thinks better of it in time may."""
    ran: list[Any] = []
    server.call("delete", {"path": "x"}, id="c1")
    server.say("ok")
    with make(server) as client:
        stream = client.stream("go", [deleting(ran)])
        for event in stream:
            if isinstance(event, Pending):
                stream.answer(event.request, True)
                stream.answer(event.request, False, reason="on second thought")
        assert "on second thought" in results_of(stream.result())[0]
        with pytest.raises(InvalidAnswerError, match="nobody waits"):
            stream.answer(Answer("x"))
    assert ran == []
