"""How stored values are written: strict JSON, without anything that could not be read back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from toolnexus.errors import ConfigurationError, StoreConflictError, StoreError
from toolnexus.results import Message

__all__ = [
    "check_id",
    "check_limit",
    "check_prefix",
    "check_version",
    "conflict",
    "decode",
    "decode_messages",
    "encode",
    "encode_dict",
    "encode_messages",
    "links",
    "mend",
]

#: The longest id, in characters. Four bytes each still fit an index page of every database.
MAX_ID = 512

#: How deep a value may be nested. Reading it back must not exhaust the stack of the reader.
MAX_DEPTH = 200

#: The longest integer, in bits. Python refuses to read a number of more than 4300 digits.
MAX_BITS = 1024


def check_id(value: object, what: str = "conversation id") -> str:
    """
    Return an id that every store can keep.

    Args:
        value: What the caller gave.
        what: How to call it in the error.

    Raises:
        ConfigurationError: It is not text, is empty or too long, or holds a character that
            no store keeps.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"the {what} must be text, not {type(value).__name__}")
    if not value:
        raise ConfigurationError(f"the {what} is empty")
    if len(value) > MAX_ID:
        raise ConfigurationError(f"the {what} has {len(value)} characters; at most {MAX_ID} are allowed")
    if "\0" in value:
        raise ConfigurationError(f"the {what} holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the {what} holds half a character (a lone surrogate) at position {error.start}"
        ) from error
    return str.__str__(value)


def check_version(value: object) -> int | None:
    """
    Return the version that a save expects, or None.

    Raises:
        ConfigurationError: It is neither None nor a whole number from 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"expected must be None or a version (a whole number from 0), not {value!r}")
    return int(value)


def check_prefix(value: object) -> str:
    """
    Return the beginning of an id, which may be empty.

    Raises:
        ConfigurationError: No id can begin so.
    """
    return "" if isinstance(value, str) and not value else check_id(value, "prefix")


def check_limit(value: object) -> int | None:
    """
    Return a number of things, or None for all.

    Raises:
        ConfigurationError: It is neither None nor a whole number from 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"limit must be None or a whole number from 0, not {value!r}")
    return int(value)


def conflict(what: str, current: int, expected: int) -> StoreConflictError:
    """Return the error for something that has another version than expected."""
    if not current:
        return StoreConflictError(f"{what} is not there any more: version {expected} was expected")
    if not expected:
        return StoreConflictError(f"{what} exists already, with version {current}")
    return StoreConflictError(f"{what} has version {current}, not {expected}: somebody else saved it")


def mend(text: str) -> str:
    """
    Return text that can be encoded: lone surrogates become U+FFFD, pairs become their character.

    >>> mend("caf\\udce9")
    'caf\ufffd'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(value: object, where: str) -> str:
    """
    Return a value as one line of strict JSON.

    Args:
        value: Dicts with text as keys, lists, tuples (kept as lists), text, numbers, booleans and None.
        where: What it is, for the error.

    Raises:
        StoreError: Something in it has no form in JSON; the message says where. NaN and the
            infinities are refused, too: no other reader of the data could take them.
    """
    fault = _fault(value)
    if fault is not None:
        path, reason = fault
        raise StoreError(f"{where}{path} cannot be stored: {reason}")
    return mend(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def encode_messages(messages: object) -> list[str]:
    """
    Return every message as one line of JSON.

    Raises:
        StoreError: It is not a list of dicts of plain JSON; the message says where it is not.
    """
    if isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Sequence):
        raise StoreError(f"the messages must be a list, not {type(messages).__name__}")
    return [encode_dict(message, f"messages[{number}]") for number, message in enumerate(messages)]


def encode_dict(value: object, where: str) -> str:
    """
    Return a dict as one line of JSON, as `encode` does.

    Raises:
        StoreError: It is not a dict of plain JSON.
    """
    if not isinstance(value, dict):
        raise StoreError(f"{where} must be a dict, not {type(value).__name__}")
    return encode(value, where)


def decode(text: str, where: str) -> dict[str, Any]:
    """
    Return the dict that a stored line holds.

    Raises:
        StoreError: The line is damaged.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where} is damaged: it holds no JSON object")
    return value


def decode_messages(bodies: Iterable[str], id: str) -> list[Message]:  # noqa: A002 - the word of the stores
    """
    Return the messages that stored lines hold.

    Raises:
        StoreError: A line is damaged.
    """
    return [decode(body, f"message {number} of conversation {id!r}") for number, body in enumerate(bodies)]


def links(bodies: Iterable[str]) -> list[str]:
    """
    Return for every line a digest of it and of all lines before it.

    Two lists agree up to a line exactly if the digests of that line are the same, so that
    one comparison shows that a list was only appended to.

    >>> one, two = links(["a", "b"]), links(["a", "c"])
    >>> one[0] == two[0], one[1] == two[1]
    (True, False)
    """
    chain = b""
    found = []
    for body in bodies:
        chain = hashlib.blake2b(chain + body.encode(), digest_size=16).digest()
        found.append(chain.hex())
    return found


def _fault(value: object, depth: int = 0) -> tuple[str, str] | None:
    """Return the path to the first thing that JSON cannot hold and what is wrong with it, or None."""
    if value is None or isinstance(value, (str, bool)):
        return None
    if isinstance(value, (int, float)):
        return _number_fault(value)
    if depth > MAX_DEPTH:
        return "", f"it is nested more than {MAX_DEPTH} levels deep"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return "", f"a key is {type(key).__name__}, not text"
            if (fault := _fault(item, depth + 1)) is not None:
                return f"[{key!r}]{fault[0]}", fault[1]
        return None
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            if (fault := _fault(item, depth + 1)) is not None:
                return f"[{number}]{fault[0]}", fault[1]
        return None
    return "", f"{type(value).__name__} has no form in JSON"


def _number_fault(value: float) -> tuple[str, str] | None:
    """Return what is wrong with a number, as `_fault` does."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", f"{float(value)} has no form in JSON")
    return None if value.bit_length() <= MAX_BITS else ("", f"an integer of more than {MAX_BITS} bits")
