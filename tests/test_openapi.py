"""OpenAPI documents as tools: real documents, a real service, every parameter style."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http_endpoint import Seen, Server, send, serving
from tests.support.openapi_app import running_app
from tests.support.openapi_calls import call, document, one, with_parameter
from toolnexus.content import Image
from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool
from toolnexus.tools.openapi import Operation, openapi_tools
from toolnexus.tools.openapi.security import variable_of

DATA = Path(__file__).parent / "data" / "openapi"
DOCUMENTS = {
    "petstore.yaml": 20,
    "parameters-style.json": 25,
    "schema-circular.json": 3,
    "blockfrost.yaml": 129,
    "github.json": 110,
}


@pytest.fixture(scope="module")
def lasting() -> Iterator[Server]:
    """One server for all examples of a property."""
    with serving() as running:
        yield running


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that says ok, unless the test gives it another answer."""
    with serving() as running:
        yield running


# -- real documents --------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_real_document_gives_valid_tools(name: str) -> None:
    """Names, argument names and schemas are what every provider takes; nothing is left unresolved."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    tools = openapi_tools(DATA / name, base_url="http://h", auth=False)
    assert len(tools) == DOCUMENTS[name]
    assert len({tool.name.lower() for tool in tools}) == len(tools)
    for tool in tools:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name)
        assert 0 < len(tool.description) <= 1024
        validator.check_schema(tool.input_schema)
        assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", p) for p in tool.input_schema["properties"])
        refs = set(re.findall(r'"\$ref": "([^"]*)"', json.dumps(tool.input_schema)))
        assert refs == {f"#/$defs/{name}" for name in tool.input_schema.get("$defs", {})}


FORMATS = {
    "date-time": "2024-01-02T03:04:05Z",
    "date": "2024-01-02",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


def sample(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Make a value that fits a schema, near enough for the documents at hand."""
    if not isinstance(schema, dict):
        return "v"
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].split("/")[-1]], root, depth + 1)
    for key in ("enum", "oneOf", "anyOf"):
        if schema.get(key):
            return schema[key][0] if key == "enum" else sample(schema[key][0], root)
    if "default" in schema:
        return schema["default"]
    if "allOf" in schema:
        parts = [sample(part, root, depth) for part in schema["allOf"]]
        return {k: v for part in parts if isinstance(part, dict) for k, v in part.items()} or parts[0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        if not schema.get("properties"):
            return {} if not depth else {"k": sample(schema.get("additionalProperties", {}), root, depth + 1)}
        wanted = schema["properties"] if depth < 2 else schema.get("required", [])
        return {
            k: sample(schema["properties"][k], root, depth + 1) for k in wanted if k in schema["properties"]
        }
    if kind == "array":
        return [sample(schema.get("items", {}), root, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind == "string":
        formats = {
            "date-time": "2024-01-02T03:04:05Z",
            "date": "2024-01-02",
            "uuid": "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
        }
        return formats.get(
            schema.get("format", ""),
            "ab cd"[: schema.get("maxLength", 5)].ljust(schema.get("minLength", 0), "x"),
        )
    return {"integer": schema.get("minimum", 3), "number": 2.5, "boolean": True, "null": None}[kind]


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("petstore.yaml", True),
        ("petstore.yaml", False),
        ("schema-circular.json", True),
        ("blockfrost.yaml", True),
        ("github.json", True),
    ],
)
def test_another_library_understands_every_request(lasting: Server, name: str, whole: bool) -> None:
    """An independent reader of the same document finds the operation, the parameters and the body."""
    core = pytest.importorskip("openapi_core")
    spec = _spec(core, DATA / name, lasting.url)
    tools = openapi_tools(DATA / name, base_url=lasting.url, auth=False)
    for tool in tools:
        args = sample(tool.input_schema, tool.input_schema)
        if not whole:
            args = {k: v for k, v in args.items() if k in tool.input_schema["required"]}
        result = call(tool, args)
        assert not result.is_error, (tool.name, result)
        found = spec.unmarshal_request(_core_request(core, lasting.last, lasting.url))
        # The specification says that a parameter called Authorization is to be passed over.
        errors = [e for e in found.errors if getattr(e, "name", "") != "Authorization"]
        assert errors == [], (tool.name, args, [(e, repr(e.__cause__)[:600]) for e in errors])
        got = {
            **found.parameters.path,
            **found.parameters.query,
            **found.parameters.header,
            **found.parameters.cookie,
        }
        sent = [v for k, v in args.items() if k != "body"]
        assert len(got) >= len([v for v in sent if v not in ([], {}, None)]), (tool.name, args, got)


def _spec(core: Any, path: Path, url: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded = yaml.load(path.read_text(), loader) if path.suffix == ".yaml" else json.loads(path.read_text())
    loaded["servers"] = [{"url": url}]
    _tamed(loaded)
    loaded.pop("security", None)
    for item in loaded["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict):
                operation.pop("security", None)
                operation.pop("servers", None)
        item.pop("servers", None)
    # Not checked as a whole: real documents have examples that do not fit their schemas.
    return core.OpenAPI.from_dict(loaded, config=core.Config(spec_validator_cls=None))


def _tamed(part: Any) -> None:
    """Take away what the other library stumbles over."""
    if isinstance(part, dict):
        if part.get("readOnly") is True:
            part.pop("default", None)  # it fills that in, and refuses it then
        if isinstance(part.get("format"), str) and " " in part["format"]:
            part.pop("format")  # a sentence is no format that it knows
        if "application/cbor" in part:
            part["application/cbor"] = {}  # it compares bytes with a text
        for value in part.values():
            _tamed(value)
    elif isinstance(part, list):
        for value in part:
            _tamed(value)


def _core_request(core: Any, seen: Seen, url: str) -> Any:
    """Put what the server saw into the form that the other library takes."""
    from openapi_core.datatypes import RequestParameters
    from werkzeug.datastructures import Headers, ImmutableMultiDict

    parts = urlsplit(seen.target)
    cookies = dict(pair.split("=", 1) for pair in (seen.headers.get("Cookie") or "").split("; ") if pair)

    class Request:
        parameters = RequestParameters(
            query=ImmutableMultiDict(parse_qsl(parts.query, keep_blank_values=True)),
            header=Headers(list(seen.headers.items())),
            cookie=ImmutableMultiDict(cookies),
        )
        host_url = url
        path = unquote(parts.path)
        full_url_pattern = url + parts.path
        method = seen.method.lower()
        content_type = seen.headers.get("Content-Type") or ""
        body = seen.body or None

    return Request()


# -- a real service --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """A FastAPI application behind a real server."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("multipart")
    with running_app() as url:
        yield url


AUTH = {"token": "tok-123456", "login": "joe:pass word", "queryKey": "q&key=1", "headerKey": "h-key-1"}

LEAF: dict[str, Any] = {"name": "b", "colour": "red", "children": [], "note": None}
TREE = {"name": "a", "colour": "green", "children": [LEAF], "note": "ü"}
ITEM = {"item_id": 7, "q": "a b&c=ü", "tags": ["x", "y,z"], "ratio": 2.5, "flag": True, "session_id": "s=1"}


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "get_item_items_item_id_get": ({**ITEM, "x-trace": "t1"}, compact({**ITEM, "x_trace": "t1"})),
    "both_both_id_get": ({"path_id": "p 1", "query_id": "q"}, '["p 1","q"]'),
    "post_tree_trees_post": ({"body": TREE}, compact(TREE)),
    "put_raw_raw_name_put": ({"name": "n", "body": '"grün"'}, 'n: "grün"'),
    "form_form_post": ({"body": {"name": "a b&", "age": 3, "tags": ["x", "y"]}}, '["a b&",3,["x","y"]]'),
    "upload_upload_post": (
        {
            "body": {
                "title": "T",
                "files": ["text", "data:image/gif;base64," + base64.b64encode(b"GIF\0").decode()],
            }
        },
        '["T",[["application/octet-stream","74657874"],["image/gif","47494600"]]]',
    ),
    "picture_picture_get": ({}, "[image/png, 12 bytes]"),
    "delete_item_items_item_id_delete": ({"item_id": 1}, ""),
    "fail_fail_status_get": ({"status": 418}, 'HTTP 418: {"detail":"as you like"}'),
    "with_bearer_secure_bearer_get": ({}, "true"),
    "with_basic_secure_basic_get": ({}, '["eoj","drow ssap"]'),
    "with_query_secure_query_get": ({}, '"1=yek&q"'),
    "with_header_secure_header_get": ({}, '"1-yek-h"'),
}


def test_every_operation_of_a_real_service(app: str) -> None:
    """The service understands each tool's call as it was meant, by the document that it publishes itself."""
    tools = {tool.name: tool for tool in openapi_tools(f"{app}/openapi.json", auth=AUTH)}
    assert set(tools) == set(CALLS)
    for name, (args, expected) in CALLS.items():
        result = call(tools[name], args)
        assert (result.output, result.is_error) == (expected, name.startswith("fail")), name
    picture = call(tools["picture_picture_get"], {})
    assert picture.content == (Image(b"\x89PNG\r\n\x1a\nrest", "image/png"),)


def test_schemas_of_a_real_service(app: str) -> None:
    """Recursive models stay as definitions, deprecated operations say so, credentials are no arguments."""
    tools = {tool.name: tool for tool in openapi_tools(f"{app}/openapi.json", auth=AUTH)}
    tree = tools["post_tree_trees_post"].input_schema
    [(name, definition)] = tree["$defs"].items()
    assert tree["properties"]["body"]["$ref"] == f"#/$defs/{name}"
    assert definition["properties"]["children"]["items"] == {"$ref": f"#/$defs/{name}"}
    assert definition["properties"]["colour"]["enum"] == ["red", "green"]
    assert tools["delete_item_items_item_id_delete"].description.startswith("Deprecated.")
    assert tools["with_query_secure_query_get"].input_schema["properties"] == {}
    item = tools["get_item_items_item_id_get"].input_schema
    assert (item["required"], item["additionalProperties"]) == (["item_id"], False)


# -- names and choice ------------------------------------------------------------------------


def named(**operations: Any) -> dict[str, Any]:
    return document({f"/{path}": {"get": operation} for path, operation in operations.items()})


def test_names_are_valid_and_unlike() -> None:
    """Operation ids become names of at most 64 safe characters, and no two are alike."""
    long = "a" * 80
    tools = openapi_tools(
        named(a={"operationId": "Get user!"}, b={"operationId": "get_user"}, c={"operationId": long + "1"},
              d={"operationId": long + "2"}, e={}, f={"operationId": "ü"}),
        base_url="http://h",
    )  # fmt: skip
    names = [tool.name for tool in tools]
    assert names[:2] == ["Get_user", "get_user_2"]
    assert names[4:] == ["get_e", "operation"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert len(set(names)) == 6
    [tool] = openapi_tools(document({"/users/{id}/posts": {"delete": {}}}), base_url="http://h")
    assert tool.name == "delete_users_id_posts"


def test_operations_are_chosen() -> None:
    """By id, tool name, tag, method and path, or a function; a text that fits nothing is an error."""
    spec = named(a={"operationId": "A 1", "tags": ["x"]}, b={"tags": ["x", "y"]}, c={"deprecated": True})

    def chosen(selection: Any) -> list[str]:
        return [tool.name for tool in openapi_tools(spec, base_url="http://h", operations=selection)]

    assert chosen(None) == ["A_1", "get_b", "get_c"]
    assert chosen(["A 1"]) == chosen(["A_1"]) == chosen(["GET /a"]) == ["A_1"]
    assert chosen({"x"}) == ["A_1", "get_b"]
    assert chosen(lambda operation: operation.deprecated) == ["get_c"]
    with pytest.raises(ConfigurationError, match="near it are 'get_b'"):
        chosen(["get_bb"])
    with pytest.raises(ConfigurationError):
        chosen("x")


def test_tool_keeps_its_operation() -> None:
    """The operation stands in the tool's metadata."""
    [tool] = openapi_tools(
        named(a={"operationId": "o", "summary": "S", "description": "D"}), base_url="http://h"
    )
    assert tool.metadata["operation"] == Operation("o", "o", "GET", "/a", (), "S", "D", False)
    assert (tool.description, tool.source, tool.idempotent) == ("S\n\nD", "http", True)


def test_arguments_of_one_name_are_told_apart(server: Server) -> None:
    """The place goes before a name that occurs twice, and each value goes where it belongs."""
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {}},
        {"name": "id", "in": "query", "schema": {}},
        {"name": "id", "in": "header", "schema": {}},
        {"name": "body", "in": "query", "schema": {}},
        {"name": "filter[a]", "in": "query", "schema": {}},
        {"name": "$top", "in": "query", "schema": {}},
    ]
    operation = {"parameters": parameters, "requestBody": {"content": {"application/json": {}}}}
    tool = one(server, operation, path="/x/{id}", method="post")
    names = ["path_id", "query_id", "header_id", "body", "filter_a", "top", "body_2"]
    assert list(tool.input_schema["properties"]) == names
    call(tool, {name: f"v{i}" for i, name in enumerate(names)})
    seen = server.last
    assert parse_qsl(urlsplit(seen.target).query) == [
        ("id", "v1"),
        ("body", "v3"),
        ("filter[a]", "v4"),
        ("$top", "v5"),
    ]
    assert (urlsplit(seen.target).path, seen.headers["id"], seen.body) == ("/x/v0", "v2", b'"v6"')


def test_path_item_parameters_are_inherited(server: Server) -> None:
    """A path's parameters hold for its operations, which may replace them; undeclared ones are strings."""
    item = {
        "parameters": [{"name": "a", "in": "query", "schema": {"type": "string"}}],
        "get": {
            "parameters": [{"name": "a", "in": "query", "required": True, "schema": {"type": "integer"}}]
        },
    }
    [tool] = openapi_tools(document({"/x/{id}": item}), base_url=server.url)
    assert tool.input_schema["properties"] == {"a": {"type": "integer"}, "id": {"type": "string"}}
    assert tool.input_schema["required"] == ["a", "id"]


@pytest.mark.parametrize(
    "name", ["Authorization", "Accept", "content-type", "Host", "Cookie", "Transfer-Encoding", "a b"]
)
def test_headers_that_are_no_parameters(server: Server, name: str) -> None:
    """The model does not set headers that the specification or HTTP keeps for itself."""
    tool = one(server, {"parameters": [{"name": name, "in": "header", "schema": {}}]})
    assert tool.input_schema["properties"] == {}


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\nb", "\0", "grün", " a"])
def test_header_value_cannot_begin_another(server: Server, value: str) -> None:
    """A line break from the model never reaches the wire."""
    result = call(with_parameter(server, {"in": "header", "schema": {}}), {"p": value})
    assert result.is_error
    assert server.seen == []


def test_path_value_stays_in_its_segment(server: Server) -> None:
    """Dots are refused in paths of documents, too."""
    tool = with_parameter(server, {"in": "path", "required": True, "schema": {}}, "/x/{p}/y")
    for value in ("..", "../..", "%2e%2e", "", None, [], ["..", ".."], {"..": ".."}):
        assert call(tool, {"p": value}).is_error
    assert server.seen == []


# -- references ------------------------------------------------------------------------------


def test_local_references_are_followed(server: Server) -> None:
    """Path items, parameters, bodies and schemas may be references; small ones are written out."""
    spec = document(
        {"/x": {"$ref": "#/components/pathItems/X"}},
        components={
            "pathItems": {"X": {"post": {"parameters": [{"$ref": "#/components/parameters/a~1b"}],
                                         "requestBody": {"$ref": "#/components/requestBodies/B"}}}},
            "parameters": {"a/b": {"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/E"}}},
            "requestBodies": {"B": {"content": {"application/json": {"schema": {
                "$ref": "#/components/schemas/O", "description": "mine"}}}}},
            "schemas": {"E": {"enum": ["x", "y"]},
                        "O": {"type": "object", "properties": {"e": {"$ref": "#/components/schemas/E"}}}},
        },
    )  # fmt: skip
    [tool] = openapi_tools(spec, base_url=server.url)
    assert tool.input_schema["properties"] == {
        "a": {"enum": ["x", "y"]},
        "body": {"type": "object", "properties": {"e": {"enum": ["x", "y"]}}, "description": "mine"},
    }


