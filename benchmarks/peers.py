"""
Three clients that do the same work: the floor, a loop written by hand, and toolnexus.

The floor is what the standard library can do. The loop is what one would write with requests and
sseclient-py, without a pump, retries, limits or cancelling.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import requests
import sseclient

import toolnexus
from toolnexus import Stream

PROMPT = "What is the weather in Paris, and what is 2 + 3? Use the tools."

OnText = Callable[[str], object]


class Peer(Protocol):
    """A client."""

    def stream(self, model: str, on_text: OnText) -> None:
        """Ask for an answer and hand out its text as it comes."""

    def agent(self, model: str) -> str:
        """Run tools until there is an answer, streaming, and return it."""


def get_weather(city: str) -> str:
    return f"sunny, 21 C in {city}"


def add(a: int, b: int) -> str:
    return str(a + b)


def sink(text: str) -> str:
    return f"took {len(text)}"


FUNCTIONS: dict[str, Callable[..., str]] = {"get_weather": get_weather, "add": add, "sink": sink}

SCHEMAS: dict[str, dict[str, Any]] = {
    name: {"type": "object", "properties": {key: {"type": kind} for key, kind in keys.items()}}
    for name, keys in {
        "get_weather": {"city": "string"},
        "add": {"a": "integer", "b": "integer"},
        "sink": {"text": "string"},
    }.items()
}

DECLARED = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


class ByHand:
    """What both clients written by hand have in common: the loop."""

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Ask, and yield the decoded events."""
        raise NotImplementedError

    def stream(self, model: str, on_text: OnText) -> None:
        for chunk in self.chunks(_body(model, [{"role": "user", "content": "hi"}])):
            if chunk["choices"]:
                text = chunk["choices"][0]["delta"].get("content")
                if text:
                    on_text(text)

    def agent(self, model: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        while True:
            message = _message(self.chunks({**_body(model, messages), "tools": DECLARED}))
            messages.append(message)
            if "tool_calls" not in message:
                return str(message["content"])
            for call in message["tool_calls"]:
                function = call["function"]
                output = FUNCTIONS[function["name"]](**json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


def _body(model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _message(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Put a message together from its chunks."""
    texts: list[str] = []
    calls: dict[int, tuple[str, str, list[str]]] = {}
    for chunk in chunks:
        if not chunk["choices"]:
            continue
        delta = chunk["choices"][0]["delta"]
        if delta.get("content"):
            texts.append(delta["content"])
        for piece in delta.get("tool_calls") or ():
            function = piece["function"]
            if piece["index"] not in calls:
                calls[piece["index"]] = (piece["id"], function["name"], [])
            calls[piece["index"]][2].append(function["arguments"])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": "".join(parts)}}
            for id_, name, parts in calls.values()
        ]
    return message


class Floor(ByHand):
    """``http.client`` and ``json.loads``, nothing else."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._local = threading.local()

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        pending: list[bytes] = []
        while data := response.read1(65536):
            pending.append(data)
            if b"\n\n" not in data and not data.startswith(b"\n"):
                continue
            *events, rest = b"".join(pending).split(b"\n\n")
            pending = [rest]
            for event in events:
                if event != b"data: [DONE]":
                    yield json.loads(event[6:])


class Loop(ByHand):
    """``requests`` and ``SSEClient(response)``."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._session = requests.Session()
        self._session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=100))

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        headers = {"Accept": "text/event-stream"}
        with self._session.post(self._url, json=body, stream=True, headers=headers) as response:
            response.raise_for_status()
            pieces: Any = response
            for event in sseclient.SSEClient(pieces).events():
                if event.data != "[DONE]":  # read on after it, or the connection could not be used again
                    yield json.loads(event.data)


class Toolnexus:
    """Ours: the events of `Client.stream`, iterated."""

    def __init__(self, port: int) -> None:
        self._client = toolnexus.Client(f"http://127.0.0.1:{port}/v1", model="bench", api_key="k")
        self._tools = [
            toolnexus.Tool(name, name, SCHEMAS[name], _calling(function))
            for name, function in FUNCTIONS.items()
        ]

    def stream(self, model: str, on_text: OnText) -> None:
        for event in self._client.stream("hi", model=model):
            if isinstance(event, toolnexus.Text):
                on_text(event.delta)
        if not isinstance(event, toolnexus.Done):
            raise TypeError(event)

    def events(
        self, model: str, channels: list[str] | None = None, wrap: Callable[[Stream], Stream] | None = None
    ) -> None:
        """Iterate over an answer, with some channels and inside of something, and do nothing with it."""
        stream = self._client.stream("hi", model=model, channels=channels)
        last = None
        for event in stream if wrap is None else wrap(stream):
            last = event
        if not isinstance(last, toolnexus.Done):
            raise TypeError(last)

    def agent(self, model: str) -> str:
        *_, last = self._client.stream(PROMPT, self._tools, model=model)
        if not isinstance(last, toolnexus.Done):
            raise TypeError(last)
        return last.result.text


def _calling(function: Callable[..., str]) -> Callable[[dict[str, Any], Any], str]:
    return lambda args, context: function(**args)
