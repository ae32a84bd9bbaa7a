"""Schemas made to fit what each provider takes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.test_arguments import JSON, WRITTEN, without_references
from tests.test_schema import CASES, Case, Note, Options, typed_values
from toolnexus.tools.adapt import for_gemini, plain, strict, strict_or_none
from toolnexus.tools.arguments import check_arguments, without_nulls
from toolnexus.tools.plain import plain as to_json
from toolnexus.tools.schema import ShapeBuilder
from toolnexus.tools.schema_parts import target_of

jsonschema = pytest.importorskip("jsonschema")

DOCUMENTS = Path(__file__).parent / "data" / "openapi"

#: A schema with all that bug MCP-13 lists.
MCP_13 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/A", "description": "The first."},
        "b": {"description": "no type"},
        "c": {"type": "object", "additionalProperties": False, "required": ["ghost"]},
        "d": {"type": "array"},
    },
    "required": ["a", "ghost"],
    "additionalProperties": False,
    "$defs": {"A": {"type": "string", "$id": "A", "minLength": 1}},
}


# -- what the providers say no to --------------------------------------------------------------


def gemini_problems(node: Any, path: str = "") -> list[str]:
    """Return what Gemini would refuse, after the errors that it was seen to answer with."""
    if not isinstance(node, dict):
        return [f"{path}: no schema"]
    if "anyOf" in node:
        inner = [p for i, item in enumerate(node["anyOf"]) for p in gemini_problems(item, f"{path}|{i}")]
        alone = node.keys() == {"anyOf"} and len(node["anyOf"]) > 1
        nested = any("anyOf" in item for item in node["anyOf"])
        return inner + ([] if alone and not nested else [f"{path}: anyOf is not alone"])
    kind = node.get("type")
    problems = []
    if kind not in ("string", "integer", "number", "boolean", "object", "array"):
        problems.append(f"{path}: type {kind!r}")
    if ("items" in node) != (kind == "array"):
        problems.append(f"{path}: items of {kind}")
    if not set(node.get("required", ())) <= node.get("properties", {}).keys():
        problems.append(f"{path}: required is not defined")
    if "required" in node and not node["required"]:
        problems.append(f"{path}: required is empty")
    if "enum" in node and not (kind == "string" and all(v and isinstance(v, str) for v in node["enum"])):
        problems.append(f"{path}: enum {node['enum']}")
    unknown = node.keys() - {
        "type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems",
        "properties", "required", "minimum", "maximum", "minLength", "maxLength", "pattern",
    }  # fmt: skip
    problems += [f"{path}: {key}" for key in unknown]
    for name, inner in node.get("properties", {}).items():
        problems += gemini_problems(inner, f"{path}.{name}")
    return problems + (gemini_problems(node["items"], f"{path}[]") if "items" in node else [])


def strict_problems(node: Any, root: Any, path: str = "") -> list[str]:
    """Return what OpenAI's strict mode would refuse, after its documentation."""
    if not isinstance(node, dict) or not node:
        return [f"{path}: no schema"]
    problems = []
    if "$ref" in node:
        inside = node["$ref"] == "#" or node["$ref"].removeprefix("#/$defs/") in root.get("$defs", {})
        return [] if node.keys() == {"$ref"} and inside else [f"{path}: reference {node}"]
    kinds = node.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds and "anyOf" not in node:
        problems.append(f"{path}: no type")
    if "object" in kinds and (
        node.get("additionalProperties") is not False
        or set(node.get("required", ())) != node.get("properties", {}).keys()
    ):
        problems.append(f"{path}: object is open")
    if "array" in kinds and "items" not in node:
        problems.append(f"{path}: no items")
    unknown = node.keys() - {
        "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "format",
        "title", "description", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "minItems", "maxItems", "$defs",
    }  # fmt: skip
    problems += [f"{path}: {key}" for key in unknown]
    inner = [*node.get("properties", {}).items(), *enumerate(node.get("anyOf", ()))]
    inner += [*node.get("$defs", {}).items(), *([("[]", node["items"])] if "items" in node else [])]
    return problems + [p for name, item in inner for p in strict_problems(item, root, f"{path}.{name}")]


def assert_valid_everywhere(schema: Any) -> None:
    """Assert that no provider refuses what is made of a schema."""
    for made in (plain(schema), strict(schema)):
        jsonschema.Draft202012Validator.check_schema(made)
        assert made["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref", "$schema", "$id"} & plain(schema).keys()
    assert gemini_problems(for_gemini(schema)) == []
    exact = strict_or_none(schema)
    if exact is not None:
        assert strict_problems(exact, exact) == []
    json.dumps([plain(schema), strict(schema), for_gemini(schema)], allow_nan=False)