def test_recursive_schema_survives() -> None:
    """What refers to itself stays a definition, through any number of others."""
    schemas = {"A": {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}},
               "B": {"type": "array", "items": {"$ref": "#/components/schemas/A"}}}  # fmt: skip
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    [tool] = openapi_tools(
        document({"/x": {"post": {"requestBody": body}}}, components={"schemas": schemas}),
        base_url="http://h",
    )
    assert tool.input_schema["properties"]["body"] == {"$ref": "#/$defs/A"}
    assert tool.input_schema["$defs"] == {
        "A": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}},
        "B": {"type": "array", "items": {"$ref": "#/$defs/A"}},
    }


def test_long_chains_and_wide_sharing_stay_small() -> None:
    """A chain of a thousand schemas, each used twice by the one before, takes linear time and space."""
    schemas: dict[str, Any] = {f"S{i}": {"type": "object", "properties": {
        "a": {"$ref": f"#/components/schemas/S{i + 1}"}, "b": {"$ref": f"#/components/schemas/S{i + 1}"}}}
        for i in range(1000)}  # fmt: skip
    schemas["S1000"] = {"type": "string"}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    spec = document({"/x": {"post": {"requestBody": body}}}, components={"schemas": schemas})
    try:
        [tool] = openapi_tools(spec, base_url="http://h")
    except ConfigurationError as error:
        pytest.fail(str(error))
    assert len(json.dumps(tool.input_schema)) < 500_000


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/x.json#/a", "file:///etc/hostname", "other.yaml#/a", "../secret.json", "//h/x"],
)
def test_references_elsewhere_are_refused(server: Server, tmp_path: Path, target: str) -> None:
    """Nothing else is fetched or read because a document says so."""
    (tmp_path / "other.yaml").write_text("a: {type: string}")
    path = tmp_path / "main.json"
    path.write_text(json.dumps(with_references(target.replace(":1/", f":{server.port}/"))))
    with pytest.raises(ConfigurationError, match="leaves the document"):
        openapi_tools(path, base_url="http://h")
    assert server.seen == []


