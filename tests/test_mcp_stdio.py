"""MCP servers over stdio: real processes that die, hang, shout, flood and change."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.mcp_servers import call, eventually, raw
from toolnexus.cancel import CancelScope
from toolnexus.errors import RunCancelledError, RunTimeoutError
from toolnexus.suspension import Answer, pending_of
from toolnexus.tools.base import Context
from toolnexus.tools.mcp import McpSource, list_mcp_tools


def messages(log: Path) -> list[dict[str, Any]]:
    """Return what the server received."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_mcp_01_a_server_that_dies_during_a_call_fails_it_at_once_and_is_restarted() -> None:
    """The error has the exit code and the end of stderr; the next call finds a new process."""
    with McpSource({"s": raw()}) as source:
        first = call(source, "s_pid").output
        begin = time.monotonic()
        died = call(source, "s_die", code=7)
        assert time.monotonic() - begin < 1
        assert died.is_error
        assert "exited with code 7" in died.output
        assert "about to die" in died.output
        assert source.status["s"].state == "failed"
        assert call(source, "s_pid").output != first
        assert (source.status["s"].state, source.status["s"].starts) == ("connected", 2)
        assert "SIGKILL" in call(source, "s_kill").output


def test_mcp_01_calls_in_flight_fail_with_the_server() -> None:
    """All of them, at once."""
    with McpSource({"s": raw()}) as source, ThreadPoolExecutor(4) as pool:
        source.start()
        waiting = [pool.submit(call, source, "s_hang") for _ in range(3)]
        time.sleep(0.2)
        begin = time.monotonic()
        call(source, "s_die", code=4)
        results = [future.result(5) for future in waiting]
        assert time.monotonic() - begin < 1
        assert all(r.is_error and "exited with code 4" in r.output for r in results)


def test_a_server_that_dies_between_calls_is_noticed_and_restarted() -> None:
    """Its status says so without a call, and the next call works."""
    with McpSource({"s": raw()}) as source:
        source.start()
        pid = source.status["s"].pid
        assert pid is not None
        os.kill(pid, 9)
        assert eventually(lambda: source.status["s"].state == "failed")
        assert "SIGKILL" in (source.status["s"].error or "")
        assert call(source, "s_echo", text="back").output == "back"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"command": sys.executable, "args": ["missing-file.py"]}, "missing-file.py"),
        ({"command": "no-such-program-at-all"}, "no such program on PATH"),
        ({"command": "python -m server"}, "put the arguments into args"),
        ({"command": "/no/such/program"}, "No such file"),
        (
            {"command": sys.executable, "cwd": "/no/such/folder"},
            "the folder '/no/such/folder' does not exist",
        ),
        (raw(exit="initialize", code=3, stderr="no licence"), "code 3; its stderr ends with:\nno licence"),
        (
            raw(exit="tools/list", code=5, stderr="list is empty"),
            "code 5; its stderr ends with:\nlist is empty",
        ),
        (
            {**raw(), "env": {"KEY": "${SURELY_NOT_SET}"}},
            "the environment variable SURELY_NOT_SET is not set",
        ),
        (raw(refuse=["initialize", "server/discover"]), "initialize is not for you"),
        (raw(refuse=["tools/list"]), "tools/list is not for you"),
    ],
)
def test_mcp_02_a_server_that_does_not_start_says_why_at_once(config: dict[str, Any], says: str) -> None:
    """It fails alone: the others are there, and the program goes on."""
    import mcp  # noqa: F401 - so that its import is not measured

    begin = time.monotonic()
    with McpSource({"bad": config, "good": raw()}) as source:
        assert time.monotonic() - begin < 3
        status = source.status
        assert status["bad"].state == "failed"
        assert says in (status["bad"].error or "")
        assert status["good"].state == "connected"
        assert all(tool.name.startswith("good_") for tool in source.tools)


@pytest.mark.parametrize(("method", "phase"), [("initialize", "initialize"), ("tools/list", "list")])
def test_each_phase_has_its_timeout(method: str, phase: str) -> None:
    """A server that hangs in one phase is given up on when that phase's time is over."""
    config = {**raw(hang=method), "timeouts": {phase: 0.3}}
    with McpSource({"s": config}) as source:
        status = source.status["s"]
        assert status.state == "failed"
        assert f"{phase} took longer than 0.3 s" in (status.error or "")


