"""What a tool is: its description, its result, and the context it runs in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.values import Value

if TYPE_CHECKING:
    from toolnexus.content import Part
    from toolnexus.suspension import Answer, Request

__all__ = ["PENDING_KEY", "Context", "SuspendTool", "Tool", "ToolResult", "suspends"]

#: The key in a result's metadata under which the request of a suspended call rides.
PENDING_KEY = "pending"


@attrs.frozen(eq=False, repr=False)
class ToolResult(Value):
    """
    What a tool gives back.

    Args:
        output: The text for the model.
        is_error: Whether the call failed.
        metadata: What the caller may want to know beside the output; the model does not see it.
        content: Images and files for the model, sent in the provider's own form where it takes them.

    >>> ToolResult.ok("5").output
    '5'
    >>> ToolResult.error("no such file").is_error
    True
    """

    output: str
    is_error: bool = False
    metadata: dict[str, Any] = attrs.field(factory=dict)
    content: tuple[Part, ...] = ()

    @classmethod
    def ok(cls, output: str, **metadata: Any) -> ToolResult:
        """Return a result that succeeded."""
        return cls(output, False, metadata)

    @classmethod
    def error(cls, message: str, **metadata: Any) -> ToolResult:
        """Return a result that failed, with a message that the model can act on."""
        return cls(message, True, metadata)


def suspends(result: ToolResult) -> bool:
    """Tell whether a result says that its call waits for a person."""
    if PENDING_KEY not in result.metadata:
        return False
    from toolnexus.suspension import pending_of  # it builds on this module

    return pending_of(result) is not None  # a tool may have a word of its own under that key


class SuspendTool(BaseException):
    """
    Leaves a tool that asks a person, until the answer is there.

    It is no `Exception`, so that a tool's own ``except Exception`` lets it pass.

    Args:
        result: The result that says what is asked.
    """

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.output)
        self.result = result


@attrs.define(kw_only=True, eq=False, repr=False)
class Context:
    """
    What a running tool may know and do.

    A parameter annotated with it is filled in, and the model never sees it.

    Args:
        run_id: The run's id.
        call_id: The id of this call.
        tool_name: The name under which the model called the tool.
        turn: The turn, from 1.
        deps: The caller's own object, as given to ``run`` or ``stream``.
        scope: The cancel scope of this call.
        answers: What a person has answered so far, when a suspended call runs again.
    """

    run_id: str = ""
    call_id: str = ""
    tool_name: str = ""
    turn: int = 0
    deps: Any = None
    scope: CancelScope = attrs.field(factory=CancelScope, repr=False)
    answers: tuple[Answer, ...] = ()
    _asked: int = attrs.field(default=0, init=False, repr=False)
    _emit: Callable[[str, Any], None] | None = attrs.field(default=None, repr=False)
    _wait_for: Callable[[Request, Collection[str]], Answer | None] | None = attrs.field(
        default=None, repr=False
    )

    @property
    def answer(self) -> Answer | None:
        """The last answer, or None where nobody was asked yet."""
        return self.answers[-1] if self.answers else None

    def ask(self, prompt: str, **request: Any) -> Any:
        """
        Ask a person, and return the data of the answer.

        The tool is left here and called again, from its beginning, once there is an answer; the
        questions before this one then get the answers they got.

        Args:
            prompt: The question.
            request: What `pending` takes besides: ``kind``, ``url``, ``data``, ``response_schema``,
                ``expires_at``.
        """
        from toolnexus.suspension import pending

        position, self._asked = self._asked, self._asked + 1
        if position < len(self.answers):
            return self.answers[position].data
        result = pending(prompt, **request)
        result.metadata["asked"] = True
        raise SuspendTool(result)

    def wait_for(self, request: Request) -> Answer | None:
        """
        Ask a person, and wait for the answer here: for a tool that cannot be left and called again.

        The run is asked as for any suspended call: its `Pending` goes out, then the client's ``wait_for``
        or the reader of the stream answers. Other calls of the turn go on, the tool's time stands still.
        A run cannot end as pending here. Where `ask` will do, use that.

        Args:
            request: The question.

        Returns:
            The answer, or None where nobody gives one.

        Raises:
            RunCancelledError: The call was cancelled meanwhile.
            RunTimeoutError: The time of the run was up meanwhile.
            HookError: The client's ``wait_for`` failed.
            InvalidAnswerError: Its answer does not fit the request.
        """
        if self._wait_for is None:
            return None
        if not request.call_id:
            request = attrs.evolve(request, call_id=self.call_id, tool_name=self.tool_name)
        return self._wait_for(request, ())

    def wait_for_one_of(self, request: Request, calls: Collection[str]) -> Answer | None:
        """
        Ask a person as `wait_for` does, for this call or another one of its turn: nobody knows which.

        Args:
            request: The question.
            calls: The ids of the calls. The question stands for as long as one of them runs.
        """
        return None if self._wait_for is None else self._wait_for(request, calls)

    @property
    def cancelled(self) -> bool:
        """Whether the tool should stop: the run was cancelled, or the tool's time is up."""
        return self.scope.cancelled

    @property
    def deadline(self) -> float | None:
        """The moment, on ``time.monotonic()``'s clock, by which the tool should be done."""
        return self.scope.deadline

    def remaining(self) -> float | None:
        """Return the seconds left, or None without a deadline."""
        return self.scope.remaining()

    def emit(self, payload: Any) -> None:
        """
        Send something to whoever reads the stream, at once. After the tool's end it is dropped.

        Args:
            payload: A payload of your own, which becomes a `Custom`; or an event of an agent that the tool
                runs, which is passed on with ``"tool name:call id"`` as its namespace.
        """
        if self._emit is not None:
            self._emit("custom", payload)

    def output(self, delta: str) -> None:
        """Report progress to whoever reads the stream, as a `ToolOutput` event."""
        if self._emit is not None:
            self._emit("output", delta)

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than the run lives; raises when it ends first."""
        self.scope.sleep(seconds)


#: What executes a tool: called with the checked arguments and the context. It may return a
#: `ToolResult`, a string, anything that has a JSON form, or a generator of progress strings.
Execute = Callable[[dict[str, Any], Context], Any]


@attrs.frozen(eq=False, repr=False)
class Tool(Value):
    """
    A tool that a model can call.

    Args:
        name: The name the model uses.
        description: What it does, for the model.
        input_schema: The JSON schema of its arguments, an object schema.
        execute: A function ``execute(args, ctx)``; what it returns becomes the result.
        source: Where the tool is from: "native", "http", "mcp", "skill", "builtin" or "custom".
        timeout: Seconds a call may take; None for no limit of its own.
        parallel: Whether it may run beside other calls of the same turn.
        max_output: The longest output in characters that goes to the model; more is cut in the
            middle, and the cut says so. None for no limit.
        approval: True, or a function of the arguments, when a person must approve a call first.
        idempotent: Whether a call that was interrupted may safely run again.
        on_interrupted: What to do with a call of a durable run that was cut: "retry", "fail" or "ask".
        metadata: Anything the source wants to keep with the tool.

    >>> shout = Tool(
    ...     "shout",
    ...     "Say it loud.",
    ...     {"type": "object", "properties": {"text": {"type": "string"}}},
    ...     lambda args, ctx: args["text"].upper(),
    ... )
    >>> shout.execute({"text": "hey"}, Context())
    'HEY'
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    name: str
    description: str = ""
    input_schema: dict[str, Any] = attrs.field(factory=lambda: {"type": "object", "properties": {}})
    execute: Execute = attrs.field(kw_only=False, default=lambda args, ctx: None, repr=False)
    source: str = attrs.field(default="native", kw_only=True)
    timeout: float | None = attrs.field(default=None, kw_only=True)
    parallel: bool = attrs.field(default=True, kw_only=True)
    max_output: int | None = attrs.field(default=None, kw_only=True)
    approval: bool | Callable[[Mapping[str, Any]], bool] = attrs.field(default=False, kw_only=True)
    idempotent: bool = attrs.field(default=False, kw_only=True)
    on_interrupted: str = attrs.field(default="ask", kw_only=True)
    metadata: dict[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    #: Turns checked JSON arguments into the annotated Python types; set by the function source.
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = attrs.field(
        default=None, kw_only=True, repr=False
    )

    def with_name(self, name: str) -> Tool:
        """Return the same tool under another name."""
        return attrs.evolve(self, name=name)
