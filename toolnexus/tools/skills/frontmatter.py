"""
Reading the front matter of a ``SKILL.md``.

Every scalar stays the text that was written: a skill may be called ``yes`` or ``2026-01-01``. What
cannot be read is an error with its line, because a front matter that is half understood may have
lost its restrictions.
"""

from __future__ import annotations

import re
from typing import Any

from toolnexus._extras import need

__all__ = ["FrontMatterError", "parse", "split"]

#: The longest front matter in characters. The format's own fields add up to a few thousand.
MAX_LENGTH = 65_536
#: How many values one may hold once its aliases are expanded.
MAX_VALUES = 10_000

# The keys that hold prose, the only ones whose unquoted colon is forgiven.
_PROSE = re.compile(r"^(name|description|license|compatibility)\s*:\s+(?P<text>[^\s'\"\[{|>&*!%@`#-].*)$")
_COLON = re.compile(r":(\s|$)")


class FrontMatterError(Exception):
    """A front matter cannot be read; ``line`` counts from 1 in the whole file."""

    def __init__(self, detail: str, line: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.line = line


def split(text: str) -> tuple[str, str, int] | None:
    """
    Split a file into its front matter and its body.

    Returns:
        The front matter, the body, and the line that the front matter begins on, from 1; or None
        where there is no front matter at all.

    Raises:
        FrontMatterError: It begins and does not end, or is too long.
    """
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip()), None)
    if start is None or lines[start].rstrip() != "---":
        return None
    for end in range(start + 1, len(lines)):
        if lines[end].rstrip() == "---":
            matter = "\n".join(lines[start + 1 : end])
            if len(matter) > MAX_LENGTH:
                raise FrontMatterError(f"it is longer than {MAX_LENGTH} characters", start + 1)
            return matter, "\n".join(lines[end + 1 :]), start + 2
    raise FrontMatterError("the front matter has no closing ---", start + 1)


def parse(matter: str, first_line: int) -> dict[str, Any]:
    """
    Return the keys and values of a front matter, every scalar as text.

    Args:
        matter: The text between the ``---`` lines.
        first_line: The line of the file that it begins on, for errors.

    Raises:
        FrontMatterError: It is not a YAML mapping, or has a key twice.
        MissingExtraError: PyYAML is not installed.
    """
    try:
        return _load(matter, first_line)
    except FrontMatterError:
        repaired = _quote_prose(matter)
        if repaired is None:
            raise
        try:
            return _load(repaired, first_line)
        except FrontMatterError:
            pass
        raise  # about what was written, not about the repair


def _quote_prose(matter: str) -> str | None:
    """Return the text with its unquoted colons quoted, or None where that cannot be the cause."""
    lines = matter.split("\n")
    changed = False
    for i, line in enumerate(lines):
        match = _PROSE.match(line)
        continued = i + 1 < len(lines) and lines[i + 1][:1] in (" ", "\t")
        if match is None or continued or not _COLON.search(match["text"]):
            continue
        quoted = match["text"].rstrip().replace("'", "''")
        lines[i] = f"{line[: match.start('text')]}'{quoted}'"
        changed = True
    return "\n".join(lines) if changed else None


def _load(matter: str, first_line: int) -> dict[str, Any]:
    """Read the YAML into nodes, and the nodes into plain values."""
    yaml = need("yaml", "skills")
    try:
        node = yaml.compose(matter, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise _error(matter, first_line, error) from error
    except RecursionError as error:
        raise FrontMatterError("it is nested too deeply", first_line) from error
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise FrontMatterError("it is not a mapping of keys to values", first_line)
    try:
        value: dict[str, Any] = _Plain(yaml, first_line).value(node)
    except RecursionError as error:
        raise FrontMatterError("it is nested too deeply", first_line) from error
    return value


def _error(matter: str, first_line: int, error: Any) -> FrontMatterError:
    """Translate PyYAML's error, with the line of the whole file."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return FrontMatterError(str(error.problem), first_line + int(mark.line))
    position = getattr(error, "position", None)
    if isinstance(position, int):  # a character that YAML does not allow
        return FrontMatterError(str(error.reason), first_line + matter.count("\n", 0, position))
    return FrontMatterError(str(error), first_line)


class _Plain:
    """Turns nodes into texts, lists and dicts, and counts them: aliases can make a few lines endless."""

    def __init__(self, yaml: Any, first_line: int) -> None:
        self.yaml = yaml
        self.first_line = first_line
        self.count = 0

    def value(self, node: Any) -> Any:
        """Return the plain value of a node."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise FrontMatterError(f"it has more than {MAX_VALUES} values", self.first_line)
        if isinstance(node, self.yaml.MappingNode):
            return self._mapping(node)
        if isinstance(node, self.yaml.SequenceNode):
            return [self.value(child) for child in node.value]
        return str(node.value)

    def _mapping(self, node: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = self.first_line + int(key_node.start_mark.line)
            key = self.value(key_node)
            if not isinstance(key, str):
                raise FrontMatterError("a key is not a text", line)
            if key in result or key == "<<":
                # Which of the two was meant is a guess, and a merge could bring a restriction.
                raise FrontMatterError(
                    f"the key {key!r} is {'a merge' if key == '<<' else 'there twice'}", line
                )
            result[key] = self.value(value_node)
        return result
