"""Where text goes: as wide as the terminal, and wide enough for any table where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

WITHOUT_TERMINAL = 140


def output() -> Console:
    return Console(width=None if sys.stdout.isatty() else WITHOUT_TERMINAL)
