"""HTTP endpoints as tools, over real sockets: what is sent, what comes back, and every limit."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import pickle
import socket
import ssl
import threading
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tests.support.http_endpoint import Seen, Server, send, serving
from toolnexus.cancel import CancelScope
from toolnexus.content import File, Image
from toolnexus.errors import ConfigurationError, RunCancelledError, RunTimeoutError
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.http import http_tool

KEY = "sk-TESTKEY123"


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


def make(server: Server, path: str = "/x", method: str = "GET", **options: Any) -> Tool:
    return http_tool(name="t", description="d", method=method, url=server.url + path, **options)


def call(tool: Tool, /, scope: CancelScope | None = None, **args: Any) -> ToolResult:
    result = tool.execute(args, Context(scope=scope or CancelScope()))
    assert isinstance(result, ToolResult)
    return result


def pairs(seen: Seen) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(seen.target).query, keep_blank_values=True)


# -- what is sent ----------------------------------------------------------------------------


def test_placeholder_is_encoded_and_consumed(server: Server) -> None:
    """A placeholder is percent-encoded, a slash included, and its argument is not sent again."""
    result = call(make(server, "/users/{id}/posts"), id="a/b c?ü%2f", page=2)
    assert (result.output, result.is_error, result.metadata) == ("ok", False, {"status": 200})
    assert server.last.target == "/users/a%2Fb%20c%3F%C3%BC%252f/posts?page=2"


@pytest.mark.parametrize("value", [None, ""])
def test_missing_placeholder_is_an_error_and_sends_nothing(server: Server, value: Any) -> None:
    """A placeholder without a value never becomes an empty segment."""
    result = call(make(server, "/users/{id}", "DELETE"), id=value)
    assert result.is_error
    assert "'id'" in result.output
    assert server.seen == []


@pytest.mark.parametrize(
    "value",
    [
        ".",
        "..",
        "../admin",
        "a/../../b",
        "..\\x",
        "%2e%2e",
        "%2E./x",
        "..%2fadmin",
        "%252e%252e%252fx",
        "..;/x",
    ],
)
def test_path_value_cannot_leave_its_segment(server: Server, value: str) -> None:
    """Dots that lead elsewhere are refused in every spelling."""
    result = call(make(server, "/users/{id}/x"), id=value)
    assert result.is_error
    assert server.seen == []


def test_two_placeholders_cannot_make_up_dots(server: Server) -> None:
    """Values that are harmless alone are refused where they join to ``..``."""
    tool = http_tool(name="t", description="", method="GET", url=server.url + "/a/{x}.{y}/b")
    assert call(tool, x="v1", y="2").output == "ok"
    assert call(make(server, "/a/.{x}/b"), x=".").is_error
    assert len(server.seen) == 1


@given(value=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_path_value_stays_in_its_segment(lasting: Server, value: str) -> None:
    """Whatever the model says, the server gets just that, in that segment, or nothing."""
    before = len(lasting.seen)
    result = call(make(lasting, "/a/{v}/z"), v=value)
    if result.is_error:
        assert "." in unquote(unquote(unquote(value)))
        assert len(lasting.seen) == before
    else:
        _, a, segment, z = lasting.last.target.split("/")
        assert (a, unquote(segment), z) == ("a", value, "z")


def test_query_values_look_like_json(server: Server) -> None:
    """Booleans and numbers are written as in JSON, null is left out, lists repeat, objects are JSON."""
    call(make(server), a=True, b=False, c=None, d=3, e=2.5, f=["x", 1, None], g={"k": [1]}, h="", i=4.0)
    assert pairs(server.last) == [
        ("a", "true"), ("b", "false"), ("d", "3"), ("e", "2.5"), ("f", "x"), ("f", "1"),
        ("g", '{"k":[1]}'), ("h", ""), ("i", "4"),
    ]  # fmt: skip


def test_query_goes_beside_what_the_url_has(server: Server) -> None:
    """A query in the URL stays, and a placeholder in it cannot add a parameter."""
    call(make(server, "/x?fixed=1&q={q}"), q="a&admin=1#f", more="m")
    assert pairs(server.last) == [("fixed", "1"), ("q", "a&admin=1#f"), ("more", "m")]


def test_json_body_and_named_query(server: Server) -> None:
    """Arguments that ``query`` names go there, the others make a JSON body, in compact UTF-8."""
    call(make(server, "/x/{id}", "POST", query=["dry"]), id=1, dry=True, name="ü", n=None)
    assert server.last.target == "/x/1?dry=true"
    assert server.last.headers["Content-Type"] == "application/json"
    assert server.last.body == '{"name":"ü","n":null}'.encode()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_arguments_make_no_body(server: Server, method: str) -> None:
    """Without arguments left over, nothing is sent, and no content type is claimed."""
    call(make(server, "/x/{id}", method), id=1)
    assert server.last.body == b""
    assert "Content-Type" not in server.last.headers


def test_delete_sends_a_body_only_from_arguments(server: Server) -> None:
    """DELETE has a body when arguments are left over, and none of those that ``query`` names."""
    call(make(server, "/x", "DELETE", query=["q"]), q=1, reason="old")
    assert (server.last.target, server.last.body) == ("/x?q=1", b'{"reason":"old"}')


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
def test_head_arguments_go_into_the_query(server: Server, method: str) -> None:
    """Arguments of HEAD and OPTIONS are not dropped."""
    call(make(server, method=method), a=1)
    assert (server.last.method, server.last.target, server.last.body) == (method, "/x?a=1", b"")


def test_form_body(server: Server) -> None:
    """A form has the same values as a query."""
    call(make(server, method="POST", body="form"), a="ä b&c", b=[1, True], c=None)
    assert server.last.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(server.last.body.decode()) == [("a", "ä b&c"), ("b", "1"), ("b", "true")]


@pytest.mark.parametrize(
    ("headers", "body", "media_type", "sent"),
    [
        (None, "<a>ü</a>", "text/plain; charset=utf-8", "<a>ü</a>".encode()),
        ({"content-type": "application/xml"}, "<a/>", "application/xml", b"<a/>"),
        (None, {"k": 1}, "application/json", b'{"k":1}'),
    ],
)
def test_raw_body(server: Server, headers: Any, body: Any, media_type: str, sent: bytes) -> None:
    """A raw body goes as it is, under the configured content type, or one that fits it."""
    call(make(server, method="POST", body="raw", headers=headers), body=body)
    assert server.last.headers.get_all("Content-Type") == [media_type]
    assert server.last.body == sent


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_value_without_json_form_is_an_error(server: Server, value: Any) -> None:
    """What JSON or UTF-8 cannot say is an error for the model, not an exception."""
    for method in ("GET", "POST"):
        assert call(make(server, method=method), a=value).is_error
    assert server.seen == []


@given(args=st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.booleans(), max_size=5))
def test_any_arguments_come_through_the_query(lasting: Server, args: dict[str, Any]) -> None:
    """Any names and values come through a query and add nothing to it."""
    before = len(lasting.seen)
    result = make(lasting).execute(args, Context())
    if result.is_error:
        assert len(lasting.seen) == before
        assert "surrogate" in result.output
        return
    expected = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in args.items()]
    assert pairs(lasting.last) == expected


# -- options ---------------------------------------------------------------------------------


def test_schema_is_inferred(server: Server) -> None:
    """Placeholders are required, named query arguments are not, a body takes anything."""
    get = make(server, "/{a}?b={b}", query=["c"]).input_schema
    assert (list(get["properties"]), get["required"], get["additionalProperties"]) == (
        ["a", "b", "c"], ["a", "b"], False,
    )  # fmt: skip
    assert make(server, method="POST").input_schema["additionalProperties"] is True
    raw = make(server, method="PUT", body="raw").input_schema
    assert (list(raw["properties"]), raw["additionalProperties"]) == (["body"], False)
    own = {"type": "object", "properties": {"z": {"type": "integer"}}}
    assert make(server, input_schema=own).input_schema is own


def test_tool_says_what_it_is(server: Server) -> None:
    """Reads may be repeated after an interruption, writes ask first."""
    get, post, put = (make(server, method=m) for m in ("get", "post", "put"))
    assert (get.source, get.idempotent, get.on_interrupted) == ("http", True, "retry")
    assert (post.idempotent, post.on_interrupted) == (False, "ask")
    assert (put.idempotent, put.on_interrupted) == (True, "ask")


@pytest.mark.parametrize(
    "options",
    [
        {"method": "TRACE"},
        {"method": None},
        {"url": "ftp://h/x"},
        {"url": "http:///x"},
        {"url": "http://u:p@h/x"},
        {"url": "http://h:99999/"},
        {"url": "http://{host}/x"},
        {"url": "http://h/${KEY}"},
        {"url": "http://h/a/../b"},
        {"body": "xml"},
        {"result_mode": "html"},
        {"timeout": 0},
        {"timeout": "1"},
        {"max_bytes": 0},
        {"query": "a"},
        {"headers": {"A B": "x"}},
        {"headers": {"A": 1}},
        {"headers": {"A": "x\r\nB: y"}},
        {"headers": {"A": "${}"}},
        {"headers": {"A": "${TOOLNEXUS_NOT_SET}"}},
    ],
)
def test_wrong_option_is_an_error_at_once(options: dict[str, Any]) -> None:
    """A mistake that can be known when the tool is made is reported then."""
    base = {"name": "t", "description": "d", "method": "GET", "url": "http://h/x"}
    with pytest.raises(ConfigurationError):
        http_tool(**{**base, **options})


# -- secrets ---------------------------------------------------------------------------------


def test_header_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is checked when the tool is made and read anew at each call."""
    monkeypatch.setenv("T_KEY", "first-value")
    tool = make(server, headers={"Authorization": "Bearer ${T_KEY}", "X-Plain": "p"})
    call(tool)
    assert server.last.headers["Authorization"] == "Bearer first-value"
    monkeypatch.setenv("T_KEY", "second-value")
    call(tool)
    assert server.last.headers["Authorization"] == "Bearer second-value"
    monkeypatch.delenv("T_KEY")
    result = call(tool)
    assert (result.is_error, len(server.seen)) == (True, 2)
    assert "T_KEY" in result.output


