"""Answers as bytes, for servers below HTTP, and looking at what a process holds open."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolnexus import Client

__all__ = [
    "DONE",
    "HEAD",
    "STOP",
    "chunk",
    "chunked",
    "delta",
    "event",
    "make",
    "open_sockets",
    "our_threads",
    "payload",
    "until",
]

#: The head of an event stream in chunks.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """Frame some bytes as an HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: Any, name: str | None = None) -> bytes:
    """Return a server-sent event with a JSON value as its data."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def payload(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return an OpenAI chunk."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def delta(text: str) -> bytes:
    """Return the event of a piece of text, in OpenAI's shape."""
    return event(payload(content=text))


STOP = event(payload("stop"))


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """Return a whole response whose body is these pieces, one chunk each; without its end on demand."""
    return HEAD + b"".join(map(chunk, pieces)) + (b"0\r\n\r\n" if end else b"")


def make(url: str, style: str = "openai", **options: Any) -> Client:
    """Return a client for a server without a path."""
    base = f"{url}/v1" if style == "openai" else url
    return Client(base, style=style, **{"model": "m", "api_key": "test-key", **options})


def open_sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += os.readlink(entry).startswith("socket:")
        except OSError:
            continue  # closed meanwhile
    return count


def our_threads() -> list[str]:
    """Return the names of the threads that toolnexus runs."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("toolnexus-"))


def until(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Wait for a condition; tell whether it came about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
