"""One loop: run() on a whole answer and the drained stream() on the same answer reach the same result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.endpoint import (
    DONE,
    STYLES,
    Endpoint,
    block,
    chunk,
    completion,
    data,
    event,
    fragment,
    message,
    start,
    tools,
)
from tests.support.wire import ROOT, Recording, recordings
from toolnexus import Client, Error, RunResult, ToolnexusError
from toolnexus.testing import raw, recorded

#: What differs between two runs of anything.
OF_THE_MOMENT = ("run_id", "duration", "time_to_first_token")

#: A character of two UTF-16 code units may be cut between them; a half may also stand alone.
ODD = st.sampled_from('\ud83d\ude00\U0001f600\u2028\x00"\\')
ANY_TEXT = st.text(st.characters() | ODD, max_size=12)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@attrs.frozen
class Piece:
    """A part of an answer: its kind, what it says, and where that is cut."""

    kind: str
    said: str
    cuts: tuple[int, ...] = ()
    name: str = ""
    id: str | None = None
    as_object: bool = False

    def pieces(self) -> list[str]:
        """Return what it says in pieces, cut between UTF-16 code units; together they say it all."""
        units = self.said.encode("utf-16-le", "surrogatepass")
        count = len(units) // 2
        places = sorted({c % (count + 1) for c in self.cuts} | {0, count})
        parts = [units[2 * a : 2 * b] for a, b in pairwise(places)]
        return [p.decode("utf-16-le", "surrogatepass") for p in parts] or [""]


@attrs.frozen
class Answer:
    """An answer in neutral terms."""

    parts: tuple[Piece, ...]
    usage: tuple[int, int] | None
    finish: str | None

    def of(self, kind: str) -> list[Piece]:
        return [p for p in self.parts if p.kind == kind]

    def text(self, kind: str) -> str:
        return "".join(p.said for p in self.of(kind))


CUTS = st.lists(st.integers(0, 40), max_size=4).map(tuple)
TEXT = st.builds(Piece, st.just("text"), ANY_TEXT, CUTS)
THOUGHT = st.builds(Piece, st.just("thinking"), ANY_TEXT, CUTS)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3).map(json.dumps) | st.sampled_from(
    ["", "{}", "null", "[1]", '{"a":', '{"a":1}{"a":1}', "x", '{"a":NaN}', '{"e":"\\ud83d"}']
)
CALL = st.builds(
    Piece,
    st.just("call"),
    ARGUMENTS,
    CUTS,
    name=st.sampled_from(["f", "g", "unknown"]),
    id=st.sampled_from(["a", "b", "c"]),
    as_object=st.booleans(),
)
REASONS = {
    "openai": [
        "stop", "tool_calls", "length", "content_filter", "function_call", "error", "because", None,
    ],
    "anthropic": ["end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "because", None],
}  # fmt: skip


def answers(style: str) -> st.SearchStrategy[Answer]:
    return st.builds(
        Answer,
        st.lists(TEXT | THOUGHT | CALL, max_size=5).map(tuple),
        st.none() | st.tuples(st.integers(0, 9999), st.integers(0, 9999)),
        st.sampled_from(REASONS[style]),
    )


# -- an answer in the two styles, streamed and whole -----------------------------------------------


def openai(answer: Answer) -> tuple[bytes, dict[str, Any]]:
    """Return an answer as chunks, in the order of its parts, and whole."""
    body = data({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    entries: list[dict[str, Any]] = []
    for part in answer.parts:
        if part.kind != "call":
            key = "content" if part.kind == "text" else "reasoning_content"
            body += b"".join(chunk({key: p}) for p in part.pieces())
            continue
        first, *rest = [decoded(part)] if part.as_object else part.pieces()
        index = len(entries)
        body += chunk({"tool_calls": [fragment(index, part.id, part.name, first)]})
        body += b"".join(
            chunk({"tool_calls": [{"index": index, "function": {"arguments": p}}]}) for p in rest
        )
        whole_arguments = decoded(part) if part.as_object else part.said
        entries.append({"id": part.id, "function": {"name": part.name, "arguments": whole_arguments}})
    body += chunk({}, answer.finish)
    said: dict[str, Any] = {"content": answer.text("text")}
    if answer.of("thinking"):
        said["reasoning_content"] = answer.text("thinking")
    if entries:
        said["tool_calls"] = entries
    document = completion(said, answer.finish)
    if answer.usage is not None:
        prompt, written = answer.usage
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        body += data({"choices": [], "usage": usage})
        document["usage"] = usage
    return body + DONE, document


def decoded(part: Piece) -> Any:
    """Return the arguments as an object, where they are one."""
    try:
        value = json.loads(part.said)
    except ValueError:
        return part.said
    return value if isinstance(value, dict) and "NaN" not in part.said else part.said


def anthropic(answer: Answer) -> tuple[bytes, dict[str, Any]]:
    """Return an answer as blocks, in the order of its parts, streamed and whole."""
    prompt, written = answer.usage or (0, 0)
    body = start(input_tokens=prompt, output_tokens=0)
    content: list[dict[str, Any]] = []
    opening: dict[str, Any]
    for index, part in enumerate(answer.parts):
        if part.kind == "text":
            body += typed_block(index, {"type": "text", "text": ""}, "text_delta", "text", part)
            content.append({"type": "text", "text": part.said})
        elif part.kind == "thinking":
            opening = {"type": "thinking", "thinking": "", "signature": "c2ln"}
            body += typed_block(index, opening, "thinking_delta", "thinking", part)
            content.append({**opening, "thinking": part.said})
        else:
            opening = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            body += typed_block(index, opening, "input_json_delta", "partial_json", part)
            content.append({**opening, "input": json.loads(part.said)})
    body += event("message_delta", delta={"stop_reason": answer.finish}, usage={"output_tokens": written})
    usage = {"input_tokens": prompt, "output_tokens": written}
    return body + event("message_stop"), message(content, answer.finish, usage=usage)


def typed_block(index: int, opening: dict[str, Any], kind: str, key: str, part: Piece) -> bytes:
    return block(index, opening, *[{"type": kind, key: p} for p in part.pieces()])


RENDER = {"openai": openai, "anthropic": anthropic}


# -- comparing -------------------------------------------------------------------------------------


def outcome(ask: Any) -> Any:
    """Return what a run reached: its result or its error, without what is of the moment or made up."""
    try:
        return comparable(ask())
    except ToolnexusError as error:
        reached = comparable(error.partial) if error.partial else None
        return type(error), error.message, error.retryable, reached


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    """Return what does not differ from one run to the next."""
    return {k: v for k, v in data.items() if k not in OF_THE_MOMENT}


def comparable(result: RunResult) -> Any:
    """Return a result as JSON text, its call ids replaced by their places."""
    found = without_times(result.to_dict())
    found["attempts"] = [without_times(attempt) for attempt in found["attempts"]]
    ids = {call["id"]: f"call-{place}" for place, call in enumerate(found["tool_calls"])}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: renamed(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [renamed(v) for v in value]
        return ids.get(value, value) if isinstance(value, str) and len(value) in (1, 9) else value

    return json.loads(json.dumps(renamed(found)))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def clients(endpoint: Endpoint) -> dict[str, Client]:
    return {style: endpoint.client(style, max_turns=2) for style in STYLES}


def streamed_as(body: bytes, places: list[int]) -> Any:
    """Return an answer whose bytes are cut at these places."""
    cuts = sorted({p % (len(body) + 1) for p in places} | {0, len(body)})
    parts = [body[a:b] for a, b in pairwise(cuts)]
    return raw(chunks=parts)


SPLITS = st.lists(st.integers(0, 5000), max_size=12)


def check(style: str, answer: Answer, places: list[int], endpoint: Endpoint, client: Client) -> None:
    body, document = RENDER[style](answer)
    offered = tools("f", "g")
    endpoint.play(document, "fine")
    whole = outcome(lambda: client.run("go", offered))
    endpoint.play(streamed_as(body, places), "fine")
    streamed = outcome(lambda: client.stream("go", offered).result())
    assert streamed == whole


@settings(max_examples=150)
@given(answer=answers("openai"), places=SPLITS)
@example(answer=Answer((), None, "stop"), places=[])
@example(answer=Answer((Piece("text", "\ud83d"), Piece("text", "\ude00")), (1, 2), None), places=[1])
def test_openai_any_answer_and_any_split(
    answer: Answer, places: list[int], endpoint: Endpoint, clients: dict[str, Client]
) -> None:
    """Text, thinking, calls with any arguments, usage or none, any reason: every field agrees."""
    check("openai", answer, places, endpoint, clients["openai"])


def only_objects(answer: Answer) -> Answer:
    """Return an answer with the calls whose arguments can stand in a whole Anthropic message."""

    def fits(part: Piece) -> bool:
        return part.kind != "call" or (isinstance(decoded(part), dict) and "NaN" not in part.said)

    return attrs.evolve(answer, parts=tuple(p for p in answer.parts if fits(p)))


@settings(max_examples=150)
@given(answer=answers("anthropic").map(only_objects), places=SPLITS)
@example(answer=Answer((), None, "end_turn"), places=[])
@example(answer=Answer((), None, None), places=[])
def test_anthropic_any_answer_and_any_split(
    answer: Answer, places: list[int], endpoint: Endpoint, clients: dict[str, Client]
) -> None:
    """The same for blocks of text, thinking and calls in any order."""
    check("anthropic", answer, places, endpoint, clients["anthropic"])


# -- recorded answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", recordings(ok=True), ids=lambda r: r.name)
def test_run_and_stream_agree_on_a_recording(recording: Recording, endpoint: Endpoint) -> None:
    """Streamed or whole, the same recorded body gives run() and stream() the same result."""
    offered = tools("f")
    both = []
    with endpoint.client(recording.style, base_url=endpoint.server.url, max_turns=1) as client:
        for ask in (lambda: client.run("go", offered), lambda: client.stream("go", offered).result()):
            endpoint.play(recorded(recording.path))
            both.append(outcome(ask))
    assert both[0] == both[1]


#: Turns of one endpoint that were recorded whole and streamed, with the same words and calls.
_GROQ = "groq/chat-parallel-tool-calls-single-turn"
_WRITER = "writer/chat-writer-async"
_AZURE = "azure/chat-chat-function-calling-azure-grok-4-1-fast-non-reasoning-can-"
PAIRS = [
    ("doubleword/chat-blocking-natural-stop", "doubleword/chat-streaming-natural-stop"),
    (f"{_GROQ}-nonstreaming", f"{_GROQ}-streaming"),
    (
        f"{_WRITER}-chat-multiple-tool-call-requests-legacy",
        f"{_WRITER}-streaming-chat-multiple-tool-call-requests",
    ),
    ("xai/chat-xai-grok-code-fast-multi-tool", "xai/chat-multi-tool-streaming"),
    (f"{_AZURE}-2", _AZURE),
]


@pytest.mark.parametrize(("whole", "streamed"), PAIRS)
def test_a_turn_recorded_in_both_forms(whole: str, streamed: str, endpoint: Endpoint) -> None:
    """
    run() on the whole form and stream() on the other give the same words, calls and end.

    These were two calls of a model, whose reasoning and its length differ; so those are not compared.
    """
    client = endpoint.client(max_turns=1)
    endpoint.play(recorded(ROOT / f"{whole}.json"))
    first = client.run("go")
    endpoint.play(recorded(ROOT / f"{streamed}.sse"))
    last = list(client.stream("go"))[-1]
    assert not isinstance(last, Error)
    second: RunResult = last.result  # type: ignore[attr-defined]
    assert said(first) == said(second)
    assert first.usage.total_tokens > 0
    assert second.usage.total_tokens > 0


def said(result: RunResult) -> Any:
    calls = [(c.name, c.args, c.output) for c in result.tool_calls]
    return result.text, calls, result.finish_reason, result.status, result.limit, result.turns
