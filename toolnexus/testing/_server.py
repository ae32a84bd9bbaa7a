"""The scripted model server."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from toolnexus.closing import Closing
from toolnexus.testing._answers import (
    Answer,
    Failure,
    Raw,
    Script,
    StreamFailure,
    Turn,
    as_answer,
)
from toolnexus.testing._anthropic import Anthropic
from toolnexus.testing._connection import Connection
from toolnexus.testing._deliver import Gate, Sender
from toolnexus.testing._gemini import Gemini
from toolnexus.testing._listener import Listener
from toolnexus.testing._openai import OpenAI
from toolnexus.testing._render import Asked, Dialect, render
from toolnexus.testing._requests import RecordedRequest
from toolnexus.testing._responses import Responses
from toolnexus.testing._scripting import Scripting
from toolnexus.testing._tls import server_context
from toolnexus.wording import describe_error

__all__ = ["ModelServer"]

_ALL: tuple[Dialect, ...] = (OpenAI(), Anthropic(), Responses(), Gemini())
_DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in _ALL}


def _dialect_of(request: RecordedRequest) -> Dialect | None:
    """Return the provider whose path was asked, or None."""
    if request.method != "POST" or "//" in request.path or "/v1/v1/" in request.path:
        return None
    return next((d for d in _DIALECTS.values() if request.path.endswith(d.suffix)), None)


class ModelServer(Closing, Scripting):
    """
    A model server on 127.0.0.1 that answers what a test tells it to, over real sockets.

    It speaks OpenAI's chat completions at ``/v1/chat/completions``, Anthropic's messages at
    ``/v1/messages``, OpenAI's responses at ``/v1/responses`` and Gemini's own protocol at
    ``/v1beta/models/NAME:generateContent``; an answer is rendered for the path that was asked, as a stream
    or whole, as the request wants it. Answers are used up in order; when there are none, the ``on_request``
    function decides, and without one the request gets status 400 and counts as unexpected.

    Args:
        style: Whose address ``base_url`` is: "openai", "anthropic", "responses" or "gemini".
        script: Answers to begin with.
        tls: Whether to speak HTTPS, with a certificate of the authority in ``ca_path``; needs ``trustme``.

    Attributes:
        url: The address without a path.
        base_url: The address that a client of the style is given.
        requests: Every request so far, in order of arrival.
        ca_path: The file of the certificate authority, or None without TLS.

    Raises:
        ValueError: There is no such style.

    >>> import json, urllib.request
    >>> with ModelServer(style="openai") as server:
    ...     server.say("Hello")
    ...     body = json.dumps({"model": "test", "messages": []}).encode()
    ...     with urllib.request.urlopen(server.base_url + "/chat/completions", body) as response:
    ...         answer = json.load(response)
    >>> answer["choices"][0]["message"]["content"]
    'Hello'
    """

    def __init__(
        self,
        style: str = "openai",
        *,
        script: Script | Sequence[Answer | str] = (),
        tls: bool = False,
    ) -> None:
        if style not in _DIALECTS:
            raise ValueError(f"style must be one of {', '.join(map(repr, _DIALECTS))}, not {style!r}")
        self.style = style
        self.ca_path: Path | None = None
        context: ssl.SSLContext | None = None
        if tls:
            context, self.ca_path = server_context()
        # The condition guards everything below; whoever changes it notifies.
        self._changed = threading.Condition()
        self.requests: list[RecordedRequest] = []
        self._script: deque[Answer] = deque()
        self._decide: Callable[[RecordedRequest], Answer | str | None] | None = None
        self._gate = Gate()
        self._mistakes: list[str] = []
        self._disconnects = 0
        self._listener = Listener(self._answer, self._left, context)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.port}"
        self.base_url = self.url_for(style)
        self.play(script)

    def __repr__(self) -> str:
        state = "closed" if self._listener.closing else self.base_url
        return f"<ModelServer {state}, {len(self.requests)} requests, {len(self._script)} answers left>"

    def url_for(self, style: str) -> str:
        """Return the base URL for a client of a style; this server serves them all."""
        return self.url + _DIALECTS[style].base_path

    def close(self) -> None:
        """End every connection and every thread; a second call does nothing."""
        self._listener.close()
        if self.ca_path is not None:
            self.ca_path.unlink(missing_ok=True)

    # -- what to answer ----------------------------------------------------------------------

    def play(self, script: Script | Sequence[Answer | str] | Answer | str) -> None:
        """Queue an answer, or several of them: a :class:`Script` or a list."""
        if isinstance(script, Script):
            answers: Sequence[Answer] = script.answers
        elif isinstance(script, str | Turn | Failure | StreamFailure | Raw):
            answers = [as_answer(script)]
        else:
            answers = [as_answer(answer) for answer in script]
        with self._changed:
            self._script.extend(answers)

    def on_request(self, decide: Callable[[RecordedRequest], Answer | str | None] | None) -> None:
        """
        Let a function answer every request for which no answer is queued.

        Args:
            decide: Called with the request, in the connection's own thread; returns an answer, a string as
                the text of one, or None where it expects no such request. None takes the function away.
        """
        with self._changed:
            self._decide = decide

    def release(self) -> None:
        """Let the answers go on that are held now, or that belong to a request received by now."""
        with self._changed:
            self._gate.opened = True
            self._gate = Gate()
        self._listener.wake()

    # -- what was seen -----------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._listener.accepted

    @property
    def live_connections(self) -> int:
        """How many connections are open."""
        return self._listener.live

    @property
    def disconnects(self) -> int:
        """How many connections were closed by the client's side."""
        with self._changed:
            return self._disconnects

    def wait_for_disconnect(self, n: int = 1, timeout: float = 5.0) -> Literal[True]:
        """
        Wait until clients have closed ``n`` connections in all.

        Raises:
            AssertionError: They have not within ``timeout`` seconds.
        """
        return self._expect(lambda: self._disconnects >= n, timeout, f"{n} closed connection(s)")

    def wait_for_request(self, n: int = 1, timeout: float = 5.0) -> RecordedRequest:
        """
        Wait until ``n`` requests have come in all, and return the last of these.

        Raises:
            AssertionError: They have not within ``timeout`` seconds.
        """
        self._expect(lambda: len(self.requests) >= n, timeout, f"{n} request(s)")
        return self.requests[n - 1]

    def assert_done(self) -> None:
        """AssertionError unless every queued answer was used and no request was unexpected."""
        with self._changed:
            problems = list(self._mistakes)
            if self._script:
                left = ", ".join(type(answer).__name__ for answer in self._script)
                problems.append(f"{len(self._script)} answer(s) were never asked for: {left}")
        if problems:
            raise AssertionError("; ".join(problems))

    def _expect(self, seen: Callable[[], bool], timeout: float, what: str) -> Literal[True]:
        with self._changed:
            if not self._changed.wait_for(seen, timeout):
                raise AssertionError(f"no {what} within {timeout:g} s: {self!r}, {self._disconnects} closed")
        return True

    # -- in the threads of the connections ---------------------------------------------------

    def _left(self, request: RecordedRequest | None) -> None:
        """Note that a client closed its connection."""
        now = time.monotonic()
        with self._changed:
            self._disconnects += 1
            if request is not None:
                request.closed_by_client_at = now
            self._changed.notify_all()

    def _answer(self, connection: Connection, request: RecordedRequest) -> bool:
        """Answer a request; return whether the connection goes on."""
        dialect = _dialect_of(request)
        with self._changed:
            self.requests.append(request)
            number, gate = len(self.requests), self._gate
            queued = self._take(dialect)
            self._changed.notify_all()
        answer = queued if queued is not None else self._decided(request, dialect)
        options = request.option("stream_options")
        asked = Asked(
            number=number,
            model=request.model or "test",
            stream=request.stream,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )
        response = render(answer, dialect or _DIALECTS[self.style], asked)
        old = request.http_version == "HTTP/1.0"
        goes_on = Sender(connection, gate, response, keep_alive=request.keep_alive, http_1_0=old).send()
        if not answer.delivery.cut:
            request.answered_at = time.monotonic()
        return goes_on

    def _take(self, dialect: Dialect | None) -> Answer | None:
        """Return the next queued answer where it fits the path; under the lock."""
        if self._script and (dialect is not None or isinstance(self._script[0], Raw)):
            return self._script.popleft()
        return None

    def _decided(self, request: RecordedRequest, dialect: Dialect | None) -> Answer:
        """Return what the user's function answers, or an error that says why there is no answer."""
        decide = self._decide
        problem = f"unexpected request: {request.method} {request.path}"
        if decide is not None:
            try:
                chosen = decide(request)
                answer = None if chosen is None else as_answer(chosen)
                if isinstance(answer, Raw) or (answer is not None and dialect is not None):
                    return answer
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                problem = f"the on_request function failed: {describe_error(error)}"
        with self._changed:
            self._mistakes.append(problem)
        status = 404 if dialect is None else 400
        return Failure(status=status, type="unexpected_request", message=f"toolnexus.testing: {problem}")
