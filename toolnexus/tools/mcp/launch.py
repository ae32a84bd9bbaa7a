"""From a configuration to something that can be started: variables filled in, secrets remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from toolnexus.tools.mcp.config import McpServerConfig, expand
from toolnexus.tools.mcp.environment import child_environment
from toolnexus.tools.mcp.process import Command
from toolnexus.tools.mcp.web import check_headers

__all__ = ["Launch", "prepare"]

#: Names of variables whose values are secrets, for what we quote in errors.
_SECRET = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)
#: Shorter values are not blotted out: they would be found everywhere.
_SHORTEST = 6


@attrs.frozen(kw_only=True, repr=False)
class Launch:
    """
    A server's configuration with its variables filled in. It holds secrets, so it is never shown.

    Args:
        command: What to start, for stdio.
        url: Where to connect, otherwise.
        headers: What to send along.
        secrets: Texts that must not appear in errors.
    """

    command: Command | None = None
    url: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    secrets: frozenset[str] = frozenset()

    def redact(self, text: str) -> str:
        """Return a text, such as what the server wrote to stderr, without our secrets in it."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def prepare(config: McpServerConfig, environ: Mapping[str, str] | None = None) -> Launch:
    """
    Fill in a configuration's variables.

    Args:
        config: The server's configuration.
        environ: The variables; the process's own by default.

    Raises:
        ConfigurationError: A variable is not set, or a header cannot be sent.
    """
    env = {name: expand(value, environ) for name, value in config.env.items()}
    headers = {name: expand(value, environ) for name, value in config.headers.items()}
    check_headers(headers)
    secrets = frozenset(_secrets({**env, **headers}))
    if config.url is not None:
        return Launch(url=expand(config.url, environ), headers=headers, secrets=secrets)
    command = Command(
        argv=tuple(expand(word, environ) for word in config.command),
        env=child_environment(env, environ=environ),
        cwd=None if config.cwd is None else expand(config.cwd, environ),
        max_message=config.max_message,
    )
    return Launch(command=command, secrets=secrets)


def _secrets(values: Mapping[str, str]) -> list[str]:
    """Return the values that are secrets, and what follows a word such as Bearer in them."""
    found = [value for name, value in values.items() if _SECRET.search(name)]
    words = [value.split(" ", 1)[1] for value in found if " " in value]
    return [value for value in [*found, *words] if len(value) >= _SHORTEST]
