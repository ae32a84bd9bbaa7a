"""
Text files as they are: what a file was written in is kept, and bytes that are no text survive.

UTF-8 is read so that bytes which are not UTF-8 come back unchanged; the model sees a replacement
character for each. UTF-16 and UTF-32 are known by their byte-order mark. Nothing is guessed: a file
in another encoding can be read and edited as far as it is ASCII.
"""

from __future__ import annotations

import codecs

import attrs

from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["TextFile", "is_binary", "line_end", "sniff"]

# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: How far into a file a null byte makes it a binary one.
SNIFFED = 8192


def sniff(data: bytes) -> tuple[bytes, str]:
    """Return the byte-order mark and the encoding of a file that begins with some bytes."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return mark, encoding
    return b"", "utf-8"


def is_binary(data: bytes) -> bool:
    """Whether a file that begins with some bytes is no text."""
    return sniff(data)[1] == "utf-8" and b"\0" in data[:SNIFFED]


def line_end(body: str) -> str:
    r"""
    Return the line end of a text: ``\r\n`` where every line has it, else ``\n``.

    >>> line_end("a\r\nb\r\n"), line_end("a\r\nb\n"), line_end("a")
    ('\r\n', '\n', '\n')
    """
    ends = body.count("\n")
    return "\r\n" if ends and body.count("\r\n") == ends else "\n"


@attrs.frozen
class TextFile:
    """
    The text of a file and what it takes to write it back.

    Args:
        body: The text, without the byte-order mark; bytes that are not UTF-8 are lone surrogates.
        encoding: What it is written in.
        mark: Its byte-order mark.
    """

    body: str = ""
    encoding: str = "utf-8"
    mark: bytes = b""

    @classmethod
    def decode(cls, data: bytes, shown: str) -> TextFile:
        """
        Return the text of a file.

        Args:
            data: All its bytes.
            shown: The path that errors name.

        Raises:
            ToolFailure: It is a binary file.
        """
        if is_binary(data):
            raise ToolFailure(f"{shown} is a binary file ({len(data)} bytes)")
        mark, encoding = sniff(data)
        try:
            body = data[len(mark) :].decode(encoding, "surrogateescape" if encoding == "utf-8" else "strict")
        except UnicodeDecodeError as error:
            raise ToolFailure(f"{shown} is not the {encoding} text that its first bytes announce") from error
        return cls(body, encoding, mark)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        handler = "surrogateescape" if self.encoding == "utf-8" else "strict"
        return self.mark + self.body.encode(self.encoding, handler)

    def with_body(self, body: str) -> TextFile:
        """Return the file with another text."""
        return attrs.evolve(self, body=body)

    @property
    def line_end(self) -> str:
        """The line end that all of its lines have, or a plain newline."""
        return line_end(self.body)

    @property
    def damaged(self) -> bool:
        """Whether it holds bytes that are not UTF-8."""
        return any("\udc80" <= c <= "\udcff" for c in self.body) if not self.body.isascii() else False

    def check_insert(self, added: str, shown: str) -> None:
        """
        Raise unless a text can be put into the file.

        Raises:
            ToolFailure: It has characters that would not fit the encoding, which we do not know.
        """
        if any("\ud800" <= c <= "\udfff" for c in added):
            raise ToolFailure("the new text holds half a surrogate pair")
        if not added.isascii() and self.damaged:
            raise ToolFailure(f"{shown} is not UTF-8; only ASCII text can be put into it")


def shown(body: str) -> str:
    """Return a text as the model may see it: bytes that are no text become replacement characters."""
    if body.isascii():
        return body
    return body.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
