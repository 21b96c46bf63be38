"""What makes a barrier good. For a fixed latest point all three want the latest point of each worker not after it.

- `spread`, the paper's: latest minus earliest end, the longest anybody waits.
- `total`: the sum of all waits.
- `share`: the sum of all waits per second of the superstep. A superstep twice as long may cost twice as much waiting;
  this is what throughput pays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.zipline.barrier import Barrier, barrier_at
from paceline.zipline.rows import Rows
from paceline.zipline.sweeping import Ordered

OBJECTIVES = ("spread", "total", "share")
ROUNDING = 1e-13  # of the largest sum: what running sums may be wrong by


def score(chosen: Sequence[float], objective: str, start: float) -> float:
    """How bad this set of points is, for a superstep that begins at `start`."""
    latest = max(chosen)
    if objective == "spread":
        return latest - min(chosen)
    total = math.fsum(latest - end for end in chosen)  # does not depend on the order
    if objective == "total":
        return total
    if latest > start:
        return total / (latest - start)
    return float("inf") if total > 0 else 0.0


def beginning(rows: Rows) -> float:
    """When the superstep began, read off the points: the latest of the workers' last pushes.

    A row of predictions begins one interval after its worker's last push. A worker with one point says nothing.
    """
    several = rows.starts[rows.lengths > 1]
    if len(several) == 0:
        return rows.times[rows.starts].min().item()  # type: ignore[no-any-return]
    begins = rows.times[several] - (rows.times[several + 1] - rows.times[several])
    return begins.max().item()  # type: ignore[no-any-return]


def sweep_waits(rows: Rows, objective: str, start: float) -> Barrier:
    """The sweep for `total` and `share`: any point may be the latest, and waits are sums that change point by point.

    Running sums round. So they only find the few sets that can be the best; `score` decides between those.
    """
    ordered = Ordered(rows)
    first = ordered.times[0].item()
    relative = (rows.times - ordered.times[0]).astype(float)
    steps = np.diff(relative, prepend=0.0)  # by how much a worker's newest point moves
    steps[rows.starts] = relative[rows.starts]
    times = relative[ordered.order]
    total = len(rows.starts) * times - np.cumsum(steps[ordered.order])
    complete = ordered.complete()
    values = total[complete:]
    rounding = ROUNDING * len(rows.starts) * times[-1]
    if objective == "share":
        elapsed = times[complete:] + float(first - start)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(elapsed > 0, values / elapsed, np.where(values > rounding, np.inf, 0.0))
            rounding = rounding / np.where(elapsed > 0, elapsed, 1.0)
    candidates = complete + np.flatnonzero(values - rounding <= (values + rounding).min())
    best, chosen = float("inf"), ordered.choices_at(complete)
    for position in candidates:
        choices = ordered.choices_at(position)
        value = score(rows.times[rows.starts + choices - 1].tolist(), objective, start)
        if value < best:
            best, chosen = value, choices
        if best == 0:
            break
    return barrier_at(rows, chosen)
