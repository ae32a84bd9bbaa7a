"""Functions as tools. All annotations of this file are strings, because of the import below."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
import types
import typing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import attrs
import pytest

from toolnexus.errors import ConfigurationError, SchemaError
from toolnexus.tools import base
from toolnexus.tools.base import Context, Tool
from toolnexus.tools.execute import execute_tool
from toolnexus.tools.functions import FunctionTool, as_tool, collect, tool

if TYPE_CHECKING:
    from decimal import Context as Missing  # at run time there is no such name


@dataclass
class Point:
    """
    A point.

    Args:
        x: How far right.
    """

    x: int
    y: int = 0


class Color(enum.Enum):
    """Colours."""

    RED = "red"
    BLUE = "blue"


def call(made: Tool, ctx: Context | None = None, /, **args: Any) -> str:
    """Run a tool and return its output; fail where it failed."""
    result = execute_tool(made, args, ctx or Context())
    assert not result.is_error, result.output
    return result.output


def properties(made: Tool) -> dict[str, Any]:
    """Return the schemas of a tool's parameters."""
    found: dict[str, Any] = made.input_schema["properties"]
    return found


class Inner:
    """A class with a class inside, and methods as tools."""

    @dataclass
    class Part:
        """Part of it."""

        n: int

    factor = 2

    def scale(self, part: Part, ctx: Context) -> int:
        """
        Scale it.

        Args:
            part: What to scale.
            ctx: Is hidden.
        """
        return part.n * self.factor

    @tool(name="twice", timeout=3)
    def double(self, n: int) -> int:
        """Double it."""
        return n * self.factor

    @staticmethod
    def free(a: int) -> int:
        """Need nothing."""
        return a

    @classmethod
    def classy(cls, a: int) -> int:
        """Need the class."""
        return a * cls.factor

    @property
    def dangerous(self) -> int:
        """Never run by looking."""
        raise AssertionError("a property was run")

    def _private(self, x: object) -> None:
        """Stay out of sight."""


# -- the schema of the signature ---------------------------------------------------------------


def test_sch_01_future_annotations_give_real_types() -> None:
    """String annotations mean what they say: types, descriptions, and the hidden context."""

    def find(text: Annotated[str, "d"], p: Point, ctx: Context) -> str:
        """Find it."""
        return f"{text} {p} {ctx.run_id}"

    made = tool(find)
    assert made.input_schema["required"] == ["text", "p"]
    assert properties(made)["text"] == {"type": "string", "description": "d"}
    assert properties(made)["p"]["properties"]["x"] == {"type": "integer", "description": "How far right."}
    assert "ctx" not in properties(made)
    assert call(made, Context(run_id="r1"), text="a", p={"x": 1}) == "a Point(x=1, y=0) r1"


def test_sch_01_types_of_the_function_around_are_found() -> None:
    """A class defined inside a function serves the tools that are defined in that function."""

    @dataclass
    class Local:
        n: int
        next: Local | None = None

    @tool
    def use(it: list[Local]) -> int:
        return it[0].n + (it[0].next.n if it[0].next else 0)

    assert call(use, it=[{"n": 1, "next": {"n": 2}}]) == "3"
    assert properties(use)["it"] == {"type": "array", "items": {"$ref": "#/$defs/Local"}}

    def late() -> Tool:
        """Make the tool further down, from a function of the one that runs."""

        def deeper(it: Local) -> int:
            return it.n

        return as_tool(deeper)

    assert call(late(), it={"n": 5}) == "5"


def test_sch_01_a_closure_keeps_the_types() -> None:
    """A type that the function's body uses is found after the function around has returned."""

    def outer() -> Any:
        @dataclass
        class Kept:
            n: int

        def use(it: Kept) -> bool:
            return isinstance(it, Kept)

        return use

    assert call(as_tool(outer()), it={"n": 5}) == "true"


def test_sch_01_unresolvable_names_are_an_error_that_names_the_parameter() -> None:
    """Registration fails with the function, the parameter and the name."""

    def broken(ok: int, it: list[Missing]) -> str:
        return ""

    with pytest.raises(SchemaError, match=r"'broken'.*'it'.*Missing"):
        tool(broken)


