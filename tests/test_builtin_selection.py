"""The built-ins as a set: off unless asked for, with the names and schemas that models know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from toolnexus.errors import ConfigurationError
from toolnexus.tools.base import Context
from toolnexus.tools.builtins import BUILTIN_NAMES, READ_ONLY, builtin_tools

from .support.builtin_calls import Box

ARGUMENTS: dict[str, tuple[set[str], set[str]]] = {
    "bash": ({"command"}, {"workdir", "timeout", "description"}),
    "read": ({"path"}, {"offset", "limit"}),
    "write": ({"path", "content"}, set()),
    "edit": ({"path", "oldString", "newString"}, {"replaceAll"}),
    "grep": ({"pattern"}, {"path", "include", "limit"}),
    "glob": ({"pattern"}, {"path", "limit"}),
    "webfetch": ({"url"}, {"format", "timeout"}),
    "question": ({"questions"}, set()),
    "apply_patch": ({"patchText"}, set()),
    "todowrite": ({"todos"}, set()),
}


@pytest.mark.parametrize("select", [None, False, [], (), {}, {"bash": False}, {"read": False, "bash": False}])
def test_nothing_is_there_unless_asked_for(select: Any, tmp_path: Path) -> None:
    """Without a wish there are no built-ins; a map that wants none gives none."""
    assert builtin_tools(select, root=tmp_path) == []


@pytest.mark.parametrize(
    ("select", "names"),
    [
        (True, BUILTIN_NAMES),
        ("read-only", READ_ONLY),
        (["glob", "bash", "glob"], ("bash", "glob")),
        ({"edit": True, "bash": False}, ("edit",)),
        ({"edit": 1, "read": True}, ("read",)),
    ],
)
def test_what_is_asked_for_is_there_in_order(select: Any, names: tuple[str, ...], tmp_path: Path) -> None:
    """Every form of the wish gives exactly the tools it names, in the fixed order."""
    assert tuple(t.name for t in builtin_tools(select, root=tmp_path)) == names


@pytest.mark.parametrize("select", ["all", "bash", ["bsh"], {"Bash": True}, {"nope": False}, [1]])
def test_unknown_names_are_errors(select: Any, tmp_path: Path) -> None:
    """A name that no built-in has is a mistake that is told at once."""
    with pytest.raises(ConfigurationError):
        builtin_tools(select, root=tmp_path)


def test_read_only_tools_change_nothing_and_reach_nothing() -> None:
    """The read-only set has no command, no writing and no network."""
    assert set(READ_ONLY) == {"read", "grep", "glob"}


@pytest.mark.parametrize(
    "options",
    [
        {"root": "absent"},
        {"root": ".", "env": "PATH"},
        {"root": ".", "allow_private": ["nonsense"]},
        {"root": ".", "max_output": 1},
        {"root": ".", "max_page": 0},
    ],
)
def test_wrong_options_are_told_at_once(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not there and the like raise where the tools are made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError):
        builtin_tools(True, **options)


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_schemas_are_those_that_models_know(name: str, tmp_path: Path) -> None:
    """Each tool has its arguments, takes no others, and its schema is a valid one."""
    tool = Box(tmp_path).tools[name]
    schema = tool.input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    required, optional = ARGUMENTS[name]
    assert set(schema["required"]) == required
    assert set(schema["properties"]) == required | optional
    assert schema["additionalProperties"] is False
    assert tool.source == "builtin"
    assert tool.description


@pytest.mark.parametrize("name", BUILTIN_NAMES)
@pytest.mark.parametrize("value", [None, 5, [], {}, True, "\x00"])
def test_wrong_arguments_give_an_error_or_a_result(name: str, value: Any, tmp_path: Path) -> None:
    """Arguments of any type make a tool answer; none raises, and errors begin with its name."""
    box = Box(tmp_path)
    required, optional = ARGUMENTS[name]
    if name == "bash" and value == "\x00":
        optional = set()
    result = box.call(name, **dict.fromkeys(required | optional, value))
    assert not result.is_error or result.output.startswith(f"{name}: ")
    missing = box.call(name)
    assert missing.is_error
    assert missing.output.endswith(" is required")


@pytest.mark.parametrize("name", ["write", "edit", "apply_patch", "bash"])
def test_tools_that_change_something_do_not_run_side_by_side(name: str, tmp_path: Path) -> None:
    """Two edits of one turn run one after the other, and one that was cut is not simply run again."""
    tool = Box(tmp_path).tools[name]
    assert not tool.parallel
    assert not tool.idempotent


def test_an_ended_scope_ends_a_search(tmp_path: Path) -> None:
    """A tool that is called after the cancel gives an error instead of working."""
    box = Box(tmp_path)
    box.put("a.txt", "x")
    ctx = Context()
    ctx.scope.cancel()
    assert box.call("grep", ctx, pattern="x").output == "grep: the run was cancelled"


def test_importing_them_loads_no_extra() -> None:
    """The built-ins load neither what converts pages nor what reads ignore files, nor TLS of their own."""
    code = (
        "import sys; import toolnexus.tools.builtins as b; b.builtin_tools(True);"
        "assert not {'markdownify', 'bs4', 'pathspec', 'toolnexus.tools.builtins.fetch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
