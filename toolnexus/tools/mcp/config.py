"""MCP server configurations as people have them: ``.mcp.json`` files and dicts, made into one shape."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import attrs

from toolnexus.errors import ConfigurationError

__all__ = ["McpServerConfig", "McpTimeouts", "expand", "parse_mcp_config"]

Transport = Literal["stdio", "http", "sse"]

#: Keys that hold the map of servers, first match wins.
WRAPPERS = ("mcpServers", "servers", "mcp")
#: Top-level keys that are no servers where the servers have no wrapper.
SIBLINGS = frozenset({"$schema", "a2a", "agents", "builtins", "inputs", "mcpServer"})

TRANSPORTS: dict[str, Transport | None] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "remote": None,
    "sse": "sse",
}
PROTOCOLS = ("auto", "legacy", "modern")
PHASES = ("start", "initialize", "list", "call")

#: The longest message in bytes that a server may send, by default.
MAX_MESSAGE = 64 * 1024 * 1024
#: A file's timeout of this or more is milliseconds, as other programs write it.
MILLISECONDS_FROM = 1000

_VARIABLE = re.compile(r"\$\{(?:env:)?([^}:]*)(?:(:-)([^}]*))?\}|\$\{([^}]*)\}")


@attrs.frozen(kw_only=True)
class McpTimeouts:
    """
    How long each phase of a server's life may take, in seconds; None for no limit.

    Args:
        start: To start the process, or to open the connection.
        initialize: To shake hands.
        list: To list all tools.
        call: A call without a sign of life; progress starts it anew.
    """

    start: float | None = 30.0
    initialize: float | None = 30.0
    list: float | None = 30.0
    call: float | None = 30.0


@attrs.frozen(kw_only=True)
class McpServerConfig:
    """
    One server, as configured.

    Variables such as ``${TOKEN}`` are still as written: they are filled in when the server starts,
    so that no secret rests here.

    Args:
        name: The server's name.
        transport: "stdio", "http" (streamable HTTP) or "sse".
        command: The program and its arguments, for "stdio".
        env: Variables for the process, beside the safe base.
        cwd: The folder in which the process starts.
        url: The endpoint, for "http" and "sse".
        headers: HTTP headers to send.
        fallback: Whether to try SSE where streamable HTTP is refused.
        enabled: Whether to start it at all.
        tools: Which tools to take: name or pattern to yes or no; empty for all.
        timeouts: Seconds for each phase.
        max_message: The longest message in bytes that it may send.
        protocol: "auto" shakes hands as servers have since 2024 and then as those of 2026 want it;
            "legacy" and "modern" do one of the two.
    """

    name: str
    transport: Transport = "stdio"
    command: tuple[str, ...] = attrs.field(
        default=(), repr=lambda c: f"<{c[0]!r}, {len(c) - 1} arguments>" if c else "()"
    )
    env: Mapping[str, str] = attrs.field(factory=dict, repr=lambda e: f"<{', '.join(sorted(e))}>")
    cwd: str | None = None
    url: str | None = attrs.field(default=None, repr=lambda u: repr(u and u.split("?")[0]))
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=lambda h: f"<{', '.join(sorted(h))}>")
    fallback: bool = False
    enabled: bool = True
    tools: Mapping[str, bool] = attrs.field(factory=dict)
    timeouts: McpTimeouts = McpTimeouts()
    max_message: int = MAX_MESSAGE
    protocol: str = "auto"

    def wants(self, tool: str) -> bool:
        """
        Return whether the ``tools`` filter lets a tool through.

        The exact name decides, else the first pattern that fits. A tool that nothing names is
        taken, unless the filter only says yes: then it is a list of what to take.
        """
        if tool in self.tools:
            return self.tools[tool]
        for pattern, wanted in self.tools.items():
            if fnmatchcase(tool, pattern):
                return wanted
        return not self.tools or not all(self.tools.values())


def expand(text: str, environ: Mapping[str, str] | None = None) -> str:
    """
    Fill in ``${VAR}``, ``${env:VAR}`` and ``${VAR:-default}``.

    Args:
        text: The text as configured.
        environ: The variables; the process's own by default.

    Raises:
        ConfigurationError: A variable is not set and has no default.

    >>> expand("Bearer ${TOKEN}, ${LANGUAGE:-en}", {"TOKEN": "abc"})
    'Bearer abc, en'
    """
    known = os.environ if environ is None else environ

    def value(match: re.Match[str]) -> str:
        name, has_default, default, other = match.groups()
        if other is not None or not name:
            raise ConfigurationError(f"cannot fill in {match.group(0)}: only environment variables are known")
        if has_default and not known.get(name):
            return cast(str, default)
        if name not in known:
            raise ConfigurationError(f"the environment variable {name} is not set")
        return known[name]

    return _VARIABLE.sub(value, text)


def parse_mcp_config(
    config: str | os.PathLike[str] | Mapping[str, Any], *, timeout: float | None = 30.0
) -> list[McpServerConfig]:
    """
    Read the servers of an ``.mcp.json`` file or of a dict of that shape.

    The servers stand under ``mcpServers``, ``servers`` or ``mcp``, or are the whole map.

    Args:
        config: A path, or the dict itself.
        timeout: Seconds for each phase of a server that names no timeout; None for no limit.

    Returns:
        The servers in the order of the file, disabled ones included.

    Raises:
        ConfigurationError: The file cannot be read, or a server is not configured rightly.

    >>> parse_mcp_config({"mcpServers": {"time": {"command": "time-server", "args": ["--utc"]}}})[0].command
    ('time-server', '--utc')
    """
    data = config if isinstance(config, Mapping) else _load(Path(config))
    servers = _servers(data)
    return [
        _server(str(name), entry, McpTimeouts(**dict.fromkeys(PHASES, timeout)))
        for name, entry in servers.items()
    ]


def _load(path: Path) -> Mapping[str, Any]:
    """Return the object that a JSON file holds."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the MCP configuration {str(path)!r}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"the MCP configuration {str(path)!r} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"the MCP configuration {str(path)!r} must be a JSON object")
    return data


