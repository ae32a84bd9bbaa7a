"""Metrics: the dicts that functions get, the exact Prometheus text, and the collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import (
    Answer,
    CancelScope,
    Client,
    ConfigurationError,
    RunCancelledError,
    Tool,
    ToolnexusError,
    create_in_process_client,
    pending,
)
from toolnexus.metrics import FAMILIES, Registry, number_text
from toolnexus.testing import ModelServer, reply

AT_ONCE = {"Retry-After": "0"}

Go = Callable[..., Any]
Events = list[dict[str, Any]]

#: The text of the reference for one model call of 120 ms, one tool call of 40 ms and one run.
PINNED = """\
# HELP toolnexus_llm_requests_total Total LLM requests.
# TYPE toolnexus_llm_requests_total counter
toolnexus_llm_requests_total{model="gpt-x",status="ok"} 1
# HELP toolnexus_llm_tokens_total Total tokens, by type.
# TYPE toolnexus_llm_tokens_total counter
toolnexus_llm_tokens_total{type="completion"} 2
toolnexus_llm_tokens_total{type="prompt"} 3
# HELP toolnexus_llm_request_duration_seconds LLM request duration in seconds.
# TYPE toolnexus_llm_request_duration_seconds histogram
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="0.05"} 0
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="0.1"} 0
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="0.25"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="0.5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="1"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="2.5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="5"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="10"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="30"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="60"} 1
toolnexus_llm_request_duration_seconds_bucket{model="gpt-x",le="+Inf"} 1
toolnexus_llm_request_duration_seconds_sum{model="gpt-x"} 0.12
toolnexus_llm_request_duration_seconds_count{model="gpt-x"} 1
# HELP toolnexus_tool_calls_total Total tool calls.
# TYPE toolnexus_tool_calls_total counter
toolnexus_tool_calls_total{tool="add",source="native",is_error="false",pending="false"} 1
# HELP toolnexus_tool_duration_seconds Tool execution duration in seconds.
# TYPE toolnexus_tool_duration_seconds histogram
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.05"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.1"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.25"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="0.5"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="1"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="2.5"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="5"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="10"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="30"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="60"} 1
toolnexus_tool_duration_seconds_bucket{tool="add",le="+Inf"} 1
toolnexus_tool_duration_seconds_sum{tool="add"} 0.04
toolnexus_tool_duration_seconds_count{tool="add"} 1
# HELP toolnexus_run_errors_total Total run errors.
# TYPE toolnexus_run_errors_total counter
"""


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

    return drive


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="m", api_key="k", **options)


def echo(execute: Any = None, **options: Any) -> Tool:
    return Tool("echo", "Say it again.", execute=execute or (lambda args, ctx: str(args.get("x"))), **options)


def samples(text: str) -> dict[str, float]:
    """Return the lines of a text that count, without the times."""
    lines = (line for line in text.splitlines() if not line.startswith("#") and "_seconds_" not in line)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# -- the text --------------------------------------------------------------------------------


def test_text_is_that_of_the_reference() -> None:
    """The fixed events of the reference give its text, byte for byte."""
    registry = Registry()
    registry.record(
        {
            "event": "llm",
            "model": "gpt-x",
            "status": "ok",
            "ms": 120,
            "prompt_tokens": 3,
            "completion_tokens": 2,
        }
    )
    registry.record({"event": "tool", "tool": "add", "source": "native", "is_error": False, "ms": 40})
    registry.record(
        {"event": "run", "model": "gpt-x", "turns": 2, "tool_calls": 1, "total_tokens": 16, "ms": 200}
    )
    assert registry.text() == PINNED


def test_text_of_a_fresh_client_has_no_samples() -> None:
    """Before anything ran there are the HELP and TYPE lines, in order, and a newline at the end."""
    text = Client(model="m").metrics()
    lines = text.splitlines()
    assert text.endswith("\n")
    assert lines[::2] == [f"# HELP {f.name} {f.help}" for f in FAMILIES]
    kinds = ["histogram" if f.is_histogram else "counter" for f in FAMILIES]
    assert lines[1::2] == [f"# TYPE {f.name} {kind}" for f, kind in zip(FAMILIES, kinds, strict=True)]


def test_labels_are_escaped_and_sorted() -> None:
    """Backslash, quote and newline in a label are escaped; series stand in the order of their labels."""
    registry = Registry()
    for model in ("b", 'a"\\\n', "a"):
        registry.record({"event": "run", "model": model, "ms": 1, "error": "x"})
    assert registry.text().splitlines()[-3:] == [
        'toolnexus_run_errors_total{model="a"} 1',
        'toolnexus_run_errors_total{model="a\\"\\\\\\n"} 1',
        'toolnexus_run_errors_total{model="b"} 1',
    ]


def test_values_on_a_bound_count_below_it() -> None:
    """A call of exactly 50 ms is in the bucket of 0.05; one of 90 s is only in that of +Inf."""
    registry = Registry()
    for ms in (50, 90_000):
        registry.record({"event": "tool", "tool": "t", "source": "native", "is_error": False, "ms": ms})
    text = registry.text()
    assert 'bucket{tool="t",le="0.05"} 1' in text
    assert 'bucket{tool="t",le="60"} 1' in text
    assert 'bucket{tool="t",le="+Inf"} 2' in text
    assert 'sum{tool="t"} 90.05' in text


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_in_javascript(number: float) -> None:
    """A number reads back as itself, has no ``.0`` at its end, and an exponent where JavaScript has one."""
    text = number_text(number)
    assert float(text) == number
    assert not text.endswith(".0")
    assert ("e" in text) == (number != 0 and not 1e-6 <= number < 1e21)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-7, "1e-7"),
        (1e21, "1e+21"),
        (123e20, "1.23e+22"),
    ],
)
def test_numbers_of_javascript(number: float, text: str) -> None:
    """What ``String(number)`` gives in JavaScript."""
    assert number_text(number) == text


# -- what functions get ----------------------------------------------------------------------


def test_events_of_a_run_with_a_retry_and_a_tool(server: ModelServer, go: Go) -> None:
    """One event per try, tool call and run, in order, with the fields of the reference and ours."""
    events: Events = []
    server.fail(503, headers=AT_ONCE)
    server.call("echo", {"x": 1}, usage=(7, 3))
    server.say("done", usage=(9, 1))
    with make(server, on_metric=events.append) as client:
        result = go(client, "go", [echo()])
        text = client.metrics()
    times = [{k: e.pop(k) for k in ("ms", "time_to_first_token") if k in e} for e in events]
    assert events == [
        {
            "event": "llm",
            "model": "m",
            "status": "error",
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "attempt": 1,
        },
        {
            "event": "llm",
            "model": "m",
            "status": "ok",
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "attempt": 2,
        },
        {"event": "tool", "tool": "echo", "source": "native", "is_error": False},
        {
            "event": "llm",
            "model": "m",
            "status": "ok",
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "attempt": 1,
        },
        {"event": "run", "model": "m", "turns": 2, "tool_calls": 1, "total_tokens": 20},
    ]
    assert all(t["ms"] > 0 for t in times)
    assert [i for i, t in enumerate(times) if "time_to_first_token" in t] == [1, 3, 4]
    assert times[4]["time_to_first_token"] == result.time_to_first_token
    assert samples(text) == {
        'toolnexus_llm_requests_total{model="m",status="error"}': 1,
        'toolnexus_llm_requests_total{model="m",status="ok"}': 2,
        'toolnexus_llm_tokens_total{type="completion"}': 4,
        'toolnexus_llm_tokens_total{type="prompt"}': 16,
        'toolnexus_tool_calls_total{tool="echo",source="native",is_error="false",pending="false"}': 1,
    }


def test_a_run_that_fails_says_why(server: ModelServer, go: Go) -> None:
    """The run's event comes last and has the error; the counter of failed runs goes up."""
    events: Events = []
    server.fail(401, message="who are you?")
    with make(server, on_metric=events.append) as client:
        with pytest.raises(ToolnexusError) as caught:
            go(client, "go")
        text = client.metrics()
    assert [e["event"] for e in events] == ["llm", "run"]
    assert events[1]["error"] == str(caught.value)
    assert samples(text)['toolnexus_run_errors_total{model="m"}'] == 1
    assert "toolnexus_llm_tokens_total{type=" not in text


