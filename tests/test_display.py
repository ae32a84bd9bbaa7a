"""Showing a stream: text, terminal, notebook; flood-limited, interruptible, able to take text back."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_approval_places import read_until
from toolnexus import (
    AttemptFailed,
    Client,
    ConfigurationError,
    Done,
    Event,
    RunResult,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolFinished,
    ToolnexusError,
    ToolOutput,
)
from toolnexus.compose.screen import Screen
from toolnexus.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def drawn(*events: Event, **options: Any) -> str:
    screen = Screen()
    for event in events:
        screen.take(event)
    return screen.markdown(**options)


def test_the_picture_has_text_tools_and_the_end() -> None:
    """Text is Markdown, a call folds, the end is a line; what a tool says is never markup."""
    events = (
        Text("**Hi** "), Text("there"), ToolCall("c", "f", {"x": 1}), ToolOutput("c", "f", "half"),
        ToolFinished("c", "f", "<script>alert(1)</script>"), Text("Done."), Done(RunResult(text="x")),
    )  # fmt: skip
    shown = drawn(*events)
    assert shown.startswith("**Hi** there\n\n<details><summary>f(")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.endswith("Done.\n\n*0+0 tokens*")
    assert "half" not in shown
    assert "<details>" not in drawn(*events, collapsible=False)
    assert "long" in drawn(Thinking("long thought"))


def test_text_can_be_taken_back() -> None:
    """The text of a try that failed leaves the picture, and nothing else does."""
    failed = AttemptFailed(1, ToolnexusError("x"), True, "half an")
    assert drawn(Text("half"), Thinking("hm"), Text(" an"), failed, Text("whole")) == "whole"
    assert drawn(Text("kept "), Text("half an"), failed, Text("whole")) == "kept whole"
    assert drawn(Text("kept"), ToolFinished("c", "f", "x"), Text("half an"), failed).startswith("kept")


def test_syn_07_without_a_terminal_the_answer_comes_in_one_write(server: ModelServer) -> None:
    """Into a pipe goes the whole answer at once; the result comes back."""

    class Writes(io.StringIO):
        count = 0

        def write(self, text: str) -> int:
            self.count += 1
            return super().write(text)

    server.say(["a"] * 50)
    out = Writes()
    with Client(base_url=server.base_url, model="m") as client, contextlib.redirect_stdout(out):
        result = client.stream("hi").display()
    assert result is not None
    assert result.text == "a" * 50
    assert out.getvalue().startswith("a" * 50)
    assert out.count == 1


def test_a_display_retries_after_output(server: ModelServer) -> None:
    """What is shown can be taken back, so a failed call is tried again."""
    server.error_in_stream(after=["half"], type="overloaded_error", headers={"Retry-After": "0"})
    server.say("whole")
    out = io.StringIO()
    with Client(base_url=server.base_url, model="m") as client, contextlib.redirect_stdout(out):
        result = client.stream("hi").display()
    assert result is not None
    assert result.text == "whole"
    assert out.getvalue().startswith("whole")
    assert "half" not in out.getvalue()


def test_a_failed_run_is_shown(server: ModelServer) -> None:
    """The error is a line of the picture, and there is no result."""
    server.fail(status=401, message="bad key")
    out = io.StringIO()
    with Client(base_url=server.base_url, model="m") as client, contextlib.redirect_stdout(out):
        assert client.stream("hi").display() is None
        with pytest.raises(ConfigurationError):
            client.stream("hi").display(approval="mail")
    assert "bad key" in out.getvalue()


def test_nobody_there_approves_nothing(server: ModelServer) -> None:
    """Without a terminal or a kernel an approval stays pending."""
    server.call("f", {})
    tool = Tool("f", execute=lambda a, c: pytest.fail("must not run"), approval=True)
    with Client(base_url=server.base_url, model="m") as client, contextlib.redirect_stdout(io.StringIO()):
        result = client.stream("hi", [tool]).display()
    assert result is not None
    assert result.status == "pending"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_a_terminal_shows_text_and_asks(server: ModelServer) -> None:
    """Rich draws the picture; input() answers an approval; the tool then runs."""
    pytest.importorskip("rich")
    import pty

    server.call("f", {"x": 1}, text="Let me see.")
    server.say("**All** tidy")
    code = textwrap.dedent(f"""
        from toolnexus import Client, Tool
        tool = Tool("f", execute=lambda a, c: "ran", approval=True)
        result = Client(base_url={server.base_url!r}, model="m").stream("hi", [tool]).display()
        print("RESULT", result.tool_calls[0].output)
    """)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    shown = read_until(master, "[y/n]")
    assert "Let me see." in shown
    os.write(master, b"y\n")
    shown = read_until(master, "RESULT ran")
    assert process.wait(timeout=20) == 0
    os.close(master)
    assert "tidy" in shown


class Kernel:
    """A real kernel, and what its cells gave."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.messages: list[dict[str, Any]] = []

    def run(self, code: str, answer: str | None = None) -> str:
        """Run a cell; return what it printed and what its displays last showed."""
        self.messages = []

        def stdin(message: dict[str, Any]) -> None:
            self.client.input(answer or "")

        reply = self.client.execute_interactive(
            textwrap.dedent(code),
            allow_stdin=True,
            output_hook=self.messages.append,
            stdin_hook=stdin,
            timeout=60,
        )
        self.status = reply["content"]["status"]
        printed = "".join(m["content"].get("text", "") for m in self.messages if m["msg_type"] == "stream")
        shown = [
            m["content"]["data"].get("text/markdown", "")
            for m in self.messages
            if m["msg_type"] in ("display_data", "update_display_data")
        ]
        return printed + (shown[-1] if shown else "")

    def updates(self) -> int:
        return sum(m["msg_type"] == "update_display_data" for m in self.messages)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(server: ModelServer) -> Iterator[Kernel]:
    pytest.importorskip("ipykernel")
    kernel = Kernel()
    kernel.run(f"""
        import threading
        from toolnexus import Client, Tool
        client = Client(base_url={server.base_url!r}, model="m")
        tool = Tool("f", execute=lambda a, c: "ran", approval=True)
        def left():
            return [t.name for t in threading.enumerate() if t.name.startswith("toolnexus")]
    """)
    yield kernel
    kernel.close()


