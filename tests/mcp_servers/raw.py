"""
An MCP server over stdio that needs nothing but Python, and can misbehave in every way.

Its only argument is a JSON object of options:

- ``tools``: more tools to list, as they are
- ``pages``: how the list is paged: "many", "endless" or "loop"
- ``hang``: the method that is never answered
- ``exit``: at which method to exit, with ``code``, after ``stderr`` was written
- ``refuse``: the methods that are answered with an error
- ``banner``: noise on stdout before anything else
- ``stubborn``: go on after the end of stdin and after TERM, with a child that does the same
- ``log``: a file to which each message received is appended
- ``capabilities``: what to say of oneself
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

OPTIONS: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
OUT = sys.stdout.buffer
LOCK = threading.Lock()
CANCELLED: set[Any] = set()
WAITING: list[tuple[Any, dict[str, Any]]] = []

NAMES = """
    add big blob change cut die echo env error far half hang ill_text kill links late narrow noise number pid
    progress silent_error spawn stream structured swap url wrong_shape
""".split()  # noqa: SIM905 - easier to read


def raw(data: bytes) -> None:
    with LOCK:
        OUT.write(data)
        OUT.flush()


def send(**message: Any) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def text(request_id: Any, value: str, **more: Any) -> None:
    send(id=request_id, result={"content": [{"type": "text", "text": value}], **more})


def listed(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"The tool {name}.",
        "inputSchema": {"type": "object", "properties": {}},
    }


def tools() -> list[Any]:
    names = OPTIONS.get("names", NAMES)
    return [*(listed(name) for name in names), *OPTIONS.get("tools", [])]


def list_tools(request_id: Any, params: dict[str, Any]) -> None:
    cursor = int(params.get("cursor", 0))
    pages = OPTIONS.get("pages")
    if pages == "many":
        everything = tools()
        result: dict[str, Any] = {"tools": everything[cursor : cursor + 3]}
        if cursor + 3 < len(everything):
            result["nextCursor"] = str(cursor + 3)
    elif pages == "endless":
        result = {"tools": [listed(f"t{cursor}")], "nextCursor": str(cursor + 1)}
    elif pages == "loop":
        result = {"tools": [], "nextCursor": "7"}
    else:
        result = {"tools": tools()}
    send(id=request_id, result=result)


def progress(
    request: dict[str, Any], done: float, total: float | None = None, message: str | None = None
) -> None:
    token = request["params"].get("_meta", {}).get("progressToken")
    params = {"progressToken": token, "progress": done, "total": total, "message": message}
    send(method="notifications/progress", params={k: v for k, v in params.items() if v is not None})


def call(request: dict[str, Any]) -> None:
    request_id, name, args = (
        request["id"],
        request["params"]["name"],
        request["params"].get("arguments") or {},
    )
    match name:
        case "echo":
            text(request_id, args.get("text", ""))
        case "add":
            text(request_id, str(args["a"] + args["b"]))
        case "number":
            time.sleep(args.get("delay", 0))
            text(request_id, str(args["n"]))
        case "pid":
            text(request_id, str(os.getpid()))
        case "env":
            text(request_id, json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv}))
        case "die":
            print("about to die", file=sys.stderr, flush=True)
            os._exit(args.get("code", 1))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            pass
        case "late":
            time.sleep(args.get("delay", 0.5))
            text(request_id, "too late")
        case "big":
            text(request_id, "x" * args["size"])
        case "blob":
            send(
                id=request_id,
                result={"content": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]},
            )
        case "noise":
            raw('🖥️ working\n\n42\n{"level":"info"}\n[1, 2]\nnull\n'.encode())
            text(request_id, "heard")
        case "half":
            line = json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": request_id,
                    "result": {"content": [{"type": "text", "text": "a\x01€z"}]},
                },
                ensure_ascii=False,
            )
            data = line.encode().replace(b"\\u0001", b"\xff") + b"\n"
            middle = data.index("€".encode()) + 1
            raw(data[:middle])
            time.sleep(0.05)
            raw(data[middle:])
        case "ill_text":
            raw(
                b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"half \\ud83d."}]}}\n'
                % request_id
            )
        case "cut":
            raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","te\n' % request_id)
        case "wrong_shape":
            send(id=request_id, result="just a text")
        case "narrow":
            send(id=request_id, result={"content": [{"type": "hologram", "x": 1}, "bare"]})
        case "progress":
            for step in range(1, args["steps"] + 1):
                progress(request, step, args["steps"], f"step {step}")
                time.sleep(args.get("pause", 0))
            text(request_id, "done")
        case "stream":
            while request_id not in CANCELLED:
                progress(request, 1)
                time.sleep(0.01)
        case "swap":
            WAITING.append((request_id, args))
            if len(WAITING) == 2:
                for other_id, other in reversed(WAITING):
                    send(method="notifications/message", params={"level": "info", "data": "in between"})
                    progress(request, 1)
                    text(other_id, str(other["n"]))
                WAITING.clear()
        case "change":
            OPTIONS["names"] = args["names"]
            send(method="notifications/tools/list_changed")
            text(request_id, "changed")
        case "spawn":
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-c", code])
            text(request_id, str(child.pid))
        case "structured":
            content = [{"type": "text", "text": args["text"]}] if "text" in args else []
            send(id=request_id, result={"content": content, "structuredContent": args["value"]})
        case "links":
            link = {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "description": "the first"}
            inner = {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "inside"}
            blob = {"uri": "file:///dir/c.pdf", "mimeType": "application/pdf", "blob": "JVBERi0="}
            audio = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
            embedded = [{"type": "resource", "resource": inner}, {"type": "resource", "resource": blob}]
            send(id=request_id, result={"content": [link, *embedded, audio]})
        case "error":
            text(request_id, args.get("text", "it failed"), isError=True)
        case "silent_error":
            send(id=request_id, result={"content": [], "isError": True})
        case "url":
            page = {"mode": "url", "message": "Log in, please", "url": args["url"], "elicitationId": "e1"}
            done = os.path.exists(args["done"])
            pages = {"elicitations": [page]}
            if done:
                text(request_id, "logged in")
            else:
                send(id=request_id, error={"code": -32042, "message": "authorization needed", "data": pages})
        case "far":
            send(id=request_id, error={"code": -32603, "message": "the database is away"})
        case _:
            send(id=request_id, error={"code": -32602, "message": f"Unknown tool: {name}"})


def initialize(request_id: Any) -> None:
    result = {
        "protocolVersion": "2025-06-18",
        "capabilities": OPTIONS.get("capabilities", {"tools": {"listChanged": True}}),
        "serverInfo": {"name": "raw", "version": "1"},
    }
    send(id=request_id, result=result)


def handle(message: dict[str, Any]) -> None:
    method = message.get("method")
    if OPTIONS.get("exit") == method:
        print(OPTIONS.get("stderr", ""), file=sys.stderr, flush=True)
        os._exit(OPTIONS.get("code", 3))
    if OPTIONS.get("hang") == method:
        return
    if method in OPTIONS.get("refuse", ()):
        send(id=message["id"], error={"code": -32601, "message": f"{method} is not for you"})
    elif method == "initialize":
        initialize(message["id"])
    elif method == "tools/list":
        list_tools(message["id"], message.get("params") or {})
    elif method == "tools/call":
        threading.Thread(target=call, args=(message,), daemon=True).start()
    elif method == "notifications/cancelled":
        CANCELLED.add(message["params"]["requestId"])
    elif "id" in message and method:
        send(id=message["id"], error={"code": -32601, "message": "Method not found"})


def main() -> None:
    if OPTIONS.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "banner" in OPTIONS:
        raw(OPTIONS["banner"].encode())
    for line in sys.stdin.buffer:
        if "log" in OPTIONS:
            with open(OPTIONS["log"], "ab") as log:
                log.write(line)
        handle(json.loads(line))
    while OPTIONS.get("stubborn"):
        time.sleep(1)


main()
