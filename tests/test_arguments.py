"""Checking arguments against schemas."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_schema import CASES, Case
from toolnexus.tools.arguments import argument_checker, check_arguments, without_nulls
from toolnexus.tools.base import Context, Tool
from toolnexus.tools.execute import execute_tool
from toolnexus.tools.schema import schema_of

jsonschema = pytest.importorskip("jsonschema")

ITEM = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}

COMPLAINTS: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({"type": "integer"}, "x", ['expected an integer, got "x"']),
    ({"type": "integer"}, True, ["expected an integer, got true"]),
    ({"type": "integer"}, 3.5, ["expected an integer, got 3.5"]),
    ({"type": "integer"}, "3", ['expected an integer, got "3"']),
    ({"type": ["integer", "null"]}, [], ["expected an integer or null, got []"]),
    ({"enum": ["a", 1]}, "b", ['expected one of "a", 1, got "b"']),
    ({"const": 1}, True, ["expected 1, got true"]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", ['expected an integer or null, got "x"']),
    ({"anyOf": [ITEM, {"type": "null"}]}, {"name": "x"}, ['name: expected an integer, got "x"']),
    (
        {"oneOf": [{"type": "integer"}, {"minimum": 0}]},
        5,
        ["fits 2 alternatives, and only one may fit; got 5"],
    ),
    (
        {"allOf": [{"minimum": 3}, {"maximum": 1}]},
        2,
        ["expected at least 3, got 2", "expected at most 1, got 2"],
    ),
    ({"not": {"type": "null"}}, None, ["may not be null"]),
    ({"minLength": 2}, "é", ["expected at least 2 characters, got 1"]),
    ({"maxItems": 1}, [1, 2], ["expected at most 1 items, got 2"]),
    ({"exclusiveMinimum": 0}, 0, ["expected more than 0, got 0"]),
    ({"minimum": 0, "exclusiveMinimum": True}, 0, ["expected more than 0, got 0"]),
    ({"multipleOf": 0.5}, 0.7, ["expected a multiple of 0.5, got 0.7"]),
    ({"pattern": "^a+$"}, "b", ['expected text that matches ^a+$, got "b"']),
    (
        {"uniqueItems": True},
        [1, {"a": 2}, {"a": 2.0}],
        ['[2]: expected no value twice, got {"a": 2.0} again'],
    ),
    ({"uniqueItems": True}, [1, True, "1"], []),
    (
        {"prefixItems": [{"type": "string"}], "items": {"type": "null"}},
        [1, 2],
        ["[0]: expected a string, got 1", "[1]: expected null, got 2"],
    ),
    ({"propertyNames": {"pattern": "^x"}}, {"y": 1}, ['name "y": expected text that matches ^x, got "y"']),
    ({"properties": {"a": False}}, {"a": 1}, ["a: nothing may be given here"]),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, ['"b" is not known; known: a']),
    (
        {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
        {"x": None, "xx": 1},
        ["xx: expected null, got 1"],
    ),
    ({"required": ["a", "b"]}, {}, ['"a" is missing', '"b" is missing']),
    ({"type": "string", "nullable": True}, None, []),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}}, 1, ["expected null, got 1"]),
    ({"$ref": "https://example.com/schema.json"}, 1, []),
    ({"$ref": "#"}, 1, []),
    ({"pattern": "(?<named"}, "x", []),
    ({"type": "strange"}, "x", []),
    ({"items": [{"type": "null"}]}, [1], ["[0]: expected null, got 1"]),
]


@pytest.mark.parametrize(("schema", "value", "complaints"), COMPLAINTS, ids=[str(c[:2]) for c in COMPLAINTS])
def test_complaints_say_where_and_what(schema: dict[str, Any], value: Any, complaints: list[str]) -> None:
    """Each keyword has a message that a model can act on."""
    assert check_arguments(schema, value) == complaints


def test_paths_lead_through_lists_and_objects() -> None:
    """The place is written as one would write it in code."""
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": ITEM}}}
    assert check_arguments(schema, {"items": [{"name": 1}, {"name": 2}, {"name": "x"}]}) == [
        'items[2].name: expected an integer, got "x"'
    ]


def test_long_values_and_long_lists_of_complaints_are_cut() -> None:
    """A message stays readable whatever was given."""
    [problem] = check_arguments({"type": "integer"}, "x" * 1_000_000)
    assert len(problem) < 200
    problems = check_arguments({"items": {"type": "integer"}}, ["x"] * 1000)
    assert problems[-1] == "and 980 more"
    assert len(problems) == 21


def test_odd_schemas_never_raise() -> None:
    """Keywords with values that make no sense are passed over."""
    keywords = "type enum properties required items anyOf allOf oneOf $ref minimum additionalProperties"
    keywords += " patternProperties minLength uniqueItems pattern prefixItems propertyNames not multipleOf"
    rules: list[Any] = [None, 5, 0, "text", [5], [[]], {"a": 5}]
    for keyword in keywords.split():
        for rule in rules:
            for value in (None, 1, "a", [1], {"a": 1}):
                assert isinstance(check_arguments({keyword: rule}, value), list)


def test_values_nested_too_deeply_are_refused() -> None:
    """A value that no recursion can follow is a complaint, not a crash."""
    value: Any = []
    for _ in range(100_000):
        value = [value]
    schema = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}
    assert check_arguments(schema, value) == ["the value is nested too deeply"]


def test_many_values_are_checked_for_duplicates_quickly() -> None:
    """Uniqueness of a long list is not quadratic (this would take minutes)."""
    assert check_arguments({"uniqueItems": True}, list(range(200_000))) == []


# -- agreement with jsonschema -------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.0, 1e300])
    | st.sampled_from(["", "a", "x", "text", "value", "item", "female", "LIGHT", "2026-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["a", "value", "children", "label", "left", "right", "start", "days", "text", "item", "more"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(CASES, JSON)
def test_our_checker_agrees_with_jsonschema_on_schemas_of_types(case: Case, value: Any) -> None:
    """For every schema that we emit and any JSON value, both say the same."""
    schema = schema_of(case[0])
    assert (check_arguments(schema, value) == []) == jsonschema.Draft202012Validator(schema).is_valid(value)


SMALL = st.integers(0, 3)
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
    "enum": st.lists(JSON, min_size=1, max_size=3),
    "const": JSON,
    "required": st.lists(st.sampled_from(["a", "value"]), unique=True),
    "minimum": SMALL,
    "maximum": SMALL,
    "exclusiveMinimum": SMALL,
    "exclusiveMaximum": SMALL,
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": SMALL,
    "maxLength": SMALL,
    "minItems": SMALL,
    "maxItems": SMALL,
    "minProperties": SMALL,
    "maxProperties": SMALL,
    "uniqueItems": st.booleans(),
    "pattern": st.sampled_from(["^a", "x$", "e"]),
    "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
}


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas that hold others."""
    names = st.sampled_from(["a", "value", "text"])
    several = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(names, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "e"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "items": inner,
            "prefixItems": several,
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "type": PARTS["type"],
        },
    )


