"""The tools of one run: looked up by name, declared to the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from toolnexus.cancel import check_seconds
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.results import Message
from toolnexus.tools.base import Tool
from toolnexus.wording import describe_error

__all__ = ["ToolSet", "as_tools", "check_tool"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolSet:
    """
    The tools that a run may use.

    Args:
        tools: A toolkit, or tools and functions; None for none.

    Raises:
        ConfigurationError: Something is no tool, a name is not valid, or two tools share one.
    """

    def __init__(self, tools: Any = None) -> None:
        self.source = tools
        self._revision = getattr(tools, "revision", None)
        self._tools = self._table()

    def _table(self) -> dict[str, Tool]:
        table: dict[str, Tool] = {}
        for tool in as_tools(self.source):
            check_tool(tool)
            if not _NAME.fullmatch(tool.name):
                raise ConfigurationError(
                    f"the tool name {tool.name!r} is not valid: letters, digits, _ and -, at most 64"
                )
            if tool.name in table:
                raise ConfigurationError(f"two tools are named {tool.name!r}")
            table[tool.name] = tool
        return table

    def refresh(self) -> bool:
        """Take in what changed in a toolkit since the last look; tells whether there was anything."""
        revision = getattr(self.source, "revision", None)
        if revision == self._revision:
            return False
        self._revision = revision
        self._tools = self._table()
        return True

    def active_skills(self, messages: list[Message]) -> set[str]:
        """Return the skills that the model has loaded in a transcript; each may restrict the tools."""
        active = getattr(self.source, "active_skills", None)
        return active(messages) if callable(active) else set()

    def denial(self, active: set[str], name: str) -> str | None:
        """Return why the toolkit does not let a tool run now, or None."""
        denial = getattr(self.source, "denial", None)
        return denial(active, name) if callable(denial) else None

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    @property
    def all(self) -> list[Tool]:
        """The tools in order."""
        return list(self._tools.values())

    @property
    def names(self) -> list[str]:
        """Their names in order."""
        return list(self._tools)

    def prompt(self) -> str | None:
        """Return what the toolkit adds to the system prompt: its skills, where they can be loaded."""
        prompt = getattr(self.source, "skills_prompt", None)
        if not callable(prompt) or not any(tool.source == "skill" for tool in self._tools.values()):
            return None
        return prompt() or None


def check_tool(tool: Tool) -> None:
    """
    Refuse a tool whose call could only fail.

    Raises:
        ConfigurationError: Something about it is of a wrong type.
    """
    if not isinstance(tool.name, str):
        raise ConfigurationError(f"the tool name {tool.name!r} is not valid: it must be a text")
    what = f"of the tool {tool.name!r}"
    if not callable(tool.execute):
        raise ConfigurationError(f"execute {what} must be a function, not {tool.execute!r}")
    if not isinstance(tool.input_schema, dict):
        raise ConfigurationError(f"input_schema {what} must be a dict, not {tool.input_schema!r}")
    function = getattr(tool, "function", None)
    if function is not None:
        from toolnexus.tools.functions import unbound

        if unbound(function):
            raise ConfigurationError(
                f"{function.__qualname__} is a method without its object; give an object's"
            )
    if tool.timeout is not None:
        check_seconds(f"timeout {what}", tool.timeout)
    if tool.max_output is not None and not (isinstance(tool.max_output, int) and tool.max_output >= 0):
        raise ConfigurationError(f"max_output {what} must be a number of characters, not {tool.max_output!r}")


def as_tools(tools: Any) -> list[Tool]:
    """
    Return tools for whatever a user gives: a toolkit or another source, functions, tools, lists of them.

    Raises:
        ConfigurationError: Something is no tool.
        SchemaError: No schema can be made for a function's parameter.
    """
    if tools is None:
        return []
    from toolnexus.tools.functions import as_tool

    found: list[Tool] = []
    for item in _listed(tools):
        if isinstance(item, Tool):
            found.append(item)
        elif isinstance(item, (list, tuple)):  # what `collect` and `openapi_tools` return
            found += as_tools(item)
        else:
            found.append(as_tool(item))
    return found


def _listed(tools: Any) -> list[Any]:
    """Return what stands in a source, or the one thing that was given."""
    try:
        listed = getattr(tools, "tools", tools)
        if callable(listed) and not isinstance(listed, Iterable):
            listed = listed() if listed is not tools else [listed]
        if isinstance(listed, (Tool, str, bytes, dict)) or not isinstance(listed, Iterable):
            return [listed]
        return list(listed)
    except ToolnexusError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the tools of {type(tools).__name__} cannot be listed: {describe_error(error)}"
        ) from error
