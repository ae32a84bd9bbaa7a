"""Redacted streams: what is covered, how they end, and that they are streams like any other."""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from toolnexus import (
    Answer,
    APIStatusError,
    AttemptFailed,
    Checkpoint,
    Client,
    ConfigurationError,
    Context,
    Custom,
    Debug,
    Done,
    Error,
    Event,
    Flow,
    Heartbeat,
    HookError,
    InternalServerError,
    Lifecycle,
    Message,
    Pending,
    PIIDetectedError,
    Request,
    RunCancelledError,
    RunResult,
    Stream,
    StreamConsumedError,
    Task,
    Text,
    Thinking,
    ToolCall,
    ToolCallDelta,
    ToolCallRecord,
    ToolFinished,
    ToolOutput,
    Update,
    Usage,
    UsageReport,
    Value,
    tool,
)
from toolnexus.compose import PII, FlowContext, event_to_dict, mux, redact, redact_text
from toolnexus.compose.derived import DerivedStream
from toolnexus.events import CHANNELS, Origin
from toolnexus.testing import ModelServer, reply

MAIL = "ada@example.com"
TAG = "[REDACTED_EMAIL]"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(style="openai") as server:
        yield server


def make(server: ModelServer, **options: Any) -> Client:
    return Client(base_url=server.base_url, style="openai", model="m", **options)


def deltas(events: list[Event], kind: type[Event] = Text) -> str:
    return "".join(getattr(event, "delta", "") for event in events if type(event) is kind)


def at(message: str = "m", *, run: str = "r", **where: Any) -> Origin:
    return Origin(run_id=run, message_id=message, **where)


# -- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "masked"),
    [
        ("email", MAIL, "ada@****.com"),
        ("card", "4532-0151-1283-0366", "****-****-****-0366"),
        ("card", "4532 0151 1283 0366", "**** **** **** 0366"),
        ("credit_card", "4532015112830366", "************0366"),
        ("ip", "192.168.0.17", "*.*.*.17"),
        ("ip", "2001:db8::17", "****:17"),
        ("mac", "00:1A:2B:3C:4D:5E", "**:**:**:**:**:5E"),
        ("url", "https://example.com/x", "[MASKED_URL]"),
        ("iban", "GB82WEST12345698765432", "****5432"),
        ("phone", "+49 30 901820", "****1820"),
    ],
)
def test_f113_what_stands_in_the_place_of_a_value(kind: str, value: str, masked: str) -> None:
    """The four strategies give what the reference gives."""
    name = PII(kind).kind
    assert redact_text(f"<{value}>", kind) == f"<[REDACTED_{name.upper()}]>"
    assert redact_text(f"<{value}>", kind, strategy="mask") == f"<{masked}>"
    hashed = redact_text(value, kind, strategy="hash")
    assert hashed == redact_text(value, kind, strategy="hash")
    assert hashed.startswith(f"<{name}_hash:")
    assert hashed.endswith(">")
    assert len(hashed) == len(f"<{name}_hash:>") + 8
    with pytest.raises(PIIDetectedError, match=name) as caught:
        redact_text(value, kind, strategy="block")
    assert caught.value.pii_type == name
    assert value not in str(caught.value)


def test_a_hash_with_a_key_is_another_one() -> None:
    """With a key, nobody can check a guess."""
    plain = redact_text(MAIL, "email", strategy="hash")
    assert redact_text(MAIL, "email", strategy="hash", key="one") not in (
        plain,
        redact_text(MAIL, "email", strategy="hash", key="two"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",
        "0000 0000 0000 0000",
        "1700000000003",
        "999.999.999.999",
        "1.2.3.4.5",
        "example.com in prose",
        "and/or",
        "std::vector<int> x; a::b",
        "at 12:30:45",
        "DE89 3704 0044 0532 0130 01",
        "name@host",
        "+49 12",
    ],
)
def test_f114_what_only_looks_like_a_value_is_unchanged(text: str) -> None:
    """Checksums, octets and shapes are checked."""
    assert redact_text(text, "email", "card", "ip", "mac", "url", "iban", "phone") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000 4111 1111 1111 1111", "0000 [REDACTED_CREDIT_CARD]"),
        ("4111 1111 1111 1111 12/27", "[REDACTED_CREDIT_CARD] 12/27"),
        ("fe80::1: up", "[REDACTED_IP]: up"),
        ("...10.0.0.1.", "...[REDACTED_IP]."),
        ("(see https://x.y/a_(b)).", "(see [REDACTED_URL])."),
        (f"_{MAIL}_ or **{MAIL}**", f"{TAG}_ or **{TAG}**"),
        (f"請寫信到{MAIL}謝謝", f"請寫信到{TAG}謝謝"),
        ("DE89 3704 0044 0532 0130 00 IS MINE", "[REDACTED_IBAN] IS MINE"),
    ],
)
def test_a_value_is_told_from_what_is_around_it(text: str, expected: str) -> None:
    """Punctuation, other numbers and other scripts stay."""
    assert redact_text(text, "email", "card", "ip", "mac", "url", "iban") == expected


