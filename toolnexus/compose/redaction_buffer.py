"""Redacting a text that comes in pieces: nothing goes out before it is settled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from toolnexus.compose.redaction_rules import Finder, Rules

__all__ = ["Buffer", "JsonBuffer", "redact_string"]

#: How many characters may be held back before it is counted how often they are searched anew.
_FREE = 512

#: How often a character may be searched anew on average.
_PASSES = 64


class Buffer:
    """
    A text in the making.

    What has come is kept from the first place on where a value may begin that more text could still
    complete, lengthen or undo. All before it is settled and goes out.

    Args:
        rules: The rules.
        dress: What is done to each replacement before it goes out.
    """

    __slots__ = (
        "_covered",
        "_dress",
        "_fed",
        "_later",
        "_later_size",
        "_next",
        "_pos",
        "_rules",
        "_text",
        "_work",
    )

    def __init__(self, rules: Rules, dress: Callable[[str], str] | None = None) -> None:
        self._rules = rules
        self._dress = dress
        self._text = ""  # what is held back, behind a little of what went out, for patterns that look back
        self._pos = 0  # where in it the held-back part begins
        self._covered = 0  # up to where something stands for it in what went out
        self._next: dict[Finder, int] = {}  # where a finder goes on, if not at the same place
        self._later: list[str] = []  # what came and was not looked at yet
        self._later_size = 0
        self._fed = 0
        self._work = 0

    @property
    def held(self) -> str:
        """What came and has not gone out."""
        return self._text[max(self._pos, self._covered) :] + "".join(self._later)

    def feed(self, piece: str) -> str:
        """Take a piece; returns what is settled now."""
        rules = self._rules
        pos = self._pos
        held = len(self._text) - pos
        if rules.unsettled is None or held > _FREE:
            piece = self._postponed(piece, held)
            if not piece:
                return ""
        self._fed += len(piece)
        text = self._text + piece
        stop = _settled(rules, text, pos)
        if stop <= pos:
            self._text = text
            return ""
        if rules.hints is not None and rules.hints.search(text, pos) is None:
            out = text[self._covered : stop]
            self._covered = max(self._covered, stop)
        else:
            out, stop = self._replaced(text, stop)
        self._keep(text, stop)
        return out

    def _postponed(self, piece: str, held: int) -> str:
        """
        Return all that is to be looked at now, or nothing as long as it can wait.

        A value of a megabyte in a million pieces would take the square of that if all of it was searched
        with each. So what was searched often enough is searched again when it has grown by an eighth.
        """
        self._later.append(piece)
        self._later_size += len(piece)
        tired = self._work > _PASSES * self._fed and self._later_size * 8 < held
        if self._rules.unsettled is None or tired:
            return ""
        self._work += held
        pieces, self._later, self._later_size = self._later, [], 0
        return "".join(pieces)

    def flush(self, *, goes_on: bool = False) -> str:
        """
        Take the text as ended; returns what was held back.

        Args:
            goes_on: Whether it may go on nevertheless. What is in the middle then counts as part of a value,
                but what has gone out is out.
        """
        text = self._text + "".join(self._later)
        self._later, self._later_size = [], 0
        before = dict(self._next)
        out, stop = self._replaced(text, len(text))
        self._text = text
        if goes_on:
            self._next = before
        else:
            self._keep(text, stop)
        return out

    def feed_all(self, text: str) -> str:
        """Take a whole text at once."""
        return self._replaced(text, len(text))[0]

    def _replaced(self, text: str, stop: int) -> tuple[str, int]:
        """Replace the values that begin before a place; returns the text, and the place it really goes to."""
        found = []
        for rank, finder in enumerate(self._rules.finders):
            start = max(self._pos, self._next.get(finder, 0))
            for candidate, begin, end in finder.values(text, start, stop):
                found.append((begin, -end, rank, candidate, finder))
        # A value behind the place, in a candidate before it, is for the next time, with its candidate.
        stop = min([stop, *(candidate for begin, _, _, candidate, _ in found if begin >= stop)])
        out = []
        covered = self._covered
        for begin, end, _, _, finder in sorted(found, key=lambda item: item[:3]):
            end = -end
            if begin >= stop:
                continue
            self._next[finder] = max(end, self._next.get(finder, 0))
            if end <= covered:
                continue
            replacement = finder.replace(text[begin:end])
            out.append(text[covered:begin])
            out.append(replacement if self._dress is None else self._dress(replacement))
            covered = end
        out.append(text[covered:stop])
        self._covered = max(covered, stop)
        return "".join(out), stop

    def _keep(self, text: str, stop: int) -> None:
        """Keep the text from a place on, and what patterns see before it."""
        cut = max(0, stop - self._rules.behind)
        self._text = text[cut:]
        self._pos = stop - cut
        self._covered -= cut
        if self._next:
            self._next = {finder: at - cut for finder, at in self._next.items() if at > stop}


def _settled(rules: Rules, text: str, pos: int) -> int:
    """Return up to where a text is settled, whatever comes."""
    # A value without blanks that could still grow is in the last word. Those with blanks begin anywhere.
    word = max(pos, text.rfind(" ") + 1, text.rfind("\n") + 1)
    match = rules.unsettled.search(text, word)  # type: ignore[union-attr] # without it nothing ever is
    stop = len(text) if match is None else match.start()
    if rules.wide is not None and (rules.wide_hints is None or rules.wide_hints.search(text, pos)):
        match = rules.wide.search(text, pos)
        stop = stop if match is None else min(stop, match.start())
    return min(stop, len(text) - rules.longest) if rules.longest else stop


# JSON text: what an escape stands for is what matters, but it must be an escape again when it goes out.
# The lone surrogates from _MARK on stand for those characters that JSON must escape.

_MARK = 0xDC00
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?:u[0-9a-fA-F]{4}|[^u])", re.DOTALL
)
_PART = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}


def _marked(char: str) -> str:
    return chr(_MARK + ord(char)) if char in '"\\' or char < " " else char


def _meaning(match: re.Match[str]) -> str:
    escape = match.group()
    if escape[1] != "u":
        return _marked(_SHORT[escape[1]]) if escape[1] in _SHORT else escape
    if len(escape) > 6:
        return str(json.loads(f'"{escape}"'))
    code = int(escape[2:], 16)
    if _MARK <= code < _MARK + 0x80:
        return "\ufffd"
    return _marked(chr(code))


def _decoded(text: str) -> str:
    """Return JSON text with its escapes resolved."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_meaning, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < _MARK or code >= _MARK + 0x80:
        return f"\\u{code:04x}"
    return json.dumps(chr(code - _MARK))[1:-1]


