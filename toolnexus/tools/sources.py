"""Making a toolkit's sources of tools from what its user gives; none is imported that is not asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool

if TYPE_CHECKING:
    from toolnexus.suspension import Answer, Request
    from toolnexus.tools.mcp import McpSource
    from toolnexus.tools.skills import SkillDef, SkillSet

__all__ = ["load_builtins", "load_mcp", "load_skills_of"]

FolderLike = str | os.PathLike[str]
FoldersLike = FolderLike | Iterable[FolderLike]
BuiltinsLike = bool | str | Iterable[str] | Iterable[Tool] | Mapping[str, bool]
if TYPE_CHECKING:
    McpLike = FolderLike | Mapping[str, Any] | McpSource
    SkillsLike = Iterable[SkillDef] | SkillSet
    WaitFor = Callable[[Request], Answer | None]


def load_mcp(config: McpLike | None, wait_for: WaitFor | None, timeout: float | None) -> tuple[Any, bool]:
    """Return the MCP source or None, and whether it was made here and so is closed with the toolkit."""
    if config is None:
        return None, False
    from toolnexus.tools.mcp import McpSource

    if not isinstance(config, McpSource):
        return McpSource(config, wait_for=wait_for, timeout=timeout), True
    if wait_for is not None:
        raise ConfigurationError("wait_for belongs to the McpSource that was given")
    return config, False


def load_skills_of(
    folders: FoldersLike | None,
    skills: SkillsLike | None,
    chosen: Mapping[str, bool] | Iterable[str] | None,
    sample_limit: int,
) -> SkillSet | None:
    """Return the skills, or None where nobody asked for any."""
    if folders is None and skills is None:
        if chosen:
            raise ConfigurationError("skills_filter is for skills_dir or skills")
        return None
    from toolnexus.tools.skills import SkillSet, load_skills

    if not isinstance(skills, SkillSet):
        return load_skills(folders or (), skills=skills, filter=chosen, sample_limit=sample_limit)
    if folders is not None or chosen or sample_limit:
        raise ConfigurationError("skills_dir, skills_filter and skill_sample_limit belong to the SkillSet")
    return skills


def load_builtins(
    select: BuiltinsLike | None,
    root: FolderLike | None,
    env: Mapping[str, str] | Iterable[str],
    allow_private: bool | Collection[str],
) -> list[Tool]:
    """Return the built-in tools that are asked for."""
    ready = None if isinstance(select, (str, Mapping)) else _ready(select)
    if not select or ready is not None:
        if root is not None or env or allow_private:
            raise ConfigurationError(
                "root, env and allow_private are for the built-in tools that builtins names"
                + (", and belong to the builtin_tools(...) that made these" if ready else "")
            )
        return ready or []
    from toolnexus.tools.builtins import builtin_tools

    return builtin_tools(select, root=root, env=env, allow_private=allow_private)  # type: ignore[arg-type]


def _ready(select: Any) -> list[Tool] | None:
    """Return built-in tools that were made already, or None for a list of names."""
    if not isinstance(select, (list, tuple)) or not any(isinstance(item, Tool) for item in select):
        return None
    if not all(isinstance(item, Tool) for item in select):
        raise ConfigurationError("builtins is a list of names, or one of tools, not both")
    return list(select)
