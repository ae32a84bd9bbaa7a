"""The keywords of JSON schema that our checker knows, each with what it says about a value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from toolnexus.tools.json_values import TYPE_NAMES, is_type, same, show, spot

__all__ = ["KNOWN", "Checker"]


class Checker:
    """
    One check of one value.

    Args:
        root: The whole schema, in which local references are looked up.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.problems: list[str] = []
        self._following: set[tuple[str, int]] = set()

    def check(self, schema: Any, value: Any, path: str) -> None:
        """Check a value at a path, and note what is wrong."""
        if schema is False:
            self.say(path, "nothing may be given here")
        if not isinstance(schema, dict):
            return
        if value is None and schema.get("nullable") is True:
            return
        for keyword, rule in schema.items():
            judge = _JUDGES.get(keyword)
            if judge is not None:
                judge(self, rule, value, path, schema)

    def say(self, path: str, message: str) -> None:
        """Note what is wrong at a path."""
        self.problems.append(spot(path, message))

    def trial(self, schema: Any, value: Any, path: str) -> list[str]:
        """Return what is wrong with a value, without noting it."""
        kept, self.problems = self.problems, []
        try:
            self.check(schema, value, path)
            return self.problems
        finally:
            self.problems = kept

    def follow(self, reference: str, value: Any, path: str) -> None:
        """Check a value against another part of the whole schema."""
        # The same reference at the same value again would go round for ever.
        step = (reference, id(value))
        if step in self._following:
            return
        self._following.add(step)
        try:
            self.check(self._target(reference), value, path)
        finally:
            self._following.discard(step)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return True
        found: Any = self.root
        for part in unquote(reference[1:]).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                return True
        return found


Judge = Callable[[Checker, Any, Any, str, dict[str, Any]], None]


# -- what each keyword says ------------------------------------------------------------------


