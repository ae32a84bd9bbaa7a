"""
Matching paths against patterns with ``**``, ``*``, ``?`` and ``{a,b}``.

Patterns come from a model, so the time must not depend on what they are: a pattern is followed in
all of its positions at once, never tried and taken back. The sets of positions are remembered, which
makes one step a look into a dict.
"""

from __future__ import annotations

from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["Glob"]

#: The longest pattern in characters, and how many alternatives its braces may give.
MAX_LENGTH = 1000
MAX_ALTERNATIVES = 64
_MAX_REMEMBERED = 20_000

_ANY, _STAR, _ONE = "**", "*", "?"


class Glob:
    """
    A pattern for paths.

    ``*`` and ``?`` stop at a slash and ``**`` does not; a pattern without a slash is matched with
    the last part of a path. Square brackets stand for themselves.

    Args:
        pattern: The pattern.

    Raises:
        ToolFailure: It is too long.

    >>> Glob("*.py").matches("src/a.py"), Glob("src/*.py").matches("src/b/a.py")
    (True, False)
    >>> Glob("src/**/*.{py,pyi}").matches("src/b/a.pyi")
    True
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_LENGTH:
            raise ToolFailure(f"the pattern is longer than {MAX_LENGTH} characters")
        pattern = pattern.removeprefix("./")
        self._name_only = "/" not in pattern
        self._matchers = [_Matcher(_tokens(one)) for one in _alternatives(pattern)]

    def matches(self, path: str) -> bool:
        """Return whether a path, with slashes between its parts, fits the pattern."""
        if self._name_only:
            path = path.rpartition("/")[2]
        return any(matcher.matches(path) for matcher in self._matchers)


def _alternatives(pattern: str) -> list[str]:
    """Return the patterns that the braces of one stand for; nested braces stand for themselves."""
    done, todo = [], [pattern]
    while todo:
        one = todo.pop()
        start = one.find("{")
        end = one.find("}", start)
        inner = one[start + 1 : end] if 0 <= start < end else ""
        if "," not in inner or "{" in inner:
            done.append(one)
            continue
        todo += [one[:start] + choice + one[end + 1 :] for choice in inner.split(",")]
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise ToolFailure(f"the braces of the pattern give more than {MAX_ALTERNATIVES} patterns")
    return done


def _tokens(pattern: str) -> list[str]:
    """Split a pattern; two stars take the slash behind them with them, so that they match nothing, too."""
    tokens: list[str] = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**", i):
            tokens.append(_ANY)
            i += 3 if pattern.startswith("/", i + 2) else 2
        else:
            tokens.append(pattern[i] if pattern[i] in "*?" else "=" + pattern[i])
            i += 1
    return tokens


class _Matcher:
    """Follows one pattern along a path, in all positions that it may be at."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.start = self._closed({0})
        self.steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, path: str) -> bool:
        at = self.start
        for char in path:
            key = (at, char)
            following = self.steps.get(key)
            if following is None:
                if len(self.steps) > _MAX_REMEMBERED:
                    self.steps.clear()
                following = self.steps[key] = self._step(at, char)
            if not following:
                return False
            at = following
        return len(self.tokens) in at

    def _step(self, at: frozenset[int], char: str) -> frozenset[int]:
        """Return the positions after one more character."""
        after = set()
        for i in at:
            token = self.tokens[i] if i < len(self.tokens) else ""
            if token == _ANY or (token == _STAR and char != "/"):
                after.add(i)
            elif token == "=" + char or (token == _ONE and char != "/"):
                after.add(i + 1)
        return self._closed(after)

    def _closed(self, positions: set[int]) -> frozenset[int]:
        """Add the positions behind stars, which may match nothing."""
        todo = list(positions)
        while todo:
            i = todo.pop()
            if i < len(self.tokens) and self.tokens[i] in (_ANY, _STAR) and i + 1 not in positions:
                positions.add(i + 1)
                todo.append(i + 1)
        return frozenset(positions)
