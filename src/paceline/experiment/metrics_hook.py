"""`launch(..., on_metrics=f)`: the figures of a run for whatever program people keep theirs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from paceline.experiment.callbacks import Callback, Run
from paceline.experiment.result import RunResult
from paceline.recording.figures import Figures, figures_of
from paceline.recording.metrics import RunMetrics
from paceline.recording.progress_log import Evaluation, Logged, Measurement

OnMetrics: TypeAlias = Callable[[dict[str, float], int], object]


class MetricsHook(Callback):
    """Calls it with a flat dict of numbers and the step, which is in samples and never goes back.

    An evaluation is told when it is there; `evaluation/samples` says of which state it is.
    """

    told_as = "on_metrics"

    def __init__(self, call: OnMetrics, metrics: RunMetrics) -> None:
        """`metrics`: sees every record before this is called."""
        self._call = call
        self._figures = Figures(metrics)
        self._step = 0
        self._raised = False

    def measured(self, run: Run, measurement: Measurement) -> None:
        self._step = max(self._step, measurement.samples)
        self._tell(self._figures.at(measurement))

    def evaluated(self, run: Run, evaluation: Evaluation) -> None:
        self._step = max(self._step, evaluation.samples)
        self._tell({**figures_of(evaluation), "evaluation/samples": evaluation.samples})

    def logged(self, run: Run, logged: Logged) -> None:
        self._figures.note(logged)

    def ended(self, run: Run, result: RunResult) -> None:
        if own := self._figures.logged():
            self._tell(own)

    def _tell(self, figures: dict[str, float]) -> None:
        if not self._raised:
            self._raised = True
            self._call(figures, self._step)
            self._raised = False


def hooks(on_metrics: OnMetrics | None, metrics: RunMetrics) -> Sequence[Callback]:
    return [] if on_metrics is None else [MetricsHook(on_metrics, metrics)]
