"""The vectorised search: sort, next occurrence of the same worker, running maximum, argmin.

For a fixed latest point the best set holds the latest point of each worker not after it. So it is enough to look at
windows of the sorted points that hold every worker: one that begins at position i must reach to the next occurrence
of every worker that was passed, which is a running maximum.
"""

from __future__ import annotations

import numpy as np

from paceline.zipline.barrier import Barrier, Points


def sweep(points: Points) -> Barrier:
    workers, lookahead = points.shape
    times = points.ravel()
    order = np.argsort(times, kind="stable")  # rows are in order, so ties stand by (time, worker, index)
    ordered = times[order]
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    position = position.reshape(workers, lookahead)

    following = np.empty_like(order)  # position of the same worker's next point; past the end: none
    following[position[:, :-1]] = position[:, 1:]
    following[position[:, -1]] = len(order)
    complete = position[:, 0].max()  # the first position at which every worker has been seen
    ends = np.maximum.accumulate(np.concatenate(([complete], following[:-1])))
    ends = ends[: np.searchsorted(ends, len(order))]  # beyond, some worker has no point left

    end = ends[np.argmin(ordered[ends] - ordered[: len(ends)])]
    iterations = (position <= end).sum(axis=1)
    chosen = points[np.arange(workers), iterations - 1]
    time = ordered[end]
    waits = time - chosen
    return Barrier(float(time), float(waits.max()), tuple(iterations.tolist()), tuple(waits.tolist()))