# -- properties ------------------------------------------------------------------------------


def as_arguments(hint: Any) -> dict[str, Any]:
    """Return the schema of a function with one required and one optional parameter of a type."""
    builder = ShapeBuilder("property")
    schema = builder.shape(hint).schema
    properties = {"x": schema, "y": schema}
    whole = {"type": "object", "properties": properties, "required": ["x"], "additionalProperties": False}
    return {**whole, "$defs": builder.defs} if builder.defs else whole


@given(CASES)
def test_schemas_of_functions_are_valid_for_every_provider(case: Case) -> None:
    """Whatever the annotation, no profile refuses what comes out."""
    assert_valid_everywhere(as_arguments(case[0]))


@example((list[tuple[int, Note]], [(0, {"text": ""})]))
@example((Note | Options | list[Note | None], [{"text": ""}, None]))
@given(typed_values())
def test_a_value_that_fits_the_original_fits_what_is_made_of_it(case: tuple[Any, Any]) -> None:
    """Adapting only loosens: a right call stays right."""
    hint, value = case
    schema = as_arguments(hint)
    args = {"x": json.loads(json.dumps(to_json(value), allow_nan=False))}
    assert check_arguments(schema, args) == []
    assert check_arguments(plain(schema), args) == []
    assert check_arguments(for_gemini(schema), args) == []
    exact = strict_or_none(schema)
    if exact is not None:
        whole = filled(exact, exact, args)
        assert check_arguments(exact, whole) == []
        assert check_arguments(schema, without_nulls(schema, whole)) == []


def filled(root: Any, node: Any, value: Any) -> Any:
    """Return a value as strict mode makes a model give it: with null for all that is not given."""
    if "$ref" in node:
        return filled(root, target_of(node["$ref"], root), value)
    for item in node.get("anyOf", ()):
        tried = filled(root, item, value)
        if check_arguments({**item, "$defs": root.get("$defs", {})}, tried) == []:
            return tried
    if isinstance(value, list) and "items" in node:
        return [filled(root, node["items"], item) for item in value]
    if not isinstance(value, dict) or "properties" not in node:
        return value
    return {
        name: filled(root, inner, value[name]) if name in value else None
        for name, inner in node["properties"].items()
    }


@given(WRITTEN, st.fixed_dictionaries({"one": WRITTEN, "two": WRITTEN}), JSON)
def test_written_schemas_come_out_valid_and_no_stricter(schema: Any, defs: Any, value: Any) -> None:
    """Any schema becomes one that all take, and what fits the original fits the plain one."""
    defs = {name: without_references(inner) for name, inner in defs.items()}
    whole = {"type": "object", "properties": {"x": schema}, "$defs": defs}
    assert_valid_everywhere(whole)
    if jsonschema.Draft202012Validator(whole).is_valid({"x": value}):
        made = plain(whole)
        assert jsonschema.Draft202012Validator(made).is_valid({"x": value}), made


ODD_KEYS = [
    "type", "properties", "items", "required", "enum", "anyOf", "oneOf", "allOf", "not", "if", "$ref",
    "$defs", "additionalProperties", "minimum", "exclusiveMinimum", "pattern", "const", "default", "title",
    "prefixItems", "patternProperties", "format", "nullable", "minLength", "x-own",
]  # fmt: skip
ODD_VALUES = [None, True, False, -1, 3, 0.5, float("nan"), "object", "any", "#/properties", ""]
ODD = st.recursive(
    st.sampled_from(ODD_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ODD_KEYS), inner, max_size=5),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(["properties", "anyOf", "allOf", "$ref", "$defs", "type", "x"]), ODD))
def test_nonsense_becomes_something_that_all_take(schema: Any) -> None:
    """No server can make a request fail by what it calls a schema."""
    assert_valid_everywhere(schema)


@pytest.mark.parametrize(
    "schema", [None, [], "object", 5, {}, {"type": "object"}, {"$ref": "#"}, {"x": {1, 2}}]
)
def test_what_is_no_object_schema_is_one_without_arguments(schema: Any) -> None:
    """A tool without a usable schema takes no arguments."""
    assert plain(schema)["properties"] == {}
    assert_valid_everywhere(schema)


@pytest.mark.parametrize(
    "name", ["petstore.yaml", "parameters-style.json", "schema-circular.json", "github.json"]
)
def test_schemas_of_real_documents_are_valid_for_every_provider(name: str) -> None:
    """Each operation of each document, recursive ones too."""
    from toolnexus.tools.openapi import openapi_tools

    for tool in openapi_tools(DOCUMENTS / name, base_url="http://127.0.0.1:9", auth=False):
        assert_valid_everywhere(tool.input_schema)


