"""
Changing several files all or not at all, also when the process dies in the middle.

All new contents are written to temporary files first, and the old files get a second name. Then a
journal says what is about to happen, the files are swapped, and the journal says that it is done. A
journal that is found later, without anybody holding its lock, was left by a process that died: what
it began is taken back. Files that somebody changed after the death are left as they are.

A process that may be killed between two swaps shows a mixture to others until then; no file system
call swaps many files at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.root import PREFIX, Identity, Place, Root, identity
from toolnexus.tools.regular_files import open_regular, read_up_to

if TYPE_CHECKING:
    from toolnexus.tools.base import Context
    from toolnexus.tools.builtins.base import Options

__all__ = ["Change", "commit", "recover", "recover_quietly"]

logger = logging.getLogger("toolnexus.builtins")

JOURNAL = f"{PREFIX}patch.json"
_FRESH = f"{JOURNAL}.tmp"
_MAX_JOURNAL = 16 * 1024 * 1024
_LOCK_WAIT = 30.0


@attrs.frozen
class Change:
    """
    What is to become of one file.

    Args:
        path: Its real path.
        data: What it is to hold, or None to delete it.
        old: What it was when it was read, or None where it is not to exist yet.
        like: The file whose permissions a new file gets, or None.
    """

    path: str
    data: bytes | None
    old: os.stat_result | None
    like: os.stat_result | None = None


@attrs.define
class _Step:
    """One file of a journal; ``new`` and ``old`` tell our file and the one before from others."""

    path: str
    new: Identity | None = None
    old: Identity | None = None

    @classmethod
    def load(cls, data: dict[str, Any]) -> _Step:
        return cls(str(data["path"]), _loaded(data["new"]), _loaded(data["old"]))


def _loaded(value: list[int] | None) -> Identity | None:
    if value is None:
        return None
    device, inode, changed, size = (int(v) for v in value)
    return device, inode, changed, size


def commit(root: Root, changes: list[Change], ctx: Context) -> None:
    """
    Make all changes, or none.

    Args:
        root: Where the paths must lie.
        changes: At most one for each path.
        ctx: Its end, while another process is at work in the same root, ends the wait.

    Raises:
        ToolFailure: A file was changed by somebody else meanwhile.
        OSError: Something cannot be written; nothing is changed then.
    """
    home = _home(root)
    with _locked(home, ctx):
        _take_back(root, home)
        _Commit(root, home, changes).run()


def recover(root: Root) -> bool:
    """
    Take back what a process that died left half done, if there is such a thing.

    Returns:
        Whether there was.
    """
    home = _home(root)
    if not any(os.path.lexists(os.path.join(home, name)) for name in (JOURNAL, _FRESH)):
        return False
    with _locked(home, None) as mine:
        return mine and _take_back(root, home)


def recover_quietly(options: Options) -> None:
    """Take back what was left half done, where the tools may write; a failure is logged."""
    if not options.patching:
        return
    try:
        recover(options.root)
    except (OSError, ToolFailure) as error:
        logger.warning("a patch that was cut off cannot be taken back: %s", error)


class _Commit:
    """One commit, from the journal's first state to its removal."""

    def __init__(self, root: Root, home: str, changes: list[Change]) -> None:
        self.root = root
        self.home = home
        self.changes = changes
        self.id = secrets.token_hex(8)
        self.steps = [_Step(_shown(root, change.path)) for change in changes]
        self.folders = _missing_folders(root, [c.path for c in changes if c.data is not None])

    def run(self) -> None:
        self._write("stage")
        try:
            for i in range(len(self.changes)):
                self._stage(i)
            self._write("apply")
            for i in range(len(self.changes)):
                self._apply(i)
            self._write("done")
        except BaseException:
            _take_back(self.root, self.home)
            raise
        _take_back(self.root, self.home)

    def _write(self, phase: str) -> None:
        steps = [attrs.asdict(step) for step in self.steps]
        _write_journal(self.home, {"id": self.id, "phase": phase, "folders": self.folders, "steps": steps})

    def _stage(self, i: int) -> None:
        """Write the new file and give the old one a second name."""
        change, step = self.changes[i], self.steps[i]
        with self.root.place(step.path, create=change.data is not None) as place:
            place.check_unchanged(change.old)
            if change.old is not None:
                place.check_writable(change.old)
                step.old = identity(change.old)
                _second_name(place, _backup(place, f"{self.id}-{i}"))
            if change.data is not None:
                new = _temporary(place, f"{self.id}-{i}")
                new.create(change.data, change.old or change.like)
                info = new.look()
                step.new = None if info is None else identity(info)

    def _apply(self, i: int) -> None:
        change = self.changes[i]
        with self.root.place(self.steps[i].path) as place:
            place.check_unchanged(change.old)
            if change.data is None:
                place.remove()
            else:
                _temporary(place, f"{self.id}-{i}").rename_to(place)


def _temporary(place: Place, tag: str) -> Place:
    return place.beside(f"{PREFIX}{tag}.new")


def _backup(place: Place, tag: str) -> Place:
    return place.beside(f"{PREFIX}{tag}.old")


def _second_name(place: Place, backup: Place) -> None:
    """Give a file a second name, or, where the file system has no such thing, make a copy."""
    try:
        os.link(place.name, backup.name, src_dir_fd=place.fd, dst_dir_fd=backup.fd, follow_symlinks=False)
    except (OSError, NotImplementedError):
        fd = place.open()
        try:
            info = os.fstat(fd)
            backup.create(read_up_to(fd, info.st_size), info)
            os.utime(backup.name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=backup.fd)
        finally:
            os.close(fd)


