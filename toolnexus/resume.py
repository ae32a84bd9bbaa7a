"""Going on with a run that waits: in another process, a week later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolnexus.approval import check_answer, finish, restored, settle, stored
from toolnexus.errors import ConfigurationError, InvalidAnswerError
from toolnexus.execution import Outcome, record
from toolnexus.merge import PROVIDER_KEY
from toolnexus.prompt import WAITING_KEY as _KEY
from toolnexus.results import Message
from toolnexus.run import Run
from toolnexus.suspension import Answer, pending_of
from toolnexus.tools.base import suspends

__all__ = ["go_on", "keep", "to_answers", "waiting_in"]


def to_answers(answers: Any) -> list[Answer]:
    """
    Return answers as a list.

    Raises:
        ConfigurationError: Something is no answer.
    """
    listed = list(answers) if isinstance(answers, Iterable) and not isinstance(answers, dict) else [answers]
    found = [Answer.from_dict({"id": None, **item}) if isinstance(item, dict) else item for item in listed]
    for item in found:
        if not isinstance(item, Answer):
            raise ConfigurationError(f"an answer must be an Answer or a dict, not {item!r:.80}")
        if not isinstance(item.id, str):
            raise ConfigurationError(
                f"an answer must name its request by its id, a text, not {item.id!r:.80}"
            )
    return found


def waiting_in(messages: list[Message]) -> list[Outcome]:
    """Return the calls that wait at the end of a transcript."""
    position = _position(messages)
    if position is None:
        return []
    return [restored(entry) for entry in messages[position][PROVIDER_KEY][_KEY]]


def _position(messages: list[Message]) -> int | None:
    """Return where the assistant message stands whose calls wait: nothing but results may follow it."""
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.get("role") == "assistant":
            return position if (message.get(PROVIDER_KEY) or {}).get(_KEY) else None
        if message.get("role") != "tool":
            return None
    return None


def keep(run: Run, waiting: list[Outcome]) -> None:
    """Write into the transcript which calls wait, so that any process can go on; or that none does."""
    for position in range(len(run.messages) - 1, -1, -1):
        message = run.messages[position]
        if message.get("role") == "assistant":
            own = {k: v for k, v in (message.get(PROVIDER_KEY) or {}).items() if k != _KEY}
            if waiting:
                own[_KEY] = stored(waiting)
            message = {k: v for k, v in message.items() if k != PROVIDER_KEY}
            run.messages[position] = {**message, PROVIDER_KEY: own} if own else message
            return


def go_on(run: Run, answers: list[Answer]) -> bool:
    """
    Give answers to the calls that wait at the end of the run's transcript.

    Returns:
        Whether all of them have a result now, so that the model can be asked.

    Raises:
        ConfigurationError: No call waits.
        InvalidAnswerError: An answer is for no request, or does not fit; nothing was changed.
    """
    outcomes = waiting_in(run.messages)
    if not outcomes:
        raise ConfigurationError(
            "there is nothing to resume: no call of this conversation waits for an answer"
        )
    by_id = {answer.id: answer for answer in answers}
    if len(by_id) < len(answers):
        raise InvalidAnswerError("two answers are for the same request")
    requests = {
        request.id: request for outcome in outcomes if (request := pending_of(outcome.result)) is not None
    }
    unknown = [id_ for id_ in by_id if id_ not in requests]
    if unknown:
        raise InvalidAnswerError(
            f"the answer {unknown[0]!r} is for none of the requests that wait: {', '.join(requests)}"
        )
    for id_, answer in by_id.items():
        if not requests[id_].expired:
            check_answer(run, requests[id_], answer)
    run.reporter.at("tools", run.turns)
    answered: list[Outcome] = []
    for outcome in outcomes:
        request = pending_of(outcome.result)
        if request is not None and (request.id in by_id or request.expired):
            finish(run, outcome, request, by_id.get(request.id))
            answered.append(outcome)
    settle(run, answered)  # some may ask on
    waiting = [outcome for outcome in outcomes if suspends(outcome.result)]
    for outcome in outcomes:
        if outcome not in waiting:
            record(run, outcome)
    run.pending = [request for outcome in waiting if (request := pending_of(outcome.result)) is not None]
    keep(run, waiting)
    return not waiting
