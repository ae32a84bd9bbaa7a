"""Running one call of a tool."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from enum import Enum
from typing import Any

import pytest

from toolnexus.cancel import CancelScope
from toolnexus.suspension import pending, pending_of
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.execute import execute_tool
from toolnexus.tools.functions import tool


class Listener:
    """A context that keeps what is reported."""

    def __init__(self, scope: CancelScope | None = None) -> None:
        self.heard: list[Any] = []
        self.context = Context(
            scope=scope or CancelScope(), emit=lambda kind, payload: self.heard.append(payload)
        )


class Color(Enum):
    """An enum."""

    RED = "red"


def run(function: Any, args: dict[str, Any] | None = None, context: Context | None = None) -> ToolResult:
    """Run a function as a tool."""
    return execute_tool(tool(function, name="it"), args or {}, context or Context())


def test_arguments_are_checked_converted_and_left_alone() -> None:
    """The tool gets Python values; the model's dict stays as it was."""

    def f(a: int, c: Color) -> str:
        return f"{a!r} {c!r}"

    args = {"a": 2.0, "c": "red"}
    assert run(f, args) == ToolResult.ok("2 <Color.RED: 'red'>")
    assert args == {"a": 2.0, "c": "red"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"a": "x"}, 'it: wrong arguments: a: expected an integer, got "x"'),
        ({}, 'it: wrong arguments: "a" is missing'),
        ({"a": 1, "b": 2}, 'it: wrong arguments: "b" is not known; known: a, p'),
        ({"a": 1, "p": "\ud83d"}, "it: wrong arguments: p: ValueError: no \ufffd here"),
        ([1], "it: wrong arguments: expected an object, got [1]"),
    ],
)
def test_wrong_arguments_never_reach_the_tool(args: Any, message: str) -> None:
    """The model is told which tool, where and what; constructors of the user's count, too."""

    class Picky(str):
        def __new__(cls, text: str) -> Any:
            raise LookupError if text == "quiet" else ValueError(f"no {text} here")

    def f(a: int, p: Picky | None = None) -> str:
        raise AssertionError("it ran")

    result = run(f, args)
    assert result.is_error
    assert result.output == message.replace("ValueError: ", "")


def test_exe_06_exceptions_are_results_with_class_and_message() -> None:
    """The class alone where there is no message; never an empty text."""

    def raising(error: BaseException) -> Any:
        def f() -> None:
            raise error

        return f

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    for error, text in (
        (KeyError("x"), "KeyError: 'x'"),
        (KeyError(), "KeyError"),
        (Mute(), "Mute"),
        (SystemExit(2), "SystemExit: 2"),
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("half \ud83d"), "ValueError: half \ufffd"),
    ):
        result = run(raising(error))
        assert (result.output, result.is_error) == (text, True)
    with pytest.raises(KeyboardInterrupt):
        run(raising(KeyboardInterrupt()))


def test_the_message_of_an_exception_is_cut_as_well() -> None:
    """A tool's limit holds for its errors."""

    def f() -> None:
        raise ValueError("x" * 1000)

    assert len(execute_tool(tool(f, max_output=80), {}, Context()).output) <= 80


def test_a_cancelled_sleep_is_an_error_result() -> None:
    """The end of the run, raised out of ``ctx.sleep``, is for the loop to act on, not for the tool."""
    scope = CancelScope()
    scope.cancel("enough")

    def f(ctx: Context) -> None:
        ctx.sleep(30)

    result = run(f, context=Context(scope=scope))
    assert result == ToolResult.error("RunCancelledError: the run was cancelled: enough")


def test_generators_report_and_return() -> None:
    """Each piece is reported; the return value is the result, or all the pieces together."""

    def with_value() -> Generator[Any, None, Any]:
        yield "a"
        yield {"n": 1}
        return [2]

    def without() -> Iterator[str]:
        yield "a"
        yield "b"

    def empty() -> Iterator[str]:
        yield from ()

    listener = Listener()
    assert run(with_value, context=listener.context).output == "[2]"
    assert listener.heard == ["a", '{"n":1}']
    assert run(without).output == "ab"
    assert run(empty).output == "(no output)"


