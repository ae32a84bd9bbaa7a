"""
An agent in the terminal: text as it arrives, tools as they run, and what it cost.

Without anything set, a scripted model server on 127.0.0.1 answers, once in each wire style. With
``MODEL=...`` and a key (``OPENAI_API_KEY``, ``ANTHROPIC_API_KEY`` or ``OPENROUTER_API_KEY``) the real model
does; ``STYLE`` ("openai" or "anthropic") and ``BASE_URL`` say where, for a local server for instance.
"""

from __future__ import annotations

import datetime
import io
import os
import sys
from typing import Any

from toolnexus import (
    Client,
    ConfigurationError,
    Done,
    Error,
    Event,
    Text,
    Thinking,
    ToolCall,
    ToolFinished,
    UsageReport,
    tool,
)
from toolnexus.testing import Answer, ModelServer, RecordedRequest, reply, tool_calls

PROMPT = "What is 2 + 3, and on which day of the week was 1969-07-20?"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def weekday(date: str) -> str:
    """
    Name the day of the week of a date.

    Args:
        date: The date as YYYY-MM-DD.
    """
    return datetime.date.fromisoformat(date).strftime("%A")


# -- the terminal ----------------------------------------------------------------------------


def wants_colour() -> bool:
    """Whether colours are wanted: NO_COLOR, then FORCE_COLOR, then whether there is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """Prints events, each kind in its own colour; a piece of text goes on where the last one ended."""

    DIM, BOLD, RED, GREEN, CYAN = "2", "1", "31", "32", "36"

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._open: str | None = None

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line of its own."""
        self.end()
        print(self._painted(text, style), flush=True)

    def piece(self, text: str, kind: str, style: str | None = None) -> None:
        """Print a piece of running text; a new kind begins a new line."""
        if self._open != kind:
            self.end()
        self._open = kind
        print(self._painted(text, style), end="", flush=True)

    def end(self) -> None:
        """End a line of running text."""
        if self._open is not None:
            print(flush=True)
        self._open = None

    def _painted(self, text: str, style: str | None) -> str:
        return f"\033[{style}m{text}\033[0m" if self._colour and style else text

    def show(self, event: Event) -> None:
        """Print an event."""
        match event:
            case Text(delta=delta):
                self.piece(delta, "text")
            case Thinking(delta=delta):
                self.piece(delta, "thinking", self.DIM)
            case ToolCall(name=name, args=args):
                shown = ", ".join(f"{key}={value!r}" for key, value in args.items())
                self.line(f"-> {name}({shown})", self.CYAN)
            case ToolFinished(name=name, output=output, is_error=failed):
                self.line(f"<- {name}: {output}", self.RED if failed else self.GREEN)
            case UsageReport(usage=usage):
                self.line(f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out", self.DIM)
            case Done(result=result):
                counts = f"{result.turns} turns, {result.tool_call_count} tool calls"
                self.line(f"{result.status}: {counts}", self.DIM)
            case Error(error=error, partial=partial):
                self.line(f"failed: {error.describe()}", self.RED)
                if partial is not None and partial.text:
                    self.line(f"so far: {partial.text}", self.DIM)


def run(client: Client, screen: Screen) -> bool:
    """Stream one run to the screen; whether it ended well."""
    screen.line(f"> {PROMPT}", screen.BOLD)
    well = False
    with client.stream(PROMPT, [add, weekday]) as stream:
        for event in stream:
            screen.show(event)
            well = event.type == "done"
    return well


# -- the scripted model ----------------------------------------------------------------------


def tool_outputs(request: RecordedRequest) -> list[str]:
    """Return what the tools answered, as a request of either style carries it."""
    outputs = [message["content"] for message in request.messages if message["role"] == "tool"]
    for message in request.messages:
        if isinstance(message["content"], list):
            outputs += [block["content"] for block in message["content"] if block["type"] == "tool_result"]
    return [_text(output) for output in outputs]


def _text(content: Any) -> str:
    """Return a content as text: a string, or a list of text blocks."""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def scripted_model(request: RecordedRequest) -> Answer:
    """Ask for the tools first, then put what they said into a sentence."""
    outputs = tool_outputs(request)
    if not outputs:
        return tool_calls(
            [("add", {"a": 2, "b": 3}), ("weekday", {"date": "1969-07-20"})],
            thinking="Two questions, and a tool for each.",
            text="Let me work that out.",
            usage=(212, 48),
            delay=0.03,
        )
    total, day = outputs
    return reply(f"2 + 3 is {total}, and 1969-07-20 was a {day}.", usage=(290, 19), delay=0.03)


def scripted(screen: Screen) -> bool:
    """Run against the scripted server, in one style after the other; whether both ended well."""
    well = True
    for style in ("openai", "anthropic"):
        if style != "openai":
            screen.line("")
        with ModelServer(style=style) as server:
            server.on_request(scripted_model)
            screen.line(f"[{style} style, scripted model at {server.base_url}]", screen.DIM)
            with Client(base_url=server.base_url, style=style, model="scripted", api_key="-") as client:
                well = run(client, screen) and well
    return well


def real(model: str, screen: Screen) -> bool:
    """Run against a real endpoint; whether it ended well."""
    env = os.environ
    claude = model.startswith("claude") and bool(env.get("ANTHROPIC_API_KEY"))
    style = env.get("STYLE") or ("anthropic" if claude else "openai")
    options: dict[str, Any] = {"style": style, "model": model}
    own_key = env.get("ANTHROPIC_API_KEY" if style == "anthropic" else "OPENAI_API_KEY")
    if env.get("BASE_URL"):
        options["base_url"] = env["BASE_URL"]
    elif env.get("OPENROUTER_API_KEY") and not own_key:
        options["base_url"] = "https://openrouter.ai/api/v1"
    screen.line(f"[{style} style, {model}]", screen.DIM)
    with Client(**options) as client:
        return run(client, screen)


def main() -> int:
    """Run the demo; 0 where it ended well, 1 where it did not, 130 at Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal cannot show must not end the run
    screen = Screen(colour=wants_colour())
    model = os.environ.get("MODEL")
    try:
        well = real(model, screen) if model else scripted(screen)
    except ConfigurationError as error:
        screen.line(f"failed: {error.describe()}", screen.RED)
        return 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        screen.line("interrupted", screen.RED)
        return 130
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
