"""What a scripted server may answer: plain values, made once and rendered for the path that was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import attrs

from toolnexus.results import Usage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Answer",
    "Call",
    "Delivery",
    "DeliveryOptions",
    "Failure",
    "Raw",
    "Script",
    "StreamFailure",
    "Turn",
    "failure",
    "raw",
    "reply",
    "stream_error",
    "tool_call",
    "tool_calls",
]

Framing = Literal["chunked", "close", "length"]
Hold = Literal["headers", "mid-event"]
Cut = Literal["close", "reset"]

#: The token counts of an answer that says nothing about them.
DEFAULT_USAGE = Usage(10, 5, 15)

_WORDS = re.compile(r"\s*\S+\s*|\s+")


class DeliveryOptions(TypedDict, total=False):
    """The keyword arguments that every answer takes; :class:`Delivery` says what they do."""

    framing: Framing | None
    delay: float
    gzip: bool
    split: int | Literal["events"] | None
    hold: bool | Hold
    pings: float | None
    cut: Literal[False] | Cut
    one_write_per_event: bool
    headers: Mapping[str, str | None]


def _positive(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refuse a split that would never end."""
    if value not in (None, "events") and not (isinstance(value, int) and value > 0):
        raise ValueError(f'{attribute.name} must be a positive number of bytes or "events", not {value!r}')


@attrs.frozen(kw_only=True)
class Delivery:
    """
    How the bytes of an answer travel.

    Args:
        framing: "chunked" (the default of a stream), "length" (the default of a whole answer) or "close",
            where the end of the connection is the end of the body.
        delay: Seconds before each event after the first; of a whole answer, before its headers.
        gzip: Whether the body is compressed, with a flush after every event.
        split: The body goes out in pieces of so many bytes, or one event a piece.
        hold: True: everything but the end of the answer is sent, then nothing, with the connection open,
            until ``server.release()`` or the client leaves. "headers" holds before the headers,
            "mid-event" in the middle of an event.
        pings: Seconds between the keep-alive pings that are sent while an answer is held; None: no pings.
        cut: "close" ends the connection where a hold would be, "reset" with a TCP reset.
        one_write_per_event: Whether each event is a write of its own even without a delay.
        headers: Response headers, over those that the server makes; None takes one away.
    """

    framing: Framing | None = attrs.field(
        default=None, validator=attrs.validators.in_((None, "chunked", "close", "length"))
    )
    delay: float = 0.0
    gzip: bool = False
    split: int | Literal["events"] | None = attrs.field(default=None, validator=_positive)
    hold: bool | Hold = attrs.field(
        default=False, validator=attrs.validators.in_((False, True, "headers", "mid-event"))
    )
    pings: float | None = None
    cut: Literal[False] | Cut = attrs.field(
        default=False, validator=attrs.validators.in_((False, "close", "reset"))
    )
    one_write_per_event: bool = False
    headers: Mapping[str, str | None] = attrs.field(factory=dict)


@attrs.frozen
class Call:
    """
    A tool call that the model makes.

    Args:
        name: The tool's name.
        args: Its arguments, or the text that stands for them, right or wrong JSON.
        id: The call's id; made by the server where not given.
        pieces: In how many pieces the arguments are streamed, or the pieces themselves.
    """

    name: str
    args: Mapping[str, Any] | str
    id: str | None = None
    pieces: int | Sequence[str] = 1


@attrs.frozen(kw_only=True)
class Turn:
    """An answer of the model: thinking, text and tool calls, in this order."""

    text: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    usage: Usage | None = DEFAULT_USAGE
    finish: str | None = None
    signature: str = "c2lnbmF0dXJl"
    model: str | None = None
    delivery: Delivery = Delivery()


@attrs.frozen(kw_only=True)
class Failure:
    """An error as an HTTP status, with the body that the provider would send."""

    status: int = 500
    type: str | None = None
    message: str = "the scripted server failed as told"
    code: str | int | None = None
    delivery: Delivery = Delivery()


