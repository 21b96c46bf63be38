"""When each worker computed and when it waited, from a trace: what a Gantt chart is drawn from."""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.core.messages import GradientArrived, InterruptWorker, PolicyChanged, SendParameters, WorkerLeft
from paceline.recording.observer import Observer
from paceline.recording.trace import Record


class Span(NamedTuple):
    """One stretch of one worker's time. It computes from a release to its push, and waits from there to the next."""

    begin: float
    end: float
    waiting: bool


class Timeline(Observer):
    """Keeps the spans of the first `until` seconds; give it every record, then ask for the spans."""

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.changes: list[tuple[float, str]] = []  # when another policy took over, and which
        self._spans: dict[int, list[Span]] = {}
        self._open: dict[int, tuple[float, bool]] = {}  # worker -> since when, waiting?
        self._clock: dict[int, int] = {}

    def observe(self, record: Record) -> None:
        if record.now > self.until and not self._open:
            return
        match record.event:
            case GradientArrived(gradient) if gradient.clock > self._clock.get(gradient.worker, 0):
                self._clock[gradient.worker] = gradient.clock
                self._turn(gradient.worker, record.now, True)
            case WorkerLeft(worker):
                self._close(worker, record.now)
            case PolicyChanged(policy) if record.now <= self.until:
                self.changes.append((record.now, policy))
            case _:
                pass
        for command in record.commands:
            match command:
                case SendParameters(worker) | InterruptWorker(worker):
                    self._turn(worker, record.now, False)
                case _:
                    pass

    def _close(self, worker: int, now: float) -> None:
        opened = self._open.pop(worker, None)
        end = min(now, self.until)
        if opened is not None and opened[0] < end:
            self._spans[worker].append(Span(opened[0], end, opened[1]))

    def _turn(self, worker: int, now: float, waiting: bool) -> None:
        self._close(worker, now)
        self._spans.setdefault(worker, [])
        if now <= self.until:
            self._open[worker] = (now, waiting)

    def spans(self, end: float) -> dict[int, list[Span]]:
        """Every worker's spans up to the end of the run, in the order of time."""
        for worker in list(self._open):
            self._close(worker, end)
        return dict(sorted(self._spans.items()))
