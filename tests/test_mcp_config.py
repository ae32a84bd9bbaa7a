"""MCP configurations as people have them, the environment of a server, and the names of tools."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolnexus.errors import ConfigurationError
from toolnexus.tools.mcp import McpServerConfig, McpTimeouts, parse_mcp_config
from toolnexus.tools.mcp.config import expand
from toolnexus.tools.mcp.environment import child_environment
from toolnexus.tools.mcp.launch import prepare
from toolnexus.tools.mcp.names import NameBook

SERVER = {"command": "run-me", "args": ["--now"]}


@pytest.mark.parametrize(
    "wrapped",
    [
        {"mcpServers": {"one": SERVER}},
        {"servers": {"one": SERVER}, "inputs": []},
        {"mcp": {"one": SERVER}},
        {"mcp": {"servers": {"one": SERVER}}},
        {"one": SERVER},
        {"one": SERVER, "builtins": True, "agents": {}, "$schema": "https://example.com/schema"},
    ],
)
def test_servers_are_found_whatever_they_are_wrapped_in(wrapped: dict[str, Any]) -> None:
    """mcpServers, servers, mcp and a flat map all hold the same server."""
    (server,) = parse_mcp_config(wrapped)
    assert (server.name, server.command, server.transport) == ("one", ("run-me", "--now"), "stdio")


def test_a_server_may_be_called_like_a_wrapper() -> None:
    """A flat map with a server named mcp is a flat map."""
    assert [s.name for s in parse_mcp_config({"mcp": SERVER, "other": SERVER})] == ["mcp", "other"]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"url": "https://a.example/mcp"}, ("http", True)),
        ({"type": "remote", "url": "https://a.example/mcp"}, ("http", True)),
        ({"type": "http", "url": "https://a.example/mcp"}, ("http", True)),
        ({"type": "streamable-http", "url": "https://a.example/mcp"}, ("http", False)),
        ({"type": "streamableHttp", "url": "https://a.example/mcp"}, ("http", False)),
        ({"transport": "streamable_http", "url": "https://a.example/mcp"}, ("http", False)),
        ({"type": "sse", "url": "https://a.example/sse"}, ("sse", False)),
        ({"type": "local", "command": ["a", "b"]}, ("stdio", False)),
        ({"type": "stdio", "command": "a"}, ("stdio", False)),
    ],
)
def test_types_of_servers(entry: dict[str, Any], expected: tuple[str, bool]) -> None:
    """Every spelling of a transport in use is known, and which of them may fall back to SSE."""
    (server,) = parse_mcp_config({"s": entry})
    assert (server.transport, server.fallback) == expected


def test_a_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / ".mcp.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"mcpServers": {"a": SERVER}}).encode())
    assert parse_mcp_config(path) == parse_mcp_config(str(path)) == parse_mcp_config({"a": SERVER})


@pytest.mark.parametrize("text", ["{ // comment\n}", "[]", "", "\xff"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    """The error says which file it was."""
    path = tmp_path / "mcp.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=re.escape(str(path))):
        parse_mcp_config(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """It is not the same as no servers."""
    with pytest.raises(ConfigurationError, match="cannot read"):
        parse_mcp_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    "entry",
    [
        "a command",
        {},
        {"command": ""},
        {"command": "a", "args": "b"},
        {"command": "a", "args": [None]},
        {"command": "a", "env": ["A=1"]},
        {"command": "a", "env": {"A": None}},
        {"type": "carrier-pigeon", "url": "https://a.example"},
        {"url": "ftp://a.example"},
        {"type": "http"},
        {"command": "a", "timeout": "soon"},
        {"command": "a", "timeout": 0},
        {"command": "a", "timeouts": {"dance": 1}},
        {"command": "a", "tools": 3},
        {"command": "a", "max_message": 1},
        {"command": "a", "protocol": "morse"},
    ],
)
def test_a_wrong_server_is_an_error_with_its_name(entry: Any) -> None:
    """What is known to be wrong before anything starts is said before anything starts."""
    with pytest.raises(ConfigurationError, match="'odd one'"):
        parse_mcp_config({"odd one": entry})


def test_disabled_servers_stay_in_the_list() -> None:
    """Both ways to switch a server off are known."""
    servers = parse_mcp_config(
        {"a": {**SERVER, "disabled": True}, "b": {**SERVER, "enabled": False}, "c": SERVER}
    )
    assert [s.enabled for s in servers] == [False, False, True]


def test_timeouts_for_all_phases_and_for_single_ones() -> None:
    """A timeout of 1000 or more is milliseconds, as other programs write it."""
    (server,) = parse_mcp_config({"a": {**SERVER, "timeout": 45000, "timeouts": {"call": 7, "list": None}}})
    assert server.timeouts == McpTimeouts(start=45, initialize=45, list=None, call=7)
    assert parse_mcp_config({"a": SERVER}, timeout=3)[0].timeouts.start == 3


@pytest.mark.parametrize(
    ("given_filter", "taken"),
    [
        (None, {"read", "read_all", "write"}),
        (["*"], {"read", "read_all", "write"}),
        (["read"], {"read"}),
        (["read*"], {"read", "read_all"}),
        ({"write": False}, {"read", "read_all"}),
        ({"read": True}, {"read"}),
        ({"*": False, "read": True}, {"read"}),
        ({"read*": False, "write": True}, {"write"}),
        ({}, {"read", "read_all", "write"}),
    ],
)
def test_tools_filter(given_filter: Any, taken: set[str]) -> None:
    """Exact names win over patterns; a filter that only says yes is a list of what to take."""
    (server,) = parse_mcp_config({"a": {**SERVER, "tools": given_filter}})
    assert {name for name in ("read", "read_all", "write") if server.wants(name)} == taken


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("x${env:A}y${A}", "x1y1"),
        ("${B:-two}", "two"),
        ("${EMPTY:-three}", "three"),
        ("${EMPTY}", ""),
        ("${A:-four}", "1"),
        ("${B:-}", ""),
        ("${B:-http://x:1/y}", "http://x:1/y"),
        ("$A {A} $", "$A {A} $"),
    ],
)
def test_variables(text: str, value: str) -> None:
    """The forms in use are filled in, everything else is left alone."""
    assert expand(text, {"A": "1", "EMPTY": ""}) == value


@pytest.mark.parametrize(
    ("text", "named"), [("${MISSING}", "MISSING"), ("${input:key}", "input:key"), ("${}", "${}")]
)
def test_a_variable_that_is_not_set_is_an_error(text: str, named: str) -> None:
    """It never becomes an empty text, nor is it sent as it stands."""
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        expand(text, {})


def test_secrets_stay_out_of_reprs() -> None:
    """Values of variables, headers and arguments are not shown."""
    entries = {
        "a": {"command": "run", "args": ["--token", "s3cret"], "env": {"KEY": "s3cret"}},
        "b": {"url": "https://a.example/mcp?key=s3cret", "headers": {"Authorization": "s3cret"}},
    }
    shown = repr(parse_mcp_config(entries))
    assert "s3cret" not in shown
    assert "KEY" in shown
    assert "Authorization" in shown
    assert "s3cret" not in repr([prepare(config) for config in parse_mcp_config(entries)])


def test_secrets_stay_out_of_what_a_server_wrote() -> None:
    """Quoted stderr has the values of secret variables and headers blotted out."""
    env = {"API_TOKEN": "${T}", "MODE": "production"}
    launch = prepare(McpServerConfig(name="a", command=("x",), env=env), {"T": "abcdef-123"})
    assert launch.redact("bad token abcdef-123 in production") == "bad token *** in production"
    web = prepare(
        McpServerConfig(name="a", url="https://a.example", headers={"Authorization": "Bearer abcdef"})
    )
    assert web.redact("got Bearer abcdef; abcdef") == "got ***; ***"


@pytest.mark.parametrize(
    ("name", "value"), [("X-Key", "a\nb"), ("X-Key", "sch\u00f6n"), ("X Key", "a"), ("", "a")]
)
def test_headers_that_cannot_be_sent_are_errors_without_their_value(name: str, value: str) -> None:
    """No header is smuggled in by a line break, and no error shows what might be a secret."""
    with pytest.raises(ConfigurationError) as caught:
        prepare(McpServerConfig(name="a", url="https://a.example", headers={name: value}))
    assert value not in str(caught.value) or value == "a"


def test_the_environment_of_a_server_is_a_safe_base_and_what_is_named() -> None:
    """Nothing else of ours is passed on; shell functions never."""
    ours = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "TERM": "() { x; }",
        "OPENAI_API_KEY": "k",
        "LD_PRELOAD": "x",
    }
    env = child_environment({"MINE": "1", "HOME": "/other"}, platform="linux", environ=ours)
    assert env == {"PATH": "/bin", "HOME": "/other", "LC_ALL": "C", "MINE": "1"}


def test_mcp_07_the_windows_environment_finds_launchers() -> None:
    """Without PATHEXT and the like, npx.cmd is not found there; names differ in case only."""
    launchers = {"PATHEXT", "COMSPEC", "SYSTEMROOT", "WINDIR", "PROGRAMFILES"}
    base = {*launchers, "TEMP", "TMP", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "HOMEDRIVE"}
    ours = {**dict.fromkeys(base, "x"), "Path": "c:\\bin", "SECRET": "s"}
    env = child_environment({"Temp": "mine"}, platform="win32", environ=ours)
    assert set(env) == {*base, "Path", "Temp"} - {"TEMP"}
    assert env["Temp"] == "mine"
    assert McpTimeouts().initialize is not None


def test_mcp_12_names_are_valid_and_distinct() -> None:
    """Dots, slashes, long names and names of signs only become names that every provider takes."""
    tools = ["a.b", "a/b", "a_b", "x" * 90, "x" * 91, "---", "\u00e9t\u00e9", "naïve tool!"]
    names = NameBook().assign([("srv", tool) for tool in tools])
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name) for name in names.values())
    assert len(set(names.values())) == len(tools)
    assert names["srv", "a_b"] == "srv_a_b"
    assert names["srv", "---"] == "srv_---"
    assert names == NameBook().assign([("srv", tool) for tool in tools])


def test_mcp_11_two_servers_with_the_same_tool_get_distinct_names() -> None:
    """The server's name tells them apart; where that is not enough, a hash does."""
    names = NameBook().assign(
        [("a", "send_email"), ("b", "send_email"), ("a_b", "c"), ("a", "b_c"), ("1p", "x")]
    )
    assert names["a", "send_email"] == "a_send_email"
    assert names["b", "send_email"] == "b_send_email"
    assert names["1p", "x"] == "_1p_x"
    assert len(set(names.values())) == 5


@given(st.lists(st.tuples(st.text(max_size=80), st.text(min_size=1, max_size=80)), unique=True, max_size=30))
def test_any_names_become_valid_and_distinct_and_stay(keys: list[tuple[str, str]]) -> None:
    """For any servers and tools; a tool keeps its name when others come."""
    book = NameBook()
    early = book.assign(keys[::2])
    names = book.assign(keys)
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name) for name in names.values())
    assert len(set(names.values())) == len(keys)
    assert early.items() <= names.items()


def test_importing_costs_no_import_of_the_sdk() -> None:
    """The SDK's import takes a second: it happens when the first server starts."""
    code = (
        "import sys, toolnexus.tools.mcp as m; "
        "m.McpSource({'a': {'command': 'x'}}); m.McpSource({'a': {'command': 'x', 'disabled': True}}).tools; "
        "print(sorted({'mcp', 'mcp_types', 'anyio', 'pydantic', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
