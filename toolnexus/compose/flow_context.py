"""What a node of a flow may know and do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.compose.flow_values import PauseFlow, plain
from toolnexus.suspension import Answer, Request

__all__ = ["FlowContext"]


@attrs.define(kw_only=True, eq=False)
class FlowContext:
    """
    What a node may know and do. A node that is a function gets it as its second argument.

    Args:
        run_id: The run's id.
        node: The node's name.
        step: The step, from 1; a flow inside another one counts its own.
        task_id: The id that the events of this node's start and end have.
        namespace: The path of the flow that the node belongs to.
        attempt: The try, from 1.
        deps: The caller's own object, as given to ``run`` or ``stream``.
        scope: The node's cancel scope, for runs of its own: ``client.run(..., scope=ctx.scope)``.
        answers: What a person has answered so far.
    """

    run_id: str
    node: str
    step: int
    task_id: str
    namespace: tuple[str, ...]
    attempt: int = 1
    deps: Any = None
    scope: CancelScope = attrs.field(factory=CancelScope, repr=False)
    answers: tuple[Answer, ...] = ()
    _emit: Callable[[Any], None] = attrs.field(repr=False)
    _asked: int = attrs.field(default=0, init=False, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether the node should stop: the run was cancelled, or its time is up."""
        return self.scope.cancelled

    @property
    def answer(self) -> Answer | None:
        """The last answer, with ``ok`` and ``reason``; None where nobody was asked yet."""
        return self.answers[-1] if self.answers else None

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than the run lives; raises when it ends first."""
        self.scope.sleep(seconds)

    def emit(self, item: Any) -> None:
        """
        Send something to whoever reads the stream, at once. After the node's end it is dropped.

        Args:
            item: A payload of your own, which becomes a `Custom`; or an event, for instance of an agent's
                stream, which is passed on with this node as its namespace.
        """
        self._emit(item)

    def interrupt(
        self,
        value: Any = None,
        *,
        response_schema: Any = None,
        prompt: str | None = None,
        kind: str = "input",
    ) -> Any:
        """
        Ask a person, and return what was answered.

        The node is left here, and the flow ends as pending. Once there is an answer, the node is called
        again from its beginning; questions before this one then get the answers they got.

        Args:
            value: What an interface needs to ask; plain JSON. A text is the prompt, too.
            response_schema: The JSON schema that the answer must fit, or a type that has one.
            prompt: The question, for a person.
            kind: A word for what is asked.
        """
        position, self._asked = self._asked, self._asked + 1
        if position < len(self.answers):
            return self.answers[position].data
        if response_schema is not None and not isinstance(response_schema, dict):
            from toolnexus.tools.schema import schema_of

            response_schema = schema_of(response_schema)
        if prompt is None:
            prompt = value if isinstance(value, str) else f"{self.node} waits for an answer"
        request = Request(
            kind=kind,
            prompt=prompt,
            data=plain(value, "the value of an interrupt"),
            response_schema=response_schema,
            call_id=self.task_id,
            tool_name=self.node,
        )
        raise PauseFlow([request])
