"""The event-stream vectors, through the real source over a real socket."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolnexus.cancel import CancelScope
from toolnexus.testing import ModelServer, raw
from toolnexus.transport.failures import Timeouts
from toolnexus.transport.http import HTTPRequest, Limits, Transport
from toolnexus.transport.secret import Scrubber

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data/sse/vectors.json").read_text())[
    "vectors"
]


class Endpoint:
    """A server that sends given pieces, and what reads them back as events."""

    def __init__(self, server: ModelServer) -> None:
        self.pieces: list[bytes] = []
        self.framing = "chunked"
        server.on_request(lambda request: raw(chunks=self.pieces, framing=self.framing))  # type: ignore[arg-type]
        self.url = server.base_url + "/any"
        self.transport = Transport(None, Timeouts(), Limits())

    def events(self, pieces: list[bytes]) -> list[dict[str, str]]:
        self.pieces = pieces
        request = HTTPRequest(self.url, {}, b"{}", Scrubber(self.url, {}), "server")
        exchange = self.transport.open(request, CancelScope())
        try:
            return [{"event": e.event, "data": e.data} for e in exchange.events(lambda ready: None)]
        finally:
            exchange.close(reuse=True)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with ModelServer() as server:
        endpoint = Endpoint(server)
        yield endpoint
        endpoint.transport.close()


def splits(data: bytes) -> Iterator[list[bytes]]:
    """Yield the input whole, byte by byte, and split in two at every position (a long one at 64)."""
    yield [data]
    positions = range(1, len(data))
    if len(data) > 1000:
        positions = sorted(random.Random(7).sample(range(1, len(data)), 64))  # type: ignore[assignment]
    else:
        yield [data[i : i + 1] for i in range(len(data))]
    for position in positions:
        yield [data[:position], data[position:]]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_every_vector_holds_at_every_split(vector: dict[str, Any], endpoint: Endpoint) -> None:
    """The events are the same however the bytes are cut into pieces."""
    data = base64.b64decode(vector["input_base64"])
    wanted = list(vector["events"])
    for pieces in splits(data):
        assert endpoint.events([p for p in pieces if p]) == wanted, pieces


@pytest.mark.parametrize("framing", ["close", "length"])
def test_vectors_hold_in_every_framing(framing: str, endpoint: Endpoint) -> None:
    """How HTTP frames the body makes no difference."""
    endpoint.framing = framing
    try:
        for vector in VECTORS:
            data = base64.b64decode(vector["input_base64"])
            assert endpoint.events([data]) == vector["events"], vector["name"]
    finally:
        endpoint.framing = "chunked"