def test_f115_values_that_overlap() -> None:
    """The earliest value counts, the longer first; what lies in it is gone with it."""
    assert redact_text("http://10.0.0.1/x 10.0.0.1", "url", "ip") == "[REDACTED_URL] [REDACTED_IP]"
    assert redact_text("http://10.0.0.1/x", "ip", "url") == "[REDACTED_URL]"
    ab, bc = PII("ab", pattern="ab"), PII("bc", pattern="bc")
    assert redact_text("xabcx", ab, bc) == "x[REDACTED_AB][REDACTED_BC]x", "and none leaks where they cross"


def test_the_default_rules() -> None:
    """Without a rule the five of the reference hold."""
    text = f"{MAIL} 4111111111111111 10.0.0.1 00:1A:2B:3C:4D:5E www.example.com"
    assert redact_text(text) == (
        f"{TAG} [REDACTED_CREDIT_CARD] [REDACTED_IP] [REDACTED_MAC_ADDRESS] [REDACTED_URL]"
    )


def test_rules_of_ones_own() -> None:
    """A pattern, a function that gives values or spans, a replacement, a strategy for one rule only."""
    ticket = PII("ticket", pattern=r"T-\d+", strategy="hash")
    assert redact_text(f"T-12 {MAIL}", ticket, "email").endswith(f"> {TAG}")
    names = PII("name", function=lambda text: ["Ada"], longest=3, replacement="(name)")
    assert redact_text("Ada and Ada", names) == "(name) and (name)"
    assert redact_text("Ada", names, strategy="mask") == "****"
    assert redact_text(MAIL, "email", replacement="") == ""
    assert redact_text("030 901820", PII("phone", region="DE")) == "[REDACTED_PHONE]"
    assert redact_text("030 901820", "phone") == "030 901820"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: redact([], "shoe"),
        lambda: redact([], 5),  # type: ignore[arg-type]
        lambda: redact([], strategy="hide"),
        lambda: redact([], strategy=None),  # type: ignore[arg-type]
        lambda: redact([], key=b"x"),  # type: ignore[arg-type]
        lambda: PII("email", strategy="hide"),
        lambda: PII("shoe"),
        lambda: PII("two words", pattern="x"),
        lambda: PII("x", pattern="("),
        lambda: PII("x", pattern=b"x"),  # type: ignore[arg-type]
        lambda: PII("x", pattern="x", function=len),  # type: ignore[arg-type]
        lambda: PII("x", function=5),  # type: ignore[arg-type]
        lambda: PII("x", function=str.split, longest=0),
        lambda: PII("email", longest=3),
        lambda: PII("email", region="DE"),
    ],
)
def test_f119_a_wrong_rule_is_told_at_once(wrong: Any) -> None:
    """A mistake in a rule raises from the call itself."""
    with pytest.raises(ConfigurationError) as caught:
        wrong()
    assert isinstance(caught.value, ValueError)


# -- what is covered -------------------------------------------------------------------------


@attrs.frozen
class Attrs:
    to: str
    n: int = 1


