"""
llmock breaks its answers in every way it knows and judges how a client bears it.

It sees each attempt and its timing: a finding is a retry that came too early, one that could not
help, one that was not made, or a broken answer that was taken for a whole one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from toolnexus import (
    APIStatusError,
    Client,
    ContextLengthError,
    Done,
    Error,
    ErrorInfo,
    Event,
    IdleTimeoutError,
    InternalServerError,
    MalformedEventError,
    RunResult,
    Text,
    Tool,
    ToolCall,
    ToolFinished,
    TruncatedStreamError,
)

pytest.importorskip("llmock")

from llmock.scenarios import Reply, StreamFault
from llmock.scenarios import ToolCall as ScriptedCall

pytestmark = pytest.mark.slow

ANSWER = "It is sunny in Paris today and the wind is still"
ARGUMENTS = {"city": "Paris in the north of France"}

#: Where the text begins in an answer without calls, and how many pieces it has.
FIRST_TEXT = {"openai": 1, "anthropic": 3, "responses": 4, "gemini": 0}

#: How many pieces stand between the text and the reason why it ended; Gemini says that with the last text.
TO_THE_END = {"openai": 0, "anthropic": 1, "responses": 3, "gemini": -1}

#: Where llmock has what our styles speak.
ADDRESS = {"responses": ("openai", ""), "gemini": ("gemini", "/v1beta")}
PIECES = len(ANSWER.split())

#: Milliseconds between two pieces where one is malformed. llmock asks whether the client stopped reading, and
#: can only tell while there is something left to send.
PACE = 40

#: In the middle of the text.
AFTER_OUTPUT = 6

#: Statuses that another try may help with.
PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 529)

#: Statuses that it never helps with.
LASTING = (400, 401, 402, 403, 404, 405, 413, 415, 422)

EXPECTED = {
    "disconnect": TruncatedStreamError,
    "truncate": TruncatedStreamError,
    "malformed": MalformedEventError,
    "stall": IdleTimeoutError,
}

Runner = Callable[..., RunResult]


@pytest.fixture(params=["openai", "anthropic", "responses", "gemini"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(llmock: Any, style: str) -> str:
    """Return the base URL of a style."""
    provider, path = ADDRESS.get(style, (style, ""))
    return f"{llmock.base_url(provider)}{path}"


def after_a_moment(info: ErrorInfo) -> Literal["retry", "fail"]:
    """
    Decide as always, a moment later.

    llmock takes a request that begins before the end of the last one was written down for another call,
    and our first wait may be next to nothing. It is longer each time, since equal waits are no backoff.
    """
    if not info.retryable:
        return "fail"
    time.sleep(0.15 * info.attempt)
    return "retry"


@pytest.fixture
def client(llmock: Any, style: str) -> Iterator[Client]:
    with Client(
        address(llmock, style),
        style=style,
        model="m",
        api_key="k",
        response_timeout=2.0,
        idle_timeout=0.4,
        on_error=after_a_moment,
    ) as client:
        yield client


@pytest.fixture
def weather() -> tuple[Tool, list[dict[str, Any]]]:
    """A tool, and the arguments that it ran with."""
    ran: list[dict[str, Any]] = []

    def run(args: dict[str, Any], context: Any) -> str:
        ran.append(args)
        return "sunny"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return Tool("weather", "The weather in a city.", schema, run), ran


def through_run(client: Client, prompt: str = "Weather?", *tools: Tool) -> RunResult:
    return client.run(prompt, list(tools))


def through_stream(client: Client, prompt: str = "Weather?", *tools: Tool) -> RunResult:
    return client.stream(prompt, list(tools), retry_after_output=True).result()


@pytest.fixture(params=[through_run, through_stream], ids=["run", "stream"])
def runner(request: pytest.FixtureRequest) -> Runner:
    found: Runner = request.param
    return found


def fault(kind: str, after: int, times: int = 1) -> StreamFault:
    return StreamFault(kind, after_chunks=after, times=times, stall_seconds=5.0)  # type: ignore[arg-type]


def paced(llmock: Any, kind: str) -> Any:
    """Let a malformed piece be followed by something that one can stop reading."""
    return llmock.pace(PACE) if kind == "malformed" else llmock


def texts(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, Text))


# -- statuses --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", PASSING)
def test_a_passing_error_is_retried(llmock: Any, client: Client, runner: Runner, status: int) -> None:
    """One failure that passes is not seen by the caller."""
    llmock.fail(status, retry_after=0.2 if status == 429 else None).reply(ANSWER)
    assert runner(client).text == ANSWER
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("status", [408, 500, 502])
def test_waits_grow_where_the_server_names_none(
    llmock: Any, client: Client, runner: Runner, status: int
) -> None:
    """Two failures in a row: the second wait is longer than the first, whatever the jitter."""
    llmock.fail(status, times=2).reply(ANSWER)
    assert runner(client).text == ANSWER
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("status", LASTING)
def test_a_lasting_error_is_not_retried(llmock: Any, client: Client, runner: Runner, status: int) -> None:
    """What is wrong with the request stays wrong: the error comes at once, with the status."""
    llmock.fail(status, times=None)
    with pytest.raises(APIStatusError) as caught:
        runner(client)
    assert caught.value.status == status
    assert len(llmock.requests) == 1
    llmock.assert_resilient(strict=True)


def test_an_outage_ends_in_its_error(llmock: Any, client: Client, runner: Runner) -> None:
    """A provider that stays down is asked as often as ``retries`` says, and no more."""
    llmock.outage(status=500)
    with pytest.raises(InternalServerError):
        runner(client)
    assert len(llmock.requests) == 3
    llmock.assert_resilient(strict=True)


def test_a_prompt_that_is_too_long(llmock: Any, client: Client, runner: Runner) -> None:
    """Scripted or measured, it is an error of its own kind, and nothing is tried again."""
    llmock.limits(context_window=50)
    with pytest.raises(ContextLengthError):
        runner(client, "word " * 400)
    llmock.limits().context_overflow()
    with pytest.raises(ContextLengthError):
        runner(client)
    assert len(llmock.requests) == 2
    llmock.assert_resilient(strict=True)


def test_a_quota_is_waited_for(llmock: Any, client: Client, runner: Runner) -> None:
    """When the requests of a minute are spent, the next one comes as late as the server asks."""
    llmock.limits(rpm=40)
    for number in range(41):
        assert runner(client, f"question {number}").text
    assert any(record.status == 429 for record in llmock.requests)
    llmock.assert_resilient(strict=True)


# -- slowness --------------------------------------------------------------------------------


def test_slowness_is_no_fault(llmock: Any, client: Client, runner: Runner) -> None:
    """A late answer, a late first piece and a slow pace are borne without another try."""
    llmock.reply(ANSWER).delay(0.6).slow_first_token(0.3).pace(20)
    assert runner(client).text == ANSWER
    assert len(llmock.requests) == 1
    llmock.assert_resilient(strict=True)


# -- broken streams --------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3, AFTER_OUTPUT, 9])
@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_broken_stream_is_retried(llmock: Any, client: Client, style: str, kind: str, after: int) -> None:
    """Wherever a stream breaks, the result is that of the try that succeeded."""
    after = min(after, PIECES - 2) if style == "gemini" else after  # its last text is also its end
    paced(llmock, kind).reply(ANSWER, times=2).add(fault(kind, after))
    result = through_stream(client)
    assert result.text == ANSWER
    assert [record.error is None for record in result.attempts] == [False, True]
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
def test_a_stream_that_breaks_twice(llmock: Any, client: Client, kind: str) -> None:
    """Two breaks at different places: waits grow, and the text is that of the last try alone."""
    paced(llmock, kind).reply(ANSWER, times=3).add(fault(kind, 2), fault(kind, AFTER_OUTPUT))
    assert through_stream(client).text == ANSWER
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_without_leave_a_fault_after_output_is_an_error(
    llmock: Any, client: Client, style: str, kind: str
) -> None:
    """By default nothing is printed twice: the stream ends in an `Error` with the text that came."""
    llmock.reply(ANSWER, times=2).add(fault(kind, AFTER_OUTPUT))
    *events, last = client.stream("Weather?")
    assert isinstance(last, Error)
    assert isinstance(last.error, EXPECTED[kind])
    arrived = " ".join(ANSWER.split()[: AFTER_OUTPUT - FIRST_TEXT[style]]) + " "
    assert texts(events) == arrived
    assert last.partial is not None
    assert last.partial.text == arrived
    assert not any(isinstance(event, Done) for event in events)
    assert len(llmock.requests) == 1


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_before_output_a_fault_is_retried_without_asking(
    llmock: Any, client: Client, style: str, kind: str
) -> None:
    """As long as nothing went out, the default stream tries again and nobody sees it."""
    paced(llmock, kind).reply(ANSWER, times=2).add(fault(kind, max(0, FIRST_TEXT[style] - 1)))
    *events, last = client.stream("Weather?")
    assert isinstance(last, Done)
    assert texts(events) == last.result.text == ANSWER
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("kind", ["disconnect", "truncate"])
def test_after_the_reason_why_it_ended_a_cut_is_no_loss(
    llmock: Any, client: Client, style: str, kind: str
) -> None:
    """An answer that said why it ended is whole, however the connection ends."""
    finish = FIRST_TEXT[style] + PIECES + TO_THE_END[style]
    llmock.reply(ANSWER).add(fault(kind, finish + 1))
    *_, last = client.stream("Weather?")
    assert isinstance(last, Done)
    assert last.result.text == ANSWER
    assert len(llmock.requests) == 1


# -- tools -----------------------------------------------------------------------------------


def test_a_tool_is_run_between_failures(
    llmock: Any, client: Client, runner: Runner, weather: tuple[Tool, list[dict[str, Any]]]
) -> None:
    """Both model calls of a run fail once; the tool runs once."""
    tool, ran = weather
    llmock.fail(503, retry_after=0.1).call_tool("weather", ARGUMENTS)
    llmock.fail(500).reply(ANSWER)
    assert runner(client, "Weather?", tool).text == ANSWER
    assert ran == [ARGUMENTS]
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("after", range(1, 5))
@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_call_that_breaks_off_is_asked_for_again(
    llmock: Any,
    client: Client,
    style: str,
    weather: tuple[Tool, list[dict[str, Any]]],
    kind: str,
    after: int,
) -> None:
    """A tool runs from the whole call of the second try, and from nothing else."""
    tool, ran = weather
    after = 0 if style == "gemini" else after  # a call and the end of the answer are one piece
    paced(llmock, kind).call_tool("weather", ARGUMENTS, times=2).reply(ANSWER).add(fault(kind, after))
    assert through_stream(client, "Weather?", tool).text == ANSWER
    assert ran == [ARGUMENTS]
    # Behind the last piece there is nothing left that one could stop reading, as the verdict asks for.
    llmock.assert_resilient(strict=style != "gemini")


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_text_before_a_call_that_breaks_off(
    llmock: Any, client: Client, style: str, weather: tuple[Tool, list[dict[str, Any]]], kind: str
) -> None:
    """The default stream ends in an `Error` with the text; the tool of the cut call does not run."""
    tool, ran = weather
    call = ScriptedCall("weather", ARGUMENTS)
    if style == "gemini":
        pytest.skip("the last text and the call are one piece")
    into_the_call = FIRST_TEXT[style] + 3 + 2
    llmock.add(Reply(text="I will look", tool_calls=(call,)), fault(kind, into_the_call))
    *events, last = client.stream("Weather?", [tool])
    assert isinstance(last, Error)
    assert isinstance(last.error, EXPECTED[kind])
    assert last.partial is not None
    assert last.partial.text == texts(events) == "I will look"
    assert ran == []
    assert not any(isinstance(event, ToolCall) for event in events)


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
def test_a_broken_call_goes_back_to_the_model(
    llmock: Any,
    client: Client,
    runner: Runner,
    weather: tuple[Tool, list[dict[str, Any]]],
    kind: str,
) -> None:
    """Arguments that are no JSON, or a tool that was never offered: an error result, then the answer."""
    tool, ran = weather
    llmock.call_tool("weather", ARGUMENTS).reply(ANSWER).break_tool_call(kind)
    result = runner(client, "Weather?", tool)
    assert result.text == ANSWER
    assert ran == []
    assert [record.is_error for record in result.tool_calls] == [True]
    llmock.assert_resilient(strict=True)


def test_a_broken_call_is_seen_in_the_stream(
    llmock: Any, client: Client, weather: tuple[Tool, list[dict[str, Any]]]
) -> None:
    """A call that never ran has its finish, with an error."""
    tool, _ = weather
    llmock.call_tool("weather", ARGUMENTS).reply(ANSWER).break_tool_call("unknown_tool")
    finished = [e for e in client.stream("Weather?", [tool]) if isinstance(e, ToolFinished)]
    assert [event.is_error for event in finished] == [True]


# -- all at once -----------------------------------------------------------------------------


def test_a_storm(llmock: Any, llmock_server: Any, style: str) -> None:
    """Eight threads, more than every fourth answer broken in some way: each run ends with a whole answer."""
    from llmock.chaos import ChaosSettings, StreamChaos

    llmock_server.state.chaos = ChaosSettings(error_rates={500: 0.05, 502: 0.05, 408: 0.05}).validated()
    rates = (("disconnect", 0.05), ("truncate", 0.05), ("malformed", 0.05))
    # Early enough that some of the answer follows: else llmock cannot tell that the client stopped reading.
    chaos = StreamChaos(fault_rates=rates, chunk_delay_ms=PACE, max_after_chunks=FIRST_TEXT[style] + 2)
    llmock_server.state.stream_chaos = chaos.validated()
    whole: list[RunResult] = []
    # With nine retries, one run in some hundred thousand is out of luck.
    client = Client(
        address(llmock, style), style=style, model="m", api_key="k", retries=9, on_error=after_a_moment
    )

    def work(thread: int) -> None:
        runners = (through_run, through_stream)
        whole.extend(runners[n % 2](client, f"question {n} of thread {thread}") for n in range(4))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert len(whole) == 32
    assert all(result.status == "done" and result.text for result in whole)
    llmock.assert_resilient(strict=True)