def test_sch_01_types_that_have_no_schema_are_an_error_that_names_the_parameter() -> None:
    """A type without a JSON form is refused with its name, also deep inside."""

    @dataclass
    class Holder:
        stream: typing.IO[str]

    def broken(it: Holder) -> str:
        return ""

    with pytest.raises(SchemaError, match=r"'broken'.*'it'.*'stream' of Holder.*IO\[str\]"):
        tool(broken)


def test_sch_01_the_context_may_be_imported_for_type_checkers_only() -> None:
    """``Context`` is known even where its import does not run."""
    namespace: dict[str, Any] = {"__name__": "some_module"}
    exec(
        "from __future__ import annotations\n"
        "def f(a: int, ctx: Context | None = None): return (a, ctx is not None)\n"
        "def g(a: int, ctx: toolnexus.tools.base.Context): return (a, ctx is not None)\n",
        namespace,
    )
    for name in "fg":
        made = as_tool(namespace[name])
        assert list(properties(made)) == ["a"]
        assert call(made, a=1) == "[1,true]"


@pytest.mark.parametrize("name", ["plain", "optional", "union", "module", "annotated", "keyword"])
def test_the_context_is_recognised_by_its_annotation(name: str) -> None:
    """However ``Context`` is written in an annotation, it is injected and hidden."""

    def plain(ctx: Context, a: int) -> str:
        return ctx.run_id

    def optional(a: int, c: Optional[Context] = None) -> str:  # noqa: UP045 - as people write it
        return c.run_id if c else "none"

    def union(a: int, c: Context | None = None) -> str:
        return c.run_id if c else "none"

    def module(a: int, c: base.Context) -> str:
        return c.run_id

    def annotated(a: int, c: Annotated[Context, "the context"]) -> str:
        return c.run_id

    def keyword(a: int, *, ctx: Context) -> str:
        return ctx.run_id

    made = tool(locals()[name])
    assert list(properties(made)) == ["a"]
    assert call(made, Context(run_id="r"), a=1) == "r"


def test_a_model_cannot_give_the_context() -> None:
    """A context among the model's arguments is refused."""

    def f(a: int, ctx: Context) -> str:
        return ctx.run_id

    result = execute_tool(tool(f), {"a": 1, "ctx": {"run_id": "forged"}}, Context(run_id="real"))
    assert result.is_error
    assert '"ctx" is not known' in result.output


def test_sch_02_unions_literals_enums_and_defaults() -> None:
    """Optional and unions become anyOf, choices enum lists, defaults are told; required is right."""

    def f(a: Optional[int], b: int | str, c: Literal["x", "y"], d: Color, e: int = 3) -> str:  # noqa: UP045
        return repr((a, b, c, d, e))

    made = tool(f)
    assert made.input_schema == {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "c": {"type": "string", "enum": ["x", "y"]},
            "d": {"type": "string", "enum": ["red", "blue"]},
            "e": {"type": "integer", "default": 3},
        },
        "required": ["a", "b", "c", "d"],
        "additionalProperties": False,
    }
    assert call(made, a=None, b="1", c="x", d="red") == "(None, '1', 'x', <Color.RED: 'red'>, 3)"


def test_sch_06_variadic_parameters_are_skipped_by_kind() -> None:
    """``*args`` and ``**kwargs`` are no parameters; a plain parameter called args is one."""

    def f(x: int, *args: Missing, **kwargs: Any) -> int:
        return x

    def g(args: list[int], kwargs: str = "") -> int:
        return sum(args)

    assert list(properties(tool(f))) == ["x"]
    assert call(tool(f), x=4) == "4"
    assert list(properties(tool(g))) == ["args", "kwargs"]
    assert call(tool(g), args=[1, 2]) == "3"