def test_schemas_of_the_built_ins_are_valid_for_every_provider(tmp_path: Path) -> None:
    """All ten of them; those without free-form parts in strict mode, too."""
    from toolnexus.tools.builtins import builtin_tools

    for tool in builtin_tools(True, root=tmp_path):
        assert_valid_everywhere(tool.input_schema)
        assert strict_or_none(tool.input_schema) is not None, tool.name


# -- single rules ----------------------------------------------------------------------------


def test_mcp_13_each_profile_cleans_what_it_must() -> None:
    """Keywords that are refused go, references stay or are written out, types are never missing."""
    made = plain(MCP_13)
    assert "$schema" not in made
    assert made["required"] == ["a"]
    assert made["properties"]["a"]["$ref"] == "#/$defs/A"
    assert made["$defs"] == {"A": {"type": "string", "minLength": 1}}
    gemini = for_gemini(MCP_13)
    assert gemini["properties"]["a"] == {"type": "string", "minLength": 1, "description": "The first."}
    assert {"type": "number", "description": "no type"} in gemini["properties"]["b"]["anyOf"]
    assert gemini["properties"]["c"] == {"type": "object"}
    assert gemini["properties"]["d"]["items"]
    assert gemini["required"] == ["a"]
    assert strict_or_none(MCP_13) is None  # there is no strict way to say "anything"
    assert_valid_everywhere(MCP_13)


