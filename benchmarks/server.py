"""
A fast model server for the benchmarks: OpenAI's wire, answers prepared before they are asked for.

The request's model says what is answered:

    text-N          N deltas of 20 characters, one a chunk, as fast as possible
    words-N         the same, a word of ordinary prose a delta
    paced-N-MS      one delta each MS milliseconds; its text is the time at which it was sent
    agent           two tool calls, and the answer once their results are there
    arguments-KB    one call with KB kilobytes of arguments in fragments of 20 bytes, then an answer
    event-MB        one delta of MB megabytes
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

ANSWER = "The weather in Paris is sunny, 21 C, and the sum is 5."

_PROSE = "Hello there, this is an ordinary answer of a model, with 12 words and (some) punctuation."
_WORDS = [word + " " for word in _PROSE.split()]

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """Return one event of a stream, in a chunk of its own."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    payload = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "bench",
        "service_tier": "default",
        "system_fingerprint": "fp_bench",
        "choices": [choice],
        "usage": None,
        **more,
    }
    return chunk(b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def text(delta: str) -> bytes:
    return event({"content": delta})


def begin() -> bytes:
    return event({"role": "assistant", "content": "", "refusal": None})


def end(finish: str = "stop") -> bytes:
    usage = {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}
    return event({}, finish) + event({}, choices=[], usage=usage) + chunk(b"data: [DONE]\n\n") + _END


def calls(wanted: Iterable[tuple[str, str]], fragment: int) -> bytes:
    """Return a whole answer of tool calls, their arguments in fragments."""
    parts = [begin()]
    for index, (name, arguments) in enumerate(wanted):
        function = {"name": name, "arguments": ""}
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        parts.append(event({"tool_calls": [first]}))
        for start in range(0, len(arguments), fragment):
            piece = {"index": index, "function": {"arguments": arguments[start : start + fragment]}}
            parts.append(event({"tool_calls": [piece]}))
    return _HEAD + b"".join(parts) + end("tool_calls")


@functools.cache
def answer(kind: str, size: int, answered: bool) -> bytes:
    """Return the bytes of a whole answer."""
    if kind == "text":
        return _HEAD + begin() + text("lorem ipsum dolor si") * size + end()
    if kind == "words":
        return _HEAD + begin() + b"".join(map(text, itertools.islice(itertools.cycle(_WORDS), size))) + end()
    if kind == "event":
        return _HEAD + begin() + text("x" * (size * 2**20)) + end()
    if answered:
        words = [text(word + " ") for word in ANSWER.split()]
        return _HEAD + begin() + b"".join(words) + end()
    if kind == "arguments":
        arguments = json.dumps({"text": "abcdefghij klmno pqr" * (size * 1024 // 20)})
        return calls([("sink", arguments)], 20)
    return calls([("get_weather", '{"city":"Paris"}'), ("add", '{"a":2,"b":3}')], 6)


class Connection(asyncio.Protocol):
    """One connection: reads requests, and answers one after the other."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        _, _, length = head.lower().partition(b"content-length:")
        if len(body) >= int(length.split(b"\r\n")[0]):
            self.received = b""
            self.serve(json.loads(body))

    def serve(self, request: dict[str, Any]) -> None:
        kind, _, rest = request["model"].partition("-")
        numbers = [int(number) for number in rest.split("-") if number]
        if kind == "paced":
            self.transport.write(_HEAD + begin())
            self.pace(numbers[0], numbers[1] / 1000, asyncio.get_running_loop().time())
            return
        answered = request["messages"][-1]["role"] == "tool"
        self.transport.write(answer(kind, numbers[0] if numbers else 0, answered))

    def pace(self, left: int, step: float, at: float) -> None:
        """Send the next delta when it is time to, whatever the last one took."""
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(end())
            return
        loop = asyncio.get_running_loop()
        loop.call_at(at + step, self.send, left, step, at + step)

    def send(self, left: int, step: float, at: float) -> None:
        before, after = _STAMPED
        self.transport.write(b"%s%020d%s" % (before, time.monotonic_ns(), after))
        self.pace(left - 1, step, at)


_STAMPED = text("0" * 20).split(b"0" * 20)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
