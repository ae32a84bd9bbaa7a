"""Recordings: every event comes back, a cut file is read up to the cut, and a replay is a stream."""

from __future__ import annotations

import gc
import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus import (
    AttemptFailed,
    AttemptRecord,
    Checkpoint,
    Client,
    ConfigurationError,
    Custom,
    Debug,
    Done,
    Error,
    Event,
    Flow,
    Heartbeat,
    InternalServerError,
    Lifecycle,
    Message,
    Pending,
    PIIDetectedError,
    RateLimitError,
    Request,
    RunCancelledError,
    RunResult,
    StreamConsumedError,
    Task,
    Text,
    Thinking,
    ToolCall,
    ToolCallDelta,
    ToolCallRecord,
    ToolFinished,
    ToolnexusError,
    ToolOutput,
    Update,
    Usage,
    UsageReport,
    Value,
    errors,
    tool,
)
from toolnexus.compose import (
    FlowResult,
    MuxResult,
    Sink,
    event_from_dict,
    event_to_dict,
    final_answer,
    group_messages,
    mux,
    record,
    redact,
    replay,
    select,
    summarize_namespaces,
)
from toolnexus.compose.plain import error_to_dict
from toolnexus.compose.revive import error_from_dict
from toolnexus.events import CHANNELS, Origin
from toolnexus.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style="openai", model="m", **{"retries": 0, **options})


def facts(event: Event) -> tuple[Any, ...]:
    """What of an event takes no part in comparing."""
    origin = event.origin
    where = (origin.run_id, origin.namespace, origin.node, origin.step, origin.message_id, origin.attempt)
    return (type(event), where, event.seq, event.timestamp)


RESULT = RunResult(
    text="Hi",
    thinking="hm",
    messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "Hi"}],
    tool_calls=[
        ToolCallRecord("c", "t", {"a": 1}, "ok", True, {"k": 1}),
        ToolCallRecord("d", "t", None, "no"),
    ],
    turns=2,
    usage=Usage(1, 2, 3, 4, 5, 6),
    model="m",
    finish_reason="stop",
    raw_finish_reason="stop",
    status="pending",
    limit="max_turns",
    pending=[Request(id="p", prompt="?", data={"a": [1]}, response_schema={"type": "object"})],
    output={"a": 1},
    output_json={"a": 1},
    refusal="no",
    id="conv",
    attempts=[AttemptRecord(1, 1, "m", "x", "server", Usage(1, 0, 1)), AttemptRecord(1, 2, "m")],
    run_id="run-1",
    duration=1.5,
    time_to_first_token=0.5,
)

EVERY: list[Event] = [
    Text("Hel"),
    Text("\ud83d half, \u2028 and é 🐀 \n"),
    Thinking("hm"),
    ToolCallDelta(0, "c", "t", '{"a":'),
    ToolCallDelta(None, None, None, "1}"),
    Message({"role": "assistant", "content": None, "tool_calls": []}, False),
    ToolCall("c", "t", {"a": [1, None, 2.5, {"b": "é"}]}),
    ToolOutput("c", "t", "50 %"),
    ToolFinished("c", "t", "ok", True),
    UsageReport(Usage(1, 2, 3)),
    Pending(
        Request(id="p", kind="approval", prompt="?", url="http://x", data=[1], expires_at=5.0, call_id="c")
    ),
    Custom({"a": 1}),
    Custom("text"),
    Custom(None),
    Update({"model": {"messages": []}}),
    Value({"messages": []}),
    Task("finish", "t1", {"a": 1}),
    Checkpoint("k", {"n": 1}),
    Lifecycle("failed", "agent", "c", "boom"),
    Debug({"type": "x"}),
    Heartbeat(),
    AttemptFailed(
        2, RateLimitError("slow", status=429, retry_after=1.5, request_id="r", attempt=2), True, "Hel"
    ),
    Done(RESULT),
    Error(InternalServerError("boom", status=500, code="c", retryable=False), RESULT),
]

