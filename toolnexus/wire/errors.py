"""Telling from what a provider says which kind of error it is."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from toolnexus.errors import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ContentFilterError,
    ContextLengthError,
    InternalServerError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    QuotaError,
    RateLimitError,
    RequestTooLargeError,
    ServiceUnavailableError,
    UnprocessableEntityError,
)

__all__ = ["page_title", "provider_error", "retry_after", "shows_error"]

_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: QuotaError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: RequestTooLargeError,
    422: UnprocessableEntityError,
    429: RateLimitError,
    503: ServiceUnavailableError,
    529: OverloadedError,
}

#: The providers' words for an error, in the order in which they are looked for. These and the
#: patterns below are compiled when they are first needed, and kept by `re`: that is off the import.
_BY_WORD: tuple[tuple[type[APIStatusError], str], ...] = (
    (ContextLengthError, r"context_length|context_window|prompt_too_long|string_above_max_length"),
    (RequestTooLargeError, r"request_too_large"),
    (
        QuotaError,
        r"insufficient_quota|exceeded_current_quota|billing|insufficient_credit|^1113$|quota_exceeded",
    ),
    (ContentFilterError, r"content_filter|content_policy|responsibleaipolicy|moderation"),
    (OverloadedError, r"overloaded|insufficient_system_resource|server_busy|capacity"),
    (RateLimitError, r"rate_?limit|too_many_requests|resource_exhausted|throttl"),
    (PermissionDeniedError, r"permission|forbidden"),
    (AuthenticationError, r"authenticat|unauthor|invalid_api_key|invalid_key"),
    (NotFoundError, r"not_?found|model_not_exist"),
    (ServiceUnavailableError, r"unavailable"),
    (
        BadRequestError,
        r"invalid_?request|invalid_argument|badrequest|bad_request|tool_use_failed|unsupported",
    ),
    (InternalServerError, r"api_error|server_error|internal|timeout|worker"),
)

_CONTEXT = (
    r"(?i)context[ _](length|window|size)|context limit|maximum context|too many tokens|prompt is too long"
    r"|input is too long|input length and|context too long|exceeds? (the )?(available )?context"
    r"|longer than the model|exceeds the maximum number of (input )?tokens"
)
_QUOTA = r"(?i)quota exceeded|exceeded your current quota|insufficient (balance|credit|quota)"
_OVERLOAD = r"(?i)\boverloaded\b"


def shows_error(name: str, payload: Any) -> bool:
    """
    Tell whether an event of a stream reports an error, in any of the shapes that occur.

    >>> (
    ...     shows_error("message", {"error": "out of memory"}),
    ...     shows_error("message", {"choices": [], "error": None}),
    ... )
    (True, False)
    """
    if name == "error":
        return True
    if not isinstance(payload, dict):
        return False
    error = payload.get("error")
    if error and _says(error):
        return True
    choices = payload.get("choices")
    return _of_choice(choices) is not None if choices else _is_report(payload)


def _says(error: Any) -> bool:
    """Tell whether the value of a key "error" is one; some send the key with nothing in it."""
    if isinstance(error, dict):
        return any(value not in (None, "") for value in error.values())
    return bool(error)


def _of_choice(choices: Any) -> dict[str, Any] | None:
    """Return the choice that holds an error, or None."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error") and _says(choice["error"]):
            return choice
    return None


def _is_report(payload: dict[str, Any]) -> bool:
    """Tell whether an object without choices is a report of an error that says so in its own way."""
    kind = payload.get("type")
    if kind in ("error", "response.failed") or payload.get("error_message") or payload.get("error_type"):
        return True
    if isinstance(payload.get("errors"), list) and payload["errors"]:
        return True
    if not any(isinstance(payload.get(key), (str, list)) for key in ("message", "detail", "details", "msg")):
        return False
    if (
        payload.get("object") == "error"
        or (isinstance(kind, str) and "error" in kind.lower())
        or len(payload) == 1
    ):
        return True
    code = payload.get("code")
    if isinstance(code, str) and not code.isdigit():
        return code.lower() not in ("", "ok", "success")
    return any(_number(payload.get(key)) for key in ("code", "status", "status_code"))


def provider_error(status: int | None, body: Any, headers: Mapping[str, str] | None = None) -> APIStatusError:
    """
    Return the exception for what a provider reported.

    Args:
        status: The HTTP status, or None for an error inside a stream.
        body: The body or event: decoded JSON, or a text.
        headers: The headers of the answer.

    >>> type(provider_error(429, {"error": {"code": "insufficient_quota", "message": "no credit"}})).__name__
    'QuotaError'
    >>> provider_error(None, {"error": "out of memory"}).message
    'out of memory'
    """
    headers = headers or {}
    details = _details(body)
    message = _message(body, details) or f"HTTP {status}"
    code, word = (
        details.get("code"),
        details.get("type") or details.get("status") or details.get("error_type"),
    )
    number = status if status is not None else _number(code) or _number(details.get("status_code"))
    kind, delay = _kind(number, word, code, message), _google_delay(details)
    if kind is QuotaError and delay is not None:
        kind = RateLimitError  # Google calls its limits by the minute quotas, too
    error = kind(
        message,
        status=status,
        type=word if isinstance(word, str) else None,
        code=code if isinstance(code, (str, int)) and not isinstance(code, bool) else None,
        param=details.get("param") if isinstance(details.get("param"), str) else None,
        request_id=_request_id(headers, body),
        retry_after=delay if delay is not None else retry_after(headers),
        body=body,
    )
    error.retryable = _retryable(error, number, headers, details)
    return error