def test_servers_start_together() -> None:
    """Four servers that take their time take it at the same time."""
    import mcp  # noqa: F401 - so that its import is not measured

    slow = {**raw(hang="initialize"), "timeouts": {"initialize": 1.0}}
    begin = time.monotonic()
    with McpSource({f"s{i}": slow for i in range(4)}) as source:
        source.start()
    assert time.monotonic() - begin < 3.5


def test_mcp_05_noise_on_stdout_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Before the handshake and in the middle of a call; the first time is a warning."""
    banner = '\U0001f5a5\ufe0f Server mode: STDIO\n\n42\n{"level":"info"}\n'
    with caplog.at_level(logging.DEBUG, "toolnexus.mcp"), McpSource({"s": raw(banner=banner)}) as source:
        assert call(source, "s_noise").output == "heard"
    noise = [record for record in caplog.records if "no message" in record.getMessage()]
    assert len(noise) >= 6
    assert [record.levelno for record in noise].count(logging.WARNING) == 1


@pytest.mark.parametrize("size", [132_000, 5_000_000, 10_000_000])
def test_mcp_08_long_lines_arrive(size: int) -> None:
    """One result of many megabytes is one line."""
    with McpSource({"s": raw()}) as source:
        assert len(call(source, "s_big", size=size).output) == size


def test_long_arguments_arrive() -> None:
    """Also where the server reads more slowly than we send."""
    with McpSource({"s": raw()}) as source:
        assert call(source, "s_echo", text="x" * 3_000_000).output == "x" * 3_000_000


def test_a_server_that_does_not_listen_holds_up_nobody() -> None:
    """It stopped reading, and what is sent to it fills the pipe: a cancel returns at once all the same."""
    with McpSource({"deaf": raw(), "s": raw()}) as source:
        pid = source.start().status["deaf"].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        scope = CancelScope(0.3)
        begin = time.monotonic()
        with pytest.raises(RunTimeoutError), scope.running():
            call(source, "deaf_echo", Context(scope=scope), text="x" * 3_000_000)
        assert time.monotonic() - begin < 1
        assert call(source, "s_echo", text="on").output == "on"


def test_mcp_08_the_cap_on_a_line_is_a_clear_error() -> None:
    """Only the call whose answer it was fails; the server goes on."""
    with McpSource({"s": {**raw(), "max_message": 100_000}}) as source:
        result = call(source, "s_big", size=200_000)
        assert result.is_error
        assert re.search(r"too long: 200\d\d\d bytes, allowed are 100000 \(max_message\)", result.output)
        assert call(source, "s_big", size=50_000).is_error is False
        assert source.status["s"].starts == 1


def test_mcp_09_bytes_that_are_no_utf8_and_characters_in_pieces() -> None:
    """A bad byte becomes a replacement character; a character split over two writes is whole."""
    with McpSource({"s": raw()}) as source:
        assert call(source, "s_half").output == "a\ufffd\u20acz"
        assert call(source, "s_ill_text").output == "half \ufffd."


def test_arguments_that_no_utf8_can_carry_do_not_end_the_connection() -> None:
    """A model may make a lone surrogate, too."""
    with McpSource({"s": raw()}) as source:
        assert call(source, "s_echo", text="half \ud83d").output == "half \ufffd"


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("wrong_shape", "wrong shape"),
        ("cut", "not JSON"),
        ("far", "the database is away"),
        ("silent_error", "returned an error"),
    ],
)
def test_answers_that_are_no_results_are_errors(tool: str, says: str) -> None:
    """Nobody waits for a better answer that will not come."""
    with McpSource({"s": raw()}) as source:
        result = call(source, f"s_{tool}")
        assert (result.is_error, says in result.output) == (True, True)
        assert result.metadata == {"server": "s", "tool": tool}


def test_mcp_10_a_timeout_tells_the_server_and_a_late_answer_is_ignored(tmp_path: Path) -> None:
    """The cancellation names the request; the connection goes on."""
    log = tmp_path / "log"
    with McpSource({"s": {**raw(log=str(log)), "timeouts": {"call": 0.3}}}) as source:
        result = call(source, "s_late", delay=0.6)
        assert (result.is_error, "no answer and no progress for 0.3 s" in result.output) == (True, True)
        assert eventually(lambda: "notifications/cancelled" in [m.get("method") for m in messages(log)])
        request = next(m for m in messages(log) if m.get("method") == "tools/call")
        notice = next(m for m in messages(log) if m.get("method") == "notifications/cancelled")
        assert notice["params"]["requestId"] == request["id"]
        time.sleep(0.5)
        assert call(source, "s_echo", text="on").output == "on"
        assert source.status["s"].starts == 1


def test_progress_keeps_a_call_alive() -> None:
    """The time of a call counts from its last sign of life."""
    with McpSource({"s": {**raw(), "timeouts": {"call": 0.4}}}) as source:
        assert call(source, "s_progress", steps=6, pause=0.12).output == "done"


def test_mcp_10_a_cancel_returns_at_once_and_tells_the_server(tmp_path: Path) -> None:
    """From another thread, in the middle of a call."""
    log = tmp_path / "log"
    with McpSource({"s": raw(log=str(log))}) as source:
        source.start()
        scope = CancelScope()
        moment: list[float] = []

        def cancel() -> None:
            moment.append(time.monotonic())
            scope.cancel("enough")

        threading.Timer(0.3, cancel).start()
        with pytest.raises(RunCancelledError, match="enough"):
            call(source, "s_hang", Context(scope=scope))
        assert time.monotonic() - moment[0] < 0.2
        assert eventually(lambda: "notifications/cancelled" in [m.get("method") for m in messages(log)])


def test_a_deadline_ends_a_call_and_tells_the_server(tmp_path: Path) -> None:
    """The time of a run or of a tool is over: the server is told."""
    log = tmp_path / "log"
    with McpSource({"s": raw(log=str(log))}) as source:
        source.start()
        scope = CancelScope(0.3)
        begin = time.monotonic()
        with pytest.raises(RunTimeoutError), scope.running():
            call(source, "s_hang", Context(scope=scope))
        assert time.monotonic() - begin < 1
        assert eventually(lambda: "notifications/cancelled" in [m.get("method") for m in messages(log)])


def test_a_scope_that_has_ended_calls_nothing() -> None:
    """A cancelled run sends nothing any more."""
    with McpSource({"s": raw()}) as source:
        source.start()
        scope = CancelScope()
        scope.cancel()
        with pytest.raises(RunCancelledError):
            call(source, "s_echo", Context(scope=scope), text="x")


def test_an_abandoned_scope_ends_a_call() -> None:
    """A stream that was garbage-collected notifies nobody, and its calls end all the same."""
    with McpSource({"s": raw()}) as source:
        source.start()
        scope = CancelScope()
        threading.Timer(0.2, scope.abandon).start()
        with pytest.raises(RunCancelledError):
            call(source, "s_hang", Context(scope=scope))


def test_progress_becomes_output() -> None:
    """Each notification is a line, in order, in the thread of the call."""
    seen: list[tuple[str, str, int]] = []
    context = Context(emit=lambda kind, text: seen.append((kind, text, threading.get_ident())))
    with McpSource({"s": raw()}) as source:
        assert call(source, "s_progress", context, steps=3).output == "done"
    mine = threading.get_ident()
    assert seen == [("output", f"{i}/3 step {i}\n", mine) for i in (1, 2, 3)]


def test_a_reader_that_is_slow_holds_up_nobody() -> None:
    """A flood of progress for a reader that sleeps does not stop the calls of others."""
    with McpSource({"s": raw()}) as source:
        source.start()
        scope = CancelScope()
        stuck = Context(scope=scope, emit=lambda kind, text: time.sleep(0.2))

        def read_slowly() -> None:
            with pytest.raises(RunCancelledError):
                call(source, "s_stream", stuck)

        thread = threading.Thread(target=read_slowly)
        thread.start()
        time.sleep(0.2)
        assert call(source, "s_echo", text="quick").output == "quick"
        scope.cancel()
        thread.join(5)
        assert not thread.is_alive()


def test_b160_answers_find_their_callers_whatever_the_order() -> None:
    """Two calls at once, answered in reverse, with notifications in between."""
    with McpSource({"s": raw()}) as source, ThreadPoolExecutor(2) as pool:
        source.start()
        futures = [pool.submit(call, source, "s_swap", n=n) for n in (1, 2)]
        assert [future.result(10).output for future in futures] == ["1", "2"]


def test_many_threads_at_once() -> None:
    """Eight threads, each its own results."""

    def work(thread: int) -> list[str]:
        return [call(source, "s_number", n=thread * 100 + i).output for i in range(20)]

    with McpSource({"s": raw()}) as source, ThreadPoolExecutor(8) as pool:
        for thread, outputs in enumerate(pool.map(work, range(8))):
            assert outputs == [str(thread * 100 + i) for i in range(20)]


def test_lists_of_tools_follow_list_changed() -> None:
    """A tool that comes is there, one that goes is not, and the revision says that something changed."""
    with McpSource({"s": {**raw(names=["echo", "change"]), "tools": {"hidden": False}}}) as source:
        assert [tool.name for tool in source.tools] == ["s_echo", "s_change"]
        before = source.revision
        call(source, "s_change", names=["change", "add", "hidden"])
        assert eventually(lambda: [tool.name for tool in source.tools] == ["s_change", "s_add"])
        assert source.revision > before
        assert source.status["s"].tools == 2


def test_tools_come_in_pages() -> None:
    """All pages are read."""
    with McpSource({"many": raw(pages="many"), "one": raw()}) as source:
        assert source.status["many"].tools == source.status["one"].tools > 9


@pytest.mark.parametrize(
    ("pages", "says"),
    [("endless", "more than 1000 pages"), ("loop", "MCP list returned duplicate cursor: 7")],
)
def test_pages_that_do_not_end_are_an_error(pages: str, says: str) -> None:
    """Neither new cursors for ever nor the same one again."""
    with McpSource({"s": raw(pages=pages)}) as source:
        assert says in (source.status["s"].error or "")


def test_mcp_11_calls_go_to_the_right_server_under_its_own_name() -> None:
    """Two servers with a tool of the same name."""
    with McpSource({"a": raw(names=["pid"]), "b": raw(names=["pid"])}) as source:
        assert [tool.name for tool in source.tools] == ["a_pid", "b_pid"]
        assert call(source, "a_pid").output == str(source.status["a"].pid)
        assert call(source, "b_pid").output == str(source.status["b"].pid)


def test_mcp_12_odd_names_are_mapped_back() -> None:
    """The server is called by the name that it listed."""
    odd = ["a.b", "a/b", "a_b", "x" * 90, "---"]
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in odd]
    with McpSource({"s": raw(names=[], tools=tools)}) as source:
        found = source.tools
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name) for tool in found)
        assert len({tool.name for tool in found}) == len(odd)
        assert [tool.metadata["tool"] for tool in found] == odd
        for tool in found:
            answer = call(source, tool.name).output
            assert answer == f"Unknown tool: {tool.metadata['tool']}"


def test_mcp_13_schemas_come_as_they_are_and_bad_tools_cost_only_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cleaning for a provider is done for that provider; here nothing is lost."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"description": "no type"}},
        "required": ["a", "ghost"],
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }
    tools = [{"name": "odd", "inputSchema": schema}, {"name": "bad", "inputSchema": 5}, {"name": "bare"}]
    with McpSource({"s": raw(names=["echo"], tools=tools)}) as source:
        found = {tool.metadata["tool"]: tool for tool in source.tools}
    assert list(found) == ["echo", "odd", "bare"]
    assert found["odd"].input_schema == schema
    assert found["bare"].input_schema == {"type": "object", "properties": {}}
    assert "bad" in caplog.text


def test_what_a_tool_says_of_itself() -> None:
    """Title and annotations are there to be looked at; the source is mcp."""
    listed = {
        "name": "rm",
        "title": "Remove",
        "inputSchema": {"type": "object"},
        "annotations": {"destructiveHint": True},
    }
    with McpSource({"s": raw(names=[], tools=[listed])}) as source:
        (tool,) = source.tools
    assert (tool.name, tool.source, tool.description) == ("s_rm", "mcp", "Remove")
    assert tool.metadata["annotations"] == {"destructiveHint": True}


def test_a_server_sees_only_what_its_configuration_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside a safe base: PATH, HOME and the locale."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("WANTED", "yes")
    config = {**raw(), "env": {"NAMED": "${WANTED}"}, "cwd": str(tmp_path)}
    with McpSource({"s": config}) as source:
        seen = json.loads(call(source, "s_env").output)
    assert seen["env"]["NAMED"] == "yes"
    assert seen["env"]["PATH"] == os.environ["PATH"]
    assert not {"OPENAI_API_KEY", "WANTED"} & set(seen["env"])
    assert seen["cwd"] == str(tmp_path.resolve())


def test_secrets_in_stderr_are_blotted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that prints its token does not put it into our errors."""
    monkeypatch.setenv("TOKEN", "t0p-s3cret")
    config = {**raw(exit="initialize", stderr="bad token t0p-s3cret"), "env": {"API_TOKEN": "${TOKEN}"}}
    with McpSource({"s": config}) as source:
        assert "bad token ***" in (source.status["s"].error or "")


