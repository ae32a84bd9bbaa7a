"""
Holds conversations through a client until it is killed.

Run it as ``python -m tests.support.conversation_job URL STYLE STORE SEED``.
"""

from __future__ import annotations

import random
import sys

from tests.support.store_worker import open_store, say
from toolnexus import Client, StoreConflictError, Tool

CONVERSATIONS = 20


def main(base_url: str, style: str, place: str, seed: str) -> None:
    dice = random.Random(seed)
    tool = Tool("look", execute=lambda args, ctx: "seen")
    with open_store(place) as store:
        client = Client(base_url=base_url, style=style, model="m", api_key="k", store=store, retries=0)
        turn = 0
        while True:
            turn += 1
            id_, prompt = f"talk-{dice.randrange(CONVERSATIONS)}", f"{seed}.{turn}"
            try:
                client.run(prompt, [tool], id=id_)
            except StoreConflictError:
                say(f"lost {id_} {prompt}")
            else:
                say(f"done {id_} {prompt}")


if __name__ == "__main__":
    main(*sys.argv[1:])
