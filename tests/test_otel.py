"""OpenTelemetry: the spans and metrics that a real SDK exports, checked against the conventions."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from toolnexus import (
    Answer,
    CancelScope,
    Client,
    RunCancelledError,
    Tool,
    ToolnexusError,
    create_in_process_client,
    pending,
    semconv,
)
from toolnexus.otel import Tracing, instrument, uninstrument
from toolnexus.testing import ModelServer, reply

AT_ONCE = {"Retry-After": "0"}

#: Every name of the conventions that may occur.
NAMES = {
    line
    for line in (Path(__file__).parent / "data" / "otel" / "names.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
}

Go = Callable[..., Any]


class Telemetry:
    """An SDK that keeps what it is given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.traces.get_tracer("the application")

    def watch(self, client: Client, **options: Any) -> Client:
        return instrument(client, tracer_provider=self.traces, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def metrics(self) -> dict[str, list[Any]]:
        """Return the data points of each metric."""
        data = self._reader.get_metrics_data()
        scopes = [s for r in data.resource_metrics for s in r.scope_metrics] if data else []
        return {m.name: list(m.data.data_points) for scope in scopes for m in scope.metrics}

    def close(self) -> None:
        self.traces.shutdown()
        self.meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


@pytest.fixture(params=["run", "stream"])
def go(request: pytest.FixtureRequest) -> Go:
    """Run a prompt, whole or streamed."""

    def drive(client: Client, *args: Any, **options: Any) -> Any:
        if request.param == "run":
            return client.run(*args, **options)
        return client.stream(*args, **options).result()

    drive.streams = request.param == "stream"  # type: ignore[attr-defined]
    return drive


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="m", api_key="k", **options)


def echo(execute: Any = None, **options: Any) -> Tool:
    return Tool("echo", "Say it again.", execute=execute or (lambda args, ctx: str(args.get("x"))), **options)


def port_of(server: ModelServer) -> int | None:
    return urlsplit(server.base_url).port