@pytest.mark.parametrize("header", ["Bearer ${T_KEY}", f"Bearer {KEY}"])
def test_sec_02_secret_is_shown_nowhere(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    """Not in repr, output, metadata or log, also where the server sends it back, or sends half of it."""
    monkeypatch.setenv("T_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    def echo(handler: Any, seen: Seen) -> None:
        status = int(seen.target.rsplit("=", 1)[1])
        text = json.dumps({"headers": dict(seen.headers), "b64": base64.b64encode(KEY.encode()).decode()})
        send(handler, text, status, Content_Type="application/json", Location="/back?k=" + KEY)

    server.reply = echo
    for mode in ("text", "json", "status+text"):
        tool = make(server, headers={"Authorization": header}, result_mode=mode)
        shown = [repr(tool), repr(tool.execute), str(tool.metadata), caplog.text]
        shown += [repr(call(tool, s=status)) for status in (200, 302, 404, 500)]
        assert all(KEY not in text and base64.b64encode(KEY.encode()).decode() not in text for text in shown)
    server.reply = lambda handler, seen: send(handler, "you are " + KEY, Content_Type="text/plain")
    cut = call(make(server, headers={"Authorization": header}, max_bytes=len("you are ") + 8))
    assert KEY[:8] not in cut.output


def test_sec_02_secret_is_in_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelling raises; neither the exception nor what it came from shows the key."""
    monkeypatch.setenv("T_KEY", KEY)
    started = threading.Event()

    def stall(handler: Any, seen: Seen) -> None:
        started.set()
        time.sleep(5)

    with serving(stall) as server:
        tool = make(server, headers={"X-Api-Key": "${T_KEY}"})
        scope = CancelScope()

        def cancel() -> None:
            started.wait(10)
            scope.cancel()

        threading.Thread(target=cancel, daemon=True).start()
        with pytest.raises(RunCancelledError) as caught:
            call(tool, scope)
    assert KEY not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_netrc_and_cookies_add_nothing(
    server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ~/.netrc says is not sent, and a cookie that one call gets does not go out with the next."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login joe password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    server.reply = lambda handler, seen: send(handler, "ok", Set_Cookie="sid=1; Path=/")
    tool = make(server)
    call(tool)
    call(tool)
    assert "Authorization" not in server.last.headers
    assert "Cookie" not in server.last.headers


def test_net_13_proxy_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """``HTTP_PROXY`` is honoured, and so is ``NO_PROXY``."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, server.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    tool = http_tool(name="t", description="", method="GET", url="http://example.invalid/a")
    assert call(tool).output == "ok"
    assert server.last.target == "http://example.invalid/a"
    monkeypatch.setenv("no_proxy", "example.invalid")
    result = call(tool)
    assert (result.is_error, result.output) == (True, "the host example.invalid cannot be found")


def test_session_of_the_users_own(server: Server) -> None:
    """A given session is used with its headers, and the configured ones win."""
    with requests.Session() as session:
        session.headers.update({"X-Mine": "1", "X-Both": "session"})
        assert call(make(server, session=session, headers={"X-Both": "tool"})).output == "ok"
    assert (server.last.headers["X-Mine"], server.last.headers["X-Both"]) == ("1", "tool")


# -- what comes back -------------------------------------------------------------------------


def answering(server: Server, body: bytes | str, status: int = 200, **headers: str) -> None:
    server.reply = lambda handler, seen: send(handler, body, status, **headers)


def test_result_modes(server: Server) -> None:
    """Text as it came, JSON compact, or with the status before it; what is no JSON stays text."""
    answering(server, '{ "a": "ü" }', 201, Content_Type="application/json")
    assert call(make(server)).output == '{ "a": "ü" }'
    assert call(make(server, result_mode="json")).output == '{"a":"ü"}'
    result = call(make(server, result_mode="status+text"))
    assert (result.output, result.metadata) == ('HTTP 201: { "a": "ü" }', {"status": 201})
    answering(server, "plain", Content_Type="text/plain")
    assert call(make(server, result_mode="json")).output == "plain"


@pytest.mark.parametrize(
    ("status", "body", "output"),
    [
        (404, "no such user", "HTTP 404: no such user"),
        (500, "", "HTTP 500: Internal Server Error"),
        (299, "", ""),
    ],
)
def test_status_decides(server: Server, status: int, body: str, output: str) -> None:
    """An answer other than 2xx is an error that has the status and the body."""
    answering(server, body, status, Content_Type="text/plain")
    result = call(make(server))
    assert (result.output, result.is_error, result.metadata["status"]) == (output, status > 299, status)


def test_head_shows_the_headers(server: Server) -> None:
    """A HEAD answer has no body, so the model gets its status and headers, cookies apart."""
    answering(server, b"", Content_Type="image/png", ETag='"7"', Set_Cookie="a=secret")
    output = call(make(server, method="HEAD")).output
    assert output.startswith("HTTP 200\n")
    assert 'etag: "7"' in output
    assert "secret" not in output


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def test_image_and_file_become_content(server: Server) -> None:
    """A binary answer goes to the model as what it is, the text only names it."""
    answering(server, PNG, Content_Type="image/png")
    result = call(make(server))
    assert (result.output, result.content) == ("[image/png, 264 bytes]", (Image(PNG, "image/png"),))
    answering(server, b"%PDF-\0", Content_Type="application/pdf; x=y")
    result = call(make(server))
    assert result.content == (File(b"%PDF-\0", "application/pdf", "answer.pdf"),)
    answering(server, b"\0\1", 500, Content_Type="application/octet-stream")
    assert call(make(server)).output == "HTTP 500: [application/octet-stream, 2 bytes]"


def test_binary_answer_beyond_the_limit_is_an_error(server: Server) -> None:
    """Half an image is no image."""
    answering(server, PNG, Content_Type="image/png")
    result = call(make(server, max_bytes=100))
    assert (result.is_error, result.content, result.metadata["truncated"]) == (True, (), True)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("grüß €".encode(), "text/plain"),
        ("grüß €".encode(), "application/octet-stream"),
        ("grüß €".encode("utf-8-sig"), "text/plain; charset=latin-1"),
        ("grüß €".encode("utf-16"), "text/plain"),
        ("grüß €".encode("cp1252"), "text/plain"),
        ("grüß €".encode("cp1252"), "text/plain; charset=no-such-charset"),
        ("grüß €".encode("iso8859-15"), 'application/x; charset="iso-8859-15"'),
    ],
)
def test_text_in_any_charset(server: Server, body: bytes, content_type: str) -> None:
    """A text is decoded by its mark, its header, UTF-8, or the usual fallback."""
    answering(server, body, Content_Type=content_type)
    assert call(make(server)).output == "grüß €"


