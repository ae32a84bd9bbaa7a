"""The methods of a scripted server that queue one answer each."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolnexus.results import Usage
from toolnexus.testing._answers import (
    DEFAULT_USAGE,
    Answer,
    Call,
    DeliveryOptions,
    Script,
    failure,
    raw,
    reply,
    stream_error,
    tool_call,
    tool_calls,
)
from toolnexus.testing._recorded import recorded

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Scripting"]


class Scripting(ABC):
    """Something that plays answers in the order in which they are queued."""

    @abstractmethod
    def play(self, script: Script | Sequence[Answer | str] | Answer | str) -> None:
        """Queue an answer, or several of them."""

    def say(
        self,
        text: str | Sequence[str] = "",
        *,
        thinking: str | Sequence[str] | None = None,
        calls: Sequence[Call | tuple[str, Mapping[str, Any] | str]] = (),
        usage: tuple[int, int] | Usage | None = DEFAULT_USAGE,
        finish: str | None = None,
        signature: str = "c2lnbmF0dXJl",
        model: str | None = None,
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue an answer of the model; the arguments are those of :func:`reply`."""
        self.play(
            reply(
                text,
                thinking=thinking,
                calls=calls,
                usage=usage,
                finish=finish,
                signature=signature,
                model=model,
                **delivery,
            )
        )

    def call(
        self,
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
    ) -> None:
        """Queue an answer that asks for one tool call; the arguments are those of :func:`tool_call`."""
        self.play(
            tool_call(
                name,
                args,
                id=id,
                pieces=pieces,
                text=text,
                thinking=thinking,
                usage=usage,
                finish=finish,
                **delivery,
            )
        )

    def call_many(
        self,
        calls: Sequence[Call | tuple[str, Mapping[str, Any] | str]],
        *,
        text: str | Sequence[str] = "",
        thinking: str | Sequence[str] | None = None,
        usage: tuple[int, int] | Usage | None = DEFAULT_USAGE,
        finish: str | None = None,
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue an answer that asks for several tool calls at once."""
        self.play(tool_calls(calls, text=text, thinking=thinking, usage=usage, finish=finish, **delivery))

    def fail(
        self,
        status: int = 500,
        type: str | None = None,  # noqa: A002 - the provider's word for it
        message: str = "the scripted server failed as told",
        *,
        code: str | int | None = None,
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue an HTTP error; the arguments are those of :func:`failure`."""
        self.play(failure(status, type, message, code=code, **delivery))

    def error_in_stream(
        self,
        after: str | Sequence[str] = (),
        type: str | None = None,  # noqa: A002 - the provider's word for it
        message: str = "the scripted server failed as told",
        *,
        code: str | int | None = None,
        status: int = 500,
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue a stream that ends in an error; the arguments are those of :func:`stream_error`."""
        self.play(stream_error(after, type, message, code=code, status=status, **delivery))

    def raw(
        self,
        body: bytes = b"",
        *,
        chunks: Sequence[bytes] | None = None,
        status: int = 200,
        content_type: str | None = "text/event-stream",
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue any bytes, for any path; the arguments are those of :func:`toolnexus.testing.raw`."""
        self.play(raw(body, chunks=chunks, status=status, content_type=content_type, **delivery))

    def replay(
        self,
        source: str | os.PathLike[str] | bytes,
        *,
        status: int | None = None,
        content_type: str | None = None,
        **delivery: Unpack[DeliveryOptions],
    ) -> None:
        """Queue a recorded body; the arguments are those of :func:`recorded`."""
        self.play(recorded(source, status=status, content_type=content_type, **delivery))
