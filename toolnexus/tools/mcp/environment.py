"""What a server's process may see of our environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["child_environment"]

POSIX_BASE = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
WINDOWS_BASE = (
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "PATH",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)


def child_environment(
    extra: Mapping[str, str], *, platform: str = sys.platform, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """
    Return the variables for a server's process: a safe base of ours, and what its configuration names.

    The base is what programs need to run at all: PATH, HOME, the locale and the like; on Windows
    also what launchers such as ``npx.cmd`` are found by.

    Args:
        extra: The variables that the configuration names; they win.
        platform: As ``sys.platform`` has it.
        environ: Our own variables; those of the process by default.

    >>> child_environment({"A": "1"}, platform="linux", environ={"PATH": "/bin", "TOKEN": "secret"})
    {'PATH': '/bin', 'A': '1'}
    """
    own = os.environ if environ is None else environ
    windows = platform == "win32"
    base = {
        name: value for name, value in own.items() if _is_base(name, windows) and not value.startswith("()")
    }
    if windows:  # names differ only in case there: the configured one replaces ours
        named = {name.upper() for name in extra}
        base = {name: value for name, value in base.items() if name.upper() not in named}
    return {**base, **extra}


def _is_base(name: str, windows: bool) -> bool:
    """Return whether a variable belongs to the safe base."""
    return name.upper() in WINDOWS_BASE if windows else name in POSIX_BASE or name.startswith("LC_")