@pytest.mark.parametrize("name", ["iso8859-2", "cp1251"])
def test_charset_that_the_document_declares(server: Server, name: str) -> None:
    """HTML and XML may say in their first lines what they are written in."""
    text = f'<meta charset="{name}"><p>ž</p>' if name == "iso8859-2" else f'<?xml encoding="{name}"?><p>ж</p>'
    answering(server, text.encode(name), Content_Type="text/html")
    assert call(make(server)).output == text


@pytest.mark.parametrize("name", ["idna", "zlib", "hex", "unicode_escape", "utf-7", "undefined", "x" * 1000])
def test_server_cannot_choose_a_harmful_codec(server: Server, name: str) -> None:
    """Codecs that are no character sets are passed over."""
    answering(server, b"a\\x41" + b"." * 10_000, Content_Type=f"text/plain; charset={name}")
    assert call(make(server)).output == "a\\x41" + "." * 10_000


def test_long_text_is_cut_and_says_so(server: Server) -> None:
    """The limit counts bytes, no character is broken, and the connection is not read to its end."""

    def endless(handler: Any, seen: Seen) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        piece = "ü".encode() * 4096
        while True:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    server.reply = endless
    result = call(make(server, max_bytes=100_001))
    assert result.output == "ü" * 50_000 + "\n[cut: the answer is longer than 100001 bytes]"
    assert (result.is_error, result.metadata["truncated"]) == (False, True)
    assert server.gone.wait(10)


