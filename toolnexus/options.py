"""The options of a client: checked once, then frozen."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
import requests

from toolnexus.cancel import LONGEST
from toolnexus.chunks import mend_surrogates
from toolnexus.errors import ConfigurationError, ToolnexusError
from toolnexus.hooks import Hooks
from toolnexus.transport.failures import Timeouts
from toolnexus.transport.http import Limits
from toolnexus.transport.retry import OnError, RetryPolicy
from toolnexus.transport.secret import Secret
from toolnexus.wire import DIALECTS

__all__ = ["Options", "make_options", "overridden"]

_OPENAI_URL = "https://api.openai.com/v1"
_DEFAULT_URL = {
    "openai": _OPENAI_URL,
    "anthropic": "https://api.anthropic.com",
    "responses": _OPENAI_URL,
    "gemini": "https://generativelanguage.googleapis.com/v1beta",
}
_STYLE_KEY = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "responses": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
_STYLE_URL = {
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "responses": "OPENAI_BASE_URL",
    "gemini": "GEMINI_BASE_URL",
}

#: The second name of a variable, looked at where the first is not set.
_ALSO = {"GEMINI_API_KEY": "GOOGLE_API_KEY"}

#: The headers in which a key of the user's own may stand.
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")

#: Hosts that have a key of their own; no other key ever goes there, and theirs goes nowhere else.
_HOST_KEY = {
    "openrouter.ai": "OPENROUTER_API_KEY",
    "openai.com": "OPENAI_API_KEY",
    "anthropic.com": "ANTHROPIC_API_KEY",
    "generativelanguage.googleapis.com": "GEMINI_API_KEY",
    "groq.com": "GROQ_API_KEY",
    "deepseek.com": "DEEPSEEK_API_KEY",
    "mistral.ai": "MISTRAL_API_KEY",
    "together.xyz": "TOGETHER_API_KEY",
    "together.ai": "TOGETHER_API_KEY",
    "fireworks.ai": "FIREWORKS_API_KEY",
    "cerebras.ai": "CEREBRAS_API_KEY",
    "x.ai": "XAI_API_KEY",
}

_RESERVED = ("messages", "input", "contents", "tools", "stream")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Options:
    """Everything that a client was given, checked."""

    base_url: str
    style: str
    model: str
    api_key: Secret | None
    headers: Mapping[str, Secret]
    system_prompt: str | None
    max_turns: int
    timeout: float | None
    request_params: Mapping[str, Any]
    body_transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None
    queue_size: int
    skip_bad_events: bool
    echo_reasoning: str
    tool_concurrency: int
    tool_timeout: float | None
    log_content: bool
    wait_for: Callable[[Any], Any] | None
    hooks: Hooks
    abandon_timeout: float | None
    fallback_on: Callable[[ToolnexusError], bool]
    retry: RetryPolicy
    timeouts: Timeouts
    limits: Limits
    url_from_env: bool

    def key(self) -> str | None:
        """
        Return the API key for the endpoint.

        Raises:
            ConfigurationError: The endpoint wants one and there is none.
        """
        if self.api_key is not None:
            return self.api_key.reveal() or None
        if any(name.lower() in _KEY_HEADERS for name in self.headers):
            return None
        host = (urlsplit(self.base_url).hostname or "").lower()
        variable = next((v for h, v in _HOST_KEY.items() if host == h or host.endswith("." + h)), None)
        if variable is None:
            if is_local(host) and not self.url_from_env:
                return None
            variable = _STYLE_KEY.get(self.style, "OPENAI_API_KEY")
        names = [variable, *([_ALSO[variable]] if variable in _ALSO else [])]
        value = next(filter(None, (os.environ.get(name, "").strip() for name in names)), "")
        if not value:
            if is_local(host):
                return None
            raise ConfigurationError(
                f"no API key for {host}: give api_key, or set {' or '.join(names)} in the environment"
            )
        _check_header("API key", value)
        return value


def is_local(host: str) -> bool:
    """
    Tell whether a host is this machine or one on a private network.

    >>> is_local("localhost"), is_local("127.0.0.1"), is_local("api.openai.com")
    (True, True, False)
    """
    if (
        host == "localhost"
        or host.endswith((".localhost", ".local", ".internal"))
        or ("." not in host and ":" not in host)
    ):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback


def _check_header(what: str, value: str) -> None:
    for position, character in enumerate(value):
        if not (" " <= character <= "~"):
            raise ConfigurationError(
                f"the {what} has a character that a header cannot carry, at position {position}"
            )


def _number(name: str, value: Any, *, low: float, optional: bool = False, whole: bool = False) -> Any:
    """Check a number; ``low`` is the least it may be, exclusive for durations."""
    if value is None and optional:
        return None
    wanted = int if whole else (int, float)
    if not isinstance(value, wanted) or isinstance(value, bool) or value != value:
        kind = "a whole number" if whole else "a number of seconds"
        raise ConfigurationError(f"{name} must be {kind}, not {value!r}")
    if value < low or (not whole and value <= low):
        raise ConfigurationError(
            f"{name} must be {'at least' if whole else 'more than'} {low:g}, not {value!r}"
        )
    if not whole and value > LONGEST:
        none = "; None is for no limit" if optional else ""
        raise ConfigurationError(f"{name} must be at most {LONGEST} seconds{none}")
    return value if whole else float(value)


#: What one run may have otherwise than its client, and how it is checked.
_OVERRIDES: dict[str, Callable[[Any], Any]] = {
    "model": lambda value: _model(value),
    "system_prompt": lambda value: _text("system_prompt", value, optional=True),
    "max_turns": lambda value: _number("max_turns", value, low=0, whole=True),
    "timeout": lambda value: _number("timeout", value, low=0, optional=True),
}


def overridden(options: Options, overrides: dict[str, Any]) -> Options:
    """
    Return the options with those that are given for one run.

    Raises:
        ConfigurationError: One of them cannot be given, or has a wrong type or value.
    """
    if not overrides:
        return options
    unknown = [name for name in overrides if name not in _OVERRIDES]
    if unknown:
        raise ConfigurationError(
            f"unknown argument {unknown[0]!r}; for one run there are {', '.join(_OVERRIDES)}"
        )
    return attrs.evolve(options, **{name: _OVERRIDES[name](value) for name, value in overrides.items()})


def _text(name: str, value: Any, *, optional: bool = False) -> Any:
    if value is None and optional:
        return None
    if not isinstance(value, str) or not (optional or value.strip()):
        raise ConfigurationError(
            f"{name} must be a {'text' if optional else 'non-empty text'}, not {value!r}"
        )
    return value


def _model(value: Any) -> str:
    name = str(_text("model", value))
    if mend_surrogates(name) != name:
        raise ConfigurationError(f"model has half a surrogate pair, which nobody can send: {name!a}")
    return name


def _url(value: Any, style: str) -> tuple[str, bool]:
    from_env = False
    if value is None:
        value = os.environ.get(_STYLE_URL.get(style, ""), "").strip() or None
        from_env = value is not None
        value = value or _DEFAULT_URL[style]
    url = str(_text("base_url", value)).strip()
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        port_ok = False
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise ConfigurationError(f"base_url must be an http or https URL, such as {_DEFAULT_URL['openai']!r}")
    if parts.username or parts.password:
        raise ConfigurationError("base_url must not hold a user name or password; use headers or api_key")
    return parts._replace(fragment="").geturl(), from_env


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a mapping, not {type(value).__name__}")
    return dict(value or {})


def _headers(value: Any) -> dict[str, Secret]:
    headers: dict[str, Secret] = {}
    for name, text in _mapping("headers", value).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigurationError(f"headers must map texts to texts; {name!r} does not")
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ConfigurationError(f"{name!r} is no name of a header")
        _check_header(f"header {name!r}", text)
        headers[name] = Secret(text)
    return headers


def _params(value: Any) -> dict[str, Any]:
    params = _mapping("request_params", value)
    for key in _RESERVED:
        if key in params:
            raise ConfigurationError(f"request_params may not hold {key!r}; use body_transform to change it")
    return params


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return str(value)


def _function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be a function, not {value!r}")
    return value


#: The kinds of error after which another endpoint is worth asking.
FALLBACK_KINDS = frozenset(
    {
        "auth",
        "conflict",
        "connection",
        "context_length",
        "empty_response",
        "malformed",
        "not_found",
        "overloaded",
        "provider",
        "quota",
        "rate_limit",
        "server",
        "timeout",
        "truncated",
    }
)


def _fallback_on(value: Any) -> Callable[[ToolnexusError], bool]:
    if callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) or not isinstance(value, (Iterable, type(None))):
        raise ConfigurationError(f"fallback_on must be a function or a list of error kinds, not {value!r}")
    return FallbackKinds(FALLBACK_KINDS if value is None else frozenset(value))


@attrs.frozen(eq=False, repr=False)
class FallbackKinds:
    """Says yes to the errors of certain kinds."""

    kinds: frozenset[str]

    def __call__(self, error: ToolnexusError) -> bool:
        return error.kind in self.kinds


def check_session(session: Any) -> requests.Session | None:
    """Return the session, if it is one."""
    if session is not None and not isinstance(session, requests.Session):
        raise ConfigurationError(f"session must be a requests.Session, not {type(session).__name__}")
    return session


def make_options(
    *,
    base_url: str | None,
    style: str,
    model: str,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    system_prompt: str | None,
    max_turns: int,
    retries: int,
    timeout: float | None,
    connect_timeout: float,
    response_timeout: float,
    idle_timeout: float,
    request_params: Mapping[str, Any] | None,
    body_transform: Callable[[dict[str, Any]], dict[str, Any] | None] | None,
    queue_size: int,
    max_event_bytes: int,
    max_response_bytes: int,
    on_bad_event: str,
    on_error: OnError | None,
    echo_reasoning: str,
    tool_concurrency: int,
    tool_timeout: float | None,
    wait_for: Callable[[Any], Any] | None,
    hooks: Any,
    fallback_on: Any,
    abandon_timeout: float | None,
    log_content: bool,
) -> Options:
    """
    Check the options of a client.

    Raises:
        ConfigurationError: One of them has a wrong type or value; the message names it.
    """
    _choice("style", style, tuple(DIALECTS))
    url, from_env = _url(base_url, style)
    if api_key is not None:
        _check_header("API key", _text("api_key", api_key, optional=True).strip())
    return Options(
        base_url=url,
        style=style,
        model=_model(model),
        api_key=None if api_key is None else Secret(api_key.strip()),
        headers=_headers(headers),
        system_prompt=_text("system_prompt", system_prompt, optional=True),
        max_turns=_number("max_turns", max_turns, low=0, whole=True),
        timeout=_number("timeout", timeout, low=0, optional=True),
        request_params=_params(request_params),
        body_transform=_function("body_transform", body_transform),
        queue_size=_number("queue_size", queue_size, low=1, whole=True),
        skip_bad_events=_choice("on_bad_event", on_bad_event, ("error", "skip")) == "skip",
        echo_reasoning=_choice("echo_reasoning", echo_reasoning, ("auto", "always", "never")),
        tool_concurrency=_number("tool_concurrency", tool_concurrency, low=1, whole=True),
        tool_timeout=_number("tool_timeout", tool_timeout, low=0, optional=True),
        log_content=bool(log_content),
        wait_for=_function("wait_for", wait_for),
        fallback_on=_fallback_on(fallback_on),
        hooks=hooks if isinstance(hooks, Hooks) else Hooks(hooks),
        abandon_timeout=_number("abandon_timeout", abandon_timeout, low=0, optional=True),
        retry=RetryPolicy(
            retries=_number("retries", retries, low=0, whole=True), on_error=_function("on_error", on_error)
        ),
        timeouts=Timeouts(
            connect=_number("connect_timeout", connect_timeout, low=0),
            response=_number("response_timeout", response_timeout, low=0),
            idle=_number("idle_timeout", idle_timeout, low=0),
        ),
        limits=Limits(
            event_bytes=_number("max_event_bytes", max_event_bytes, low=1, whole=True),
            response_bytes=_number("max_response_bytes", max_response_bytes, low=1, whole=True),
        ),
        url_from_env=from_env,
    )
