"""Keeping outputs short: the beginning and the end stay, and the cut says what is gone."""

from __future__ import annotations

from collections import deque

__all__ = ["HeadTail", "clip"]


def clip(text: str, limit: int) -> str:
    """
    Cut a text in the middle.

    Args:
        text: The text.
        limit: How many characters of it may stay.

    >>> clip("0123456789", 4)
    '01\\n[... 6 characters cut ...]\\n89'
    """
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    tail = limit - head
    gone = len(text) - limit
    return f"{text[:head]}\n[... {gone} characters cut ...]\n{text[len(text) - tail :]}"


class HeadTail:
    """
    Collects bytes of any number in bounded memory: the first ones and the last ones.

    Args:
        limit: How many bytes to keep, half of them from the end.

    >>> kept = HeadTail(4)
    >>> for block in (b"012", b"345", b"6789"):
    ...     kept.add(block)
    >>> kept.text()
    '01\\n[... 6 bytes cut ...]\\n89'
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(2, limit)
        self.total = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, block: bytes) -> None:
        """Take the next bytes."""
        self.total += len(block)
        room = (self.limit - self.limit // 2) - len(self._head)
        if room > 0:
            self._head += block[:room]
            block = block[room:]
        if not block:
            return
        self._tail.append(block)
        self._tail_size += len(block)
        # Whole blocks go from the front as long as enough is left without them.
        while self._tail_size - len(self._tail[0]) >= self.limit // 2:
            self._tail_size -= len(self._tail.popleft())

    def text(self) -> str:
        """Return what was kept, with a mark where bytes are gone; bad bytes are replaced."""
        tail = b"".join(self._tail)
        if self.total <= self.limit:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head, tail = _whole(bytes(self._head), tail[-(self.limit // 2) :])
        gone = self.total - len(head) - len(tail)
        mark = f"\n[... {gone} bytes cut ...]\n"
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


def _whole(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """Take the halves of a cut character off, so that the cut itself makes no bad bytes."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 != 0x80:  # where a character begins
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            head = head[:-back] if length > back else head
            break
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return head, tail[start:]
