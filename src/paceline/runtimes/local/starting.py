"""What the processes of a group are at before it begins, in words, for those who wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

PATIENCE = 2.0  # seconds after which something is said, and between two lines


class Stage(Enum):
    """Of a process, in their order; the words for one and for several."""

    READY = ("is ready", "are ready")
    RUNNING = ("runs `train` up to worker.optimizer(...)", "run `train` up to worker.optimizer(...)")
    IMPORTING = ("imports {main}", "import {main}")
    QUEUED = ("is still to be started", "are still to be started")
    WAITING = ("waits until torch is imported", "wait until torch is imported")


def in_words(stages: Iterable[Stage], main: str) -> str:
    """`main`: the name of the file that every process imports; empty: there is none."""
    counted = Counter(stages)
    several = len(counted) > 1
    parts = []
    for stage in Stage:
        number = counted[stage]
        if number:
            words = stage.value[number > 1].format(main=main or "what `train` needs")
            parts.append(f"{number if several else 'it' if number == 1 else 'all'} {words}")
    total = sum(counted.values())
    return f"starting {total} worker{'s' * (total != 1)}: {', '.join(parts)}"


class Announcer:
    """Decides when to say so: after a while, and then whenever it has changed, but not all the time."""

    def __init__(self) -> None:
        self._due = PATIENCE
        self._said = ""

    def news(self, seconds: float, line: str) -> str:
        """`line`, if it is to be said so many seconds after the start; else nothing."""
        if seconds < self._due or line == self._said:
            return ""
        self._due, self._said = seconds + PATIENCE, line
        return line