WRITTEN = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=PARTS), nested, max_leaves=5)


@given(
    WRITTEN,
    st.fixed_dictionaries(
        {"one": WRITTEN, "two": st.just({"type": "array", "items": {"$ref": "#/$defs/one"}})}
    ),
    JSON,
)
def test_our_checker_agrees_with_jsonschema_on_other_schemas(
    schema: Any, definitions: Any, value: Any
) -> None:
    """For any schema made of the keywords that ours knows, both say the same."""
    definitions["one"] = without_references(definitions["one"])
    whole = {"allOf": [schema], "$defs": definitions}
    assert (check_arguments(whole, value) == []) == jsonschema.Draft202012Validator(whole).is_valid(value)


def without_references(schema: Any) -> Any:
    """Return a schema without references, which could go round in circles."""
    if isinstance(schema, dict):
        return {k: without_references(v) for k, v in schema.items() if k != "$ref"}
    return [without_references(item) for item in schema] if isinstance(schema, list) else schema


# -- which checker -------------------------------------------------------------------------------

CONDITIONAL = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "size": {"type": "integer"}},
    "if": {"properties": {"kind": {"const": "big"}}},
    "then": {"required": ["size"]},
}


def test_schemas_with_further_keywords_go_to_jsonschema() -> None:
    """What ours does not know is checked in full where the package is there, with our paths."""
    made = Tool("t", "", CONDITIONAL)
    assert argument_checker(made)({"kind": "big"}) == ["'size' is a required property"]
    assert argument_checker(made)({"kind": "big", "size": "x"}) == ["size: 'x' is not of type 'integer'"]
    assert execute_tool(made, {"kind": "big"}, Context()).is_error
    assert not execute_tool(made, {"kind": "small"}, Context()).is_error


def test_without_jsonschema_ours_checks_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, keywords that ours does not know are passed over."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    made = Tool("t", "", CONDITIONAL)
    assert argument_checker(made)({"kind": "big"}) == []
    assert argument_checker(made)({"kind": 1}) == ["kind: expected a string, got 1"]


def test_references_to_the_network_are_not_fetched() -> None:
    """A schema never makes us connect anywhere: such a reference is passed over."""
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1:9/s.json"}, "b": {"type": "null"}}, "if": {}}
    assert argument_checker(Tool("t", "", schema))({"a": 1, "b": 2}) == ["b: expected null, got 2"]


def test_nulls_are_left_out_only_where_they_cannot_be_meant() -> None:
    """Required, unknown and nullable arguments keep their null."""
    schema = {
        "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}, "c": {"type": "string"}},
        "required": ["c"],
    }
    args = {"a": None, "b": None, "c": None, "d": None}
    assert without_nulls(schema, args) == {"b": None, "c": None, "d": None}
    assert args["a"] is None
    assert without_nulls({}, {"a": None}) == {"a": None}


def test_infinite_numbers_are_numbers_and_no_integers() -> None:
    """What Python's JSON reader makes of Infinity does not upset the checks."""
    for value in (math.inf, -math.inf, math.nan):
        assert check_arguments({"type": "number"}, value) == []
        assert check_arguments({"type": "integer"}, value) != []
        assert isinstance(check_arguments({"multipleOf": 2, "minimum": 0}, value), list)
