"""Watching: what a watch is told, in which order, whatever happens; and the times of runs and attempts."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from toolnexus import (
    Answer,
    CancelScope,
    Client,
    ConfigurationError,
    HookError,
    RunCancelledError,
    Tool,
    ToolnexusError,
    TruncatedStreamError,
    Watch,
    create_in_process_client,
    pending,
)
from toolnexus.testing import ModelServer, reply
from toolnexus.watch import Watched, WatchedAttempt, WatchedRun, WatchedTool
from toolnexus.watching import Observers

#: Has a failed try made again at once.
AT_ONCE = {"Retry-After": "0"}

MOMENTS = (
    "run_started",
    "run_finished",
    "attempt_started",
    "attempt_finished",
    "tool_started",
    "tool_finished",
)

Go = Callable[..., Any]


class Diary(Watch):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.told: list[tuple[str, Any]] = []

    def _note(self, moment: str, what: Watched, word: object = "") -> None:
        self.told.append((moment, what))
        self.lines.append(f"{moment} {word}".strip())

    def run_started(self, run: WatchedRun) -> None:
        self._note("run_started", run)

    def run_finished(self, run: WatchedRun) -> None:
        self._note("run_finished", run, _word(run.error))

    def attempt_started(self, call: WatchedAttempt) -> None:
        self._note("attempt_started", call, f"{call.turn}.{call.attempt}")

    def attempt_finished(self, call: WatchedAttempt) -> None:
        self._note("attempt_finished", call, f"{call.turn}.{call.attempt} {_word(call.error)}")

    def tool_started(self, call: WatchedTool) -> None:
        self._note("tool_started", call, call.name)

    def tool_finished(self, call: WatchedTool) -> None:
        state = "pending" if call.pending else "error" if call.is_error else "ok"
        self._note("tool_finished", call, f"{call.name} {state}")

    def of(self, moment: str) -> list[Any]:
        """Return what was told at a moment."""
        return [what for name, what in self.told if name == moment]


def _word(error: BaseException | None) -> str:
    return "ok" if error is None else getattr(error, "kind", type(error).__name__)


@pytest.fixture(params=["openai", "anthropic"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    with ModelServer(style=request.param) as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style=server.style, model="m", api_key="k", **options)


@pytest.fixture(params=["run", "stream"])
def go(request: pytest.FixtureRequest) -> Go:
    """Run a prompt, whole or streamed."""

    def drive(client: Client, *args: Any, **options: Any) -> Any:
        if request.param == "run":
            return client.run(*args, **options)
        return client.stream(*args, **options).result()

    return drive


def echo(execute: Any = None, **options: Any) -> Tool:
    return Tool("echo", "Say it again.", execute=execute or (lambda args, ctx: str(args.get("x"))), **options)


def test_met_02_everything_is_told_in_order(server: ModelServer, go: Go) -> None:
    """Run, attempts and tool calls begin and end in order, with timing, usage and results."""
    diary = Diary()
    server.fail(503, headers=AT_ONCE)
    server.call("echo", {"x": 1}, id="c1")
    server.say("done")
    with make(server, watch=diary) as client:
        result = go(client, "go", [echo()])
    assert diary.lines == [
        "run_started",
        "attempt_started 1.1",
        "attempt_finished 1.1 server",
        "attempt_started 1.2",
        "attempt_finished 1.2 ok",
        "tool_started echo",
        "tool_finished echo ok",
        "attempt_started 2.1",
        "attempt_finished 2.1 ok",
        "run_finished ok",
    ]
    assert all(what.seconds > 0 for moment, what in diary.told if moment.endswith("finished"))
    failed, called, said = diary.of("attempt_finished")
    assert failed.reply is None
    assert failed.error.status == 503
    assert failed.time_to_first_token is None
    assert called.usage == said.usage == said.reply.usage
    assert said.reply.text == "done"
    assert 0 < said.time_to_first_token <= said.seconds
    assert said.request.messages[-1]["role"] == "tool"
    (ran,) = diary.of("tool_finished")
    assert (ran.id, ran.args, ran.result.output, ran.source, ran.turn) == ("c1", {"x": 1}, "1", "native", 1)
    (run,) = diary.of("run_finished")
    assert run.result is result
    assert run.run_id == result.run_id
    assert run.messages[0]["content"] == "go"


def test_met_02_ends_are_told_on_errors(server: ModelServer, go: Go) -> None:
    """A run that fails has its ends told as well, innermost first, with the error and what was reached."""
    diary = Diary()
    server.call("echo", {"x": 1})
    server.fail(401)
    with make(server, watch=diary) as client, pytest.raises(ToolnexusError) as caught:
        go(client, "go", [echo()])
    assert diary.lines[-3:] == ["attempt_started 2.1", "attempt_finished 2.1 auth", "run_finished auth"]
    (run,) = diary.of("run_finished")
    assert run.error is caught.value
    assert run.result is None
    assert run.reached.tool_calls[0].output == "1"


def test_met_02_observers_that_raise_are_logged_once(
    server: ModelServer, go: Go, caplog: pytest.LogCaptureFixture
) -> None:
    """A watch that raises at every moment stops neither the run nor other watches, and is logged once."""

    def raises(self: Watch, what: Watched) -> None:
        raise RuntimeError("the watch is broken")

    broken = type("Broken", (Watch,), dict.fromkeys((*MOMENTS, "inside"), raises))()
    diary = Diary()

    def metric(event: dict[str, Any]) -> None:
        raise OSError("the disk is full")

    for _ in range(2):
        server.call("echo", {"x": 1})
        server.say("done")
    with (
        caplog.at_level(logging.WARNING, "toolnexus"),
        make(server, watch=[broken, diary], on_metric=metric) as client,
    ):
        assert go(client, "go", [echo()]).text == "done"
        assert go(client, "go", [echo()]).text == "done"
    assert len(diary.lines) == 16
    said = [r.getMessage() for r in caplog.records if r.name == "toolnexus"]
    assert len(said) == 2
    assert "run_started" in said[0]
    assert "the watch is broken" in said[0]
    assert "the disk is full" in said[1]


def test_context_managers_of_a_watch_may_fail_at_their_end(server: ModelServer, go: Go) -> None:
    """A context manager that raises when it is left does not stop the run either."""

    class Breaking(Watch):
        @contextlib.contextmanager
        def inside(self, what: Watched) -> Iterator[None]:
            yield
            raise RuntimeError("late")

    server.say("done")
    with make(server, watch=Breaking()) as client:
        assert go(client, "go").text == "done"


def test_calls_that_do_not_run_are_told(server: ModelServer, go: Go) -> None:
    """Unknown, denied and malformed calls begin and end, too, with the error that the model gets."""
    diary = Diary()
    server.call_many([("nothing", {}), ("echo", "{broken"), ("echo", {"x": "no"})])
    server.say("done")
    hook = {"before_tool": lambda view: "never"}
    with make(server, watch=diary, hooks=hook) as client:
        go(client, "go", [echo()])
    calls = diary.of("tool_finished")
    assert [(c.name, c.is_error, c.seconds) for c in calls] == [
        ("nothing", True, 0.0),
        ("echo", True, 0.0),
        ("echo", True, 0.0),
    ]
    assert calls[0].tool is None
    assert calls[0].source == "custom"
    assert "Unknown tool" in calls[0].result.output
    assert "never" in calls[2].result.output


def test_a_hook_that_raises_ends_the_call_it_judged(server: ModelServer, go: Go) -> None:
    """after_tool raises: the tool call ends with that error, then the run."""
    diary = Diary()

    def after_tool(view: dict[str, Any]) -> None:
        raise ValueError("no")

    server.call("echo", {"x": 1})
    with make(server, watch=diary, hooks={"after_tool": after_tool}) as client, pytest.raises(HookError):
        go(client, "go", [echo()])
    assert diary.lines[-3:] == ["tool_started echo", "tool_finished echo error", "run_finished hook"]
    (call,) = diary.of("tool_finished")
    assert isinstance(call.error, HookError)
    assert call.result is None


def test_running_tools_end_when_the_run_is_cancelled(server: ModelServer, go: Go) -> None:
    """A cancel in the middle of two tools: both have their end told before the run has."""
    diary = Diary()
    scope = CancelScope()
    running = threading.Barrier(2, action=scope.cancel)

    def execute(args: Any, ctx: Any) -> str:
        running.wait(10)
        time.sleep(1)  # it does not look whether it should stop
        return "too late"

    server.call_many([("echo", {"x": 1}), ("echo", {"x": 2})])
    with make(server, watch=diary) as client, pytest.raises(RunCancelledError):
        go(client, "go", [echo(execute)], scope=scope)
    assert diary.lines[-3:] == ["tool_finished echo error"] * 2 + ["run_finished cancelled"]
    assert all(isinstance(call.error, RunCancelledError) for call in diary.of("tool_finished"))


def test_suspended_calls_end_as_pending_and_begin_again(server: ModelServer, go: Go) -> None:
    """A call that waits ends as pending; when it is answered it is told as another one with the same id."""
    diary = Diary()

    def ask(args: Any, ctx: Any) -> Any:
        return pending("Sure?") if ctx.answer is None else f"said {ctx.answer.data}"

    server.call("echo", {}, id="c1")
    server.say("done")
    with make(server, watch=diary, wait_for=lambda request: Answer(request.id, data="yes")) as client:
        assert go(client, "go", [echo(ask)]).text == "done"
    assert [line for line in diary.lines if line.startswith("tool")] == [
        "tool_started echo",
        "tool_finished echo pending",
        "tool_started echo",
        "tool_finished echo ok",
    ]
    assert {call.id for call in diary.of("tool_started")} == {"c1"}


@pytest.mark.parametrize("ok", [True, False])
def test_approvals_are_told(server: ModelServer, go: Go, ok: bool) -> None:
    """A call that waits for its approval ends as pending; then it runs, or ends without, as rejected."""
    diary = Diary()
    server.call("echo", {"x": 1})
    server.say("done")
    with make(server, watch=diary, wait_for=lambda request: Answer(request.id, ok)) as client:
        go(client, "go", [echo(approval=True)])
    first, second = diary.of("tool_finished")
    assert first.pending
    assert not first.is_error
    assert second.is_error is not ok
    assert not second.pending


def test_single_calls_have_attempts_and_no_run(server: ModelServer) -> None:
    """translate() and chunks() are attempts without a run around them."""
    diary = Diary()
    server.say("one")
    server.say("two")
    with make(server, watch=diary) as client:
        assert client.translate("go").text == "one"
        assert client.chunks("go").collect().text == "two"
    assert diary.lines == ["attempt_started 1.1", "attempt_finished 1.1 ok"] * 2


def test_the_model_in_this_process_is_watched() -> None:
    """A model that is a function is watched like any other; it has no URL."""
    diary = Diary()
    with create_in_process_client(model="parrot", generate=lambda r: "hi", watch=diary) as client:
        client.run("go")
    (call,) = diary.of("attempt_finished")
    assert (call.model, call.base_url, call.reply.text) == ("parrot", None, "hi")


def test_secrets_of_the_url_are_not_told(server: ModelServer) -> None:
    """A watch is not told a key in the URL's query."""
    diary = Diary()
    server.say("hi")
    url = f"{server.base_url}?key=QUERYKEY"
    with Client(base_url=url, style=server.style, model="m", api_key="KEY123", watch=diary) as client:
        client.run("go")
    for _, what in diary.told:
        assert "QUERYKEY" not in repr(what)
        assert "KEY123" not in repr(what)


