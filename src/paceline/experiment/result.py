"""What a run comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.recording.metrics import Summary
from paceline.recording.progress_log import Evaluation, Failure


@dataclass(frozen=True)
class RunResult:
    """What a run came to. `samples` became part of updates; `dropped` had gradients that were not used.

    A discarded gradient gives its samples back, so only those of gradients that were not finite are dropped, and of
    discarded gradients where the workers bring batches of their own.
    """

    model_state: dict[str, Tensor]
    summary: Summary
    samples: int
    dropped: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    run_dir: Path | None = None
    evaluation_problem: str = ""  # why the last state could not be evaluated
    optimizer_state: dict[str, Any] | None = None  # its state_dict; None: a run that had come to its end before
    samples_asked: int | None = None  # None: nobody knows, as where the workers bring batches of their own
    failures: list[Failure] = field(default_factory=list)  # workers that died: who, when, how, and their last words
    stopped: str = ""  # why somebody ended the run before all was done: a callback, or `paceline stop`

    @property
    def seconds(self) -> float:
        return self.summary.seconds

    def time_to(self, target: float, figure: str = "accuracy") -> float | None:
        """Seconds until an evaluation first found this figure at the target or above; None: never."""
        reached = (
            evaluation.seconds
            for evaluation in self.evaluations
            if evaluation.figures.get(figure, float("-inf")) >= target
        )
        return next(reached, None)


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C ended a run. `result` is what it came to until then; None: it had not begun."""

    def __init__(self, result: RunResult | None) -> None:
        super().__init__("the run was interrupted")
        self.result = result
