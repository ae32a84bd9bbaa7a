"""
Structured output: an answer that fits a type.

Where the endpoint has a mode for it, that is used; else the model gets a tool whose arguments are the
answer. Either way the answer is checked, and there is one more turn where it does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.chunks import Reply, ToolRequest
from toolnexus.errors import BadRequestError, ConfigurationError, OutputError, SchemaError, ToolnexusError
from toolnexus.tools.adapt import plain
from toolnexus.tools.arguments import check_arguments, without_nulls
from toolnexus.tools.base import Tool, ToolResult
from toolnexus.wording import error_text

if TYPE_CHECKING:
    from toolnexus.run import Run

__all__ = ["Output", "make_output"]

#: What a value that is no object is wrapped in: answers are objects.
_WRAPPED = "value"

_TOOL = "final_answer"


@attrs.define(eq=False)
class Output:
    """
    The answer that a run shall give.

    Args:
        schema: The schema of the answer, an object schema.
        load: Makes the Python value of an answer that fits.
        name: A name for the answer.
    """

    schema: dict[str, Any]
    load: Callable[[dict[str, Any]], Any]
    name: str
    #: Whether the endpoint's own mode is used; it may turn out not to have one.
    native: bool = True
    #: The tool that takes the answer, where the endpoint has no mode of its own.
    tool: Tool | None = None
    repaired: bool = False
    value: Any = None
    data: Any = None

    def declare(self, run: Run) -> None:
        """Add to a run's requests what asks for the answer."""
        for key in ("response_format", "text"):
            run.extra.pop(key, None)
        dialect = run.endpoint.dialect
        asked = getattr(dialect, "output_format", None)
        if self.native and asked is not None:
            self.tool = None
            run.extra.update(asked(self.schema, self.name))
            return
        name = _TOOL if run.tools.get(_TOOL) is None else f"{_TOOL}_{self.name}"[:64]
        self.tool = Tool(name, "Give the final answer. Call this once, when you are done.", self.schema)
        run.declarations = [*run.declarations, *dialect.tools([self.tool])]
        run.extra.update(dialect.choice("required"))

    def refused(self, error: ToolnexusError) -> bool:
        """Tell whether an endpoint refuses its own mode, and do without it from now on."""
        if not self.native or self.tool is not None or not isinstance(error, BadRequestError):
            return False
        said = f"{error.param} {error.message}".lower()
        if not any(
            word in said for word in ("response_format", "json_schema", "structured output", "strict")
        ):
            return False
        self.native = False
        return True

    def judge(self, run: Run, reply: Reply) -> bool:
        """
        Take an answer in.

        Returns:
            Whether it fits and the run is over; if not, the model is told what is wrong.

        Raises:
            OutputError: It does not fit, for the second time.
        """
        call = next((c for c in reply.calls if self.tool is not None and c.name == self.tool.name), None)
        if call is not None:
            return self._judge_call(run, reply, call)
        if reply.calls:
            return False
        problem = self._take(_decoded(reply.text))
        if problem is None:
            return True
        self._again(problem)
        how = f"Call {self.tool.name} with it." if self.tool is not None else "Answer with the JSON only."
        run.messages.append({"role": "user", "content": f"The answer does not fit: {problem}. {how}"})
        return False

    def _judge_call(self, run: Run, reply: Reply, call: ToolRequest) -> bool:
        """Take the answer from the call of our tool; calls beside it do not run."""
        from toolnexus.execution import Outcome, record

        problem = call.error or self._take(call.args)
        for other in reply.calls:
            if other is not call:
                result = ToolResult.error(f"{other.name}: not run, the final answer came beside it")
            elif problem is None:
                result = ToolResult.ok("ok")
            else:
                result = ToolResult.error(f"The answer does not fit: {problem}")
            outcome = Outcome(other, result)
            if other is call:
                run.messages.append({"role": "tool", "tool_call_id": call.id, "content": result.output})
            else:
                record(run, outcome)
        if problem is not None:
            self._again(problem)
        return problem is None

    def _take(self, data: Any) -> str | None:
        """Check the answer and make its value; return what is wrong, or None."""
        if not isinstance(data, dict):
            return "it is not a JSON object"
        data = without_nulls(self.schema, data)
        problems = check_arguments(self.schema, data)
        if problems:
            return "; ".join(problems)
        try:
            self.value = self.load(data)
        except Exception as error:  # noqa: BLE001 - constructors and validators of the user's run in there
            return error_text(error) or type(error).__name__
        self.data = data
        return None

    def _again(self, problem: str) -> None:
        if self.repaired:
            raise OutputError(f"the answer does not fit the output that was asked for: {problem}")
        self.repaired = True


def _decoded(text: str) -> Any:
    """Decode a text; some models put a fence around their JSON."""
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.split("\n", 1)[-1].rsplit("```", 1)[0]
    try:
        return json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return None


def make_output(output: Any) -> Output:
    """
    Return the output for what a user asked for.

    Args:
        output: A dataclass, attrs class, TypedDict, pydantic model or any other annotated type, or an
            object schema.

    Raises:
        ConfigurationError: No schema can be made for it.

    >>> make_output(list[int]).schema["properties"]["value"]
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    if isinstance(output, Mapping):
        if output.get("type") != "object" and "properties" not in output:
            raise ConfigurationError("output must be an object schema or a type")
        return Output(plain(dict(output)), lambda data: data, _name(output.get("title")))
    from toolnexus.tools.schema import ShapeBuilder

    builder = ShapeBuilder("output")
    try:
        shape = builder.shape(output)
    except SchemaError as error:
        raise ConfigurationError(f"no schema can be made for the output: {error}") from error
    load = shape.load or (lambda value: value)
    schema, name = dict(shape.schema), _name(getattr(output, "__name__", None))
    if builder.defs:
        schema["$defs"] = builder.defs
    if _is_object(schema):
        return Output(schema, load, name)
    defs = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    wrapped = {"type": "object", "properties": {_WRAPPED: schema}, "required": [_WRAPPED], **defs}
    return Output(wrapped, lambda data: load(data[_WRAPPED]), name)


def _is_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object" and "properties" in schema


def _name(given: Any) -> str:
    from toolnexus.tools.names import sanitize

    return sanitize(given)[:48] if isinstance(given, str) and given else "answer"