def test_a_generator_that_fails_or_is_cancelled_is_closed() -> None:
    """Its cleanup runs at once, and the result is an error."""
    scope = CancelScope()
    closed: list[str] = []

    def f(name: str) -> Iterator[str]:
        try:
            yield "first"
            if name == "raise":
                raise LookupError("gone")
            scope.cancel()
            yield "second"
            yield "never"
        finally:
            closed.append(name)

    assert run(f, {"name": "raise"}).output == "LookupError: gone"
    listener = Listener(scope)
    assert run(f, {"name": "cancel"}, listener.context).output.startswith("RunCancelledError")
    assert listener.heard == ["first", "second"]
    assert closed == ["raise", "cancel"]


def test_suspensions_pass_unchanged() -> None:
    """What ``pending`` gives arrives as it is, from a function and from a generator."""
    waiting = pending("Really?", kind="approval")

    def from_generator() -> Generator[str, None, Any]:
        yield "asking"
        return waiting

    assert run(lambda: waiting) is waiting
    assert run(from_generator) is waiting
    assert pending_of(waiting) is not None


def test_coroutines_run_to_their_end() -> None:
    """An async function is a tool like any other: values, errors, context variables."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")

    async def f(a: int, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"a": a, "v": variable.get()}

    async def fails() -> None:
        raise LookupError("gone")

    assert run(f, {"a": 1}).output == '{"a":1,"v":"set"}'
    assert run(fails) == ToolResult.error("LookupError: gone")


def test_async_generators_report_and_are_joined() -> None:
    """What an async generator yields is progress, and together the result."""

    async def f() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0)
        yield "b"

    listener = Listener()
    assert run(f, context=listener.context).output == "ab"
    assert listener.heard == ["a", "b"]


def test_coroutines_run_where_a_loop_is_running_already() -> None:
    """In a notebook's cell, whose thread has a loop, the coroutine runs beside it."""

    async def f() -> str:
        await asyncio.sleep(0)
        return "done"

    async def cell() -> ToolResult:
        return run(f)

    assert asyncio.run(cell()).output == "done"


def test_the_end_of_the_scope_cancels_a_coroutine() -> None:
    """A waiting coroutine is ended at once, and cleans up."""
    scope = CancelScope()
    cleaned = threading.Event()

    async def f() -> None:
        try:
            threading.Timer(0.05, scope.cancel, ["stop"]).start()
            await asyncio.sleep(30)
        finally:
            cleaned.set()

    before = time.monotonic()
    result = run(f, context=Context(scope=scope))
    assert result.output == "RunCancelledError: the run was cancelled: stop"
    assert cleaned.is_set()
    assert time.monotonic() - before < 10


def test_plain_tools_get_their_arguments_as_they_are() -> None:
    """A Tool made by hand is checked, not converted, and has the context as second argument."""
    schema = {"type": "object", "properties": {"n": {"type": "number"}}}
    made = Tool("n", "", schema, lambda args, ctx: [args, ctx.run_id])
    assert (
        execute_tool(made, {"n": 1, "other": "x"}, Context(run_id="r")).output == '[{"n":1,"other":"x"},"r"]'
    )
    assert execute_tool(made, {"n": "1"}, Context()).is_error


def test_many_threads_may_run_one_tool() -> None:
    """A tool holds no state of its calls."""
    made = tool(lambda a: a, name="same", input_schema={"properties": {"a": {"type": "integer"}}})
    results: list[str] = []

    def work(n: int) -> None:
        results.extend(execute_tool(made, {"a": n}, Context()).output for _ in range(50))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(str(n) for n in range(8) for _ in range(50))


def test_deep_recursion_in_a_tool_is_its_own_error() -> None:
    """Even a stack that overflows ends the tool only."""

    def f(n: int = 0) -> int:
        return f(n + 1)

    assert run(f).output.startswith("RecursionError")
    assert sys.getrecursionlimit() > 0
