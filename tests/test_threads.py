"""Threads, sockets and memory come back; and the plain synchronous use in scripts, pools, loops and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.exact import open_sockets, our_threads, until
from tests.support.raw import HOLD, RawServer, full_backlog
from toolnexus import (
    CancelScope,
    Client,
    Context,
    Done,
    Error,
    RunCancelledError,
    Text,
    Tool,
    ToolnexusError,
)
from toolnexus.testing import ModelServer, reply


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def client_of(server: ModelServer, **options: Any) -> Client:
    return Client(server.base_url, style=server.style, **{"model": "m", "api_key": "test-key", **options})


def start_script(code: str, **environment: str) -> subprocess.Popen[str]:
    """Start a script in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run_script(code: str, seconds: float = 30, **environment: str) -> str:
    """Run a script that must end well and say nothing on stderr; return what it printed."""
    process = start_script(code, **environment)
    out, err = process.communicate(timeout=seconds)
    assert err == ""
    assert process.returncode == 0
    return out


def settled(sockets: int) -> None:
    """Nothing of ours is left."""
    assert until(lambda: not our_threads()), our_threads()
    assert until(lambda: open_sockets() <= sockets), (open_sockets(), sockets)


def connected_to(port: int) -> bool:
    """Tell whether this system has a connection to a local port that is established or half closed."""
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] in ("01", "08") for row in rows)


# -- leaving a stream ------------------------------------------------------------------------


def test_thr_01_close_from_another_thread_returns_at_once(server: ModelServer) -> None:
    """It does not wait for the server's next byte, and neither does the reader."""
    server.say(["a", "b"], hold=True)
    stream = client_of(server).stream("hi")
    took: list[float] = []

    def close() -> None:
        server.wait_for_request()
        time.sleep(0.1)
        began = time.monotonic()
        stream.close()
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=close)
    thread.start()
    items = list(stream)
    thread.join()
    assert isinstance(items[-1], Error)
    assert took[0] < 2
    server.wait_for_disconnect()


def test_thr_02_close_and_cancel_from_many_threads(server: ModelServer) -> None:
    """Any number of times, from anywhere, while another thread is in next()."""
    server.say(["a", "b"], hold=True)
    stream = client_of(server).stream("hi")
    failures: list[BaseException] = []

    def end() -> None:
        try:
            for _ in range(20):
                stream.cancel("enough")
                stream.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=end) for _ in range(8)]
    seen: list[Any] = []
    for item in stream:
        seen.append(item)
        if len(seen) == 2:
            for thread in threads:
                thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(isinstance(item, (Done, Error)) for item in seen) == 1
    stream.close()


@pytest.mark.parametrize("way", ["drop", "exception"])
def test_thr_03_a_blocked_put_ends_when_the_consumer_leaves(server: ModelServer, way: str) -> None:
    """A small queue and a fast server: threads and sockets are back each time."""
    server.on_request(lambda request: reply(["x" * 100] * 10_000))
    with client_of(server, queue_size=8) as client:
        sockets = open_sockets()
        for _ in range(10):
            try:
                for count, _ in enumerate(client.stream("hi"), 1):
                    if count == 3:
                        if way == "exception":
                            raise KeyError("mine")
                        break
            except KeyError:
                pass
            settled(sockets)
    assert until(lambda: server.live_connections == 0)


def test_thr_04_an_abandoned_stream_is_not_read_on() -> None:
    """The server sees the close soon after the loop was left, not at the end of the answer."""
    with ModelServer() as server:
        server.say([f"{n}" for n in range(200)], delay=0.05)
        for item in client_of(server).stream("hi"):
            if item == Text("1"):
                break
        left_at = time.monotonic()
        server.wait_for_disconnect()
        closed_at = server.requests[0].closed_by_client_at
        assert closed_at is not None
        assert closed_at - left_at < 2


def test_thr_05_break_without_with(server: ModelServer) -> None:
    """Leaving the loop of an iterator that nobody holds is enough."""
    server.say(["a", "b"], hold=True)
    for _ in client_of(server).stream("hi"):
        break
    gc.collect()
    server.wait_for_disconnect()


def test_thr_06_closing_while_an_error_is_delivered(server: ModelServer) -> None:
    """close() between the error's arrival and its reading, and inside the loop that got it."""
    server.fail(status=400, message="no")
    stream = client_of(server).stream("hi").start()
    assert until(lambda: not our_threads())
    stream.close()
    items = list(stream)
    assert [type(item) for item in items] == [Error]
    assert items[0].error.kind in ("invalid_request", "cancelled")  # type: ignore[attr-defined]
    server.fail(status=400, message="no")
    stream = client_of(server).stream("hi")
    for item in stream:
        stream.close()
        assert item.error.status == 400  # type: ignore[attr-defined]
    assert list(stream) == []


