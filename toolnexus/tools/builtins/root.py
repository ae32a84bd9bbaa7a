"""
Confinement of paths: where a path of the model's leads, and getting there without being led astray.

A path is resolved first, with its links and ``..``, and must then lie in the root. It is opened
afterwards part by part from the root on, following no link at all: what was swapped for a link
between the check and the open is an error, not a way out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.regular_files import check_regular, open_regular

__all__ = ["PREFIX", "Place", "Root", "identity", "naming"]

#: What the names of our own temporary files begin with.
PREFIX = ".toolnexus-"

#: Whether the system can open a name in an open directory. Without it a path is checked and then used.
BY_FD = os.open in os.supports_dir_fd and os.scandir in os.supports_fd

_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_PASS = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
_LIST = _DIRECTORY | os.O_RDONLY
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

#: What tells whether a file is still the same: device, inode, time of its last change, size.
Identity = tuple[int, int, int, int]


def identity(info: os.stat_result) -> Identity:
    """Return what tells a file from another and from an older state of itself."""
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


@contextlib.contextmanager
def naming(given: str) -> Iterator[None]:
    """Let the errors of a block name the path as it was given, not the parts we took it to."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), given) from error


@attrs.frozen
class Place:
    """
    A name in an open directory.

    Args:
        fd: The directory, or None where the name is a whole path.
        name: The name, or the whole path.
        real: The whole real path.
        given: The path as the model gave it.
    """

    fd: int | None
    name: str
    real: str
    given: str

    def look(self) -> os.stat_result | None:
        """Return what is there, links not followed, or None for nothing."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self) -> int:
        """
        Open the regular file that is there for reading.

        Raises:
            OSError: There is none.
        """
        return open_regular(self.name, dir_fd=self.fd, shown=self.given)

    def beside(self, name: str) -> Place:
        """Return the place of another name in the same directory."""
        base = os.path.dirname(self.real)
        joined = os.path.join(base, name)
        return Place(self.fd, joined if self.fd is None else name, joined, name)

    def remove(self) -> None:
        """Remove the file; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.fd)

    def rename_to(self, other: Place) -> None:
        """Move the file to another name of the same directory, over what is there."""
        os.replace(self.name, other.name, src_dir_fd=self.fd, dst_dir_fd=other.fd)

    def create(self, data: bytes, like: os.stat_result | None) -> None:
        """
        Write a new file, down to the disk.

        Args:
            data: What it holds.
            like: The file whose permissions and owner it gets, or None for those of a new file.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | getattr(os, "O_BINARY", 0)
        fd = os.open(self.name, flags, 0o666, dir_fd=self.fd)
        with open(fd, "wb") as file:
            if like is not None and hasattr(os, "fchmod"):
                with contextlib.suppress(OSError):  # only the administrator may give files away
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(fd)

    def replace(self, data: bytes, old: os.stat_result | None) -> None:
        """
        Write the file whole or not at all.

        Args:
            data: What it is to hold.
            old: What `look` returned before; the file must still be that.

        Raises:
            ToolFailure: The file has changed since.
            OSError: It cannot be written.
        """
        if old is not None:
            self.check_writable(old)
        temporary = self.beside(f"{PREFIX}{secrets.token_hex(8)}.tmp")
        try:
            temporary.create(data, old)
            self.check_unchanged(old)
            temporary.rename_to(self)
        except BaseException:
            temporary.remove()
            raise

    def check_writable(self, info: os.stat_result) -> None:
        """Raise unless the file is a regular one that may be written; a rename alone would not ask."""
        check_regular(info, self.given)
        if not os.access(self.name, os.W_OK, dir_fd=self.fd):
            raise PermissionError(errno.EACCES, "Permission denied", self.given)

    def check_unchanged(self, old: os.stat_result | None) -> None:
        """Raise if somebody else has written the file since it was looked at."""
        now = self.look()
        if (None if now is None else identity(now)) != (None if old is None else identity(old)):
            raise ToolFailure(f"{self.given} was changed by somebody else meanwhile; read it again")


@attrs.frozen
class Root:
    """
    Where the paths of the model begin.

    Args:
        path: The real path of the folder.
        confined: Whether paths must stay in it.
    """

    path: str
    confined: bool

    @classmethod
    def of(cls, root: str | os.PathLike[str] | None) -> Root:
        """
        Return the root of an option: a folder that confines, or None for the current one, which does not.

        Raises:
            ConfigurationError: There is no such folder.
        """
        if root is None:
            return cls(os.path.realpath(os.getcwd()), confined=False)
        path = os.path.realpath(os.path.expanduser(root))
        if not os.path.isdir(path):
            raise ConfigurationError(f"root is not a folder: {os.fspath(root)!r}")
        return cls(path, confined=True)

    def resolve(self, given: str) -> str:
        """
        Return the real path that a path leads to.

        Raises:
            ToolFailure: It leads out of the root, or is no path.
        """
        if "\0" in given:
            raise ToolFailure("a path cannot hold a null character")
        real = os.path.realpath(os.path.join(self.path, given))
        if self.confined and not self.holds(real):
            raise ToolFailure(f"path is outside the root: {given}")
        return real

    def holds(self, real: str) -> bool:
        """Whether a real path lies in the root, confined or not."""
        return Path(real).is_relative_to(self.path)

    @contextlib.contextmanager
    def place(self, given: str, *, create: bool = False) -> Iterator[Place]:
        """
        Open the folder that a path lies in.

        Args:
            given: The path.
            create: Whether to make the folders that are missing.

        Raises:
            ToolFailure: It leads out of the root.
            OSError: Its folder is not there or cannot be opened.
        """
        real = self.resolve(given)
        folder, name = os.path.split(real)
        if real == self.path or not name:
            folder, name = real, os.curdir
        with naming(given):
            if not BY_FD:
                if create:
                    os.makedirs(folder, exist_ok=True)
                yield Place(None, real, real, given)
                return
            fd = self._descend(folder, _PASS, create=create)
            try:
                yield Place(fd, name, real, given)
            finally:
                os.close(fd)

    def open_folder(self, given: str) -> int:
        """
        Open a folder for listing.

        Raises:
            ToolFailure: It leads out of the root.
            OSError: It is not there or not a folder.
        """
        real = self.resolve(given)
        with naming(given):
            return self._descend(real, _LIST)

    def _descend(self, folder: str, flags: int, *, create: bool = False) -> int:
        """Open a real folder, from the root on where there is one, without following a link."""
        if not self.confined:
            if create:
                os.makedirs(folder, exist_ok=True)
            return os.open(folder, flags)
        parts = Path(folder).relative_to(self.path).parts
        fd = os.open(self.path, _PASS if parts else flags)
        for i, part in enumerate(parts):
            last = i + 1 == len(parts)
            try:
                inner = open_child(fd, part, flags if last else _PASS, create=create)
            finally:
                os.close(fd)
            fd = inner
        return fd


def open_child(fd: int, name: str, flags: int = _LIST, *, create: bool = False) -> int:
    """Open a folder in an open folder, for listing by default; a link is refused."""
    flags |= _NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=fd)
    return os.open(name, flags, dir_fd=fd)
