"""Where text goes: as wide as the terminal, and wide enough for any table where there is none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rich.console import Console

WITHOUT_TERMINAL = 140
NARROWEST = 80  # what the tables need; a narrower terminal breaks the lines itself, and so does who reads a pipe


def output() -> Console:
    if not sys.stdout.isatty():
        return Console(width=max(NARROWEST, asked_width() or WITHOUT_TERMINAL))
    return Console(width=max(NARROWEST, Console().width))


def asked_width() -> int | None:
    """What COLUMNS says, for output that goes into a pipe or a file; None: nothing, or no number."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else None


@contextlib.contextmanager
def stdout_is_for_json(wanted: bool) -> Iterator[None]:
    """Meanwhile whatever is printed, here and by processes that start, goes to stderr."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