def test_thr_07_a_half_read_connection_is_closed_not_pooled(server: ModelServer) -> None:
    """After a break no connection to the server is left in the system's table."""
    server.say(["a", "b"], hold=True)
    with client_of(server) as client:
        for _ in client.stream("hi"):
            break
        server.wait_for_disconnect()
        assert until(lambda: not connected_to(int(server.url.rsplit(":", 1)[1])))


def test_thr_09_many_openings_and_closings_say_nothing() -> None:
    """No traceback of a background thread reaches stderr."""
    with ModelServer() as server:
        server.on_request(lambda request: reply(["x" * 200] * 500))
        out = run_script(f"""
            import random, threading, time
            from toolnexus import Client
            client = Client({server.base_url!r}, model="m", api_key="k", queue_size=4)
            def cycles():
                for n in range(50):
                    stream = client.stream("hi")
                    for _ in range(random.randrange(3)):
                        next(stream)
                    if n % 2:
                        stream.close()
                    del stream
            threads = [threading.Thread(target=cycles) for _ in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
            print("done")
        """)
    assert out == "done\n"


def test_a_consumer_whose_thread_dies_ends_the_run(server: ModelServer) -> None:
    """Somebody still holds the stream, but nobody will read it."""
    server.say(["x" * 1000] * 20_000)
    kept: list[Any] = []

    def read_a_little() -> None:
        stream = client_of(server, queue_size=2).stream("hi")
        kept.append(stream)
        next(stream)

    thread = threading.Thread(target=read_a_little)
    thread.start()
    thread.join()
    server.wait_for_disconnect()
    assert until(lambda: not our_threads())


def test_a_stream_may_be_dropped_by_any_thread(server: ModelServer) -> None:
    """The finalizer runs where the last reference goes, also in the pump's own thread or a tool's."""
    server.say(["a", "b"], hold=True)
    box = [client_of(server).stream("hi").start()]
    server.wait_for_request()
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    gc.collect()
    server.wait_for_disconnect()

    holder: list[Any] = []
    server.call("drop", {})
    server.say("never")
    stream = client_of(server).stream("go", [Tool("drop", execute=lambda args, ctx: holder.clear())])
    holder.append(stream.start())
    del stream
    assert until(lambda: not holder)
    assert until(lambda: not our_threads()), our_threads()


def test_a_scope_may_be_cancelled_by_a_signal_handler(server: ModelServer) -> None:
    """The handler runs in the very thread that is inside the run, at any moment: nothing locks up."""
    scopes: list[CancelScope] = []
    before = signal.signal(signal.SIGUSR1, lambda *args: scopes[-1].cancel("signal"))
    server.on_request(lambda request: reply(["a", "b"], hold=True))
    try:
        with client_of(server) as client:
            for n in range(30):
                scopes.append(CancelScope())
                delay = 0.0005 * n
                timer = threading.Timer(delay, os.kill, args=(os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(RunCancelledError, match="signal"):
                    client.run("hi", scope=scopes[-1])
                timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_scope_serves_one_run_after_another(server: ModelServer) -> None:
    """A deadline of a run that is over does not end the next one."""
    scope = CancelScope()
    with client_of(server) as client:
        for _ in range(3):
            server.say("hi")
            assert client.run("hi", scope=scope, timeout=0.5).text == "hi"
            time.sleep(0.3)
        assert not scope.cancelled
    assert until(lambda: not our_threads())


# -- everything comes back -------------------------------------------------------------------


def churn(server: ModelServer, streams: int, at_once: int) -> None:
    """Cancel so many streams and finish as many, some at once, in all the ways there are."""
    server.on_request(
        lambda request: (
            reply(["a", "b"], hold=True) if request.json["messages"][0]["content"] == "hold" else "ab"
        )
    )
    with client_of(server) as client:

        def one(n: int) -> None:
            if n % 2:
                assert client.stream("go").result().text == "ab"
                return
            stream = client.stream("hold")
            assert next(stream) == Text("a")
            if n % 4:
                stream.close()
                assert isinstance(list(stream)[-1], Error)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, range(streams * 2)))


def test_threads_sockets_and_objects_come_back(server: ModelServer) -> None:
    """After many streams, cancelled and finished, everything is as after the first few."""
    sockets = open_sockets()
    churn(server, 10, 20)
    settled(sockets)
    gc.collect()
    objects = len(gc.get_objects())
    server.requests.clear()
    churn(server, 60, 20)
    settled(sockets)
    server.requests.clear()
    gc.collect()
    assert len(gc.get_objects()) - objects < 2000


