"""Every source of tools in one place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toolnexus.closing import Closing
from toolnexus.forking import ForkLock
from toolnexus.results import Message
from toolnexus.tools.assembly import Duplicates, NameBook, Rules, assemble
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.sources import load_builtins, load_mcp, load_skills_of
from toolnexus.toolset import as_tools, check_tool

if TYPE_CHECKING:
    from typing_extensions import Self

    from toolnexus.cancel import CancelScope
    from toolnexus.tools.mcp import McpStatus
    from toolnexus.tools.skills import SkillSet
    from toolnexus.tools.sources import BuiltinsLike, FolderLike, FoldersLike, McpLike, SkillsLike, WaitFor

__all__ = ["Toolkit", "create_toolkit"]


class Toolkit(Closing):
    """
    Gathers tools from functions, HTTP endpoints, MCP servers, skills and the built-in set.

    The order is MCP, skills, built-ins, your own. Your own tools replace built-ins of the same
    name; any other name that comes twice is an error. Names that a provider would refuse are made
    valid. MCP servers are started together, here; one that fails is in `mcp_status` with the reason.

    A toolkit may be used by several threads and runs at once, and changed meanwhile; a run takes
    notice of a change at its next turn.

    Args:
        tools: Your own: functions, `Tool` objects, what `http_tool`, `openapi_tools` and `collect` return.
        mcp_config: MCP servers: the path of an ``.mcp.json`` file, a dict of that shape, or an `McpSource`,
            which is then yours to close.
        mcp_timeout: Seconds for each phase of an MCP server that names no timeout of its own; None for no
            limit.
        skills_dir: A folder with skills, or several.
        skills: Skills as data (`SkillDef`), or the `SkillSet` that `load_skills` returns.
        skills_filter: Which skills to offer: names mapped to True or False, or a list of names.
        skill_sample_limit: How many files of a skill are listed when it is loaded; 10 for 0, none for -1.
        builtins: The built-in tools to offer: True, "read-only", names, a map of names to True or False,
            or the list that `builtin_tools` returns. None by default.
        root: The folder that the built-in file tools are confined to, and in which commands start.
            Without it they may go anywhere.
        env: Variables that commands of the built-in ``bash`` see beside PATH, HOME and the like: a map,
            or names of those to hand on.
        allow_private: Whether the built-in ``webfetch`` may connect to addresses that are not public: True,
            or a list of networks.
        allow: Only these tools: final names or patterns such as ``"read*"``, or ``"mcp:*"`` for a source.
        deny: Not these tools.
        on_duplicate: What to do with a name that comes twice: "error", or keep the "first" or "last".
        wait_for: A function that answers what MCP servers ask a person; it gets a `Request` and returns an
            `Answer`, or None where nobody answers. By default the run's own way is asked.
        scope: Ends the wait for MCP servers to start, when it ends.

    Raises:
        ConfigurationError: An argument is wrong, or a name comes twice.
        SchemaError: No schema can be made for a function's parameter.
        MissingExtraError: A source needs a package that is not installed.

    >>> def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> with Toolkit([add]) as toolkit:
    ...     toolkit.execute("add", {"a": 2, "b": 3}).output
    '5'
    """

    def __init__(
        self,
        tools: Any = None,
        *,
        mcp_config: McpLike | None = None,
        mcp_timeout: float | None = 30.0,
        skills_dir: FoldersLike | None = None,
        skills: SkillsLike | None = None,
        skills_filter: Mapping[str, bool] | Iterable[str] | None = None,
        skill_sample_limit: int = 0,
        builtins: BuiltinsLike | None = None,
        root: FolderLike | None = None,
        env: Mapping[str, str] | Iterable[str] = (),
        allow_private: bool | Collection[str] = False,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] | None = None,
        on_duplicate: Duplicates = "error",
        wait_for: WaitFor | None = None,
        scope: CancelScope | None = None,
    ) -> None:
        self._rules = Rules.of(allow, deny, on_duplicate)
        self._skills = load_skills_of(skills_dir, skills, skills_filter, skill_sample_limit)
        self._skill_tools = [self._skills.tool()] if self._skills is not None and self._skills.skills else []
        self._builtins = load_builtins(builtins, root, env, allow_private)
        self._mcp, self._closes_mcp = load_mcp(mcp_config, wait_for, mcp_timeout)
        # Guards everything below. Tables are made anew, never changed, so that readers need no lock.
        self._lock = ForkLock()
        self._own: tuple[Tool, ...] = ()
        self._names = NameBook()
        self._table: dict[str, Tool] = {}
        self._table_of = 0  # the revision of the MCP source that the table was made from
        self._revision = 0
        self._loaded: set[str] = set()
        try:
            self._own = _checked(tools)
            self._start(scope)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Toolkit: {', '.join(self._current()) or 'no tools'}>"

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, name: object) -> bool:
        return name in self._current()

    def close(self) -> None:
        """End the MCP servers that the toolkit started. Safe to call twice."""
        if self._mcp is not None and self._closes_mcp:
            self._mcp.close()

    # -- what is there -----------------------------------------------------------------------

    @property
    def tools(self) -> list[Tool]:
        """The tools in order, under their final names."""
        return list(self._current().values())

    def get(self, name: str) -> Tool | None:
        """Return the tool of that final name, or None."""
        return self._current().get(name)

    @property
    def revision(self) -> int:
        """A number that changes when the tools do, so that a run can take notice."""
        self._current()
        return self._revision

    def register(self, *tools: Any) -> Self:
        """
        Add tools of your own.

        Args:
            tools: Functions, `Tool` objects, or lists of them.

        Returns:
            The toolkit itself.

        Raises:
            ConfigurationError: A name is taken; nothing was added then.
            SchemaError: No schema can be made for a function's parameter.
        """
        added = _checked(list(tools))
        self._current()
        with self._lock:
            own = (*self._own, *added)
            named = self._named(own)
            new = {name for name, tool in named if any(tool is item for item in added)}
            self._take(assemble(named, self._rules, new), own)
        return self

    def unregister(self, name: str) -> bool:
        """
        Take a tool of your own away again. A built-in tool that it had replaced is back then.

        Args:
            name: Its name, as given or as `tools` has it.

        Returns:
            Whether there was one.
        """
        self._current()
        with self._lock:
            finals = {id(tool): final for final, tool in self._named(self._own)}
            own = tuple(tool for tool in self._own if name not in (tool.name, finals[id(tool)]))
            if len(own) == len(self._own):
                return False
            self._take(assemble(self._named(own), self._rules, ()), own)
            return True

    def skills_prompt(self) -> str:
        """Return what tells the model which skills there are; empty where none were asked for or allowed."""
        if self._skills is None or (self._skills.skills and self._skill_tool() is None):
            return ""
        return self._skills.prompt()

    @property
    def skills(self) -> SkillSet | None:
        """The skills, or None where none were asked for."""
        return self._skills

    def mcp_status(self) -> dict[str, McpStatus]:
        """Return the state of each MCP server, by name."""
        return dict(self._mcp.status) if self._mcp is not None else {}

    # -- for a run ---------------------------------------------------------------------------

    def active_skills(self, messages: Iterable[Message]) -> set[str]:
        """Return the names of the skills that the model has loaded in an OpenAI-shaped transcript."""
        return set() if self._skills is None else set(self._skills.active_in(messages))

    def denial(self, active: Iterable[str], name: str) -> str | None:
        """
        Return why a tool may not run now, or None.

        A skill that the model has loaded may restrict the tools of the run.

        Args:
            active: The skills that were loaded.
            name: The tool's name.
        """
        return None if self._skills is None else self._skills.denial(set(active), name)

    # -- for a loop of your own --------------------------------------------------------------

    def execute(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        ctx: Context | None = None,
        *,
        active_skills: Iterable[str] | None = None,
    ) -> ToolResult:
        """
        Run a tool.

        Its arguments are checked, its time limit and the restrictions of loaded skills hold, and one
        that wants approval gives a result with the request (`pending_of`) until the context has an answer.

        Args:
            name: Its name.
            args: Its arguments.
            ctx: The context it runs in; its ``answers`` are what a person said.
            active_skills: The names of the skills that the conversation has loaded. By default those that
                were loaded by calls of this method; give them where one toolkit serves several conversations.

        Returns:
            The result; a failure is one, too.
        """
        from toolnexus.tools.direct import execute_directly

        tool = self.get(name)
        if tool is None:
            known = ", ".join(self._current()) or "none"
            return ToolResult.error(f"Unknown tool: {name}. Available tools: {known}")
        denial = self.denial(self._loaded if active_skills is None else active_skills, name)
        if denial is not None:
            return ToolResult.error(denial)
        result = execute_directly(tool, dict(args or {}), ctx if ctx is not None else Context(tool_name=name))
        if tool is self._skill_tool() and not result.is_error:
            with self._lock:
                self._loaded = {*self._loaded, str(result.metadata.get("name"))}
        return result

    def to_openai(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """
        Return the tools as an OpenAI-style endpoint takes them.

        Args:
            strict: Whether to ask for OpenAI's strict mode, for those tools whose arguments it can describe.
        """
        from toolnexus.tools.adapt import plain, strict_or_none

        declared = []
        for tool in self.tools:
            function: dict[str, Any] = {"name": tool.name, "description": tool.description}
            exact = strict_or_none(tool.input_schema) if strict else None
            function["parameters"] = plain(tool.input_schema) if exact is None else exact
            if exact is not None:
                function["strict"] = True
            declared.append({"type": "function", "function": function})
        return declared

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

        declared = []
        for tool in self.tools:
            function: dict[str, Any] = {"name": tool.name, "description": tool.description}
            parameters = for_gemini(tool.input_schema)
            if parameters["properties"]:  # it refuses an object that has none
                function["parameters"] = parameters
            declared.append(function)
        return [{"functionDeclarations": declared}] if declared else []

    # -- inside ------------------------------------------------------------------------------

    def _start(self, scope: CancelScope | None) -> None:
        """Start the servers and make the first table, in which a duplicate is an error."""
        if self._mcp is not None:
            self._mcp.start(scope)
            self._table_of = self._mcp.revision
        named = self._named(self._own)
        self._rules.warn(named)
        self._take(assemble(named, self._rules), self._own)

    def _current(self) -> dict[str, Tool]:
        """Return the tools by their final names; made anew when a server changed its tools."""
        revision = self._mcp.revision if self._mcp is not None else 0
        if revision <= self._table_of:
            return self._table
        with self._lock:
            if revision > self._table_of:
                self._table_of = revision
                self._take(assemble(self._named(self._own), self._rules, ()), self._own)
            return self._table

    def _take(self, table: dict[str, Tool], own: tuple[Tool, ...]) -> None:
        self._own, self._table = own, table
        self._revision += 1

    def _named(self, own: tuple[Tool, ...]) -> list[tuple[str, Tool]]:
        """Return the tools of all sources in order, with their final names."""
        mcp = self._mcp.tools if self._mcp is not None else []
        replaced = {tool.name for tool in own}
        builtins = [tool for tool in self._builtins if tool.name not in replaced]
        return self._names.named([*mcp, *self._skill_tools, *builtins, *own])

    def _skill_tool(self) -> Tool | None:
        """Return the tool that loads skills, where it is offered."""
        tool = self._table.get("skill")
        return tool if tool is not None and tool in self._skill_tools else None


def _checked(tools: Any) -> tuple[Tool, ...]:
    """Return a user's own tools, refused where a call could only fail."""
    found = tuple(as_tools(tools))
    for tool in found:
        check_tool(tool)
    return found


def create_toolkit(tools: Any = None, **options: Any) -> Toolkit:
    """Make a `Toolkit`; the arguments are the same."""
    return Toolkit(tools, **options)