def test_tokens_of_a_failed_try_are_counted() -> None:
    """Usage that came before an answer broke off was spent, and is in the event and in the counter."""
    events: Events = []
    with (
        ModelServer(style="anthropic") as server,  # it tells the tokens of the prompt first
        make(server, on_metric=events.append, retries=0) as client,
    ):
        server.say(["one ", "two "], usage=(11, 4), cut="close")
        with pytest.raises(ToolnexusError):
            client.stream("go").result()
        assert samples(client.metrics())['toolnexus_llm_tokens_total{type="prompt"}'] == 11
    assert (events[0]["status"], events[0]["prompt_tokens"]) == ("error", 11)


def test_suspended_calls_are_pending_and_no_errors(server: ModelServer, go: Go) -> None:
    """A call that waits has ``pending`` and is no error; when it runs again it counts once more."""
    events: Events = []

    def ask(args: Any, ctx: Any) -> Any:
        return pending("Sure?") if ctx.answer is None else "yes"

    server.call("echo", {})
    server.say("done")
    with make(server, on_metric=events.append) as client:
        waiting = go(client, "go", [echo(ask)])
        assert waiting.status == "pending"
        assert "error" not in events[-1]
        client.resume(None, Answer(waiting.pending[0].id), [echo(ask)], history=waiting.messages)
        found = samples(client.metrics())
    told = [(e["is_error"], e.get("pending")) for e in events if e["event"] == "tool"]
    assert told == [(False, True), (False, None)]
    series = 'toolnexus_tool_calls_total{tool="echo",source="native",is_error="false",pending="%s"}'
    assert (found[series % "true"], found[series % "false"]) == (1, 1)
    assert [e["event"] for e in events].count("run") == 2


