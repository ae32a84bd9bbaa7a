"""The built-ins that touch nothing: question, which asks a person, and todowrite."""

from __future__ import annotations

import json
from typing import Any

from toolnexus.suspension import pending
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins.base import Options, define
from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["question_tools", "todo_tools"]


def question_tools(options: Options) -> list[Tool]:
    """Return question."""
    item = {
        "type": "object",
        "properties": {
            "question": {"type": "string", "description": "The question."},
            "header": {"type": "string", "description": "A short title for it."},
            "options": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Answers to choose from.",
            },
            "multiple": {"type": "boolean", "description": "Whether several may be chosen."},
        },
        "required": ["question"],
        "additionalProperties": False,
    }
    return [
        define(
            question,
            options,
            description="Ask the user one or more questions, and wait for the answers.",
            properties={"questions": {"type": "array", "items": item, "minItems": 1}},
            required=("questions",),
            read_only=True,
        )
    ]


def question(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Suspend with the questions; give the answer when there is one."""
    answer = ctx.answer
    if answer is not None:
        if not answer.ok:
            return ToolResult.error(f"question: {answer.reason or 'declined'}")
        data = {} if answer.data is None else answer.data
        return ToolResult.ok(json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str))
    questions = [_question(item) for item in _items(args, "questions")]
    if not questions:
        raise ToolFailure("questions is required")
    return pending("\n".join(map(_asked, questions)), kind="question", data={"questions": questions})


def _items(args: dict[str, Any], key: str) -> list[Any]:
    value = args.get(key)
    if not isinstance(value, list):
        raise ToolFailure(f"{key} is required")
    return value


def _question(item: Any) -> dict[str, Any]:
    """Return a question in its full form; some models give texts, or objects as options."""
    if not isinstance(item, dict):
        item = {"question": str(item)}
    text = item.get("question")
    if not isinstance(text, str) or not text:
        raise ToolFailure("question is required")
    offered = item.get("options")
    return {**item, "options": [_option(o) for o in offered]} if isinstance(offered, list) else dict(item)


def _option(option: Any) -> str:
    if isinstance(option, dict):
        option = option.get("label", json.dumps(option, ensure_ascii=False))
    return option if isinstance(option, str) else json.dumps(option, ensure_ascii=False)


def _asked(item: dict[str, Any]) -> str:
    """Return a question as a person reads it."""
    offered = item.get("options")
    return str(item["question"]) + (f" (options: {', '.join(offered)})" if offered else "")


def todo_tools(options: Options) -> list[Tool]:
    """Return todowrite."""
    item = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "A short id that stays the same."},
            "text": {"type": "string", "description": "What is to be done."},
            "completed": {"type": "boolean", "description": "Whether it is done."},
        },
        "required": ["id", "text", "completed"],
        "additionalProperties": False,
    }
    return [
        define(
            todowrite,
            options,
            description="Write down the list of what is to be done. Give the whole list each time.",
            properties={"todos": {"type": "array", "items": item}},
            required=("todos",),
        )
    ]


def todowrite(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Return the list as it was written."""
    todos = [_todo(number, item) for number, item in enumerate(_items(args, "todos"), 1)]
    lines = [f"[{'x' if todo['completed'] else ' '}] {todo['text']}" for todo in todos]
    return ToolResult.ok("\n".join(lines) or "(no todos)", todos=todos)


def _todo(number: int, item: Any) -> dict[str, Any]:
    """Return an entry in its full form; some models give plain texts."""
    if not isinstance(item, dict):
        item = {"text": str(item)}
    text = item.get("text")
    if not isinstance(text, str):
        raise ToolFailure(f"text is required (entry {number})")
    return {"id": str(item.get("id", number)), "text": text, "completed": item.get("completed") is True}