def with_references(target: str) -> dict[str, Any]:
    """A document with two parameters of one schema, which is elsewhere."""
    parameters = [{"name": name, "in": "query", "schema": {"$ref": target}} for name in ("p", "q")]
    return document({"/x": {"get": {"parameters": parameters}}})


def test_references_elsewhere_with_retrieve(tmp_path: Path) -> None:
    """A function of the caller's gets other documents, once each; references in them are theirs."""
    asked = []

    def retrieve(uri: str) -> dict[str, Any]:
        asked.append(uri)
        return {"a": {"type": "object", "properties": {"b": {"$ref": "#/b"}}}, "b": {"type": "integer"}}

    path = tmp_path / "main.json"
    path.write_text(json.dumps(with_references("other.json#/a")))
    [tool] = openapi_tools(path, base_url="http://h", retrieve=retrieve)
    assert asked == [(tmp_path / "other.json").as_uri()]
    assert tool.input_schema["properties"] == {"p": {"$ref": "#/$defs/a"}, "q": {"$ref": "#/$defs/a"}}
    assert tool.input_schema["$defs"]["a"]["properties"] == {"b": {"type": "integer"}}


@pytest.mark.parametrize("target", ["#/nowhere", "#/components/schemas/Loop", "#not-a-pointer"])
def test_reference_to_nothing_names_the_operation(target: str) -> None:
    """A reference that leads nowhere, or in a circle, is an error that says in which operation."""
    parameter = {"$ref": target}
    spec = document({"/x": {"get": {"parameters": [parameter]}}},
                    components={"schemas": {"Loop": {"$ref": "#/components/schemas/Loop"}}})  # fmt: skip
    with pytest.raises(ConfigurationError, match="GET /x: the reference"):
        openapi_tools(spec, base_url="http://h")
    assert openapi_tools(spec, base_url="http://h", operations=lambda operation: False) == []