def _missing_folders(root: Root, paths: list[str]) -> list[str]:
    """Return the folders that are yet to be made, the outer ones first."""
    missing: dict[str, None] = {}
    for path in paths:
        chain = []
        folder = os.path.dirname(path)
        while folder not in missing and not os.path.lexists(folder):
            chain.append(folder)
            folder = os.path.dirname(folder)
        missing.update(dict.fromkeys(reversed(chain)))
    return [_shown(root, folder) for folder in missing]


def _shown(root: Root, path: str) -> str:
    """Return a path as the journal holds it: relative in a root, which may be mounted elsewhere tomorrow."""
    return os.path.relpath(path, root.path) if root.confined else path


# -- taking back -------------------------------------------------------------------------------


def _take_back(root: Root, home: str) -> bool:
    """Bring a journal to its end: undo what is half done, clear away what is left over."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(home, _FRESH))
    journal = _read_journal(home)
    if journal is None:
        return False
    id_, phase, steps, folders = journal
    for i in reversed(range(len(steps))):
        try:
            _clear(root, steps[i], f"{id_}-{i}", undo=phase == "apply")
        except (FileNotFoundError, NotADirectoryError):
            pass  # its folder is gone, and with it all that there was to clear
        except ToolFailure as error:  # a journal of somebody else's making
            logger.warning("the journal of a patch is not followed: %s", error)
    if phase != "done":
        for folder in reversed(folders):
            with contextlib.suppress(OSError, ToolFailure), root.place(folder) as place:
                os.rmdir(place.name, dir_fd=place.fd)
    os.unlink(os.path.join(home, JOURNAL))
    return True


def _clear(root: Root, step: _Step, tag: str, *, undo: bool) -> None:
    """Remove what a step left behind, after taking it back where that is wanted."""
    with root.place(step.path) as place:
        if undo:
            _undo(place, step, _backup(place, tag))
        _temporary(place, tag).remove()
        _backup(place, tag).remove()


def _undo(place: Place, step: _Step, backup: Place) -> None:
    """Put the old file back, unless what is there is neither ours nor the old one."""
    info = place.look()
    now = None if info is None else identity(info)
    if now is not None and now != step.new:
        if now != step.old:
            logger.warning("%s was changed after a patch was cut off; left as it is", place.real)
    elif step.old is None:
        if now is not None:
            place.remove()
    elif backup.look() is not None:
        backup.rename_to(place)


# -- the journal -------------------------------------------------------------------------------


def _home(root: Root) -> str:
    """
    Return the folder of the journal.

    In a root it is the root itself. Without one it is a folder that only this user can write to, for
    the journal of a folder that happens to be the current one could have been put there by anybody.
    """
    if root.confined:
        return root.path
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state"))
    user = os.getuid() if hasattr(os, "getuid") else 0
    for folder in (base / "toolnexus", Path(tempfile.gettempdir()) / f"toolnexus-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = os.lstat(folder)
        except OSError:
            continue
        private = os.name != "posix" or (info.st_uid == user and not info.st_mode & 0o022)
        if stat.S_ISDIR(info.st_mode) and private:
            return str(folder)
    raise ToolFailure("there is no folder of this user's own for the journal")


@contextlib.contextmanager
def _locked(home: str, ctx: Context | None) -> Iterator[bool]:
    """
    Hold the lock of a journal; with a context, wait for it.

    Yields:
        Whether it is held. Where the system has no such locks, it counts as held.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _lock(fcntl, fd, ctx)
    finally:
        # The end of the process would let go of it, too. Closing alone does not: a child that was forked
        # meanwhile has the same open folder.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(fcntl: Any, fd: int, ctx: Context | None) -> bool:
    end = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if ctx is None:
                return False
            if time.monotonic() > end:
                raise ToolFailure("another patch is being applied here; try again later") from None
            ctx.sleep(0.02)
        except OSError:  # a file system without locks
            return True


def _write_journal(home: str, journal: dict[str, Any]) -> None:
    """Put the journal in place, whole and down to the disk."""
    fresh = os.path.join(home, _FRESH)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump(journal, file)
            file.flush()
            os.fsync(fd)
        os.replace(fresh, os.path.join(home, JOURNAL))
    except BaseException:
        os.unlink(fresh)
        raise


def _read_journal(home: str) -> tuple[str, str, list[_Step], list[str]] | None:
    """Return the journal that is there; one that makes no sense is not ours, and is passed over."""
    try:
        fd = open_regular(os.path.join(home, JOURNAL))
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s is not a journal: %s", os.path.join(home, JOURNAL), error.strerror)
        return None
    try:
        data = json.loads(read_up_to(fd, _MAX_JOURNAL).decode("utf-8", "surrogateescape"))
        id_, phase = str(data["id"]), str(data["phase"])
        steps = [_Step.load(step) for step in data["steps"]]
        folders = [str(folder) for folder in data["folders"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        logger.warning("%s is not a journal: %s", os.path.join(home, JOURNAL), type(error).__name__)
        return None
    finally:
        os.close(fd)
    if not re.fullmatch("[0-9a-f]{16}", id_):
        return None
    return id_, phase, steps, folders