@dataclasses.dataclass
class Data:
    to: str


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (MAIL, TAG),
        ({"a": [MAIL, (MAIL, 1)]}, {"a": [TAG, (TAG, 1)]}),
        ({MAIL: 1, "bob@example.com": 2}, {TAG: 1, f"{TAG} (2)": 2}),
        ({MAIL}, {TAG}),
        (4111111111111111, "[REDACTED_CREDIT_CARD]"),
        (4111, 4111),
        (True, True),
        (None, None),
        (Attrs(MAIL), Attrs(TAG)),
        (Data(MAIL), Data(TAG)),
        (json.dumps({"to": MAIL}), json.dumps({"to": TAG})),
        ('{"card": 4111111111111111}', '{"card": "[REDACTED_CREDIT_CARD]"}'),
        ('{"to": "x\\nada\\u0040example.com"}', '{"to": "x\\n[REDACTED_EMAIL]"}'),
        ("{ada@example.com", "{" + TAG),
        (
            f"data:image/png;base64,{'4111111111111111' * 3}",
            f"data:image/png;base64,{'4111111111111111' * 3}",
        ),
        (f"data:text/plain,{MAIL}", f"data:text/plain,{TAG}"),
        (b"ada@example.com", TAG.encode()),
        ("x" * 200 + f" {MAIL}", "x" * 200 + f" {TAG}"),
    ],
)
def test_f117_payloads_of_any_shape(payload: Any, expected: Any) -> None:
    """Texts and large numbers in values of any shape are redacted, and JSON stays JSON."""
    [event] = redact([Custom(payload)], "email", "card")
    assert isinstance(event, Custom)
    assert event.payload == expected
    assert type(event.payload) is type(expected)


def test_what_needs_no_change_is_passed_on_as_it_is() -> None:
    """An event without a protected value is the very same object."""
    payload = {"a": [1, {"b": "nothing"}], "c": Attrs("x")}
    events: list[Event] = [
        Custom(payload),
        Heartbeat(),
        UsageReport(Usage(1, 2, 3)),
        ToolCall("c", "t", {"a": 1}),
    ]
    for before, after in zip(events, redact(list(events)), strict=True):
        assert before is after


def test_f117_every_event_is_covered() -> None:
    """There is no event in which a protected value gets through."""
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": json.dumps({"to": MAIL})}}
    message = {"role": "assistant", "content": [{"type": "text", "text": MAIL}], "tool_calls": [call]}
    error = InternalServerError(f"no {MAIL}", body={"m": MAIL}, param=MAIL, partial=RunResult(text=MAIL))
    error.__cause__ = ValueError(MAIL)
    request = Request(prompt=MAIL, data={"args": {"to": MAIL}}, url=None, call_id="c")
    result = RunResult(
        text=MAIL,
        thinking=MAIL,
        messages=[
            {"role": "user", "content": MAIL},
            message,
            {"role": "tool", "tool_call_id": "c", "content": MAIL},
        ],
        tool_calls=[ToolCallRecord("c", "t", {"to": MAIL}, MAIL, metadata={"m": MAIL})],
        pending=[request],
        output={"to": MAIL},
        output_json={"to": MAIL},
        refusal=MAIL,
    )
    events: list[Event] = [
        Text(MAIL),
        Thinking(MAIL),
        ToolCallDelta(0, "c", "t", json.dumps({"to": MAIL})),
        Message(message),
        ToolCall("c", "t", {"to": MAIL}),
        ToolOutput("c", "t", MAIL),
        ToolFinished("c", "t", MAIL),
        UsageReport(Usage()),
        Pending(request),
        Custom(MAIL),
        Update({"model": {"messages": [message]}}),
        Value({"messages": [message]}),
        Task("error", "t", MAIL),
        Checkpoint("k", {"messages": [message]}),
        Lifecycle("failed", "agent", None, MAIL),
        Debug({"m": MAIL}),
        Heartbeat(),
        AttemptFailed(1, error, True, MAIL),
        Done(result),
    ]
    assert {type(event) for event in events} | {Error} == {
        cls for group in CHANNELS.values() for cls in group
    }
    for last in (Done(result), Error(error)):
        redacted = list(redact([*events[:-1], last], "email"))
        assert len(redacted) == len(events)
        shown = repr(redacted) + "".join(map(_more, redacted))
        assert MAIL not in shown
        assert "example.com" not in shown
    assert isinstance(redacted[8], Pending)
    assert redacted[8].request.id == request.id, "it can still be answered"
    calls = [e.message["tool_calls"][0] for e in redacted if isinstance(e, Message)]
    assert calls[0]["id"] == "c"


def _more(event: Event) -> str:
    """Return what of an event is in no repr."""
    shown = ""
    if isinstance(event, Error):
        shown += repr(event.partial)
    if isinstance(event, (Error, AttemptFailed)):
        shown += repr([vars(event.error), event.error.args, event.error.__cause__, event.error.partial])
    if isinstance(event, Done):
        shown += repr([event.result.output_json, [r.metadata for r in event.result.tool_calls]])
    return shown