@pytest.mark.parametrize("size", [99, 100, 101])
def test_limit_is_exact(server: Server, size: int) -> None:
    """A body of just the limit is whole."""
    answering(server, "x" * size, Content_Type="text/plain")
    assert call(make(server, max_bytes=100)).metadata.get("truncated", False) is (size > 100)


def test_gzip_is_decoded_and_a_bomb_is_cut(server: Server) -> None:
    """The limit counts what comes out of the compression, and memory stays near the limit."""
    answering(server, gzip.compress(b"small"), Content_Type="text/plain", Content_Encoding="gzip")
    assert call(make(server)).output == "small"
    bomb = gzip.compress(bytes(200_000_000), 9)
    answering(server, bomb, Content_Type="text/plain", Content_Encoding="gzip")
    tool = make(server, max_bytes=100_000)
    tracemalloc.start()
    try:
        result = call(tool)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.metadata["truncated"] is True
    assert peak < 100_000_000


def test_wrong_content_encoding_is_an_error(server: Server) -> None:
    """A body that is not encoded as its header says is an error in words."""
    answering(server, b"not gzip at all", Content_Type="text/plain", Content_Encoding="gzip")
    result = call(make(server))
    assert result.is_error
    assert "not encoded" in result.output


# -- redirects -------------------------------------------------------------------------------


