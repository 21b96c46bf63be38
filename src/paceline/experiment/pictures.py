"""The pictures of a comparison: accuracy over time and over samples, the first seconds, and DBW's estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.experiment.comparison import ChosenK, Outcome
from paceline.experiment.rows import Row
from paceline.report.plots import Curve, draw, draw_gantt, draw_panels

ESTIMATES: dict[str, Callable[[ChosenK], float | None]] = {
    "k": lambda choice: choice.k,
    "gain": lambda choice: choice.gain,
    "time T(k)": lambda choice: choice.time,
    "variance V": lambda choice: choice.variance,
    "squared norm N": lambda choice: choice.squared_norm,
    "smoothness L": lambda choice: choice.smoothness,
}


def draw_comparison(
    outcomes: Sequence[Outcome], rows: Sequence[Row], into: Path, *, target: float | None, suffix: str = ".svg"
) -> list[Path]:
    """Draw the runs behind the rows; returns the pictures, the most telling first."""
    runs = {row.policy: runs_of(row, outcomes) for row in rows}
    figure = rows[0].figure
    stem = figure.replace(" ", "-")
    into.mkdir(parents=True, exist_ok=True)
    over_time, over_samples, gantt, estimates = (
        into / f"{name}{suffix}"
        for name in (f"{stem}-over-time", f"{stem}-over-samples", "first-seconds", "dbw-estimates")
    )
    by_time: dict[str, list[Curve]] = {
        name: [[(point.seconds, point.accuracy) for point in run.curve] for run in found]
        for name, found in runs.items()
    }
    by_samples: dict[str, list[Curve]] = {
        name: [[(point.samples, point.accuracy) for point in run.curve] for run in found]
        for name, found in runs.items()
    }
    title = f"{figure} over virtual time"
    draw(by_time, over_time, title=title, across="seconds", up=figure, target=target)
    title = f"{figure} over samples"
    draw(by_samples, over_samples, title=title, across="samples", up=figure, target=target)
    strips = {name: found[0].spans for name, found in runs.items() if found and found[0].spans}
    drawn = [over_time, over_samples]
    if strips:
        draw_gantt(strips, gantt, title="the first seconds, first seed", across="seconds")
        drawn.append(gantt)
    choices = {name: found[0].choices for name, found in runs.items() if found and found[0].choices}
    if choices:
        draw_estimates(choices, estimates)
        drawn.append(estimates)
    return drawn


def draw_estimates(choices: dict[str, list[ChosenK]], path: Path) -> None:
    """Everything that DBW chose by, update by update."""
    panels: dict[str, dict[str, list[Curve]]] = {}
    for name, value_of in ESTIMATES.items():
        found = {
            policy: [(choice.seconds, value) for choice in made if (value := value_of(choice)) is not None]
            for policy, made in choices.items()
        }
        if any(found.values()):
            panels[name] = {policy: [curve] for policy, curve in found.items()}
    draw_panels(panels, path, title="what the next k was chosen by, first seed", across="seconds")


def runs_of(row: Row, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes behind a row, in the order of their seeds."""
    found = [
        outcome for outcome in outcomes if (outcome.trial.policy, outcome.trial.factor) == (row.policy, row.factor)
    ]
    return sorted(found, key=lambda outcome: outcome.trial.seed)