# -- schemas ---------------------------------------------------------------------------------


def converted(schema: Any, version: str = "3.0.3") -> Any:
    spec = document({"/x": {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}})
    spec["openapi"] = version
    [tool] = openapi_tools(spec, base_url="http://h")
    return tool.input_schema["properties"]["body"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            {"type": "integer", "exclusiveMinimum": 1},
        ),
        ({"type": "integer", "maximum": 1, "exclusiveMaximum": False}, {"type": "integer", "maximum": 1}),
        ({"type": "string", "example": "x", "xml": {}, "x-y": 1, "discriminator": {}}, {"type": "string"}),
        (
            {"type": "object", "required": ["id", "n"], "properties": {"id": {"readOnly": True}, "n": {}}},
            {"type": "object", "required": ["n"], "properties": {"n": {}}},
        ),
        (
            {"type": "object", "properties": {"$ref": {"type": "string"}}},
            {"type": "object", "properties": {"$ref": {"type": "string"}}},
        ),
        (
            {"type": "object", "additionalProperties": False},
            {"type": "object", "additionalProperties": False},
        ),
        (None, {}),
    ],
)
def test_schemas_become_json_schema(old: Any, new: Any) -> None:
    """What OpenAPI says in words of its own is said in JSON Schema's."""
    assert converted(old) == new


