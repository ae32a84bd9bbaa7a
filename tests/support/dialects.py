"""Strategies for event streams of all dialects: valid ones, and what can become of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from tests.support.exact import event

__all__ = ["JUNK", "NAMES", "Answer", "answers", "damaged", "dressed", "encode", "pieces_of", "positions"]

NAMES = ("alpha", "beta", "gamma")

scalars: st.SearchStrategy[Any] = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
json_values = values | st.none()


@attrs.frozen
class Answer:
    """What a model says: pieces of text, then calls with their arguments and where these are cut."""

    texts: list[str]
    thinking: list[str]
    calls: list[tuple[str, dict[str, Any], list[float]]]
    order: list[int]
    ascii: bool


answers = st.builds(
    Answer,
    texts=st.lists(st.text(min_size=1, max_size=20), max_size=4),
    thinking=st.lists(st.text(min_size=1, max_size=20), max_size=2),
    calls=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.dictionaries(st.text(max_size=8), values, max_size=3),
            st.lists(st.floats(0, 1), max_size=4),
        ),
        max_size=3,
    ),
    order=st.lists(st.integers(0, 2), max_size=12),
    ascii=st.booleans(),
)


def _fragments(answer: Answer) -> list[tuple[int, str]]:
    """Return the pieces of all calls' arguments, interleaved as the answer says."""
    queues: list[list[str]] = []
    for _, args, cuts in answer.calls:
        text = json.dumps(args, ensure_ascii=answer.ascii)
        places = [0, *sorted(int(cut * len(text)) for cut in cuts), len(text)]
        queues.append([text[a:b] for a, b in itertools.pairwise(places)])
    found: list[tuple[int, str]] = []
    for index in answer.order:
        if index < len(queues) and queues[index]:
            found.append((index, queues[index].pop(0)))
    for index, queue in enumerate(queues):
        found += [(index, fragment) for fragment in queue]
    return found


