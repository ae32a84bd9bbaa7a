"""What a skill is, and what a look for skills found."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

__all__ = ["Skill", "SkillDef", "SkillInventory", "SkillSkip"]


def _optional_names(value: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names as a tuple; a single text stands for itself, not for its letters."""
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


def _names(value: Sequence[str]) -> tuple[str, ...]:
    return _optional_names(value) or ()


@attrs.frozen
class SkillDef:
    """
    A skill that is given as data instead of a folder.

    Args:
        name: The name the model loads it by.
        content: The instructions, in Markdown.
        description: When to use it; without one it is not in the catalogue.
        resources: Names of further material, listed when the skill is loaded.
        base: Where the resources are; ``skill://NAME/`` by default.
        allowed_tools: The only tools that may run once the skill is loaded; None for no restriction.

    >>> SkillDef("greet", "Say hello.", "Greets people.").name
    'greet'
    """

    name: str
    content: str
    description: str | None = None
    resources: tuple[str, ...] = attrs.field(default=(), converter=_names)
    base: str | None = None
    allowed_tools: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_names)


@attrs.frozen
class Skill:
    """
    A skill that was found.

    Args:
        name: The name the model loads it by.
        description: When to use it, on one line; None keeps it out of the catalogue.
        content: The instructions, without the front matter.
        location: The path of its ``SKILL.md``, or None for a skill given as data.
        folder: The real path of its folder, or None for a skill given as data.
        base: The address that its resources are relative to.
        resources: The resources of a skill given as data.
        allowed_tools: The only tools that may run once it is loaded; None for no restriction.
        license: What its front matter says.
        compatibility: What its front matter says.
        metadata: What its front matter says.
        warnings: Departures from the format that did not keep it from being loaded.
    """

    name: str
    description: str | None
    content: str = attrs.field(repr=False)
    location: str | None = None
    folder: str | None = None
    base: str = ""
    resources: tuple[str, ...] = ()
    allowed_tools: frozenset[str] | None = None
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] = attrs.field(factory=dict)
    warnings: tuple[str, ...] = ()


@attrs.frozen
class SkillSkip:
    """
    A skill that was not loaded.

    Args:
        location: The file or folder.
        reason: "missing-name", "invalid-name", "malformed-frontmatter", "malformed-allowed-tools",
            "duplicate-name", "too-large", "unreadable" or "missing-folder".
        detail: What exactly is wrong.
        line: The line of the file, from 1, where it is known.

    >>> print(SkillSkip("pdf/SKILL.md", "malformed-frontmatter", "mapping values are not allowed here", 3))
    pdf/SKILL.md:3: malformed-frontmatter: mapping values are not allowed here
    """

    location: str
    reason: str
    detail: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = self.location if self.line is None else f"{self.location}:{self.line}"
        return f"{where}: {self.reason}" + (f": {self.detail}" if self.detail else "")


@attrs.frozen
class SkillInventory:
    """
    What a look for skills found, before any filter.

    Args:
        skills: The skills that can be loaded, sorted by name.
        skipped: Those that cannot, with the reason, in the order in which they were met.
    """

    skills: tuple[Skill, ...] = ()
    skipped: tuple[SkillSkip, ...] = ()