def test_document_is_not_changed() -> None:
    """The caller's dict is left as it was."""
    spec = json.loads((DATA / "schema-circular.json").read_text())
    before = copy.deepcopy(spec)
    openapi_tools(spec, base_url="http://h", auth=False)
    assert spec == before


# -- documents -------------------------------------------------------------------------------


def test_yaml_words_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    """``no``, dates and times are texts, statuses are texts, numbers and null are not."""
    path = tmp_path / "api.yaml"
    path.write_text(
        "\ufeffopenapi: 3.0.3\ninfo: {title: t, version: 1}\npaths:\n  /x:\n    get:\n      parameters:\n"
        "        - name: p\n          in: query\n          schema:\n"
        "            enum: [no, on, 2020-01-02, 12:30:00, 1_0, 0o17, 010, 1e3, .5, null, true, ~]\n"
        "      responses:\n        200: {description: ok, content: {text/csv: {}}}\n"
    )
    with serving() as server:
        [tool] = openapi_tools(path, base_url=server.url)
        assert tool.input_schema["properties"]["p"]["enum"] == [
            "no", "on", "2020-01-02", "12:30:00", "1_0", 15, 10, 1000.0, 0.5, None, True, None,
        ]  # fmt: skip
        call(tool, {})
        assert server.last.headers["Accept"] == "text/csv, */*;q=0.1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just a text",
        "{",
        "a: [",
        "a: &a [*a]",
        "openapi: 2.0.0",
        '{"swagger": "2.0", "paths": {}}',
        '{"openapi": "3.1.0", "paths": []}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "a: !!python/object/apply:os.system [true]",
        "a: " + "9" * 10_000,
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
    ],
)
def test_what_is_no_document_is_an_error(tmp_path: Path, text: str) -> None:
    """Anything but an OpenAPI 3 document is a clear error, and costs little."""
    path = tmp_path / "api.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        openapi_tools(path)


