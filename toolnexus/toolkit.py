"""Every source of tools in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.results import Message
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.names import valid_name

if TYPE_CHECKING:
    from toolnexus.suspension import Answer, Request
    from toolnexus.tools.mcp import McpSource
    from toolnexus.tools.skills import SkillSet

__all__ = ["Toolkit", "create_toolkit"]

Duplicates = Literal["error", "first", "last"]


class Toolkit:
    """
    Gathers tools from functions, HTTP endpoints, MCP servers, skills and the built-in set.

    The order is MCP, skills, built-ins, your own. Your own tools replace built-ins of the same
    name; any other name that comes twice is an error.

    Args:
        tools: Your own: functions, `Tool` objects, what `http_tool` and `openapi_tools` return.
        mcp_config: MCP servers: the path of an ``.mcp.json`` file, a dict, or an `McpSource`.
        skills_dir: Folders with skills.
        skills: Skills as data (`SkillDef`), or a `SkillSet`.
        skills_filter: Which skills to offer: a map of names to True or False.
        builtins: The built-in tools to offer: True, "read-only", names, or a map; none by default.
        root: The folder that the built-in file tools are confined to; by default the current one.
        allow: Only these tools: final names or patterns such as ``"read*"`` or ``"mcp:*"``.
        deny: Not these tools.
        on_duplicate: What to do with a name that comes twice: "error", or keep the "first" or "last".
        wait_for: A function that answers what MCP servers ask a person.

    Raises:
        ConfigurationError: An argument is wrong, or a name comes twice.

    >>> def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> with Toolkit([add]) as toolkit:
    ...     toolkit.execute("add", {"a": 2, "b": 3}).output
    '5'
    """

    def __init__(
        self,
        tools: Iterable[Any] | None = None,
        *,
        mcp_config: str | os.PathLike[str] | Mapping[str, Any] | McpSource | None = None,
        skills_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        skills: Any = None,
        skills_filter: Mapping[str, bool] | None = None,
        builtins: bool | str | Iterable[str] | Mapping[str, bool] | None = None,
        root: str | os.PathLike[str] | None = None,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] | None = None,
        on_duplicate: Duplicates = "error",
        wait_for: Callable[[Request], Answer | None] | None = None,
    ) -> None:
        if on_duplicate not in ("error", "first", "last"):
            raise ConfigurationError(f'on_duplicate must be "error", "first" or "last", not {on_duplicate!r}')
        self._on_duplicate = on_duplicate
        self._allow = None if allow is None else _patterns("allow", allow)
        self._deny = _patterns("deny", deny or ())
        self._skills: SkillSet | None = _load_skills(skills_dir, skills, skills_filter)
        self._builtins = _load_builtins(builtins, root)
        self._own = [_as_tool(item) for item in (tools or ())]
        self._mcp: McpSource | None = _load_mcp(mcp_config, wait_for)
        self._cache: tuple[Any, dict[str, Tool]] | None = None
        self._revision = 0
        try:
            self._table()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Toolkit: {', '.join(self._table()) or 'no tools'}>"

    def __len__(self) -> int:
        return len(self._table())

    def __enter__(self) -> Toolkit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the MCP servers. Safe to call twice."""
        if self._mcp is not None:
            self._mcp.close()

    # -- what is there -----------------------------------------------------------------------

    @property
    def tools(self) -> list[Tool]:
        """The tools in order, under their final names."""
        return list(self._table().values())

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._table().get(name)

    @property
    def revision(self) -> int:
        """A number that grows when the tools change, so that a running agent can take notice."""
        self._table()
        return self._revision

    def active_skills(self, messages: Iterable[Message]) -> set[str]:
        """Return the names of the skills that the model has loaded in a transcript."""
        return set() if self._skills is None else set(self._skills.active_in(messages))

    def denial(self, active: Iterable[str], name: str) -> str | None:
        """
        Return why a tool may not run now, or None.

        A skill that the model has loaded may restrict the tools of the run.

        Args:
            active: The skills that were loaded.
            name: The tool's name.
        """
        if self._skills is None:
            return None
        reason: str | None = self._skills.denial(set(active), name)
        return reason

    def register(self, *tools: Any) -> Toolkit:
        """
        Add tools of your own.

        Args:
            tools: Functions or `Tool` objects.

        Returns:
            The toolkit itself.

        Raises:
            ConfigurationError: A name is taken; nothing was added then.
        """
        before = self._own
        self._own = [*before, *(_as_tool(item) for item in tools)]
        self._cache = None
        try:
            self._table()
        except ConfigurationError:
            self._own, self._cache = before, None
            raise
        return self

    def unregister(self, name: str) -> bool:
        """Take a tool of your own away again; tells whether there was one."""
        left = [tool for tool in self._own if tool.name != name]
        found = len(left) < len(self._own)
        self._own, self._cache = left, None
        return found

    def skills_prompt(self) -> str:
        """Return what tells the model which skills there are; empty without any."""
        return self._skills.prompt() if self._skills is not None else ""

    @property
    def skills(self) -> SkillSet | None:
        """The skills, or None."""
        return self._skills

    def mcp_status(self) -> dict[str, Any]:
        """Return the state of each MCP server, by name."""
        return dict(self._mcp.status) if self._mcp is not None else {}

    # -- for a loop of your own --------------------------------------------------------------

    def execute(
        self, name: str, args: Mapping[str, Any] | None = None, ctx: Context | None = None
    ) -> ToolResult:
        """
        Run a tool.

        Args:
            name: Its name.
            args: Its arguments; they are checked first.
            ctx: The context it runs in.

        Returns:
            The result; a failure is one, too.
        """
        from toolnexus.tools.execute import execute_tool

        tool = self.get(name)
        if tool is None:
            return ToolResult.error(
                f"Unknown tool: {name}. Available tools: {', '.join(self._table()) or 'none'}"
            )
        return execute_tool(tool, dict(args or {}), ctx if ctx is not None else Context(tool_name=name))

    def to_openai(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """
        Return the tools as an OpenAI-style endpoint takes them.

        Args:
            strict: Whether to ask for OpenAI's strict mode.
        """
        from toolnexus.tools import adapt

        shape = adapt.strict if strict else adapt.plain
        functions = [
            {"name": t.name, "description": t.description, "parameters": shape(t.input_schema)}
            for t in self.tools
        ]
        return [
            {"type": "function", "function": {**f, **({"strict": True} if strict else {})}} for f in functions
        ]

    def to_anthropic(self) -> list[dict[str, Any]]:
        """Return the tools as an Anthropic-style endpoint takes them."""
        from toolnexus.tools.adapt import plain

        return [
            {"name": t.name, "description": t.description, "input_schema": plain(t.input_schema)}
            for t in self.tools
        ]

    def to_gemini(self) -> list[dict[str, Any]]:
        """Return the tools as Gemini takes them; an empty list without tools."""
        from toolnexus.tools.adapt import for_gemini

        declarations = [
            {"name": t.name, "description": t.description, "parameters": for_gemini(t.input_schema)}
            for t in self.tools
        ]
        return [{"functionDeclarations": declarations}] if declarations else []

    # -- inside ------------------------------------------------------------------------------

    def _table(self) -> dict[str, Tool]:
        """Return the tools by their final names; made anew when a source changed."""
        mcp = tuple(self._mcp.tools) if self._mcp is not None else ()
        if self._cache is not None and self._cache[0] == mcp:
            return self._cache[1]
        own = {tool.name for tool in self._own}
        skill = [self._skills.tool()] if self._skills is not None and self._skills.skills else []
        table: dict[str, Tool] = {}
        for tool in (*mcp, *skill, *(t for t in self._builtins if t.name not in own), *self._own):
            self._place(table, tool)
        self._cache = (mcp, table)
        self._revision += 1
        return table

    def _place(self, table: dict[str, Tool], tool: Tool) -> None:
        name = valid_name(tool.name)
        if not self._offered(name, tool):
            return
        if name in table and self._on_duplicate == "error":
            first = table[name]
            raise ConfigurationError(
                f"two tools are named {name!r}: one from {_origin(first)}, one from {_origin(tool)} "
                '(rename one, or say on_duplicate="first" or "last")'
            )
        if name not in table or self._on_duplicate == "last":
            table.pop(name, None)
            table[name] = tool if tool.name == name else attrs.evolve(tool, name=name)

    def _offered(self, name: str, tool: Tool) -> bool:
        names = (name, f"{tool.source}:{name}")
        if any(fnmatchcase(n, pattern) for pattern in self._deny for n in names):
            return False
        return self._allow is None or any(fnmatchcase(n, pattern) for pattern in self._allow for n in names)


def create_toolkit(tools: Iterable[Any] | None = None, **options: Any) -> Toolkit:
    """Make a `Toolkit`; the arguments are the same."""
    return Toolkit(tools, **options)


def _origin(tool: Tool) -> str:
    server = tool.metadata.get("server")
    return f"the MCP server {server!r}" if server else f"the source {tool.source!r}"


def _patterns(name: str, value: Iterable[str]) -> list[str]:
    patterns = [] if isinstance(value, str) else list(value)
    if isinstance(value, str) or not all(isinstance(item, str) for item in patterns):
        raise ConfigurationError(f"{name} must be a list of names or patterns")
    return patterns


def _as_tool(item: Any) -> Tool:
    if isinstance(item, Tool):
        return item
    from toolnexus.tools.functions import as_tool

    return as_tool(item)


def _load_mcp(config: Any, wait_for: Any) -> Any:
    if config is None:
        return None
    from toolnexus.tools.mcp import McpSource

    return config if isinstance(config, McpSource) else McpSource(config, wait_for=wait_for)


def _load_builtins(select: Any, root: Any) -> list[Tool]:
    if select is None or select is False:
        return []
    from toolnexus.tools.builtins import builtin_tools

    return builtin_tools(select, root=root)


def _load_skills(dirs: Any, skills: Any, chosen: Mapping[str, bool] | None) -> Any:
    if dirs is None and skills is None:
        return None
    from toolnexus.tools.skills import SkillSet, load_skills

    if isinstance(skills, SkillSet):
        return skills
    folders = [dirs] if isinstance(dirs, (str, os.PathLike)) else list(dirs or ())
    return load_skills(folders, skills=skills, filter=chosen)