def redirecting(server: Server, status: int, location: str) -> None:
    def reply(handler: Any, seen: Seen) -> None:
        if seen.target.startswith("/x"):
            send(handler, "moved", status, Location=location)
        else:
            send(handler, "there", Content_Type="text/plain")

    server.reply = reply


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_within_the_host_is_followed(server: Server, status: int) -> None:
    """GET follows each kind, with its headers."""
    redirecting(server, status, "/there?a=1")
    assert call(make(server, headers={"X-Api-Key": "12345"})).output == "there"
    assert (server.last.target, server.last.headers["X-Api-Key"]) == ("/there?a=1", "12345")


def test_post_follows_only_where_it_stays_a_post(server: Server) -> None:
    """307 and 308 repeat the request whole; the others would turn it into a GET, and are not followed."""
    redirecting(server, 308, "/there")
    assert call(make(server, method="POST"), a=1).output == "there"
    assert (server.last.method, server.last.body) == ("POST", b'{"a":1}')
    redirecting(server, 302, "/there")
    result = call(make(server, method="POST"), a=1)
    assert (result.is_error, len(server.seen)) == (True, 3)
    assert result.output == f"HTTP 302: redirect to {server.url}/there, which was not followed"


@pytest.mark.parametrize("kind", ["port", "name", "user", "scheme", "broken"])
def test_redirect_to_another_host_is_not_followed(server: Server, kind: str) -> None:
    """Credentials never go elsewhere: the model is told where the server points to."""
    with serving() as other:
        location = {
            "port": f"{other.url}/there",
            "name": f"http://localhost:{server.port}/there",
            "user": f"http://u:p@127.0.0.1:{server.port}/there",
            "scheme": "file:///etc/hostname",
            "broken": "http://[::1",
        }[kind]
        redirecting(server, 302, location)
        result = call(make(server, headers={"Authorization": "Bearer 12345"}))
        assert result.is_error
        assert result.output.startswith("HTTP 302: redirect to ")
        assert (len(server.seen), other.seen) == (1, [])


