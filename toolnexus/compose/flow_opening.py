"""Where a run of a flow begins: with a state, where it was saved last, or with the answers it waits for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from toolnexus.approval import check_answer
from toolnexus.compose.flow_engine import NO_RUN
from toolnexus.compose.flow_graph import Graph
from toolnexus.compose.flow_state import Checkpoints, Snapshot, TaskState
from toolnexus.compose.flow_values import plain
from toolnexus.errors import ConfigurationError, InvalidAnswerError
from toolnexus.suspension import Answer, Request

__all__ = ["Opening", "answered", "beginning"]

#: Returns where a run begins; called once to find mistakes, and once when the run has its id for itself.
Opening = Callable[[Checkpoints | None], Snapshot]

_ANSWER_FIELDS = {field.name for field in attrs.fields(Answer)}


def beginning(flow: Graph, state: Mapping[str, Any] | None) -> Opening:
    """
    Begin with a state, or go on where a run of the same id was saved last.

    Raises:
        ConfigurationError: The state is no dict of plain JSON; or on opening: there is nothing to go on with,
            the saved run began with another state, or it waits for an answer.
    """
    if state is not None and not isinstance(state, Mapping):
        raise ConfigurationError(f"the state must be a dict, not {type(state).__name__}")
    try:
        begins = None if state is None else plain(dict(state))
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    digest = "" if begins is None else _digest(begins)

    def opening(checkpoints: Checkpoints | None) -> Snapshot:
        saved = None if checkpoints is None else checkpoints.load()
        if saved is None or saved.status == "done":
            if begins is None:
                raise ConfigurationError("there is no state to begin with, and no saved run to go on with")
            return Snapshot(flow.name, digest, flow.first_frame(begins))
        if saved.status == "pending":
            raise ConfigurationError("the saved run waits for an answer; go on with resume()")
        if begins is not None and digest != saved.begins:
            raise ConfigurationError(
                "a run of this id that began with another state is not over; run it without a state to go on"
            )
        return saved

    return opening


def answered(flow: Graph, checkpoint: Mapping[str, Any] | None, answers: Any) -> Opening:
    """
    Go on with a run that waits, with answers.

    Raises:
        ConfigurationError: On opening: no run waits.
        InvalidAnswerError: On opening: an answer does not fit.
    """

    def opening(checkpoints: Checkpoints | None) -> Snapshot:
        if checkpoints is not None:
            saved = checkpoints.load()
        else:
            saved = None if checkpoint is None else Snapshot.from_dict(plain(checkpoint), flow.name)
        if saved is None or saved.status != "pending":
            raise ConfigurationError("there is nothing to resume: no saved run waits for an answer")
        _apply(saved.frame.waiting(), answers)
        return saved

    return opening


def _apply(waiting: list[tuple[TaskState, Request]], answers: Any) -> None:
    """Give the answers to the tasks that wait for them: all, or on any mistake none."""
    tasks = {request.id: (task, request) for task, request in waiting}
    given = _given([request for _, request in waiting], answers)
    for answer in given:
        if answer.id not in tasks:
            raise InvalidAnswerError(
                f"the answer {answer.id!r} is for none of the requests that wait: {', '.join(tasks)}"
            )
        check_answer(NO_RUN, tasks[answer.id][1], answer)
        try:
            plain(answer.data, "the answer")
        except TypeError as error:
            raise InvalidAnswerError(str(error)) from error
    for answer in given:
        task, request = tasks[answer.id]
        task.answers.append(answer)
        # An agent goes on with what is answered, and asks for the rest again.
        task.waits = [] if task.transcript is not None else [r for r in task.waits if r is not request]


def _given(requests: list[Request], answers: Any) -> list[Answer]:
    """Return what was given as answers; a single request may be answered with the data alone."""
    ids = {request.id for request in requests}
    items = answers if isinstance(answers, (list, tuple)) else [answers]
    found = [_as_answer(item, ids) for item in items]
    if found and all(item is not None for item in found):
        return [item for item in found if item is not None]
    if isinstance(answers, Mapping) and answers and set(answers) <= ids:
        return [Answer(id_, data=data) for id_, data in answers.items()]
    if len(ids) == 1:
        return [Answer(ids.pop(), data=answers)]
    raise InvalidAnswerError(f"{len(ids)} requests wait: say which one an answer is for")


def _as_answer(item: Any, ids: set[str]) -> Answer | None:
    if isinstance(item, Answer):
        return item
    if isinstance(item, Mapping) and item.get("id") in ids and set(item) <= _ANSWER_FIELDS:
        return Answer.from_dict(dict(item))
    return None


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
