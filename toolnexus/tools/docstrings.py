"""
Reads the texts of parameters out of docstrings.

Three styles are known: Google's (``Args:``), reStructuredText (``:param x:``) and numpy's (an
underlined ``Parameters``).
"""

from __future__ import annotations

import re

__all__ = ["read_docstring"]

_GOOGLE = re.compile(
    r"(args|arguments|parameters|params|keyword args|keyword arguments|other parameters|attributes):\s*$",
    re.IGNORECASE,
)
_GOOGLE_ENTRY = re.compile(r"\\?(?:\\?\*){0,2}(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(.*)|)$")
_NUMPY = re.compile(r"(parameters|other parameters|attributes)\s*$", re.IGNORECASE)
_NUMPY_ENTRY = re.compile(r"((?:\\?\*){0,2}\w+(?:\s*,\s*(?:\\?\*){0,2}\w+)*)\s*(?::.*)?$")
_FIELD = re.compile(r"[:@](\w+)(?:\s+([^:]*?))?\s*:(?:\s+(.*)|)$")
_PARAM_FIELDS = frozenset(
    ("param", "parameter", "arg", "argument", "key", "keyword", "kwarg", "var", "ivar", "attr")
)

Texts = dict[str, str]


def read_docstring(text: str) -> tuple[str, Texts]:
    """
    Split a docstring into its description and the texts of its parameters.

    Args:
        text: The docstring, with its indentation taken off as ``inspect.getdoc`` does.

    Returns:
        The text before the first section of parameters (all of it where there is none), and a
        text for each parameter that has one. Line breaks within a parameter's text become spaces.

    >>> read_docstring("Add.\\n\\nArgs:\\n    a: The first\\n        number.\\n    b (int): The other.")
    ('Add.', {'a': 'The first number.', 'b': 'The other.'})
    >>> read_docstring("Add.\\n\\n:param int a: The first.")
    ('Add.', {'a': 'The first.'})
    """
    lines = text.splitlines()
    texts: Texts = {}
    first: int | None = None
    at = 0
    while at < len(lines):
        end = _section(lines, at, texts)
        if end is None:
            at += 1
            continue
        if first is None:
            first = at
        at = end
    return "\n".join(lines[:first]).strip(), texts


def _section(lines: list[str], at: int, texts: Texts) -> int | None:
    """Read the section that starts at a line; return where it ends, or None if none does."""
    line = lines[at]
    if line[:1].isspace() or not line:
        return None
    if line[0] in ":@":
        field = _FIELD.match(line)
        if field is not None and field[1].lower() in _PARAM_FIELDS and field[2]:
            return _rest(lines, at, field[2].split()[-1], field[3] or "", texts)
        return None
    if _GOOGLE.match(line):
        return _google(lines, at + 1, texts)
    if _NUMPY.match(line) and _is_rule(lines, at + 1):
        return _numpy(lines, at + 2, texts)
    return None


def _put(texts: Texts, name: str, parts: list[str]) -> None:
    text = " ".join(" ".join(parts).split())
    if text:
        texts.setdefault(name.replace("\\", "").lstrip("*"), text)


def _rest(lines: list[str], at: int, name: str, head: str, texts: Texts) -> int:
    """Read one field and its continuation lines, which are indented."""
    parts = [head]
    at += 1
    while at < len(lines) and lines[at][:1].isspace():
        parts.append(lines[at])
        at += 1
    _put(texts, name, parts)
    return at


def _google(lines: list[str], at: int, texts: Texts) -> int:
    """Read the indented entries below ``Args:``."""
    name, depth = "", 0
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        body = line.strip()
        if body and not line[0].isspace():
            break
        indent = len(line) - len(line.lstrip())
        entry = _GOOGLE_ENTRY.match(body) if body and (not depth or indent <= depth) else None
        if entry is not None:
            _put(texts, name, parts)
            name, parts, depth = entry[1], [entry[2] or ""], indent
        else:
            parts.append(body)
        at += 1
    _put(texts, name, parts)
    return at


def _numpy(lines: list[str], at: int, texts: Texts) -> int:
    """Read the entries below an underlined heading, up to the next one."""
    names: list[str] = []
    parts: list[str] = []
    while at < len(lines) and not (lines[at].strip() and _is_rule(lines, at + 1)):
        line = lines[at]
        entry = _NUMPY_ENTRY.match(line) if line and not line[0].isspace() else None
        if entry is not None:
            for name in names:
                _put(texts, name, parts)
            names, parts = re.split(r"\s*,\s*", entry[1]), []
        else:
            parts.append(line)
        at += 1
    for name in names:
        _put(texts, name, parts)
    return at


def _is_rule(lines: list[str], at: int) -> bool:
    return at < len(lines) and len(lines[at].strip()) >= 3 and not lines[at].strip(" -")
