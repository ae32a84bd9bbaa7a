"""Which files a search passes over: what ``.gitignore`` files name, and what no search wants to see."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from typing import Any

import attrs

from toolnexus._extras import need
from toolnexus.tools.builtins.root import PREFIX
from toolnexus.tools.regular_files import open_regular, read_up_to

__all__ = ["ALWAYS", "Ignores"]

logger = logging.getLogger("toolnexus.builtins")

#: Folders that are never searched, wherever they are.
ALWAYS = frozenset(
    {
        ".bzr", ".cache", ".git", ".hg", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache",
        ".svn", ".tox", ".venv", "__pycache__", "node_modules", "venv",
    }
)  # fmt: skip
_MAX_BYTES = 262_144
_MAX_LINE = 1000
#: How many stars one part of a rule may have. The time to fail on a name grows with its length to
#: that power, and a folder from anywhere brings its own rules and names.
_MAX_STARS = 3
_warned = False


@attrs.frozen
class Ignores:
    """
    The rules that hold in a folder: those of its own ``.gitignore`` and of those above it.

    Args:
        rules: The depth of each folder that has rules, counted from the top one, and its rules.
    """

    rules: tuple[tuple[int, Any], ...] = ()

    def entered(self, depth: int, fd: int | None, path: str) -> Ignores:
        """
        Return the rules that hold in a folder below.

        Args:
            depth: Its depth, counted from the top one.
            fd: The open folder, or None where the path is to be used.
            path: Its path.
        """
        lines = _lines(fd, path)
        if not lines:
            return self
        spec = _spec(lines)
        return self if spec is None else Ignores(((depth, spec), *self.rules))

    def ignores(self, parts: list[str], folder: bool) -> bool:
        """
        Return whether a file or folder is ignored.

        Args:
            parts: The names on the way to it, from the top folder on.
            folder: Whether it is a folder.
        """
        if folder and parts[-1] in ALWAYS:
            return True
        if parts[-1].startswith(PREFIX):
            return True
        for depth, spec in self.rules:  # the innermost that says anything decides
            path = "/".join(parts[depth:]) + ("/" if folder else "")
            included: bool | None = spec.check_file(path).include
            if included is not None:
                return included
        return False


def _lines(fd: int | None, folder: str) -> list[str]:
    """Return the lines of a folder's ``.gitignore``."""
    name = ".gitignore" if fd is not None else os.path.join(folder, ".gitignore")
    try:
        opened = open_regular(name, dir_fd=fd)
    except OSError:
        return []
    try:
        text = read_up_to(opened, _MAX_BYTES).decode("utf-8", "replace")
    finally:
        os.close(opened)
    return [line for line in text.splitlines() if _sane(line)]


def _sane(line: str) -> bool:
    """Whether a rule is one that somebody may have meant."""
    parts = line.split("/")
    stars = max(part.count("*") for part in parts)
    return len(line) <= _MAX_LINE and stars <= _MAX_STARS and parts.count("**") <= _MAX_STARS


def _spec(lines: list[str]) -> Any:
    """Return the compiled rules; without pathspec there are none, and a warning says so once."""
    global _warned
    if importlib.util.find_spec("pathspec") is None:
        if not _warned:
            _warned = True
            logger.warning('.gitignore files are not honoured: pip install "toolnexus[files]"')
        return None
    git: Any = need("pathspec", "files").GitIgnoreSpec
    try:
        return git.from_lines(lines)
    except ValueError:
        good = []
        for line in lines:  # one bad line does not undo the others
            with contextlib.suppress(ValueError):
                git.from_lines([line])
                good.append(line)
        return git.from_lines(good)
