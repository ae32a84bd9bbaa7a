"""How the arguments of OpenAPI tools reach the server: every parameter style, every kind of body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import BytesParser
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http_endpoint import Seen, Server, serving
from tests.support.openapi_calls import call, one, with_parameter
from toolnexus.tools.base import Tool


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


# -- every style, by the rules of the specification ------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
SCALAR = TEXT | st.integers().map(str)


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Scalars, lists and objects of texts."""
    return text | st.lists(text, min_size=1, max_size=4) | st.dictionaries(text, text, min_size=1, max_size=4)


def split_value(
    raw: str, kind: type, explode: bool, delimiter: str = ",", assign: str = "=", decode: Any = unquote
) -> Any:
    """Read a list or an object as the specification writes it: split first, decode then."""
    parts = raw.split(delimiter)
    if kind is list:
        return [decode(part) for part in parts]
    if explode:
        return {decode(k): decode(v) for k, v in (part.split("=", 1) for part in parts)}
    return {decode(k): decode(v) for k, v in zip(parts[::2], parts[1::2], strict=True)}


def sent_or_refused(
    server: Server, parameter: Mapping[str, Any], value: Any, path: str = "/x"
) -> Seen | None:
    """Call with a value; None if the tool refused it, and then nothing was sent."""
    before = len(server.seen)
    result = call(with_parameter(server, parameter, path), {"p": value})
    if result.is_error:
        assert len(server.seen) == before
        return None
    return server.last


def has(value: Any, *parts: str) -> bool:
    """Whether any text in a value has any of these in it."""
    texts = (
        [value] if isinstance(value, str) else [*value, *(value.values() if isinstance(value, dict) else ())]
    )
    return any(part in text for text in texts for part in parts)


@given(value=values(TEXT), style=st.sampled_from(["simple", "label", "matrix"]), explode=st.booleans())
def test_any_path_value_comes_back(lasting: Server, value: Any, style: str, explode: bool) -> None:
    """Every value of a path comes back by the rules of its style, or is refused for its dots."""
    parameter = {"in": "path", "required": True, "style": style, "explode": explode, "schema": {}}
    seen = sent_or_refused(lasting, parameter, value, "/a/{p}/z")
    if seen is None:
        assert has(value, ".", "%")
        return
    _, a, raw, z = seen.target.split("/")
    assert (a, z) == ("a", "z")
    assert read_path(raw, type(value), style, explode) == value


def read_path(raw: str, kind: type, style: str, explode: bool) -> Any:
    if style == "matrix":
        pairs = [pair.split("=", 1) for pair in raw.removeprefix(";").split(";")]
        if explode and kind is dict:
            return {unquote(k): unquote(v) for k, v in pairs}
        assert {k for k, _ in pairs} == {"p"}
        if explode and kind is list:
            return [unquote(v) for _, v in pairs]
        raw = pairs[0][1]
    if style == "label":
        assert raw.startswith(".")
        raw = raw[1:]
    if kind is str:
        return unquote(raw)
    return split_value(raw, kind, explode and style != "matrix", "." if style == "label" and explode else ",")


@given(
    value=values(TEXT),
    style=st.sampled_from(["form", "spaceDelimited", "pipeDelimited", "deepObject"]),
    explode=st.booleans(),
    reserved=st.booleans(),
)
def test_any_query_value_comes_back(
    lasting: Server, value: Any, style: str, explode: bool, reserved: bool
) -> None:
    """Every value of a query comes back by the rules of its style, or is refused for its delimiter."""
    parameter = {"in": "query", "style": style, "explode": explode, "allowReserved": reserved, "schema": {}}
    seen = sent_or_refused(lasting, parameter, value)
    if seen is None:
        assert has(value, " ", "|")
        return
    raw = urlsplit(seen.target).query
    pairs = [pair.split("=", 1) for pair in raw.split("&")]
    if isinstance(value, str):
        assert [[unquote(k), unquote(v)] for k, v in pairs] == [["p", value]]
    elif style == "deepObject" and isinstance(value, dict):
        assert {unquote(k): unquote(v) for k, v in pairs} == {f"p[{k}]": v for k, v in value.items()}
    elif explode and isinstance(value, dict):
        assert {unquote(k): unquote(v) for k, v in pairs} == value
    elif explode or style == "deepObject":
        assert [[k, unquote(v)] for k, v in pairs] == [["p", v] for v in value]
    else:
        [[name, text]] = pairs
        delimiter = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(style, ",")
        assert (name, split_value(text, type(value), False, delimiter)) == ("p", value)