def test_b130_containers_keep_their_element_types() -> None:
    """Items and values have their types in the schema, and arrive converted."""

    def f(xs: list[int], m: dict[str, float], t: tuple[int, str], s: set[str], p: Path, d: Decimal) -> str:
        return repr((xs, m, t, sorted(s), type(s).__name__, isinstance(p, Path), d))

    made = tool(f)
    schema = properties(made)
    assert schema["xs"] == {"type": "array", "items": {"type": "integer"}}
    assert schema["m"] == {"type": "object", "additionalProperties": {"type": "number"}}
    assert (schema["t"]["minItems"], schema["t"]["maxItems"]) == (2, 2)
    assert schema["s"] == {"type": "array", "items": {"type": "string"}}
    assert schema["p"] == {"type": "string"}
    assert schema["d"] == {"anyOf": [{"type": "number"}, {"type": "string"}]}
    shown = call(made, xs=[1.0], m={"k": 1}, t=[1, "a"], s=["b", "b"], p="/x", d=0.1)
    assert shown == "([1], {'k': 1.0}, (1, 'a'), ['b'], 'set', True, Decimal('0.1'))"


def test_without_annotations_anything_goes() -> None:
    """A parameter without an annotation takes any JSON value."""

    def f(a, b=2):  # type: ignore[no-untyped-def]
        return [a, b]

    assert properties(tool(f)) == {"a": {}, "b": {"default": 2}}
    assert call(tool(f), a={"x": None}) == '[{"x":null},2]'


def test_a_null_for_an_optional_argument_means_not_given() -> None:
    """Models send null for what they do not want to give; where null is a value it stays one."""

    def f(a: int = 5, b: int | None = 6) -> list[Any]:
        return [a, b]

    assert call(tool(f), a=None, b=None) == "[5,null]"
    assert execute_tool(tool(lambda a: a, name="g", input_schema={"required": ["a"]}), {"a": None}, Context())

    def g(a: int) -> int:
        return a

    assert execute_tool(tool(g), {"a": None}, Context()).is_error


# -- descriptions ------------------------------------------------------------------------------


def google(a: int, b: Annotated[int, "From the annotation."], c: str = "") -> None:
    """
    Add numbers.

    And more.

    Args:
        a (int, optional): The first: always
            a number.
        b: From the docstring.
        c: Last.

    Returns:
        a: nothing
    """


def rest(a: int, b: Annotated[int, "From the annotation."], c: str = "") -> None:
    """
    Add numbers.

    And more.

    :param a: The first: always
        a number.
    :type a: int
    :param int b: From the docstring.
    :param c: Last.
    :returns: nothing
    """


def numpy(a: int, b: Annotated[int, "From the annotation."], c: str = "") -> None:
    """
    Add numbers.

    And more.

    Parameters
    ----------
    a : int
        The first: always
        a number.
    b : int, optional
        From the docstring.
    c
        Last.

    Returns
    -------
    a
        nothing
    """


@pytest.mark.parametrize("function", [google, rest, numpy])
def test_docstrings_of_three_styles_describe_the_parameters(function: Any) -> None:
    """The texts become descriptions, the annotation's own go first, the rest is the tool's."""
    made = tool(function)
    assert made.description == "Add numbers.\n\nAnd more."
    texts = {name: schema["description"] for name, schema in properties(made).items()}
    assert texts == {"a": "The first: always a number.", "b": "From the annotation.", "c": "Last."}


def test_a_docstring_without_parameters_is_the_description() -> None:
    """Without a parameter section the whole text describes the tool."""

    def f() -> None:
        """
        Do it.

        Note: really.
        """

    assert tool(f).description == "Do it.\n\nNote: really."
    assert tool(f, description="Other.").description == "Other."
    assert tool(lambda: None, name="g").description == ""


# -- what can be a tool ------------------------------------------------------------------------


