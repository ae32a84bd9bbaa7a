"""
The exceptions of toolnexus: one tree, one root.

Every exception survives pickling and carries what a person needs to act on it as attributes.
None of them ever carries an API key or a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from toolnexus.wording import describe_error

if TYPE_CHECKING:
    from toolnexus.events import Event
    from toolnexus.results import RunResult

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BadRequestError",
    "ConfigurationError",
    "ConflictError",
    "ConnectTimeoutError",
    "ContentFilterError",
    "ContextLengthError",
    "ConversationBusyError",
    "EmptyResponseError",
    "HookError",
    "IdleTimeoutError",
    "InternalServerError",
    "InvalidAnswerError",
    "LimitError",
    "MalformedEventError",
    "MissingExtraError",
    "NotFoundError",
    "OutputError",
    "OverloadedError",
    "PIIDetectedError",
    "PermissionDeniedError",
    "QuotaError",
    "RateLimitError",
    "RequestTooLargeError",
    "ResponseTimeoutError",
    "RunCancelledError",
    "RunTimeoutError",
    "SchemaError",
    "ServiceUnavailableError",
    "StoreConflictError",
    "StoreError",
    "StreamConsumedError",
    "StreamThreadError",
    "ToolnexusError",
    "TruncatedStreamError",
    "UnprocessableEntityError",
]


def _rebuild(cls: type[ToolnexusError], message: str, state: dict[str, Any]) -> ToolnexusError:
    """Make an exception again from its pickled parts, whatever its class asks for."""
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ToolnexusError(Exception):
    """
    The root of every exception that toolnexus raises.

    Attributes:
        message: What happened, in a sentence.
        kind: A short machine-readable word for the class, such as ``"rate_limit"``.
        retryable: Whether trying the same thing again may help.
        attempt: The number of the attempt that failed, from 1, or None outside an attempt.
        partial: What the run had reached when it failed, or None outside a run.
        events: What happened before, if it was asked for with ``run(collect_events=True)``, or None.

    What `APIError` has besides is None elsewhere, so that any error can be asked for its ``status``.
    """

    kind: ClassVar[str] = "error"
    status: int | None = None
    type: str | None = None  # the provider's own word for it
    code: str | int | None = None
    param: str | None = None
    request_id: str | None = None
    retry_after: float | None = None
    body: Any = None

    def __init__(
        self,
        message: str = "",
        *,
        retryable: bool | None = None,
        attempt: int | None = None,
        partial: RunResult | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = self._retryable if retryable is None else retryable
        self.attempt = attempt
        self.partial = partial
        self.events: list[Event] | None = None

    _retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))

    def describe(self) -> str:
        """Return the class, the message and the details that are known, in one line."""
        return describe_error(self)


# -- mistakes in how toolnexus is used -------------------------------------------------------


class ConfigurationError(ToolnexusError, ValueError):
    """An option has a wrong type or value, or a needed one is missing."""

    kind = "configuration"


class MissingExtraError(ConfigurationError, ImportError):
    """A feature needs an optional package; the message has the ``pip install`` line."""


class SchemaError(ConfigurationError, TypeError):
    """No JSON schema can be made for a function's parameter."""


class StreamConsumedError(ToolnexusError, RuntimeError):
    """A stream was asked for something that only an unread stream can give."""

    kind = "usage"


class StreamThreadError(ToolnexusError, RuntimeError):
    """A second thread iterates a stream; one stream belongs to one thread."""

    kind = "usage"


class ConversationBusyError(ToolnexusError, RuntimeError):
    """The conversation is in use: by this very thread, or for longer than the caller waits."""

    kind = "busy"


# -- stores ----------------------------------------------------------------------------------


class StoreError(ToolnexusError):
    """A conversation could not be read or written."""

    kind = "store"


class StoreConflictError(StoreError):
    """Somebody else saved the conversation in between; nothing was overwritten."""


class OutputError(ToolnexusError, ValueError):
    """The model's answer does not fit the output that was asked for, after one repair."""

    kind = "output"


class InvalidAnswerError(ToolnexusError, ValueError):
    """An answer does not fit the request it is for; the suspension stays as it is."""

    kind = "answer"


# -- the run itself --------------------------------------------------------------------------


class RunCancelledError(ToolnexusError):
    """The run was cancelled: by ``cancel()``, ``close()``, ``break``, Ctrl-C or garbage collection."""

    kind = "cancelled"


class RunTimeoutError(ToolnexusError, TimeoutError):
    """The whole run took longer than its ``timeout``."""

    kind = "timeout"


