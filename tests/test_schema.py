"""Schemas of types, and the way to JSON and back. Annotations of this file are no strings."""

# The older spellings of unions and literals are what is tested here.
# ruff: noqa: UP007, UP045, PYI030, PYI061

import collections
import dataclasses
import datetime
import enum
import json
import sys
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union

import attrs
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.errors import SchemaError
from toolnexus.tools.arguments import check_arguments
from toolnexus.tools.plain import plain
from toolnexus.tools.schema import ShapeBuilder, schema_of

jsonschema = pytest.importorskip("jsonschema")

T = TypeVar("T")
Number = TypeVar("Number", bound=int)
Either = TypeVar("Either", int, str)
UserId = NewType("UserId", int)


class Sex(str, enum.Enum):
    """A string enum."""

    F = "female"
    M = "male"


class Level(enum.IntEnum):
    """An integer enum."""

    LOW = 1
    HIGH = 2


class Shade(enum.Enum):
    """Values that JSON does not have."""

    LIGHT = (255, 255)
    DARK = (0, 0)


@dataclasses.dataclass
class Node:
    """A tree of numbers."""

    value: int
    children: "list[Node]" = dataclasses.field(default_factory=list)
    label: str | None = None


@dataclasses.dataclass
class Left:
    """One half of a pair of types that contain each other."""

    right: "Right | None" = None


@dataclasses.dataclass
class Right:
    """The other half."""

    left: "list[Left]" = dataclasses.field(default_factory=list)


@attrs.frozen
class Span:
    """
    A span of time.

    Attributes:
        start: When it begins.
    """

    start: datetime.date
    days: int = 1
    tags: frozenset[str] = attrs.field(factory=frozenset)


class Pair(NamedTuple):
    """Two things."""

    left: int
    right: str = "r"


class Options(TypedDict, total=False):
    """A dict with known keys."""

    depth: typing_extensions.Required[int]
    name: str


class Note(TypedDict):
    """A dict with known keys, too."""

    text: str
    stars: typing_extensions.NotRequired[int]


class Model(pydantic.BaseModel):
    """A pydantic model."""

    name: str
    size: int = pydantic.Field(default=1, ge=0, description="How big.")
    parts: "list[Model]" = []


class Address(pydantic.BaseModel):
    """Inside another."""

    city: str


class Person(pydantic.BaseModel):
    """Holds another."""

    title: str
    home: Address


@dataclasses.dataclass
class Box(Generic[T]):
    """Holds anything."""

    item: T
    more: list[T] = dataclasses.field(default_factory=list)


STRING, INTEGER, NUMBER, NULL = ({"type": t} for t in ("string", "integer", "number", "null"))

SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (int, INTEGER),
    (float, NUMBER),
    (bool, {"type": "boolean"}),
    (str, STRING),
    (None, NULL),
    (Any, {}),
    (object, {}),
    (list[int], {"type": "array", "items": INTEGER}),
    (typing.List[int], {"type": "array", "items": INTEGER}),  # noqa: UP006 - as people write it
    (list, {"type": "array", "items": {}}),
    (Sequence[str], {"type": "array", "items": STRING}),
    (Iterable[str], {"type": "array", "items": STRING}),
    (AbstractSet[str], {"type": "array", "items": STRING}),
    (tuple, {"type": "array", "items": {}}),
    (tuple[int, ...], {"type": "array", "items": INTEGER}),
    (tuple[int, int], {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}),
    (tuple[()], {"type": "array", "items": {}, "minItems": 0, "maxItems": 0}),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [INTEGER, STRING],
            "items": {"anyOf": [INTEGER, STRING]},
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (dict, {"type": "object"}),
    (dict[str, Any], {"type": "object"}),
    (
        Mapping[str, list[int]],
        {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
    ),
    (dict[int, str], {"type": "object", "additionalProperties": STRING, "description": "keys: integers"}),
    (
        dict[Sex, int],
        {"type": "object", "additionalProperties": INTEGER, "description": "keys: female, male"},
    ),
    (Optional[int], {"anyOf": [INTEGER, NULL]}),
    (int | None, {"anyOf": [INTEGER, NULL]}),
    (Union[int, str, None], {"anyOf": [INTEGER, STRING, NULL]}),
    (Path | str, STRING),
    (Any | None, {}),
    (UserId, INTEGER),
    (T, {}),
    (Number, INTEGER),
    (Either, {"anyOf": [INTEGER, STRING]}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (datetime.time, {"type": "string", "format": "time"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (Path, STRING),
    (PurePosixPath, STRING),
    (bytes, {"type": "string", "contentEncoding": "base64"}),
    (Decimal, {"anyOf": [NUMBER, STRING]}),
    (Annotated[int, "the text"], {"type": "integer", "description": "the text"}),
    (Annotated[int, typing_extensions.Doc("the text")], {"type": "integer", "description": "the text"}),
    (
        Annotated[int, pydantic.Field(ge=1, lt=5, description="few")],
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 5, "description": "few"},
    ),
    (
        Annotated[list[str], pydantic.Field(min_length=1)],
        {"type": "array", "items": STRING, "minItems": 1},
    ),
    (Annotated[str, pydantic.Field(pattern="^a")], {"type": "string", "pattern": "^a"}),
    (pydantic.PositiveInt, {"type": "integer", "exclusiveMinimum": 0}),
]


@pytest.mark.parametrize(("hint", "schema"), SCHEMAS, ids=[str(hint) for hint, _ in SCHEMAS])
def test_schemas_of_types(hint: Any, schema: dict[str, Any]) -> None:
    """Each supported type has the schema that says just what it takes."""
    assert schema_of(hint) == schema


def load(hint: Any, value: Any) -> Any:
    """Return the Python value for a JSON value, as a tool would get it."""
    builder = ShapeBuilder("test")
    shape = builder.shape(hint)
    assert check_arguments({**shape.schema, "$defs": builder.defs}, value) == []
    return value if shape.load is None else shape.load(value)


def test_sch_03_enums_have_their_values_and_arrive_as_members() -> None:
    """A string enum lists its values; numbers are explained; values JSON lacks become names."""
    assert schema_of(Sex) == {"type": "string", "enum": ["female", "male"]}
    assert schema_of(Level) == {"type": "integer", "enum": [1, 2], "description": "1: LOW, 2: HIGH"}
    assert schema_of(Shade) == {"type": "string", "enum": ["LIGHT", "DARK"]}
    assert load(Sex, "male") is Sex.M
    assert load(Level, 2.0) is Level.HIGH
    assert load(Shade, "DARK") is Shade.DARK
    with pytest.raises(SchemaError, match="Empty"):
        schema_of(enum.Enum("Empty", []))


def test_sch_04_literals_in_unions_keep_their_choices() -> None:
    """Literals of a union become one list of choices; beside other types each stays what it is."""
    assert schema_of(Union[Literal["red"], Literal["green"]]) == {"type": "string", "enum": ["red", "green"]}
    assert schema_of(Union[Literal["a"], str]) == {"anyOf": [{"type": "string", "enum": ["a"]}, STRING]}
    assert schema_of(Union[Literal["a"], None, Literal[2]]) == {
        "anyOf": [{"type": ["string", "integer"], "enum": ["a", 2]}, NULL]
    }


def test_sch_05_literals_have_the_types_of_their_options() -> None:
    """Numbers, booleans and None are what they are, alone and mixed, and arrive as such."""
    assert schema_of(Literal[1, 2]) == {"type": "integer", "enum": [1, 2]}
    assert schema_of(Literal[True]) == {"type": "boolean", "enum": [True]}
    mixed = Literal[1, True, "x", None]
    assert schema_of(mixed)["enum"] == [1, True, "x", None]
    assert schema_of(mixed)["type"] == ["integer", "boolean", "string", "null"]
    assert load(mixed, True) is True
    assert load(mixed, 1) == 1
    assert load(Literal[Sex.F], "female") is Sex.F
    assert load(Literal[b"\x00"], "AA==") == b"\x00"
    assert check_arguments(schema_of(Literal[1]), True) != []


def test_classes_are_objects_with_described_fields() -> None:
    """Fields, defaults, required ones and texts come from the class."""
    assert schema_of(Span) == {
        "type": "object",
        "properties": {
            "start": {"type": "string", "format": "date", "description": "When it begins."},
            "days": {"type": "integer", "default": 1},
            "tags": {"type": "array", "items": STRING},
        },
        "required": ["start"],
        "description": "A span of time.",
    }
    assert schema_of(Pair)["required"] == ["left"]
    assert schema_of(Options)["required"] == ["depth"]
    assert schema_of(Note)["required"] == ["text"]
    assert "description" not in schema_of(dataclasses.make_dataclass("Bare", [("x", int)]))


def test_recursive_types_go_through_definitions() -> None:
    """A type inside itself is a reference; one that is not stays in place."""
    schema = schema_of(list[Node])
    assert schema["items"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert set(schema_of(Left)["$defs"]) == {"Left"}
    assert load(Left, {"right": {"left": [{}]}}) == Left(Right([Left()]))
    assert "$ref" not in json.dumps(schema_of(tuple[Span, Span]))


def test_two_recursive_types_of_one_name_do_not_mix() -> None:
    """The second one's definition gets a name of its own."""

    def make(extra: str) -> type:
        namespace: dict[str, Any] = {"__name__": __name__, "dataclass": dataclasses.dataclass}
        exec(f"@dataclass\nclass Node:\n    {extra}: int\n    next: 'Node | None' = None\n", namespace)
        cls: type = namespace["Node"]
        return cls

    schema = schema_of(of(tuple, (make("a"), make("b"))))
    assert sorted(schema["$defs"]) == ["Node", "Node_2"]
    assert "a" in schema["$defs"]["Node"]["properties"]
    assert "b" in schema["$defs"]["Node_2"]["properties"]


def test_generic_classes_take_their_arguments() -> None:
    """The type parameter of a generic class stands for what was put in, also two levels down."""
    assert schema_of(Box[int])["properties"]["more"] == {"type": "array", "items": INTEGER}
    assert load(Box[Box[Sex]], {"item": {"item": "male"}}) == Box(Box(Sex.M))
    assert schema_of(Box)["properties"]["item"] == {}


def test_pydantic_models_speak_for_themselves() -> None:
    """The model's own schema without the noise of titles, its own validation, with short messages."""
    schema = schema_of(Person)
    assert schema["properties"] == {"title": STRING, "home": {"$ref": "#/$defs/Address"}}
    assert schema["$defs"]["Address"]["properties"] == {"city": STRING}
    made = load(list[Person], [{"title": "x", "home": {"city": "y"}}])
    assert made == [Person(title="x", home=Address(city="y"))]
    assert load(Model, {"name": "a", "parts": [{"name": "b"}]}).parts[0].name == "b"
    shape = ShapeBuilder("t").shape(list[Model])
    assert shape.load is not None
    with pytest.raises(ValueError, match=r"^\[0\]: size: Input should be greater than or equal to 0$"):
        shape.load([{"name": "a", "size": -1}])


def test_pydantic_is_not_imported_for_other_types() -> None:
    """Without pydantic in the process, classes still have their schemas."""
    kept = sys.modules.pop("pydantic")
    try:
        assert schema_of(Span)["type"] == "object"
        assert "pydantic" not in sys.modules
    finally:
        sys.modules["pydantic"] = kept


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is of Python 3.12")
def test_type_aliases_may_be_recursive() -> None:
    """``type`` statements are looked through, and may name themselves."""
    namespace: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | int | None\ntype Pair[T] = tuple[T, T]\n", namespace)
    schema = schema_of(namespace["Json"])
    assert schema["$ref"] == "#/$defs/Json"
    assert check_arguments(schema, {"a": [1, {"b": None}]}) == []
    assert check_arguments(schema, {"a": ["x"]}) != []
    assert schema_of(namespace["Pair"][int])["items"] == INTEGER


@pytest.mark.parametrize(
    "hint",
    [
        typing.Callable[[int], str],
        type[int],
        complex,
        typing.IO,
        list[complex],
        dict[str, type],
        Optional[collections.Counter],
        "name",
        [int],
        ...,
    ],
    ids=str,
)
def test_types_without_a_json_form_are_refused(hint: Any) -> None:
    """No schema is invented: the error says which type it is about."""
    with pytest.raises(SchemaError, match="no JSON schema can be made for"):
        schema_of(hint)


@pytest.mark.parametrize(
    ("hint", "value", "complaint"),
    [
        (datetime.date, "soon", "Invalid isoformat"),
        (list[uuid.UUID], ["no"], r"^\[0\]: "),
        (bytes, "é", "ASCII|ascii"),
        (Decimal, "x", "expected a decimal number"),
        (dict[int, str], {"a": "b"}, "^a: as a key: expected an integer"),
        (Span, {"start": "2026-01-01", "end": 1}, "unknown field 'end'; known: start, days, tags"),
        (list[Node], [{"value": 1, "children": [{"value": 1, "x": 0}]}], r"^\[0\]\.children\[0\]: unknown"),
        (set[list[int]], [[1]], "unhashable"),
        (float, 10**400, "OverflowError"),
    ],
    ids=str,
)
def test_values_that_cannot_be_converted_say_where_and_why(hint: Any, value: Any, complaint: str) -> None:
    """A value that fits the schema and not the type is refused with its place."""
    builder = ShapeBuilder("test")
    shape = builder.shape(of(list, hint))
    assert shape.load is not None
    with pytest.raises(ValueError, match=complaint.replace("^", r"^\[0\](\.|: )?", 1)):
        shape.load([value])


def test_conversions_take_what_json_has_for_a_type() -> None:
    """Integral floats are integers, integers floats, Z is UTC, keys are read, null stays null."""
    assert load(int, 3.0) == 3
    assert type(load(int, 3.0)) is int
    assert type(load(float, 3)) is float
    assert load(datetime.datetime, "2026-03-01T10:00:00Z").utcoffset() == datetime.timedelta(0)
    assert load(dict[int, Level], {"1": 2}) == {1: Level.HIGH}
    assert load(dict[bool, int], {"true": 1}) == {True: 1}
    assert load(Optional[Sex], None) is None
    assert load(Union[datetime.date, str], "soon") == "soon"
    assert load(Union[datetime.date, str], "2026-03-01") == datetime.date(2026, 3, 1)
    assert load(collections.deque[int], [1]) == collections.deque([1])
    assert load(Decimal, 0.1) == Decimal("0.1")


def test_a_default_is_told_only_where_the_schema_takes_it() -> None:
    """Sentinels and wrong defaults stay out of the schema."""

    @dataclasses.dataclass
    class Settings:
        a: int = None  # type: ignore[assignment]
        b: int | None = None
        c: object = dataclasses.field(default_factory=object)
        d: Sex = Sex.F
        e: Path = Path("x")
        f: float = float("inf")

    found = schema_of(Settings)["properties"]
    told = {name: schema["default"] for name, schema in found.items() if "default" in schema}
    assert told == {"b": None, "d": "female", "e": "x"}


# -- properties: there and back -----------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)

#: Strategies for values of the basic types.
BASICS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, FLOATS),
    (bool, st.booleans()),
    (str, TEXT),
    (type(None), st.none()),
    (datetime.datetime, st.datetimes(timezones=st.none() | st.just(datetime.timezone.utc))),
    (datetime.date, st.dates()),
    (datetime.time, st.times()),
    (datetime.timedelta, st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999))),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (Path, st.text("ab/.", max_size=6).map(Path)),
    (bytes, st.binary(max_size=8)),
    (Sex, st.sampled_from(Sex)),
    (Level, st.sampled_from(Level)),
    (Shade, st.sampled_from(Shade)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (UserId, st.integers()),
    (Pair, st.builds(Pair, st.integers(), TEXT)),
    (Span, st.builds(Span, st.dates(), st.integers(), st.frozensets(TEXT, max_size=3))),
    (Note, st.fixed_dictionaries({"text": TEXT}, optional={"stars": st.integers()})),
    (Options, st.fixed_dictionaries({"depth": st.integers()}, optional={"name": TEXT})),
    (
        Node,
        st.recursive(
            st.builds(Node, st.integers()),
            lambda inner: st.builds(Node, st.integers(), st.lists(inner, max_size=2), st.none() | TEXT),
            max_leaves=4,
        ),
    ),
    (Model, st.builds(Model, name=TEXT, size=st.integers(0, 99), parts=st.just([]))),
]