def test_the_decorator_takes_its_options() -> None:
    """Every option arrives on the tool, which can still be called as the function."""

    @tool(
        name="n",
        description="d",
        timeout=2,
        parallel=False,
        max_output=10,
        approval=True,
        idempotent=True,
        on_interrupted="retry",
        metadata={"k": 1},
    )
    def f(a: int) -> int:
        return a + 1

    assert isinstance(f, Tool)
    assert (f.name, f.description, f.timeout, f.parallel, f.max_output) == ("n", "d", 2, False, 10)
    assert (f.approval, f.idempotent, f.on_interrupted, f.metadata) == (True, True, "retry", {"k": 1})
    assert f(1) == 2
    assert f.source == "native"
    assert call(f.with_name("other"), a=1) == "2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"max_output": -1}, "max_output"),
        ({"input_schema": {"type": "string"}}, "input_schema"),
        ({"input_schema": "no"}, "input_schema"),
        ({"on_interrupted": "explode"}, "on_interrupted"),
    ],
)
def test_wrong_options_are_errors(options: Any, message: str) -> None:
    """A wrong value is refused where the tool is made."""
    with pytest.raises(ConfigurationError, match=message):
        tool(lambda: 1, name="x", **options)


def test_a_schema_of_ones_own_replaces_the_signature() -> None:
    """Arguments then arrive as JSON has them; the context is injected all the same."""
    schema = {"properties": {"when": {"type": "string"}}, "required": ["when"]}

    @tool(input_schema=schema)
    def f(when: Missing, ctx: Context) -> str:
        return f"{when} {ctx.run_id}"

    assert f.input_schema == {"type": "object", **schema}
    assert f.convert is None
    assert call(f, Context(run_id="r"), when="now") == "now r"
    assert execute_tool(f, {"when": 1}, Context()).is_error


def test_methods_partials_and_callable_objects() -> None:
    """Bound methods lose self, partials what they have bound, objects are called."""
    assert call(as_tool(Inner().scale), part={"n": 3}) == "6"
    assert properties(as_tool(Inner().scale))["part"]["description"].startswith("What to scale.")

    def area(width: int, height: int, *, session: object, unit: str = "m") -> str:
        """Tell the area."""
        return f"{width * height} {unit} {session}"

    bound = as_tool(functools.partial(area, 2, session="s"))
    assert (bound.name, bound.description, list(properties(bound))) == (
        "area",
        "Tell the area.",
        ["height", "unit"],
    )
    assert call(bound, height=3) == "6 m s"

    class Adder:
        """Adds."""

        def __call__(self, a: int, b: int) -> int:
            return a + b

    made = as_tool(Adder())
    assert (made.name, made.description) == ("Adder", "Adds.")
    assert call(made, a=1, b=2) == "3"


