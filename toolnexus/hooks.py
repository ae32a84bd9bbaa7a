"""
Hooks: a user's own functions at four points of the loop.

A hook is an object with any of the methods, or a mapping of their names to functions:

``before_llm(view)``
    ``messages``, ``tools``, ``model``, ``turn``; may return ``{"messages": ..., "tools": ...}`` to send
    something else in this turn. The transcript stays as it is, but for a ``"marker"``:
    ``{"at": index, "key": name, "value": plain JSON}`` is kept with the message at that place.
``after_llm(view)``
    ``response`` (text, thinking, tool_calls, usage, finish_reason, message), ``model``, ``turn``.
``before_tool(view)``
    ``name``, ``args``, ``id``, ``turn``; may return ``{"args": ...}`` to change the arguments,
    ``{"result": ...}`` to answer in the tool's place, or a text: the reason why the call is denied.
``after_tool(view)``
    ``name``, ``args``, ``result``, ``id``, ``turn``; may return ``{"result": ...}``.

Every view also has ``emit``, a function that sends a payload to whoever reads the stream; what is sent
after the hook's end is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.abandon import call_abandonable
from toolnexus.errors import ConfigurationError, HookError, ToolnexusError
from toolnexus.events import Custom
from toolnexus.merge import PROVIDER_KEY
from toolnexus.prompt import WAITING_KEY, check_history
from toolnexus.tools.base import ToolResult
from toolnexus.wire import DIALECTS
from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.chunks import Reply, ToolRequest
    from toolnexus.report import Reporter
    from toolnexus.results import Message
    from toolnexus.run import Run

__all__ = ["Hooks", "guardrails"]

_POINTS = ("before_llm", "after_llm", "before_tool", "after_tool")

#: The keys under ours in a message that the loop itself reads.
_OURS = (WAITING_KEY, "is_error")

View = dict[str, Any]


class Hooks:
    """
    The hooks of a client, in order.

    Args:
        hooks: One hook, or several.

    Raises:
        ConfigurationError: Something is no hook.
    """

    def __init__(self, hooks: Any = None) -> None:
        listed = [] if hooks is None else list(hooks) if isinstance(hooks, (list, tuple)) else [hooks]
        self._at: dict[str, list[tuple[str, Callable[[View], Any]]]] = {point: [] for point in _POINTS}
        for hook in listed:
            self._add(hook)

    def _add(self, hook: Any) -> None:
        found = False
        for point in _POINTS:
            function = hook.get(point) if isinstance(hook, Mapping) else getattr(hook, point, None)
            if function is None:
                continue
            if not callable(function):
                raise ConfigurationError(f"the hook {point} must be a function, not {function!r}")
            self._at[point].append((_named(hook, function, point), function))
            found = True
        unknown = [key for key in hook if key not in _POINTS] if isinstance(hook, Mapping) else []
        if unknown or not found:
            what = f"{unknown[0]!r} is no hook" if unknown else f"{hook!r} has no hook"
            raise ConfigurationError(f"{what}; there are {', '.join(_POINTS)}")

    def __bool__(self) -> bool:
        return any(self._at.values())

    def before_llm(self, run: Run) -> tuple[list[Message], list[dict[str, Any]]]:
        """Return the messages and the tool declarations to send in this turn."""
        messages, tools = run.messages, run.declarations
        for name, function in self._at["before_llm"]:
            view = {
                "messages": list(messages),
                "tools": list(tools),
                "model": run.endpoint.options.model,
                "turn": run.turns + 1,
            }
            change = _mapping(
                name, self._call(run, name, function, view), view, "messages", "tools", "marker"
            )
            if change.get("messages") is not None:
                messages = _messages(name, change["messages"])
            if change.get("tools") is not None:
                tools = _declarations(name, change["tools"])
            if change.get("marker") is not None:
                _mark(name, run, change["marker"])
        return messages, tools

    def after_llm(self, run: Run, reply: Reply) -> None:
        """Show an answer."""
        if not self._at["after_llm"]:
            return
        response = {
            "text": reply.text,
            "thinking": reply.thinking,
            "tool_calls": [{"id": c.id, "name": c.name, "args": c.args} for c in reply.calls],
            "usage": reply.usage.to_dict() if reply.usage is not None else None,
            "finish_reason": reply.finish_reason,
            "message": reply.message,
        }
        for name, function in self._at["after_llm"]:
            self._call(
                run,
                name,
                function,
                {"response": response, "model": run.endpoint.options.model, "turn": run.turns},
            )

    def before_tool(self, run: Run, request: ToolRequest) -> tuple[ToolRequest, ToolResult | None]:
        """Return the call with its arguments as changed, and a result where the tool shall not run."""
        for name, function in self._at["before_tool"]:
            view = {
                "name": request.name,
                "args": dict(request.args or {}),
                "id": request.id,
                "turn": run.turns,
            }
            change = self._call(run, name, function, view)
            if isinstance(change, str):
                return request, ToolResult.error(f"denied: {change}")
            change = _mapping(name, change, view, "args", "result")
            if change.get("result") is not None:
                return request, _result(name, change["result"])
            if change.get("args") is not None:
                request = attrs.evolve(request, args=_args(name, change["args"]))
        return request, None

    def after_tool(self, run: Run, request: ToolRequest, result: ToolResult) -> ToolResult:
        """Return the result as changed."""
        for name, function in self._at["after_tool"]:
            view = {
                "name": request.name,
                "args": dict(request.args or {}),
                "result": result,
                "id": request.id,
                "turn": run.turns,
            }
            change = _mapping(name, self._call(run, name, function, view), view, "result")
            if change.get("result") is not None:
                result = _result(name, change["result"])
        return result

    def _call(self, run: Run, name: str, function: Callable[[View], Any], view: View) -> Any:
        """Call a hook in a thread that can be left behind; what it raises ends the run."""
        emitted = _Emit(run)
        view["emit"] = emitted
        run.reporter.flush()  # nobody knows how long a hook takes
        try:
            return call_abandonable(lambda: function(view), run.scope, name="hook")
        except ToolnexusError:
            run.scope.check()
            raise
        except Exception as error:
            raise HookError(f"the hook {name} raised {describe_error(error)}") from error
        finally:
            emitted.close()


class _Emit:
    """Sends what a hook emits, until the hook is over: then the loop goes on, and nobody else may report."""

    def __init__(self, run: Run) -> None:
        self._reporter: Reporter | None = run.reporter

    def __call__(self, payload: Any) -> None:
        if self._reporter is not None:
            self._reporter.send(Custom, payload)

    def close(self) -> None:
        self._reporter = None


def _named(hook: Any, function: Any, point: str) -> str:
    owner = "" if isinstance(hook, Mapping) else f"{type(hook).__name__}."
    given = getattr(function, "__name__", point)
    return f"{owner}{point}" if given in (point, "<lambda>") else f"{owner}{point} ({given})"


def _mapping(name: str, change: Any, view: View, *keys: str) -> Mapping[str, Any]:
    """Return what a hook wants changed; the view itself may come back, a word that nobody knows may not."""
    if change is None:
        return {}
    if not isinstance(change, Mapping):
        raise HookError(f"the hook {name} must return a dict or None, not {type(change).__name__}")
    unknown = [str(key) for key in change if key not in keys and key not in view]
    if unknown:  # such as a misspelt "result" of a guard, which must not let the call through
        raise HookError(f"the hook {name} returned {unknown[0]!r}; there are {', '.join(keys)}")
    return change


def _messages(name: str, messages: Any) -> list[Message]:
    try:
        return check_history(messages)
    except ConfigurationError as error:
        raise HookError(f"the hook {name} returned messages that are none: {error}") from error


def _declarations(name: str, tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise HookError(f"the hook {name} must return tools as a list of declarations")
    return list(tools)


def _args(name: str, args: Any) -> dict[str, Any]:
    """Return arguments that a hook gives a call; like those of a model they are plain JSON."""
    try:
        plain = json.loads(json.dumps(args))
    except (TypeError, ValueError, RecursionError) as error:
        raise HookError(f"the hook {name} returned args that are not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise HookError(f"the hook {name} must return args as a dict, not {type(args).__name__}")
    return plain


def _mark(name: str, run: Run, marker: Any) -> None:
    """Write a note of a hook's into the stored transcript, under our key of one message."""
    try:
        position, key, value = marker["at"], str(marker["key"]), marker["value"]
        message = run.messages[position]
    except (TypeError, KeyError, IndexError) as error:
        raise HookError(f"the hook {name} returned a marker for no message") from error
    if key in _OURS or key in DIALECTS:
        raise HookError(f"the hook {name} returned a marker with the key {key!r}, which is one of ours")
    try:
        value = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise HookError(f"the hook {name} returned a marker that is not plain JSON: {error}") from error
    own = {**(message.get(PROVIDER_KEY) or {}), key: value}
    run.messages[position] = {**message, PROVIDER_KEY: own}


