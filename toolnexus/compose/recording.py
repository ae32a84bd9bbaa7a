"""
Recording a stream in a file, and replaying it.

A recording has one JSON object a line: a header, then one for each event with the seconds since the
start. Each line is written at once, so what a crash leaves behind can be read up to there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from toolnexus._version import __version__
from toolnexus.cancel import POLL
from toolnexus.compose.derived import DerivedStream
from toolnexus.compose.plain import event_to_dict
from toolnexus.compose.revive import event_from_dict
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import AttemptFailed, Done, Error, Event
from toolnexus.results import RunResult
from toolnexus.stream import Stream

__all__ = ["Recording", "Replay", "record", "replay"]

_log = logging.getLogger("toolnexus")

_KIND = "toolnexus.recording"
_VERSION = 1

#: What of an error is in its line already, or has no place there.
_LEFT_OUT = {"message", "retryable", "attempt", "partial", "events", "body"}


def record(events: Iterable[Event], path: str | os.PathLike[str]) -> Recording:
    """
    Write the events of a stream to a file while they pass.

    The file holds what the events hold: prompts and answers, too. It is made readable for its owner only,
    and what was in it before is replaced. Should writing fail later on, say because the disk is full, a
    warning is logged and the stream goes on without.

    Args:
        events: A stream, or another iterable of events.
        path: The file.

    Returns:
        A stream of the same events; it has all methods of the one that it was made from.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    return Recording(events, _File(path, _header(events)))


def _header(events: Iterable[Event]) -> dict[str, Any]:
    return {
        "kind": _KIND,
        "version": _VERSION,
        "toolnexus": __version__,
        "run_id": events.run_id if isinstance(events, Stream) else "",
        "started": time.time(),
    }


class _File:
    """A file that JSON objects are written to, a line each."""

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            self._file = os.fdopen(descriptor, "wb", buffering=0)
            self.close = weakref.finalize(self, self._file.close)
            self._write(header)
        except OSError as error:
            raise ConfigurationError(f"cannot write {str(self.path)!r}: {error.strerror}") from error

    def _write(self, data: Mapping[str, Any]) -> None:
        try:
            line = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:  # half a character
            line = json.dumps(data, separators=(",", ":")).encode()
        left = memoryview(line + b"\n")
        while left:
            left = left[self._file.write(left) or 0 :]

    def add(self, data: Mapping[str, Any]) -> None:
        """Write an object, unless that has failed before."""
        if not self.close.alive:
            return
        try:
            self._write(data)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("the recording %s ends here: %s: %s", self.path, type(error).__name__, error)
            with contextlib.suppress(OSError):
                self.close()


class Recording(DerivedStream):
    """A stream that is written to a file while it is read. Made by `record`."""

    def __init__(self, source: Iterable[Event], file: _File) -> None:
        super().__init__(source)
        self._file = file
        self._began = time.monotonic()
        self._started = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def _take(self, event: Event) -> None:
        if not self._started:
            self._started = True
            self._began = time.monotonic()
        at = round(time.monotonic() - self._began, 6)
        try:
            line = {"at": at, "event": _line(event)}
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            _log.warning("an event is missing in %s: %s", self.path, error)
        else:
            self._file.add(line)
        self._ready.append(event)
        if isinstance(event, (Done, Error)):
            self._file.close()

    def _ended(self) -> None:
        self._file.close()

    def _abandoned(self) -> None:
        self._file.close()


