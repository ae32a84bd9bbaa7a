"""Saying what an exception says, whoever wrote it: one of the user's may fail at that, too."""

from __future__ import annotations

__all__ = ["describe_error", "error_text"]


def error_text(error: BaseException) -> str:
    """
    Return the message of an exception; "" where it has none, or where asking for it raises.

    >>> error_text(ValueError("no such day"))
    'no such day'
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's may fail at anything
        return ""


def describe_error(error: BaseException) -> str:
    """
    Return the class and the message of an exception; the class alone where there is no message.

    >>> describe_error(ValueError("no such day")), describe_error(ValueError())
    ('ValueError: no such day', 'ValueError')
    """
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
