"""Chunked bodies: whatever the split, what comes out is what was put in, and nothing malformed passes."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.transport.chunked import ChunkedResponse

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

chunks = st.lists(st.binary(min_size=1, max_size=60) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n"]))


def encoded(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    return HEAD + body + b"0\r\n" + trailer + b"\r\n"


def pieces(wire: bytes, sizes: list[int]) -> Iterator[bytes]:
    position = 0
    for size in sizes:
        yield wire[position : position + size]
        position += size
    yield wire[position:]


def received(sent: Iterator[bytes]) -> list[bytes]:
    """Send pieces over a socket, then close it, and return what each read gave."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for piece in sent:
                theirs.sendall(piece)

    with ours:
        response = ChunkedResponse(ours)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            response.begin()
            reads = list(iter(lambda: response.read1(65536), b""))
            assert response.isclosed()
            return reads
        finally:
            sender.join()
            response.close()


@given(
    parts=chunks,
    sizes=st.lists(st.integers(1, 40), max_size=30),
    extension=st.sampled_from([b"", b";a=b", b" ", b' ; a="b"']),
    trailer=st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC: 0\r\n"]),
)
def test_what_was_put_in_comes_out(
    parts: list[bytes], sizes: list[int], extension: bytes, trailer: bytes
) -> None:
    """For every split of every body, with extensions and trailers, that end with the body."""
    wire = encoded(parts, extension, trailer)
    assert b"".join(received(pieces(wire, sizes))) == b"".join(parts)


def test_chunks_that_are_there_come_at_once() -> None:
    """A hundred chunks that have arrived are one read, which is what it is for."""
    reads = received(iter([encoded([b"data: x\n\n"] * 100)]))
    assert len(reads) <= 2


@given(parts=chunks, cut=st.integers(1, 400))
def test_a_body_that_breaks_off_is_an_error(parts: list[bytes], cut: int) -> None:
    """Wherever it is cut, what came before is read, and then an error says so."""
    wire = encoded(parts)
    cut = min(cut, len(wire) - len(HEAD) - 1)
    with pytest.raises(http.client.IncompleteRead):
        received(iter([wire[:-cut]]))


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"1_0\r\nabc\r\n0\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"ffffffffffffffffff\r\nabc",
        b"a" * 70_000,
        b"0\r\n" + b"A: " + b"b" * 70_000,
    ],
)
def test_a_malformed_chunk_is_an_error(body: bytes) -> None:
    """A size that is none, or none for too long, is refused."""
    with pytest.raises(http.client.HTTPException):
        received(iter([HEAD + body]))


def test_what_comes_before_a_malformed_chunk_is_not_lost() -> None:
    """It is read first; then comes the error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(HEAD + b"3\r\nabc\r\nno number\r\n")
        response = ChunkedResponse(ours)
        response.begin()
        assert response.read1(65536) == b"abc"
        with pytest.raises(http.client.HTTPException, match="malformed chunk"):
            response.read1(65536)
        response.close()


def test_other_bodies_are_left_to_http_client() -> None:
    """A body with a length is read as ever."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        response = ChunkedResponse(ours)
        response.begin()
        assert response.read1(100) == b"abc"
        response.close()