def _servers(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the map of servers, whatever it is wrapped in."""
    for key in WRAPPERS:
        inner = data.get(key)
        if isinstance(inner, Mapping) and not _is_server(inner):
            nested = next((inner[k] for k in WRAPPERS if isinstance(inner.get(k), Mapping)), None)
            return nested if nested is not None and not _is_server(nested) else inner
    return {name: entry for name, entry in data.items() if name not in SIBLINGS}


def _is_server(entry: Mapping[str, Any]) -> bool:
    """Return whether a map describes one server rather than holding several."""
    return isinstance(entry.get("command"), (str, list)) or isinstance(entry.get("url"), str)


def _server(name: str, entry: Any, timeouts: McpTimeouts) -> McpServerConfig:
    """Read one server."""
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"MCP server {name!r} must be an object, not {type(entry).__name__}")
    if entry.get("enabled") is False or entry.get("disabled") is True:
        return McpServerConfig(name=name, enabled=False, transport="http" if entry.get("url") else "stdio")
    transport, fallback = _transport(name, entry)
    common: dict[str, Any] = {
        "name": name,
        "transport": transport,
        "tools": _filter(name, entry.get("tools")),
        "timeouts": _timeouts(name, entry, timeouts),
        "max_message": _size(name, entry.get("max_message", MAX_MESSAGE)),
        "protocol": _choice(name, "protocol", entry.get("protocol", "auto"), PROTOCOLS),
    }
    if transport == "stdio":
        env = _strings(name, "env", entry.get("env", entry.get("environment")))
        cwd = entry.get("cwd")
        return McpServerConfig(
            command=_command(name, entry), env=env, cwd=None if cwd is None else str(cwd), **common
        )
    headers = _strings(name, "headers", entry.get("headers"))
    return McpServerConfig(url=_url(name, entry), headers=headers, fallback=fallback, **common)


def _transport(name: str, entry: Mapping[str, Any]) -> tuple[Transport, bool]:
    """Return the transport, and whether SSE may stand in for it."""
    given = entry.get("type", entry.get("transport"))
    if given is None:
        return ("http", True) if entry.get("url") else ("stdio", False)
    word = str(given).lower().replace("_", "-")
    if word not in TRANSPORTS:
        raise ConfigurationError(
            f"MCP server {name!r} has the unknown type {given!r}; known are stdio, streamable-http and sse"
        )
    found = TRANSPORTS[word]
    return (found or "http"), word in ("http", "remote")


def _command(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the program and its arguments."""
    command, args = entry.get("command"), entry.get("args") or []
    parts = [command] if isinstance(command, str) else command
    if not isinstance(parts, list) or not parts or not parts[0]:
        raise ConfigurationError(f"MCP server {name!r} needs a command or a url")
    if not isinstance(args, list):
        raise ConfigurationError(f"MCP server {name!r}: args must be a list")
    words = [*parts, *args]
    if any(isinstance(w, (dict, list)) or w is None for w in words):
        raise ConfigurationError(f"MCP server {name!r}: command and args must be texts")
    return tuple(str(word) for word in words)


def _url(name: str, entry: Mapping[str, Any]) -> str:
    """Return the endpoint's URL."""
    url = entry.get("url")
    if not isinstance(url, str) or not re.match(r"(https?://|\$\{)", url, re.IGNORECASE):
        raise ConfigurationError(f"MCP server {name!r} needs an http or https url")
    return url


def _strings(name: str, key: str, value: Any) -> dict[str, str]:
    """Return a map of texts; numbers are written out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(v, (str, int, float)) for v in value.values()):
        raise ConfigurationError(f"MCP server {name!r}: {key} must map names to texts")
    return {str(k): json.dumps(v) if isinstance(v, bool) else str(v) for k, v in value.items()}


def _filter(name: str, value: Any) -> dict[str, bool]:
    """Return the tools filter; a list names what to take."""
    if value is None or value == "*" or value == ["*"]:
        return {}
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return dict.fromkeys(value, True)
    if isinstance(value, Mapping) and all(isinstance(v, bool) for v in value.values()):
        return {str(k): v for k, v in value.items()}
    raise ConfigurationError(
        f"MCP server {name!r}: tools must be a list of names, or map names to true or false"
    )


def _timeouts(name: str, entry: Mapping[str, Any], base: McpTimeouts) -> McpTimeouts:
    """Return the timeouts: ``timeout`` for all phases, ``timeouts`` for single ones."""
    if "timeout" in entry:
        base = McpTimeouts(**dict.fromkeys(PHASES, _seconds(name, "timeout", entry["timeout"])))
    single = entry.get("timeouts") or {}
    if not isinstance(single, Mapping) or not set(single) <= set(PHASES):
        raise ConfigurationError(f"MCP server {name!r}: timeouts may have {', '.join(PHASES)}")
    return attrs.evolve(base, **{k: _seconds(name, f"timeouts.{k}", v) for k, v in single.items()})


def _seconds(name: str, key: str, value: Any) -> float | None:
    """Return a duration in seconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigurationError(f"MCP server {name!r}: {key} must be a number above 0")
    return value / 1000 if value >= MILLISECONDS_FROM else float(value)


def _size(name: str, value: Any) -> int:
    """Return a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1024:
        raise ConfigurationError(f"MCP server {name!r}: max_message must be a number of bytes, at least 1024")
    return value


def _choice(name: str, key: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return a word, if it is one of those allowed."""
    if value not in choices:
        raise ConfigurationError(f"MCP server {name!r}: {key} must be one of {', '.join(choices)}")
    return str(value)
