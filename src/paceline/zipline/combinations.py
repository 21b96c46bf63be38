"""Every combination: the definition of the answer, and nothing that one would run on more than a handful of points."""

from __future__ import annotations

import itertools

import numpy as np

from paceline.zipline.barrier import Barrier, barrier_at
from paceline.zipline.objectives import score
from paceline.zipline.rows import Rows

MOST_SETS = 5_000_000


def naive(rows: Rows, objective: str = "spread", start: float = 0.0) -> Barrier:
    """The smallest score; on a tie the earliest latest point (time, worker, index), then the newest of each worker."""
    if np.prod(rows.lengths.astype(float)) > MOST_SETS:
        raise ValueError(f"naive looks at every combination, and there are more than {MOST_SETS:,}; take sweep")
    points = rows.lists()
    best = None
    for choice in itertools.product(*(range(1, len(row) + 1) for row in points)):
        chosen = [(points[worker][index - 1], worker, index) for worker, index in enumerate(choice)]
        value = score([time for time, _, _ in chosen], objective, start)
        key = (value, max(chosen), tuple(-index for index in choice))
        if best is None or key < best[0]:
            best = (key, choice)
    assert best is not None
    return barrier_at(rows, np.array(best[1]))