@pytest.mark.slow
def test_500_cancelled_and_500_finished_100_at_once(server: ModelServer) -> None:
    """Threads, sockets and memory return to what they were."""
    sockets = open_sockets()
    churn(server, 500, 100)
    settled(sockets)
    server.requests.clear()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        churn(server, 500, 100)
        settled(sockets)
        server.requests.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    print(f"memory grew by {grown / 1024:.0f} KiB over 1000 streams")
    assert grown < 1024 * 1024


def test_run_in_50_threads(server: ModelServer) -> None:
    """One client, each its own answer, and no thread or socket more afterwards."""
    sockets = open_sockets()
    server.on_request(lambda request: reply([request.json["messages"][0]["content"]]))
    with client_of(server) as client, ThreadPoolExecutor(50) as pool:
        asked = [f"q{n}" for n in range(150)]
        assert [r.text for r in pool.map(client.run, asked)] == asked
    settled(sockets)


# -- the end of the program ------------------------------------------------------------------

ENDINGS = {
    "a stream open": "stream = client.stream('hi'); print(next(stream).type)",
    "a stream started": "stream = client.stream('hi').start(); time.sleep(0.1)",
    "an exception": "\nfor event in client.stream('hi'):\n    print(event.type); sys.exit(0)",
    "a tool that hangs": "stream = client.stream('tool', [hang]); print(next(stream).type); time.sleep(0.1)",
    "a thread with a stream": "threading.Thread(target=client.stream('hi').result, daemon=True).start()\n"
    "time.sleep(0.2)",
    "a full backlog": "stream = Client(backlog, model='m', api_key='k').stream('hi').start()",
    "a lookup that hangs": "socket.getaddrinfo = lambda *a, **k: time.sleep(60)\n"
    "stream = Client('http://slow.host/v1', model='m', api_key='k').stream('hi').start(); time.sleep(0.1)",
    "a cancelled lookup": "socket.getaddrinfo = lambda *a, **k: time.sleep(60)\n"
    "stream = Client('http://slow.host/v1', model='m', api_key='k').stream('hi').start(); time.sleep(0.1)\n"
    "stream.close(); assert len(list(stream)) == 1",
}


def test_thr_08_the_interpreter_ends_at_once_whatever_is_open(server: ModelServer) -> None:
    """Daemon threads, bounded joins, nothing at exit: each script ends soon, and quietly."""
    from toolnexus.testing import tool_call

    server.on_request(
        lambda request: (
            tool_call("hang") if "tool" in str(request.json["messages"]) else reply(["a", "b"], hold=True)
        )
    )
    with full_backlog() as backlog:
        processes = {
            name: start_script(
                "import socket, sys, threading, time\nfrom toolnexus import Client, Tool\n"
                "hang = Tool('hang', execute=lambda args, ctx: time.sleep(60))\n"
                f"client = Client({server.base_url!r}, model='m', api_key='k')\nbacklog = {backlog!r}\n"
                f"{code}\nprint('end', flush=True)\n"
            )
            for name, code in ENDINGS.items()
        }
        for name, process in processes.items():
            try:
                out, err = process.communicate(timeout=20)
            finally:
                process.kill()
            assert err == "", (name, err)
            assert process.returncode == 0, name
            assert "end" in out or name == "an exception", name


# -- forks -----------------------------------------------------------------------------------


def test_net_15_parent_and_child_stream_after_a_fork(server: ModelServer) -> None:
    """Each over its own connections, with one client that was used before the fork."""
    server.on_request(lambda request: reply([request.json["messages"][0]["content"]]))
    out = run_script(f"""
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: that is what is tried here
        from toolnexus import Client
        client = Client({server.base_url!r}, model="m", api_key="k", retries=0)
        assert client.run("before").text == "before"
        child = os.fork()
        who = "parent" if child else "child"
        for n in range(5):
            assert client.stream(f"{{who}}-{{n}}").result().text == f"{{who}}-{{n}}"
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("done")
    """)
    assert out == "done\n"
    used = {
        word: {r.connection for r in server.requests if r.json["messages"][0]["content"].startswith(word)}
        for word in ("parent", "child")
    }
    assert used["parent"]
    assert used["child"]
    assert not used["parent"] & used["child"]


