"""webfetch: what it may reach, what it connects to, and how much it takes."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Context
from toolnexus.tools.builtins.addresses import Policy, is_public

from .support.builtin_calls import Box

#: The only address that the tests allow beside the public ones.
LOCAL = ["127.0.0.1/32"]


ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Server:
    """A web server made of a socket: answers with the bytes that were put in for a path."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.tls = tls
        self.pages: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.requests: list[str] = []
        self.hung_up = threading.Event()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """Return the URL of a path."""
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{path}"

    def page(self, path: str, body: bytes, *headers: str, status: str = "200 OK") -> str:
        """Put in a page and return its URL."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        self.pages[path] = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        return self.url(path)

    def html(self, path: str, body: str) -> str:
        """Put in a page of HTML and return its URL."""
        return self.page(path, body.encode(), "Content-Type: text/html; charset=utf-8")

    def redirect(self, path: str, target: str, status: str = "302 Found") -> str:
        """Put in a redirect and return its URL."""
        return self.page(path, b"", f"Location: {target}", status=status)

    def serve(self) -> None:
        """Answer until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        """Answer one request."""
        with connection:
            try:
                if self.tls:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                with connection:
                    self.answer_plain(connection)
            except OSError:
                pass  # the client has what it wanted

    def answer_plain(self, connection: socket.socket) -> None:
        """Answer one request on a connection that is ready."""
        request = b""
        while b"\r\n\r\n" not in request:
            block = connection.recv(65536)
            if not block:
                return
            request += block
        self.requests.append(request.decode())
        found = self.pages.get(request.split(b" ")[1].decode(), ABSENT)
        if isinstance(found, bytes):
            connection.sendall(found)
            return
        try:
            found(connection)
            connection.settimeout(10)
            connection.recv(1)
        except OSError:
            pass
        self.hung_up.set()


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a server."""
    server = Server(tls)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join(5)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a running server."""
    with serving() as running:
        yield running


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return tools that may fetch from 127.0.0.1 and from nowhere else that is private."""
    return Box(tmp_path, allow_private=LOCAL)


class Names:
    """A resolver that knows some names and counts how often it is asked."""

    def __init__(self, **known: Sequence[Sequence[str]]) -> None:
        self.known = {name.replace("_", "."): list(answers) for name, answers in known.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the next answer for a name; the last one again and again."""
        self.asked.append(host)
        if host not in self.known:
            raise socket.gaierror("no such name")
        answers = self.known[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


# -- what may be reached -----------------------------------------------------------------------

PRIVATE_HOSTS = """
127.0.0.1 127.1 127.255.255.254 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 0 0.0.0.0
10.0.0.1 10.1 172.16.0.1 172.31.255.255 192.168.0.1 3232235521 169.254.169.254 2852039166 0xa9fea9fe
0251.0376.0251.0376 100.64.0.1 100.100.100.200 168.63.129.16 192.0.0.192 198.18.0.1 224.0.0.1
239.255.255.250 255.255.255.255 240.0.0.1 [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1]
[::ffff:7f00:1] [::ffff:169.254.169.254] [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::a9fe:a9fe]
[64:ff9b:1::1] [2002:7f00:1::] [2002:a9fe:a9fe::1] [2001:0:7f00:1::] [fe80::1] [fc00::1]
[fd00:ec2::254] [fec0::1] [ff02::1] [2001:db8::1] [::ffff:0:127.0.0.1] localhost localhost.
LOCALHOST ①②⑦.⓪.⓪.① 127。0。0。1
""".split()  # noqa: SIM905 - a list of so many is no easier to read


@pytest.mark.parametrize("host", PRIVATE_HOSTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_spelling_of_a_private_address_is_reached(
    tmp_path: Path, server: Server, host: str, scheme: str
) -> None:
    """Decimal, octal, hexadecimal, shortened, mapped: each is resolved first, and then refused."""
    said = Box(tmp_path).error("webfetch", url=f"{scheme}://{host}:{server.port}/")
    assert "private address" in said or "cannot be resolved" in said
    assert server.requests == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.5"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%lo"],
        ["93.184.215.14", "127.0.0.1"],
        ["2606:2800::1", "::ffff:10.0.0.1"],
    ],
)
def test_names_for_private_addresses_are_refused(tmp_path: Path, addresses: list[str]) -> None:
    """A harmless name that resolves to a private address, be it among others, is not connected to."""
    names = Names(metadata_example=[addresses])
    said = Box(tmp_path, resolver=names).error("webfetch", url="http://metadata.example/latest")
    assert said.startswith("webfetch: metadata.example is at a private address (")
    assert names.asked == ["metadata.example"]


