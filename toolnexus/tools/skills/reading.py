"""Making a skill of one ``SKILL.md`` or of data, or saying why not."""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path
from typing import Any

from toolnexus.tools.regular_files import open_regular, read_up_to
from toolnexus.tools.skills import frontmatter
from toolnexus.tools.skills.model import Skill, SkillDef, SkillSkip

__all__ = ["from_data", "from_file", "normal_tool_name"]

#: The largest ``SKILL.md`` in bytes. All of it goes to the model when the skill is loaded.
MAX_BYTES = 1_048_576
#: The longest name, and the longest description that the catalogue shows, in characters.
MAX_NAME = 64
MAX_DESCRIPTION = 1024

_SPEC_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TOOL = re.compile(r"[A-Za-z0-9_.*:/-]+(\([^()]*\))?")
_SEPARATOR = re.compile(r"[\s,]+")


class _SkipError(Exception):
    """A skill cannot be loaded."""

    def __init__(self, reason: str, detail: str = "", line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.line = reason, detail, line


def from_file(path: Path) -> Skill | SkillSkip:
    """
    Return the skill of a ``SKILL.md``, or why it cannot be loaded.

    Raises:
        MissingExtraError: PyYAML is not installed.
    """
    try:
        folder = os.path.realpath(path.parent)
        text = _text(_bytes(path, folder))
        return _skill(text, path, folder)
    except _SkipError as skip:
        return SkillSkip(str(path), skip.reason, skip.detail, skip.line)
    except frontmatter.FrontMatterError as error:
        return SkillSkip(str(path), "malformed-frontmatter", error.detail, error.line)


def from_data(definition: SkillDef) -> Skill | SkillSkip:
    """Return the skill of a definition, or why it cannot be loaded."""
    base = definition.base or f"skill://{definition.name}/"
    try:
        name = _name(definition.name)
        description, warnings = _description(definition.description)
        allowed = None if definition.allowed_tools is None else _allowed(list(definition.allowed_tools))
    except _SkipError as skip:
        return SkillSkip(base, skip.reason, skip.detail)
    return Skill(
        name,
        description,
        definition.content,
        base=base,
        resources=definition.resources,
        allowed_tools=None if allowed is None else allowed[0],
        warnings=(*warnings, *(allowed[1] if allowed else ())),
    )


def normal_tool_name(name: str) -> str:
    """
    Return the form in which tool names of skills and of toolkits are compared.

    Skills are written for many programs, which spell the same tool ``Read`` or ``read``, and a tool
    of an MCP server ``mcp__server__tool`` or ``server_tool``.

    >>> normal_tool_name("mcp__github__get_issue"), normal_tool_name("WebFetch")
    ('github_get_issue', 'webfetch')
    """
    folded = name.casefold()
    if folded.startswith("mcp__"):
        folded = folded[len("mcp__") :]
        server, _, tool = folded.partition("__")
        folded = f"{server}_{tool}" if tool else server
    return folded


def _bytes(path: Path, folder: str) -> bytes:
    """Return the bytes of a file that lies in its folder and is not too large."""
    real = os.path.realpath(path)
    if os.path.dirname(real) != folder and not real.startswith(folder + os.sep):
        raise _SkipError("unreadable", "it is a link that leads out of its folder")
    try:
        fd = open_regular(real, shown=str(path))
        try:
            data = read_up_to(fd, MAX_BYTES + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise _SkipError("unreadable", error.strerror or type(error).__name__) from error
    if len(data) > MAX_BYTES:
        raise _SkipError("too-large", f"it is larger than {MAX_BYTES} bytes")
    return data


def _text(data: bytes) -> str:
    """Return the text with plain line ends and without a byte-order mark."""
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _SkipError("unreadable", f"it is not UTF-8 text (byte {error.start})", line) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _skill(text: str, path: Path, folder: str) -> Skill:
    parts = frontmatter.split(text)
    if parts is None:
        raise _SkipError("missing-name", "there is no front matter", 1)
    matter, body, first_line = parts
    values = frontmatter.parse(matter, first_line)
    name = _name(values.get("name"))
    description, warnings = _description(values.get("description"))
    allowed, notes = _restriction(values)
    return Skill(
        name,
        description,
        body,
        location=str(path),
        folder=folder,
        base=Path(folder).as_uri(),
        allowed_tools=allowed,
        license=_scalar(values.get("license")),
        compatibility=_scalar(values.get("compatibility")),
        metadata=_metadata(values.get("metadata")),
        warnings=(*_name_warnings(name, path.parent.name), *warnings, *notes),
    )


def _name(value: Any) -> str:
    """Return a usable name; it is shown inside tags, so what could end one is refused."""
    if value is None or not str(value).strip():
        raise _SkipError("missing-name", "the front matter has no name")
    if not isinstance(value, str):
        raise _SkipError("invalid-name", "the name is not a text")
    name = value.strip()
    if len(name) > MAX_NAME or not name.isprintable() or any(c in name for c in '<>"&'):
        raise _SkipError(
            "invalid-name", f'a name has at most {MAX_NAME} printable characters and none of <>"&'
        )
    return name


def _name_warnings(name: str, folder: str) -> tuple[str, ...]:
    warnings = []
    if not _SPEC_NAME.fullmatch(name):
        warnings.append("the name should have only a-z, 0-9 and single hyphens")
    if name != folder:
        warnings.append(f"the name should be that of its folder, {folder!r}")
    return tuple(warnings)


def _description(value: Any) -> tuple[str | None, tuple[str, ...]]:
    """Return the description on one line, so that it cannot pose as other lines of the catalogue."""
    line = " ".join(value.split()) if isinstance(value, str) else ""
    if not line:
        return None, ("without a description it is not in the catalogue",)
    if len(line) > MAX_DESCRIPTION:
        return line[: MAX_DESCRIPTION - 1] + "…", (
            f"the description has more than {MAX_DESCRIPTION} characters",
        )
    return line, ()


def _scalar(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(item, str)}


def _restriction(values: dict[str, Any]) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """Return the tools that the skill restricts itself to, or None; misspelt keys count, too."""
    keys = [key for key in values if re.sub(r"[\s_-]", "", key).casefold() == "allowedtools"]
    if not keys:
        return None, ()
    if len(keys) > 1:
        raise _SkipError("malformed-allowed-tools", f"it is there more than once: {', '.join(keys)}")
    value = values[keys[0]]
    if isinstance(value, str):
        if not value.strip(" \t\n,"):
            raise _SkipError(
                "malformed-allowed-tools", "it is empty; [] allows no tool, no key at all allows any"
            )
        value = _split(value)
    return _allowed(value)


def _split(text: str) -> list[str]:
    """Split at spaces and commas, but not inside parentheses."""
    shielded = re.sub(r"\([^()]*\)", lambda m: _SEPARATOR.sub("\0", m[0]), text)
    return [word.replace("\0", " ") for word in _SEPARATOR.split(shielded) if word]


def _allowed(entries: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of a list of tools, and remarks about entries that allow nothing."""
    if not isinstance(entries, list):
        raise _SkipError("malformed-allowed-tools", "it is neither a text nor a list of names")
    names, notes = set(), []
    for entry in entries:
        if not isinstance(entry, str) or not _TOOL.fullmatch(entry.strip()):
            raise _SkipError("malformed-allowed-tools", f"{str(entry)[:60]!r} is not the name of a tool")
        entry = entry.strip()
        if entry.endswith(")"):
            notes.append(f"{entry} allows nothing: restrictions on a tool's arguments are not supported")
        else:
            names.add(entry)
    return frozenset(names), tuple(notes)
