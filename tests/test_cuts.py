"""Every recorded stream, cut at twenty places: never a Done too early, never a tool, and the text is kept."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.support.wire import Recording, digest, recordings
from toolnexus import Client, Done, Error, Text, Tool
from toolnexus.testing import ModelServer, raw
from toolnexus.wire import DIALECTS

CUTS = 20

_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_DATA = re.compile(rb"(?m)^data: ?(.*?)\r?$")


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def clients(server: ModelServer) -> Iterator[dict[str, Client]]:
    made = {
        style: Client(server.url_for(style), style=style, model="m", api_key="k", retries=0, max_turns=1)
        for style in DIALECTS
    }
    yield made
    for client in made.values():
        client.close()


@attrs.frozen
class Piece:
    """An event of a recording, read without any of our code: where its data and it end, and what it says."""

    data_end: int
    end: int
    text: str
    finishes: bool


def pieces(recording: Recording) -> list[Piece]:
    """Return the events of a recording."""
    found: list[Piece] = []
    for match in _EVENT.finditer(recording.body):
        lines = list(_DATA.finditer(match[0]))
        if not lines:
            continue
        data = b"\n".join(line[1] for line in lines)
        text, finishes = said(data)
        found.append(Piece(match.start() + lines[-1].end(1), match.end(), text, finishes))
    return found


def said(data: bytes) -> tuple[str, bool]:
    """Return the text that an event brings, and whether it says that or why the answer ends."""
    if data.strip() == b"[DONE]":
        return "", True
    try:
        value = json.loads(data)
    except ValueError:
        return "", False
    if "choices" in value:
        choices = [c for c in value["choices"] or () if not c.get("index")]
        texts = [(c.get("delta") or {}).get("content") for c in choices]
        finishes = any(c.get("finish_reason") for c in choices)
        return "".join(t for t in texts if isinstance(t, str)), finishes
    if "candidates" in value or "promptFeedback" in value:
        return said_by_gemini(value)
    if str(value.get("type")).startswith("response."):
        finishes = value["type"] in ("response.completed", "response.incomplete")
        return (value["delta"] if value["type"] == "response.output_text.delta" else ""), finishes
    delta = value.get("delta") or {}
    finishes = value.get("type") == "message_stop" or bool(delta.get("stop_reason"))
    return (delta.get("text") or "") if delta.get("type") == "text_delta" else "", finishes


def said_by_gemini(value: dict[str, Any]) -> tuple[str, bool]:
    """Return the same for a piece of Gemini's."""
    candidates = value.get("candidates") or ()
    parts = [p for c in candidates for p in (c.get("content") or {}).get("parts") or ()]
    finishes = any(c.get("finishReason") for c in candidates) or "promptFeedback" in value
    return "".join(p.get("text") or "" for p in parts if not p.get("thought")), finishes


def places(recording: Recording, events: list[Piece]) -> list[int]:
    """Return twenty places to cut at: around the end signal, at ends of events, and anywhere."""
    size = len(recording.body)
    signal = next((event for event in events if event.finishes), None)
    chosen = {0, 1, size - 1}
    if signal is not None:
        chosen |= {signal.data_end - 1, signal.data_end, signal.end - 1, signal.end}
    rng = random.Random(recording.name)
    chosen |= {event.end for event in rng.sample(events, min(4, len(events)))}
    while len(chosen) < min(CUTS, size):
        chosen.add(rng.randrange(size))
    return sorted(place for place in chosen if 0 <= place < size)


def tools_of(recording: Recording, ran: list[str]) -> list[Tool]:
    """Return tools under the names that the recording calls, which note that they ran."""
    names = {call["name"] for call in recording.expect["tool_calls"] or () if call["name"]}
    return [Tool(name, execute=lambda args, ctx: ran.append(ctx.tool_name)) for name in sorted(names)]


@pytest.mark.parametrize("recording", recordings(stream=True, ok=True), ids=lambda r: r.name)
def test_a_cut_recording(recording: Recording, server: ModelServer, clients: dict[str, Client]) -> None:
    """The end signal decides; what had arrived before the cut stands on the error."""
    events = pieces(recording)
    plain = digest("".join(event.text for event in events)) == recording.expect["text_sha256_12"]
    plain = plain and "delta-text-differs-from-final" not in recording.meta["shows"]
    signal = next((event for event in events if event.finishes), None)
    for number, place in enumerate(places(recording, events)):
        ran: list[str] = []
        last, streamed = play(recording, place, number, server, clients, tools_of(recording, ran))
        where = f"cut at {place} of {len(recording.body)}"
        early = signal is None or place < signal.data_end
        if isinstance(last, Done):
            assert not early, f"{where}: a Done before the end signal at {signal and signal.data_end}"
            continue
        assert ran == [], f"{where}: a tool ran from a cut answer"
        assert last.partial is not None
        assert last.partial.text == streamed
        if plain:
            whole = "".join(event.text for event in events if event.end <= place)
            assert streamed.startswith(whole), f"{where}: text that had arrived is gone"
        if recording.expect["terminal"] == "done":
            assert early or place < signal.end, f"{where}: {last.error}"  # type: ignore[union-attr]
            assert last.error.retryable
            assert last.error.kind in ("truncated", "empty_response")


def play(
    recording: Recording,
    place: int,
    number: int,
    server: ModelServer,
    clients: dict[str, Client],
    tools: list[Tool],
) -> tuple[Done | Error, str]:
    """Stream the first bytes of a recording, cut in one of four ways; return the end and the text."""
    way: dict[str, Any] = [
        {"cut": "close"},
        {"framing": "close"},
        {"framing": "length", "cut": "close"},
        {"framing": "chunked"},
    ][number % 4]
    answer = raw(recording.body[:place], **way)
    server.on_request(lambda request: answer)
    *items, last = clients[recording.style].stream("go", tools)
    assert not any(isinstance(item, (Done, Error)) for item in items)
    assert isinstance(last, (Done, Error))
    return last, "".join(item.delta for item in items if isinstance(item, Text))


def test_most_recordings_can_be_checked_without_our_code() -> None:
    """The plain reading above gives the recorded text of nearly all of them."""
    every = recordings(stream=True, ok=True)
    plain = [r for r in every if digest("".join(p.text for p in pieces(r))) == r.expect["text_sha256_12"]]
    assert len(plain) >= 0.9 * len(every)