def test_second_answer_of_a_name_is_never_asked_for(tmp_path: Path, server: Server) -> None:
    """A name that changes its address between check and connection gains nothing: it is asked once."""
    server.page("/", b"here", "Content-Type: text/plain")
    names = Names(rebind_example=[["127.0.0.1"], ["127.0.0.2"], ["10.0.0.1"]])
    box = Box(tmp_path, resolver=names, allow_private=LOCAL)
    assert box.ok("webfetch", url=server.url("/", "rebind.example")) == "here"
    assert names.asked == ["rebind.example"]
    assert f"Host: rebind.example:{server.port}\r\n" in server.requests[0]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2/",
        "http://2130706434/",
        "//127.0.0.2/x",
        "http://inner.example/",
        "http://[::1]/",
        "file:///etc/hostname",
    ],
)
def test_no_redirect_leads_to_what_is_refused(
    tmp_path: Path, server: Server, status: str, target: str
) -> None:
    """Each redirect is judged as the first address was."""
    names = Names(
        **{"127_0_0_1": [["127.0.0.1"]], "127_0_0_2": [["127.0.0.2"]], "2130706434": [["127.0.0.2"]]}
    )
    names.known |= {"inner.example": [["10.0.0.1"]], "::1": [["::1"]]}
    box = Box(tmp_path, resolver=names, allow_private=LOCAL)
    said = box.error("webfetch", url=server.redirect("/", target, status))
    assert "private address" in said or "only http and https" in said


def test_redirects_are_followed(box: Box, server: Server) -> None:
    """Redirects that are allowed lead to the page, relative ones too; a circle ends."""
    server.redirect("/a", "/b/c")
    server.redirect("/b/c", "d?x=1")
    server.page("/b/d?x=1", b"there", "Content-Type: text/plain")
    server.redirect("/loop", "/loop")
    assert box.ok("webfetch", url=server.url("/a")) == "there"
    assert box.error("webfetch", url=server.url("/loop")) == "webfetch: more than 5 redirects"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname", "data:text/plain,x", "ftp://example.com/", "gopher://127.0.0.1/",
        "javascript:1",
        "example.com", "//example.com/", "http:///x", "http://", "http://[::1", "http://host:99999/",
        "http://host:x/",
        "http://user:pw@example.com/", "http://user@example.com/", "http://example.com\\@127.0.0.1/",
        "http://exam ple.com/", "http://example.com/\r\nX: y", "http://example.com/\t",
        "http://\u202eexample.com/",
        "http://xn--\u00df\u0000/", "http://example.com/" + "x" * 9000, "http://" + "a" * 70 + "é.com/",
    ],
)  # fmt: skip
def test_what_is_no_plain_web_address_is_refused(box: Box, url: str) -> None:
    """Other schemes, credentials, and addresses that programs read differently are not fetched."""
    assert box.error("webfetch", url=url).startswith("webfetch: ")


def test_allowed_networks_and_everything(tmp_path: Path, server: Server) -> None:
    """Private addresses are reached where they are allowed, one network or all."""
    url = server.page("/", b"x", "Content-Type: text/plain")
    for allowed in (True, "127.0.0.0/8", LOCAL, ["10.0.0.0/8", "127.0.0.1"]):
        assert Box(tmp_path, allow_private=allowed).ok("webfetch", url=url) == "x"
    mapped = f"http://[::ffff:127.0.0.1]:{server.port}/"
    assert Box(tmp_path, allow_private=["10.0.0.0/8"]).call("webfetch", url=mapped).is_error
    assert not isinstance(Policy.of(LOCAL, None).private, bool)
    with pytest.raises(ConfigurationError):
        Policy.of(["127.0.0.1/8"], None)


@given(st.integers(0, 2**32 - 1))
def test_every_form_of_an_address_is_judged_alike(number: int) -> None:
    """An IPv4 address that is not public is none in any of its IPv6 forms either."""
    plain = ipaddress.IPv4Address(number)
    forms = [0xFFFF << 32 | number, (0x64FF9B << 96) | number, (0x2002 << 112) | (number << 80)]
    assert {is_public(ipaddress.IPv6Address(form)) for form in forms} == {is_public(plain)}
    if plain.is_private or plain.is_multicast or plain.is_link_local or plain.is_loopback:
        assert not is_public(plain)