def test_body_of_a_redirect_is_limited(server: Server) -> None:
    """A redirect with an endless body costs no more than any other answer."""

    def endless(handler: Any, seen: Seen) -> None:
        handler.send_response(302)
        handler.send_header("Location", "http://example.invalid/")
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    server.reply = endless
    assert call(make(server, timeout=20)).output.startswith("HTTP 302: redirect to http://example.invalid/")
    assert server.gone.wait(10)


def test_redirect_loop_ends(server: Server) -> None:
    """Five redirects are followed, then the model is told."""
    redirecting(server, 302, "/x")
    assert call(make(server)).is_error
    assert len(server.seen) == 6


# -- broken, slow, cancelled -----------------------------------------------------------------


def raw_server(*pieces: bytes, hold: float = 0.0) -> tuple[str, threading.Event]:
    """Serve one connection with these bytes; the event is set when the client closed it."""
    listener = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()

    def serve() -> None:
        with listener, listener.accept()[0] as conn:
            conn.recv(65536)
            for piece in pieces:
                conn.sendall(piece)
            conn.settimeout(hold or None)
            try:
                if hold and conn.recv(1) == b"":
                    closed.set()
            except OSError:
                closed.set()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/", closed


def get(url: str, **options: Any) -> Tool:
    return http_tool(name="t", description="", method="GET", url=url, **options)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n",
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    ],
)
def test_broken_answer_is_an_error(answer: bytes) -> None:
    """A connection that ends early, or that does not speak HTTP, is never a short answer."""
    result = call(get(raw_server(answer)[0]))
    assert result.is_error
    assert "ended before a whole answer" in result.output


def test_refused_connection_is_an_error() -> None:
    """Nobody listens: the model is told so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert call(get(f"http://127.0.0.1:{port}/")).output == f"127.0.0.1:{port} refused the connection"


def test_untrusted_certificate_is_an_error(tmp_path: Path) -> None:
    """A certificate that nobody vouches for ends the call; a session that knows it does not."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serving(context=context) as server:
        result = call(make(server))
        assert result.is_error
        assert result.output.startswith(f"the certificate of 127.0.0.1:{server.port} is not valid: ")
        with requests.Session() as session:
            session.verify = str(tmp_path / "ca.pem")
            assert call(make(server, session=session)).output == "ok"


def test_trickle_does_not_outlast_the_timeout() -> None:
    """The time limit is for the whole call: a byte now and then does not extend it."""

    def drip(handler: Any, seen: Seen) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b".")
            time.sleep(0.05)

    with serving(drip) as server:
        begun = time.monotonic()
        result = call(make(server, timeout=0.4))
        assert time.monotonic() - begun < 5
        assert (result.is_error, result.output) == (True, "no whole answer within 0.4 s")
        assert server.gone.wait(10)


