"""The built-in that gets pages: webfetch."""

from __future__ import annotations

import codecs
import re
from typing import Any

from toolnexus._extras import need
from toolnexus.cancel import CancelScope
from toolnexus.tools.base import Context, Tool, ToolResult
from toolnexus.tools.builtins.base import Options, define, number, text
from toolnexus.tools.builtins.failure import ToolFailure
from toolnexus.tools.builtins.output import clip
from toolnexus.tools.builtins.texts import is_binary

__all__ = ["web_tools"]

DEFAULT_TIMEOUT = 30
MAX_TIMEOUT = 120

_FORMATS = ("markdown", "text", "html")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9._:-]+)", re.I)
_READABLE = re.compile(r"text/|application/(.+\+)?(json|xml|javascript|yaml|x-yaml|x-ndjson)", re.I)
_UNSEEN = ("script", "style", "noscript", "template", "svg", "iframe")


def web_tools(options: Options) -> list[Tool]:
    """Return webfetch."""
    return [
        define(
            webfetch,
            options,
            description="Get a web page as Markdown, text or HTML. A long one is cut, and the cut says so.",
            properties={
                "url": {"type": "string", "description": "The http or https address."},
                "format": {"type": "string", "enum": list(_FORMATS), "description": "markdown by default."},
                "timeout": {
                    "type": "number",
                    "description": f"Seconds it may take: {DEFAULT_TIMEOUT} by default, up to {MAX_TIMEOUT}.",
                },
            },
            required=("url",),
            read_only=True,
        )
    ]


def webfetch(args: dict[str, Any], ctx: Context, options: Options) -> ToolResult:
    """Get a page and return its text."""
    # Imported here: TLS and the rest are only loaded by those who fetch something.
    from toolnexus.tools.builtins.fetch import Page, fetch

    url, form = text(args, "url"), args.get("format", "markdown")
    if form not in _FORMATS:
        raise ToolFailure(f"format is one of {', '.join(_FORMATS)}")
    seconds = max(0.1, min(MAX_TIMEOUT, number(args, "timeout", DEFAULT_TIMEOUT)))
    scope = CancelScope(seconds)
    forget = ctx.scope.on_cancel(scope.cancel)
    try:
        with scope.running():
            page: Page = fetch(
                url, policy=options.policy, scope=scope, most=options.max_page, ca_bundle=options.ca_bundle
            )
    except Exception as error:
        if ctx.cancelled:
            raise ToolFailure("the run was cancelled") from error
        if scope.cancelled:
            raise ToolFailure(f"timed out after {seconds:g} s") from error
        raise
    finally:
        forget()
    if not 200 <= page.status < 300:
        return ToolResult.error(f"HTTP {page.status}", status=page.status)
    note = f"\n[... cut after {options.max_page} bytes of the page ...]" if page.cut else ""
    body = clip(_shown(page.body, page.content_type, form), options.max_output)
    return ToolResult.ok(body + note, status=page.status, format=form)


def _shown(body: bytes, content_type: str, form: str) -> str:
    """Return a page as it was asked for; what is not HTML comes as it is."""
    kind = content_type.partition(";")[0].strip().lower()
    if (kind and not _READABLE.fullmatch(kind) and not kind.startswith("text/")) or is_binary(body):
        raise ToolFailure(f"the page is not text ({kind or 'unknown type'}, {len(body)} bytes)")
    page = _decoded(body, content_type)
    html = "html" in kind or (not kind and page.lstrip()[:15].lower().startswith(("<!doctype html", "<html")))
    return _converted(page, form) if html and form != "html" else page


def _decoded(body: bytes, content_type: str) -> str:
    """Return the text of a page, in the encoding that its header or its first lines name."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if body.startswith(mark):
            return body.decode(encoding, "replace")
    named = _CHARSET.search(content_type) or _CHARSET.search(body[:1024].decode("latin-1"))
    try:
        return body.decode(named[1] if named else "utf-8", "replace")
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")


def _converted(page: str, form: str) -> str:
    """
    Return the text of an HTML page, or its Markdown.

    Raises:
        MissingExtraError: markdownify is not installed.
    """
    markdownify = need("markdownify", "web")
    soup = need("bs4", "web").BeautifulSoup(page, "html.parser")
    for tag in soup.find_all(_UNSEEN):
        tag.decompose()
    if form == "markdown":
        try:
            markdown: str = markdownify.MarkdownConverter(heading_style="ATX").convert_soup(soup)
            return _tidy(markdown)
        except RecursionError:
            pass  # nested too deeply for it; the text is still there
    return _tidy(soup.get_text("\n"))


def _tidy(page: str) -> str:
    """Take away blanks at the ends of lines, and blank lines beyond one."""
    lines = (line.rstrip() for line in page.strip().splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
