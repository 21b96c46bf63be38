"""The last line that a process wrote to stderr, in memory that its launcher can read when the process is gone."""

from __future__ import annotations

import os
import sys

ROOM = 512  # bytes
LOOKED_AT = 4096  # characters at the end of what was written


def remember_stderr(descriptor: int) -> None:
    """From now on the last line on sys.stderr is kept in this piece of memory.

    The stream itself stays what it is, for whoever holds it already: a logger, say. What is not written through Python
    is not seen.
    """
    stream = sys.stderr
    if stream is None:
        return
    write, tail = stream.write, ""

    def remembering(text: str) -> int:
        nonlocal tail
        tail = (tail + text)[-LOOKED_AT:]
        lines = [line for line in tail.splitlines() if line.strip()]
        if lines:
            os.pwrite(descriptor, lines[-1].strip().encode(errors="replace")[:ROOM].ljust(ROOM, b"\0"), 0)
        return write(text)

    stream.write = remembering  # type: ignore[method-assign]


def last_words(descriptor: int) -> str:
    return os.pread(descriptor, ROOM, 0).rstrip(b"\0").decode(errors="replace")