Case = tuple[Any, st.SearchStrategy[Any]]
HASHABLE = [case for case in BASICS if case[0] not in (Note, Options, Node, Model)]
KEYS = [case for case in HASHABLE if case[0] not in (Pair, Span)]


def of(generic: Any, arguments: Any) -> Any:
    """Return a type with its arguments."""
    return generic[arguments]


def around(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Return types made of others, with strategies for their values."""
    hashable = st.sampled_from(HASHABLE)
    return st.one_of(
        inner.map(lambda c: (of(list, c[0]), st.lists(c[1], max_size=3))),
        inner.map(lambda c: (of(tuple, (c[0], ...)), st.lists(c[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(
            lambda cs: (of(tuple, (cs[0][0], cs[1][0])), st.tuples(cs[0][1], cs[1][1]))
        ),
        hashable.map(lambda c: (of(set, c[0]), st.sets(c[1], max_size=3))),
        hashable.map(lambda c: (of(frozenset, c[0]), st.frozensets(c[1], max_size=3))),
        st.tuples(st.sampled_from(KEYS), inner).map(
            lambda cs: (of(dict, (cs[0][0], cs[1][0])), st.dictionaries(cs[0][1], cs[1][1], max_size=3))
        ),
        inner.map(lambda c: (of(Optional, c[0]), st.none() | c[1])),
        inner.map(lambda c: (of(Annotated, (c[0], "text")), c[1])),
        inner.map(lambda c: (of(Box, c[0]), st.builds(Box, c[1], st.lists(c[1], max_size=2)))),
    )


CASES = st.recursive(st.sampled_from(BASICS), around, max_leaves=4)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a type and a value of it."""
    hint, values = draw(CASES)
    return hint, draw(values)


@given(typed_values())
def test_any_value_passes_its_own_schema_and_comes_back_equal(case: tuple[Any, Any]) -> None:
    """Value to JSON text, checked against the schema of its type, converted: the same value."""
    hint, value = case
    builder = ShapeBuilder("property")
    shape = builder.shape(hint)
    schema = {**shape.schema, "$defs": builder.defs}
    data = json.loads(json.dumps(plain(value), allow_nan=False))
    assert check_arguments(schema, data) == []
    jsonschema.validate(data, schema)
    assert (data if shape.load is None else shape.load(data)) == value


@given(CASES)
def test_every_schema_is_a_valid_schema(case: Case) -> None:
    """What is emitted is JSON schema, as the meta schema has it, and closes no object but the top."""
    schema = schema_of(case[0])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert '"additionalProperties": false' not in json.dumps(schema)
