"""
A small chat: Flask, one HTML file, server-sent events.

Run it with ``python examples/chat/app.py`` and open http://127.0.0.1:5000. Without MODEL in the environment a
scripted model answers. Closing the page while an answer arrives cancels the run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flask import Flask, Response, request

from toolnexus import Client, Stream, tool

PAGE = Path(__file__).with_name("index.html")


@tool(approval=True)
def send_mail(to: str, text: str) -> str:
    "Send a mail."
    return f"sent to {to}"


@tool
def weather(city: str) -> str:
    "Look up the weather of a city."
    return f"sunny in {city}"


def make_app(client: Client) -> Flask:
    """Make the chat for a client."""
    app = Flask(__name__)
    streams: dict[str, Stream] = {}

    @app.get("/")
    def page() -> Response:
        return Response(PAGE.read_bytes(), mimetype="text/html")

    @app.get("/chat")
    def chat() -> Response:
        if "Last-Event-ID" in request.headers:  # a browser that asks for more of a run that has ended here
            return Response(status=204)
        stream = client.stream(
            request.args["prompt"], [send_mail, weather], id=request.args["id"], answers="wait"
        )
        streams[stream.run_id] = stream
        body = stream.sse(heartbeat=0.5)
        return Response(body, headers=body.headers)

    @app.post("/answer")
    def answer() -> tuple[dict[str, Any], int]:
        given = request.get_json()
        stream = streams.get(given["run_id"])
        if stream is None:
            return {"error": "there is no such run"}, 404
        waiting = stream.waiting_for(given["request"])
        if waiting is None:
            return {"error": "nobody waits for that answer"}, 409
        stream.answer(waiting, bool(given["ok"]))
        return {}, 200

    return app


def main() -> None:
    """Serve the chat until Ctrl-C."""
    model = os.environ.get("MODEL")
    if model:
        make_app(Client(model=model)).run(threaded=True)
        return
    from toolnexus.testing import ModelServer, reply, tool_call

    def decide(asked: Any) -> Any:
        last = asked.json["messages"][-1]
        if last["role"] == "tool":
            return reply(f"Done: {last['content']}.", delay=0.05)
        if "mail" in str(last["content"]):
            return tool_call(
                "send_mail", {"to": "ada@example.com", "text": "Hello"}, text="I will write a mail."
            )
        return reply("This is a scripted model. Ask me to send a mail. " * 3, delay=0.05)

    with ModelServer() as server:
        server.on_request(decide)
        make_app(Client(base_url=server.base_url, model="scripted")).run(threaded=True)


if __name__ == "__main__":
    main()
