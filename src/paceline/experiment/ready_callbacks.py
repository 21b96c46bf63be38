"""Callbacks for what most runs want: to end when nothing gets better, and to keep the best model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from paceline.core.errors import ConfigurationError
from paceline.experiment.callbacks import Callback, Run
from paceline.experiment.result import RunResult
from paceline.recording.progress_log import Evaluation, less_is_better
from paceline.training.checkpoint import save_state


def worths(evaluations: Sequence[Evaluation], figure: str, smaller_is_better: bool | None) -> list[float]:
    """How good each state was: the more, the better."""
    if evaluations and figure not in evaluations[-1].figures:
        raise ConfigurationError(
            f"the evaluation has no figure {figure!r}; it has: {', '.join(evaluations[-1].figures) or 'none'}"
        )
    smaller = less_is_better(figure) if smaller_is_better is None else smaller_is_better
    found = [evaluation.figures.get(figure, math.nan) for evaluation in evaluations]
    return [-value if smaller else value for value in found]


def without_gain(worths: Sequence[float], least_gain: float) -> int:
    """How many of the latest were no better than the best before them by so much."""
    best, count = -math.inf, 0
    for worth in worths:
        if worth > best and worth >= best + least_gain:
            best, count = worth, 0
        else:
            count += 1
    return count


class EarlyStopping(Callback):
    """Ends the run after `patience` evaluations in a row that were no better than the best by at least `least_gain`.

    `figure`: of the evaluation; of a loss, error or perplexity less is better, of anything else more is, unless
    `smaller_is_better` says otherwise.
    """

    needs_evaluation = True

    def __init__(
        self,
        figure: str = "accuracy",
        patience: int = 3,
        least_gain: float = 0.0,
        smaller_is_better: bool | None = None,
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ConfigurationError(f"EarlyStopping: patience is {patience!r}; it must be at least 1")
        if not 0 <= least_gain < math.inf:
            raise ConfigurationError(f"EarlyStopping: least_gain is {least_gain!r}; it must be a number from 0")
        self._figure, self._patience, self._least_gain = figure, patience, least_gain
        self._smaller_is_better = smaller_is_better

    def evaluated(self, run: Run, evaluation: Evaluation) -> None:
        found = worths(run.evaluations, self._figure, self._smaller_is_better)
        since = without_gain(found, self._least_gain)
        if since >= self._patience:
            best = max(value for value in found if not math.isnan(value)) if not all(map(math.isnan, found)) else None
            known = "" if best is None else f" than {abs(best):.4g}"
            run.stop(f"{self._figure} was no better{known} in {since} evaluations")


class KeepBest(Callback):
    """Writes the model that was evaluated best to `path` (safetensors), whole or not at all; a thread does it.

    A run with a directory keeps checkpoints/best.safetensors anyway, by accuracy, else by loss. This is for another
    figure or another place. Figures as in EarlyStopping.
    """

    needs_evaluation = True

    def __init__(self, path: Path | str, figure: str = "accuracy", smaller_is_better: bool | None = None) -> None:
        self._path, self._figure, self._smaller_is_better = Path(path), figure, smaller_is_better
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def started(self, run: Run) -> None:
        self._writer = ThreadPoolExecutor(1, "paceline best model")

    def evaluated(self, run: Run, evaluation: Evaluation) -> None:
        *before, now = worths(run.evaluations, self._figure, self._smaller_is_better)
        if self._writer is None or math.isnan(now) or any(earlier >= now for earlier in before):
            return
        self._finish()
        facts = {"samples": evaluation.samples, "updates": evaluation.version, **evaluation.figures}
        written = {name: str(value) for name, value in facts.items()}
        self._writing = self._writer.submit(save_state, run.evaluated_state(), self._path, written)

    def ended(self, run: Run, result: RunResult) -> None:
        if self._writer is not None:
            self._writer.shutdown()
        self._finish()

    def _finish(self) -> None:
        """Raises what the writing raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