def test_who_answered_is_told_after_a_fallback(server: ModelServer, go: Go) -> None:
    """Attempts name the model that each asked, and the run's end the last one."""
    diary = Diary()
    server.fail(500, headers=AT_ONCE)
    server.say("hi")
    other = Client(base_url=server.base_url, style=server.style, model="other", api_key="k")
    with other, make(server, watch=diary, retries=0, fallbacks=[other]) as client:
        go(client, "go")
    assert [call.model for call in diary.of("attempt_finished")] == ["m", "other"]
    assert diary.of("run_finished")[0].model == "other"


@pytest.mark.parametrize("wrong", [3, "watch", [object()], Watch])
def test_watch_must_be_one(wrong: Any) -> None:
    """Something that is no watch is refused when the client is made."""
    with pytest.raises(ConfigurationError, match="watch"):
        Client(model="m", watch=wrong)


class Silent(Watch):
    """A watch that can be pickled."""


def test_a_client_with_watches_can_be_pickled(server: ModelServer) -> None:
    """Watches and metric functions travel with the client; the counts begin anew."""
    server.say("hi")
    with make(server, watch=Silent(), on_metric=[print]) as client:
        client.run("go")
        with pickle.loads(pickle.dumps(client)) as copy:
            assert [type(w).__name__ for w in copy._runner.watches] == ["Silent", "Feed"]
            assert 'status="ok"' in client.metrics()
            assert 'status="ok"' not in copy.metrics()