ORIGIN = Origin("run-1", ("a", "b"), "model", 3, "msg-1", 2)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.type)
def test_every_event_comes_back(event: Event, tmp_path: Path) -> None:
    """Written and read again, an event is equal, with its origin, number and time."""
    if isinstance(event, Error):
        event = Error(event.error, event.partial, origin=ORIGIN, seq=7, timestamp=12.25)
    else:
        event = attrs.evolve(event, origin=ORIGIN, seq=7, timestamp=12.25)
    path = tmp_path / "events.jsonl"
    assert list(record([event], path)) == [event]
    back = next(replay(path))
    assert facts(back) == facts(event)
    if isinstance(event, (Error, AttemptFailed)):
        assert isinstance(back, (Error, AttemptFailed))
        assert type(back.error) is type(event.error)
        old, new = vars(event.error), vars(back.error)
        assert {**old, "partial": None} == {**new, "partial": None}
        if isinstance(back, Error):
            assert back.partial == RESULT
    else:
        assert back == event
        assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


def test_there_is_no_other_event() -> None:
    """The list above has every event that there is."""
    assert {type(event) for event in EVERY} == {cls for group in CHANNELS.values() for cls in group}


def test_a_result_comes_back_whole(tmp_path: Path) -> None:
    """Also what takes no part in comparing results."""
    list(record([Done(RESULT)], tmp_path / "r"))
    result = replay(tmp_path / "r").result()
    assert result == RESULT
    assert (result.run_id, result.duration, result.time_to_first_token) == ("run-1", 1.5, 0.5)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_comes_back_as_its_class(name: str) -> None:
    """By its name, and only as what derives from our own root."""
    error = getattr(errors, name)("boom")
    back = error_from_dict(error_to_dict(error))
    assert type(back) is type(error)
    assert str(back) == "boom"
    assert back.kind == error.kind


@pytest.mark.parametrize("name", ["KeyError", "Client", "__class__", "os", "", "NewerError"])
def test_an_unknown_error_is_one_of_ours(name: str) -> None:
    """A name in a file never makes anything but one of our errors."""
    back = error_from_dict({"class": name, "message": "x", "__class__": "y", "describe": "z"})
    assert type(back) is ToolnexusError
    assert back.describe() == "ToolnexusError: x"


def test_what_an_error_says_beside_its_message_is_kept_and_the_body_is_not(tmp_path: Path) -> None:
    """A provider's raw answer is not written down."""
    error = RateLimitError("slow", status=429, body={"secret": "prompt"})
    list(record([Error(error)], tmp_path / "1"))
    assert "secret" not in (tmp_path / "1").read_text()
    list(record([Error(PIIDetectedError("x", pii_type="email"))], tmp_path / "2"))
    with pytest.raises(PIIDetectedError) as caught:
        replay(tmp_path / "2").result()
    assert caught.value.pii_type == "email"


def test_a_real_run_recorded_and_replayed(server: ModelServer, tmp_path: Path) -> None:
    """All channels of a run with a tool: the replay is the same stream, and all views give the same."""

    @tool
    def add(a: int) -> int:
        "Add one."
        return a + 1

    server.call("add", {"a": 2}, text="Let me see. ", pieces=3)
    server.say(["It ", "is ", "3."], thinking=["ea", "sy"])
    stream = record(make(server).stream("hi", [add], channels=[*CHANNELS]), tmp_path / "run.jsonl")
    events = list(stream)
    again = replay(tmp_path / "run.jsonl")
    assert again.run_id == stream.run_id
    back = list(again)
    assert back == events
    assert list(map(facts, back)) == list(map(facts, events))
    assert again.text == stream.text == "Let me see. It is 3."
    assert again.result() == stream.result()
    for view in (lambda e: list(select(e, "tools")), lambda e: list(group_messages(e)), final_answer):
        assert view(events) == view(back)
    assert summarize_namespaces(events) == summarize_namespaces(back)
    assert "".join(replay(tmp_path / "run.jsonl").text_deltas()) == "Let me see. It is 3."


