"""What the iterations of each worker took, out of the trace of any run, simulated or real.

An iteration lasts from when its worker was given parameters to its push. An interrupt begins it anew, unless the push
was on its way already; then the gradient arrives with the older version.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from paceline.core.messages import (
    AT_THE_END,
    Answered,
    ApplyUpdate,
    GradientArrived,
    InterruptWorker,
    Record,
    SendParameters,
    WorkerLeft,
)
from paceline.core.questions import NO_COSTS
from paceline.recording.observer import Observer

PARTS = 10  # that stand for a whole run: what changes in it is in some of them


def _numbers() -> array[float]:
    return array("d")


@dataclass
class Recording:
    """What a trace says about one worker."""

    joined_at: float
    times: array[float] = field(default_factory=_numbers)
    ended: array[float] = field(default_factory=_numbers)  # each of them
    left_at: float | None = None


class IterationTimes(Observer):
    """Give it every record."""

    def __init__(self) -> None:
        self.pushes = 0
        self.costs = NO_COSTS  # of the server, as a policy was told last
        self._found: dict[int, Recording] = {}
        self._begins: dict[int, list[tuple[int, float]]] = {}  # since its last push: what it was given, and when
        self._version = 0

    def observe(self, record: Record) -> None:
        match record.event:
            case GradientArrived(gradient, computed_on):
                given = self._begins.pop(gradient.worker, [])
                began = [time for version, time in given if version <= computed_on]
                if began:
                    recording = self._found[gradient.worker]
                    recording.times.append(record.now - began[-1])
                    recording.ended.append(record.now)
                    self.pushes += 1
            case Answered(_, answer):
                self.costs = answer.costs
            case WorkerLeft(worker, reason) if worker in self._found and reason not in AT_THE_END:
                self._found[worker].left_at = record.now
            case _:
                pass
        for command in record.commands:
            match command:
                case ApplyUpdate():
                    self._version += 1
                case SendParameters(worker) | InterruptWorker(worker):
                    self._begins.setdefault(worker, []).append((self._version, record.now))
                    self._found.setdefault(worker, Recording(record.now))
                case _:
                    pass

    def workers(self) -> dict[int, Recording]:
        """Of those that pushed anything."""
        return {worker: found for worker, found in self._found.items() if found.times and min(found.times) > 0}


def iteration_times(records: Iterable[Record]) -> IterationTimes:
    times = IterationTimes()
    for record in records:
        times.observe(record)
    return times


def in_parts(workers: Mapping[int, Recording], end: float, most: int) -> tuple[dict[int, Recording], float]:
    """About so many iterations at most, of parts that are spread evenly over a run, as if they followed each other; and
    how long they are together."""
    iterations = sum(len(recording.times) for recording in workers.values())
    if iterations <= most:
        return dict(workers), end
    stride = end / PARTS
    width = stride * most / iterations

    def before(moment: float) -> float:
        """Of the parts, so much."""
        number, phase = divmod(moment, stride)
        return number * width + min(phase, width)

    def taken() -> Iterator[tuple[int, Recording]]:
        for worker, recording in workers.items():
            times, ended = np.array(recording.times), np.array(recording.ended)
            inside = times[ended % stride < width]
            joined = before(recording.joined_at)
            left = None if recording.left_at is None else before(recording.left_at)
            if left is None or left > joined:  # else it was there between two parts only
                kept = inside if len(inside) else times  # one iteration may take longer than from part to part
                yield worker, Recording(joined, array("d", kept.tolist()), left_at=left)

    return dict(taken()), PARTS * width
