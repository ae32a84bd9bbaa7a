"""One try of a model call over HTTP: asking, reading, and learning what an endpoint does not take."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import secrets
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import attrs

from toolnexus.chunks import Chunk, Reply, mend_surrogates
from toolnexus.errors import (
    APIError,
    APIStatusError,
    ConfigurationError,
    HookError,
    MalformedEventError,
    ToolnexusError,
    TruncatedStreamError,
)
from toolnexus.events import Text, Thinking, ToolCallDelta
from toolnexus.merge import ReplyBuilder
from toolnexus.options import Options
from toolnexus.results import AttemptRecord, Usage
from toolnexus.run import Run
from toolnexus.transport.http import Exchange, HTTPRequest
from toolnexus.transport.secret import Scrubber
from toolnexus.wire import Decoder, Dialect, ModelRequest
from toolnexus.wire.errors import provider_error
from toolnexus.wire.quirks import learn
from toolnexus.wire.transcript import prepare
from toolnexus.wording import describe_error

__all__ = ["Trial", "transformed"]

_log = logging.getLogger("toolnexus")

#: Seconds that the rest of an answer may take once it has said why it ended.
_TRAILER_SECONDS = 10.0
_ERROR_BYTES = 1024 * 1024
_ERROR_SECONDS = 5.0

#: `json.dumps` makes one of these a call.
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Trial:
    """
    One try.

    Args:
        run: The run.
        number: Which try of this turn it is, from 1.
    """

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self.number = number
        #: Whether anything of this try went to the caller.
        self.handed_out = False
        self.endpoint = run.endpoint
        self.began = time.monotonic()
        #: When the first piece of the answer came.
        self.first: float | None = None
        self.reply: Reply | None = None
        self.builder: ReplyBuilder | None = None
        self.request: ModelRequest | None = None

    def run_once(self) -> Reply:
        run = self.run
        run.reporter.at("model", run.turns + 1, f"msg-{secrets.token_hex(8)}", self.number)
        request = self._request()
        decoder = self.endpoint.dialect.decoder(skip_bad_events=self.endpoint.options.skip_bad_events)
        self.builder = run.current = decoder.builder
        began = time.monotonic()
        run.reporter.flush()
        exchange = self.endpoint.transport.open(request, run.scope)
        _log.debug(
            "%s: %s answered %d in %.3f s",
            run.run_id,
            request.where,
            exchange.status,
            time.monotonic() - began,
        )
        whole = False
        try:
            if exchange.status >= 300:
                raise self._refusal(exchange)
            self._read(exchange, decoder)
            whole = True
        except APIError as error:
            error.request_id = error.request_id or _request_id(exchange)
            _hide_secrets(error, request.scrub)
            raise
        finally:
            exchange.close(reuse=whole)
        return decoder.reply()

    def record(self, error: ToolnexusError | None, reply: Reply | None = None) -> AttemptRecord:
        """Return what to remember of this try."""
        usage = self.builder.usage if self.builder else None
        return AttemptRecord(
            turn=self.run.turns + 1,
            attempt=self.number,
            model=(reply.model if reply else "") or self.endpoint.options.model,
            error=error.message if error else None,
            kind=error.kind if error else None,
            usage=usage or Usage(),
            duration=time.monotonic() - self.began,
            time_to_first_token=None if self.first is None else self.first - self.began,
        )

    def text(self) -> str:
        """Return the text that this try gave."""
        return self.builder.joined_text() if self.builder else ""

    # -- asking ------------------------------------------------------------------------------

    def _request(self) -> HTTPRequest:
        run = self.run
        options = self.endpoint.options
        quirks = attrs.evolve(self.endpoint.quirks)  # another run may learn meanwhile
        messages, declarations = run.outgoing
        prepared = prepare(messages, run.system_prompt())
        for repair in prepared.repairs:
            _log.debug("%s: the transcript was mended: %s", run.run_id, repair)
        self.request = ModelRequest(
            model=options.model,
            messages=prepared.messages,
            system=prepared.system,
            tools=declarations,
            stream=run.streaming and quirks.stream,
            quirks=quirks,
            echo_reasoning=options.echo_reasoning,
        )
        dialect = self.endpoint.dialect
        body = transformed(options, dialect, {**dialect.body(self.request), **run.extra})
        url = dialect.endpoint(options.base_url, self.request)
        headers = self._headers()
        data = _dumped(body, run)
        if options.log_content:
            _log.debug("%s: request body %s", run.run_id, data.decode())
        return HTTPRequest(url, headers, data, Scrubber(url, headers), urlsplit(url).netloc)

    def _headers(self) -> dict[str, str]:
        options = self.endpoint.options
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "toolnexus",
            **self.endpoint.dialect.headers(options.key()),
        }
        # A user's header replaces ours whatever its capitals.
        known = {name.lower(): name for name in headers}
        for name, value in options.headers.items():
            headers.pop(known.get(name.lower(), ""), None)
            headers[name] = value.reveal()
        return headers

    # -- reading -----------------------------------------------------------------------------

    def _read(self, exchange: Exchange, decoder: Decoder) -> None:
        """Read the answer to its end and hand on what it brings."""
        assert self.request is not None
        failure: ToolnexusError | None = None
        trailer = False
        events = exchange.events(self.run.reporter.before_wait, streaming=self.request.stream)
        while not decoder.ended:
            try:
                event = next(events)
            except StopIteration:
                break
            except ToolnexusError as error:
                failure = error
                break
            try:
                chunks = decoder.feed(event.event, event.data)
            except MalformedEventError as error:
                if not exchange.source.cut_event:
                    raise
                # The last event lacks its end: it is not malformed, the answer was cut inside it.
                failure = exchange.source.failure or TruncatedStreamError(
                    "the answer broke off inside an event"
                )
                failure.__cause__ = failure.__cause__ or error
                break
            self._hand_on(chunks)
            if decoder.finished and (chunks or not trailer):
                trailer = True  # what still comes of the answer moves the end
                exchange.expect_end(_TRAILER_SECONDS)
        source = exchange.source
        self._hand_on(
            decoder.finish(failure, received=source.received, head=source.head.decode("utf-8", "replace"))
        )

    def _hand_on(self, chunks: list[Chunk]) -> None:
        run = self.run
        for chunk in chunks:
            if self.first is None:
                self.first = time.monotonic()
            if run.first_token is None:
                run.first_token = time.monotonic() - run.started
            kind = chunk.type
            if kind == "text_delta":
                self.handed_out = run.reporter.send(Text, chunk.text) or self.handed_out
            elif kind == "thinking_delta":
                self.handed_out = run.reporter.send(Thinking, chunk.text) or self.handed_out
            elif kind == "tool_call_delta":
                self.handed_out = (
                    run.reporter.send(ToolCallDelta, chunk.index, chunk.id, chunk.name, chunk.arguments)
                    or self.handed_out
                )
        run.first_stays = run.first_stays or self.handed_out

    def _refusal(self, exchange: Exchange) -> APIStatusError:
        """Return the error for an answer that is none."""
        raw = exchange.read(_ERROR_BYTES, _ERROR_SECONDS)
        text = raw.decode("utf-8", "replace")
        body: Any = text
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(text)
        if exchange.status < 400:
            return APIStatusError(
                f"the endpoint redirects (HTTP {exchange.status}); a redirect is not followed, since it "
                "would take the key elsewhere: give the final base_url",
                status=exchange.status,
            )
        error = provider_error(exchange.status, body, exchange.headers)
        count = len(self.run.declarations)
        if exchange.status == 400 and count > 128:
            error.message += f" ({count} tools were sent; many endpoints take at most 128)"
            error.args = (error.message,)
        return error

    def learn(self, error: ToolnexusError) -> bool:
        """Tell whether the endpoint refused something that can be left out, and leave it out from now on."""
        assert self.request is not None
        learned = learn(self.endpoint.quirks, error, self.request, self.endpoint.dialect.name)
        if learned is not None:
            _log.debug("%s: learned about the endpoint: %s", self.run.run_id, learned)
        return learned is not None


def _request_id(exchange: Exchange) -> str | None:
    return exchange.headers.get("x-request-id") or exchange.headers.get("request-id")


def _hide_secrets(error: APIError, scrub: Scrubber) -> None:
    """Take out what an endpoint or a proxy says back of the key that it got."""
    for name in ("message", "type", "code", "param", "body", "request_id"):
        setattr(error, name, scrub.deep(getattr(error, name)))
    error.args = (error.message,)


def transformed(options: Options, dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    """Apply the user's changes to a body: a parameter of None takes the key out."""
    for key, value in options.request_params.items():
        if value is None:
            body.pop(key, None)
        else:
            body[key] = value
    body = dialect.native(body)
    if not body.get("tools"):
        for key in ("tools", "tool_choice", "parallel_tool_calls", "toolConfig"):
            body.pop(key, None)  # a choice among no tools is refused
    if options.body_transform is not None:
        try:
            changed = options.body_transform(body)
        except Exception as error:
            raise HookError(f"body_transform raised {describe_error(error)}") from error
        if not isinstance(changed, (dict, type(None))):
            raise HookError(f"body_transform must return a dict or None, not {type(changed).__name__}")
        body = body if changed is None else changed
    return body


def _dumped(body: dict[str, Any], run: Run) -> bytes:
    """Return the body's bytes; half a surrogate pair in a prompt becomes U+FFFD."""
    try:
        if body.get("tools") is not run.declarations or not run.declarations:
            return mend_surrogates(_json(body)).encode()
        # The schemas are the same in every turn, and may be long: they are written once a run.
        if run.declared is None:
            run.declared = _json(run.declarations)
        rest = _json({key: value for key, value in body.items() if key != "tools"})
        return mend_surrogates(f'{rest[:-1]},"tools":{run.declared}}}').encode()
    except (TypeError, ValueError, RecursionError) as error:
        odd = None
        with contextlib.suppress(RecursionError):  # it may be inside itself, which is what json complains of
            odd = _odd_number(body, "body") if isinstance(error, ValueError) else None
        raise ConfigurationError(f"the request body is not JSON: {odd or error}") from error


def _json(value: Any) -> str:
    return _COMPACT.encode(value)


def _odd_number(value: Any, place: str) -> str | None:
    """Return where the first number stands that JSON has no form for, or None; json names no place."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}"
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    return next(filter(None, (_odd_number(inner, f"{place}[{key!r}]") for key, inner in items)), None)