def _openai(answer: Answer) -> list[bytes]:
    def chunk(finish: str | None = None, **delta: Any) -> bytes:
        return event(
            {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        )

    events = [chunk(role="assistant", content="")]
    events += [chunk(reasoning_content=text) for text in answer.thinking]
    events += [chunk(content=text) for text in answer.texts]
    for index, (name, _, _) in enumerate(answer.calls):
        call = {
            "index": index,
            "id": f"call-{index}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        events.append(chunk(tool_calls=[call]))
    for index, fragment in _fragments(answer):
        events.append(chunk(tool_calls=[{"index": index, "function": {"arguments": fragment}}]))
    events.append(chunk("tool_calls" if answer.calls else "stop"))
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    events.append(event({"id": "x", "choices": [], "usage": usage}))
    return [*events, b"data: [DONE]\n\n"]


def _anthropic(answer: Answer) -> list[bytes]:
    def said(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)

    message = {"id": "x", "model": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}
    events = [said("message_start", message=message)]
    number = 0
    for kind, pieces, key in (("thinking", answer.thinking, "thinking"), ("text", answer.texts, "text")):
        if pieces:
            events.append(said("content_block_start", index=number, content_block={"type": kind, key: ""}))
            delta = [{"type": f"{kind}_delta", key: piece} for piece in pieces]
            events += [said("content_block_delta", index=number, delta=d) for d in delta]
            events.append(said("content_block_stop", index=number))
            number += 1
    for index, (name, _, _) in enumerate(answer.calls):
        block = {"type": "tool_use", "id": f"call-{index}", "name": name, "input": {}}
        events.append(said("content_block_start", index=number + index, content_block=block))
    for index, fragment in _fragments(answer):
        delta_ = {"type": "input_json_delta", "partial_json": fragment}
        events.append(said("content_block_delta", index=number + index, delta=delta_))
    events += [said("content_block_stop", index=number + index) for index in range(len(answer.calls))]
    reason = "tool_use" if answer.calls else "end_turn"
    events.append(said("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 2}))
    return [*events, said("message_stop")]


def _responses(answer: Answer) -> list[bytes]:
    def said(kind: str, **fields: Any) -> bytes:
        return event({"type": f"response.{kind}", **fields}, f"response.{kind}")

    head = {"id": "x", "object": "response", "model": "m", "error": None}
    events = [said("created", response={**head, "status": "in_progress", "output": []})]
    output: list[dict[str, Any]] = []
    thought, text = "".join(answer.thinking), "".join(answer.texts)
    if thought:
        output.append(
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": thought}]}
        )
        events.append(said("output_item.added", output_index=0, item={**output[0], "summary": []}))
        at: dict[str, Any] = {"item_id": "rs", "output_index": 0, "summary_index": 0}
        events += [said("reasoning_summary_text.delta", **at, delta=piece) for piece in answer.thinking]
        events.append(said("output_item.done", output_index=0, item=output[0]))
    if text or not (thought or answer.calls):
        number = len(output)
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append({"type": "message", "id": "msg", "role": "assistant", "content": [part]})
        events.append(said("output_item.added", output_index=number, item={**output[-1], "content": []}))
        at = {"item_id": "msg", "output_index": number, "content_index": 0}
        events += [said("output_text.delta", **at, delta=piece) for piece in answer.texts]
        events.append(said("output_text.done", **at, text=text))
        events.append(said("output_item.done", output_index=number, item=output[-1]))
    first = len(output)
    for index, (name, args, _) in enumerate(answer.calls):
        whole = json.dumps(args, ensure_ascii=answer.ascii)
        item = {"type": "function_call", "id": f"fc-{index}", "call_id": f"call-{index}", "name": name}
        output.append({**item, "arguments": whole})
        events.append(said("output_item.added", output_index=first + index, item={**item, "arguments": ""}))
    for index, fragment in _fragments(answer):
        at = {"item_id": f"fc-{index}", "output_index": first + index}
        events.append(said("function_call_arguments.delta", **at, delta=fragment))
    for number, item in enumerate(output[first:], first):
        at = {"item_id": item["id"], "output_index": number}
        events.append(said("function_call_arguments.done", **at, arguments=item["arguments"]))
        events.append(said("output_item.done", output_index=number, item=item))
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    whole_one = {**head, "status": "completed", "output": output, "usage": usage}
    return [*events, said("completed", response=whole_one)]


def _gemini(answer: Answer) -> list[bytes]:
    def chunk(*parts: dict[str, Any], **more: Any) -> bytes:
        candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
        return event({"candidates": [candidate], "modelVersion": "m", "responseId": "x"})

    events = [chunk({"text": text, "thought": True}) for text in answer.thinking]
    events += [chunk({"text": text}) for text in answer.texts]
    for index, (name, args, _) in enumerate(answer.calls):
        events.append(chunk({"functionCall": {"id": f"call-{index}", "name": name, "args": args}}))
    return [*events, chunk({"text": ""}, finishReason="STOP")]


_DIALECTS: dict[str, Callable[[Answer], list[bytes]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "responses": _responses,
    "gemini": _gemini,
}


def encode(style: str, answer: Answer) -> list[bytes]:
    """Return an answer as the events of a dialect."""
    return _DIALECTS[style](answer)


#: What means nothing and may stand between any two events.
_FILLERS = [
    b": ping\n\n",
    b":\n\n",
    b"retry: 1000\n\n",
    b"\n",
    b"id: 7\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
]


@st.composite
def dressed(draw: st.DrawFn, events: list[bytes]) -> bytes:
    """Return a stream that says the same: with fillers, other line ends, a byte-order mark."""
    out: list[bytes] = []
    for item in events:
        out += draw(st.lists(st.sampled_from(_FILLERS), max_size=1))
        out.append(item)
    data = b"".join(out)
    ending = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + data.replace(b"\n", ending)


#: What no provider should send, and some do.
JUNK = [
    b"data: [DONE]\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: 7\n\n",
    b'data: "text"\n\n',
    b"data: {}\n\n",
    b"data: {cut\n\n",
    b"data: {}{}\n\n",
    b"data\n\n",
    b"event: error\n\n",
    b"event: error\ndata: boom\n\n",
    b'data: {"error": {"message": "M", "code": 500}}\n\n',
    b'data: {"error": "text"}\n\n',
    b'data: {"error": null}\n\n',
    b'{"error": {"message": "bare"}}\n',
    b"<html><title>T</title></html>\n",
    b"error: broken\n\n",
    b"\x00\xff\xfe\n\n",
    b'data: {"choices": null}\n\n',
    b'data: {"choices": [null]}\n\n',
    b'data: {"choices": [{}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": null, "finish_reason": null}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [null, 1, {}]}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": {"a": []}}}]}\n\n',
    b'data: {"choices": [{"delta": {}, "finish_reason": 5}]}\n\n',
    b'data: {"choices": {"0": 1}}\n\n',
    b'data: {"type": "content_block_delta"}\n\n',
    b'data: {"type": "content_block_start", "index": []}\n\n',
    b'data: {"type": "message_delta", "delta": 1}\n\n',
    b'data: {"type": "message_stop"}\n\n',
    b'data: {"type": 5}\n\n',
    b'data: {"type": "error", "error": {"type": "overloaded_error"}}\n\n',
    b'data: {"usage": {"prompt_tokens": "x"}}\n\n',
    b"data: " + b"[" * 3000 + b"\n\n",
    b'data: {"type": "message_start", "message": []}\n\n',
    b'data: {"type": "response.output_item.added", "item": 5}\n\n',
    b'data: {"type": "response.output_text.delta", "delta": []}\n\n',
    b'data: {"type": "response.function_call_arguments.delta", "output_index": {}, "delta": "{"}\n\n',
    b'data: {"type": "response.completed", "response": null}\n\n',
    b'data: {"type": "response.failed", "response": {"error": {"message": "M"}}}\n\n',
    b'data: {"candidates": null, "promptFeedback": {"blockReason": "SAFETY"}}\n\n',
    b'data: {"candidates": [{"content": {"parts": [null, 1, {"functionCall": []}]}}]}\n\n',
    b'data: {"candidates": [{"content": {"parts": {"text": 1}}, "finishReason": 5}]}\n\n',
    b"\r",
    b"\n",
]


@st.composite
def damaged(draw: st.DrawFn, streams: list[list[bytes]]) -> bytes:
    """Return what becomes of one stream or two when events are lost, mixed and changed, and bytes as well."""
    events = list(streams[0])
    for other in streams[1:]:
        for item in other:
            events.insert(draw(st.integers(0, len(events))), item)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(events) - 1)) if events else 0
        action = draw(st.sampled_from(["drop", "repeat", "swap", "junk", "change"]))
        if not events or action == "junk":
            events.insert(at, draw(st.sampled_from(JUNK) | st.binary(max_size=30)))
        elif action == "drop":
            del events[at]
        elif action == "repeat":
            events.insert(at, events[at])
        elif action == "swap":
            events[at], events[0] = events[0], events[at]
        else:
            events[at] = draw(_changed(events[at]))
    data = bytearray(b"".join(events))
    for _ in range(draw(st.integers(0, 2))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


@st.composite
def _changed(draw: st.DrawFn, item: bytes) -> bytes:
    """Return an event with some value of its JSON replaced by any other, or taken out."""
    head, mark, data = item.partition(b"data: ")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # junk that was put in before, some of it nested too deep
        return item
    holder, key = draw(st.sampled_from(list(positions(value)) or [({"": value}, "")]))
    if isinstance(holder, dict) and draw(st.booleans()):
        del holder[key]
    else:
        holder[key] = draw(json_values)
    return head + mark + json.dumps(value).encode() + b"\n\n"


def positions(value: Any) -> list[tuple[Any, Any]]:
    """Return every place inside a JSON value, as its container and the key there."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        found.append((value, key))
        found += positions(inner)
    return found


@st.composite
def pieces_of(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Return some bytes, split anywhere into pieces."""
    if not data:
        return []
    cuts = draw(st.lists(st.integers(1, max(1, len(data) - 1)), max_size=12, unique=True))
    if draw(st.integers(0, 9)) == 0 and len(data) < 2000:
        return [data[i : i + 1] for i in range(len(data))]
    places = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places) if a < b]
