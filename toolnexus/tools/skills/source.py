"""The skills of a toolkit: their catalogue, the tool that loads them, and what they restrict."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.results import Message
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.skills import reading
from toolnexus.tools.skills.discovery import find, sibling_files
from toolnexus.tools.skills.model import Skill, SkillDef, SkillInventory, SkillSkip

__all__ = ["SkillSet", "list_skills", "load_skills"]

logger = logging.getLogger("toolnexus.skills")

Dirs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

#: The name of the tool that loads a skill.
TOOL_NAME = "skill"
DEFAULT_SAMPLE = 10

_PREAMBLE = (
    "Skills are instructions for particular kinds of task. When a task fits the description of one of the "
    f"skills below, call the `{TOOL_NAME}` tool with its name and follow what it returns before you go on."
)
_DESCRIPTION = (
    "Load a skill: returns its full instructions and where its files are. "
    "Use it when the task fits the description of one of the available skills."
)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name of a skill from the list of available skills."}
    },
    "required": ["name"],
    "additionalProperties": False,
}


@attrs.frozen
class SkillSet:
    """
    The skills that a run may load.

    Args:
        skills: The skills by name, sorted.
        inventory: All that was found, before the filter, and what was skipped and why.
        sample_limit: How many of a skill's files are listed when it is loaded; -1 leaves the list out.

    >>> skills = load_skills((), skills=[SkillDef("greet", "Say hello.", "Greets people.")])
    >>> print(skills.prompt().splitlines()[-1])
    - **greet**: Greets people.
    >>> skills.tool().execute({"name": "greet"}, Context()).metadata
    {'name': 'greet', 'dir': 'skill://greet/'}
    """

    skills: dict[str, Skill] = attrs.field(factory=dict)
    inventory: SkillInventory = attrs.field(factory=SkillInventory)
    sample_limit: int = DEFAULT_SAMPLE

    def prompt(self) -> str:
        """Return the catalogue for the system prompt: the name and description of every described skill."""
        described = [skill for skill in self.skills.values() if skill.description is not None]
        if not described:
            return "No skills are currently available."
        lines = [f"- **{skill.name}**: {skill.description}" for skill in described]
        return "\n".join([_PREAMBLE, "", "## Available Skills", *lines])

    def tool(self) -> Tool:
        """
        Return the tool that loads a skill.

        It is not run beside other calls: what it loads may restrict them.
        """
        return Tool(
            TOOL_NAME,
            _DESCRIPTION,
            _SCHEMA,
            self._execute,
            source="skill",
            parallel=False,
            idempotent=True,
            on_interrupted="retry",
        )

    def _execute(self, args: dict[str, Any], ctx: Context) -> ToolResult:
        name = str(args.get("name", ""))
        skill = self.skills.get(name)
        if skill is None:
            known = ", ".join(self.skills) or "none"
            return ToolResult.error(f'Skill "{name}" not found. Available skills: {known}')
        return ToolResult.ok(self.render(skill), name=skill.name, dir=skill.folder or skill.base)

    def render(self, skill: Skill) -> str:
        """Return what the model sees of a skill once it is loaded."""
        lines = [
            f'<skill_content name="{skill.name}">',
            f"# Skill: {skill.name}",
            "",
            skill.content.strip(),
            "",
            f"Base directory for this skill: {skill.base}",
            "Relative paths in this skill (e.g., scripts/, reference/) are relative to this base directory.",
        ]
        files = self._files(skill)
        if files is not None:
            listed = "\n".join(f"<file>{file}</file>" for file in files)
            lines += ["Note: file list is sampled.", "", "<skill_files>", listed, "</skill_files>"]
        return "\n".join([*lines, "</skill_content>"])

    def _files(self, skill: Skill) -> Sequence[str] | None:
        """Return the files to list, or None for no list."""
        if self.sample_limit == -1:
            return None
        if skill.folder is None:
            return skill.resources[: self.sample_limit] or None
        return sibling_files(skill.folder, self.sample_limit)

    def allowed_tools(self, name: str) -> frozenset[str] | None:
        """
        Return the only tools that may run once a skill is loaded, as it names them.

        Returns:
            The names; None for a skill without a restriction.

        Raises:
            KeyError: There is no such skill.
        """
        return self.skills[name].allowed_tools

    def permits(self, active: Collection[str], tool_name: str) -> bool:
        """
        Return whether a tool may run now.

        A tool runs when every restriction among the loaded skills names it. The names are compared
        without regard to case, ``mcp__server__tool`` counts as ``server_tool``, and ``*`` in a
        restriction stands for anything. Loading a further skill is always permitted.

        Args:
            active: The names of the skills that the run has loaded. One that is not in this set
                permits nothing, for what it restricts is not known.
            tool_name: The name under which the model calls the tool.

        >>> skills = load_skills((), skills=[SkillDef("look", "Only look.", allowed_tools=["Read", "Grep"])])
        >>> skills.permits({"look"}, "read"), skills.permits({"look"}, "bash"), skills.permits(set(), "bash")
        (True, False, True)
        """
        return self.denial(active, tool_name) is None

    def denial(self, active: Collection[str], tool_name: str) -> str | None:
        """Return why a tool may not run now, as a text for the model, or None when it may."""
        if tool_name == TOOL_NAME:
            return None
        for name in sorted(active):
            skill = self.skills.get(name)
            allowed = frozenset() if skill is None else skill.allowed_tools
            if allowed is not None and not _names(allowed, tool_name):
                listed = ", ".join(sorted(allowed)) or "none"
                return f'Tool "{tool_name}" is not allowed by the skill "{name}". Allowed tools: {listed}'
        return None

    def active_in(self, messages: Iterable[Message]) -> set[str]:
        """
        Return the skills of this set that a transcript has loaded, for a run that goes on with it.

        Args:
            messages: The neutral transcript.
        """
        asked: dict[str, str] = {}
        active: set[str] = set()
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call.get("function") or {}
                if function.get("name") == TOOL_NAME:
                    asked[str(call.get("id"))] = _name_argument(function.get("arguments"))
            if message.get("role") == "tool":
                name = asked.get(str(message.get("tool_call_id")), "")
                if str(message.get("content")).startswith(f'<skill_content name="{name}">'):
                    active.add(name)
        return active & self.skills.keys()


def _names(allowed: Collection[str], tool_name: str) -> bool:
    """Whether a restriction names a tool."""
    wanted = reading.normal_tool_name(tool_name)
    return any(fnmatchcase(wanted, reading.normal_tool_name(name)) for name in allowed)


def _name_argument(arguments: Any) -> str:
    """Return the name in the arguments of a call of the skill tool, or an empty text."""
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return ""
    return str(decoded.get("name", "")) if isinstance(decoded, dict) else ""


def load_skills(
    dirs: Dirs = (),
    *,
    skills: Iterable[SkillDef] | None = None,
    filter: Mapping[str, bool] | Iterable[str] | None = None,  # noqa: A002 - the word of the reference
    sample_limit: int = DEFAULT_SAMPLE,
) -> SkillSet:
    """
    Find the skills in folders, and take others as data.

    A skill that cannot be read, or whose ``allowed-tools`` cannot be read, is left out: it is in
    ``inventory.skipped`` with the reason, and logged as a warning with its file and line.

    Args:
        dirs: A folder or several; they are searched for ``SKILL.md`` files with everything below them.
        skills: Skills given as data; a folder's skill of the same name comes first.
        filter: Names mapped to True or False. With any True, only those are kept; otherwise those
            that are False are dropped. A list of names keeps those. None or empty keeps all.
        sample_limit: How many files of a skill are listed when it is loaded, 10 by default and for
            0; -1 for no list.

    Returns:
        The skills.

    Raises:
        ConfigurationError: An option is wrong.
        MissingExtraError: A ``SKILL.md`` was found and PyYAML is not installed.
    """
    if not isinstance(sample_limit, int) or isinstance(sample_limit, bool) or sample_limit < -1:
        raise ConfigurationError("sample_limit is -1, 0 or a number of files")
    inventory = list_skills(dirs, skills=skills)
    for skip in inventory.skipped:
        logger.warning("skill not loaded: %s", skip)
    kept = _filtered({skill.name: skill for skill in inventory.skills}, filter)
    return SkillSet(kept, inventory, sample_limit or DEFAULT_SAMPLE)


def list_skills(dirs: Dirs = (), *, skills: Iterable[SkillDef] | None = None) -> SkillInventory:
    """
    Return what there is: the skills that can be loaded and those that cannot, with the reasons.

    Args:
        dirs: A folder or several.
        skills: Skills given as data.

    Raises:
        MissingExtraError: A ``SKILL.md`` was found and PyYAML is not installed.
    """
    found: dict[str, Skill] = {}
    skipped: list[SkillSkip] = []
    for item in _candidates(dirs, skills):
        if isinstance(item, SkillSkip):
            skipped.append(item)
        elif item.name in found:
            first = found[item.name]
            detail = f"{item.name!r} is already at {first.location or first.base}"
            skipped.append(SkillSkip(item.location or item.base, "duplicate-name", detail))
        else:
            found[item.name] = item
    return SkillInventory(tuple(sorted(found.values(), key=lambda skill: skill.name)), tuple(skipped))


def _candidates(dirs: Dirs, skills: Iterable[SkillDef] | None) -> Iterable[Skill | SkillSkip]:
    seen: set[str] = set()
    for folder in [dirs] if isinstance(dirs, (str, os.PathLike)) else dirs:
        for item in find(Path(folder).expanduser()):
            if isinstance(item, SkillSkip):
                yield item
                continue
            real = os.path.realpath(item)
            if real not in seen:  # the same file by two ways is not two skills
                seen.add(real)
                yield reading.from_file(item)
    for definition in skills or ():
        yield reading.from_data(definition)


def _filtered(
    skills: dict[str, Skill], chosen: Mapping[str, bool] | Iterable[str] | None
) -> dict[str, Skill]:
    """Return the skills that a filter keeps."""
    if isinstance(chosen, str):
        raise ConfigurationError("filter is a map of names to True or False, or a list of names")
    wanted = dict(chosen) if isinstance(chosen, Mapping) else dict.fromkeys(chosen or (), True)
    for name in wanted.keys() - skills.keys():
        logger.warning("the skill filter names %r, and there is no such skill", name)
    if any(value is True for value in wanted.values()):
        return {name: skill for name, skill in skills.items() if wanted.get(name) is True}
    return {name: skill for name, skill in skills.items() if wanted.get(name) is not False}
