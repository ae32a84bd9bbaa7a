"""Putting the tools of several sources into one table: names, duplicates, what is offered."""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterable
from fnmatch import fnmatchcase
from typing import Literal

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Tool
from toolnexus.tools.names import valid_name

__all__ = ["Duplicates", "NameBook", "Rules", "assemble"]

Duplicates = Literal["error", "first", "last"]

_log = logging.getLogger("toolnexus.tools")

_ORIGINS = {
    "native": "a function of yours",
    "http": "an HTTP tool of yours",
    "openapi": "an OpenAPI document",
    "builtin": "the built-in tools",
    "skill": "the skills",
    "mcp": "an MCP server",
}
_WILD = re.compile(r"[*?\[]")


def _patterns(value: Iterable[str] | None, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    patterns = () if isinstance(value, (str, bytes)) else tuple(value)
    if isinstance(value, (str, bytes)) or not all(isinstance(item, str) for item in patterns):
        raise ConfigurationError(f"{name} must be a list of names or patterns")
    return patterns


@attrs.frozen
class Rules:
    """
    Which tools are offered, and what to do with a name that comes twice.

    Args:
        allow: Names or patterns of those that may be offered; None for all.
        deny: Names or patterns of those that may not.
        on_duplicate: "error", "first" or "last".
    """

    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    on_duplicate: Duplicates

    @classmethod
    def of(cls, allow: Iterable[str] | None, deny: Iterable[str] | None, on_duplicate: Duplicates) -> Rules:
        """Check what a user gave."""
        if on_duplicate not in ("error", "first", "last"):
            raise ConfigurationError(f'on_duplicate must be "error", "first" or "last", not {on_duplicate!r}')
        return cls(_patterns(allow, "allow"), _patterns(deny, "deny") or (), on_duplicate)

    def offer(self, name: str, tool: Tool) -> bool:
        """Tell whether a tool of that final name is offered."""
        if _any_fits(self.deny, name, tool):
            return False
        return self.allow is None or _any_fits(self.allow, name, tool)

    def warn(self, tools: Iterable[tuple[str, Tool]]) -> None:
        """Log the names in the rules that name nothing: they may be misspelt."""
        known = {name for final, tool in tools for name in (final, f"{tool.source}:{final}")}
        for rule, patterns in (("allow", self.allow or ()), ("deny", self.deny)):
            for pattern in patterns:
                if pattern not in known and not _WILD.search(pattern):
                    _log.warning("the toolkit's %s names %r, and there is no such tool", rule, pattern)


def _any_fits(patterns: tuple[str, ...], name: str, tool: Tool) -> bool:
    full = f"{tool.source}:{name}"
    return any(fnmatchcase(name, pattern) or fnmatchcase(full, pattern) for pattern in patterns)


class NameBook:
    """Gives the tools of a toolkit their final names; a name that had to be changed stays what it is."""

    def __init__(self) -> None:
        self._changed: dict[str, str] = {}

    def named(self, tools: list[Tool]) -> list[tuple[str, Tool]]:
        """Return each tool with its name. Those that are valid as they are come before all others."""
        taken = {tool.name for tool in tools if valid_name(tool.name) == tool.name}
        changed = [tool.name for tool in tools if tool.name not in taken]
        taken.update(self._changed.values())
        for name in changed:
            if name not in self._changed:
                self._changed[name] = valid_name(name, taken)
                taken.add(self._changed[name])
        return [(self._changed.get(tool.name, tool.name), tool) for tool in tools]


def assemble(
    named: Iterable[tuple[str, Tool]], rules: Rules, judged: Container[str] | None = None
) -> dict[str, Tool]:
    """
    Return the tools that are offered, by their final names and in order.

    Args:
        named: The tools with their names, in order.
        rules: What is offered, and what becomes of duplicates.
        judged: The names for which a duplicate may be an error; None for all. For others the last one
            stays, and a warning is logged: what a server lists later shall not end a run.

    Raises:
        ConfigurationError: A name comes twice.
    """
    table: dict[str, Tool] = {}
    for name, tool in named:
        if not rules.offer(name, tool):
            continue
        if name in table and not _replaces(name, table[name], tool, rules, judged):
            continue
        table.pop(name, None)
        table[name] = tool if tool.name == name else attrs.evolve(tool, name=name)
    return table


def _replaces(name: str, first: Tool, second: Tool, rules: Rules, judged: Container[str] | None) -> bool:
    """Tell whether the second tool of a name takes the first one's place."""
    if rules.on_duplicate != "error":
        return rules.on_duplicate == "last"
    what = f"two tools are named {name!r}: one from {_origin(first)}, one from {_origin(second)}"
    if judged is None or name in judged:
        raise ConfigurationError(f'{what} (rename one, or say on_duplicate="first" or "last")')
    _log.warning("%s; the second is used", what)
    return True


def _origin(tool: Tool) -> str:
    server = tool.metadata.get("server")
    if tool.source == "mcp" and server:
        return f"the MCP server {server!r}"
    return _ORIGINS.get(tool.source, f"the source {tool.source!r}")
