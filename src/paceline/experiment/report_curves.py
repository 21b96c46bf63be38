"""What was measured during a run, as curves over seconds, samples and updates. Long ones are thinned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.messages import Estimates
from paceline.recording.progress_log import Evaluation, Line, Logged, Measurement, less_is_better

MOST_POINTS = 1_500  # of a curve
MOST_LOGGED = 24  # names of figures of a loop's own
POINTS_LOGGED = 12_000  # of all of those together, so that a page stays small
LEAST_POINTS = 60


def curves_of(lines: Sequence[Line]) -> dict[str, Any]:
    measured = [line for line in lines if isinstance(line, Measurement)]
    evaluated = [line for line in lines if isinstance(line, Evaluation)]
    logged = [line for line in lines if isinstance(line, Logged)]
    found: dict[str, Any] = {"measured": _thinned(_measured(measured)), "figures": {}, "logged": {}}
    for name in dict.fromkeys(name for evaluation in evaluated for name in evaluation.figures):
        having = [evaluation for evaluation in evaluated if name in evaluation.figures]
        found["figures"][name] = _thinned(
            {
                "seconds": [evaluation.seconds for evaluation in having],
                "samples": [evaluation.samples for evaluation in having],
                "updates": [evaluation.version for evaluation in having],
                "values": [evaluation.figures[name] for evaluation in having],
            }
        )
    found["logged"] = _logged(logged, measured)
    return found


def _measured(lines: Sequence[Measurement]) -> dict[str, list[Any]]:
    return {
        "seconds": [line.seconds for line in lines],
        "samples": [line.samples for line in lines],
        "updates": [line.updates for line in lines],
        "values": [line.loss for line in lines],
        "learning_rate": [line.learning_rate for line in lines],
    }


def _logged(lines: Sequence[Logged], measured: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Of each figure, by worker. How far the run was at that time is between two measurements."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for line in lines:
        for name, value in line.figures.items():
            if name in found or len(found) < MOST_LOGGED:
                found.setdefault(name, {}).setdefault(line.worker, []).append((line.seconds, value))
    most = max(LEAST_POINTS, POINTS_LOGGED // max(1, sum(map(len, found.values()))))
    times = [line.seconds for line in measured] or [0.0]
    samples, updates = [line.samples for line in measured] or [0], [line.updates for line in measured] or [0]

    def curve(points: Sequence[tuple[float, float]]) -> dict[str, list[Any]]:
        kept = [points[number] for number in _spread(len(points), most)]
        seconds = [at for at, _ in kept]
        return {
            "seconds": seconds,
            "samples": np.interp(seconds, times, samples).round().tolist(),
            "updates": np.interp(seconds, times, updates).round().tolist(),
            "values": _short([value for _, value in kept], 5),
        }

    return {
        name: {str(worker): curve(points) for worker, points in by_worker.items()} for name, by_worker in found.items()
    }


def choice_curves(choices: Sequence[tuple[float, Estimates]]) -> dict[str, list[Any]]:
    kept = [choices[number] for number in _spread(len(choices), MOST_POINTS)]
    return {
        "seconds": [seconds for seconds, _ in kept],
        "k": [estimates.k for _, estimates in kept],
        "gain": [_short(estimates.gain) for _, estimates in kept],
        "time": [_short(estimates.time) for _, estimates in kept],
        "variance": [estimates.variance for _, estimates in kept],
        "squared_norm": [estimates.squared_norm for _, estimates in kept],
        "smoothness": [estimates.smoothness for _, estimates in kept],
        "slope": [estimates.slope for _, estimates in kept],
    }


def best_figures(lines: Sequence[Line]) -> dict[str, tuple[float, float]]:
    """Of each figure of the evaluation, accuracy first: the last value and the best one."""
    evaluated = [line for line in lines if isinstance(line, Evaluation)]
    names = sorted(evaluated[-1].figures, key=lambda name: name != "accuracy") if evaluated else []
    found = {}
    for name in names:
        values = [evaluation.figures.get(name, math.nan) for evaluation in evaluated]
        known = [value for value in values if not math.isnan(value)]
        if known:
            found[name] = (values[-1], min(known) if less_is_better(name) else max(known))
    return found


def _thinned(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """As many points as can be told apart."""
    kept = _spread(len(columns["seconds"]), MOST_POINTS)
    return {name: [values[number] for number in kept] for name, values in columns.items()}


def _spread(length: int, most: int) -> Sequence[int]:
    """So many of these numbers at most, evenly, the last one among them."""
    return range(length) if length <= most else np.linspace(0, length - 1, most).round().astype(int).tolist()


def _short(values: Sequence[float], digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]
