"""What the processes of a group are at before it begins, in words, for those who wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.seats import Seat, State
from paceline.runtimes.serving.launching import Launches, Started

PATIENCE = 2.0  # seconds after which something is said, and between two lines


class Stage(Enum):
    """Of a process, in their order; the words for one and for several."""

    READY = ("is ready", "are ready")
    RUNNING = ("runs `train` up to worker.optimizer(...)", "run `train` up to worker.optimizer(...)")
    IMPORTING = ("imports {main}", "import {main}")
    QUEUED = ("is still to be started", "are still to be started")
    WAITING = ("waits until torch is imported", "wait until torch is imported")


def in_words(stages: Iterable[Stage], main: str, lacks: str = "") -> str:
    """`main`: the name of the file that every process imports; empty: there is none. `lacks`: why some are still to be
    started, if that is known."""
    counted = Counter(stages)
    several = len(counted) > 1
    parts = []
    for stage in Stage:
        number = counted[stage]
        if number:
            words = stage.value[number > 1].format(main=main or "what `train` needs")
            why = f" ({lacks})" if lacks and stage is Stage.QUEUED else ""
            parts.append(f"{number if several else 'it' if number == 1 else 'all'} {words}{why}")
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


class Start:
    """Of a group, from when its processes are asked for."""

    def __init__(self, lifecycle: Lifecycle, launcher: Launches, processes: Mapping[int, Started], now: float) -> None:
        self.running: set[int] = set()  # seats whose process has come to the user's function
        self._lifecycle = lifecycle
        self._launcher = launcher
        self._processes = processes
        self._asked_at = now
        self._announcer = Announcer()

    def news(self, now: float) -> str:
        """How far it is, if that is to be said now."""
        launcher = self._launcher
        stages = [self._stage(seat) for seat in self._lifecycle.active]
        return self._announcer.news(now - self._asked_at, in_words(stages, launcher.imports, launcher.lacks))

    def _stage(self, seat: Seat) -> Stage:
        if seat.state is not State.STARTING:
            return Stage.READY
        if seat.index in self.running:
            return Stage.RUNNING
        process = self._processes.get(seat.index)
        if process is not None and self._launcher.has_begun(process):
            return Stage.IMPORTING
        return Stage.QUEUED if self._launcher.is_ready else Stage.WAITING
