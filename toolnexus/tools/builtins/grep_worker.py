"""
Searches texts for a pattern, as a program of its own.

Python's regular expressions hold the interpreter while they match, and some patterns match for ever:
here they hold nobody up, and can be ended. The program needs nothing but the standard library.

It reads a JSON line with the pattern and answers with one. Then, for each text, it reads a JSON line
with its size in bytes and the most matches wanted, and the text; it answers with a JSON line, the
list of line numbers and lines.
"""

from __future__ import annotations

import json
import re
import sys
from typing import IO, Any

#: The longest part of a line that is shown, in characters.
MAX_LINE = 500
#: After this many seconds of work the system ends the program, should nobody else do so.
CPU_SECONDS = 120


def shorten(line: str) -> str:
    """Return a line as it is shown."""
    line = line.removesuffix("\r")
    return (
        line
        if len(line) <= MAX_LINE
        else line[:MAX_LINE] + f"[... {len(line) - MAX_LINE} characters cut ...]"
    )


def find(pattern: re.Pattern[str], text: str, most: int) -> list[tuple[int, str]]:
    """Return the numbers, from 1, and the texts of the first lines that match."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if pattern.search(line.removesuffix("\r")):
            found.append((number, shorten(line)))
            if len(found) >= most:
                break
    return found


def serve(source: IO[bytes], answer: IO[bytes]) -> None:
    """Answer requests until there are no more."""

    def say(value: Any) -> None:
        answer.write(json.dumps(value).encode("ascii") + b"\n")
        answer.flush()

    try:
        pattern = re.compile(json.loads(source.readline())["pattern"])
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        say({"error": str(error) or type(error).__name__})
        return
    say({})
    while head := source.readline():
        request = json.loads(head)
        text = source.read(request["size"]).decode("utf-8", "replace")
        say(find(pattern, text, request["most"]))


def main() -> None:
    """Run the program."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    except (ImportError, ValueError, OSError):
        pass  # whoever started it ends it
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
