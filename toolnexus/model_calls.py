"""The part of the client that makes single model calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolnexus.cancel import CancelScope
    from toolnexus.runner import Runner
    from toolnexus.single import ChunkStream, TranslateResult

__all__ = ["ModelCalls"]


class ModelCalls:
    """Model calls without a loop around them; a part of `Client`."""

    _runner: Runner

    def chunks(
        self,
        messages: Any,
        tools: Any = None,
        *,
        scope: CancelScope | None = None,
        **overrides: Any,
    ) -> ChunkStream:
        """
        Make one model call and iterate over its chunks; no tool is run.

        Args:
            messages: A prompt, or a list of message dicts.
            tools: Tools and functions to declare, or a toolkit.
            scope: What cancels the call, beside the stream itself.
            overrides: ``model``, ``system_prompt`` or ``timeout`` for this call only.

        Returns:
            The chunks; exactly one of type "done", always the last, also on failure.

        Raises:
            ConfigurationError: An argument is wrong.
        """
        from toolnexus.single import chunked, single

        return chunked(single(self._runner, messages, tools, scope, overrides))

    def translate(
        self,
        messages: Any,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        toolkit: Any = None,
        tool_choice: Any = None,
        system: str | None = None,
        max_tokens: int | None = None,
        scope: CancelScope | None = None,
        **overrides: Any,
    ) -> TranslateResult:
        """
        Make one model call with OpenAI's shapes in and out, whatever the endpoint speaks.

        Args:
            messages: OpenAI-shaped messages, or a prompt.
            tools: OpenAI-shaped tool declarations.
            toolkit: Tools or a toolkit whose tools are declared before those.
            tool_choice: OpenAI's ``tool_choice``: "auto", "none", "required" or one function.
            system: The system text; by default that of the messages, else the client's own.
            max_tokens: The most tokens of the answer.
            scope: What cancels the call.
            overrides: ``model`` or ``timeout`` for this call only.

        Returns:
            The answer; its tool calls were not run.

        Raises:
            ToolnexusError: The call failed.
        """
        from toolnexus.single import Translation, ask_once, translated, translation

        options = Translation(tools, toolkit, tool_choice, system, max_tokens)
        run = translation(self._runner, messages, options, scope, overrides)
        run.streaming = False
        with run.scope.running():
            return translated(ask_once(run))

    def translate_stream(
        self,
        messages: Any,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        toolkit: Any = None,
        tool_choice: Any = None,
        system: str | None = None,
        max_tokens: int | None = None,
        scope: CancelScope | None = None,
        **overrides: Any,
    ) -> Iterator[dict[str, Any]]:
        """
        Make one model call and yield ``chat.completion.chunk`` dicts; the arguments are those of `translate`.

        Yields:
            The chunks; a failure is a last one of the shape ``{"error": {...}}``.
        """
        from toolnexus.openai_chunks import openai_stream
        from toolnexus.single import Translation, chunked, translation

        options = Translation(tools, toolkit, tool_choice, system, max_tokens)
        run = translation(self._runner, messages, options, scope, overrides)
        return openai_stream(chunked(run), run.options.model)
