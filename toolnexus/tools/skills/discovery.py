"""Finding ``SKILL.md`` files, and the files that lie beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from toolnexus.tools.skills.model import SkillSkip

__all__ = ["find", "sibling_files"]

FILE_NAME = "SKILL.md"
_IGNORED = frozenset({".git", "node_modules"})
#: How many folders one look goes into at most.
MAX_FOLDERS = 20_000


def find(top: Path) -> Iterator[Path | SkillSkip]:
    """
    Find the skills below a folder, in the order of their names.

    Links to folders are followed, each real folder is entered once.

    Yields:
        The paths of ``SKILL.md`` files, and what could not be looked into.
    """
    if not os.path.isdir(top):
        yield SkillSkip(str(top), "missing-folder", "there is no such folder")
        return
    seen: set[str] = set()
    stack = [top]
    while stack:
        folder = stack.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        if len(seen) >= MAX_FOLDERS:
            yield SkillSkip(str(folder), "unreadable", f"not looked into: more than {MAX_FOLDERS} folders")
            return
        seen.add(real)
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            yield SkillSkip(str(folder), "unreadable", error.strerror or type(error).__name__)
            continue
        if FILE_NAME in names:
            yield folder / FILE_NAME
        inner = (folder / name for name in reversed(names) if name not in _IGNORED)
        stack.extend(path for path in inner if os.path.isdir(path))


def sibling_files(folder: str, limit: int) -> list[str]:
    """
    Return the first files of a skill's folder in the order of their names, ``SKILL.md`` left out.

    Links are not followed: what they lead to may lie anywhere.

    Args:
        folder: The real path of the folder.
        limit: How many at most.
    """
    files: list[str] = []
    stack = [(folder, 0)]
    while stack and len(files) < limit:
        path, depth = stack.pop()
        if depth == -1:
            files.append(path)
            continue
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    stack.append((entry.path, depth + 1))
            elif entry.is_file(follow_symlinks=False) and entry.name != FILE_NAME and _plain(entry.name):
                stack.append((entry.path, -1))
    return files


def _plain(name: str) -> bool:
    """Whether a name can be shown between tags without being taken for more than a name."""
    return name.isprintable() and "<" not in name and ">" not in name
