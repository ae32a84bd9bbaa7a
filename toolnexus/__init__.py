"""
toolnexus: run and stream LLM agents from plain synchronous Python.

The client and the errors are imported here; the rest of the public names are imported when they are
first asked for, and what a client runs with comes with the first client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolnexus._version import __version__
from toolnexus.client import Client, create_client
from toolnexus.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ConfigurationError,
    ConflictError,
    ConnectTimeoutError,
    ContentFilterError,
    ContextLengthError,
    ConversationBusyError,
    EmptyResponseError,
    HookError,
    IdleTimeoutError,
    InternalServerError,
    InvalidAnswerError,
    LimitError,
    MalformedEventError,
    MissingExtraError,
    NotFoundError,
    OutputError,
    OverloadedError,
    PermissionDeniedError,
    PIIDetectedError,
    QuotaError,
    RateLimitError,
    RequestTooLargeError,
    ResponseTimeoutError,
    RunCancelledError,
    RunTimeoutError,
    SchemaError,
    ServiceUnavailableError,
    StoreConflictError,
    StoreError,
    StreamConsumedError,
    StreamThreadError,
    ToolnexusError,
    TruncatedStreamError,
    UnprocessableEntityError,
)

if TYPE_CHECKING:
    from toolnexus.cancel import CancelScope
    from toolnexus.chunks import Chunk
    from toolnexus.compaction import compactor
    from toolnexus.compose.flow import Flow
    from toolnexus.content import File, Image
    from toolnexus.conversation import Conversation
    from toolnexus.events import (
        AttemptFailed,
        Checkpoint,
        Custom,
        Debug,
        Done,
        Error,
        Event,
        Heartbeat,
        Lifecycle,
        Message,
        Pending,
        Task,
        Text,
        Thinking,
        ToolCall,
        ToolCallDelta,
        ToolFinished,
        ToolOutput,
        Update,
        UsageReport,
        Value,
    )
    from toolnexus.hooks import guardrails
    from toolnexus.in_process import create_in_process_client
    from toolnexus.results import AttemptRecord, RunResult, ToolCallRecord, Usage
    from toolnexus.single import ChunkStream, TranslateResult
    from toolnexus.stores import MemoryStore, SqliteStore
    from toolnexus.stream import Stream
    from toolnexus.suspension import Answer, Request, pending, pending_of, relay_tool
    from toolnexus.toolkit import Toolkit, create_toolkit
    from toolnexus.tools.base import Context, Tool, ToolResult
    from toolnexus.tools.builtins import builtin_tools
    from toolnexus.tools.functions import collect, tool
    from toolnexus.tools.http import http_tool
    from toolnexus.tools.mcp import McpSource, list_mcp_tools
    from toolnexus.tools.openapi import openapi_tools
    from toolnexus.tools.skills import SkillDef, load_skills
    from toolnexus.transport.retry import ErrorInfo
    from toolnexus.watch import Watch, WatchedAttempt, WatchedRun, WatchedTool

_LATER = {
    "Answer": "toolnexus.suspension",
    "AttemptFailed": "toolnexus.events",
    "AttemptRecord": "toolnexus.results",
    "CancelScope": "toolnexus.cancel",
    "Checkpoint": "toolnexus.events",
    "Chunk": "toolnexus.chunks",
    "ChunkStream": "toolnexus.single",
    "Context": "toolnexus.tools.base",
    "Conversation": "toolnexus.conversation",
    "Custom": "toolnexus.events",
    "Debug": "toolnexus.events",
    "Done": "toolnexus.events",
    "Error": "toolnexus.events",
    "ErrorInfo": "toolnexus.transport.retry",
    "Event": "toolnexus.events",
    "File": "toolnexus.content",
    "Flow": "toolnexus.compose.flow",
    "Heartbeat": "toolnexus.events",
    "Image": "toolnexus.content",
    "Lifecycle": "toolnexus.events",
    "McpSource": "toolnexus.tools.mcp",
    "MemoryStore": "toolnexus.stores",
    "Message": "toolnexus.events",
    "Pending": "toolnexus.events",
    "Request": "toolnexus.suspension",
    "RunResult": "toolnexus.results",
    "SkillDef": "toolnexus.tools.skills",
    "SqliteStore": "toolnexus.stores",
    "Stream": "toolnexus.stream",
    "Task": "toolnexus.events",
    "Text": "toolnexus.events",
    "Thinking": "toolnexus.events",
    "Tool": "toolnexus.tools.base",
    "ToolCall": "toolnexus.events",
    "ToolCallDelta": "toolnexus.events",
    "ToolCallRecord": "toolnexus.results",
    "ToolFinished": "toolnexus.events",
    "ToolOutput": "toolnexus.events",
    "ToolResult": "toolnexus.tools.base",
    "Toolkit": "toolnexus.toolkit",
    "TranslateResult": "toolnexus.single",
    "Update": "toolnexus.events",
    "Usage": "toolnexus.results",
    "UsageReport": "toolnexus.events",
    "Value": "toolnexus.events",
    "Watch": "toolnexus.watch",
    "WatchedAttempt": "toolnexus.watch",
    "WatchedRun": "toolnexus.watch",
    "WatchedTool": "toolnexus.watch",
    "builtin_tools": "toolnexus.tools.builtins",
    "collect": "toolnexus.tools.functions",
    "compactor": "toolnexus.compaction",
    "create_in_process_client": "toolnexus.in_process",
    "create_toolkit": "toolnexus.toolkit",
    "guardrails": "toolnexus.hooks",
    "http_tool": "toolnexus.tools.http",
    "list_mcp_tools": "toolnexus.tools.mcp",
    "load_skills": "toolnexus.tools.skills",
    "openapi_tools": "toolnexus.tools.openapi",
    "pending": "toolnexus.suspension",
    "pending_of": "toolnexus.suspension",
    "relay_tool": "toolnexus.suspension",
    "tool": "toolnexus.tools.functions",
}

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "Answer",
    "AttemptFailed",
    "AttemptRecord",
    "AuthenticationError",
    "BadRequestError",
    "CancelScope",
    "Checkpoint",
    "Chunk",
    "ChunkStream",
    "Client",
    "ConfigurationError",
    "ConflictError",
    "ConnectTimeoutError",
    "ContentFilterError",
    "Context",
    "ContextLengthError",
    "Conversation",
    "ConversationBusyError",
    "Custom",
    "Debug",
    "Done",
    "EmptyResponseError",
    "Error",
    "ErrorInfo",
    "Event",
    "File",
    "Flow",
    "Heartbeat",
    "HookError",
    "IdleTimeoutError",
    "Image",
    "InternalServerError",
    "InvalidAnswerError",
    "Lifecycle",
    "LimitError",
    "MalformedEventError",
    "McpSource",
    "MemoryStore",
    "Message",
    "MissingExtraError",
    "NotFoundError",
    "OutputError",
    "OverloadedError",
    "PIIDetectedError",
    "Pending",
    "PermissionDeniedError",
    "QuotaError",
    "RateLimitError",
    "Request",
    "RequestTooLargeError",
    "ResponseTimeoutError",
    "RunCancelledError",
    "RunResult",
    "RunTimeoutError",
    "SchemaError",
    "ServiceUnavailableError",
    "SkillDef",
    "SqliteStore",
    "StoreConflictError",
    "StoreError",
    "Stream",
    "StreamConsumedError",
    "StreamThreadError",
    "Task",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallRecord",
    "ToolFinished",
    "ToolOutput",
    "ToolResult",
    "Toolkit",
    "ToolnexusError",
    "TranslateResult",
    "TruncatedStreamError",
    "UnprocessableEntityError",
    "Update",
    "Usage",
    "UsageReport",
    "Value",
    "Watch",
    "WatchedAttempt",
    "WatchedRun",
    "WatchedTool",
    "__version__",
    "builtin_tools",
    "collect",
    "compactor",
    "create_client",
    "create_in_process_client",
    "create_toolkit",
    "guardrails",
    "http_tool",
    "list_mcp_tools",
    "load_skills",
    "openapi_tools",
    "pending",
    "pending_of",
    "relay_tool",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