def test_decorated_functions_show_what_they_wrap() -> None:
    """A wrapper made with functools.wraps has the schema of the function inside."""

    def wrapper(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    @wrapper
    def f(p: Point) -> int:
        return p.x

    assert call(as_tool(f), p={"x": 3}) == "3"


def test_positional_only_parameters() -> None:
    """What can only be given by position is given so, defaults in between included."""

    def f(a: int, b: int = 2, c: int = 3, /, d: int = 4) -> list[int]:
        return [a, b, c, d]

    assert call(tool(f), a=1, c=9) == "[1,2,9,4]"
    assert call(tool(f), a=1, d=0) == "[1,2,3,0]"
    assert call(as_tool(len), obj=[1, 2]) == "2"


def test_methods_can_be_decorated() -> None:
    """``@tool`` on a method gives a tool for each instance, with the options kept."""
    thing = Inner()
    thing.factor = 5
    made = thing.double
    assert (made.name, made.timeout, list(properties(made))) == ("twice", 3, ["n"])
    assert call(made, n=2) == "10"
    assert made(3) == 15
    assert list(properties(Inner.double)) == ["n"]

    class Keeper:
        """Holds a tool that is no method of its own."""

        kept = tool(google)

    assert Keeper().kept is Keeper.kept

    class Odd:
        """Has class methods and static methods."""

        @classmethod
        @tool
        def below(cls, a: int) -> str:
            """Say the class."""
            return f"{cls.__name__} {a}"

        @staticmethod
        @tool
        def still(a: int) -> int:
            """Say the number."""
            return a

        @tool
        @staticmethod
        def above(a: int) -> int:
            """Say it, too."""
            return a

    assert call(as_tool(Odd.below), a=1) == "Odd 1"
    assert call(as_tool(Odd.still), a=1) == "1"
    assert call(as_tool(Odd.above), a=1) == "1"
    with pytest.raises(ConfigurationError, match="below @classmethod"):
        tool(cast("Any", classmethod(lambda cls: 1)))


def test_a_method_may_name_the_class_that_it_is_in() -> None:
    """What the class's own name means is looked for when the tool is asked of an instance."""

    @dataclass
    class Money:
        amount: int

        @tool
        def plus(self, other: Money) -> int:
            """Add up."""
            return self.amount + other.amount

        @tool
        def broken(self, other: Missing) -> int:
            """Cannot be described."""
            return 0

    assert call(Money(1).plus, other={"amount": 2}) == "3"
    with pytest.raises(SchemaError, match="Missing"):
        as_tool(Money(1).broken)


def test_as_tool_takes_tools_and_callables_and_names_what_else_came() -> None:
    """A tool passes through, a callable becomes one, anything else is an error with its type."""
    plain = Tool("t")
    assert as_tool(plain) is plain
    assert isinstance(as_tool(google), FunctionTool)
    with pytest.raises(ConfigurationError, match="got str"):
        as_tool("google")
    with pytest.raises(ConfigurationError, match="pass name="):
        as_tool(lambda: 1)
    with pytest.raises(ConfigurationError, match="got Tool"):
        tool(cast("Any", plain))
    assert tool(tool(google), name="again").name == "again"


def test_classes_can_be_tools() -> None:
    """A class is called as any callable is."""
    assert call(as_tool(Point), x=1) == '{"x":1,"y":0}'


# -- collect -----------------------------------------------------------------------------------


def make_module() -> types.ModuleType:
    """Return a module as somebody may have written it."""
    module = types.ModuleType("some_tools")
    sys.modules["some_tools"] = module
    code = """
from os.path import join
from textwrap import dedent
from toolnexus.tools.base import Tool
from toolnexus.tools.functions import tool

def zeta(a: int) -> int: return a
@tool
def alpha(a: int) -> int: return a
def _hidden(x: object): ...
class Thing: ...
raw = Tool("raw")
"""
    exec(code, module.__dict__)
    del sys.modules["some_tools"]
    return module


def test_collect_finds_the_tools_of_a_module() -> None:
    """Functions defined there and tools, in order; nothing imported, nothing private."""
    module = make_module()
    assert [made.name for made in collect(module)] == ["zeta", "alpha", "raw"]
    module.__all__ = ["alpha", "dedent"]  # type: ignore[attr-defined]
    assert sorted(made.name for made in collect(module)) == ["alpha", "dedent"]


def test_collect_finds_the_methods_of_an_object() -> None:
    """Public methods of all kinds in order of definition; properties are not run."""

    class Derived(Inner):
        """Adds one method and a tool of its own."""

        def __init__(self) -> None:
            self.extra = tool(google)

        def last(self) -> str:
            """Come last."""
            return "last"

    names = ["scale", "twice", "free", "classy", "last", "google"]
    found = collect(Derived())
    assert [made.name for made in found] == names
    assert call(found[3], a=2) == "4"
    assert [made.name for made in collect(Inner)] == ["free", "classy"]


# -- what it costs -----------------------------------------------------------------------------


def test_making_tools_imports_nothing_heavy() -> None:
    """Neither pydantic, jsonschema nor asyncio is loaded for a function without such types."""
    code = (
        "import sys, requests, attrs\n"
        "from toolnexus.tools.functions import tool\n"
        "from toolnexus.tools.execute import execute_tool\n"
        "from toolnexus.tools.base import Context\n"
        "def f(a: int, b: list[str] | None = None): return a\n"
        "assert execute_tool(tool(f), {'a': 1}, Context()).output == '1'\n"
        "print(sorted({'pydantic', 'jsonschema', 'asyncio', 'dataclasses', 'decimal'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@attrs.define
class Private:
    """A class whose constructor leaves out the underscore."""

    _token: int


def test_attrs_fields_have_the_names_of_the_constructor() -> None:
    """A private attrs field is filled under the name that its class is made with."""

    def f(it: Private) -> int:
        return it._token

    assert call(tool(f), it={"token": 3}) == "3"