def test_combiners_at_the_top_are_merged() -> None:
    """All of allOf; of anyOf what any branch has, and what every branch requires."""
    either = {
        "anyOf": [
            {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
            {"$ref": "#/$defs/B"},
            {"type": "null"},
        ],
        "allOf": [{"properties": {"id": {"type": "string"}}, "required": ["id"]}],
        "$defs": {"B": {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}},
    }
    made = plain(either)
    assert made["properties"] == {
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "n": {"type": "integer"},
        "id": {"type": "string"},
    }
    assert sorted(made["required"]) == ["id", "kind"]
    assert check_arguments(made, {"id": "1", "kind": "b"}) == []


def test_what_would_be_stricter_is_left_out() -> None:
    """A negation, a condition or an exclusive choice of something that was loosened."""
    odd = {"type": "string", "minLength": "three"}
    made = plain({
        "properties": {
            "a": {"not": odd},
            "b": {"if": odd, "then": {"minLength": 5}},
            "c": {"oneOf": [odd, {"type": "integer"}]},
            "d": {"not": {"$ref": "#/$defs/D"}},
            "e": {"not": {"type": "null"}},
        },
        "$defs": {"D": odd},
    })  # fmt: skip
    assert made["properties"] == {
        "a": {},
        "b": {},
        "c": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "d": {},
        "e": {"not": {"type": "null"}},
    }


def test_a_reference_at_the_top_is_followed() -> None:
    """As recursive models have it; the definitions stay."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    made = plain({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert made == {**node, "$defs": {"Node": node}}


def test_strict_requires_everything_and_lets_the_optional_be_null() -> None:
    """Of every kind: types, enums, references and alternatives."""
    schema = {
        "properties": {
            "a": {"type": "string", "default": "x"},
            "b": {"enum": ["x", "y"], "type": "string"},
            "c": {"$ref": "#/definitions/C", "description": "dropped"},
            "d": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "e": {"type": "array", "items": {"type": "object", "properties": {"f": {"type": "number"}}}},
        },
        "required": ["e"],
        "definitions": {"C": {"type": "boolean"}},
    }
    made = strict_or_none(schema)
    assert made == {
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"anyOf": [{"type": "string", "enum": ["x", "y"]}, {"type": "null"}]},
            "c": {"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}]},
            "d": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "e": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"f": {"type": ["number", "null"]}},
                    "required": ["f"],
                    "additionalProperties": False,
                },
            },
        },
        "type": "object",
        "required": ["a", "b", "c", "d", "e"],
        "additionalProperties": False,
        "$defs": {"C": {"type": "boolean"}},
    }


@pytest.mark.parametrize(
    "loose",
    [
        {},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "array"},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]},
        {"$ref": "#/properties/y"},
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        {"type": "string", "not": {"enum": ["a"]}},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "dependentRequired": {"a": ["b"]},
        },
    ],
)
def test_what_strict_mode_cannot_say_is_not_declared_strict(loose: dict[str, Any]) -> None:
    """It would refuse the request, or take right calls for wrong."""
    assert strict_or_none({"properties": {"x": loose, "y": {"type": "string"}}}) is None


def test_nulls_of_strict_mode_mean_not_given_at_any_depth() -> None:
    """The original refuses null; what strict mode made the model send is taken away again."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"$ref": "#/$defs/I"}},
            "maybe": {"anyOf": [{"$ref": "#/$defs/I"}, {"type": "null"}]},
            "null": {"type": ["string", "null"]},
            "pair": {"prefixItems": [{"type": "integer"}, {"$ref": "#/$defs/I"}], "items": False},
            "either": {"anyOf": [{"$ref": "#/$defs/J"}, {"$ref": "#/$defs/I"}]},
        },
        "required": ["list"],
        "$defs": {
            "I": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "must": {"type": "string"}},
                "required": ["must"],
            },
            "J": {"type": "object", "properties": {"must": {"type": "null"}}, "additionalProperties": False},
        },
    }
    item = {"n": None, "must": "x"}
    args = {"a": None, "list": [item, item], "maybe": item, "null": None, "pair": [1, item], "either": item}
    assert without_nulls(schema, args) == {
        "list": [{"must": "x"}, {"must": "x"}],
        "maybe": {"must": "x"},
        "null": None,
        "pair": [1, {"must": "x"}],
        "either": {"must": "x"},
    }
    assert args["list"] == [{"n": None, "must": "x"}] * 2  # the model's own are not changed
    assert check_arguments(schema, without_nulls(schema, args)) == []


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": ["string", "null"], "title": "t"}, {"type": "string", "nullable": True, "title": "t"}),
        ({"type": "string", "format": "email"}, {"type": "string"}),
        ({"type": "string", "enum": ["a", ""]}, {"type": "string"}),
        ({"enum": ["a", "b", None]}, {"type": "string", "enum": ["a", "b"], "nullable": True}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"type": "integer", "enum": [1, 2], "format": "int32"}, {"type": "integer", "format": "int32"}),
        ({"type": "string", "pattern": "^(?=a)"}, {"type": "string"}),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "T"},
         {"type": "string", "title": "T", "nullable": True}),
        ({"type": ["string", "integer"], "minimum": 1, "minLength": 2, "description": "d"},
         {"anyOf": [{"type": "string", "minLength": 2, "description": "d"},
                    {"type": "integer", "minimum": 1, "description": "d"}]}),
        ({"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "boolean"}}},
         {"type": "object", "properties": {"a": {"type": "boolean"}}}),
        ({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
         {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}),
        ({"allOf": [{"$ref": "#/$defs/D"}], "title": "mine"},
         {"type": "number", "description": "theirs", "title": "mine"}),
    ],
)  # fmt: skip
def test_gemini_gets_one_type_each(given: dict[str, Any], made: dict[str, Any]) -> None:
    """And what goes with that type, nothing else."""
    whole = {"properties": {"x": given}, "$defs": {"D": {"type": "number", "description": "theirs"}}}
    assert for_gemini(whole)["properties"]["x"] == made


def test_recursive_schemas_end() -> None:
    """What refers to itself is written out once, then only its type."""
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/N"}}}
    made = for_gemini({"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}})
    assert made["properties"]["n"] == {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"type": "object"}},
    }


def test_schemas_that_explode_are_cut() -> None:
    """Twenty definitions that refer to all others would be written out for ever."""
    names = [f"D{i}" for i in range(20)]
    every = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    defs = {name: {"type": "object", "properties": every} for name in names}
    start = time.monotonic()
    made = for_gemini({"properties": every, "$defs": defs})
    assert time.monotonic() - start < 5
    assert len(json.dumps(made)) < 500_000
    assert gemini_problems(made) == []


def test_schemas_without_a_bottom_are_cut() -> None:
    """Depth is bounded, whatever a server sends."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    assert_valid_everywhere(deep)
    around: dict[str, Any] = {"type": "object", "properties": {}}
    around["properties"]["me"] = around
    assert_valid_everywhere(around)


def test_what_json_does_not_have_is_left_out() -> None:
    """A default of infinity, a set among the choices: the request stays sendable."""
    made = plain({"properties": {"a": {"type": "number", "default": float("inf"), "enum": {1, 2}, 3: "x"}}})
    assert made["properties"]["a"] == {"type": "number"}


def test_the_original_stays_as_it_is() -> None:
    """Adapting makes copies."""
    before = json.dumps(MCP_13)
    for adapt in (plain, strict, for_gemini):
        adapt(MCP_13)
    assert json.dumps(MCP_13) == before