def _encoded(text: str) -> str:
    """Turn back `_decoded`."""
    return _SURROGATE.sub(_escaped, text)


def _dress(replacement: str) -> str:
    return "".join(map(_marked, replacement))


class JsonBuffer:
    """
    The arguments of a tool call in the making: JSON text.

    Args:
        rules: The rules.
    """

    def __init__(self, rules: Rules) -> None:
        self._buffer = Buffer(rules, _dress)
        self._part = ""

    def feed(self, piece: str) -> str:
        """Take a piece; returns what is settled now."""
        text = self._part + piece
        part = _PART.search(text)
        # An odd number of backslashes before it, or it is none.
        while part is not None and (part.start() - len(text[: part.start()].rstrip("\\"))) % 2:
            part = _PART.search(text, part.start() + 1)
        end = len(text) if part is None else part.start()
        self._part = text[end:]
        return _encoded(self._buffer.feed(_decoded(text[:end])))

    def flush(self) -> str:
        """Take the text as ended; returns what was held back."""
        part, self._part = self._part, ""
        return _encoded(self._buffer.feed(_decoded(part)) + self._buffer.flush())


def redact_string(text: str, rules: Rules, *, json_text: bool = False) -> str:
    """
    Redact a whole text.

    Args:
        text: The text.
        rules: The rules.
        json_text: Whether it is JSON text, where an escape is the character that it stands for.
    """
    meant = _decoded(text) if json_text else text
    if rules.hints is not None and rules.hints.search(meant) is None:
        return text
    redacted = Buffer(rules, _dress if json_text else None).feed_all(meant)
    if redacted == meant:
        return text
    return _encoded(redacted) if json_text else redacted