def _type(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    names = [name for name in (rule if isinstance(rule, list) else [rule]) if isinstance(name, str)]
    if names and not any(is_type(name, value) for name in names):
        wanted = " or ".join(TYPE_NAMES.get(name, name) for name in names)
        c.say(path, f"expected {wanted}, got {show(value)}")


def _enum(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(rule, list) and not any(same(option, value) for option in rule):
        c.say(path, f"expected one of {_options(rule)}, got {show(value)}")


def _options(values: list[Any]) -> str:
    return ", ".join(map(show, values[:50])) + (", ..." if len(values) > 50 else "")


def _const(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if not same(rule, value):
        c.say(path, f"expected {show(rule)}, got {show(value)}")


def _properties(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, dict) and isinstance(rule, dict):
        for name, inner in rule.items():
            if name in value:
                c.check(inner, value[name], f"{path}.{name}")


def _required(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, dict) and isinstance(rule, list):
        for name in rule:
            if isinstance(name, str) and name not in value:
                c.say(path, f"{show(name)} is missing")


def _additional(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if not isinstance(value, dict) or rule is True:
        return
    known = _mapping(schema.get("properties"))
    patterns = _mapping(schema.get("patternProperties"))
    for name in value:
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if rule is False:
            c.say(path, f"{show(name)} is not known; known: {', '.join(known) or 'none'}")
        else:
            c.check(rule, value[name], f"{path}.{name}")


def _mapping(rule: Any) -> dict[str, Any]:
    return rule if isinstance(rule, dict) else {}


def _pattern_properties(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, dict) and isinstance(rule, dict):
        for pattern, inner in rule.items():
            for name in value:
                if _matches(pattern, name):
                    c.check(inner, value[name], f"{path}.{name}")


def _property_names(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for name in value:
            for problem in c.trial(rule, name, ""):
                c.say(path, f"name {show(name)}: {problem}")


def _items(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if not isinstance(value, list):
        return
    if isinstance(rule, list):  # as in older drafts
        _prefix_items(c, rule, value, path, schema)
        return
    prefix = schema.get("prefixItems")
    start = len(prefix) if isinstance(prefix, list) else 0
    for index in range(start, len(value)):
        c.check(rule, value[index], f"{path}[{index}]")


def _prefix_items(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, list) and isinstance(rule, list):
        for index, (inner, item) in enumerate(zip(rule, value, strict=False)):
            c.check(inner, item, f"{path}[{index}]")


def _any_of(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    failures = []
    for inner in rule if isinstance(rule, list) else ():
        problems = c.trial(inner, value, path)
        if not problems:
            return
        failures.append((inner, problems))
    c.problems.extend(_closest(failures, value, path))


def _closest(failures: list[tuple[Any, list[str]]], value: Any, path: str) -> list[str]:
    """Return the complaints of the alternative that was meant, or one about all of them."""
    near = [problems for inner, problems in failures if _has_type(inner, value)]
    if len(near) == 1:
        return near[0]
    wanted = dict.fromkeys(_wanted(inner) for inner, _ in failures)
    if not near and None not in wanted:
        return [spot(path, f"expected {' or '.join(map(str, wanted)) or 'nothing'}, got {show(value)}")]
    reasons = dict.fromkeys(problems[0] for _, problems in failures)
    return [spot(path, f"fits none of the alternatives ({'; or '.join(reasons)})")]


def _has_type(schema: Any, value: Any) -> bool:
    names = schema.get("type") if isinstance(schema, dict) else None
    names = names if isinstance(names, list) else [names]
    return any(isinstance(name, str) and is_type(name, value) for name in names)


def _wanted(schema: Any) -> str | None:
    """Return in words what a simple schema takes, or None for any other."""
    if not isinstance(schema, dict):
        return None
    if isinstance(schema.get("enum"), list):
        return f"one of {_options(schema['enum'])}"
    name = schema.get("type")
    return TYPE_NAMES.get(name) if isinstance(name, str) else None


def _one_of(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if not isinstance(rule, list):
        return
    fitting = sum(not c.trial(inner, value, path) for inner in rule)
    if fitting == 0:
        _any_of(c, rule, value, path, schema)
    elif fitting > 1:
        c.say(path, f"fits {fitting} alternatives, and only one may fit; got {show(value)}")


def _all_of(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    for inner in rule if isinstance(rule, list) else ():
        c.check(inner, value, path)


def _not(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if not c.trial(rule, value, path):
        c.say(path, f"may not be {show(value)}")


def _ref(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(rule, str):
        c.follow(rule, value, path)


def _bound(
    c: Checker,
    rule: Any,
    value: Any,
    path: str,
    schema: dict[str, Any],
    *,
    word: str,
    fits: Callable[..., bool],
) -> None:
    if is_type("number", value) and is_type("number", rule) and not fits(value, rule):
        c.say(path, f"expected {word} {show(rule)}, got {show(value)}")


def _minimum(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if schema.get("exclusiveMinimum") is True:  # as in draft 4 and OpenAPI 3.0
        _bound(c, rule, value, path, schema, word="more than", fits=lambda v, r: v > r)
    else:
        _bound(c, rule, value, path, schema, word="at least", fits=lambda v, r: v >= r)


def _maximum(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if schema.get("exclusiveMaximum") is True:
        _bound(c, rule, value, path, schema, word="less than", fits=lambda v, r: v < r)
    else:
        _bound(c, rule, value, path, schema, word="at most", fits=lambda v, r: v <= r)


def _is_multiple(value: float, rule: float) -> bool:
    if rule == 0:
        return True  # says nothing
    if isinstance(value, int) and isinstance(rule, int):
        return value % rule == 0
    with contextlib.suppress(OverflowError):
        return (value / rule) % 1 == 0
    return False


def _length(
    c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any], *, cls: type, least: bool, noun: str
) -> None:
    if isinstance(value, cls) and is_type("number", rule):
        size = len(value)  # type: ignore[arg-type]
        if size < rule if least else size > rule:
            word = "at least" if least else "at most"
            c.say(path, f"expected {word} {show(rule)} {noun}, got {size}")


def _pattern(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if isinstance(value, str) and isinstance(rule, str) and not _matches(rule, value):
        c.say(path, f"expected text that matches {rule}, got {show(value)}")


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # written for another language's expressions: nothing can be said
        return True


def _unique(c: Checker, rule: Any, value: Any, path: str, schema: dict[str, Any]) -> None:
    if rule is not True or not isinstance(value, list):
        return
    seen = set()
    for index, item in enumerate(value):
        frozen = _frozen(item)
        if frozen in seen:
            c.say(f"{path}[{index}]", f"expected no value twice, got {show(item)} again")
            return
        seen.add(frozen)


def _frozen(value: Any) -> Any:
    """Return a hashable stand-in that is equal for values that are the same to JSON."""
    if isinstance(value, list):
        return ("list", *map(_frozen, value))
    if isinstance(value, dict):
        return ("dict", frozenset((k, _frozen(v)) for k, v in value.items()))
    return (isinstance(value, bool), value)


_JUDGES: dict[str, Judge] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "required": _required,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "minProperties": partial(_length, cls=dict, least=True, noun="properties"),
    "maxProperties": partial(_length, cls=dict, least=False, noun="properties"),
    "items": _items,
    "prefixItems": _prefix_items,
    "minItems": partial(_length, cls=list, least=True, noun="items"),
    "maxItems": partial(_length, cls=list, least=False, noun="items"),
    "uniqueItems": _unique,
    "minLength": partial(_length, cls=str, least=True, noun="characters"),
    "maxLength": partial(_length, cls=str, least=False, noun="characters"),
    "pattern": _pattern,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": partial(_bound, word="more than", fits=lambda v, r: v > r),
    "exclusiveMaximum": partial(_bound, word="less than", fits=lambda v, r: v < r),
    "multipleOf": partial(_bound, word="a multiple of", fits=_is_multiple),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _not,
    "$ref": _ref,
}

#: Where the keywords that are understood hold further schemas: in "one", a "list", a "map", or not.
KNOWN: dict[str, str] = {
    **dict.fromkeys(_JUDGES, ""),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames", "not"), "one"),
    **dict.fromkeys(("prefixItems", "anyOf", "oneOf", "allOf"), "list"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), "map"),
    **dict.fromkeys(("title", "description", "default", "examples", "example", "deprecated", "format"), ""),
    **dict.fromkeys(("$schema", "$id", "$comment", "readOnly", "writeOnly", "nullable", "strict"), ""),
    **dict.fromkeys(("contentEncoding", "contentMediaType", "discriminator", "xml", "externalDocs"), ""),
}
