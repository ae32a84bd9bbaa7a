"""Walking through a folder in order, without following links, past what is ignored."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

import attrs

from toolnexus.cancel import CancelScope
from toolnexus.tools.builtins.ignores import Ignores
from toolnexus.tools.builtins.root import BY_FD, Root, open_child
from toolnexus.tools.regular_files import open_regular

__all__ = ["Found", "Walk"]

#: How many files and folders one walk looks at, and how deep it goes.
MAX_ENTRIES = 500_000
MAX_DEPTH = 100


@attrs.frozen
class Found:
    """
    A file on the way. It can be opened until the walk goes on.

    Args:
        path: Its path from the start of the walk, with slashes.
    """

    path: str
    _fd: int | None
    _name: str

    def open(self) -> int:
        """Open the file for reading; raises OSError where it is no regular file any more."""
        return open_regular(self._name, dir_fd=self._fd, shown=self.path)


@attrs.define
class Walk:
    """
    Walks through a folder, or comes to a single file.

    The files come in the order of their paths, so that a walk that is ended early has seen the
    first ones.

    Args:
        root: Where paths lie.
        given: The folder or file to begin at.
        scope: Its end ends the walk.
        entries: How many files and folders were looked at.
        cut: Whether the walk ended before it had seen all.
    """

    root: Root
    given: str
    scope: CancelScope
    entries: int = 0
    cut: bool = False

    def files(self) -> Generator[Found, None, None]:
        """
        Yield the files.

        Raises:
            ToolFailure: The start lies outside the root.
            OSError: The start is not there.
        """
        with self.root.place(self.given) as place:
            info = place.look()
            if info is not None and stat.S_ISREG(info.st_mode):
                yield Found("", place.fd, place.name)
                return
        real = self.root.resolve(self.given)
        above = Path(real).relative_to(self.root.path).parts if self.root.holds(real) else ()
        fd = self.root.open_folder(self.given) if BY_FD else None
        try:
            if fd is None:
                os.listdir(real)  # raises where it is no folder
            ignores = self._above(above)
            yield from self._folder(fd, real, [*above], [], ignores)
        finally:
            if fd is not None:
                os.close(fd)

    def _above(self, parts: tuple[str, ...]) -> Ignores:
        """Return the rules of the folders above the start, unless they ignore the start itself."""
        ignores = Ignores()
        folder = self.root.path
        for depth, part in enumerate(parts):
            ignores = ignores.entered(depth, None, folder)
            if ignores.ignores(list(parts[: depth + 1]), folder=True):
                return Ignores()  # it was asked for by name
            folder = os.path.join(folder, part)
        return ignores

    def _folder(
        self, fd: int | None, path: str, above: list[str], inner: list[str], ignores: Ignores
    ) -> Iterator[Found]:
        """Yield the files below one folder; ``above`` leads to it from the root, ``inner`` from the start."""
        self.scope.check()
        ignores = ignores.entered(len(above), fd, path)
        for name, is_folder in self._entries(fd, path):
            if self.entries > MAX_ENTRIES:
                return
            if ignores.ignores([*above, name], is_folder):
                continue
            if not is_folder:
                whole = name if fd is not None else os.path.join(path, name)
                yield Found("/".join([*inner, name]), fd, whole)
            elif len(inner) >= MAX_DEPTH:
                self.cut = True
            else:
                yield from self._below(fd, path, name, above, inner, ignores)

    def _below(
        self, fd: int | None, path: str, name: str, above: list[str], inner: list[str], ignores: Ignores
    ) -> Iterator[Found]:
        joined = os.path.join(path, name)
        try:
            child = None if fd is None else open_child(fd, name)
        except OSError:
            return  # not ours to read, or gone
        try:
            yield from self._folder(child, joined, [*above, name], [*inner, name], ignores)
        finally:
            if child is not None:
                os.close(child)

    def _entries(self, fd: int | None, path: str) -> list[tuple[str, bool]]:
        """Return the files and folders of one folder, in the order that their whole paths have."""
        found = []
        try:
            with os.scandir(path if fd is None else fd) as entries:
                for entry in entries:
                    self.entries += 1
                    if self.entries > MAX_ENTRIES:
                        self.cut = True
                        break
                    if entry.is_dir(follow_symlinks=False):
                        found.append((entry.name, True))
                    elif entry.is_file(follow_symlinks=False):
                        found.append((entry.name, False))
        except OSError:
            return []
        return sorted(found, key=lambda item: item[0] + "/" if item[1] else item[0])