def test_names_that_a_model_makes_up_count_as_one(server: ModelServer, go: Go) -> None:
    """However many tools a model invents, there is one series for them; the event has the name."""
    events: Events = []
    server.call_many([(f"invented_{i}", {}) for i in range(5)])
    server.say("done")
    with make(server, on_metric=events.append) as client:
        go(client, "go", [echo()])
        found = samples(client.metrics())
    assert [e["tool"] for e in events if e["event"] == "tool"] == [f"invented_{i}" for i in range(5)]
    assert {e["source"] for e in events if e["event"] == "tool"} == {"custom"}
    tools = {name: value for name, value in found.items() if name.startswith("toolnexus_tool")}
    assert tools == {
        'toolnexus_tool_calls_total{tool="(unknown)",source="custom",is_error="true",pending="false"}': 5
    }


def test_a_call_that_a_hook_answers_is_counted(server: ModelServer, go: Go) -> None:
    """A call that before_tool answers or denies counts like any other."""
    server.call_many([("echo", {"x": 1}), ("echo", {"x": 2})])
    server.say("done")

    def before_tool(view: dict[str, Any]) -> Any:
        return {"result": "cached"} if view["args"]["x"] == 1 else "denied"

    with make(server, hooks={"before_tool": before_tool}) as client:
        go(client, "go", [echo()])
        found = samples(client.metrics())
    series = 'toolnexus_tool_calls_total{tool="echo",source="native",is_error="%s",pending="false"}'
    assert (found[series % "false"], found[series % "true"]) == (1, 1)


def test_a_cancelled_run_is_counted(server: ModelServer, go: Go) -> None:
    """A tool that runs when the run is cancelled is an error, and so is the run, whose event is the last."""
    events: Events = []
    scope = CancelScope()

    def execute(args: Any, ctx: Any) -> str:
        scope.cancel("enough")
        threading.Event().wait(0.3)
        return "too late"

    server.call("echo", {})
    with make(server, on_metric=events.append) as client, pytest.raises(RunCancelledError):
        go(client, "go", [echo(execute)], scope=scope)
    assert [e["event"] for e in events] == ["llm", "tool", "run"]
    assert events[1]["is_error"]
    assert "enough" in events[2]["error"]


def test_single_calls_have_no_run(server: ModelServer) -> None:
    """translate() and chunks() give one event of the model each, and none of a run."""
    events: Events = []
    server.say("one")
    server.say("two")
    with make(server, on_metric=events.append) as client:
        client.translate("go")
        client.chunks("go").collect()
    assert [e["event"] for e in events] == ["llm", "llm"]


def test_several_functions_get_dicts_of_their_own(server: ModelServer) -> None:
    """Each function gets each event; what one does to its dict the others do not see."""
    first: Events = []
    second: Events = []

    def spoil(event: dict[str, Any]) -> None:
        first.append(dict(event))
        event.clear()

    server.say("hi")
    with make(server, on_metric=[spoil, second.append]) as client:
        client.run("go")
    assert first == second
    assert len(first) == 2