def test_public_addresses_are_public() -> None:
    """The guard does not close the web."""
    for text in ("1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "::ffff:8.8.8.8"):
        assert is_public(ipaddress.ip_address(text))


def test_environment_proxies_are_not_used(box: Box, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve the name by itself, past the check."""
    url = server.page("/", b"direct", "Content-Type: text/plain")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert box.ok("webfetch", url=url) == "direct"


# -- TLS ---------------------------------------------------------------------------------------


def test_certificate_is_that_of_the_name(tmp_path: Path) -> None:
    """The checked address is connected to, and the certificate, SNI and Host are those of the name."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("good.example").configure_cert(context)
    asked: list[Any] = []
    context.sni_callback = lambda sock, name, ctx: asked.append(name)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    names = Names(good_example=[["127.0.0.1"]], bad_example=[["127.0.0.1"]])
    with serving(context) as server:
        server.page("/", b"private", "Content-Type: text/plain")
        box = Box(tmp_path, resolver=names, allow_private=LOCAL, ca_bundle=str(tmp_path / "ca.pem"))
        assert box.ok("webfetch", url=server.url("/", "good.example")) == "private"
        assert asked == ["good.example"]
        assert f"Host: good.example:{server.port}\r\n" in server.requests[0]
        assert "CERTIFICATE_VERIFY_FAILED" in box.error("webfetch", url=server.url("/", "bad.example"))
        untrusting = Box(tmp_path, resolver=names, allow_private=LOCAL)
        assert "CERTIFICATE_VERIFY_FAILED" in untrusting.error(
            "webfetch", url=server.url("/", "good.example")
        )
        assert len(server.requests) == 1


# -- what comes out ----------------------------------------------------------------------------

PAGE = (
    "<!doctype html><html><head><title>T</title><style>p {}</style><script>alert(1)</script></head>"
    "<body><h1>Fish &amp; chips</h1><p>One <a href='/x'>link</a>.</p>"
    "<ul><li>a</li><li>b</li></ul></body></html>"
)


def test_formats(box: Box, server: Server) -> None:
    """HTML becomes Markdown or text with its entities read and its scripts left out, or stays as it is."""
    url = server.html("/", PAGE)
    result = box.call("webfetch", url=url)
    assert result.metadata == {"status": 200, "format": "markdown"}
    assert "# Fish & chips" in result.output
    assert "[link](/x)" in result.output
    assert "* a\n* b" in result.output
    text = box.ok("webfetch", url=url, format="text")
    assert "Fish & chips" in text
    assert "#" not in text
    assert "alert" not in result.output + text
    assert "p {}" not in result.output + text
    assert box.ok("webfetch", url=url, format="html") == PAGE
    assert box.error("webfetch", url=url, format="pdf") == "webfetch: format is one of markdown, text, html"
    assert box.error("webfetch") == "webfetch: url is required"


def test_status_is_an_error_unless_it_is_a_success(box: Box, server: Server) -> None:
    """A failure is told by its status."""
    result = box.call("webfetch", url=server.page("/", b"oops", status="503 Down"))
    assert (result.output, result.is_error, result.metadata) == ("HTTP 503", True, {"status": 503})
    assert box.error("webfetch", url=server.url("/absent")) == "HTTP 404"
    assert box.ok("webfetch", url=server.page("/none", b"", status="204 No Content")) == ""


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", '{"a": "é"}'.encode(), '{"a": "é"}'),
        ("text/plain; charset=latin-1", b"caf\xe9", "café"),
        ("text/plain; charset=nonsense", "é".encode(), "é"),
        ("text/html", "<meta charset='iso-8859-15'>caf\xa4".encode("latin-1"), "caf€"),
        ("text/plain", "\ufeffé".encode(), "é"),
        ("text/plain", "é".encode("utf-16"), "é"),
        ("application/vnd.api+json", b"{}", "{}"),
        ("image/png", b"\x89PNG", None),
        ("application/octet-stream", b"x", None),
        ("text/plain", b"a\0b", None),
    ],
)
def test_kinds_and_encodings(box: Box, server: Server, kind: str, body: bytes, text: str | None) -> None:
    """Text comes in the encoding it names; what is no text is said to be none."""
    result = box.call("webfetch", url=server.page("/", body, f"Content-Type: {kind}"), format="text")
    if text is None:
        assert result.output.startswith("webfetch: the page is not text")
    else:
        assert result.output == text


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_pages(box: Box, server: Server, coding: str) -> None:
    """Compressed pages are read; what lies about its compression is an error."""
    packed = gzip.compress(b"hello") if coding == "gzip" else zlib.compress(b"hello")
    headers = ("Content-Type: text/plain", f"Content-Encoding: {coding}")
    assert box.ok("webfetch", url=server.page("/", packed, *headers)) == "hello"
    assert "not compressed as it says" in box.error("webfetch", url=server.page("/bad", b"hello", *headers))
    strange = server.page("/br", b"x", "Content-Encoding: br")
    assert "compressed as 'br'" in box.error("webfetch", url=strange)