@given(value=values(ASCII), explode=st.booleans())
def test_any_header_value_comes_back(lasting: Server, value: Any, explode: bool) -> None:
    """Every value of a header comes back, or is refused for its delimiters."""
    seen = sent_or_refused(lasting, {"in": "header", "explode": explode, "schema": {}}, value)
    if seen is None:
        assert not isinstance(value, str)
        assert has(value, ",", "=")
        return
    raw = seen.headers["p"]
    assert (raw if isinstance(value, str) else split_value(raw, type(value), explode, decode=str)) == value


@given(
    value=TEXT | st.lists(TEXT, min_size=2, max_size=4) | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
    explode=st.booleans(),
)
def test_any_cookie_value_comes_back(lasting: Server, value: Any, explode: bool) -> None:
    """Every value of a cookie comes back, and none begins another cookie or header."""
    seen = sent_or_refused(lasting, {"in": "cookie", "explode": explode, "schema": {}}, value)
    assert seen is not None
    pairs = [pair.split("=", 1) for pair in seen.headers["Cookie"].split("; ")]
    if isinstance(value, str):
        assert pairs == [["p", pairs[0][1]]]
        assert unquote(pairs[0][1]) == value
    elif explode:
        got = [(unquote(k), unquote(v)) for k, v in pairs]
        assert got == (list(value.items()) if isinstance(value, dict) else [("p", v) for v in value])
    else:
        assert split_value(pairs[0][1], type(value), False) == value


@given(value=values(ASCII))
def test_styles_agree_with_uri_templates(lasting: Server, value: Any) -> None:
    """The styles that RFC 6570 has are written as a library for it writes them."""
    expand = pytest.importorskip("uritemplate").expand
    if isinstance(value, dict):
        value = dict(sorted(value.items()))  # the order that the library writes
    for style, operator in (("simple", ""), ("label", "."), ("matrix", ";")):
        for explode, star in ((False, ""), (True, "*")):
            parameter = {"in": "path", "required": True, "style": style, "explode": explode, "schema": {}}
            seen = sent_or_refused(lasting, parameter, value, "/a/{p}/z")
            if seen is not None:
                assert seen.target == f"/a/{expand('{' + operator + 'p' + star + '}', p=value)}/z"
    for explode, star in ((False, ""), (True, "*")):
        seen = sent_or_refused(lasting, {"in": "query", "explode": explode, "schema": {}}, value)
        assert seen is not None
        assert seen.target == "/x" + expand("{?p" + star + "}", p=value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON)
def test_any_json_comes_back(lasting: Server, value: Any) -> None:
    """A JSON body, and a parameter that is declared as JSON, hold exactly what the model said."""
    content: Any = {"content": {"application/json": {"schema": {}}}}
    parameters = [{"name": "q", "in": "query", **content}, {"name": "X-H", "in": "header", **content},
                  {"name": "c", "in": "cookie", **content}]  # fmt: skip
    tool = one(lasting, {"parameters": parameters, "requestBody": content}, method="post")
    assert call(tool, {"q": value, "X-H": value, "c": value, "body": value}).output == "ok"
    seen = lasting.last
    assert json.loads(seen.body) == value
    if value is not None:
        assert json.loads(dict(parse_qsl(urlsplit(seen.target).query))["q"]) == value
        assert json.loads(seen.headers["X-H"]) == value
        assert json.loads(unquote(seen.headers["Cookie"].removeprefix("c="))) == value


# -- bodies ----------------------------------------------------------------------------------


def with_body(server: Server, media_type: str, schema: Any = None, **more: Any) -> Tool:
    content = {media_type: {"schema": schema if schema is not None else {}, **more}}
    return one(server, {"requestBody": {"required": True, "content": content}}, method="post")


def parts_of(seen: Seen) -> list[Message]:
    """Read a multipart body with the standard library."""
    head = f"Content-Type: {seen.headers['Content-Type']}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + seen.body)
    assert message.is_multipart()
    return list(message.get_payload())