@attrs.frozen(kw_only=True)
class StreamFailure:
    """An error inside a stream that began well; an HTTP failure where no stream was asked for."""

    after: tuple[str, ...] = ()
    type: str | None = None
    message: str = "the scripted server failed as told"
    code: str | int | None = None
    status: int = 500
    delivery: Delivery = Delivery()


@attrs.frozen(kw_only=True)
class Raw:
    """Bytes, as they are, whatever path was asked."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    content_type: str | None = None
    delivery: Delivery = Delivery()


Answer = Turn | Failure | StreamFailure | Raw


def _pieces(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the pieces of a text: those given, or its words with their spaces."""
    if text is None:
        return ()
    if isinstance(text, str):
        return tuple(_WORDS.findall(text))
    pieces = () if isinstance(text, bytes) else tuple(text)
    if isinstance(text, bytes) or not all(isinstance(piece, str) for piece in pieces):
        raise TypeError(f"a text must be a str or a list of them, not {text!r:.80}")
    return pieces


def _usage(usage: tuple[int, int] | Usage | None) -> Usage | None:
    """Return the counts as a value; a pair is prompt and completion."""
    if usage is None or isinstance(usage, Usage):
        return usage
    prompt, completion = usage
    return Usage(prompt, completion, prompt + completion)


def reply(
    text: str | Sequence[str] = "",
    *,
    thinking: str | Sequence[str] | None = None,
    calls: Sequence[Call | tuple[str, Mapping[str, Any] | str]] = (),
    usage: tuple[int, int] | Usage | None = DEFAULT_USAGE,
    finish: str | None = None,
    signature: str = "c2lnbmF0dXJl",
    model: str | None = None,
    **delivery: Unpack[DeliveryOptions],
) -> Turn:
    """
    Return an answer of the model.

    Args:
        text: The text. A string is streamed word by word, a list in exactly these pieces.
        thinking: The reasoning before it, in the same way.
        calls: The tool calls after it: :class:`Call` values, or pairs of name and arguments.
        usage: The token counts: prompt and completion, or a ``Usage``; None: the server reports none.
        finish: Why the answer ends: "stop", "length", "tool_calls", "content_filter", "pause", or a
            provider's own word, which goes out as it is. Left out, it follows from the answer.
        signature: The signature of the thinking, in the style that has one.
        model: The model's name in the answer; the one that was asked for by default.
        delivery: How it travels, see :class:`Delivery`.

    Returns:
        The answer, for ``server.play`` or as the result of an ``on_request`` function.

    >>> reply("Hello you").text
    ('Hello ', 'you')
    """
    return Turn(
        text=_pieces(text),
        thinking=_pieces(thinking),
        calls=tuple(call if isinstance(call, Call) else Call(*call) for call in calls),
        usage=_usage(usage),
        finish=finish,
        signature=signature,
        model=model,
        delivery=Delivery(**delivery),
    )


def tool_call(
    name: str,
    args: Mapping[str, Any] | str | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the provider's word for it
    pieces: int | Sequence[str] = 1,
    text: str | Sequence[str] = "",
    thinking: str | Sequence[str] | None = None,
    usage: tuple[int, int] | Usage | None = DEFAULT_USAGE,
    finish: str | None = None,
    **delivery: Unpack[DeliveryOptions],
) -> Turn:
    """
    Return an answer that asks for one tool call; the arguments are those of :func:`reply` and :class:`Call`.

    >>> tool_call("add", {"a": 2, "b": 3}).calls[0].name
    'add'
    """
    call = Call(name, {} if args is None else args, id, pieces)
    return reply(text, thinking=thinking, calls=[call], usage=usage, finish=finish, **delivery)


