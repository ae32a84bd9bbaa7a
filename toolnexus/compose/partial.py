"""
Where a pattern could still match once more text has come.

From a regular expression R this makes another one, which matches from a position to the end of the
text exactly if the text from there on does not decide yet whether and how far R matches: the text
ends in the middle of a match, or a match that is there could grow, or R looks at what comes behind.
What stands before the first such position is settled, whatever comes.
"""

from __future__ import annotations

import functools
import re
import warnings
from operator import or_
from typing import Any

__all__ = ["Unsettled", "analyse", "combined"]


def _modules() -> tuple[Any, Any]:
    """Return the parser and the compiler behind `re`, which have moved in Python 3.11."""
    try:
        from re import _compiler, _parser  # type: ignore[attr-defined]
    except ImportError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import sre_compile as _compiler
            import sre_parse as _parser
    return _parser, _compiler


_parser, _compiler = _modules()

_SINGLE = {_parser.LITERAL, _parser.NOT_LITERAL, _parser.ANY, _parser.IN}
_REPEATS = {
    getattr(_parser, name)
    for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
    if hasattr(_parser, name)
}
_ATOMIC = getattr(_parser, "ATOMIC_GROUP", None)
_BACKWARDS = {_parser.AT_BEGINNING, _parser.AT_BEGINNING_STRING}

#: The flags that can hold for a part of a pattern.
_SCOPED = functools.reduce(or_, (re.IGNORECASE, re.MULTILINE, re.DOTALL, re.ASCII), re.RegexFlag(0))

_Item = tuple[Any, Any]


class Unsettled:
    """
    What was found out about a pattern.

    Args:
        pattern: The pattern itself.
        items: The parts of the one that matches where it is not settled.
        state: What the parser knows beside them.
        behind: How many characters before a match the pattern looks at, at most.
        solid: Whether there is no blank and no line end in anything that the pattern matches or looks at.
    """

    def __init__(
        self, pattern: re.Pattern[str], items: list[_Item], state: Any, behind: int, solid: bool
    ) -> None:
        self.pattern = pattern
        self.items = items
        self.state = state
        self.behind = behind
        self.solid = solid


# Both are kept, since they take milliseconds, and streams are often made with the same rules.
@functools.lru_cache(256)
def analyse(pattern: re.Pattern[str]) -> Unsettled | None:
    """Return where a pattern is unsettled; None for one that cannot be analysed."""
    try:
        tree = _parser.parse(pattern.pattern, pattern.flags)
        maker = _Maker(tree.state)
        items = maker.sequence(list(tree))
        solid = not _takes_blanks(list(tree), tree.state, pattern.flags)
        found = Unsettled(pattern, items, tree.state, maker.behind, solid)
        combined((found,))
    except (RecursionError, ValueError, TypeError, AttributeError, NotImplementedError, re.error):
        return None
    return found


@functools.lru_cache(256)
def combined(patterns: tuple[Unsettled, ...]) -> re.Pattern[str]:
    """Return one pattern that matches, up to the end of the text, where any of these is unsettled."""
    branches = []
    state = None
    for one in patterns:
        state = state or one.state
        flags = int(one.pattern.flags & _SCOPED)
        whole = _parser.SubPattern(state, list(one.items))
        branches.append(_parser.SubPattern(state, [(_parser.SUBPATTERN, (None, flags, 0, whole))]))
    if state is None:
        return re.compile(r"(?!)")
    tree = _parser.SubPattern(state, [(_parser.BRANCH, (None, branches))])
    found: re.Pattern[str] = _compiler.compile(tree, 0)
    return found


def _takes_blanks(items: list[_Item], state: Any, flags: int) -> bool:
    """Tell whether a part of a pattern matches a blank or a line end."""
    for op, value in items:
        if op in _SINGLE:
            one = _compiler.compile(_parser.SubPattern(state, [(op, value)]), flags & int(_SCOPED))
            if one.match(" ") or one.match("\n"):
                return True
        elif op == _parser.BRANCH:
            if any(_takes_blanks(list(branch), state, flags) for branch in value[1]):
                return True
        elif op in (_parser.GROUPREF, _parser.AT):
            return True  # not worth a closer look
        elif op != _parser.FAILURE and _takes_blanks(list(_inner(op, value)), state, flags):
            return True
    return False


