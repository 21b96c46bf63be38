"""What was measured during a run, as curves over seconds, samples and updates. Long ones are thinned out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.messages import Estimates
from paceline.recording.progress_log import Evaluation, Line, Logged, Measurement, less_is_better

MOST_POINTS = 1_500
MOST_LOGGED = 24  # names of figures of a loop's own


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
    names = list(dict.fromkeys(name for line in logged for name in line.figures))
    for name in names[:MOST_LOGGED]:
        found["logged"][name] = _logged(name, logged, measured)
    return found


def _measured(lines: Sequence[Measurement]) -> dict[str, list[Any]]:
    return {
        "seconds": [line.seconds for line in lines],
        "samples": [line.samples for line in lines],
        "updates": [line.updates for line in lines],
        "values": [line.loss for line in lines],
        "learning_rate": [line.learning_rate for line in lines],
    }


def _logged(name: str, lines: Sequence[Logged], measured: Sequence[Measurement]) -> dict[str, Any]:
    """By worker. How far the run was at that time is between two measurements."""
    by_worker: dict[str, Any] = {}
    times = [line.seconds for line in measured] or [0.0]
    samples, updates = [line.samples for line in measured] or [0], [line.updates for line in measured] or [0]
    for worker in dict.fromkeys(line.worker for line in lines if name in line.figures):
        own = [line for line in lines if line.worker == worker and name in line.figures]
        seconds = [line.seconds for line in own]
        by_worker[str(worker)] = _thinned(
            {
                "seconds": seconds,
                "samples": np.interp(seconds, times, samples).round().tolist(),
                "updates": np.interp(seconds, times, updates).round().tolist(),
                "values": [line.figures[name] for line in own],
            }
        )
    return by_worker


def choice_curves(choices: Sequence[tuple[float, Estimates]]) -> dict[str, list[Any]]:
    return _thinned(
        {
            "seconds": [seconds for seconds, _ in choices],
            "k": [estimates.k for _, estimates in choices],
            "gain": [_short(estimates.gain) for _, estimates in choices],
            "time": [_short(estimates.time) for _, estimates in choices],
            "variance": [estimates.variance for _, estimates in choices],
            "squared_norm": [estimates.squared_norm for _, estimates in choices],
            "smoothness": [estimates.smoothness for _, estimates in choices],
        }
    )


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
    """As many points as can be told apart, the last one among them."""
    length = len(columns["seconds"])
    if length <= MOST_POINTS:
        return columns
    kept = np.linspace(0, length - 1, MOST_POINTS).round().astype(int)
    return {name: [values[number] for number in kept] for name, values in columns.items()}


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