# -- times -----------------------------------------------------------------------------------


def test_met_01_times_of_a_run_with_a_retry(server: ModelServer, go: Go) -> None:
    """One failed try, then an answer in pieces: times per attempt and for the run, which add up."""
    server.fail(503, headers={**AT_ONCE}, delay=0.1)
    server.say(["one ", "two ", "three"], delay=0.1)
    with make(server) as client:
        result = go(client, "go")
    failed, worked = result.attempts
    assert failed.time_to_first_token is None
    assert failed.duration > 0
    assert worked.time_to_first_token is not None
    assert 0 < worked.time_to_first_token <= worked.duration
    assert result.time_to_first_token is not None
    assert failed.duration + worked.time_to_first_token <= result.time_to_first_token <= result.duration
    assert failed.duration + worked.duration <= result.duration
    assert result.to_dict()["attempts"][1]["duration"] == worked.duration


def test_met_01_the_first_token_comes_before_the_last(server: ModelServer) -> None:
    """The time to the first token of a stream is that of its first piece, not of its end."""
    server.say(["one ", "two ", "three"], delay=0.15)
    with make(server) as client:
        result: Any = client.stream("go").result()
    (attempt,) = result.attempts
    assert attempt.duration - attempt.time_to_first_token > 0.2
    assert result.duration - result.time_to_first_token > 0.2