@pytest.mark.parametrize("wrong", [3, "print", [print, None]])
def test_on_metric_must_be_functions(wrong: Any) -> None:
    """Something that is no function is refused when the client is made."""
    with pytest.raises(ConfigurationError, match="on_metric"):
        Client(model="m", on_metric=wrong)


def test_threads_lose_nothing(server: ModelServer) -> None:
    """Runs in many threads at once, and a reader beside them: every count is there."""
    threads, each = 8, 6

    def answer(request: Any) -> Any:
        asked = "tool_call" in str(request.json) or "tool_use" in str(request.json)
        return reply("done", usage=(2, 1)) if asked else reply(calls=[("echo", {"x": 1})], usage=(2, 1))

    server.on_request(answer)
    seen: Events = []
    with make(server, on_metric=seen.append) as client:

        def work() -> None:
            for i in range(each):
                client.run("go", [echo()]) if i % 2 else client.stream("go", [echo()]).result()
                client.metrics()

        started = [threading.Thread(target=work) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(50)
        text = client.metrics()
    runs = threads * each
    assert samples(text) == {
        'toolnexus_llm_requests_total{model="m",status="ok"}': 2 * runs,
        'toolnexus_llm_tokens_total{type="completion"}': 2 * runs,
        'toolnexus_llm_tokens_total{type="prompt"}': 4 * runs,
        'toolnexus_tool_calls_total{tool="echo",source="native",is_error="false",pending="false"}': runs,
    }
    assert f'toolnexus_tool_duration_seconds_count{{tool="echo"}} {runs}' in text
    assert [e["event"] for e in seen].count("run") == runs


# -- prometheus_client -----------------------------------------------------------------------


def test_the_collector_gives_what_the_text_says(server: ModelServer) -> None:
    """A registry of prometheus_client has the same samples as the text, which its own parser reads."""
    prometheus = pytest.importorskip("prometheus_client")
    parser = pytest.importorskip("prometheus_client.parser")
    from toolnexus.prometheus import Collector

    server.call_many([("echo", {"x": 1}), ('odd"\\name', {})])
    server.say("done")
    server.fail(401)
    with make(server) as client:
        registry = prometheus.CollectorRegistry()
        registry.register(Collector(client))
        client.run("go", [echo()])
        with pytest.raises(ToolnexusError):
            client.run("go")
        exposed = prometheus.generate_latest(registry).decode()
        text = client.metrics()

    def read(given: str) -> set[tuple[Any, ...]]:
        families = list(parser.text_string_to_metric_families(given))
        assert [f.documentation for f in families] == [f.help for f in FAMILIES]
        return {
            (s.name, tuple(sorted(s.labels.items())), s.value) for family in families for s in family.samples
        }

    assert read(exposed) == read(text)
    assert len(read(text)) > 30


def test_the_collector_adds_up_clients() -> None:
    """Several clients are one set of series; the registry refuses a second collector of the same names."""
    prometheus = pytest.importorskip("prometheus_client")
    from toolnexus.prometheus import Collector

    one, two = (create_in_process_client(model="m", generate=lambda r: "hi") for _ in range(2))
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(one, two))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector(one))
    one.run("go")
    two.run("go")
    labels = {"model": "m", "status": "ok"}
    assert registry.get_sample_value("toolnexus_llm_requests_total", labels) == 2
    assert registry.get_sample_value("toolnexus_llm_request_duration_seconds_count", {"model": "m"}) == 2


WITHOUT = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
from toolnexus import Client, MissingExtraError
client = Client(model="m")
print(client.metrics()[:6])
from toolnexus.prometheus import Collector
from toolnexus.otel import instrument
for make in (Collector, instrument):
    try:
        make(client)
    except MissingExtraError as error:
        print(error)
"""


def test_without_the_packages_an_error_says_what_to_install() -> None:
    """The text needs no package; the collector and the spans say which one is missing."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=50
    )
    text, collector, spans = done.stdout.splitlines()
    assert text == "# HELP"
    assert 'pip install "toolnexus[prometheus]"' in collector
    assert 'pip install "toolnexus[otel]"' in spans
