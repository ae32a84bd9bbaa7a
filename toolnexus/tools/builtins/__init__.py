"""
The built-in tools: commands, files, searching, the web, and asking a person.

None of them is there unless it is asked for. What each can do, and what confines it, is on the
page "Built-in tools" of the documentation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool
from toolnexus.tools.builtins.addresses import Policy, Resolver
from toolnexus.tools.builtins.base import Options
from toolnexus.tools.builtins.files import file_tools
from toolnexus.tools.builtins.notes import question_tools, todo_tools
from toolnexus.tools.builtins.patch import patch_tools
from toolnexus.tools.builtins.root import Root
from toolnexus.tools.builtins.search import search_tools
from toolnexus.tools.builtins.shell import shell_tools
from toolnexus.tools.builtins.web import web_tools

__all__ = ["BUILTIN_NAMES", "READ_ONLY", "Select", "builtin_tools"]

#: All built-ins, in the order in which a toolkit has them.
BUILTIN_NAMES = (
    "bash",
    "read",
    "write",
    "edit",
    "grep",
    "glob",
    "webfetch",
    "question",
    "apply_patch",
    "todowrite",
)
#: What ``"read-only"`` stands for: the tools that change nothing and reach nothing outside.
READ_ONLY = ("read", "grep", "glob")

#: Which built-ins are wanted.
Select = bool | str | Iterable[str] | Mapping[str, bool] | None

_GROUPS: tuple[Callable[[Options], list[Tool]], ...] = (
    shell_tools,
    file_tools,
    search_tools,
    web_tools,
    question_tools,
    patch_tools,
    todo_tools,
)

# What a command needs to find programs, its user's files and the language. Others may be secrets.
_BASE_ENV = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM")
_WINDOWS_ENV = ("SYSTEMROOT", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE")


def builtin_tools(
    select: Select = None,
    *,
    root: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | Iterable[str] = (),
    shell: str | None = None,
    allow_private: bool | Collection[str] = False,
    resolver: Resolver | None = None,
    ca_bundle: str | None = None,
    max_output: int = 30_000,
    max_page: int = 2_000_000,
) -> list[Tool]:
    """
    Make the built-in tools that are asked for.

    Args:
        select: True for all, ``"read-only"`` for `READ_ONLY`, a list of names, or a map in which the
            names that are True are wanted. None and False give none.
        root: The folder that the file tools cannot leave and in which commands start. Without one,
            paths are relative to the current folder and lead anywhere.
        env: Variables that commands see beside PATH, HOME, the locale and the like: a map of names
            to values, or the names of those to hand on.
        shell: The program that runs commands with ``-c``; bash by default, or sh.
        allow_private: Whether `webfetch` may connect to addresses that are not public: True, or the
            networks that it may, such as ``["10.1.0.0/16"]``.
        resolver: A function of a host name and a port that returns addresses, in place of the system's.
        ca_bundle: A file of certificates that `webfetch` trusts in place of certifi's.
        max_output: The longest output in characters; more is cut, and the cut says so.
        max_page: How many bytes of a page `webfetch` reads, decompressed.

    Returns:
        The tools, in the order of `BUILTIN_NAMES`.

    Raises:
        ConfigurationError: A name is not that of a built-in, or an option is wrong.

    >>> [tool.name for tool in builtin_tools("read-only", root=".")]
    ['read', 'grep', 'glob']
    """
    chosen = _chosen(select)
    options = Options(
        root=Root.of(root),
        max_output=max_output,
        patching="apply_patch" in chosen,
        env=_environment(env),
        shell=shell or shutil.which("bash") or "/bin/sh",
        policy=Policy.of(allow_private, resolver),
        ca_bundle=ca_bundle,
        max_page=max_page,
    )
    made = {tool.name: tool for group in _GROUPS for tool in group(options)}
    return [made[name] for name in BUILTIN_NAMES if name in chosen]


def _chosen(select: Select) -> set[str]:
    """Return the names that are asked for."""
    if select is None or select is False:
        return set()
    if select is True:
        return set(BUILTIN_NAMES)
    if isinstance(select, str):
        if select != "read-only":
            raise ConfigurationError(
                f'builtins is True, "read-only", a list of names or a map, not {select!r}'
            )
        return set(READ_ONLY)
    names = list(select)
    unknown = sorted({str(name) for name in names if name not in BUILTIN_NAMES})
    if unknown:
        raise ConfigurationError(
            f"no built-in is called {', '.join(unknown)}; there are {', '.join(BUILTIN_NAMES)}"
        )
    if isinstance(select, Mapping):
        return {name for name in names if select[name] is True}
    return set(names)


def _environment(env: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return the variables that commands see."""
    if isinstance(env, str):
        raise ConfigurationError("env is a map, or a list of names")
    base = {
        name: value
        for name, value in os.environ.items()
        if name in _BASE_ENV or name.startswith("LC_") or (os.name == "nt" and name.upper() in _WINDOWS_ENV)
    }
    if isinstance(env, Mapping):
        return {**base, **env}
    return {**base, **{name: os.environ[name] for name in env if name in os.environ}}