def test_a_page_to_open_suspends_the_call_until_it_was_opened(tmp_path: Path) -> None:
    """A server that wants an authorization first becomes a request; with the answer the call runs again."""
    done = tmp_path / "done"
    args = {"url": "https://example.com/login", "done": str(done)}
    with McpSource({"s": raw()}) as source:
        request = pending_of(call(source, "s_url", **args))
        assert request is not None
        assert (request.kind, request.url, request.prompt) == ("authorization", args["url"], "Log in, please")
        done.touch()
        again = call(source, "s_url", Context(answers=(Answer(request.id),)), **args)
        assert again.output == "logged in"
        refused = call(
            source, "s_url", Context(answers=(Answer(request.id, ok=False, reason="declined"),)), **args
        )
        assert (refused.is_error, "declined" in refused.output) == (True, True)
        shady = call(source, "s_url", url="javascript:alert(1)", done=str(tmp_path / "never"))
        assert (pending_of(shady), shady.is_error) == (None, True)


def test_a_server_of_the_next_protocol_is_spoken_to_in_its_way() -> None:
    """One that refuses the old handshake is asked in the new one; what both refuse is an error."""
    with McpSource({"s": raw(refuse=["initialize"])}) as source:
        assert "initialize is not for you" in (source.status["s"].error or "")
        assert source.status["s"].starts == 1