def test_net_15_a_child_does_not_cut_a_stream_of_its_parent(server: ModelServer) -> None:
    """A child that inherits an open stream may drop it, close it or exit: the parent reads on."""
    server.say(["a", "b"], hold=True)
    process = start_script(f"""
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: that is what is tried here
        from toolnexus import Client
        client = Client({server.base_url!r}, model="m", api_key="k")
        stream = client.stream("hi")
        assert next(stream).delta == "a"
        for way in ("exit", "close", "drop", "iterate"):
            child = os.fork()
            if not child:
                if way == "close":
                    stream.close()
                elif way == "drop":
                    del stream
                elif way == "iterate":
                    *_, last = stream
                    assert last.type == "error" and "fork" in last.error.message, last
                    assert last.partial.text.startswith("a")
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0, way
        print("released", flush=True)
        *_, last = stream
        assert last.type == "done", last
        print(last.result.text)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "released\n"
    server.release()
    out, err = process.communicate(timeout=20)
    assert (out, err) == ("ab\n", "")
    assert server.disconnects <= 1


# -- plain synchronous use -------------------------------------------------------------------


def test_syn_01_inside_a_running_event_loop(server: ModelServer) -> None:
    """run() and stream() work unchanged in a coroutine; no loop of ours is in the way."""
    server.on_request(lambda request: reply(["a", "b"]))

    async def main() -> tuple[str, list[str]]:
        client = client_of(server)
        return client.run("hi").text, [e.type for e in client.stream("hi")]

    assert asyncio.run(main()) == ("ab", ["text", "text", "usage", "done"])


def test_syn_02_a_plain_iterator_with_all_events(server: ModelServer) -> None:
    """No callbacks and no await: a for loop sees text, calls, results, usage and the end."""
    server.call("add", {"a": 2, "b": 3})
    server.say("5")
    tool = Tool("add", execute=lambda args, ctx: args["a"] + args["b"])
    kinds = [event.type for event in client_of(server).stream("2 + 3?", [tool])]
    assert kinds == ["tool_call", "tool_result", "text", "usage", "done"]


def test_syn_03_run_and_then_stream_on_one_client(server: ModelServer) -> None:
    """The second call goes over the first one's connection, without a pause."""
    server.on_request(lambda request: reply("hi"))
    with client_of(server) as client:
        client.run("hi")
        began = time.monotonic()
        assert client.stream("hi").result().text == "hi"
        assert time.monotonic() - began < 2
        client.run("hi")
    assert server.connections == 1


def test_syn_05_threads_pools_and_twice_in_a_row(server: ModelServer) -> None:
    """A worker thread needs nothing of its own, and a second use is like the first."""
    server.on_request(lambda request: reply("hi"))
    client = client_of(server)
    texts: list[str] = []

    def work() -> None:
        texts.append(client.run("hi").text)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            texts += [result.text for result in pool.map(client.run, ["a", "b"])]
    assert texts == ["hi"] * 6
    client.close()


def test_syn_07_nothing_is_written_that_was_not_asked_for(server: ModelServer) -> None:
    """A script in a pipe prints its own line and nothing else."""
    server.on_request(lambda request: reply(["a", "b"]))
    out = run_script(f"""
        from toolnexus import Client
        client = Client({server.base_url!r}, model="m", api_key="k")
        result = client.run("hi")
        for event in client.stream("hi"):
            pass
        print(result.text)
    """)
    assert out == "ab\n"


def test_syn_08_without_terminal_home_or_stdin(server: ModelServer) -> None:
    """A cron job's bare environment is enough; a missing key is an error, not a question."""
    server.on_request(lambda request: reply("hi"))
    code = f"""
        import os, sys
        os.close(0)
        from toolnexus import Client, ConfigurationError
        print(Client({server.base_url!r}, model="m", api_key="k").run("hi").text)
        try:
            Client("https://api.openai.com/v1", model="m").run("hi")
        except ConfigurationError as error:
            print("OPENAI_API_KEY" in str(error))
    """
    kept = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        env=kept,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert (process.stdout, process.stderr, process.returncode) == ("hi\nTrue\n", "", 0)


# -- a notebook ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_syn_01_09_thr_10_in_a_real_kernel(server: ModelServer, tmp_path: Path) -> None:
    """
    In cells of a notebook, whose kernel runs an event loop.

    run(), stream() and await beside each other; many small deltas are printed whole; an interrupt
    stops a silent stream, and the next cell works.
    """
    manager_module = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    pieces = [f"{n % 10}" for n in range(2000)]
    manager, kernel = manager_module.start_new_kernel(
        kernel_name="python3", env={**os.environ, "IPYTHONDIR": str(tmp_path)}
    )
    try:
        cell = NotebookCell(kernel)
        cell.run(
            f"from toolnexus import Client\nclient = Client({server.base_url!r}, model='m', api_key='k')"
        )
        server.say("in a cell")
        assert cell.run("print(client.run('hi').text)") == "in a cell\n"
        server.say(pieces)
        printed = cell.run(
            "for delta in client.stream('hi').text_deltas():\n    print(delta, end='', flush=True)"
        )
        assert printed == "".join(pieces)
        server.say(["a", "b"])
        out = cell.run(
            "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n"
            "    return [e.type for e in client.stream('hi')]\nprint(await main())"
        )
        assert out == "['text', 'text', 'usage', 'done']\n"
        server.say(["a"], hold=True)
        left = server.disconnects
        message = kernel.execute("for event in client.stream('hi'):\n    print(event.type)")
        server.wait_for_request(4)
        time.sleep(0.3)
        manager.interrupt_kernel()
        server.wait_for_disconnect(left + 1)
        assert "KeyboardInterrupt" in cell.read(message)
        server.say("still here")
        assert cell.run("print(client.run('hi').text)") == "still here\n"
        threads = "import threading\nprint([t.name for t in threading.enumerate() if 'toolnexus' in t.name])"
        assert cell.run(threads) == "[]\n"
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)