def tool_calls(
    calls: Sequence[Call | tuple[str, Mapping[str, Any] | str]],
    *,
    text: str | Sequence[str] = "",
    thinking: str | Sequence[str] | None = None,
    usage: tuple[int, int] | Usage | None = DEFAULT_USAGE,
    finish: str | None = None,
    **delivery: Unpack[DeliveryOptions],
) -> Turn:
    """Return an answer that asks for several tool calls in one turn."""
    return reply(text, thinking=thinking, calls=calls, usage=usage, finish=finish, **delivery)


def failure(
    status: int = 500,
    type: str | None = None,  # noqa: A002 - the provider's word for it
    message: str = "the scripted server failed as told",
    *,
    code: str | int | None = None,
    **delivery: Unpack[DeliveryOptions],
) -> Failure:
    """
    Return an HTTP error with the body that the asked provider would send.

    Args:
        status: The HTTP status.
        type: The provider's word for the error; the usual one of the status by default.
        message: The message.
        code: The provider's error code.
        delivery: How it travels, see :class:`Delivery`; ``headers={"Retry-After": "1"}`` for instance.
    """
    return Failure(status=status, type=type, message=message, code=code, delivery=Delivery(**delivery))


def stream_error(
    after: str | Sequence[str] = (),
    type: str | None = None,  # noqa: A002 - the provider's word for it
    message: str = "the scripted server failed as told",
    *,
    code: str | int | None = None,
    status: int = 500,
    **delivery: Unpack[DeliveryOptions],
) -> StreamFailure:
    """
    Return an answer that begins with some text and then reports an error inside the stream.

    Args:
        after: The text before the error.
        type: The provider's word for the error.
        message: The message.
        code: The provider's error code.
        status: The HTTP status for a request that asks for no stream.
        delivery: How it travels, see :class:`Delivery`.
    """
    return StreamFailure(
        after=_pieces(after),
        type=type,
        message=message,
        code=code,
        status=status,
        delivery=Delivery(**delivery),
    )


def raw(
    body: bytes = b"",
    *,
    chunks: Sequence[bytes] | None = None,
    status: int = 200,
    content_type: str | None = "text/event-stream",
    **delivery: Unpack[DeliveryOptions],
) -> Raw:
    """
    Return any bytes.

    Args:
        body: The body in one piece.
        chunks: The body in several pieces, each a write (and an HTTP chunk) of its own.
        status: The HTTP status.
        content_type: The Content-Type header; None: no such header.
        delivery: How it travels, see :class:`Delivery`.

    Raises:
        TypeError: Something is not bytes.
    """
    options = Delivery(**delivery)
    if chunks is not None:
        options = attrs.evolve(options, one_write_per_event=True)
        if isinstance(chunks, (str, bytes)):
            raise TypeError(f"chunks must be a list of bytes, not {chunks!r:.80}")
    parts = (body,) if chunks is None else tuple(chunks)
    for part in parts:
        if not isinstance(part, (bytes, bytearray, memoryview)):
            raise TypeError(f"a raw body is bytes, not {part!r:.80}; a text would be body=text.encode()")
    return Raw(chunks=parts, status=status, content_type=content_type, delivery=options)


class Script:
    """
    Answers in order, to be played on a server as often as one likes.

    Args:
        answers: What :func:`reply`, :func:`tool_call` and their like return; a string is a reply.

    >>> len(Script(tool_call("add", {"a": 2, "b": 3}), "the sum is 5"))
    2
    """

    def __init__(self, *answers: Answer | str) -> None:
        self.answers: tuple[Answer, ...] = tuple(as_answer(answer) for answer in answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        return f"Script({', '.join(type(answer).__name__ for answer in self.answers)})"


def as_answer(answer: Answer | str) -> Answer:
    """Return an answer as a value; a string is a reply. TypeError for anything else."""
    if isinstance(answer, str):
        return reply(answer)
    if not isinstance(answer, Turn | Failure | StreamFailure | Raw):
        raise TypeError(f"an answer is made by reply(), tool_call() and their like, not {answer!r}")
    return answer
