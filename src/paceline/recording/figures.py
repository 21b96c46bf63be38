"""The figures of a run by name, as other programs want them: one flat dict of numbers per moment."""

from __future__ import annotations

from collections import deque

from paceline.recording.metrics import RunMetrics, Totals, WorkerTotals
from paceline.recording.progress_log import Evaluation, Logged, Measurement

WINDOW = 10.0  # seconds that paces and shares are over
MOST_WORKERS = 64  # that have a pace of their own here: a thousand curves help nobody
NOTHING = WorkerTotals(0, 0.0, 0.0)


class Figures:
    """`at` a measurement: what the run came to lately. `metrics` has seen every record, whoever gave them to it."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._totals: deque[tuple[int, Totals]] = deque()  # samples, and the rest: those of the last seconds
        self._logged: dict[str, dict[int, float]] = {}  # by name and worker: the latest since the last measurement

    def note(self, logged: Logged) -> None:
        for name, value in logged.figures.items():
            self._logged.setdefault(name, {})[logged.worker] = value

    def at(self, measurement: Measurement) -> dict[str, float]:
        figures: dict[str, float] = {"train/learning_rate": measurement.learning_rate}
        if measurement.loss is not None:
            figures["train/loss"] = measurement.loss
        if measurement.epoch is not None:
            figures["train/epoch"] = measurement.epoch
        figures["train/updates"] = measurement.updates
        figures["train/seconds"] = measurement.seconds
        figures["group/workers"] = measurement.workers
        totals = self._metrics.totals(measurement.seconds)
        while len(self._totals) > 1 and self._totals[1][1].seconds <= totals.seconds - WINDOW:
            self._totals.popleft()
        if self._totals:
            figures |= _lately(*self._totals[0], measurement.samples, totals)
        self._totals.append((measurement.samples, totals))
        return figures | self.logged()

    def logged(self) -> dict[str, float]:
        """What loops logged since this was asked the last time: of each figure the mean over its workers."""
        logged, self._logged = self._logged, {}
        return {f"logged/{name}": sum(values.values()) / len(values) for name, values in logged.items()}


def _lately(samples_before: int, before: Totals, samples: int, now: Totals) -> dict[str, float]:
    """What happened between two moments."""
    figures: dict[str, float] = {}
    if now.seconds > before.seconds:
        figures["group/samples_per_second"] = (samples - samples_before) / (now.seconds - before.seconds)
    if now.applied > before.applied:
        figures["group/staleness"] = (now.staleness - before.staleness) / (now.applied - before.applied)
    waited = stayed = 0.0
    paces = {}
    for name, worker in now.workers.items():
        old = before.workers.get(name, NOTHING)
        there = worker.stayed - old.stayed
        if there > 0:
            waited, stayed = waited + worker.waited - old.waited, stayed + there
            paces[f"pace/worker_{name}"] = (worker.samples - old.samples) / there
    if stayed:
        figures["group/waiting_share"] = min(max(waited / stayed, 0.0), 1.0)
    return figures | (paces if len(paces) <= MOST_WORKERS else {})


def figures_of(evaluation: Evaluation) -> dict[str, float]:
    return {f"evaluation/{name}": value for name, value in evaluation.figures.items()}