@pytest.mark.slow
def test_a_notebook_shows_a_stream_as_a_cells_last_value(server: ModelServer, kernel: Kernel) -> None:
    """Live Markdown; the final state is always shown; no thread is left."""
    server.say(["**Hel", "lo**"])
    assert kernel.run('client.stream("hi")').startswith("**Hello**")
    assert kernel.run("print(left())") == "[]\n"


@pytest.mark.slow
def test_syn_09_a_flood_of_deltas_is_few_updates(server: ModelServer, kernel: Kernel) -> None:
    """2 000 deltas in about a second are at most some twenty updates a second."""
    server.say(["x"] * 2000, delay=0.0005)
    began = time.monotonic()
    shown = kernel.run('_ = client.stream("hi").display()')
    took = time.monotonic() - began
    assert shown.startswith("x" * 2000)
    assert kernel.updates() <= 21 * took + 3


@pytest.mark.slow
def test_a_notebook_asks_by_input(server: ModelServer, kernel: Kernel) -> None:
    """The kernel's own input answers an approval."""
    server.call("f", {"x": 1})
    server.say("all tidy")
    shown = kernel.run('print(client.stream("hi", [tool]).display().tool_calls[0].output)', answer="y")
    assert "ran\n" in shown
    assert "all tidy" in shown


@pytest.mark.slow
def test_a_notebook_answers_by_buttons(server: ModelServer, kernel: Kernel) -> None:
    """The cell returns at once; a click in a later moment lets the run go on in the background."""
    pytest.importorskip("ipywidgets")
    server.call("f", {"x": 1})
    server.say("all tidy")
    kernel.run("""
        import time, ipywidgets
        stream = client.stream("hi", [tool])
        assert stream.display(approval="buttons") is None
    """)
    assert kernel.status == "ok"
    shown = kernel.run("""
        end = time.time() + 20
        buttons = []
        while not buttons and time.time() < end:
            widgets = list(ipywidgets.Widget.widgets.values())
            buttons = [w for w in widgets if getattr(w, "description", "") == "Approve"]
            time.sleep(0.05)
        buttons[0].click()
        while left() and time.time() < end:
            time.sleep(0.05)
        print(stream.text, left())
    """)
    assert "all tidy []" in shown