def test_events_are_not_changed_themselves() -> None:
    """The run goes on with what it had: only what is handed out is redacted."""
    message = {"role": "assistant", "content": MAIL}
    args = {"to": [MAIL]}
    list(redact([Message(message), ToolCall("c", "t", args)], "email"))
    assert message == {"role": "assistant", "content": MAIL}
    assert args == {"to": [MAIL]}


# -- the faults of the reference (A7.6), and pieces ------------------------------------------


def test_f116_buffers_are_independent() -> None:
    """Pieces of other runs, namespaces, messages and kinds in between change nothing."""
    others = [
        Text("x", origin=at(run="other")),
        Text("y", origin=at(namespace=("child",))),
        Text("z", origin=at("other")),
        Thinking("t", origin=at()),
        ToolOutput("c", "t", "o", origin=at()),
        ToolCallDelta(0, "c", "t", "{", origin=at()),
        Custom(1, origin=at()),
    ]
    for other in others:
        events = list(redact([Text("ada@exam", origin=at()), other, Text("ple.com", origin=at())], "email"))
        mine = [e.delta for e in events if type(e) is Text and e.origin == at() and e.origin.run_id == "r"]
        assert TAG in "".join(mine)
        assert "ada" not in repr(events)


def test_two_runs_at_once() -> None:
    """Each run has its own text."""
    events: list[Event] = []
    for one, two in zip(f"I am {MAIL}!", "I am bob@example.org", strict=False):
        events += [Text(one, origin=at(run="1")), Text(two, origin=at(run="2"))]
    out = list(redact(events, "email"))
    for run in "12":
        assert deltas([e for e in out if e.run_id == run]).startswith("I am ")
    assert "example" not in repr(out)


def test_text_and_whole_message_are_not_counted_twice() -> None:
    """A7.6: a whole message does not go through the text's buffer; held text comes before it."""
    message = {"role": "assistant", "content": f"I am {MAIL}"}
    events = list(
        redact(
            [Text("I am ada@", origin=at()), Text("example.com", origin=at()), Message(message, origin=at())]
        )
    )
    assert [e.type for e in events] == ["text", "text", "message"]
    assert deltas(events) == f"I am {TAG}"
    assert events[-1] == Message({"role": "assistant", "content": f"I am {TAG}"})


@pytest.mark.parametrize(
    "end",
    [
        Message({"role": "assistant", "content": ""}, origin=at()),
        ToolCall("c", "t", {}, origin=at()),
        Pending(Request(), origin=at()),
        UsageReport(Usage(), origin=at()),
        Lifecycle("completed", origin=at()),
        Done(RunResult()),
        Error(InternalServerError("x")),
    ],
    ids=lambda event: event.type,
)
def test_held_text_comes_before_what_ends_its_message(end: Event) -> None:
    """Whatever ends a message, the last word comes before it, with its origin."""
    events = list(redact([Text("I am ada", origin=at(), seq=4, timestamp=5.0), end], "email"))
    assert [e.type for e in events] == ["text", "text", end.type]
    assert deltas(events) == "I am ada"
    assert events[1].origin == at()
    assert (events[1].seq, events[1].timestamp) == (4, 5.0)


def test_held_text_of_a_failed_try_is_dropped() -> None:
    """The void text of a failed try is what went out of it, so that it can be taken back."""
    first, second = at("1"), at("2")
    events = [
        Text("Ask ada@exam", origin=first),
        Text("ple.com or bob", origin=first),
        AttemptFailed(1, InternalServerError("x"), True, f"Ask {MAIL} or bob", origin=first),
        Text("ple.com is all", origin=second),
    ]
    out = list(redact(events, "email"))
    failed = next(e for e in out if isinstance(e, AttemptFailed))
    assert failed.text == f"Ask {TAG} or " == deltas([e for e in out if e.message_id == "1"])
    assert deltas([e for e in out if e.message_id == "2"]) == "ple.com is all"
    stream = redact(events, "email")
    list(stream)
    assert stream.text == "ple.com is all"


def test_reasoning_comes_before_the_answer() -> None:
    """The last word of the reasoning is not held back until the answer is over."""
    events = list(redact([Thinking("I think so.", origin=at()), Text("Yes ", origin=at())], "email"))
    assert events == [Thinking("I think "), Thinking("so."), Text("Yes ")]


