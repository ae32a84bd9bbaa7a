"""Getting an OpenAPI document: from a file, a URL or a dict; as JSON or YAML."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolnexus._extras import need
from toolnexus.cancel import CancelScope
from toolnexus.errors import ConfigurationError
from toolnexus.tools.http_call import check_url
from toolnexus.tools.http_request import Exchange, Failure, Limits, Outgoing, Sessions
from toolnexus.tools.http_secrets import Redactor

__all__ = ["Source", "load"]

Source = str | os.PathLike[str] | Mapping[str, Any]

#: 64 MiB: the largest public documents have 13 MB.
_MAX_BYTES = 64 << 20
#: The most values of a YAML document, counting each as often as its aliases repeat it.
_MAX_VALUES = 5_000_000
_ACCEPTED = "application/vnd.oai.openapi+json, application/json, application/yaml, */*;q=0.5"


def load(source: Source, timeout: float | None, sessions: Sessions) -> tuple[dict[str, Any], str]:
    """
    Read a document.

    Args:
        source: A path, an ``http(s)`` URL, or the document itself.
        timeout: Seconds for fetching it.
        sessions: What a URL is fetched with.

    Returns:
        The document, and its URI, which is empty for a dict.

    Raises:
        ConfigurationError: It cannot be had, cannot be read, or is no OpenAPI 3 document.
        MissingExtraError: It is YAML, and PyYAML is not installed.
    """
    if isinstance(source, Mapping):
        document, uri = dict(source), ""
    elif isinstance(source, str) and re.match(r"https?://", source, re.IGNORECASE):
        document, uri = _parse(_fetch(source, timeout, sessions), source.partition("?")[0]), source
    else:
        path = Path(source)
        document, uri = _parse(_read(path), str(path)), path.absolute().as_uri()
    _check_version(document)
    return document, uri


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


def _fetch(url: str, timeout: float | None, sessions: Sessions) -> bytes:
    check_url(url)
    exchange = Exchange(sessions, Limits(timeout, _MAX_BYTES))
    answer = exchange.send(Outgoing("GET", url, {"Accept": _ACCEPTED}), CancelScope(), Redactor(()))
    shown = url.partition("?")[0]
    if isinstance(answer, Failure):
        raise ConfigurationError(f"cannot get {shown}: {answer.message}")
    if answer.redirect:
        raise ConfigurationError(f"cannot get {shown}: it redirects to {answer.redirect}; use that URL")
    if answer.status != 200 or answer.cut:
        why = f"it is longer than {_MAX_BYTES} bytes" if answer.cut else f"HTTP {answer.status}"
        raise ConfigurationError(f"cannot get {shown}: {why}")
    return answer.body


def _parse(data: bytes, name: str) -> dict[str, Any]:
    """Parse JSON where it is JSON, else YAML."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        document = json.loads(data) if data.lstrip()[:1] == b"{" else _yaml(data)
    except json.JSONDecodeError:
        document = _guarded_yaml(data, name)  # YAML may begin with a brace, too
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{name} is no OpenAPI document: it holds no mapping")
    return document


def _guarded_yaml(data: bytes, name: str) -> Any:
    try:
        return _yaml(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from error


def _yaml(data: bytes) -> Any:
    yaml = need("yaml", "openapi")
    try:
        document = yaml.load(data, Loader=_loader())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    plain, size = _plain(document, {}, set())
    if size > _MAX_VALUES:
        raise ValueError("its aliases make it too large")
    return plain


@functools.cache
def _loader() -> Any:
    """
    Return a loader that reads plain words as YAML 1.2 does.

    PyYAML reads them as YAML 1.1 does: ``no`` and ``on`` as booleans, ``12:30`` as a number and
    ``2020-01-01`` as a date, all of which occur as plain strings in OpenAPI documents.
    """
    yaml = need("yaml", "openapi")
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}})
    for tag, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        (
            "float",
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            list("-+.0123456789"),
        ),
        ("merge", r"<<", ["<"]),
    ):
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    loader.add_constructor("tag:yaml.org,2002:int", _integer)
    return loader


def _integer(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _plain(value: Any, done: dict[int, tuple[Any, int]], open_: set[int]) -> tuple[Any, int]:
    """Return a YAML value with strings as keys, and how many values it has with aliases written out."""
    if not isinstance(value, dict | list):
        return value, 1
    key = id(value)
    if key in open_:
        raise ValueError("an alias refers to what it is in")
    if key not in done:
        open_.add(key)
        if isinstance(value, dict):
            parts = {_key(k): _plain(v, done, open_) for k, v in value.items()}
            done[key] = {k: v for k, (v, _) in parts.items()}, 1 + sum(n for _, n in parts.values())
        else:
            items = [_plain(v, done, open_) for v in value]
            done[key] = [v for v, _ in items], 1 + sum(n for _, n in items)
        open_.discard(key)
    return done[key]


def _key(key: Any) -> str:
    """Return a mapping's key as JSON would have it: the status 200 is "200"."""
    return key if isinstance(key, str) else json.dumps(key, default=str)


def _check_version(document: Mapping[str, Any]) -> None:
    if document.get("swagger"):
        raise ConfigurationError("this is a Swagger 2.0 document; convert it to OpenAPI 3 first")
    version = str(document.get("openapi") or "")
    if not version.startswith("3."):
        raise ConfigurationError(f"not an OpenAPI 3 document: its 'openapi' field is {version!r}")
    if not isinstance(document.get("paths", {}), Mapping):
        raise ConfigurationError("not an OpenAPI 3 document: its 'paths' are no mapping")