def test_met_01_times_of_a_run_that_failed(server: ModelServer, go: Go) -> None:
    """An answer that breaks off: the partial result has the times, the attempts and the usage so far."""
    server.call("echo", {"x": 1}, usage=(7, 3))
    server.say(["one ", "two "], cut="close")
    with make(server, retries=0) as client, pytest.raises(ToolnexusError) as caught:
        go(client, "go", [echo()])
    partial: Any = caught.value.partial
    assert partial is not None
    assert partial.duration > 0
    assert 0 < partial.time_to_first_token <= partial.duration
    assert [a.kind for a in partial.attempts] == [None, caught.value.kind]
    assert partial.attempts[1].duration > 0
    assert (partial.usage.prompt_tokens, partial.usage.completion_tokens) == (7, 3)


def test_met_01_the_first_token_of_a_void_try_does_not_count(server: ModelServer) -> None:
    """run() tries again after text that nobody saw: the time is that of the answer that counts."""
    server.say(["void ", "text "], cut="close", headers=AT_ONCE)
    server.say("real")
    with make(server) as client:
        stream = client.stream("go", channels=["tools"])  # nobody sees text, as with run()
        result: Any = stream.result()
    cut, worked = result.attempts
    assert cut.kind == TruncatedStreamError.kind
    assert cut.time_to_first_token is not None
    assert result.text == "real"
    assert result.time_to_first_token >= cut.duration + worked.time_to_first_token


def test_met_01_the_first_token_that_was_seen_counts(server: ModelServer) -> None:
    """With retry_after_output the consumer has seen the first piece, although it is taken back."""
    server.say(["void ", "text "], cut="close")
    server.say("real")
    with make(server) as client:
        result: Any = client.stream("go", retry_after_output=True).result()
    assert len(result.attempts) == 2
    assert result.text == "real"
    assert result.time_to_first_token <= result.duration - result.attempts[1].duration


def test_met_01_the_clock_of_a_stream_begins_with_its_first_item(server: ModelServer) -> None:
    """What passes between stream() and the first next() is not the run's time."""
    server.say("hi")
    with make(server) as client:
        stream = client.stream("go")
        made = time.monotonic()
        time.sleep(0.3)
        begun = time.monotonic()
        result: Any = stream.result()
        taken = time.monotonic() - begun
    assert result.duration <= taken < time.monotonic() - made - 0.2


def test_watching_costs_next_to_nothing() -> None:
    """Runs that are watched take about the processor time of those that nobody watches (best of several)."""
    with ModelServer() as server:
        server.on_request(lambda request: reply("hi"))
        silent, watched = make(server), make(server, watch=Watch(), on_metric=lambda event: None)
        silent._runner.observers = Observers()

        def seconds(client: Client) -> float:
            begun = time.process_time()
            for _ in range(20):
                client.run("go")
            return time.process_time() - begun

        seconds(silent), seconds(watched)
        rounds = [(seconds(silent), seconds(watched)) for _ in range(5)]
        silent.close()
        watched.close()
    assert min(w for _, w in rounds) < 1.5 * min(s for s, _ in rounds)
