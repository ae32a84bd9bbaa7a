"""llama.cpp's own server with a small model, as a process of its own that ends with its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

#: Requests at a time, each with half of the context.
SLOTS = 2
CONTEXT = 8192


def serve(weights: Path) -> None:
    """Serve a model on a port of 127.0.0.1 that the system chooses, and print the address."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(weights)
    options.hostnames = ["127.0.0.1"]
    options.port = 0
    options.n_ctx = CONTEXT
    options.n_parallel = SLOTS
    options.endpoint_slots = True
    options.endpoint_metrics = True
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