JUNK = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


def spots(part: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document, as its container and its key."""
    for key, value in list(part.items()) if isinstance(part, dict) else list(enumerate(part)):
        yield part, key
        if isinstance(value, dict | list):
            yield from spots(value)


@given(data=st.data())
def test_broken_document_is_never_a_crash(data: st.DataObject) -> None:
    """Whatever stands in the place of anything: tools, or an error that says what is wrong."""
    name = data.draw(st.sampled_from(["schema-circular.json", "parameters-style.json"]))
    broken = json.loads((DATA / name).read_text())
    places = list(spots(broken))
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(places))
        container[key] = data.draw(JUNK | st.dictionaries(st.sampled_from(["$ref", "type", "in"]), JUNK))
    with contextlib.suppress(ConfigurationError):
        for tool in openapi_tools(broken, base_url="http://h", auth=False):
            json.dumps(tool.input_schema)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """A path to nothing is an error that names it."""
    with pytest.raises(ConfigurationError, match=r"nope\.json"):
        openapi_tools(tmp_path / "nope.json")


def test_document_by_url(server: Server) -> None:
    """A document is fetched, and its relative server is relative to where it is from."""
    spec = document({"/x": {"get": {}}}, servers=[{"url": "../v1"}])
    server.reply = lambda handler, seen: send(handler, json.dumps(spec), Content_Type="application/json")
    [tool] = openapi_tools(f"{server.url}/docs/openapi.json?token=s3cret")
    call(tool, {})
    assert server.last.target == "/v1/x"


@pytest.mark.parametrize(("status", "location"), [(404, ""), (302, "http://example.invalid/x"), (204, "")])
def test_document_that_cannot_be_fetched(server: Server, status: int, location: str) -> None:
    """A refusal or a redirect elsewhere is an error without the URL's query."""
    server.reply = lambda handler, seen: send(handler, b"", status, Location=location)
    with pytest.raises(ConfigurationError) as caught:
        openapi_tools(f"{server.url}/openapi.json?token=s3cret")
    assert "s3cret" not in str(caught.value)


def servers(*urls: Any, **more: Any) -> dict[str, Any]:
    return document({"/x": {"get": {}, **more}}, servers=list(urls))


def test_server_of_the_document(server: Server) -> None:
    """Variables have defaults or the caller's values; a path's own server wins, base_url wins over all."""
    variable = {
        "url": server.url + "/{stage}/api/",
        "variables": {"stage": {"default": "v1", "enum": ["v1", "v2"]}},
    }
    for options, target in (({}, "/v1/api/x"), ({"server_variables": {"stage": "v2"}}, "/v2/api/x"),
                            ({"base_url": server.url + "/b/"}, "/b/x")):  # fmt: skip
        [tool] = openapi_tools(servers(variable), **options)
        call(tool, {})
        assert server.last.target == target
    with pytest.raises(ConfigurationError, match="stage"):
        openapi_tools(servers(variable), server_variables={"stage": "v3"})
    [tool] = openapi_tools(servers("http://h", servers=[{"url": server.url + "/own"}]))
    call(tool, {})
    assert server.last.target == "/own/x"


@pytest.mark.parametrize("url", ["/v1", "", "ftp://h/x", "http://u:p@h/x"])
def test_server_that_cannot_be_used(url: str) -> None:
    """Without a URL to call, the error says to give one."""
    with pytest.raises(ConfigurationError, match="base_url"):
        openapi_tools(servers({"url": url}))


# -- security --------------------------------------------------------------------------------

SCHEMES = {
    "keyHeader": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "keyQuery": {"type": "apiKey", "in": "query", "name": "api key"},
    "keyCookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "http://h"},
    "digest": {"type": "http", "scheme": "digest"},
    "tls": {"type": "mutualTLS"},
}


def secured(server: Server, *alternatives: Mapping[str, Any], **options: Any) -> Tool:
    return one(server, {"security": list(alternatives)}, components={"securitySchemes": SCHEMES}, **options)


@pytest.mark.parametrize(
    ("scheme", "where", "expected"),
    [
        ("keyHeader", "X-Key", "val:ue 1"),
        ("keyCookie", "Cookie", "sid=val:ue_1"),
        ("bearer", "Authorization", "Bearer val:ue 1"),
        ("oauth", "Authorization", "Bearer val:ue 1"),
        ("oidc", "Authorization", "Bearer val:ue 1"),
        ("basic", "Authorization", "Basic " + base64.b64encode(b"val:ue 1").decode()),
        ("keyQuery", "", ""),
    ],
)
@pytest.mark.parametrize("by", ["environment", "template", "value"])
def test_credentials_go_where_the_scheme_says(
    server: Server, monkeypatch: pytest.MonkeyPatch, scheme: str, where: str, expected: str, by: str
) -> None:
    """Each kind of scheme, from the environment by its rule, from a variable of the caller's, or as it is."""
    value = "val:ue_1" if scheme == "keyCookie" else "val:ue 1"
    auth = {"environment": None, "template": {scheme: "${MY_OWN}"}, "value": {scheme: value}}[by]
    monkeypatch.setenv({"environment": variable_of(scheme)}.get(by, "MY_OWN"), value)
    tool = secured(server, {scheme: []}, auth=auth)
    call(tool, {})
    if scheme == "keyQuery":
        assert server.last.target == "/x?api%20key=val%3Aue%201"
    else:
        assert server.last.headers[where] == expected
    assert "val:ue" not in repr(tool) + repr(tool.execute)


def test_alternatives_and_combinations(server: Server) -> None:
    """The first alternative that can be met whole is taken; an empty one needs nothing."""
    both = secured(
        server,
        {"oauth": []},
        {"keyHeader": [], "keyCookie": []},
        auth={"keyHeader": "hhhh", "keyCookie": "cccc"},
    )
    call(both, {})
    assert (server.last.headers["X-Key"], server.last.headers["Cookie"]) == ("hhhh", "sid=cccc")
    call(secured(server, {"oauth": []}, {}), {})
    assert "Authorization" not in server.last.headers
    call(secured(server, {"oauth": []}, headers={"authorization": "Bearer mine"}), {})
    assert server.last.headers["Authorization"] == "Bearer mine"
    call(secured(server, {"tls": []}), {})
    call(secured(server, {"oauth": []}, auth=False), {})
    assert "Authorization" not in server.last.headers


def test_token_with_its_word_is_not_doubled(server: Server) -> None:
    """People keep the word Bearer with the token."""
    call(secured(server, {"bearer": []}, auth={"bearer": "bearer abcd"}), {})
    assert server.last.headers["Authorization"] == "bearer abcd"


@pytest.mark.parametrize("scheme", ["oauth", "digest", "unknown"])
def test_missing_credential_is_an_error_at_once(server: Server, scheme: str) -> None:
    """Before the first call, naming the variable."""
    with pytest.raises(ConfigurationError, match="TOOLNEXUS_AUTH_" + scheme.upper()):
        secured(server, {scheme: []})


@pytest.mark.parametrize(
    "auth", [{"nope": "x"}, {"bearer": 1}, {"bearer": "a\nb"}, {"bearer": "${TOOLNEXUS_UNSET}"}]
)
def test_wrong_auth_is_an_error_at_once(server: Server, auth: Any) -> None:
    """A scheme that is not there, or a value that cannot be sent."""
    with pytest.raises(ConfigurationError):
        secured(server, {"bearer": []}, auth=auth)


def test_document_cannot_name_another_secret(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheme that is called like a variable of yours does not get its value."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    components = {"securitySchemes": {"AWS_SECRET_ACCESS_KEY": {"type": "http", "scheme": "bearer"}}}
    with pytest.raises(ConfigurationError):
        one(server, {"security": [{"AWS_SECRET_ACCESS_KEY": []}]}, components=components)


def test_model_neither_sees_nor_sets_a_credential(server: Server) -> None:
    """A parameter that is filled in from a credential or a configured header is no argument."""
    parameters = [
        {"name": n, "in": i, "schema": {}}
        for n, i in (("x-key", "header"), ("X-Mine", "header"), ("q", "query"))
    ]
    tool = one(server, {"parameters": parameters, "security": [{"keyHeader": []}]}, headers={"x-mine": "m"},
               components={"securitySchemes": SCHEMES}, auth={"keyHeader": "kkkk"})  # fmt: skip
    assert list(tool.input_schema["properties"]) == ["q"]
    call(tool, {"q": 1, "x-key": "theirs", "X-Mine": "theirs"})
    assert (server.last.headers.get_all("X-Key"), server.last.headers.get_all("X-Mine")) == (["kkkk"], ["m"])


def test_sec_02_key_in_the_query_is_shown_nowhere(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the log of the HTTP library, nor in an answer or failure that holds the URL."""
    caplog.set_level(logging.DEBUG)
    key = "sk-TEST&KEY 123"
    server.reply = lambda handler, seen: send(
        handler, f"no such page: {seen.target}", 404, Content_Type="text/plain"
    )
    tool = secured(server, {"keyQuery": []}, auth={"keyQuery": key})
    shown = [call(tool, {}).output, repr(tool), caplog.text]
    server.reply = lambda handler, seen: send(
        handler, b"", 302, Location="http://example.invalid" + seen.target
    )
    shown.append(call(tool, {}).output)

    def drop(handler: Any, seen: Seen) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)

    server.reply = drop
    shown += [call(tool, {}).output, caplog.text]
    assert "GET" in caplog.text
    for text in shown:
        assert not any(part in text for part in (key, "sk-TEST", "KEY%20123", "KEY+123")), text