@pytest.mark.parametrize("pieces", [["ada@", "example.com"], ["ada", "@example.com"], list(MAIL)])
def test_reasoning_that_goes_on_after_the_answer_began(pieces: list[str]) -> None:
    """Even then no address gets out."""
    events: list[Event] = []
    for piece in pieces:
        events += [Thinking(piece, origin=at()), Text(".", origin=at())]
    out = deltas(list(redact(events, "email")), Thinking)
    assert TAG in out
    assert MAIL not in out
    assert "example" not in out


def test_fragments_of_calls_are_buffered_per_call() -> None:
    """Interleaved fragments of two calls, an address split in each; ids and names come at once."""
    events = list(
        redact(
            [
                ToolCallDelta(0, "a", "mail", '{"to":"ada@ex', origin=at()),
                ToolCallDelta(1, "b", "mail", '{"to":"bob@ex', origin=at()),
                ToolCallDelta(0, None, None, 'ample.com"}', origin=at()),
                ToolCallDelta(1, None, None, 'ample.org"', origin=at()),
                ToolCallDelta(1, None, None, "}", origin=at()),
                ToolCall("a", "mail", {"to": MAIL}, origin=at()),
            ],
            "email",
        )
    )
    calls = [e for e in events if isinstance(e, ToolCallDelta)]
    for index in (0, 1):
        joined = "".join(e.arguments for e in calls if e.index == index)
        assert json.loads(joined) == {"to": TAG}
    assert [(e.id, e.name) for e in calls if e.id] == [("a", "mail"), ("b", "mail")]
    assert events[-1] == ToolCall("a", "mail", {"to": TAG})


def test_progress_of_tools_is_buffered_per_call() -> None:
    """Progress of two calls at once; the held rest comes before the result of its own call."""
    events = [
        ToolOutput("a", "t", "ada@ex", origin=at()),
        ToolOutput("b", "t", "bob@ex", origin=at()),
        ToolOutput("a", "t", "ample.com", origin=at()),
        ToolFinished("a", "t", "ok", origin=at()),
        ToolOutput("b", "t", "ample.org ok", origin=at()),
        ToolFinished("b", "t", "ok", origin=at()),
    ]
    out = list(redact(events, "email"))
    assert out == [
        ToolOutput("a", "t", TAG),
        ToolFinished("a", "t", "ok"),
        ToolOutput("b", "t", f"{TAG} "),
        ToolOutput("b", "t", "ok"),
        ToolFinished("b", "t", "ok"),
    ]


def test_no_empty_pieces() -> None:
    """A7.2: a piece that is held back as a whole gives no event."""
    assert all(e.delta for e in redact([Text(c) for c in f"{MAIL} and so on"]) if isinstance(e, Text))


# -- block -----------------------------------------------------------------------------------


def test_f113_block_ends_the_stream_and_the_run(server: ModelServer) -> None:
    """Nothing held gets out, the connection is closed, and the one terminal item is an Error of its class."""
    server.say(["All well. ", "ada@exam", "ple.com", " is", " mine"], hold=True)
    stream = redact(make(server).stream("hi"), "email", strategy="block")
    events = list(stream)
    assert deltas(events) == "All well. "
    end = events[-1]
    assert isinstance(end, Error)
    assert isinstance(end.error, PIIDetectedError)
    assert end.error.pii_type == "email"
    assert end.partial is not None
    assert end.partial.text == "All well. "
    assert MAIL not in repr(events)
    server.wait_for_disconnect()
    assert list(stream) == []
    with pytest.raises(PIIDetectedError):
        stream.result()


@pytest.mark.parametrize(
    "event",
    [
        ToolCall("c", "t", {"to": MAIL}),
        ToolOutput("c", "t", f"{MAIL} "),
        ToolFinished("c", "t", MAIL),
        Custom({"to": MAIL}),
        Update({"model": MAIL}),
        Pending(Request(prompt=MAIL)),
        Message({"role": "assistant", "content": MAIL}),
        Done(RunResult(text=MAIL)),
        Text(MAIL),
    ],
    ids=lambda event: event.type,
)
def test_block_holds_for_every_event(event: Event) -> None:
    """The event with the value is not handed out, nor anything behind it."""
    closed = []

    def source() -> Iterator[Event]:
        try:
            yield event
            yield Text("more")
        finally:
            closed.append(True)

    [end] = [e for e in redact(source(), PII("email", strategy="block")) if e != Text("more")]
    assert isinstance(end, Error)
    assert isinstance(end.error, PIIDetectedError)
    assert closed == [True]


