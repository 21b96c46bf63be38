"""Shows a run in TensorBoard while it goes on: its figures, over samples."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.recording.event_file import EventFile
from paceline.recording.figures import Figures, figures_of
from paceline.recording.metrics import RunMetrics
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Logged, Measurement

EVERY = 1.0  # seconds between two points of a curve


class TensorBoard(Observer):
    """Open while the run goes on. What cannot be written is told once, and the run goes on without it."""

    def __init__(
        self,
        directory: Path,
        metrics: RunMetrics,
        *,
        resumed_at: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`metrics`: sees every record before this does. `resumed_at`: older points from there on are void."""
        self._directory = directory
        self._figures = Figures(metrics)
        self._clock = clock
        self._resumed_at = resumed_at
        self._file: EventFile | None = None
        self._failed = False
        self._next = 0.0
        self._last: Measurement | None = None  # that was not written
        self._samples = 0
        self._began = clock()  # so that what is told late is shown when it was

    def measured(self, measurement: Measurement) -> None:
        self._began, self._samples = self._clock() - measurement.seconds, measurement.samples
        self._last = measurement
        if measurement.seconds >= self._next:
            self._next = measurement.seconds + EVERY
            self._write_last()

    def evaluated(self, evaluation: Evaluation) -> None:
        self._write(evaluation.seconds, evaluation.samples, figures_of(evaluation))

    def logged(self, logged: Logged) -> None:
        self._figures.note(logged)

    def close(self) -> None:
        self._write_last()
        if own := self._figures.logged():
            self._write(self._clock() - self._began, self._samples, own)
        if self._file is not None:
            self._file.close()

    def _write_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            self._write(last.seconds, last.samples, self._figures.at(last))

    def _write(self, seconds: float, samples: int, figures: Mapping[str, float]) -> None:
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = EventFile(self._directory, self._clock(), self._resumed_at)
            self._file.write(self._began + seconds, samples, figures)
        except OSError as problem:
            self._failed = True
            print(
                f"paceline: {self._directory}: what TensorBoard would show cannot be written: {problem.strerror};"
                " the run goes on without it",
                file=sys.stderr,
                flush=True,
            )
