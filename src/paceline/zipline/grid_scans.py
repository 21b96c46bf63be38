"""The ICDM paper's heuristics. Neither is exact: the nearest point of each row need not make the closest set.

GridScan designates the row with the earliest first point; for each of its points it takes the nearest point of every
other row, and keeps the set with the smallest spread. FullGridScan designates every row in turn. The nearest point is
found by binary search; the papers' R^2 n and R^2 n^2 look at every point of every other row.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from paceline.zipline.barrier import Barrier, barrier_at
from paceline.zipline.operations import Operations
from paceline.zipline.rows import Rows


def grid_scan(rows: Rows, operations: Operations | None = None) -> Barrier:
    points = rows.lists()
    earliest = min(range(len(points)), key=lambda worker: points[worker][0])
    return _scan(rows, points, [earliest], operations or Operations())


def full_grid_scan(rows: Rows, operations: Operations | None = None) -> Barrier:
    points = rows.lists()
    return _scan(rows, points, list(range(len(points))), operations or Operations())


def _scan(rows: Rows, points: list[list[float]], designated: list[int], operations: Operations) -> Barrier:
    best, choice = float("inf"), [1] * len(points)
    for worker in designated:
        for index, time in enumerate(points[worker], start=1):
            nearest = [_nearest(row, time) for row in points]
            nearest[worker] = index
            chosen = [row[place - 1] for row, place in zip(points, nearest, strict=True)]
            operations.count += sum(len(row).bit_length() for row in points)
            spread = max(chosen) - min(chosen)
            if spread < best:
                best, choice = spread, nearest
    return barrier_at(rows, np.array(choice))


def _nearest(row: list[float], time: float) -> int:
    """The 1-based index of the row's point nearest to this time; the earlier of two."""
    after = bisect_left(row, time)
    if after == 0:
        return 1
    if after == len(row) or time - row[after - 1] <= row[after] - time:
        return bisect_left(row, row[after - 1]) + 1
    return after + 1