def _inner(op: Any, value: Any) -> Any:
    """Return what a group, a repetition or an assertion is about."""
    return value if op == _ATOMIC else value[-1]


class _Maker:
    """Turns the parts of a pattern into parts that match where the text ends within them."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.behind = 1
        self._end: _Item = (_parser.AT, _parser.AT_END_STRING)
        nothing = _parser.SubPattern(state, [])
        self._never: _Item = (_parser.ASSERT_NOT, (1, nothing))

    def _sub(self, items: list[_Item]) -> Any:
        return _parser.SubPattern(self._state, items)

    def _either(self, alternatives: list[list[_Item]]) -> list[_Item]:
        alternatives = [items for items in alternatives if items != [self._never]]
        if not alternatives:
            return [self._never]
        if len(alternatives) == 1:
            return alternatives[0]
        return [(_parser.BRANCH, (None, [self._sub(items) for items in alternatives]))]

    def sequence(self, items: list[_Item]) -> list[_Item]:
        """The text ends in the first part, or behind it in what follows."""
        rest: list[_Item] = [self._never]
        for item in reversed(items):
            behind = [self._plain(item), *rest] if rest != [self._never] else rest
            rest = self._either([self._within(item), behind])
        return rest

    def _plain(self, item: _Item) -> _Item:
        """Return a part as it is, but one that may give back what it took: more is possible, never less."""
        op, value = item
        if _ATOMIC is not None and op == _ATOMIC:
            return _parser.SUBPATTERN, (None, 0, 0, value)
        if op in _REPEATS and op not in (_parser.MAX_REPEAT, _parser.MIN_REPEAT):
            return _parser.MAX_REPEAT, value
        return item

    def _within(self, item: _Item) -> list[_Item]:
        """Return what matches where the text ends within a part."""
        op, value = item
        if op in _SINGLE:
            return [self._end]
        if op == _parser.BRANCH:
            return self._either([self.sequence(list(branch)) for branch in value[1]])
        if op == _parser.SUBPATTERN:
            _, add, remove, inner = value
            return [(_parser.SUBPATTERN, (None, add, remove, self._sub(self.sequence(list(inner)))))]
        if _ATOMIC is not None and op == _ATOMIC:
            return self.sequence(list(value))
        if op in _REPEATS:
            return self._repeated(*value)
        if op == _parser.AT:
            return self._at(value)
        if op in (_parser.ASSERT, _parser.ASSERT_NOT):
            return self._assertion(*value)
        if op == _parser.FAILURE:
            return [self._never]
        if op == _parser.GROUPREF:
            # What the group holds is not known here: anything may be the beginning of it.
            anything = self._sub([(_parser.IN, [(_parser.RANGE, (0, 0x10FFFF))])])
            return [(_parser.MAX_REPEAT, (0, _parser.MAXREPEAT, anything)), self._end]
        raise NotImplementedError(str(op))

    def _repeated(self, _: int, most: int, inner: Any) -> list[_Item]:
        if most == 0:
            return [self._never]
        within = self.sequence(list(inner))
        if within == [self._never]:
            return within
        before = most if most == _parser.MAXREPEAT else most - 1
        return [(_parser.MAX_REPEAT, (0, before, inner)), *within]

    def _at(self, where: Any) -> list[_Item]:
        if where in _BACKWARDS:
            return [self._never]
        if where == _parser.AT_END:
            line_end = self._sub([(_parser.LITERAL, 10)])
            return [(_parser.MAX_REPEAT, (0, 1, line_end)), self._end]
        return [self._end]

    def _assertion(self, direction: int, inner: Any) -> list[_Item]:
        if direction < 0:
            self.behind = max(self.behind, int(inner.getwidth()[1]))
            return [self._never]
        return self.sequence(list(inner))