def _line(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON, errors with what they hold beside their message."""
    if isinstance(event, Error):
        error = event.peek()
        # Writing it down is not taking notice of it, so the copy is looked at.
        data = event_to_dict(
            Error(error, event._partial, origin=event.origin, seq=event.seq, timestamp=event.timestamp)
        )
    elif isinstance(event, AttemptFailed):
        error, data = event.error, event_to_dict(event)
    else:
        return event_to_dict(event)
    plain = (str, int, float, bool, type(None))
    more = {k: v for k, v in vars(error).items() if k not in _LEFT_OUT and isinstance(v, plain)}
    data["error"] = {**data["error"], **more}
    return data


def replay(path: str | os.PathLike[str], *, speed: float = 0) -> Replay:
    """
    Make a stream again of what `record` has written.

    Args:
        path: The file.
        speed: 0 for all at once, 1 for the time that it took, 2 for half of that.

    Returns:
        A stream of the same events. Errors have their class again; a typed output is plain JSON. A recording
        that was cut short ends in an `Error` that says so. Events of a type that is not known here are
        passed over with a warning.

    Raises:
        ConfigurationError: The file cannot be read, or is no recording.
    """
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not 0 <= speed < float("inf"):
        raise ConfigurationError(f"speed must be a number from 0, not {speed!r}")
    try:
        file = open(path, "rb")  # noqa: SIM115 - read while the stream is
    except OSError as error:
        raise ConfigurationError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from error
    try:
        header = json.loads(file.readline())
        if header["kind"] != _KIND:
            raise ValueError
        version = int(header["version"])
    except (ValueError, KeyError, TypeError) as error:
        file.close()
        raise ConfigurationError(f"{os.fspath(path)!r} is no recording") from error
    if version > _VERSION:
        warnings.warn(f"{os.fspath(path)!r} was recorded by a newer toolnexus", stacklevel=2)
    return Replay(file, str(header.get("run_id") or ""), speed)


class Replay(DerivedStream):
    """A stream that was recorded. Made by `replay`."""

    def __init__(self, file: BinaryIO, run_id: str, speed: float) -> None:
        super().__init__(())
        self._run_id = run_id
        self._speed = speed
        self._began: float | None = None
        self._lines = _events(file)
        self._next: tuple[float, Event] | None = None
        self._close_file = weakref.finalize(self, file.close)

    def next_within(self, seconds: float | None) -> Event | None:
        """
        Return the next event, or None when none is due within the time.

        Raises:
            StopIteration: The stream is over.
        """
        if seconds is not None and not self._ready and not self._over and not self._wait(seconds):
            return None
        return next(self)

    def _take_next(self) -> None:
        self._wait(None)
        if self._scope.cancelled:
            self._close_file()
            self._give_up()
            return
        found, self._next = self._next, None
        if found is not None:
            self._take(found[1])
            if isinstance(found[1], (Done, Error)):
                self._close_file()
            return
        self._close_file()
        self._over = True
        error = ToolnexusError("the recording ends before its run did")
        error.partial = RunResult(status="incomplete", text=self.text, run_id=self._run_id)
        self._ready.append(Error(error))

    def _wait(self, seconds: float | None) -> bool:
        """Wait until the next event is due, or the recording is over; tell whether that is so in time."""
        if self._began is None:
            self._began = time.monotonic()
        if self._next is None and not self._scope.cancelled:
            self._next = next(self._lines, None)
        if self._next is None or not self._speed:
            return True
        due = self._began + self._next[0] / self._speed
        until = due if seconds is None else min(due, time.monotonic() + seconds)
        while (left := until - time.monotonic()) > 0 and not self._scope.cancelled:
            time.sleep(min(left, POLL))
        return self._scope.cancelled or time.monotonic() >= due

    def _close_source(self) -> None:
        self._close_file()


def _events(file: BinaryIO) -> Iterator[tuple[float, Event]]:
    """Yield the events of a recording, and when they came."""
    unknown: set[str] = set()
    for number, line in enumerate(file, 2):
        try:
            data = json.loads(line)
            at, event = float(data["at"]), event_from_dict(data["event"])
        except ConfigurationError as error:
            if error.message not in unknown:
                unknown.add(error.message)
                warnings.warn(f"line {number} of the recording is passed over: {error}", stacklevel=2)
        except (ValueError, KeyError, TypeError, RecursionError):
            if line.endswith(b"\n"):  # else it is only the end of one that a crash cut off
                warnings.warn(f"line {number} of the recording is damaged and passed over", stacklevel=2)
        else:
            yield at, event
