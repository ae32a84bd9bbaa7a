"""question and todowrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolnexus.suspension import Answer, pending_of
from toolnexus.tools.base import Context

from .support.builtin_calls import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Return the tools."""
    return Box(tmp_path)


def test_question_suspends_with_all_that_an_interface_needs(box: Box) -> None:
    """The first call asks: the prompt for a person, the questions as data."""
    questions = [
        {"question": "Which colour?", "options": ["red", "blue"], "multiple": False},
        {"question": "Why?"},
    ]
    request = pending_of(box.call("question", questions=questions))
    assert request is not None
    assert request.kind == "question"
    assert request.prompt == "Which colour? (options: red, blue)\nWhy?"
    assert request.data == {"questions": questions}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"Which?": ["réd"]}, '{"Which?":["réd"]}'),
        (None, "{}"),
        ("yes", '"yes"'),
        ([], "[]"),
        (False, "false"),
    ],
)
def test_question_gives_the_answer_as_json(box: Box, data: Any, text: str) -> None:
    """When it runs again with an answer, the answer's data go to the model as compact JSON."""
    result = box.call(
        "question", Context(answers=(Answer("x", data=data),)), questions=[{"question": "Which?"}]
    )
    assert (result.output, result.is_error) == (text, False)


def test_question_that_is_declined_is_an_error(box: Box) -> None:
    """A no reaches the model as one."""
    ctx = Context(answers=(Answer("x", ok=False, reason="not now"),))
    result = box.call("question", ctx, questions=[{"question": "Which?"}])
    assert (result.output, result.is_error) == ("question: not now", True)


def test_question_takes_what_models_make_of_it(box: Box) -> None:
    """Options that are no texts, and questions that are no objects, are asked all the same."""
    questions = [{"question": "How many?", "options": [1, True, {"label": "many"}, {"x": 1}]}, "Sure?"]
    request = pending_of(box.call("question", questions=questions))
    assert request is not None
    assert request.prompt == 'How many? (options: 1, true, many, {"x": 1})\nSure?'


def test_todowrite_shows_the_list(box: Box) -> None:
    """The list comes back as lines, and as data beside it."""
    todos = [
        {"id": "1", "text": "Plan", "completed": True},
        {"id": "2", "text": "Do", "completed": False},
    ]
    result = box.call("todowrite", todos=todos)
    assert result.output == "[x] Plan\n[ ] Do"
    assert result.metadata == {"todos": todos}
    assert box.ok("todowrite", todos=[]) == "(no todos)"


def test_todowrite_takes_plain_texts(box: Box) -> None:
    """A text in place of an entry is one that is yet to be done."""
    result = box.call("todowrite", todos=["Plan", {"text": "Do"}])
    assert result.output == "[ ] Plan\n[ ] Do"
    assert result.metadata["todos"][0] == {"id": "1", "text": "Plan", "completed": False}
