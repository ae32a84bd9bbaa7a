"""Arguments of a call that come value by value, each with its place as a JSONPath."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["PartialArguments"]

_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")

#: A list is never longer than this because of what a place says.
_MAX_INDEX = 10_000


class PartialArguments:
    """
    Puts arguments together from their values.

    >>> arguments = PartialArguments()
    >>> arguments.add({"jsonPath": "$.names[0]", "stringValue": "Bos", "willContinue": True})
    >>> arguments.add({"jsonPath": "$.names[0]", "stringValue": "ton"})
    >>> arguments.value()
    {'names': ['Boston']}
    """

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}

    def add(self, part: dict[str, Any]) -> None:
        """
        Take in one value, or the next piece of a text.

        Raises:
            ValueError: Its place is none.
        """
        path = str(part.get("jsonPath"))
        value = next((part[key] for key in _VALUES if key in part), None)
        if "nullValue" in part:
            value = None
        if isinstance(value, str):
            pieces = self._pieces.setdefault(path, [])
            pieces.append(value)
            if part.get("willContinue"):
                return
            value = "".join(self._pieces.pop(path))
        _put(self._root, _steps(path), value)

    def value(self) -> dict[str, Any]:
        """Return the arguments so far."""
        for path, pieces in self._pieces.items():
            _put(self._root, _steps(path), "".join(pieces))
        return self._root


def _steps(path: str) -> list[str | int]:
    """Return the names and positions in a path."""
    steps: list[str | int] = []
    at = 1
    while path.startswith("$") and at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            break
        name, position, single, double = match.groups()
        steps.append(int(position) if position else name or re.sub(r"\\(.)", r"\1", single or double or ""))
        at = match.end()
    if not steps or at < len(path) or not isinstance(steps[0], str):
        raise ValueError(f"{path[:80]!r} is no place of an argument")
    return steps


def _put(root: dict[str, Any], steps: list[str | int], value: Any) -> None:
    """Put a value at its place; what is on the way there is made."""
    here: Any = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(here, list) or step > _MAX_INDEX:
                raise ValueError(f"the arguments have no place {step}")
            here.extend([None] * (step + 1 - len(here)))
            known = here[step]
        elif isinstance(here, dict):
            known = here.get(step)
        else:
            raise ValueError(f"the arguments have no place {step!r}")
        if following is None:
            here[step] = value
            return
        if known is None:
            known = here[step] = [] if isinstance(following, int) else {}
        here = known
