"""Bytes and buffering of event streams: the reported kinds, through real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.endpoint import (
    DONE,
    STYLES,
    Endpoint,
    chunk,
    data,
    deltas,
    end,
    fragment,
    start,
    stop,
    text,
    text_block,
    tools,
)
from toolnexus import Done, Error, Text
from toolnexus.testing import raw

#: Seconds between two writes of a server; what is live keeps about this distance.
PAUSE = 0.3

FRAMINGS = ("chunked", "close")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def arrivals(endpoint: Endpoint, style: str = "openai") -> list[float]:
    """Stream what is queued and return when each piece of text arrived."""
    with endpoint.client(style).stream("go") as stream:
        return [time.monotonic() for event in stream if isinstance(event, Text)]


def pieces(*events: bytes) -> Any:
    """Return an answer that is sent in exactly these writes."""
    return raw(chunks=list(events))


def joined(endpoint: Endpoint, *events: bytes, style: str = "openai") -> str:
    """Return the text of an answer that is sent in exactly these writes."""
    return endpoint.result(style, pieces(*events)).text


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
def test_sse_02_compressed_streams_are_live(framing: Any, gzip: bool, endpoint: Endpoint) -> None:
    """Each event arrives when it is sent, compressed or not, in both framings."""
    events = [text("a"), text("b"), text("c"), end()]
    endpoint.play(raw(chunks=events, framing=framing, gzip=gzip, delay=PAUSE))
    first, second, third = arrivals(endpoint)
    assert second - first > PAUSE / 2
    assert third - second > PAUSE / 2


def test_sse_02_compressed_anthropic(endpoint: Endpoint) -> None:
    """The other style is as live, and decodes as well."""
    events = [start() + text_block(0, "a"), text_block(1, "b"), stop()]
    endpoint.play(raw(chunks=events, gzip=True, delay=PAUSE))
    first, second = arrivals(endpoint, "anthropic")
    assert second - first > PAUSE / 2


def test_sse_03_chunk_boundaries_inside_a_text(endpoint: Endpoint) -> None:
    """An event over three HTTP chunks is one event; chunk sizes are no part of it."""
    body = text("one long value, cut twice")
    cut = [body[:60], body[60:75], body[75:]]
    assert deltas(endpoint.stream("openai", pieces(*cut, end()))) == ["one long value, cut twice"]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_sse_04_large_events_cost_linear_time(framing: Any, endpoint: Endpoint) -> None:
    """An event of twice the size takes about twice the time, not four times."""

    def seconds(mebibytes: int) -> float:
        body = text("x" * (mebibytes << 20)) + end()
        parts = [body[i : i + 16384] for i in range(0, len(body), 16384)]
        best = float("inf")
        for _ in range(2):
            began = time.perf_counter()
            result = endpoint.result("openai", raw(chunks=parts, framing=framing))
            best = min(best, time.perf_counter() - began)
            assert len(result.text) == mebibytes << 20
        return best

    small, large = seconds(3), seconds(12)
    assert large < small * 4 * 2.5 + 0.5


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("style", STYLES)
def test_sse_05_a_small_event_does_not_wait_for_more(style: str, framing: Any, endpoint: Endpoint) -> None:
    """The first event is there while the server says nothing more at all."""
    body = text("a") if style == "openai" else start() + text_block(0, "a")
    endpoint.play(raw(body, hold=True, framing=framing))
    with endpoint.client(style).stream("go") as stream:
        assert next(stream) == Text("a")
    endpoint.server.release()


def test_sse_06_line_separators_of_unicode_are_no_line_ends(endpoint: Endpoint) -> None:
    """U+2028, U+2029 and U+0085 inside a value are kept, and break nothing."""
    body = 'data: {"choices":[{"index":0,"delta":{"content":"a\u2028b\u0085c\u2029d\u000be"}}]}\n\n'.encode()
    for step in (len(body), 1):
        cut = [body[i : i + step] for i in range(0, len(body), step)]
        assert joined(endpoint, *cut, end()) == "a\u2028b\u0085c\u2029d\u000be"


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "text/event-stream; charset=latin-1", "text/plain", None]
)
def test_sse_07_it_is_always_utf_8(content_type: str | None, endpoint: Endpoint) -> None:
    """Whatever the header says or does not say, the bytes are UTF-8: byte 0x85 ends no line."""
    body = 'data: {"choices":[{"index":0,"delta":{"content":"✅ ok …"}}]}\n\n'.encode()
    assert b"\x85" in body
    assert endpoint.result("openai", raw(body + end(), content_type=content_type)).text == "✅ ok …"


def test_sse_08_a_character_split_over_two_writes(endpoint: Endpoint) -> None:
    """A character whose bytes come in two reads is intact."""
    body = 'data: {"choices":[{"index":0,"delta":{"content":"😀"}}]}\n\n'.encode()
    middle = body.index(b"\xf0\x9f") + 2
    answer = raw(chunks=[body[:middle], body[middle:], end()], delay=0.1)
    assert deltas(endpoint.stream("openai", answer)) == ["😀"]


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "opening",
    [[BOM], [b"\xef", b"\xbb", b"\xbf"], [BOM, b"\n"], [BOM + b": hi\n\n"]],
    ids=["whole", "three-writes", "blank-line", "comment"],
)
def test_sse_09_one_leading_mark_is_stripped(opening: list[bytes], endpoint: Endpoint) -> None:
    """A byte-order mark in front costs no event."""
    assert joined(endpoint, *opening, text("first"), text("second"), end()) == "firstsecond"


def test_sse_09_later_marks_are_kept(endpoint: Endpoint) -> None:
    """U+FEFF inside the data is text."""
    body = 'data: {"choices":[{"index":0,"delta":{"content":"a\ufeffb\ufeff"}}]}\n\n'.encode()
    assert joined(endpoint, BOM, body, end()) == "a\ufeffb\ufeff"


A, B = text("a").rstrip(b"\n"), text("b").rstrip(b"\n")


@pytest.mark.parametrize(
    "cut",
    [
        [A + b"\r", b"\n\r", b"\n" + B + b"\r\n\r", b"\n"],
        [A + b"\r\n", b"\r\n", B + b"\r\n\r\n"],
        [A + b"\r\r" + B + b"\r\r"],
        [A + b"\r", b"\r", B + b"\r", b"\r"],
        [A + b"\n\r\n" + B + b"\n\r\n"],
        [A + b"\r\n\n" + B + b"\r\n\n"],
        [A + b"\n\r", b"\n" + B + b"\r\n", b"\n"],
        [A + b"\r\n\r\n\r\n\r\n" + B + b"\n\n\n\n"],
    ],
    ids=["straddled", "crlf", "cr", "cr-cut", "mixed", "mixed-2", "mixed-cut", "many-blank"],
)
def test_sse_10_line_ends_of_every_kind(cut: list[bytes], endpoint: Endpoint) -> None:
    """CR, LF, CRLF and mixtures end lines, wherever they are cut: exactly two events."""
    assert deltas(endpoint.stream("openai", pieces(*cut, end()))) == ["a", "b"]


def test_sse_11_frames_without_data(endpoint: Endpoint) -> None:
    """Control-only frames and empty data are passed over."""
    control = b"retry: 1000\n\ndata:\n\ndata: \n\nid: 7\n\nevent: ping\n\nevent: ping\ndata:\n\n"
    assert joined(endpoint, control, text("a"), control, end()) == "a"


@pytest.mark.parametrize("style", STYLES)
def test_sse_12_comments_are_no_events(style: str, endpoint: Endpoint) -> None:
    """Comments before, between, inside and after events change nothing."""
    comments = b":\n\n: ping\n\n: keep-alive\n\n: OPENROUTER PROCESSING\n\n:{}\n\n"
    if style == "openai":
        body = [comments, text("a"), comments, b": x\n" + text("b"), comments, end(), comments]
    else:
        body = [comments, start(), comments, text_block(0, "a", "b"), comments, stop(), comments]
    assert joined(endpoint, *body, style=style) == "ab"


def test_sse_12_comments_are_a_sign_of_life(endpoint: Endpoint) -> None:
    """
    Comments keep a stream alive that is otherwise silent for longer than idle_timeout.

    The list asks for a progress timer beside it; the design counts every byte, comments too, and
    bounds the whole with ``timeout``.
    """
    client = endpoint.client(idle_timeout=0.6)
    events = [text("a"), *[b": ping\n\n"] * 6, text("b"), end()]
    assert endpoint.result("openai", raw(chunks=events, delay=0.2), client=client).text == "ab"


@pytest.mark.parametrize("ending", [b"data:[DONE]\n\n", b""], ids=["done", "end-of-connection"])
def test_sse_13_no_space_after_the_colon(ending: bytes, endpoint: Endpoint) -> None:
    """``data:{...}`` is as good as ``data: {...}``."""
    body = (text("a") + chunk({}, "stop")).replace(b"data: ", b"data:") + ending
    assert endpoint.result("openai", body).text == "a"


@pytest.mark.parametrize(
    "tail", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r", b"data: [DONE]\r\n\r"]
)
@pytest.mark.parametrize("framing", FRAMINGS)
def test_sse_14_the_end_mark_without_a_line_end(tail: bytes, framing: Any, endpoint: Endpoint) -> None:
    """The end mark counts at the end of the connection, whatever line end it lacks."""
    result = endpoint.result("openai", raw(text("a") + tail, framing=framing))
    assert (result.text, result.finish_reason) == ("a", "stop")


@pytest.mark.parametrize("framing", FRAMINGS)
def test_sse_14_a_cut_event_is_never_data(framing: Any, endpoint: Endpoint) -> None:
    """A last event that was cut is a truncated stream, not an event and not a malformed one."""
    error = endpoint.error("openai", raw(text("a") + text("lost")[:-12], framing=framing))
    assert error.kind == "truncated"
    assert error.retryable
    assert error.partial.text == "a"


def test_sse_16_two_documents_in_one_event(endpoint: Endpoint) -> None:
    """Documents back to back in one event are read one after the other."""
    one, two = (json.dumps({"choices": [{"index": 0, "delta": {"content": t}}]}) for t in "ab")
    for between in ("", " ", "\n"):
        body = data(one + between.replace("\n", "\ndata: ") + two)
        assert deltas(endpoint.stream("openai", body + end())) == ["a", "b"]


@pytest.mark.parametrize("rest", ["{", "x", "]", '{"choices"'])
def test_sse_16_what_is_left_over_is_an_error(rest: str, endpoint: Endpoint) -> None:
    """What follows the documents and is none ends the stream with an error; what came first is kept."""
    one = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    events = endpoint.stream("openai", data(one + rest) + text("b") + end())
    assert deltas(events) == ["a"]
    last = events[-1]
    assert isinstance(last, Error)
    assert (last.error.kind, last.partial.text if last.partial else None) == ("malformed", "a")


def test_sse_16_what_is_left_over_can_be_skipped(endpoint: Endpoint) -> None:
    """on_bad_event="skip" passes over it."""
    one = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    client = endpoint.client(on_bad_event="skip")
    body = data(one + "{") + data("{not json}") + text("b") + end()
    assert endpoint.result("openai", body, client=client).text == "ab"


def lines(*texts: str, finish: str | None = "stop") -> list[bytes]:
    """Return records of one line each."""
    records: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": t}}]} for t in texts]
    if finish:
        records.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [json.dumps(record).encode() + b"\n" for record in records]


@pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson", "text/event-stream"])
def test_sse_16_documents_without_framing(content_type: str, endpoint: Endpoint) -> None:
    """A body of documents, one a line, is read as a stream of them."""
    body = b"".join(lines("a", "b"))
    assert deltas(endpoint.stream("openai", raw(body, content_type=content_type))) == ["a", "b"]


def test_sse_17_ndjson_in_any_pieces_and_live(endpoint: Endpoint) -> None:
    """A line that is cut is put together, two lines in one read are two records, each when it is there."""
    one, two, three, last = lines("a", "b", "c")
    cut = [one[:40], one[40:], two + three, last]
    endpoint.play(raw(chunks=cut, content_type="application/x-ndjson", delay=PAUSE))
    times = arrivals(endpoint)
    assert len(times) == 3
    assert times[1] - times[0] > PAUSE / 2
    for step in (1, 7, 50):
        body = b"".join(lines("a", "b", "c"))
        answer = raw(body, content_type="application/x-ndjson", split=step)
        assert deltas(endpoint.stream("openai", answer)) == ["a", "b", "c"]


def test_sse_17_ndjson_with_calls(endpoint: Endpoint) -> None:
    """Fragments of two calls in records of one line each go to their calls."""
    deltas_ = [
        {"tool_calls": [fragment(0, "a", "f", '{"x":'), fragment(1, "b", "g", '{"y":')]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "2}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    ]
    records: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": d}]} for d in deltas_]
    records.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = b"".join(json.dumps(r).encode() + b"\n" for r in records)
    answer = raw(body, content_type="application/x-ndjson")
    result = endpoint.result("openai", answer, "fine", tools=tools("f", "g"))
    assert [(c.name, c.args) for c in result.tool_calls] == [("f", {"x": 1}), ("g", {"y": 2})]


@pytest.mark.parametrize("step", [1, 13, 10_000])
def test_sse_18_a_printed_array_of_chunks(step: int, endpoint: Endpoint) -> None:
    """A pretty-printed JSON array of chunks is read as the stream that it is, in any pieces."""
    records = [json.loads(line) for line in lines("a", "b")]
    body = b"[" + b"\n,\n".join(json.dumps(r, indent=1).encode() for r in records) + b"]"
    answer = raw(body, content_type="application/json", split=step)
    assert deltas(endpoint.stream("openai", answer)) == ["a", "b"]


def test_sse_18_an_array_of_anything_else_is_an_error(endpoint: Endpoint) -> None:
    """What no dialect knows is said so, with what it begins with; a cut array is no answer."""
    whole = endpoint.error("openai", raw(b'["a", 1]', content_type="application/json"))
    assert whole.kind == "malformed"
    foreign = endpoint.error("openai", raw(b'[{\n "candidates": []\n}]', content_type="application/json"))
    assert foreign.kind in ("truncated", "empty_response")
    assert "candidates" in foreign.message
    cut = endpoint.error("openai", raw(b"[" + lines("a")[0] + b",", content_type="application/json"))
    assert cut.kind in ("malformed", "truncated")


def test_b009_bytes_that_are_no_utf_8(endpoint: Endpoint) -> None:
    """A bad byte becomes U+FFFD; no codec error reaches the caller."""
    body = text("a?b").replace(b"?", b"\xff") + chunk({}, "stop") + DONE
    events = endpoint.stream("openai", body)
    assert deltas(events) == ["a\ufffdb"]
    assert isinstance(events[-1], Done)


def test_b009_bad_bytes_in_a_whole_answer(endpoint: Endpoint) -> None:
    """The same in a whole answer."""
    body = b'{"choices":[{"index":0,"message":{"content":"a\xffb"},"finish_reason":"stop"}]}'
    endpoint.play(raw(body, content_type="application/json"))
    assert endpoint.client().run("go").text == "a\ufffdb"