def test_a_replay_shows_itself(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs work on it: server-sent events, a display, a redaction, a recording of the replay."""
    server.say(["I am ada@", "example.com"])
    path = tmp_path / "run"
    list(record(make(server).stream("hi"), path))
    assert b"event: done" in b"".join(replay(path).sse())
    replay(path).display()
    assert "I am" in capsys.readouterr().out
    assert redact(replay(path)).result().text == "I am [REDACTED_EMAIL]"
    assert list(record(replay(path), tmp_path / "copy")) == list(replay(tmp_path / "copy"))


def test_a_recording_of_a_redacted_stream_has_no_values(server: ModelServer, tmp_path: Path) -> None:
    """What is redacted before it is recorded is in no file."""
    server.say(["I am ada@", "example.com"])
    list(record(redact(make(server).stream("hi ada@example.com")), tmp_path / "r"))
    assert "example.com" not in (tmp_path / "r").read_text()


def test_a_failed_run_is_replayed_as_one(server: ModelServer, tmp_path: Path) -> None:
    """result() of a replay raises what the run raised, with what it had reached."""
    server.error_in_stream(["Hel", "lo"], message="boom")
    stream = record(make(server).stream("hi"), tmp_path / "r")
    with pytest.raises(ToolnexusError) as first:
        stream.result()
    with pytest.raises(type(first.value)) as second:
        replay(tmp_path / "r").result()
    assert type(second.value) is type(first.value)
    assert str(second.value) == str(first.value)
    assert second.value.partial is not None
    assert second.value.partial.text == "Hello"


def test_writing_an_error_down_is_not_taking_notice_of_it(
    server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that only the file has seen is still logged."""
    server.fail(400)
    with caplog.at_level(logging.ERROR, "toolnexus"):
        for _ in record(make(server).stream("hi"), tmp_path / "r"):
            pass
        del _
        gc.collect()
    assert "nobody looked at" in caplog.text
    assert [e.type for e in replay(tmp_path / "r")] == ["error"]


def test_events_are_in_the_file_while_they_pass(server: ModelServer, tmp_path: Path) -> None:
    """Each line is there as soon as its event was handed out."""
    server.say(["one ", "two "], hold=True)
    path = tmp_path / "r"
    with record(make(server).stream("hi"), path) as stream:
        assert len(path.read_bytes().splitlines()) == 1
        next(stream)
        assert len(path.read_bytes().splitlines()) == 2
    server.wait_for_disconnect()


def test_a_crash_leaves_what_can_be_read(tmp_path: Path) -> None:
    """A process that is killed in the middle of it leaves all events up to there."""
    path = tmp_path / "r"
    program = f"""
        import os, signal
        from toolnexus import Text
        from toolnexus.compose import record
        for n, event in enumerate(record((Text(f"{{n}} ") for n in range(100)), {str(path)!r})):
            if n == 4:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, timeout=60)
    stream = replay(path)
    events = list(stream)
    assert events[:-1] == [Text(f"{n} ") for n in range(5)]
    end = events[-1]
    assert isinstance(end, Error)
    assert "ends before" in str(end.error)
    assert end.partial is not None
    assert end.partial.text == "0 1 2 3 4 "


def test_a_file_cut_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    """At every length there is a prefix of the events and one end, or the header is missing."""
    path = tmp_path / "r"
    events = [Text("é"), Custom({"a": 1}), Done(RunResult(text="é"))]
    list(record(events, path))
    whole = path.read_bytes()
    ends = [n for n, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        lines = sum(size >= end for end in ends)
        if not lines:
            with pytest.raises(ConfigurationError):
                replay(path)
            continue
        back = list(replay(path))
        assert back[: lines - 1] == events[: lines - 1]
        assert [e.type for e in back[lines - 1 :]] == ([] if lines == 4 else ["error"])


def test_newer_and_damaged_lines_are_passed_over_with_a_warning(tmp_path: Path) -> None:
    """What is not known, or is damaged, is told once and left out; the rest is there."""
    path = tmp_path / "r"
    list(record([Text("a"), Text("b"), Done(RunResult())], path))
    header, one, two, end = path.read_text().splitlines()
    newer = json.dumps({**json.loads(header), "version": 99})
    hologram = json.dumps({"at": 0, "event": {"type": "hologram", "x": 1}})
    more = json.dumps({"at": 0, "event": {**json.loads(two)["event"], "colour": "red"}})
    short = json.dumps({"at": 0, "event": {"type": "text"}})
    path.write_text("\n".join([newer, one, hologram, hologram, "{damaged", "[]", short, more, end]) + "\n")
    with pytest.warns(UserWarning, match="newer toolnexus"):
        stream = replay(path)
    with pytest.warns(UserWarning, match="passed over") as warned:
        events = list(stream)
    assert [e.type for e in events] == ["text", "text", "done"]
    assert len([w for w in warned if "hologram" in str(w.message)]) == 1
    assert len([w for w in warned if "damaged" in str(w.message)]) == 2


@given(
    st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=5,
    )
)
def test_any_plain_payload_comes_back(tmp_path_factory: pytest.TempPathFactory, payloads: list[Any]) -> None:
    """Whatever JSON a payload is, it comes back equal."""
    path = tmp_path_factory.mktemp("recordings") / "r"
    events: list[Event] = [Custom(payload) for payload in payloads]
    list(record(events, path))
    assert list(replay(path))[:-1] == events


def test_the_file_is_the_owners_only(tmp_path: Path) -> None:
    """Prompts and answers are nobody else's to read."""
    list(record([], tmp_path / "r"))
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o600


def test_a_new_recording_replaces_an_old_one(tmp_path: Path) -> None:
    """The file holds one run."""
    list(record([Text("a" * 1000)], tmp_path / "r"))
    list(record([Text("b")], tmp_path / "r"))
    assert next(replay(tmp_path / "r")) == Text("b")


def test_what_can_be_known_before_is_told_at_once(tmp_path: Path) -> None:
    """No place to write, nothing to read, no recording, a wrong speed."""
    (tmp_path / "other").write_text('{"a": 1}\n')
    for wrong in (
        lambda: record([], tmp_path / "no" / "where"),
        lambda: replay(tmp_path / "nothing"),
        lambda: replay(tmp_path / "other"),
        lambda: replay(tmp_path),
        lambda: replay(tmp_path / "other", speed=-1),
        lambda: replay(tmp_path / "other", speed="fast"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            wrong()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_does_not_end_the_run(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    """Where the file cannot be written on, a warning says so and the stream goes on."""
    with pytest.raises(ConfigurationError, match="cannot write"):
        record([], "/dev/full")
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    server.say(["one ", "two "])
    stream = record(make(server).stream("hi"), f"/dev/fd/{writer}")
    os.close(writer)
    os.close(reader)
    with caplog.at_level(logging.WARNING, "toolnexus"):
        assert stream.result().text == "one two "
    assert len([r for r in caplog.records if "the recording" in r.message]) == 1


def test_a_payload_that_is_no_json_becomes_text(tmp_path: Path) -> None:
    """An object in a payload is written as its text, and the stream has the object itself."""
    payload = {"path": Path("a/b")}
    [event] = record([Custom(payload)], tmp_path / "r")
    assert isinstance(event, Custom)
    assert event.payload is payload
    assert next(replay(tmp_path / "r")) == Custom({"path": str(Path("a/b"))})


# -- a replay is a stream --------------------------------------------------------------------


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """A recording of three events within 0.4 s."""

    def source() -> Iterator[Event]:
        yield Text("a")
        time.sleep(0.2)
        yield Text("b")
        time.sleep(0.2)
        yield Done(RunResult(text="ab"))

    list(record(source(), tmp_path / "timed"))
    return tmp_path / "timed"


def test_a_replay_in_its_own_time(timed: Path) -> None:
    """speed=1 takes as long as it took, 0 no time, 10 a tenth."""

    def seconds(speed: float) -> float:
        began = time.monotonic()
        assert replay(timed, speed=speed).result().text == "ab"
        return time.monotonic() - began

    assert seconds(1.0) >= 0.39
    assert min(seconds(0) for _ in range(3)) < 0.3
    assert min(seconds(10) for _ in range(3)) < 0.3


def test_next_within_of_a_replay(timed: Path) -> None:
    """None while nothing is due."""
    stream = replay(timed, speed=1)
    assert stream.next_within(1) == Text("a")
    assert stream.next_within(0.01) is None
    assert stream.next_within(5) == Text("b")
    assert isinstance(stream.next_within(None), Done)
    with pytest.raises(StopIteration):
        stream.next_within(1)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_replay_can_be_cancelled(timed: Path, how: str) -> None:
    """While it waits, from another thread; it ends with one Error, at once."""
    stream = replay(timed, speed=0.001)
    assert next(stream) == Text("a")
    threading.Timer(0.1, getattr(stream, how)).start()
    began = time.monotonic()
    [end] = list(stream)
    assert time.monotonic() - began < 20
    assert isinstance(end, Error)
    assert isinstance(end.error, RunCancelledError)
    assert end.partial is not None
    assert end.partial.text == "a"


def test_a_replay_takes_no_answers(timed: Path) -> None:
    """There is nobody to answer."""
    with replay(timed) as stream, pytest.raises(StreamConsumedError):
        stream.answer(Request())


def test_no_file_stays_open(timed: Path, server: ModelServer, tmp_path: Path) -> None:
    """Read to the end, closed, or dropped: the file is closed, without a warning."""

    def open_files() -> list[str]:
        links = [Path("/proc/self/fd") / n for n in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if link.is_symlink()]

    list(replay(timed))
    replay(timed).close()
    replay(timed)
    server.say(["one ", "two "], hold=True)
    stream = record(make(server).stream("hi"), tmp_path / "r")
    next(stream)
    del stream
    gc.collect()
    server.wait_for_disconnect()
    if Path("/proc/self/fd").exists():
        assert not [name for name in open_files() if name.startswith(str(tmp_path))]


def test_results_of_flows_and_of_a_mux_come_back_whole(tmp_path: Path) -> None:
    """A replay has the state of a flow, and what each producer came to."""
    flow = Flow("f")
    flow.node(name="n")(lambda state: {"x": state["x"] + 1})
    flow_result = record(flow.stream({"x": 1}), tmp_path / "flow").result()
    again = replay(tmp_path / "flow").result()
    assert isinstance(again, FlowResult)
    assert again == flow_result
    assert (again.state, again.steps) == ({"x": 2}, 1)

    def fails(sink: Sink) -> None:
        raise ValueError("boom")

    mixed = mux([("flow", flow.stream({"x": 5})), ("list", [1, 2]), ("bad", fails)])
    record(mixed, tmp_path / "mux").result()
    merged = replay(tmp_path / "mux").result()
    assert isinstance(merged, MuxResult)
    producers = merged.producers
    assert {name: one.status for name, one in producers.items()} == {
        "flow": "completed",
        "list": "completed",
        "bad": "failed",
    }
    assert producers["flow"].result.state == {"x": 6}
    assert (producers["list"].delivered, producers["bad"].result) == (2, None)
    assert "boom" in str(producers["bad"].error)


@pytest.mark.parametrize("event", [[], 5, None, "text", {"type": "done", "result": 5}, {"type": ["text"]}])
def test_a_line_whose_event_is_none_is_passed_over(tmp_path: Path, event: Any) -> None:
    """Whatever stands in a line, the events around it come, and a warning says which line it was."""
    path = tmp_path / "r"
    list(record([Text("a"), Text("b"), Done(RunResult())], path))
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({"at": 0, "event": event})
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="line 3"):
        assert list(replay(path)) == [Text("a"), Done(RunResult())]