@pytest.mark.slow
def test_an_interrupted_cell_leaves_no_thread(server: ModelServer, kernel: Kernel) -> None:
    """Interrupting the kernel cancels the run; the server sees the close; the kernel works on."""
    import threading

    server.say(["a"], hold=True)
    threading.Timer(2.0, kernel.manager.interrupt_kernel).start()
    kernel.run('client.stream("hi").display()')
    assert kernel.status == "error"
    server.wait_for_disconnect(timeout=10)
    assert kernel.run("print(left())") == "[]\n"
    server.say("again")
    assert "again" in kernel.run('_ = client.stream("hi").display()')


@pytest.mark.slow
def test_a_notebook_file_runs_and_shows_what_a_reader_should_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nbclient runs the notebook of the docs; its outputs are live Markdown with the final text."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    root = Path(__file__).resolve().parents[1]
    monkeypatch.setenv("PYTHONPATH", str(root))
    notebook = nbformat.read(root / "docs/notebook.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    markdown = [o["data"]["text/markdown"] for o in shown if "text/markdown" in o.get("data", {})]
    assert any("The weather in **Rome** is sunny." in text for text in markdown)
    assert any("<details>" in text for text in markdown)
    assert not [o for o in shown if o["output_type"] == "error"]


TALK = """
    import sys
    if {plain}:
        sys.modules["rich"] = None
    from toolnexus import Client, Context, tool
    from toolnexus.compose import record, replay

    @tool
    def book(ctx: Context) -> str:
        "Book seats."
        seats = ctx.ask("How many seats?", response_schema={{"type": "integer", "maximum": 9}})
        window = ctx.ask("At the window?", response_schema={{"type": "boolean"}})
        return f"{{seats + 1}} {{window}}"

    client = Client(base_url={url!r}, model="m", retries=0)
    result = record(client.stream("book", [book], answers="wait"), {path!r}).display()
    print("RESULT", result.tool_calls[0].output)
    print("AGAIN", replay({path!r}).display().text)
    client.stream("and then?").display()
    print("END")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize("plain", [False, True], ids=["rich", "plain"])
def test_questions_in_a_terminal(server: ModelServer, tmp_path: Path, plain: bool) -> None:
    """
    What is typed becomes the kind of value that is asked for, and what does not fit is asked for again.

    Of a replay nobody is asked. A failure is shown, however plain the terminal.
    """
    server.call("book", {})
    server.say("all booked")
    server.fail(401, message="bad key")
    code = TALK.format(url=server.base_url, path=str(tmp_path / "r.jsonl"), plain=plain)
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    read_until(master, "How many seats?")
    os.write(master, b"many\n")
    read_until(master, "How many seats?")
    os.write(master, b"12\n")
    read_until(master, "How many seats?")
    os.write(master, b"2\n")
    read_until(master, "At the window?")
    os.write(master, b"y\n")
    shown = read_until(master, "END")
    assert process.wait(timeout=20) == 0
    os.close(master)
    assert "RESULT 3 True" in shown
    assert "AGAIN all booked" in shown
    assert "bad key" in shown


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_a_stream_as_the_last_value_in_plain_ipython(server: ModelServer) -> None:
    """IPython in a terminal shows it as any terminal does, and goes on."""
    pytest.importorskip("IPython")
    server.say(["Hel", "lo there"])
    code = f"from toolnexus import Client; client = Client({server.base_url!r}, model='m')"
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "-c", code, "-i"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    read_until(master, "In [")
    os.write(master, b"client.stream('hi')\n")
    shown = read_until(master, "tokens")
    os.write(master, b"exit()\n")
    process.wait(timeout=20)
    os.close(master)
    assert "Hello there" in shown
    assert "Traceback" not in shown