def test_block_does_not_stop_what_the_caller_put_in() -> None:
    """The caller's own address in the transcript is redacted; it would else stop each such run."""
    messages = [{"role": "user", "content": f"I am {MAIL}"}, {"role": "assistant", "content": "Hi"}]
    events = list(
        redact(
            [Value({"messages": messages}), Done(RunResult(text="Hi", messages=messages))], strategy="block"
        )
    )
    assert [e.type for e in events] == ["value", "done"]
    assert MAIL not in repr(events)


def test_a_rule_that_raises_lets_nothing_out() -> None:
    """A function of the user's that fails ends the stream, with its name in the error."""

    def broken(text: str) -> list[str]:
        raise RuntimeError(text)

    events = list(redact([Text(MAIL), Text("x")], PII("odd", function=broken, longest=4)))
    assert [e.type for e in events] == ["error"]
    assert isinstance(events[0], Error)
    assert isinstance(events[0].error, HookError)
    assert "odd" in str(events[0].error)
    assert MAIL not in str(events[0].error)


def test_what_cannot_be_redacted_does_not_get_out() -> None:
    """A payload that contains itself ends the stream."""
    payload: list[Any] = [MAIL]
    payload.append(payload)
    [end] = redact([Custom(payload), Text("x")], "email")
    assert isinstance(end, Error)
    assert MAIL not in str(end.error)


# -- a stream like any other -----------------------------------------------------------------


def test_it_has_all_that_a_stream_has() -> None:
    """Every public method of a stream works on a derived one: none reaches for a pump that is not there."""
    stream = redact([Text("x")])
    for name in (n for n in dir(Stream) if not n.startswith("_")):
        value = getattr(stream, name)
        if name in ("run_id", "text", "scope", "events", "display", "sse"):
            continue
        overridden = name in vars(DerivedStream) or name in ("result", "text_deltas")
        assert overridden, f"{name} is not handed on"
        assert callable(value)


def test_a_run_with_a_tool(server: ModelServer) -> None:
    """A whole run over real HTTP: the tool gets the address, nobody else does."""
    got = []

    @tool
    def mail(to: str, ctx: Context) -> str:
        "Send a mail."
        got.append(to)
        ctx.output("sending to ada@exam")
        ctx.output("ple.com")
        ctx.emit({"to": to})
        return f"sent to {to}"

    server.call("mail", {"to": MAIL}, text=["I ask ada@", "example.com"], pieces=7)
    server.say(["Sent to ada", "@example", ".com", "."], thinking=["ada@example", ".com it is"])
    with redact(make(server).stream("hi", [mail], channels=[*CHANNELS]), "email", "url") as stream:
        events = list(stream)
    assert got == [MAIL]
    assert MAIL not in repr(events)
    assert "example" not in repr(events)
    assert stream.text == f"I ask {TAG}Sent to {TAG}."
    assert stream.result().text == f"Sent to {TAG}."
    assert deltas(events, ToolOutput) == f"sending to {TAG}"
    assert deltas(events, Thinking) == f"{TAG} it is"
    assert [e.type for e in events].count("done") == 1
    assert server.requests[1].json["messages"][-1]["content"] == f"sent to {MAIL}", (
        "the model sees what it was"
    )


def test_text_deltas_and_repr(server: ModelServer) -> None:
    """`text_deltas()` gives redacted pieces."""
    server.say(["I am ada@", "example.com", " now"])
    stream = redact(make(server).stream("hi"), "email")
    assert "open" in repr(stream)
    assert "".join(stream.text_deltas()) == f"I am {TAG} now"
    assert repr(stream) == f"<RedactedStream {stream.run_id} done>"


def test_answers_are_handed_on(server: ModelServer) -> None:
    """A suspended call is answered through the redacted stream; the person sees no address."""
    ran = []

    @tool(approval=True)
    def mail(to: str) -> str:
        "Send a mail."
        ran.append(to)
        return "sent"

    server.call("mail", {"to": MAIL})
    server.say("Done.")
    stream = redact(make(server).stream("hi", [mail]), "email")
    for event in stream:
        if isinstance(event, Pending):
            assert MAIL not in repr(event)
            assert stream.waiting_for(event.request.id) is not None
            stream.answer(Answer.approve(event.request))
    assert ran == [MAIL]
    assert stream.result().text == "Done."
    with pytest.raises(StreamConsumedError):
        redact([]).answer(Answer("x"))


