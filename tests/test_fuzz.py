"""
Event streams of all kinds, for all dialects: valid, split, cut, mixed and broken.

Never an exception out of the iterator, never two terminal items or none, never a tool with arguments
that were not sent.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sseclient import SSEClient

from tests.support.dialects import JUNK, NAMES, Answer, answers, damaged, dressed, encode, pieces_of
from toolnexus import Client, Done, Error, Text, Thinking, Tool, ToolCall, ToolnexusError
from toolnexus.errors import MalformedEventError
from toolnexus.testing import ModelServer, RecordedRequest, raw
from toolnexus.transport.source import EventSource
from toolnexus.wire import DIALECTS

STYLES = ["openai", "anthropic", "responses", "gemini"]

#: The younger two share their examples: what they have in common with the others is tested there.
GROUPS = pytest.mark.parametrize("group", [STYLES[:1], STYLES[1:2], STYLES[2:]], ids=" ".join)

slowly = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Endpoint:
    """A server that sends given pieces once, and then a plain end; with tools that note how they ran."""

    def __init__(self) -> None:
        self.server = ModelServer()
        self.clients = {
            style: Client(
                self.server.url_for(style), style=style, model="m", api_key="k", retries=0, max_turns=2
            )
            for style in STYLES
        }
        self.answer: Any = None
        self.ran: list[tuple[str, dict[str, Any]]] = []
        self.tools = [Tool(name, execute=self._run, parallel=False) for name in NAMES]
        self.server.on_request(self._decide)

    def _run(self, args: dict[str, Any], ctx: Any) -> str:
        self.ran.append((ctx.tool_name, args))
        return "ok"

    def _decide(self, request: RecordedRequest) -> Any:
        self.server.requests.clear()
        answer, self.answer = self.answer, "over"
        return answer

    def play(self, style: str, pieces: list[bytes], **delivery: Any) -> list[Any]:
        """Stream an answer of these pieces, and return all events; the first turn's calls run."""
        self.answer = raw(chunks=pieces, **delivery)
        self.ran.clear()
        return list(self.clients[style].stream("go", self.tools))

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self.server.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def check_ending(events: list[Any]) -> Done | Error:
    """Exactly one terminal item, the last one."""
    last = events[-1]
    assert isinstance(last, (Done, Error))
    assert sum(isinstance(e, (Done, Error)) for e in events) == 1
    if isinstance(last, Error):
        assert isinstance(last.error, ToolnexusError)
        assert type(last.error) is not ToolnexusError, last.error  # a bug of ours, wrapped
    return last