def test_multipart_body(server: Server) -> None:
    """Files have a name and a type, objects are JSON, lists repeat, and the document's types win."""
    schema = {"type": "object", "properties": {
        "file": {"type": "string", "format": "binary"},
        "more": {"type": "array", "items": {"type": "string", "contentMediaType": "image/png"}},
    }}  # fmt: skip
    tool = with_body(server, "multipart/form-data", schema, encoding={"more": {"contentType": "image/png"}})
    body = {
        "file": "data:text/csv,a%2Cb",
        "more": ["data:;base64,iVBORw==", "x"],
        "o": {"k": [1]},
        "n": 3,
        "z": None,
    }
    assert call(tool, {"body": body}).output == "ok"
    got = [(p.get_param("name", header="content-disposition"), p.get_filename(), p["Content-Type"],
            p.get_payload(decode=True)) for p in parts_of(server.last)]  # fmt: skip
    assert got == [
        ("file", "file", "text/csv", b"a,b"),
        ("more", "more", "image/png", b"\x89PNG"),
        ("more", "more", "image/png", b"x"),
        ("o", None, "application/json", b'{"k":[1]}'),
        ("n", None, None, b"3"),
    ]


@pytest.mark.parametrize("name", ["a\r\nX: 1", 'a"; filename="b', "a\r\n\r\nbody"])
def test_multipart_names_cannot_break_out(server: Server, name: str) -> None:
    """A name that the model makes up begins no header and no part."""
    call(with_body(server, "multipart/form-data"), {"body": {name: "v"}})
    [part] = parts_of(server.last)
    assert list(part.keys()) == ["Content-Disposition"]
    assert part.get_filename() is None


def test_form_body_with_encodings(server: Server) -> None:
    """Properties of a form are written as the document says; objects without a word are JSON."""
    encoding = {"deep": {"style": "deepObject", "explode": True}, "flat": {"explode": False}}
    tool = with_body(server, "application/x-www-form-urlencoded", encoding=encoding)
    body = {"a": "ü &", "l": [1, 2], "deep": {"x": {"y": 1}}, "flat": ["p", "q"], "o": {"k": 1}, "n": None}
    call(tool, {"body": body})
    assert parse_qsl(server.last.body.decode()) == [
        ("a", "ü &"), ("l", "1"), ("l", "2"), ("deep[x][y]", "1"), ("flat", "p,q"), ("o", '{"k":1}'),
    ]  # fmt: skip
    assert call(tool, {"body": "text"}).is_error


@pytest.mark.parametrize(
    ("media_type", "value", "sent_type", "sent"),
    [
        ("text/plain", "grün", "text/plain", "grün".encode()),
        ("application/xml", "<a/>", "application/xml", b"<a/>"),
        (
            "application/octet-stream",
            "data:image/png;base64,iVBORw==",
            "application/octet-stream",
            b"\x89PNG",
        ),
        ("image/*", "data:image/png;base64,iVBORw==", "image/png", b"\x89PNG"),
        ("application/merge-patch+json", {"a": None}, "application/merge-patch+json", b'{"a":null}'),
    ],
)
def test_other_bodies(server: Server, media_type: str, value: Any, sent_type: str, sent: bytes) -> None:
    """Text goes as text, files as bytes, all kinds of JSON as JSON."""
    assert call(with_body(server, media_type), {"body": value}).output == "ok"
    assert (server.last.headers["Content-Type"], server.last.body) == (sent_type, sent)


def test_json_is_preferred(server: Server) -> None:
    """Of several media types, the one that is easiest for a model is taken."""
    content = {
        "application/xml": {},
        "multipart/form-data": {},
        "application/json": {"schema": {"type": "array"}},
    }
    tool = one(server, {"requestBody": {"content": content}}, method="put")
    assert tool.input_schema["properties"]["body"] == {"type": "array"}
    assert "body" not in tool.input_schema["required"]
    call(tool, {})
    assert (server.last.body, "Content-Type" in server.last.headers) == (b"", False)


def test_bad_data_url_is_an_error(server: Server) -> None:
    """A file that does not decode is not sent as something else."""
    result = call(with_body(server, "application/octet-stream"), {"body": "data:image/png;base64,???"})
    assert result.is_error
    assert server.seen == []