class LimitError(ToolnexusError):
    """A limit on the size of an event or of a response was passed."""

    kind = "limit"


class HookError(ToolnexusError):
    """A hook or callback of the user's raised; the message names it."""

    kind = "hook"


class PIIDetectedError(ToolnexusError):
    """
    A rule with the strategy "block" found a protected value; it was not handed out.

    Attributes:
        pii_type: The kind of the rule, such as "email".
    """

    kind = "pii"

    def __init__(self, message: str = "", *, pii_type: str = "", partial: RunResult | None = None) -> None:
        super().__init__(message, partial=partial)
        self.pii_type = pii_type


# -- between us and the model ----------------------------------------------------------------


class APIError(ToolnexusError):
    """
    A model call failed.

    Attributes:
        status: The HTTP status, or None where the failure did not come as one.
        type: The provider's own word for the error, as given.
        code: The provider's error code, as given (text or number).
        param: The request parameter that the provider blames.
        request_id: The provider's id for the request.
        retry_after: Seconds that the provider asks to wait, or None.
        body: What the provider sent, decoded where it was JSON, cut to a sane size.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        type: str | None = None,  # noqa: A002 - the provider's own word for it
        code: str | int | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        body: Any = None,
        retryable: bool | None = None,
        attempt: int | None = None,
        partial: RunResult | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, attempt=attempt, partial=partial)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after
        self.body = body

    def describe(self) -> str:
        """Return the class, the message and the details that are known, in one line."""
        known = [
            f"{label} {value}"
            for label, value in (
                ("status", self.status),
                ("type", self.type),
                ("code", self.code),
                ("request", self.request_id),
                ("attempt", self.attempt),
            )
            if value is not None
        ]
        return super().describe() + (f" ({', '.join(known)})" if known else "")


class APIConnectionError(APIError, ConnectionError):
    """The connection to the model failed."""

    kind = "connection"
    _retryable = True


class APITimeoutError(APIConnectionError, TimeoutError):
    """The model did not answer in time; the subclass says in which phase."""

    kind = "timeout"


class ConnectTimeoutError(APITimeoutError):
    """No connection within ``connect_timeout``."""


class ResponseTimeoutError(APITimeoutError):
    """Connected, but no byte of an answer within ``response_timeout``."""


class IdleTimeoutError(APITimeoutError):
    """The answer began and then fell silent for ``idle_timeout``."""


class TruncatedStreamError(APIConnectionError):
    """The connection ended before the provider's own end signal."""

    kind = "truncated"


class EmptyResponseError(APIError):
    """The answer holds nothing: no event, or an end with no choice or block before it."""

    kind = "empty_response"
    _retryable = True


class MalformedEventError(APIError):
    """Something came that is not what the provider's format allows."""

    kind = "malformed"
    _retryable = True


class APIStatusError(APIError):
    """The provider reported an error, as an HTTP status or inside a stream."""

    kind = "provider"


class BadRequestError(APIStatusError):
    """The provider finds the request invalid (400)."""

    kind = "invalid_request"


class ContextLengthError(BadRequestError):
    """The prompt is longer than the model's context."""

    kind = "context_length"


class RequestTooLargeError(ContextLengthError):
    """The request has too many bytes (413)."""


class AuthenticationError(APIStatusError):
    """The key is missing or wrong (401)."""

    kind = "auth"


class PermissionDeniedError(AuthenticationError):
    """The key may not do this (403)."""


class NotFoundError(APIStatusError):
    """No such model or endpoint (404)."""

    kind = "not_found"


class ConflictError(APIStatusError):
    """The provider reports a conflict (409)."""

    kind = "conflict"
    _retryable = True


class UnprocessableEntityError(BadRequestError):
    """The provider cannot process the request (422)."""


class RateLimitError(APIStatusError):
    """Too many requests (429)."""

    kind = "rate_limit"
    _retryable = True


class QuotaError(RateLimitError):
    """The account has no quota or credit left; waiting does not help."""

    kind = "quota"
    _retryable = False


class ContentFilterError(BadRequestError):
    """The provider's content filter refused the request."""

    kind = "content_filter"


class InternalServerError(APIStatusError):
    """The provider failed (500 and up)."""

    kind = "server"
    _retryable = True


class ServiceUnavailableError(InternalServerError):
    """The provider is not available right now (503)."""


class OverloadedError(InternalServerError):
    """The provider is overloaded (529, or an overload reported inside a stream)."""

    kind = "overloaded"