def wanted_calls(answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    return [(name, args) for name, args, _ in answer.calls]


FRAMINGS: list[dict[str, Any]] = [{}, {"framing": "close"}, {"gzip": True}, {"framing": "length"}]


@GROUPS
@slowly
@given(data=st.data(), answer=answers, framing=st.sampled_from(FRAMINGS))
def test_a_valid_stream_says_what_was_sent(
    group: list[str], endpoint: Endpoint, data: st.DataObject, answer: Answer, framing: dict[str, Any]
) -> None:
    """However it is split, framed and filled up: the text, and each call once with its arguments."""
    style = data.draw(st.sampled_from(group))
    pieces = data.draw(pieces_of(data.draw(dressed(encode(style, answer)))))
    events = endpoint.play(style, pieces, **framing)
    last = check_ending(events)
    assert isinstance(last, Done), last
    texts = [e.delta for e in events if isinstance(e, Text)]
    assert "".join(texts) == "".join(answer.texts) + ("over" if answer.calls else "")
    assert "".join(e.delta for e in events if isinstance(e, Thinking)) == "".join(answer.thinking)
    assert endpoint.ran == wanted_calls(answer)
    assert [(e.name, e.args) for e in events if isinstance(e, ToolCall)] == wanted_calls(answer)


@GROUPS
@slowly
@given(data=st.data(), answer=answers, framing=st.sampled_from(FRAMINGS), share=st.floats(0, 1))
def test_a_cut_stream_runs_nothing(
    group: list[str],
    endpoint: Endpoint,
    data: st.DataObject,
    answer: Answer,
    framing: dict[str, Any],
    share: float,
) -> None:
    """Cut anywhere before the end signal: an Error with the text so far, and no tool."""
    style = data.draw(st.sampled_from(group))
    whole = data.draw(dressed(encode(style, answer)))
    cut = whole[: int(share * len(whole))]
    events = endpoint.play(style, data.draw(pieces_of(cut)), **framing)
    last = check_ending(events)
    if isinstance(last, Done):
        assert endpoint.ran == wanted_calls(answer)
        return
    assert endpoint.ran == []
    assert last.partial is not None
    texts = "".join(e.delta for e in events if isinstance(e, Text))
    assert last.partial.text == texts
    assert "".join(answer.texts).startswith(texts)


@GROUPS
@slowly
@given(data=st.data(), streams=st.lists(answers, min_size=1, max_size=2))
def test_a_damaged_stream_ends_once(
    group: list[str], endpoint: Endpoint, data: st.DataObject, streams: list[Answer]
) -> None:
    """Lost, repeated, mixed and changed events, and flipped bytes: one terminal item, tools get objects."""
    style = data.draw(st.sampled_from(group))
    bytes_sent = data.draw(damaged([encode(style, answer) for answer in streams]))
    events = endpoint.play(style, data.draw(pieces_of(bytes_sent)))
    last = check_ending(events)
    assert all(isinstance(args, dict) and name in NAMES for name, args in endpoint.ran)
    if isinstance(last, Done):
        json.dumps(last.result.to_dict())
    else:
        assert last.partial is not None
        json.dumps(last.partial.to_dict())


# -- without sockets, for volume -------------------------------------------------------------


def decode(style: str, pieces: list[bytes]) -> tuple[str, Any]:
    """Read pieces as a trial does: through the source, the parser and the decoder. Return how it ended."""
    rest = iter(pieces)
    source = EventSource(lambda: next(rest, b""))
    decoder = DIALECTS[style].decoder()
    said: list[Any] = []
    try:
        feed: Any = source
        for item in SSEClient(feed).events():
            try:
                said += decoder.feed(item.event, item.data)
            except MalformedEventError:
                if not source.cut_event:
                    raise
                break
            if decoder.ended:
                break
        said += decoder.finish(source.failure, received=source.received)
        reply = decoder.reply()
    except ToolnexusError as error:
        return error.kind, _words(said)
    calls = [(call.name, call.args) for call in reply.calls]
    return "done", (reply.text, reply.thinking, calls, reply.finish_reason, _words(said))


def _words(chunks: list[Any]) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.type == "text_delta")


def check_decoding(data: st.DataObject, style: str, sent: bytes) -> None:
    """Any bytes end in a reply or in an error of ours, and the same whatever the split."""
    whole = decode(style, [sent] if sent else [])
    assert decode(style, data.draw(pieces_of(sent))) == whole


@GROUPS
@settings(slowly, max_examples=150)
@given(data=st.data(), streams=st.lists(answers, min_size=1, max_size=2))
def test_decoding_is_the_same_for_every_split(
    group: list[str], data: st.DataObject, streams: list[Answer]
) -> None:
    """Damaged or not."""
    style = data.draw(st.sampled_from(group))
    check_decoding(data, style, data.draw(damaged([encode(style, answer) for answer in streams])))


@GROUPS
@settings(slowly, max_examples=150)
@given(data=st.data(), junk=st.lists(st.sampled_from(JUNK) | st.binary(max_size=40), max_size=6))
@example(data=None, junk=JUNK)
def test_junk_is_an_error_of_ours(group: list[str], data: Any, junk: list[bytes]) -> None:
    """Whatever comes, no other exception does."""
    if data is None:
        for style, piece in itertools.product(group, junk):
            decode(style, [piece])
        return
    style = data.draw(st.sampled_from(group))
    check_decoding(data, style, b"".join(junk))


@pytest.mark.slow
@GROUPS
@settings(slowly, max_examples=5000)
@given(data=st.data(), streams=st.lists(answers, min_size=1, max_size=2))
def test_decoding_at_length(group: list[str], data: st.DataObject, streams: list[Answer]) -> None:
    """The same, for long."""
    style = data.draw(st.sampled_from(group))
    check_decoding(data, style, data.draw(damaged([encode(style, answer) for answer in streams])))
