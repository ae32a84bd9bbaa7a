"""What the model is told of an answer: text, JSON, an image or a file."""

from __future__ import annotations

import codecs
import json
import re
from http import HTTPStatus
from typing import Any, Literal

from toolnexus.content import File, Image, Part
from toolnexus.tools.base import ToolResult
from toolnexus.tools.http_request import Answer, Failure
from toolnexus.tools.http_secrets import Redactor

__all__ = ["ResultMode", "to_result"]

ResultMode = Literal["text", "json", "status+text"]

_TEXT = re.compile(
    r"text/.*|.*\+(json|xml|yaml)"
    r"|application/(json|xml|yaml|x-yaml|javascript|ecmascript|graphql|sql|toml|rtf|x-ndjson|jsonl?|json-seq"
    r"|x-www-form-urlencoded|problem\+json)"
)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DECLARED = re.compile(
    rb"""<\?xml[^>]*encoding=["']([\w.-]+)|<meta[^>]*charset=["']?([\w.-]+)""", re.IGNORECASE
)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
          (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip

#: Codecs that a server may not choose: they are not character sets, or take quadratic time.
_NO_CHARSETS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf_7", "undefined")

#: How much of a Location header is shown.
_SHOWN = 2000


def to_result(answer: Answer | Failure, mode: ResultMode, redactor: Redactor, method: str) -> ToolResult:
    """
    Return what goes back to the model.

    Args:
        answer: The answer, or why there is none.
        mode: How a good answer is shown.
        redactor: Blots out what nobody may see, also where the server echoes it.
        method: The request's method.
    """
    if isinstance(answer, Failure):
        return ToolResult.error(redactor.clean(answer.message))
    metadata: dict[str, Any] = {"status": answer.status}
    if answer.cut:
        metadata["truncated"] = True
    if not 200 <= answer.status < 300:
        return ToolResult(f"HTTP {answer.status}: {_problem(answer, redactor)}", True, metadata)
    if method == "HEAD":
        return ToolResult(redactor.clean(_head(answer)), False, metadata)
    text = _text(answer)
    if text is None:
        return _binary(answer, mode, metadata)
    text = redactor.clean(_shaped(text, mode, answer.cut), cut=answer.cut)
    prefix = f"HTTP {answer.status}: " if mode == "status+text" else ""
    return ToolResult(prefix + text + _cut_note(answer), False, metadata)


def _problem(answer: Answer, redactor: Redactor) -> str:
    if answer.redirect:
        return redactor.clean(f"redirect to {answer.redirect[:_SHOWN]}, which was not followed")
    text = _text(answer)
    if text is None:
        return _summary(answer)
    return (redactor.clean(text, cut=answer.cut) or _phrase(answer.status)) + _cut_note(answer)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no text"


def _cut_note(answer: Answer) -> str:
    return f"\n[cut: the answer is longer than {len(answer.body)} bytes]" if answer.cut else ""


def _head(answer: Answer) -> str:
    """A HEAD answer has no body: its headers are what was asked for."""
    shown = [f"{k.lower()}: {v}" for k, v in answer.headers.items() if k.lower() != "set-cookie"]
    return "\n".join([f"HTTP {answer.status}", *shown])


def _shaped(text: str, mode: ResultMode, cut: bool) -> str:
    if mode != "json" or cut:
        return text
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _media_type(answer: Answer) -> tuple[str, str | None]:
    """Return the media type in lower case and the charset that the header names."""
    header = answer.headers.get("Content-Type") or ""
    charset = re.search(r"""charset=["']?([^\s"';]+)""", header, re.IGNORECASE)
    return header.split(";", 1)[0].strip().lower(), charset[1] if charset else None


def _text(answer: Answer) -> str | None:
    """Return the body as text, or None where it is none."""
    media_type, charset = _media_type(answer)
    if not answer.body:
        return ""
    if charset or _TEXT.fullmatch(media_type):
        return _decode(answer.body, charset, answer.cut)
    if media_type in ("", "application/octet-stream", "binary/octet-stream") and b"\0" not in answer.body:
        return _try_decode(answer.body, "utf-8", answer.cut)
    return None


def _decode(body: bytes, charset: str | None, cut: bool) -> str:
    """Decode by the byte order mark, the header, UTF-8, or what the document declares, in this order."""
    declared = _DECLARED.search(body, 0, 1024)
    inner = next((g.decode("ascii") for g in declared.groups() if g), None) if declared else None
    mark = next((name for magic, name in _MARKS if body.startswith(magic)), None)
    for name in (mark, charset, "utf-8", inner):
        text = _try_decode(body, name, cut) if name else None
        if text is not None:
            return text
    return body.decode("cp1252", "replace")


def _try_decode(body: bytes, charset: str, cut: bool) -> str | None:
    try:
        info = codecs.lookup(charset)
        if info.name.replace("-", "_") in _NO_CHARSETS or not info._is_text_encoding:
            return None
        # Not final where the body was cut: the half character at its end is left out.
        return info.incrementaldecoder("strict").decode(body, final=not cut)
    except (LookupError, ValueError, TypeError):
        return None


def _binary(answer: Answer, mode: ResultMode, metadata: dict[str, Any]) -> ToolResult:
    if answer.cut:
        limit = len(answer.body)
        message = f"the answer is binary and longer than {limit} bytes; it was not read"
        return ToolResult(message, True, metadata)
    media_type = _media_type(answer)[0] or "application/octet-stream"
    prefix = f"HTTP {answer.status}: " if mode == "status+text" else ""
    part: Part = File(answer.body, media_type, _name(media_type))
    if media_type in _IMAGES:
        part = Image(answer.body, media_type)
    return ToolResult(prefix + _summary(answer), False, metadata, (part,))


def _summary(answer: Answer) -> str:
    return f"[{_media_type(answer)[0] or 'binary'}, {len(answer.body)} bytes]"


def _name(media_type: str) -> str:
    import mimetypes

    return "answer" + (mimetypes.guess_extension(media_type) or ".bin")