class NotebookCell:
    """Runs code in a kernel and reads what it prints."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def run(self, code: str) -> str:
        return self.read(self.kernel.execute(code))

    def read(self, message: str) -> str:
        parts: list[str] = []
        while True:
            reply = self.kernel.get_iopub_msg(timeout=30)
            if reply["parent_header"].get("msg_id") != message:
                continue
            content = reply["content"]
            if reply["msg_type"] == "stream":
                parts.append(content["text"])
            elif reply["msg_type"] == "error":
                parts.append(content["ename"])
            elif reply["msg_type"] == "status" and content["execution_state"] == "idle":
                return "".join(parts)


# -- tools and people in threads -------------------------------------------------------------


def test_context_variables_reach_pump_and_tools(server: ModelServer) -> None:
    """What the caller set is seen by a tool, though it runs in another thread."""
    import contextvars

    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    tenant.set("acme")
    server.call("who", {})
    server.say("ok")
    result = client_of(server).stream("go", [Tool("who", execute=lambda args, ctx: tenant.get())]).result()
    assert result.tool_calls[0].output == "acme"


def test_a_tool_sees_the_cancel(server: ModelServer) -> None:
    """Its context says so, its sleep ends, and its thread with it."""
    seen: list[Any] = []

    def wait(args: dict[str, Any], ctx: Context) -> str:
        try:
            ctx.sleep(60)
        except ToolnexusError as error:
            seen.append((ctx.cancelled, error.kind))
            raise
        return "late"

    server.call("wait", {})
    for _ in client_of(server).stream("go", [Tool("wait", execute=wait)]):
        break
    assert until(lambda: seen == [(True, "cancelled")])
    assert until(lambda: not our_threads())


def test_threads_are_daemons_with_names(server: ModelServer) -> None:
    """Whoever looks at the threads of a program finds out whose they are."""
    names: list[tuple[str, bool]] = []

    def look(args: dict[str, Any], ctx: Context) -> str:
        names.extend((t.name, t.daemon) for t in threading.enumerate() if t.name.startswith("toolnexus-"))
        return ""

    server.call("look", {})
    server.say("ok")
    stream = client_of(server).stream("go", [Tool("look", execute=look)], timeout=30)
    stream.result()
    assert all(daemon for _, daemon in names)
    assert {name.rsplit("-", 1)[0] if "run" not in name else name.split("-run")[0] for name, _ in names} == {
        "toolnexus-pump",
        "toolnexus-tool",
        "toolnexus",
    }
    assert f"toolnexus-pump-{stream.run_id}" in {name for name, _ in names}


def test_a_listener_that_accepts_nothing_more_is_no_hang() -> None:
    """A connection that is accepted by the system alone ends with the deadline, and leaves nothing."""
    sockets = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", model="m", api_key="k")
        *_, last = client.stream("hi", timeout=0.2)
        assert isinstance(last, Error)
        assert last.error.kind == "timeout"
    settled(sockets)


def test_a_silent_server_costs_no_processor_time() -> None:
    """Waiting is waiting: neither pump nor consumer spins."""
    with RawServer([HOLD]) as server:
        stream = Client(f"{server.url}/v1", model="m", api_key="k").stream("hi", timeout=1.0)
        before = time.process_time()
        *_, last = stream
        assert isinstance(last, Error)
        assert last.error.kind == "timeout"
        assert time.process_time() - before < 0.5
