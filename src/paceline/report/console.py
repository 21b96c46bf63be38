"""Where text goes: as wide as the terminal, and wide enough for any table where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

WITHOUT_TERMINAL = 140
NARROWEST = 80  # what the tables need; a narrower terminal breaks the lines itself


def output() -> Console:
    if not sys.stdout.isatty():
        return Console(width=WITHOUT_TERMINAL)
    return Console(width=max(NARROWEST, Console().width))