def _result(name: str, value: Any) -> ToolResult:
    if isinstance(value, ToolResult) and isinstance(value.output, str):
        return value
    if isinstance(value, str):
        return ToolResult.ok(value)
    found = value.output if isinstance(value, ToolResult) else value
    of = "one of " if isinstance(value, ToolResult) else ""
    raise HookError(
        f"the hook {name} must return a text or a ToolResult of one as result, not {of}{type(found).__name__}"
    )


def guardrails(*functions: Callable[[View], str | None], also: Iterable[Any] = ()) -> list[Any]:
    """
    Make hooks of plain functions that may deny a tool call.

    Args:
        functions: Each gets what ``before_tool`` gets, and returns None or "allow" to let the call
            through, or the reason why not. The first denial wins.
        also: More hooks, which come after.

    >>> def no_deletes(call):
    ...     return "deleting is not allowed" if call["name"].startswith("delete") else None
    >>> hooks = guardrails(no_deletes)
    >>> hooks[0]["before_tool"]({"name": "delete_file", "args": {}})
    'deleting is not allowed'
    """

    def guard(function: Callable[[View], str | None]) -> Callable[[View], str | None]:
        def before_tool(view: View) -> str | None:
            verdict = function(view)
            return None if verdict is None or verdict == "allow" else verdict

        before_tool.__name__ = getattr(function, "__name__", "guardrail")
        return before_tool

    return [*({"before_tool": guard(function)} for function in functions), *also]
