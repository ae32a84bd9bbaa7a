"""Opening files that may be hostile: only regular ones, and never more of them than asked for."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["open_regular", "read_up_to"]

# Not blocking: the open of a named pipe waits for a writer otherwise, for ever.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def check_regular(info: os.stat_result, shown: str) -> None:
    """
    Raise unless a file is a regular one.

    Raises:
        IsADirectoryError: It is a directory.
        OSError: It is a link, a device, a pipe or a socket.
    """
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", shown)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", shown)


def open_regular(name: str, *, dir_fd: int | None = None, shown: str | None = None) -> int:
    """
    Open a regular file for reading.

    Args:
        name: Its path, or its name in the directory of ``dir_fd``. A symbolic link is refused.
        dir_fd: An open directory, or None.
        shown: The path that errors name.

    Returns:
        The file descriptor, which the caller closes.

    Raises:
        OSError: There is no such file, or it is not a regular one.
    """
    shown = name if shown is None else shown
    # Looked at before the open, which does things to some devices, and after it, for it may have changed.
    check_regular(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), shown)
    fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    try:
        check_regular(os.fstat(fd), shown)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_up_to(fd: int, limit: int) -> bytes:
    """Return at most ``limit`` bytes from where an open file stands."""
    blocks = []
    while limit > 0:
        block = os.read(fd, min(limit, 1 << 20))
        if not block:
            break
        blocks.append(block)
        limit -= len(block)
    return b"".join(blocks)
