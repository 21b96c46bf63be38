"""What the server looks at a few times a second, however much is said: to look at every process of a large group takes
longer than a decision does."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paceline.lifecycle.messages import EndProcess, GroupEvent
from paceline.runtimes.serving.launching import Launches
from paceline.runtimes.serving.port import ProcessPort
from paceline.runtimes.serving.stopped import StoppedProcesses


class Looks:
    def __init__(self, every: float, launcher: Launches, stopped: StoppedProcesses, port: ProcessPort) -> None:
        self._every, self._launcher, self._stopped, self._port = every, launcher, stopped, port
        self._next = -math.inf

    def at(self, clock: float, now: float) -> Iterable[GroupEvent]:
        """What happened to processes since the last look. `now`: in seconds since the group began."""
        if clock < self._next:
            return
        self._next = clock + self._every
        yield from self._launcher.look(now)
        for seat in self._stopped.to_end(now):
            self._port.end_process(EndProcess(seat))