def values(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def own(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


# -- names -----------------------------------------------------------------------------------


def test_every_name_is_one_of_the_conventions() -> None:
    """The names in semconv are the conventions', but for those that begin with toolnexus."""
    ours = {
        value
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str) and "." in value and "/" not in value
    }
    assert len(ours) > 40
    assert {name for name in ours if not name.startswith("toolnexus.")} <= NAMES


def test_names_are_those_of_the_installed_conventions() -> None:
    """The list of names that the tests go by agrees with the package of the conventions."""
    theirs = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    if not hasattr(theirs, "GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK"):
        pytest.skip("the installed conventions are older")
    known = {value for name, value in vars(theirs).items() if name.startswith("GEN_AI_")}
    used = {name for name in NAMES if name.startswith("gen_ai.") and "duration" not in name}
    assert {n for n in used if not n.startswith(("gen_ai.client.", "gen_ai.server."))} <= known


# -- spans -----------------------------------------------------------------------------------


def test_spans_of_a_run(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A run with a retry and a tool: every span, its parent, its kind and its attributes."""
    server.fail(503, headers=AT_ONCE)
    server.call("echo", {"x": 1}, id="c1", usage=(7, 3))
    server.say("done", usage=(9, 1))
    with telemetry.tracer.start_as_current_span("caller"), telemetry.watch(make(server)) as client:
        result = go(client, "go", [echo()], id="talk")
    run, caller = telemetry.one("invoke_agent"), telemetry.one("caller")
    failed, called, said = telemetry.named("chat m")
    tool = telemetry.one("execute_tool echo")
    assert [s.name for s in telemetry.spans] == [
        "chat m",
        "chat m",
        "execute_tool echo",
        "chat m",
        "invoke_agent",
        "caller",
    ]
    assert parent(run) == own(caller)
    assert {parent(s) for s in (failed, called, said, tool)} == {own(run)}
    assert (run.kind, tool.kind, said.kind) == (SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CLIENT)

    place = {
        "gen_ai.provider.name": server.style,
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1",
        "server.port": port_of(server),
    }
    common = {"toolnexus.run.id": result.run_id, "gen_ai.conversation.id": "talk"}
    streamed = {"gen_ai.request.stream": True} if go.streams else {}  # type: ignore[attr-defined]
    assert values(failed) == {
        **place,
        **common,
        **streamed,
        "gen_ai.operation.name": "chat",
        "toolnexus.turn": 1,
        "toolnexus.attempt": 1,
        "error.type": "server",
        "http.response.status_code": 503,
    }
    first = values(called)
    assert (first.pop("gen_ai.response.time_to_first_chunk", None) is not None) == bool(streamed)
    assert first.pop("gen_ai.response.id")
    finish = "tool_calls" if server.style == "openai" else "tool_use"
    assert first == {
        **place,
        **common,
        **streamed,
        "gen_ai.operation.name": "chat",
        "toolnexus.turn": 1,
        "toolnexus.attempt": 2,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": (finish,),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    assert values(tool) == {
        **common,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Say it again.",
        "gen_ai.tool.call.id": "c1",
        "toolnexus.tool.source": "native",
        "toolnexus.turn": 1,
    }
    whole = values(run)
    assert whole["gen_ai.operation.name"] == "invoke_agent"
    assert whole["toolnexus.run.status"] == "done"
    assert (whole["gen_ai.usage.input_tokens"], whole["gen_ai.usage.output_tokens"]) == (16, 4)
    assert failed.status.status_code is StatusCode.ERROR
    assert {s.status.status_code for s in (called, said, tool, run)} == {StatusCode.UNSET}


def test_attributes_are_the_conventions(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """With content, parameters, errors and every kind of token: no attribute that the conventions lack."""
    params = {"temperature": 0.5, "top_p": 1, "max_tokens": 9, "seed": 3, "stop": ["x"], "n": 2}
    server.call("echo", {"x": 1})
    server.call("nothing", {})
    server.fail(401)
    with telemetry.watch(make(server, request_params=params), capture_content=True) as client:
        with pytest.raises(ToolnexusError):
            go(client, "go", [echo()], id="talk", system_prompt="Be kind.")
        points = [p for ps in telemetry.metrics().values() for p in ps]
    found = {name for span in telemetry.spans for name in values(span)}
    found |= {name for point in points for name in point.attributes}
    assert {n for n in found if not n.startswith("toolnexus.")} <= NAMES
    asked = values(telemetry.named("chat m")[0])
    assert {k.rpartition(".")[2]: v for k, v in asked.items() if k.startswith("gen_ai.request.")} == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 9,
        "seed": 3,
        "stop_sequences": ("x",),
        "count": 2,
        **({"stream": True} if go.streams else {}),  # type: ignore[attr-defined]
    }


def test_a_span_of_a_tool_is_inside_its_call(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """What a tool opens is a child of its own execute_tool span, also for tools that run at once."""
    both = threading.Barrier(2)

    def execute(args: Any, ctx: Any) -> str:
        with telemetry.tracer.start_as_current_span(f"inner {args['x']}"):
            both.wait(10)
        return "ok"

    server.call_many([("echo", {"x": 1}), ("echo", {"x": 2})])
    server.say("done")
    with telemetry.watch(make(server), capture_content=True) as client:
        go(client, "go", [echo(execute)])
    calls = {
        json.loads(values(s)["gen_ai.tool.call.arguments"])["x"]: own(s)
        for s in telemetry.named("execute_tool echo")
    }
    assert {x: parent(telemetry.one(f"inner {x}")) for x in (1, 2)} == calls


def test_hooks_and_wait_for_are_inside_the_run(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """Hooks and wait_for see the run's span as the active one."""
    active: list[int] = []

    def note(view: Any) -> None:
        active.append(get_current_span().get_span_context().span_id)

    def wait_for(request: Any) -> Answer:
        note(request)
        return Answer(request.id)

    def ask(args: Any, ctx: Any) -> Any:
        return pending("Sure?") if ctx.answer is None else "yes"

    hooks = dict.fromkeys(("before_llm", "after_llm", "before_tool", "after_tool"), note)
    server.call("echo", {})
    server.say("done")
    with telemetry.watch(make(server, hooks=hooks, wait_for=wait_for)) as client:
        go(client, "go", [echo(ask)])
    assert set(active) == {own(telemetry.one("invoke_agent"))}
    assert len(active) == 7


def test_a_model_in_this_process_is_inside_its_call(telemetry: Telemetry) -> None:
    """What a model function opens is a child of the chat span, which is internal and has no server."""

    def generate(request: Any) -> str:
        with telemetry.tracer.start_as_current_span("thinking"):
            return "hi"

    with telemetry.watch(create_in_process_client(model="parrot", generate=generate)) as client:
        client.run("go")
    chat = telemetry.one("chat parrot")
    assert parent(telemetry.one("thinking")) == own(chat)
    assert chat.kind is SpanKind.INTERNAL
    assert "server.address" not in values(chat)


def test_an_agent_in_a_tool_is_inside_the_call(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A run that a tool makes is a child of the tool's span: one trace for all."""
    with telemetry.watch(make(server)) as client:

        def execute(args: Any, ctx: Any) -> str:
            return client.run("inner").text

        server.call("echo", {})
        server.say("from inside")
        server.say("done")
        go(client, "go", [echo(execute)])
    inner, outer = telemetry.named("invoke_agent")
    assert parent(inner) == own(telemetry.one("execute_tool echo"))
    assert parent(outer) is None
    assert len({s.context.trace_id for s in telemetry.spans if s.context}) == 1


def test_the_caller_of_a_stream_is_its_parent(telemetry: Telemetry, server: ModelServer) -> None:
    """The span where stream() was called is the parent, also if another place, or thread, iterates it."""
    server.say("one")
    server.say("two")
    with telemetry.watch(make(server)) as client:
        with telemetry.tracer.start_as_current_span("caller"):
            stream = client.stream("go")
        reader = threading.Thread(target=stream.result)
        reader.start()
        reader.join(20)
        late = client.stream("go")
        with telemetry.tracer.start_as_current_span("reader"):
            late.result()
    first, second = telemetry.named("invoke_agent")
    assert parent(first) == own(telemetry.one("caller"))
    assert parent(second) == own(telemetry.one("reader"))


def test_no_span_stays_active(telemetry: Telemetry, server: ModelServer) -> None:
    """After a run, and while a stream is read, the caller's own span is the active one."""
    server.say("one")
    server.say(["two ", "three"])
    with telemetry.watch(make(server)) as client, telemetry.tracer.start_as_current_span("caller") as span:
        client.run("go")
        assert get_current_span() is span
        for _ in client.stream("go"):
            assert get_current_span() is span


def test_single_calls_are_children_of_the_caller(telemetry: Telemetry, server: ModelServer) -> None:
    """translate() and chunks() are chat spans without a run."""
    server.say("one")
    server.say("two")
    with telemetry.watch(make(server)) as client, telemetry.tracer.start_as_current_span("caller"):
        client.translate("go")
        client.chunks("go").collect()
    assert {parent(s) for s in telemetry.named("chat m")} == {own(telemetry.one("caller"))}
    assert not telemetry.named("invoke_agent")


# -- errors ----------------------------------------------------------------------------------


def test_errors_are_on_every_span(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A call that fails for good: its span and the run's have the kind, the status, and no quoted text."""
    server.fail(400, message="the prompt SECRET is not allowed")
    with telemetry.watch(make(server)) as client, pytest.raises(ToolnexusError) as caught:
        go(client, "my SECRET")
    for span in (telemetry.one("chat m"), telemetry.one("invoke_agent")):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == caught.value.kind == values(span)["error.type"]
        assert "SECRET" not in span.to_json()
    assert values(telemetry.one("invoke_agent"))["toolnexus.run.status"] == "incomplete"


def test_failed_tools_are_errors(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A tool that fails and one that does not exist; the run goes on and is none."""

    def execute(args: Any, ctx: Any) -> str:
        raise ValueError("SECRET")

    server.call_many([("echo", {}), ("made_up", {})])
    server.say("done")
    with telemetry.watch(make(server)) as client:
        go(client, "go", [echo(execute)])
        durations = telemetry.metrics()["gen_ai.execute_tool.duration"]
    failed, unknown = telemetry.one("execute_tool echo"), telemetry.one("execute_tool")
    assert values(unknown)["gen_ai.tool.name"] == "made_up"
    for span in (failed, unknown):
        assert values(span)["error.type"] == span.status.description == "tool_error"
        assert "SECRET" not in span.to_json()
    assert telemetry.one("invoke_agent").status.status_code is StatusCode.UNSET
    assert {p.attributes.get("gen_ai.tool.name") for p in durations} == {"echo", None}


def test_cancelled_runs_end_all_spans(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A cancel while a tool runs: the tool's span and the run's end as cancelled."""
    scope = CancelScope()

    def execute(args: Any, ctx: Any) -> str:
        scope.cancel()
        threading.Event().wait(0.3)
        return "too late"

    server.call("echo", {})
    with telemetry.watch(make(server)) as client, pytest.raises(RunCancelledError):
        go(client, "go", [echo(execute)], scope=scope)
    for name in ("execute_tool echo", "invoke_agent"):
        assert values(telemetry.one(name))["error.type"] == "cancelled"


def test_suspended_calls_are_pending(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """A call that waits has a span that says so, and is no error; nor is the run that ends there."""
    server.call("echo", {})
    with telemetry.watch(make(server)) as client:
        go(client, "go", [echo(approval=True)])
    span = telemetry.one("execute_tool echo")
    assert values(span)["toolnexus.tool.pending"] is True
    assert "error.type" not in values(span)
    run = telemetry.one("invoke_agent")
    assert values(run)["toolnexus.run.status"] == "pending"
    assert run.status.status_code is StatusCode.UNSET


# -- content ---------------------------------------------------------------------------------


def play_secrets(server: ModelServer) -> Tool:
    server.call("echo", {"x": "ARGS"}, id="c1")
    server.say("ANSWER", thinking="THOUGHT" if server.style == "anthropic" else None)
    return echo(lambda args, ctx: "RESULT")


WORDS = ("PROMPT", "SYSTEM", "ARGS", "RESULT", "ANSWER")


@pytest.mark.parametrize("value", ["", "false", "no_content", "event_only"])
def test_content_is_off_by_default(
    telemetry: Telemetry, server: ModelServer, go: Go, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Neither prompts nor answers, arguments, results or system texts are in the spans."""
    monkeypatch.setenv(semconv.CAPTURE_CONTENT, value)
    with telemetry.watch(make(server, system_prompt="SYSTEM")) as client:
        go(client, "PROMPT", [play_secrets(server)])
    text = "".join(span.to_json() for span in telemetry.spans)
    assert [word for word in WORDS if word in text] == []


@pytest.mark.parametrize("value", ["true", "SPAN_ONLY", "span_and_event"])
def test_content_is_recorded_where_the_environment_asks_for_it(
    telemetry: Telemetry, server: ModelServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The variable of the conventions turns content on; the argument goes before it."""
    monkeypatch.setenv(semconv.CAPTURE_CONTENT, value)
    with telemetry.watch(make(server)) as client:
        server.say("hi")
        client.run("PROMPT")
        assert "PROMPT" in telemetry.one("chat m").to_json()
        assert not telemetry.watch(client, capture_content=False)._runner.watches[0].capture_content  # type: ignore[attr-defined]


def test_content_has_the_shape_of_the_conventions(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """Messages are roles with parts; texts, calls, results and reasoning each have their own type."""
    with telemetry.watch(make(server, system_prompt="SYSTEM"), capture_content=True) as client:
        go(client, "PROMPT", [play_secrets(server)])
    first, last = map(values, telemetry.named("chat m"))
    call = {"type": "tool_call", "id": "c1", "name": "echo", "arguments": {"x": "ARGS"}}
    asked = {"role": "user", "parts": [{"type": "text", "content": "PROMPT"}]}
    assert json.loads(first["gen_ai.system_instructions"]) == [{"type": "text", "content": "SYSTEM"}]
    assert json.loads(first["gen_ai.input.messages"]) == [asked]
    assert json.loads(first["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [call], "finish_reason": "tool_calls"}
    ]
    assert json.loads(last["gen_ai.input.messages"]) == [
        asked,
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "RESULT"}]},
    ]
    (answer,) = json.loads(last["gen_ai.output.messages"])
    thought = [{"type": "reasoning", "content": "THOUGHT"}] if server.style == "anthropic" else []
    assert answer["parts"] == [*thought, {"type": "text", "content": "ANSWER"}]
    tool = values(telemetry.one("execute_tool echo"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"x": "ARGS"}
    assert tool["gen_ai.tool.call.result"] == "RESULT"
    run = values(telemetry.one("invoke_agent"))
    assert json.loads(run["gen_ai.input.messages"]) == [asked]
    assert json.loads(run["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "ANSWER"}]


def test_results_are_recorded_as_hooks_leave_them(telemetry: Telemetry, server: ModelServer) -> None:
    """What an after_tool hook takes out of a result does not get into the span."""
    hook = {"after_tool": lambda view: {"result": "[removed]"}}
    with telemetry.watch(make(server, hooks=hook), capture_content=True) as client:
        client.run("go", [play_secrets(server)])
    text = "".join(span.to_json() for span in telemetry.spans)
    assert "[removed]" in text
    assert "RESULT" not in text


def test_errors_are_recorded_with_content(telemetry: Telemetry, server: ModelServer) -> None:
    """With content, a failed call's span has the message, too, and the exception."""
    server.fail(400, message="not like this")
    with telemetry.watch(make(server), capture_content=True) as client, pytest.raises(ToolnexusError):
        client.run("go")
    span = telemetry.one("chat m")
    assert "not like this" in str(span.status.description)
    assert [event.name for event in span.events] == ["exception"]


# -- metrics ---------------------------------------------------------------------------------


def test_metrics_of_a_run(telemetry: Telemetry, server: ModelServer, go: Go) -> None:
    """Tokens by type, durations per try with the error, and the time to the first chunk of streams only."""
    server.fail(503, headers=AT_ONCE)
    server.call("echo", {"x": 1}, usage=(7, 3))
    server.say("done", usage=(9, 1))
    with telemetry.watch(make(server)) as client:
        go(client, "go", [echo()])
        found = telemetry.metrics()
    tokens = {p.attributes["gen_ai.token.type"]: (p.count, p.sum) for p in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": (2, 16), "output": (2, 4)}
    tries = {p.attributes.get("error.type"): p for p in found["gen_ai.client.operation.duration"]}
    assert {kind: p.count for kind, p in tries.items()} == {"server": 1, None: 2}
    assert dict(tries["server"].attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": server.style,
        "gen_ai.request.model": "m",
        "server.address": "127.0.0.1",
        "server.port": port_of(server),
        "error.type": "server",
    }
    assert tuple(tries[None].explicit_bounds)[:3] == (0.01, 0.02, 0.04)
    streamed = found.get("gen_ai.client.operation.time_to_first_chunk", [])
    assert [p.count for p in streamed] == ([2] if go.streams else [])  # type: ignore[attr-defined]
    (tool,), (run,) = found["gen_ai.execute_tool.duration"], found["gen_ai.invoke_agent.duration"]
    assert tool.attributes["gen_ai.tool.name"] == "echo"
    assert run.sum > tool.sum > 0
    assert set(found) <= NAMES


def test_durations_are_those_of_the_spans(telemetry: Telemetry, server: ModelServer) -> None:
    """A metric's value is about the length of its span."""
    server.say("hi", delay=0.2)
    with telemetry.watch(make(server)) as client:
        client.run("go")
        (point,) = telemetry.metrics()["gen_ai.client.operation.duration"]
    span = telemetry.one("chat m")
    assert span.end_time is not None
    assert span.start_time is not None
    assert abs(point.sum - (span.end_time - span.start_time) / 1e9) < 0.1


# -- switching it on and off -----------------------------------------------------------------


def test_instrumenting_twice_is_once(telemetry: Telemetry, server: ModelServer) -> None:
    """instrument() replaces what was there, and uninstrument() ends it."""
    with make(server) as client:
        assert telemetry.watch(telemetry.watch(client)) is client
        server.say("one")
        client.run("go")
        uninstrument(client)
        server.say("two")
        client.run("go")
    assert [s.name for s in telemetry.spans] == ["chat m", "invoke_agent"]


def test_tracing_is_a_watch(telemetry: Telemetry, server: ModelServer) -> None:
    """Tracing may be given to the client when it is made, beside others, and can be pickled with it."""
    tracing = Tracing(tracer_provider=telemetry.traces, capture_content=True)
    server.say("one")
    with make(server, watch=[tracing]) as client:
        client.run("go")
    assert telemetry.one("invoke_agent")
    copy = pickle.loads(pickle.dumps(make(server, watch=Tracing(capture_content=True))))
    assert copy._runner.watches[0].capture_content


def test_without_an_sdk_nothing_happens(server: ModelServer, go: Go) -> None:
    """With the API alone, which records nothing, runs are as they are."""
    server.call("echo", {"x": 1})
    server.say("done")
    with instrument(make(server), capture_content=True) as client:
        assert go(client, "go", [echo()]).text == "done"


def test_a_hundred_runs_at_once_keep_their_spans_apart(telemetry: Telemetry, server: ModelServer) -> None:
    """Streams in many threads: each call is a child of its own run, each run of its own caller."""
    server.on_request(
        lambda request: (
            reply("done")
            if "tool_call" in str(request.json) or "tool_use" in str(request.json)
            else reply(calls=[("echo", {"x": 1})])
        )
    )
    with telemetry.watch(make(server)) as client:

        def work(number: int) -> None:
            for i in range(10):
                with telemetry.tracer.start_as_current_span(f"caller {number} {i}"):
                    client.stream("go", [echo()]).result()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
    by_id = {own(s): s for s in telemetry.spans}
    runs = telemetry.named("invoke_agent")
    assert len({parent(run) for run in runs}) == len(runs) == 100
    for span in (*telemetry.named("chat m"), *telemetry.named("execute_tool echo")):
        run = by_id[parent(span) or 0]
        assert values(span)["toolnexus.run.id"] == values(run)["toolnexus.run.id"]
        assert run.name == "invoke_agent"
