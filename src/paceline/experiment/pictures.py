"""The pictures of a comparison: accuracy over time and over samples, the first seconds, and DBW's estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.experiment.comparison import ChosenK, Comparison, Outcome
from paceline.experiment.rows import Row
from paceline.experiment.simulation import worker_speeds
from paceline.report.plots import Curve, Marks, draw, draw_gantt, draw_panels

ESTIMATES: dict[str, Callable[[ChosenK], float | None]] = {
    "k": lambda choice: choice.k,
    "gain": lambda choice: choice.gain,
    "time T(k)": lambda choice: choice.time,
    "variance V": lambda choice: choice.variance,
    "squared norm N": lambda choice: choice.squared_norm,
    "smoothness L": lambda choice: choice.smoothness,
    "slope S": lambda choice: choice.slope,
}


def draw_comparison(
    outcomes: Sequence[Outcome],
    rows: Sequence[Row],
    into: Path,
    *,
    target: float | None,
    suffix: str = ".svg",
    caption: str = "",
    marks: Marks = (),
) -> list[Path]:
    """Draw the runs behind the rows; returns the pictures, the most telling first. `caption`: what they are of;
    `marks`: what happened on the way, and when."""
    runs = {_name_of(row): runs_of(row, outcomes) for row in rows}
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
    written = caption if target is None else ", ".join(filter(None, [caption, f"target {target:g}"]))
    for curves, path, across, title, marked in (
        (by_time, over_time, "seconds", f"{figure} over virtual time", marks),
        (by_samples, over_samples, "samples", f"{figure} over samples", ()),
    ):
        options: dict[str, Any] = {"target": target, "caption": written, "marks": marked}
        draw(curves, path, title=title, across=across, up=figure, focused=True, **options)
    strips = {name: found[0].spans for name, found in runs.items() if found and found[0].spans}
    drawn = [over_time, over_samples]
    if strips:
        draw_gantt(strips, gantt, title="the first seconds, first seed", across="seconds", caption=caption, marks=marks)
        drawn.append(gantt)
    choices = {name: found[0].choices for name, found in runs.items() if found and found[0].choices}
    if choices:
        draw_estimates(choices, estimates, caption)
        drawn.append(estimates)
    return drawn


def caption_of(comparison: Comparison) -> str:
    """The task, the group, the optimizer and its rate, in one line."""
    from paceline.experiment.tasks import settings_of  # torch takes a second to import

    workers = f"{len(worker_speeds(comparison.simulation))} workers"
    if comparison.own is not None:
        return f"{comparison.task}, {workers}"
    options, settings = comparison.task_options(), settings_of(comparison.task)
    momentum = settings.momentum if options.momentum is None else options.momentum
    parts = [
        f"{comparison.task} ({comparison.model or settings.model})",
        workers,
        comparison.optimizer,
        f"rate {options.rate:g}",
        f"momentum {momentum:g}" if comparison.optimizer == "sgd" and momentum else "",
        f"batches of {comparison.batch_size or settings.batch_size}",
    ]
    return ", ".join(part for part in parts if part)


def _name_of(row: Row) -> str:
    """The policy; with its rate where that is not the common one."""
    return row.policy if row.factor == 1 else f"{row.policy}, rate x {row.factor:g}"


def draw_estimates(choices: dict[str, list[ChosenK]], path: Path, caption: str = "") -> None:
    """Everything that DBW chose by, update by update."""
    panels: dict[str, dict[str, list[Curve]]] = {}
    for name, value_of in ESTIMATES.items():
        found = {
            policy: [(choice.seconds, value) for choice in made if (value := value_of(choice)) is not None]
            for policy, made in choices.items()
        }
        if any(found.values()):
            panels[name] = {policy: [curve] for policy, curve in found.items()}
    title = "what the next k was chosen by, first seed"
    draw_panels(panels, path, title=title, across="seconds", caption=caption)


def runs_of(row: Row, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes behind a row, in the order of their seeds."""
    found = [
        outcome for outcome in outcomes if (outcome.trial.policy, outcome.trial.factor) == (row.policy, row.factor)
    ]
    return sorted(found, key=lambda outcome: outcome.trial.seed)