def test_silent_server_is_left_in_time() -> None:
    """Silence before the headers counts against the same limit."""
    url, closed = raw_server(hold=10)
    assert call(get(url, timeout=0.3)).is_error
    assert closed.wait(5)


@pytest.mark.parametrize(
    ("phase", "own"),
    # With a session without our adapter, cancelling before the headers is best effort.
    [("headers", True), ("body", True), ("body", False)],
)
def test_cancel_returns_at_once_and_closes(phase: str, own: bool) -> None:
    """Cancelling ends the call in any phase, and the server sees the connection close."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc" if phase == "body" else b""
    url, closed = raw_server(head, hold=20)
    scope = CancelScope()
    with requests.Session() as session:
        tool = get(url, session=None if own else session)
        threading.Timer(0.2, scope.cancel, ["enough"]).start()
        begun = time.monotonic()
        with pytest.raises(RunCancelledError, match="enough"):
            call(tool, scope)
        assert time.monotonic() - begun < 5
        assert closed.wait(5)


def test_abandoned_scope_ends_the_call() -> None:
    """A finalizer that abandons the run ends the call, too."""
    url, closed = raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", hold=20)
    scope = CancelScope()
    threading.Timer(0.2, scope.abandon).start()
    with pytest.raises(RunCancelledError):
        call(get(url), scope)
    assert closed.wait(5)


def test_scope_that_has_ended_sends_nothing(server: Server) -> None:
    """A call that begins after the end does not begin."""
    scope = CancelScope()
    scope.cancel()
    with pytest.raises(RunCancelledError):
        call(make(server), scope)
    assert server.seen == []


def test_time_of_the_run_counts() -> None:
    """The run's own deadline ends the call as the run's, not the tool's."""
    url, closed = raw_server(hold=20)
    scope = CancelScope(0.3)
    with scope.running(), pytest.raises(RunTimeoutError):
        call(get(url), scope)
    assert closed.wait(5)


# -- sharing ---------------------------------------------------------------------------------


def test_many_threads_share_one_tool(server: Server) -> None:
    """Calls at once do not disturb each other: each gets the answer to its own request."""
    server.reply = lambda handler, seen: send(handler, seen.target, Content_Type="text/plain")
    tool = make(server, "/x/{n}")
    wrong: list[str] = []

    def work(start: int) -> None:
        for n in range(start, start + 25):
            output = call(tool, n=n).output
            if output != f"/x/{n}":
                wrong.append(output)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (wrong, len(server.seen)) == ([], 200)


def test_connection_is_used_again(server: Server) -> None:
    """Calls one after another go over one connection."""
    ports = []

    def reply(handler: Any, seen: Seen) -> None:
        ports.append(handler.client_address[1])
        send(handler, "ok")

    server.reply = reply
    tool = make(server)
    for _ in range(3):
        call(tool)
    assert len(set(ports)) == 1


def test_tool_survives_pickling(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled tool works elsewhere, and its variable's value is not in the pickle."""
    monkeypatch.setenv("T_KEY", KEY)
    tool = make(server, "/x/{n}", headers={"Authorization": "${T_KEY}"})
    call(tool, n=1)
    data = pickle.dumps(tool)
    assert KEY.encode() not in data
    call(pickle.loads(data), n=2)
    assert (server.last.target, server.last.headers["Authorization"]) == ("/x/2", KEY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_has_connections_of_its_own(server: Server) -> None:
    """A child never writes into its parent's pooled connection."""
    ports = []

    def reply(handler: Any, seen: Seen) -> None:
        ports.append(handler.client_address[1])
        send(handler, "ok")

    server.reply = reply
    tool = make(server)
    call(tool)
    child = os.fork()
    if child == 0:
        os._exit(0 if call(tool).output == "ok" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    call(tool)
    assert (ports[0] == ports[2], ports[1] != ports[0]) == (True, True)
