"""
Reading a chunked body many chunks at a time.

`http.client` returns one chunk a call of ``read1``, each with several calls of its own. A model's
answer has a chunk a word: read like that, reading costs more than all else that is done to it.
"""

from __future__ import annotations

import http.client
import io
import re
from collections.abc import Callable
from typing import Any

__all__ = ["ChunkedResponse"]

# The line before a chunk, with the end of the chunk before it.
_SIZE = re.compile(rb"(?:\r\n)?([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")

# The last such line, with the trailers and the empty line that end the body.
_END = re.compile(rb"(?:\r\n)?0+[ \t]*(?:;[^\n]*)?\r?\n(?:[^\r\n][^\n]*\n)*\r?\n")

#: The most bytes between two chunks, or after the last one.
_MOST_BETWEEN = 64 * 1024


class ChunkedResponse(http.client.HTTPResponse):
    """An answer whose ``read1`` returns all chunks that have arrived."""

    _rest = b""  # what came after the last whole line or chunk
    _left = 0  # how much of the current chunk is still to come
    _malformed = False
    _whole = False
    _emptied = False  # nothing is left in the buffer that the headers were read through

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._receive: Callable[[int], bytes] = sock.recv

    def read1(self, n: int = -1) -> bytes:
        """
        Return what has arrived, waiting only when nothing has; ``b""`` at the end.

        Raises:
            http.client.HTTPException: The chunks are malformed, or end before the body does.
        """
        if not self.chunked:
            return super().read1(n)
        data = b""
        while not data and self.fp is not None:
            if self._whole:
                self.close()  # only now: whoever judges what was read may want to give the connection up
                break
            if self._malformed:
                raise http.client.HTTPException(f"malformed chunk: {self._rest[:40]!r}")
            # A large read empties the buffer and goes around it from then on, and so can we.
            received: bytes = self._receive(n) if self._emptied and n > 0 else self.fp.read1(n)
            self._emptied = self._emptied or n >= io.DEFAULT_BUFFER_SIZE
            if not received:
                raise http.client.IncompleteRead(b"")
            data = self._join(self._rest + received)
        return data

    def _join(self, data: bytes) -> bytes:
        """Return what is in the chunks of received bytes."""
        parts: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._left:
                stop = min(position + self._left, end)
                parts.append(data[position:stop])
                self._left -= stop - position
                position = stop
                continue
            size = _SIZE.match(data, position)
            if size is None:
                self._malformed = b"\n" in data[position + 2 :]
                break
            self._left = int(size[1], 16)
            if self._left == 0:
                self._whole = _END.match(data, position) is not None
                break
            position = size.end()
        self._rest = data[position:]
        self._malformed = self._malformed or len(self._rest) > _MOST_BETWEEN
        return b"".join(parts)
