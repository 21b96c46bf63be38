"""Where a user's loop can stand while others move. It knows no torch, so that a simulator can ask."""

from __future__ import annotations

from typing import NamedTuple

from paceline.lifecycle.work import Work

BEGIN, REQUEST, PUSH, SKIP, END = "began", "asked for work", "pushed", "skipped a batch", "came to its end"


class Stop(NamedTuple):
    at: str
    samples: int = 0  # of what it pushed or skipped
    units: int = 0
    loss: float | None = None
    work: Work | None = None  # that it asked for