@pytest.mark.parametrize("leave", ["break", "with", "close", "cancel", "collect"])
def test_f53_leaving_early_cancels_the_run(server: ModelServer, leave: str) -> None:
    """F53: however the redacted stream is left, the server sees the connection close."""
    server.say(["one ", "two ", "three ", "four"], hold=True)
    stream = redact(make(server).stream("hi"))
    if leave == "with":
        with stream:
            next(stream)
    elif leave == "break":
        for _ in stream:
            break
        del stream
    elif leave == "cancel":
        next(stream)
        stream.cancel("enough")
        end = list(stream)[-1]
        assert isinstance(end, Error)
        assert isinstance(end.error, RunCancelledError)
        assert "enough" in str(end.error)
    elif leave == "close":
        next(stream)
        stream.close()
        stream.close()
        assert [e.type for e in stream] == ["error"]
    else:
        next(stream)
        del stream
        gc.collect()
    server.wait_for_disconnect()


def test_f118_an_iterable_without_an_end_is_flushed() -> None:
    """F118: events without a terminal item: what is held back comes out redacted, and none is made up."""
    events = list(redact([Text("I am"), Text(f" {MAIL}")]))
    assert deltas(events) == f"I am {TAG}"
    assert not [e for e in events if isinstance(e, (Done, Error))]


def test_nothing_comes_after_the_end() -> None:
    """What a source yields behind its terminal item is not handed on."""
    events = list(redact([Text("a"), Done(RunResult(text="a")), Text("b")]))
    assert [e.type for e in events] == ["text", "done"]


def test_a_plain_iterable_can_be_cancelled_and_closed() -> None:
    """A generator is closed with the stream; cancelling ends it with an Error."""
    closed = threading.Event()

    def source() -> Iterator[Event]:
        try:
            while True:
                yield Text("word ")
        finally:
            closed.set()

    stream = redact(source())
    next(stream)
    stream.cancel()
    [end] = list(stream)
    assert isinstance(end, Error)
    assert end.error.kind == "cancelled"
    stream.close()
    assert closed.is_set()


def test_an_exception_of_the_source_passes() -> None:
    """What a plain iterable raises is the caller's, and closes the stream; nothing held gets out."""

    def source() -> Iterator[Event]:
        yield Text("ada@exam")
        raise KeyError("x")

    stream = redact(source())
    with pytest.raises(KeyError):
        next(stream)
    assert deltas(list(stream)) == ""


