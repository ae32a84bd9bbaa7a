"""Reading a patch, and finding where its hunks belong in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.texts import TextFile

__all__ = ["Hunk", "Section", "apply_hunks", "parse_patch"]

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File: (.*\S)\s*")
_MOVE = re.compile(r"\*\*\* Move to: (.*\S)\s*")
_END_OF_FILE = "*** End of File"
_NUMBERS = re.compile(r"@@ -(\d+)")


@attrs.define
class Hunk:
    """
    One place of a file that changes.

    Args:
        anchor: A line that stands above it, or an empty text.
        line: The line that it is said to be at, from 1, or None.
        old: The lines that are there.
        new: The lines that are to be there.
        kept: How many lines at the end of both are context.
        at_end: Whether it must be at the end of the file.
    """

    anchor: str = ""
    line: int | None = None
    old: list[str] = attrs.field(factory=list)
    new: list[str] = attrs.field(factory=list)
    kept: int = 0
    at_end: bool = False

    def add(self, line: str) -> None:
        """Take a line of the patch."""
        sign, rest = line[:1], line[1:]
        if sign == "-":
            self.old.append(rest)
            self.kept = 0
        elif sign == "+":
            self.new.append(rest)
            self.kept = 0
        else:  # a line without a sign is context, as it stands
            rest = rest if sign == " " else line
            self.old.append(rest)
            self.new.append(rest)
            self.kept += 1

    def without_trailing_blanks(self) -> Iterator[Hunk]:
        """Yield the hunk, and shorter ones without the blank lines that stand at its end in the patch."""
        hunk = self
        yield hunk
        while hunk.kept and not hunk.old[-1].strip():
            hunk = attrs.evolve(hunk, old=hunk.old[:-1], new=hunk.new[:-1], kept=hunk.kept - 1)
            yield hunk


@attrs.define
class Section:
    """
    What a patch says about one file.

    Args:
        kind: "Add", "Update" or "Delete".
        path: The file.
        move_to: Its new path, or None.
        lines: The lines of a file to add, as they stand in the patch.
        hunks: The changes of a file to update.
    """

    kind: str
    path: str
    move_to: str | None = None
    lines: list[str] = attrs.field(factory=list)
    hunks: list[Hunk] = attrs.field(factory=list)

    def add(self, line: str) -> None:
        """
        Take a line of the patch.

        Raises:
            ToolFailure: It does not belong here.
        """
        if self.kind == "Add":
            self.lines.append(line)
        elif self.kind == "Update":
            self._add_to_hunk(line)
        elif line.strip():
            raise ToolFailure(f"unexpected line: {line}")

    @property
    def content(self) -> str:
        """What a file to add is to hold; blank lines before the next section are no part of it."""
        lines = list(self.lines)
        while lines and not lines[-1].strip():
            lines.pop()
        return "".join(f"{line.removeprefix('+')}\n" for line in lines)

    def _add_to_hunk(self, line: str) -> None:
        move = _MOVE.fullmatch(line)
        if move and not self.hunks and self.move_to is None:
            self.move_to = move[1]
        elif line.startswith("@@"):
            numbers = _NUMBERS.match(line)
            anchor = "" if numbers else line.removeprefix("@@").removesuffix("@@").strip()
            self.hunks.append(Hunk(anchor, int(numbers[1][:9]) if numbers else None))
        elif line.rstrip() == _END_OF_FILE:
            if self.hunks:
                self.hunks[-1].at_end = True
        elif not line.startswith("\\ No newline"):  # the remark of a diff tool
            if not self.hunks:
                self.hunks.append(Hunk())
            self.hunks[-1].add(line)


def parse_patch(text: str) -> list[Section]:
    """
    Return the sections of a patch.

    Raises:
        ToolFailure: It does not follow the grammar.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    plain = [line.strip() for line in lines]
    if _BEGIN not in plain:
        raise ToolFailure(f"missing '{_BEGIN}'")
    begin = plain.index(_BEGIN)
    if _END not in plain[begin:]:
        raise ToolFailure(f"missing '{_END}'")
    end = len(plain) - 1 - plain[::-1].index(_END)
    sections: list[Section] = []
    for line in lines[begin + 1 : end]:
        header = _HEADER.fullmatch(line)
        if header:
            sections.append(Section(header[1], header[2]))
        elif sections:
            sections[-1].add(line)
        elif line.strip():
            raise ToolFailure(f"unexpected line: {line}")
    return sections


def apply_hunks(file: TextFile, hunks: list[Hunk]) -> TextFile:
    """
    Return a file with hunks applied, in order; its line ends stay.

    Raises:
        ToolFailure: One does not match.
    """
    pairs = [
        (line.removesuffix("\r"), "\r\n" if line.endswith("\r") else "\n") for line in file.body.split("\n")
    ]
    ended = pairs[-1][0] == ""
    if ended:
        pairs.pop()
    cursor = 0
    for hunk in hunks:
        cursor = _apply(pairs, hunk, cursor, file.line_end)
    body = "".join(line + end for line, end in pairs)
    if pairs and not ended:
        body = body[: -len(pairs[-1][1])]
    return file.with_body(body)


def _apply(pairs: list[tuple[str, str]], hunk: Hunk, cursor: int, line_end: str) -> int:
    """Apply one hunk in place and return the line after it."""
    lines = [line for line, _ in pairs]
    for tried in hunk.without_trailing_blanks():
        at = _find(lines, tried, cursor)
        if at is not None:
            break
    else:
        raise ToolFailure("hunk does not match file contents")
    until = at + len(tried.old)
    # The lines around a change keep the line end that each of them has.
    before = _common(tried.old, tried.new)
    after = min(tried.kept, len(tried.old) - before, len(tried.new) - before)
    fresh = tried.new[before : len(tried.new) - after]
    pairs[at + before : until - after] = [(line, line_end) for line in fresh]
    return at + len(tried.new)


def _common(old: list[str], new: list[str]) -> int:
    """Return how many lines two lists begin with in common."""
    count = 0
    while count < min(len(old), len(new)) and old[count] == new[count]:
        count += 1
    return count


def _find(lines: list[str], hunk: Hunk, cursor: int) -> int | None:
    """Return the line that a hunk begins at, or None where it is nowhere."""
    anchor = _find_anchor(lines, hunk.anchor, cursor)
    if not hunk.old:
        wanted = hunk.line if hunk.line is not None else anchor
        return len(lines) if wanted is None or hunk.at_end else min(wanted, len(lines))
    places = _places(lines, hunk.old)
    if hunk.at_end:
        places = [p for p in places if p + len(hunk.old) == len(lines)] or places
    if not places:
        return None
    if hunk.line is not None:
        said = hunk.line - 1
        return min(places, key=lambda p: abs(p - said))
    start = cursor if anchor is None else anchor
    return next((p for p in places if p >= start), places[0])


def _find_anchor(lines: list[str], anchor: str, cursor: int) -> int | None:
    """Return the line after the one that an anchor names, or None where it names none."""
    if not anchor:
        return None
    for start in (cursor, 0):
        for i in range(start, len(lines)):
            if lines[i].strip() == anchor:
                return i + 1
    return None


def _places(lines: list[str], wanted: list[str]) -> list[int]:
    """Return every line where some lines stand one after the other."""
    first, count = wanted[0], len(wanted)
    last = len(lines) - count
    return [i for i in range(last + 1) if lines[i] == first and lines[i : i + count] == wanted]