def test_a_server_without_tools_is_connected() -> None:
    """It may have prompts only; it has no tools, and that is no failure."""
    with McpSource({"s": raw(refuse=["tools/list"], capabilities={"prompts": {}})}) as source:
        assert (source.status["s"].state, source.tools) == ("connected", [])


def test_a_failed_server_can_be_started_again(tmp_path: Path) -> None:
    """Once what was missing is there."""
    script = tmp_path / "late.py"
    good = raw()
    with McpSource({"s": {**good, "args": [str(script), good["args"][-1]]}}) as source:
        assert source.status["s"].state == "failed"
        script.write_text(Path(good["args"][-2]).read_text())
        assert source.reconnect("s").state == "connected"
        assert call(source, "s_echo", text="late").output == "late"
        with pytest.raises(KeyError):
            source.reconnect("other")


def test_inventory_lists_what_there_is_before_any_filter() -> None:
    """By the servers' own names; it leaves nothing running."""
    config = {
        "a": {**raw(names=["echo", "add"]), "tools": ["add"]},
        "b": {"command": "no-such-program"},
        "c": {"command": "x", "disabled": True},
    }
    inventory = list_mcp_tools(config)
    assert {name: [tool.name for tool in tools] for name, tools in inventory.tools.items()} == {
        "a": ["echo", "add"]
    }
    assert {name: status.state for name, status in inventory.status.items()} == {
        "a": "connected",
        "b": "failed",
        "c": "disabled",
    }
    assert inventory.tools["a"][0].description == "The tool echo."
