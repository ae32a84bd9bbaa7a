"""
Checks values against JSON schemas, with messages that a model can act on.

The checker knows the keywords that schemas of tools are made of. A schema that a person wrote with
others goes to the ``jsonschema`` package where that is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from toolnexus.tools.base import Tool
from toolnexus.tools.json_values import spot
from toolnexus.tools.keywords import KNOWN, Checker
from toolnexus.tools.schema_parts import target_of

__all__ = ["argument_checker", "check_arguments", "without_nulls"]

#: The most complaints that one check returns; a model needs no more to see what is wrong.
_MAX_PROBLEMS = 20

#: How many references and alternatives in a row are followed.
_MAX_STEPS = 16

Check = Callable[[Any], list[str]]


def check_arguments(schema: Mapping[str, Any], args: Any) -> list[str]:
    """
    Check a value against a JSON schema.

    Args:
        schema: The schema. Keywords that are not known are passed over.
        args: The value; for a tool call the dict of its arguments.

    Returns:
        What is wrong, each with its place; empty where nothing is.

    >>> schema = {"properties": {"items": {"type": "array", "items": {"type": "integer"}}}}
    >>> check_arguments(schema, {"items": [1, 2]})
    []
    >>> check_arguments(schema, {"items": [1, "x"]})
    ['items[1]: expected an integer, got "x"']
    """
    checker = Checker(schema)
    try:
        checker.check(schema, args, "")
    except RecursionError:
        return ["the value is nested too deeply"]
    return _first(checker.problems)


def _first(problems: list[str]) -> list[str]:
    left = len(problems) - _MAX_PROBLEMS
    return problems if left <= 0 else [*problems[:_MAX_PROBLEMS], f"and {left} more"]


#: The checker of each tool. A weak key: a tool's own goes with the tool.
_CHECKERS: weakref.WeakKeyDictionary[Tool, Check] = weakref.WeakKeyDictionary()


def argument_checker(tool: Tool) -> Check:
    """
    Return the function that checks the arguments of a tool, which is `check_arguments` for its schema.

    Where the schema was written by a person, uses keywords that ours does not know, and
    ``jsonschema`` is installed, that does the work.
    """
    found = _CHECKERS.get(tool)
    if found is None:
        schema = tool.input_schema

        def found(args: Any) -> list[str]:
            return check_arguments(schema, args)

        if tool.convert is None and not _is_known(schema):
            found = _complete_check(schema, found)
        _CHECKERS[tool] = found
    return found


def without_nulls(schema: Mapping[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """
    Return the arguments without the nulls that can only mean "not given", at any depth.

    Models like to send ``null`` for an optional argument that they do not want to give, and some
    providers make them. It is left out where the argument is optional and its schema refuses null.
    """
    if not isinstance(args, dict):
        return args
    try:
        pruned: dict[str, Any] = _pruned(schema, schema, args) if _holds_null(args) else args
    except RecursionError:  # nested too deeply, as the check will say
        return args
    return pruned


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list) else value is None


def _pruned(root: Mapping[str, Any], schema: Any, value: Any) -> Any:
    """Return a value without the nulls that its schema does not take."""
    if not isinstance(value, (dict, list)) or not _holds_null(value):
        return value
    schema = _followed(root, schema)
    for alternative in _alternatives(schema):
        tried = _pruned(root, alternative, value)
        if _takes(root, alternative, tried):
            return tried
    if isinstance(value, list):
        prefix = schema.get("prefixItems")
        rules = [*prefix[: len(value)]] if isinstance(prefix, list) else []
        rules += [schema.get("items")] * (len(value) - len(rules))
        return [_pruned(root, rule, item) for rule, item in zip(rules, value, strict=True)]
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return value
    required = schema.get("required", ())
    required = required if isinstance(required, list) else ()
    return {
        name: _pruned(root, properties.get(name), item)
        for name, item in value.items()
        if item is not None
        or name in required
        or name not in properties
        or _takes(root, properties[name], None)
    }


def _takes(root: Mapping[str, Any], schema: Any, value: Any) -> bool:
    checker = Checker(root)
    checker.check(schema, value, "")
    return not checker.problems


def _followed(root: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
    """Follow a schema that is a reference."""
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = target_of(schema["$ref"], root)
    return schema if isinstance(schema, Mapping) else {}


def _alternatives(schema: Mapping[str, Any]) -> list[Any]:
    found = schema.get("anyOf") or schema.get("oneOf")
    return found if isinstance(found, list) else []


def _is_known(schema: Any) -> bool:
    """Whether our checker knows every keyword of a schema."""
    if not isinstance(schema, dict):
        return True
    for keyword, value in schema.items():
        kind = KNOWN.get(keyword)
        if kind is None:
            return False
        if kind == "map" and isinstance(value, dict):
            inner = list(value.values())
        elif kind == "list" and isinstance(value, list):
            inner = value
        else:
            inner = [value] if kind == "one" else []
        if not all(map(_is_known, inner)):
            return False
    return True


def _complete_check(schema: dict[str, Any], ours: Check) -> Check:
    """Return a check by ``jsonschema``, or ours where that is not installed or cannot use the schema."""
    try:
        jsonschema = importlib.import_module("jsonschema")
        referencing = importlib.import_module("referencing")
    except ImportError:
        return ours
    cls = jsonschema.validators.validator_for(schema)
    # An empty registry: the default one fetches references from wherever the schema says.
    validator = cls(schema, registry=referencing.Registry())

    def check(args: Any) -> list[str]:
        with contextlib.suppress(Exception):
            errors = sorted(
                validator.iter_errors(args), key=lambda e: [str(step) for step in e.absolute_path]
            )
            return _first([spot(_path(e.absolute_path), e.message) for e in errors])
        return ours(args)

    return check


def _path(steps: Any) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
