"""
A scripted model server over real HTTP, for tests and demos.

    from toolnexus.testing import ModelServer

    def test_my_agent():
        with ModelServer(style="openai") as server:
            server.call("add", {"a": 2, "b": 3})
            server.say("the sum is 5")
            client = Client(base_url=server.base_url, style=server.style, model="test", api_key="test-key")
            assert client.run("add 2 and 3", [add]).text == "the sum is 5"
            server.assert_done()

Nothing is patched: the client under test opens a socket to 127.0.0.1, and what it sends and when it hangs
up can be asserted on.
"""

from __future__ import annotations

from toolnexus.testing._answers import (
    Answer,
    Call,
    Delivery,
    Script,
    failure,
    raw,
    reply,
    stream_error,
    tool_call,
    tool_calls,
)
from toolnexus.testing._recorded import recorded
from toolnexus.testing._requests import RecordedRequest
from toolnexus.testing._server import ModelServer

__all__ = [
    "Answer",
    "Call",
    "Delivery",
    "ModelServer",
    "RecordedRequest",
    "Script",
    "failure",
    "raw",
    "recorded",
    "reply",
    "stream_error",
    "tool_call",
    "tool_calls",
]
