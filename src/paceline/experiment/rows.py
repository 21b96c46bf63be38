"""The table of a comparison: one policy over all seeds, at the learning rate that suited it best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from paceline.experiment.comparison import ACCURACY, Outcome
from paceline.report.tables import LearningRow

LESS_IS_BETTER = ("loss", "error", "perplexity")  # of a figure that has this in its name


class Row(msgspec.Struct, frozen=True):
    """One policy over all seeds, at the learning rate that suited it best."""

    policy: str
    factor: float
    times: list[float | None]  # to the target, by seed
    seconds: float
    samples: float
    waiting_share: float
    mean_staleness: float
    accuracy: float
    problems: list[str]
    figure: str = ACCURACY  # that stands where the accuracy would

    @property
    def time(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the time to the target; None: some seed never reached it."""
        reached = [time for time in self.times if time is not None]
        if not reached or len(reached) < len(self.times):
            return None
        return statistics.mean(reached), statistics.stdev(reached) if len(reached) > 1 else 0.0


def rows_of(outcomes: Sequence[Outcome], policies: Sequence[str], target: float | None) -> list[Row]:
    """A row per policy, in their order."""
    rows = []
    for policy in policies:
        by_factor: dict[float, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.trial.policy == policy:
                by_factor.setdefault(outcome.trial.factor, []).append(outcome)
        candidates = [row_of(policy, factor, found, target) for factor, found in sorted(by_factor.items())]
        if candidates:
            rows.append(min(candidates, key=_quality))
    return rows


def row_of(policy: str, factor: float, outcomes: list[Outcome], target: float | None) -> Row:
    """The figures of these outcomes, which differ by their seed only."""
    outcomes = sorted(outcomes, key=lambda outcome: outcome.trial.seed)
    mean: Callable[[Sequence[float]], float] = statistics.mean
    return Row(
        policy=policy,
        factor=factor,
        times=[] if target is None else [outcome.time_to(target) for outcome in outcomes],
        seconds=mean([outcome.seconds for outcome in outcomes]),
        samples=mean([outcome.samples for outcome in outcomes]),
        waiting_share=mean([outcome.waiting_share for outcome in outcomes]),
        mean_staleness=mean([outcome.mean_staleness for outcome in outcomes]),
        accuracy=mean([outcome.final_accuracy for outcome in outcomes]),
        problems=[outcome.problem for outcome in outcomes if outcome.problem],
        figure=outcomes[0].figure,
    )


def learning_rows(rows: Iterable[Row]) -> list[LearningRow]:
    """As a table shows them."""
    return [
        LearningRow(
            row.policy,
            row.factor,
            row.time,
            row.seconds,
            row.samples,
            row.waiting_share,
            row.mean_staleness,
            row.accuracy,
            row.figure,
        )
        for row in rows
    ]


def _quality(row: Row) -> tuple[float, float, float, float]:
    """Less is better: did not diverge, soonest at the target, most accurate in the end; of equals the nearest to 1."""
    time = row.time
    worse = row.accuracy if any(word in row.figure for word in LESS_IS_BETTER) else -row.accuracy
    return (len(row.problems), math.inf if time is None else time[0], worse, abs(math.log(row.factor)))
