"""Events from plain JSON: the way back from `event_to_dict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

import toolnexus
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.events import CHANNELS, Error, Event, Origin
from toolnexus.results import AttemptRecord, RunResult, ToolCallRecord, Usage
from toolnexus.suspension import Request

__all__ = ["error_from_dict", "event_from_dict", "result_from_dict"]

_CLASSES: dict[str, type[Event]] = {cls.type: cls for classes in CHANNELS.values() for cls in classes}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """
    Make an event from what `event_to_dict` gave; unknown keys are passed over.

    Raises:
        ConfigurationError: It is no event, or one of a type that is not known here.

    >>> event_from_dict({"type": "text", "delta": "Hel", "seq": 1})
    Text(delta='Hel')
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"this is no event: {data!r:.60}")
    cls = _CLASSES.get(str(data.get("type")))
    if cls is None:
        raise ConfigurationError(f"there is no event of the type {data.get('type')!r}")
    try:
        fields = {name: _READERS.get(name, _same)(data[name]) for name in _names(cls) if name in data}
        fields |= {"seq": int(data.get("seq", 0)), "timestamp": float(data.get("timestamp", 0))}
        if cls is Error:
            fields["error"].partial = fields.get("partial")
        return cls(origin=_origin(data), **fields)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigurationError(f"this is no {cls.type} event: {error}") from error


def _names(cls: type[Event]) -> list[str]:
    if cls is Error:
        return ["error", "partial"]
    return [f.name for f in attrs.fields(cls) if f.name not in ("origin", "seq", "timestamp")]


def _origin(data: Mapping[str, Any]) -> Origin:
    return Origin(
        run_id=str(data.get("run_id", "")),
        namespace=tuple(map(str, data.get("namespace", ()))),
        node=str(data.get("node", "")),
        step=int(data.get("step", 0)),
        message_id=str(data.get("message_id", "")),
        attempt=int(data.get("attempt", 0)),
    )


def result_from_dict(data: Mapping[str, Any]) -> RunResult:
    """Make a result, of its own class, from what its ``to_dict`` gave; a typed output stays plain JSON."""
    cls = _result_class(data)
    known = _known(cls, data)
    if "producers" in known:
        known["producers"] = {str(name): _producer(one) for name, one in known["producers"].items()}
    known["usage"] = Usage(**_known(Usage, data.get("usage") or {}))
    calls = data.get("tool_calls", ())
    known["tool_calls"] = [ToolCallRecord(**_known(ToolCallRecord, call)) for call in calls]
    known["attempts"] = [_attempt(item) for item in data.get("attempts", ())]
    known["pending"] = [Request.from_dict(item) for item in data.get("pending", ())]
    known["output_json"] = data.get("output")
    return cls(**known)


def _result_class(data: Mapping[str, Any]) -> type[RunResult]:
    """Return the class of result that has such fields."""
    if "producers" in data:
        from toolnexus.compose.mux_merger import MuxResult

        return MuxResult
    if "state" in data and "steps" in data:
        from toolnexus.compose.flow_values import FlowResult

        return FlowResult
    return RunResult


def _producer(data: Mapping[str, Any]) -> Any:
    from toolnexus.compose.mux_merger import ProducerResult

    known = _known(ProducerResult, data)
    result, error = known.get("result"), known.get("error")
    if isinstance(result, Mapping) and {"run_id", "messages", "status"} <= set(result):
        known["result"] = result_from_dict(result)
    known["error"] = None if error is None else ToolnexusError(str(error))
    return ProducerResult(**known)


def _attempt(data: Mapping[str, Any]) -> AttemptRecord:
    known = _known(AttemptRecord, data)
    return AttemptRecord(**{**known, "usage": Usage(**_known(Usage, data.get("usage") or {}))})


def _known(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: data[f.name] for f in attrs.fields(cls) if f.name in data}


def error_from_dict(data: Mapping[str, Any]) -> ToolnexusError:
    """Make an error from what was kept of it, of its own class where that is known here."""
    error = _error_class(str(data.get("class")))(str(data.get("message", "")))
    for name, value in data.items():
        # Only what such an error has: never a method.
        if name in vars(error) and name not in ("message", "partial", "events"):
            setattr(error, name, value)
    return error


def _error_class(name: str) -> type[ToolnexusError]:
    for module in (toolnexus, toolnexus.compose):
        found = getattr(module, name, None) if name.isidentifier() and not name.startswith("_") else None
        if isinstance(found, type) and issubclass(found, ToolnexusError):
            return found
    return ToolnexusError


def _same(value: Any) -> Any:
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "result": result_from_dict,
    "request": Request.from_dict,
    "usage": lambda data: Usage(**_known(Usage, data)),
    "partial": lambda data: None if data is None else result_from_dict(data),
    "error": lambda data: error_from_dict(data) if isinstance(data, Mapping) else data,
}
