"""
Showing a stream: live in a notebook, in a terminal, or as plain text.

Every display can take text back, so a model call that fails after output is tried again. The module has
another name than its function: else importing it would put it in the function's place.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolnexus.abandon import start_thread
from toolnexus.compose.screen import Screen
from toolnexus.errors import ConfigurationError, InvalidAnswerError
from toolnexus.events import Done, Event, Pending, Text, of_call
from toolnexus.results import RunResult

if TYPE_CHECKING:
    from toolnexus.stream import Stream
    from toolnexus.suspension import Request

__all__ = ["display"]

#: Seconds between two updates of what is shown, at the least.
_INTERVAL = 0.05


class _View(Protocol):
    """Where a picture is drawn."""

    def draw(self, screen: Screen, event: Event) -> None:
        """Draw the picture as it is now."""

    def finish(self, screen: Screen) -> None:
        """Draw the last picture."""


def display(stream: Stream, *, approval: str = "input") -> RunResult | None:
    """
    Show a stream until it ends.

    Args:
        stream: The stream.
        approval: How a person answers: "input" asks in the cell or the terminal; "buttons" shows buttons
            in a notebook, returns at once and goes on in the background; "none" asks nobody.

    Returns:
        The result; None where it goes on in the background, or where the run failed, which is shown.

    Raises:
        ConfigurationError: There is no such kind of approval.
        KeyboardInterrupt: Ctrl-C, or the kernel was interrupted; the run was cancelled.
    """
    if approval not in ("input", "buttons", "none"):
        raise ConfigurationError(f'approval must be "input", "buttons" or "none", not {approval!r}')
    stream.takes_text_back()
    view = _view()
    if approval == "buttons" and isinstance(view, _Notebook):
        stream.waits_for_answers()
        buttons = _buttons(stream)
        start_thread(lambda: _show(stream, view, buttons), f"display-{stream.run_id}")
        return None
    ask = _ask_by_input(stream) if approval != "none" else None
    return _show(stream, view, ask)


def _show(stream: Stream, view: _View, ask: Callable[[Request], None] | None) -> RunResult | None:
    screen = Screen()
    try:
        for event in stream:
            screen.take(event)
            view.draw(screen, event)
            if isinstance(event, Pending) and ask is not None:
                view.finish(screen)
                ask(event.request)
            if isinstance(event, Done):
                return event.result
    except BaseException:
        stream.close()
        raise
    finally:
        view.finish(screen)
    return None


def _ask_by_input(stream: Stream) -> Callable[[Request], None]:
    def ask(request: Request) -> None:
        if not _can_ask():
            return  # nobody is there: nothing is approved
        prompt = request.prompt
        while (
            stream.waiting_for(request.id) is not None
        ):  # of a replay, or an agent inside, nobody waits here
            try:
                _answer(stream, request, prompt)
            except EOFError:
                return
            except InvalidAnswerError as error:
                prompt = f"{error.message}\n{request.prompt}"

    return ask


def _answer(stream: Stream, request: Request, prompt: str) -> None:
    """
    Ask once, and answer with what was said.

    Raises:
        EOFError: Nobody is there any more.
        InvalidAnswerError: It does not fit.
    """
    yes_or_no = request.kind in ("approval", "interrupted")
    said = input(f"{prompt} [y/n] " if yes_or_no else f"{prompt} ").strip()
    if yes_or_no:
        stream.answer(request, said.lower() in ("y", "yes"), reason=None if said else "no answer")
    else:
        stream.answer(request, bool(said), data=_meant(said, request.response_schema))


def _meant(said: str, schema: dict[str, Any] | None) -> Any:
    """Return what was typed as the kind of value that is asked for."""
    kind = (schema or {}).get("type", "string")
    if kind == "string" or not said:
        return said
    if kind == "boolean" and said.lower() in ("y", "yes", "n", "no"):
        return said.lower().startswith("y")
    try:
        return json.loads(said)
    except ValueError:
        return said


def _can_ask() -> bool:
    return _kernel() is not None or bool(sys.stdin is not None and sys.stdin.isatty())


def _view() -> _View:
    if _kernel() is not None:
        return _Notebook()
    if sys.stdout.isatty():
        try:
            return _Rich()
        except ImportError:
            return _Plain(live=True)
    return _Plain(live=False)


def _kernel() -> Any:
    """Return the kernel of the notebook that this runs in, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


class _Notebook:
    """A cell's output, drawn anew in place."""

    def __init__(self) -> None:
        from toolnexus._extras import need

        # Through Any: IPython's display functions have no types.
        ipython: Any = need("IPython.display", "jupyter")
        show, self._markdown = ipython.display, ipython.Markdown
        self._handle = show(self._markdown(""), display_id=True)
        self._drawn = 0.0
        self._lock = threading.Lock()

    def draw(self, screen: Screen, event: Event) -> None:
        now = time.monotonic()
        if now - self._drawn >= _INTERVAL:
            self._drawn = now
            self.finish(screen)

    def finish(self, screen: Screen) -> None:
        with self._lock:
            self._handle.update(self._markdown(screen.markdown()))


class _Rich:
    """A terminal, drawn by rich."""

    def __init__(self) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        self._markdown = Markdown
        self._live = Live(refresh_per_second=20, vertical_overflow="visible")
        self._running = False

    def draw(self, screen: Screen, event: Event) -> None:
        if not self._running:
            self._live.start()
            self._running = True
        self._live.update(self._markdown(screen.markdown(collapsible=False)))

    def finish(self, screen: Screen) -> None:
        if self._running:
            self._live.update(self._markdown(screen.markdown(collapsible=False)), refresh=True)
            self._live.stop()
            self._running = False


class _Plain:
    """Text as it comes where somebody watches, in one piece where it goes into a file or a pipe."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._finished = False

    def draw(self, screen: Screen, event: Event) -> None:
        if self._live and isinstance(event, Text) and not of_call(event):
            sys.stdout.write(event.delta)
            sys.stdout.flush()
        elif self._live and not of_call(event) and event.type in ("tool_call", "attempt_failed"):
            sys.stdout.write(f"\n[{getattr(event, 'name', 'trying again')}]\n")
            sys.stdout.flush()

    def finish(self, screen: Screen) -> None:
        if not screen.over or self._finished:
            return
        self._finished = True
        # Of what was written as it came only the end is missing: the count of the tokens, or what went wrong.
        last = "\n" + screen.ending() if self._live else screen.markdown(collapsible=False)
        sys.stdout.write(last + "\n")
        sys.stdout.flush()


def _buttons(stream: Stream) -> Callable[[Request], None]:
    from toolnexus._extras import need

    widgets = need("ipywidgets", "jupyter")

    def ask(request: Request) -> None:
        ipython: Any = need("IPython.display", "jupyter")
        show = ipython.display
        row = widgets.HBox()

        def button(label: str, ok: bool) -> Any:
            made = widgets.Button(description=label)

            def clicked(_: Any) -> None:
                row.close()
                stream.answer(request, ok)

            made.on_click(clicked)
            return made

        row.children = (button("Approve", True), button("Reject", False))
        show(row)

    return ask