def _holder(body: Any) -> dict[str, Any]:
    """Return the object that the error stands in, wherever a provider puts it."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict) or _says(body.get("error")):
        return body if isinstance(body, dict) else {}
    inner = body.get("response") if body.get("type") == "response.failed" else _of_choice(body.get("choices"))
    if inner is None and isinstance(body.get("errors"), list) and body["errors"]:
        inner = {"error": body["errors"][0]}
    return inner if isinstance(inner, dict) and _says(inner.get("error")) else body


def _details(body: Any) -> dict[str, Any]:
    """Return the object that holds the details: the one under "error", or the body itself."""
    holder = _holder(body)
    inner = holder.get("error")
    if isinstance(inner, dict):
        outer = {k: v for k, v in holder.items() if k not in ("error", "type", "choices", "message")}
        return {**outer, **inner}
    return holder


def _message(body: Any, details: dict[str, Any]) -> str:
    if isinstance(body, str):
        return page_title(body) if body.lstrip().startswith("<") else body.strip()[:2000]
    text = _text(details)
    said = _holder(body).get("error")
    if isinstance(said, str) and said:
        return f"{said}: {text}" if text and text != said else said
    behind = details.get("metadata")
    raw = behind.get("raw") if isinstance(behind, dict) else None
    if text and isinstance(raw, str) and raw.strip() and raw not in text:
        return f"{text}: {raw.strip()[:500]}"  # what the provider behind a gateway said
    return text or (str(body)[:2000] if body else "")


def _text(details: dict[str, Any]) -> str:
    """Return the message under whichever name it has."""
    for key in ("message", "error_message", "detail", "details", "msg", "error_description"):
        value = details.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, (list, dict)) and value:
            return str(value)[:2000]
    return ""


def page_title(page: str) -> str:
    """Return what a web page says about itself."""
    low = page.lower()
    start, end = low.find("<title>"), low.find("</title>")
    return " ".join(page[start + 7 : end].split()) if 0 <= start < end else page.strip()[:120]


def _number(code: Any) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else None


def _kind(number: int | None, word: Any, code: Any, message: str) -> type[APIStatusError]:
    """Decide by the provider's words first: the status is often a plain 400 or 500."""
    words = [str(item).lower() for item in (code, word) if item is not None]
    by_word = next((kind for said in words for kind, pattern in _BY_WORD if re.search(pattern, said)), None)
    if number in (None, 400, 413, 422, 500) and re.search(_CONTEXT, message):
        return RequestTooLargeError if number == 413 else ContextLengthError
    if number in (None, 402, 403, 429) and (by_word is QuotaError or re.search(_QUOTA, message)):
        return QuotaError
    if number is None or by_word in (ContextLengthError, ContentFilterError, OverloadedError):
        return by_word or (OverloadedError if re.search(_OVERLOAD, message) else InternalServerError)
    if number in _BY_STATUS:
        return _BY_STATUS[number]
    if number >= 500:
        return InternalServerError
    return APIStatusError if number in (408, 425) or number < 400 else BadRequestError


def _google_delay(details: dict[str, Any]) -> float | None:
    """Return the seconds that Google asks to wait; None where it does not, or for a limit by the day."""
    found = details.get("details")
    items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    if any("PerDay" in str(item.get("violations")) for item in items):
        return None
    delays = [str(item["retryDelay"]) for item in items if "retryDelay" in item]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s", delays[0], re.ASCII) if delays else None
    return float(match[1]) if match else None


def _retryable(
    error: APIStatusError, number: int | None, headers: Mapping[str, str], details: dict[str, Any]
) -> bool:
    said = headers.get("x-should-retry", "").lower()
    if said in ("true", "false"):
        return said == "true"
    if details.get("retryable") is False:
        return False
    return error.retryable or number in (408, 425)


def _request_id(headers: Mapping[str, str], body: Any) -> str | None:
    for name in ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "cf-ray"):
        if headers.get(name):
            return headers[name]
    found = body.get("request_id") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """
    Return the seconds that a provider asks to wait, never negative; None where it does not.

    ``retry-after-ms`` goes before ``Retry-After``, which may be seconds or a date.

    >>> (
    ...     retry_after({"retry-after-ms": "250"}),
    ...     retry_after({"Retry-After": "-5"}),
    ...     retry_after({"Retry-After": "abc"}),
    ... )
    (0.25, 0.0, None)
    """
    low = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = low.get(name, "").strip()
        if re.fullmatch(r"[+-]?\d+(\.\d*)?", text, re.ASCII):
            return max(0.0, float(text) / unit)
    try:
        moment = parsedate_to_datetime(low.get("retry-after", ""))
    except (TypeError, ValueError, IndexError):
        return None
    return max(0.0, moment.timestamp() - (time.time() if now is None else now))
