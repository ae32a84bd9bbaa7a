"""Working on streams: views, redaction, merging, recording, outputs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolnexus.compose.background import Background, run_in_background
    from toolnexus.compose.displaying import display
    from toolnexus.compose.flow import (
        End,
        Flow,
        FlowContext,
        FlowError,
        FlowResult,
        FlowStream,
        Goto,
        NodeError,
        NodeTimeoutError,
        StepLimitError,
    )
    from toolnexus.compose.muxing import (
        BackpressureError,
        EmitTimeoutError,
        Mux,
        MuxResult,
        ProducerResult,
        Sink,
        mux,
    )
    from toolnexus.compose.plain import event_to_dict
    from toolnexus.compose.projections import (
        MessageView,
        NamespaceSummary,
        final_answer,
        group_messages,
        lifecycle,
        select,
        summarize_namespaces,
    )
    from toolnexus.compose.recording import Recording, Replay, record, replay
    from toolnexus.compose.redacting import PII, RedactedStream, redact, redact_text
    from toolnexus.compose.revive import event_from_dict
    from toolnexus.compose.screen import Screen
    from toolnexus.compose.web import EventStreamBody, continue_sse, sse

_LATER = {
    "StepLimitError": "flow",
    "NodeTimeoutError": "flow",
    "NodeError": "flow",
    "Goto": "flow",
    "FlowStream": "flow",
    "FlowResult": "flow",
    "FlowError": "flow",
    "FlowContext": "flow",
    "Flow": "flow",
    "End": "flow",
    "mux": "muxing",
    "Sink": "muxing",
    "ProducerResult": "muxing",
    "MuxResult": "muxing",
    "Mux": "muxing",
    "EmitTimeoutError": "muxing",
    "BackpressureError": "muxing",
    "MessageView": "projections",
    "NamespaceSummary": "projections",
    "PII": "redacting",
    "Recording": "recording",
    "RedactedStream": "redacting",
    "Replay": "recording",
    "Screen": "screen",
    "final_answer": "projections",
    "group_messages": "projections",
    "lifecycle": "projections",
    "record": "recording",
    "redact": "redacting",
    "redact_text": "redacting",
    "replay": "recording",
    "select": "projections",
    "summarize_namespaces": "projections",
    "display": "displaying",
    "Background": "background",
    "EventStreamBody": "web",
    "continue_sse": "web",
    "event_from_dict": "revive",
    "event_to_dict": "plain",
    "run_in_background": "background",
    "sse": "web",
}

__all__ = [
    "PII",
    "Background",
    "BackpressureError",
    "EmitTimeoutError",
    "End",
    "EventStreamBody",
    "Flow",
    "FlowContext",
    "FlowError",
    "FlowResult",
    "FlowStream",
    "Goto",
    "MessageView",
    "Mux",
    "MuxResult",
    "NamespaceSummary",
    "NodeError",
    "NodeTimeoutError",
    "ProducerResult",
    "Recording",
    "RedactedStream",
    "Replay",
    "Screen",
    "Sink",
    "StepLimitError",
    "continue_sse",
    "display",
    "event_from_dict",
    "event_to_dict",
    "final_answer",
    "group_messages",
    "lifecycle",
    "mux",
    "record",
    "redact",
    "redact_text",
    "replay",
    "run_in_background",
    "select",
    "sse",
    "summarize_namespaces",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
