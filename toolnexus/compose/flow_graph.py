"""The graph of a flow: its nodes, and what follows what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from toolnexus.compose.flow_nodes import Agent, Function, Kind, Nested, Node, checked, takes
from toolnexus.compose.flow_state import Frame
from toolnexus.compose.flow_values import End
from toolnexus.errors import ConfigurationError
from toolnexus.options import _number
from toolnexus.transport.retry import RetryPolicy

if TYPE_CHECKING:
    from toolnexus.client import Client

__all__ = ["Graph", "Step", "word"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Something that names a step: its name, or the function that is its node.
Step = str | Callable[..., Any]


class Graph:
    """
    What a flow is made of.

    Args:
        name: The flow's name.
        start: The first step, if it is not the node that was added first.
    """

    def __init__(self, name: str, start: str | None, max_steps: int) -> None:
        self.name = word("the name of a flow", name)
        self.max_steps: int = _number("max_steps", max_steps, low=1, whole=True)
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, Any] = {}
        self.routes: dict[str, Callable[..., Any]] = {}
        self._start = start
        self._parallel: dict[str, tuple[str, ...]] = {}
        self._names: dict[Any, str] = {}

    def __repr__(self) -> str:
        return f"<Flow {self.name}: {', '.join(self.steps) or 'empty'}>"

    # -- building ------------------------------------------------------------------------------

    @overload
    def node(self, function: _Function) -> _Function: ...

    @overload
    def node(
        self,
        function: None = None,
        *,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        on_error: Callable[..., Any] | None = None,
        timeout: float | None = None,
    ) -> Callable[[_Function], _Function]: ...

    def node(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        retry: int | RetryPolicy | None = None,
        on_error: Callable[..., Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """
        Add a function as a node; a decorator, with or without arguments.

        Args:
            function: A function of the state, or of the state and a `FlowContext`. It returns what it changes
                as a dict, or `Goto`, `End` or None.
            name: The node's name; by default the function's.
            retry: How often it is tried again when it raises, or a `RetryPolicy`.
            on_error: A function of the state and the error, and the context if it takes it, that is called
                when the last try has failed; what it returns counts as the node's.
            timeout: Seconds that a try may take.

        Returns:
            The function as it is.
        """

        def add(function: _Function) -> _Function:
            checked(function, "a node")
            if not takes(function) >= 1:
                raise ConfigurationError(f"{function!r} must take the state")
            chosen = self._add(name or function.__name__, Function(function), retry, on_error, timeout)
            self._names[function] = chosen
            return function

        return add if function is None else add(function)

    def agent(
        self,
        name: str,
        client: Client,
        prompt: Any,
        *,
        tools: Any = None,
        history: Callable[[dict[str, Any]], Any] | None = None,
        update: Callable[..., Any] | None = None,
        output: Any = None,
        retry: int | RetryPolicy | None = None,
        on_error: Callable[..., Any] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> str:
        """
        Add an agent as a node. Its events have the node's name in their namespace.

        Args:
            name: The node's name.
            client: The client.
            prompt: The prompt, or a function of the state that returns it.
            tools: The agent's tools.
            history: A function of the state that returns the messages before the prompt.
            update: A function of the agent's `RunResult`, and of the state if it takes two arguments, that
                returns what the node changes; by default the text, or the output, under the node's name.
                Without it an answer that was cut is an error.
            output: The type that the answer shall have, see `Client.run`.
            retry: See `node`.
            on_error: See `node`.
            timeout: See `node`.
            options: ``model``, ``system_prompt`` or ``max_turns`` for this node.

        Returns:
            The name.
        """
        for function in (history, update):
            if function is not None:
                checked(function, f"an option of {name}")
        kind = Agent(client, prompt, tools, history, update, output, options)
        return self._add(name, kind, retry, on_error, timeout)

    def nest(
        self,
        name: str,
        flow: Graph,
        *,
        input: Callable[[dict[str, Any]], Any] | None = None,  # noqa: A002 - the plain word for it
        update: Callable[[dict[str, Any]], Any] | None = None,
        max_steps: int | None = None,
        retry: int | RetryPolicy | None = None,
        on_error: Callable[..., Any] | None = None,
        timeout: float | None = None,
    ) -> str:
        """
        Add another flow as a node.

        It counts its own steps up to a limit of its own; its events have the node's name in their namespace.

        Args:
            name: The node's name.
            flow: The flow.
            input: A function of the state that returns the state that the flow begins with; by default
                the same.
            update: A function of the flow's last state that returns what the node changes; by default
                whatever the flow has changed.
            max_steps: The most steps each time that it runs as this node; by default the flow's own
                ``max_steps``, whatever was given to the run of the flow around it.
            retry: See `node`.
            on_error: See `node`.
            timeout: See `node`.

        Returns:
            The name.
        """
        if not isinstance(flow, Graph):
            raise ConfigurationError(f"{name} must be a Flow, not {type(flow).__name__}")
        for function in (input, update):
            if function is not None:
                checked(function, f"an option of {name}")
        limit = _number("max_steps", max_steps, low=1, optional=True, whole=True)
        return self._add(name, Nested(flow, input, update, limit), retry, on_error, timeout)

    def parallel(self, *nodes: Step, name: str | None = None) -> str:
        """
        Make one step of several nodes, which then run side by side on the same state.

        Two of them that change the same key are an error; ``messages`` are appended in the order given here.

        Args:
            nodes: Their names or functions.
            name: The step's name; by default the names with a plus between them.

        Returns:
            The name, for edges.
        """
        members = tuple(self.name_of(node) for node in nodes)
        if len(set(members)) < 2 or len(set(members)) != len(members):
            raise ConfigurationError("a parallel step needs two or more different nodes")
        chosen = word("the name of a step", name or "+".join(members))
        self._check_new(chosen)
        self._parallel[chosen] = members
        return chosen

    def edge(self, source: Step, target: Any) -> None:
        """
        Say which step follows another. A step that nothing follows is the last.

        Args:
            source: The step, or its function.
            target: The step that follows, its function, or `End`.
        """
        name = self._leaving(source)
        self.edges[name] = target

    def route(self, source: Step, function: Callable[[dict[str, Any]], Any]) -> None:
        """
        Have a function say which step follows another.

        Args:
            source: The step, or its function.
            function: It gets the state and returns the name of a step, its function, or `End`.
        """
        name = self._leaving(source)
        self.routes[name] = checked(function, f"the route of {name}")

    def _leaving(self, source: Step) -> str:
        name = str(self.name_of(source))
        if name in self.edges or name in self.routes:
            raise ConfigurationError(f"it is said already what follows {name}")
        return name

    def _add(
        self,
        name: str,
        kind: Kind,
        retry: int | RetryPolicy | None,
        on_error: Callable[..., Any] | None,
        timeout: float | None,
    ) -> str:
        self._check_new(word("the name of a node", name))
        if ":" in name:  # in a namespace it marks what a tool call has started
            raise ConfigurationError(f"the name of a node must have no colon: {name!r:.60}")
        if retry is not None and not isinstance(retry, RetryPolicy):
            retries = _number("retry", retry, low=0, whole=True)
            retry = RetryPolicy(retries=retries) if retries else None
        if on_error is not None:
            checked(on_error, f"the on_error of {name}")
        seconds = _number("timeout", timeout, low=0, optional=True)
        self.nodes[name] = Node(name, kind, retry, on_error, seconds)
        return name

    def _check_new(self, name: str) -> None:
        if name in self.steps:
            raise ConfigurationError(f"{self.name} has a step {name!r} already")

    # -- what the engine asks ------------------------------------------------------------------

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of all steps: of nodes, and of parallel steps."""
        return (*self.nodes, *self._parallel)

    def members(self, step: str) -> tuple[str, ...]:
        """Return the nodes of a step."""
        return self._parallel.get(step, (step,))

    def name_of(self, step: Any) -> Any:
        """Return the name of a step that is given as its name or its function."""
        try:
            return self._names.get(step, step)
        except TypeError:  # it cannot be a key, so it is no function
            return step

    def first_frame(self, state: dict[str, Any]) -> Frame:
        """Return where a run with this state begins."""
        return Frame(state, self._start if self._start is not None else self._first())

    def _first(self) -> str:
        """Return the step of the node that was added first."""
        node = next(iter(self.nodes))
        return next((step for step, members in self._parallel.items() if node in members), node)

    def check(self, inside: tuple[Graph, ...] = ()) -> None:
        """
        Check what can only be known when all is built.

        Raises:
            ConfigurationError: A step is named that there is not, or a flow is inside itself.
        """
        if self in inside:
            raise ConfigurationError(f"the flow {self.name} is inside itself")
        if not self.nodes:
            raise ConfigurationError(f"the flow {self.name} has no node")
        targets = [t for t in self.edges.values() if t is not End and not isinstance(t, End)]
        named = [self._start, *self.edges, *self.routes, *map(self.name_of, targets)]
        named += [member for members in self._parallel.values() for member in members]
        for name in named:
            if name is not None and (not isinstance(name, str) or name not in self.steps):
                raise ConfigurationError(f"{self.name} has no step {name!r:.60}")
        for node in self.nodes.values():
            if isinstance(node.kind, Nested):
                node.kind.flow.check((*inside, self))


def word(what: str, value: Any) -> str:
    """
    Return a name, if it is one.

    Raises:
        ConfigurationError: It is no text, or empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{what} must be a text that is not empty, not {value!r:.60}")
    return str(value)
