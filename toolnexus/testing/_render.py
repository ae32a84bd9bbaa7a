"""From a scripted answer to the bytes of one HTTP response, in the words of the asked provider."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs

from toolnexus.testing._answers import Answer, Call, Delivery, Failure, Raw, StreamFailure, Turn
from toolnexus.testing._encode import dump

__all__ = ["Asked", "Dialect", "Rendered", "argument_pieces", "render"]


@attrs.frozen
class Asked:
    """What an answer depends on: the request's number, its model and how it wants to be answered."""

    number: int
    model: str
    stream: bool = False
    include_usage: bool = False

    def call_id(self, call: Call, index: int) -> str:
        """Return the id of a call, a made one where the script gives none."""
        return call.id if call.id is not None else f"call_{self.number}_{index}"


@attrs.frozen(kw_only=True)
class Rendered:
    """
    A response, ready to be sent.

    ``body`` and ``closing`` are its pieces; a hold or a cut takes place between the two.
    """

    status: int
    headers: dict[str, str]
    body: Iterable[bytes]
    closing: Sequence[bytes] = ()
    ping: bytes = b""
    whole: bool
    delivery: Delivery


class Dialect(Protocol):
    """A provider's way to say it."""

    name: str
    base_path: str
    ping: bytes
    request_id_header: str

    @property
    def suffix(self) -> str | tuple[str, ...]:
        """How the paths end that are asked for it."""

    def events(self, turn: Turn, asked: Asked) -> Iterator[bytes]:
        """Yield the events of a turn up to its last content."""

    def closing(self, turn: Turn, asked: Asked) -> list[bytes]:
        """Return the events that end a turn."""

    def whole(self, turn: Turn, asked: Asked) -> dict[str, Any]:
        """Return the turn as one document."""

    def error(self, error: Failure | StreamFailure, asked: Asked) -> dict[str, Any]:
        """Return the document of an error."""

    def error_event(self, error: StreamFailure, asked: Asked) -> bytes:
        """Return an error as an event of a stream."""


def argument_pieces(call: Call) -> list[str]:
    """Return the argument text of a call in the pieces it is streamed in."""
    if not isinstance(call.pieces, int):
        return list(call.pieces)
    text = argument_text(call)
    count = max(1, min(call.pieces, len(text)))
    edges = [len(text) * i // count for i in range(count + 1)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def argument_text(call: Call) -> str:
    """Return the whole argument text of a call."""
    if not isinstance(call.pieces, int):
        return "".join(call.pieces)
    return call.args if isinstance(call.args, str) else dump(call.args)


def render(answer: Answer, dialect: Dialect, asked: Asked) -> Rendered:
    """
    Return the response that an answer is to a request.

    Args:
        answer: The scripted answer.
        dialect: The provider whose path was asked.
        asked: What the request says.
    """
    if isinstance(answer, Raw):
        return _raw(answer)
    head = {dialect.request_id_header: f"req_test_{asked.number}"}
    if isinstance(answer, Failure):
        return _document(answer.status, dialect.error(answer, asked), head, answer.delivery)
    if not asked.stream:
        if isinstance(answer, StreamFailure):
            return _document(answer.status, dialect.error(answer, asked), head, answer.delivery)
        return _document(200, dialect.whole(answer, asked), head, answer.delivery)
    turn = answer if isinstance(answer, Turn) else Turn(text=answer.after)
    closing = (
        dialect.closing(turn, asked) if isinstance(answer, Turn) else [dialect.error_event(answer, asked)]
    )
    return Rendered(
        status=200,
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", **head},
        body=dialect.events(turn, asked),
        closing=closing,
        ping=dialect.ping,
        whole=False,
        delivery=answer.delivery,
    )


def _document(status: int, document: dict[str, Any], head: dict[str, str], delivery: Delivery) -> Rendered:
    """Return a JSON response, in two halves so that it can be held or cut in between."""
    data = dump(document).encode("utf-8")
    middle = len(data) // 2
    return Rendered(
        status=status,
        headers={"Content-Type": "application/json", **head},
        body=[data[:middle]],
        closing=[data[middle:]],
        whole=True,
        delivery=delivery,
    )


def _raw(answer: Raw) -> Rendered:
    """Return bytes as a response."""
    headers = {} if answer.content_type is None else {"Content-Type": answer.content_type}
    return Rendered(
        status=answer.status,
        headers=headers,
        body=answer.chunks,
        ping=b": ping\n\n",
        whole=False,
        delivery=answer.delivery,
    )