@pytest.mark.timeout(30)
def test_compression_bomb_is_bounded(tmp_path: Path, server: Server) -> None:
    """A small answer that unpacks to very much is unpacked up to the limit and no further."""
    import tracemalloc

    packer = zlib.compressobj(wbits=31)
    packed = b"".join(packer.compress(b"x" * 1_000_000) for _ in range(200)) + packer.flush()
    url = server.page("/", packed, "Content-Type: text/plain", "Content-Encoding: gzip")
    box = Box(tmp_path, allow_private=LOCAL, max_page=10_000, max_output=50_000)
    tracemalloc.start()
    try:
        output = box.ok("webfetch", url=url)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000 + len(packed)
    finally:
        tracemalloc.stop()
    assert output == "x" * 10_000 + "\n[... cut after 10000 bytes of the page ...]"


@pytest.mark.timeout(30)
def test_endless_page_is_cut(tmp_path: Path, server: Server) -> None:
    """A page without an end is read up to the limit, and the server sees the connection close."""

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    server.pages["/"] = endless
    box = Box(tmp_path, allow_private=LOCAL)
    output = box.ok("webfetch", url=server.url("/"))
    assert "characters cut" in output
    assert output.endswith("[... cut after 2000000 bytes of the page ...]")
    assert server.hung_up.wait(10)


def test_page_that_breaks_off_is_an_error(box: Box, server: Server) -> None:
    """A page that is shorter than announced is not taken for a whole one."""
    server.pages["/a"] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nfour"
    server.pages["/b"] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n"
    )
    for path in ("/a", "/b"):
        assert box.error("webfetch", url=server.url(path)).startswith("webfetch: ")


def trickle(head: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Return an answer that never ends and never falls silent."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(drop)
            time.sleep(0.02)

    return answer


STALLS: dict[str, Callable[[socket.socket], None]] = {
    "silent": lambda connection: None,
    "headers": trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
    "body": trickle(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"x"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("ending", ["timeout", "cancel"])
def test_slow_server_is_left(box: Box, server: Server, stall: str, ending: str) -> None:
    """In every phase the time limit and the cancel end the call, and the server sees the connection close."""
    server.pages["/"] = STALLS[stall]
    ctx = Context()
    if ending == "cancel":
        threading.Timer(0.4, ctx.scope.cancel).start()
    started = time.monotonic()
    result = box.call("webfetch", ctx, url=server.url("/"), timeout=0.4 if ending == "timeout" else 60)
    assert time.monotonic() - started < 8
    said = "timed out after 0.4 s" if ending == "timeout" else "the run was cancelled"
    assert result.output == f"webfetch: {said}"
    assert server.hung_up.wait(10)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("ending", ["timeout", "cancel"])
def test_slow_resolver_is_left(tmp_path: Path, ending: str) -> None:
    """A name that takes for ever to resolve holds nobody up."""
    release = threading.Event()

    def resolver(host: str, port: int) -> Sequence[str]:
        release.wait(20)
        return ["127.0.0.1"]

    ctx = Context()
    if ending == "cancel":
        threading.Timer(0.3, ctx.scope.cancel).start()
    try:
        result = Box(tmp_path, resolver=resolver).call(
            "webfetch", ctx, url="http://slow.example/", timeout=0.3
        )
        assert result.output.startswith("webfetch: t")
    finally:
        release.set()


def test_refused_connection_is_an_error(box: Box, server: Server) -> None:
    """Where nobody listens the error says so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in box.error("webfetch", url=f"http://127.0.0.1:{port}/")


def test_next_address_is_tried(tmp_path: Path, server: Server) -> None:
    """A name with several addresses is reached by the first that answers."""
    server.page("/", b"x", "Content-Type: text/plain")
    names = Names(two_example=[["127.0.0.9", "127.0.0.1"]])
    box = Box(tmp_path, resolver=names, allow_private="127.0.0.0/8")
    assert box.ok("webfetch", url=server.url("/", "two.example")) == "x"


@pytest.mark.timeout(60)
def test_deeply_nested_page_is_still_text(box: Box, server: Server) -> None:
    """A page that is nested beyond what the converter can do comes as text."""
    depth = 3000
    url = server.html("/", "<html>" + "<div>" * depth + "bottom" + "</div>" * depth + "</html>")
    assert "bottom" in box.ok("webfetch", url=url)


def test_request_gives_nothing_away(box: Box, server: Server) -> None:
    """The request has no cookie, no credentials and no more headers than it needs."""
    box.ok(
        "webfetch",
        url=server.page("/p%20q?a=%2F&b=c%20d", b"", "Content-Type: text/plain", "Set-Cookie: a=b"),
    )
    lines = server.requests[0].splitlines()
    assert lines[0] == "GET /p%20q?a=%2F&b=c%20d HTTP/1.1"
    assert {line.split(":")[0] for line in lines[1:] if line} == {
        "Host",
        "User-Agent",
        "Accept",
        "Accept-Encoding",
    }
