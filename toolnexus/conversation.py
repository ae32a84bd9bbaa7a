"""A conversation: a client, tools and what was said so far."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from toolnexus.results import Message, RunResult
from toolnexus.stream import Stream

if TYPE_CHECKING:
    from toolnexus.client import Client

__all__ = ["Conversation"]


class Conversation:
    """
    Messages that build on each other. Made by `Client.conversation`.

    A message that fails leaves no trace, so it can simply be sent again.

    Args:
        client: The client.
        tools: The tools for every message.
        id: The conversation's id in the client's store; made up by default.
    """

    def __init__(self, client: Client, tools: Any = None, *, id: str | None = None) -> None:  # noqa: A002
        self.client = client
        self.tools = tools
        self.id = id if id is not None else f"conversation-{secrets.token_hex(8)}"

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self.messages)} messages>"

    @property
    def messages(self) -> list[Message]:
        """A copy of the messages so far."""
        return list(self.client.conversation_store.get(self.id) or [])

    def send(self, prompt: Any, **options: Any) -> RunResult:
        """
        Send a message and return the result.

        Args:
            prompt: What `Client.run` takes.
            options: What `Client.run` takes besides.

        Raises:
            ToolnexusError: The run failed.
        """
        return self.client.run(prompt, self.tools, id=self.id, **options)

    def stream(self, prompt: Any, **options: Any) -> Stream:
        """
        Send a message and iterate over what happens.

        Args:
            prompt: What `Client.stream` takes.
            options: What `Client.stream` takes besides.
        """
        return self.client.stream(prompt, self.tools, id=self.id, **options)

    def reset(self) -> None:
        """Forget what was said."""
        store = self.client.conversation_store
        if callable(getattr(store, "delete", None)):
            store.delete(self.id)
        else:
            store.save(self.id, [])