def test_errors_nobody_looks_at_are_logged_redacted(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of an error that nobody looked at has no protected value, and comes once."""
    server.fail(400, message=f"no such user {MAIL}")
    stream = redact(make(server).stream("hi"))
    with caplog.at_level(logging.ERROR, "toolnexus"):
        for _ in stream:
            pass
        del stream, _
        gc.collect()
    assert len(caplog.records) == 1
    assert TAG in caplog.text
    assert MAIL not in caplog.text


def test_the_error_of_a_redacted_stream_that_nobody_read_is_logged_without_its_words(
    server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started, failed and was dropped, and nobody has redacted what it says; derived once or twice."""
    for derive in (redact, lambda stream: redact(redact(stream))):
        server.fail(400, message=f"no such user {MAIL}")
        inner = make(server).stream("hi").start()
        thread = inner._pump.thread
        assert thread is not None
        thread.join(10)
        with caplog.at_level(logging.ERROR, "toolnexus"):
            stream = derive(inner)
            del inner, stream
            gc.collect()
    assert [record.args[1] for record in caplog.records if record.args] == ["BadRequestError"] * 2
    assert MAIL not in caplog.text


def test_an_error_keeps_its_class(server: ModelServer) -> None:
    """A redacted error is of the same class, with the same facts."""
    server.fail(404, message=f"no {MAIL}", code="nope")
    stream = redact(make(server).stream("hi"))
    with pytest.raises(APIStatusError, match=r"no \[REDACTED_EMAIL\]") as caught:
        stream.result()
    assert caught.value.kind == "not_found"
    assert caught.value.status == 404
    assert caught.value.code == "nope"
    assert caught.value.__cause__ is None


def test_kept_events_are_redacted(server: ModelServer) -> None:
    """With keep_events the redacted stream keeps its own."""
    server.say(["I am ada@", "example.com"])
    stream = redact(make(server).stream("hi", keep_events=True))
    events = list(stream)
    assert stream.events == events
    assert MAIL not in repr(stream.events)


def test_next_within(server: ModelServer) -> None:
    """Silence, and text that is held back, give None in time."""
    server.say(["I am ada", "@example.com"], hold=True)
    with redact(make(server).stream("hi")) as stream:
        assert stream.next_within(5) == Text("I am ")
        assert stream.next_within(0.05) is None
        server.release()
        assert isinstance(stream.next_within(5), Text)
        while (event := stream.next_within(5)) is not None and not isinstance(event, Done):
            pass
        assert isinstance(event, Done)
        with pytest.raises(StopIteration):
            stream.next_within(0.01)


def test_server_sent_events_are_redacted(server: ModelServer) -> None:
    """A7.5: what leaves the server is redacted."""
    server.say(["I am ada@", "example.com"])
    body = b"".join(redact(make(server).stream(f"I am {MAIL}")).sse())
    assert b"REDACTED_EMAIL" in body
    assert MAIL.encode() not in body


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [("iban", "stdnum", "redact"), ("phone", "phonenumbers", "redact-phone")]
)
def test_a_missing_extra_is_told_at_once(kind: str, module: str, extra: str) -> None:
    """The rule says what to install, and the others do without it."""
    program = f"""
        import sys
        sys.modules[{module!r}] = None
        from toolnexus import MissingExtraError
        from toolnexus.compose import PII, redact_text
        assert redact_text("ada@example.com") == "[REDACTED_EMAIL]"
        try:
            PII({kind!r})
        except MissingExtraError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert f'pip install "toolnexus[{extra}]"' in done.stdout


def test_a_redacted_mux(server: ModelServer) -> None:
    """Two runs through one buffer, an address split in each."""
    server.on_request(lambda request: reply(["I am ada@", "example.com", " now"]))
    client = make(server)
    with redact(mux([("one", client.stream("a")), ("two", client.stream("b"))])) as stream:
        events = list(stream)
    for name in ("one", "two"):
        assert deltas([e for e in events if e.namespace == (name,)]) == f"I am {TAG} now"
    assert MAIL not in repr(events)
    assert isinstance(events[-1], Done)


def test_a_redacted_flow() -> None:
    """Progress, states, tasks and the result of a flow."""
    flow = Flow("mail")

    @flow.node()
    def find(state: dict[str, Any], ctx: FlowContext) -> dict[str, Any]:
        ctx.emit({"found": MAIL})
        return {"to": MAIL}

    events = list(redact(flow.stream({"from": MAIL}, channels=["custom", "values", "tasks", "updates"])))
    assert isinstance(events[-1], Done)
    assert Custom({"found": TAG}) in events
    assert MAIL not in repr(events)


class _Ticket:
    """An object with nothing to look into but its text."""

    def __init__(self, mail: str) -> None:
        self._mail = mail

    def __repr__(self) -> str:
        return f"<Ticket of {self._mail}>"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (f"Ask {MAIL}".encode(), f"Ask {TAG}".encode()),
        (bytearray(MAIL.encode()), bytearray(TAG.encode())),
        (memoryview(MAIL.encode()), TAG.encode()),
        ({MAIL.encode(): 1}, {TAG.encode(): 1}),
        (b"\xff\xfe " + MAIL.encode(), b"\xff\xfe " + TAG.encode()),
        (_Ticket(MAIL), f"<Ticket of {TAG}>"),
        (Path("/home") / MAIL, f"/home/{TAG}"),
        ([deque([MAIL])], [f"deque(['{TAG}'])"]),
        (Decimal("4111111111111111"), "[REDACTED_CREDIT_CARD]"),
    ],
)
def test_a_value_in_bytes_or_in_the_text_of_an_object(payload: Any, expected: Any) -> None:
    """Outputs make text of whatever there is, so what that text would hold is replaced before."""
    [event] = redact([Custom({"x": payload})])
    assert event == Custom({"x": expected})
    assert MAIL not in json.dumps(event_to_dict(event))


def test_objects_without_a_value_stay_what_they_are() -> None:
    """Bytes, paths, numbers and objects of the user's are passed on untouched."""
    for payload in (b"\x00\xff", Path("/tmp"), Decimal("1.5"), _Ticket("nobody"), object(), range(3)):
        [event] = redact([Custom(payload)])
        assert isinstance(event, Custom)
        assert event.payload is payload
