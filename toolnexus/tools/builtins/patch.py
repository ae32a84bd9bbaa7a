"""The built-in that changes several files at once: apply_patch."""

from __future__ import annotations

import os
from typing import Any

import attrs

from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins.base import Options, define, text
from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.files import CHANGING, read_text
from toolnexus.tools.builtins.patch_text import Section, apply_hunks, parse_patch
from toolnexus.tools.builtins.root import Root
from toolnexus.tools.builtins.texts import TextFile
from toolnexus.tools.builtins.transaction import Change, commit

__all__ = ["patch_tools"]

_DESCRIPTION = """Change several files in one step: all of it is done, or nothing.
The patch has this form:
*** Begin Patch
*** Add File: path
+each line of the new file
*** Update File: path
*** Move to: new path (optional)
@@ a line above the change (optional)
 a line that stays
-a line that goes
+a line that comes
*** Delete File: path
*** End Patch"""


def patch_tools(options: Options) -> list[Tool]:
    """Return apply_patch."""
    return [
        define(
            apply_patch,
            options,
            description=_DESCRIPTION,
            properties={"patchText": {"type": "string", "description": "The patch."}},
            required=("patchText",),
        )
    ]


def apply_patch(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Apply a patch whole or not at all."""
    sections = parse_patch(text(args, "patchText"))
    with CHANGING:
        draft = _Draft(options.root)
        for section in sections:
            draft.apply(section)
            ctx.scope.check()
        commit(options.root, draft.changes(), ctx)
    count = len(sections)
    done = {"Add": "added", "Update": "updated", "Delete": "deleted"}
    paths = {word: [s.path for s in sections if s.kind == kind] for kind, word in done.items()}
    return ToolResult.ok(f"Applied patch: {count} file operation{'s' if count != 1 else ''}", **paths)


@attrs.define
class _Draft:
    """The files of a patch as they would be: each section sees what those before it did."""

    root: Root
    #: What is on the disk, by real path; None for no file.
    found: dict[str, os.stat_result | None] = attrs.field(factory=dict)
    #: What is to be there, by real path; None for no file.
    files: dict[str, TextFile | None] = attrs.field(factory=dict)
    #: The file whose permissions a moved one keeps.
    like: dict[str, os.stat_result | None] = attrs.field(factory=dict)

    def apply(self, section: Section) -> None:
        """
        Take a section in.

        Raises:
            ToolFailure: It does not fit the files.
        """
        real = self._look(section.path)
        if section.kind == "Add":
            self._must_be_free(real, section.path)
            added = TextFile(section.content)
            added.with_body("").check_insert(added.body, section.path)
            self.files[real] = added
            return
        if not self._exists(real):
            raise ToolFailure(f"file not found: {section.path}")
        if section.kind == "Delete":
            self.files[real] = None
        elif not section.hunks and section.move_to is None:
            raise ToolFailure(f"no changes for {section.path}")
        else:
            self._update(real, section)

    def _update(self, real: str, section: Section) -> None:
        file = self._text(real, section.path)
        changed = apply_hunks(file, section.hunks)
        for line in (line for hunk in section.hunks for line in hunk.new):
            file.check_insert(line, section.path)
        self.files[real] = changed
        if section.move_to is None:
            return
        target = self._look(section.move_to)
        if target != real:
            self._must_be_free(target, section.move_to)
            self.files[target], self.files[real] = changed, None
            self.like[target] = self.like.get(real) or self.found[real]

    def _exists(self, real: str) -> bool:
        return (self.files[real] if real in self.files else self.found[real]) is not None

    def _must_be_free(self, real: str, path: str) -> None:
        if self._exists(real):
            raise ToolFailure(f"file already exists: {path}")

    def _look(self, path: str) -> str:
        """Return the real path of a file, and note what is there."""
        real = self.root.resolve(path)
        if real not in self.found:
            try:
                with self.root.place(path) as place:
                    self.found[real] = place.look()
            except (FileNotFoundError, NotADirectoryError):
                self.found[real] = None
        return real

    def _text(self, real: str, path: str) -> TextFile:
        """Return what a file is to hold by now."""
        file = self.files.get(real)
        if file is None:
            with self.root.place(path) as place:
                file, self.found[real] = read_text(place)
        return file

    def changes(self) -> list[Change]:
        """Return what is to be written and deleted; a file that came and went is neither."""
        return [
            Change(real, None if file is None else file.encode(), self.found[real], self.like.get(real))
            for real, file in self.files.items()
            if file is not None or self.found[real] is not None
        ]
