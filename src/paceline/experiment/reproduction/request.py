"""What an experiment is asked for, and what it is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from paceline.experiment.comparison import Comparison, Outcome, Trial
from paceline.experiment.reproduction.page import Page
from paceline.experiment.rows import Row, row_of
from paceline.experiment.simulation import Simulation

Runner: TypeAlias = Callable[[str, Comparison, Sequence[Trial]], list[Outcome]]


@dataclass(frozen=True)
class ExperimentRequest:
    """`run(part, comparison, trials)` gives the outcomes, and keeps them so that the same is not computed twice."""

    full: bool
    seeds: int
    run: Runner
    folder: Path  # for pictures, beside the results
    data: Path | None = None
    trace: Path | None = None
    first_seed: int = 0

    def trials(self, policies: Sequence[str], factor: float = 1.0) -> list[Trial]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return [Trial(policy, seed, factor) for seed in seeds for policy in policies]


SCALED_DOWN = (
    "Scaled down: a CNN of 20,490 parameters on Fashion-MNIST, batch 64, plain SGD with a rate of 0.3 per round,"
    " 2 epochs, evaluated every 5,000 samples on the first 2,000 test pictures."
)


def as_published(comparison: Comparison) -> Comparison:
    """The papers apply stale gradients as they are, with plain SGD where they say nothing else."""
    scaling = "linear" if comparison.lr_scaling == "auto" else comparison.lr_scaling
    return msgspec.structs.replace(
        comparison,
        learning_rate=comparison.learning_rate or 0.3,
        momentum=comparison.momentum or 0.0,
        weight_decay=0.0,
        schedule=False,
        lr_scaling=scaling,
        stale="none",
    )


def small_comparison(simulation: Simulation, data: str | None) -> Comparison:
    """What SCALED_DOWN says. The rate is the largest of 0.1, 0.3 and 1 at which BSP learns."""
    return as_published(
        Comparison(
            "fashion-mnist",
            simulation,
            2,
            data,
            "cnn",
            learning_rate=0.3,
            evaluate_every=5_000,
            test_samples=2_000,
        )
    )


Experiment: TypeAlias = Callable[[ExperimentRequest], Page]


def rows_by_policy(
    outcomes: Sequence[Outcome], target: float | None, labels: dict[tuple[str, float], str] | None = None
) -> dict[str, Row]:
    """A row for each policy and factor, in the order in which they first appear; `labels` rename some."""
    grouped: dict[tuple[str, float], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.trial.seed):
        grouped.setdefault((outcome.trial.policy, outcome.trial.factor), []).append(outcome)
    rows = {}
    for (policy, factor), found in grouped.items():
        label = (labels or {}).get((policy, factor), policy)
        rows[label] = row_of(label, factor, found, target)
    return rows


def reached_by_all(outcomes: Sequence[Outcome], step: float = 0.005) -> float:
    """The highest accuracy, in whole steps, that every one of these runs reached at some time."""
    least = min(max((point.accuracy for point in outcome.curve), default=0.0) for outcome in outcomes)
    return round(int(least / step + 1e-9) * step, 6)


def mean_time(row: Row) -> float:
    """To the target; infinite if some seed never got there."""
    return float("inf") if row.time is None else row.time[0]


def seconds(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.4g} s"


def ratio(slow: float, fast: float) -> str:
    """How many times as long the first takes."""
    if fast == float("inf"):
        return "never got there"
    return "which never got there" if slow == float("inf") else f"{slow / fast:.2f}x"
