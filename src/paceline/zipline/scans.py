"""The journal paper's ZipLine and its two faster forms, in plain Python, one readable function each.

All scan the points in the order (time, worker, index) and keep Z, the newest point of each worker, in that order.
Whenever the leftmost of Z was replaced, Z is the closest set that ends with the point that just came, and is scored. A
set is kept only if it is strictly better, so the earliest wins a tie; an incomplete Z is never scored.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

import numpy as np

from paceline.zipline.barrier import Barrier, barrier_at
from paceline.zipline.operations import Operations
from paceline.zipline.rows import Rows

Point: TypeAlias = tuple[float, int, int]  # time, worker, 1-based index


def in_order(rows: Rows) -> list[Point]:
    points = ((time, worker, index) for worker, row in enumerate(rows.lists()) for index, time in enumerate(row, 1))
    return sorted(points)


def _barrier(rows: Rows, chosen: list[Point]) -> Barrier:
    return barrier_at(rows, np.array([index for _, _, index in sorted(chosen, key=lambda point: point[1])]))


def zipline(rows: Rows, operations: Operations | None = None) -> Barrier:
    """ZipLine: look for the worker's old point in all of Z; when Z is complete, score it and drop its minimum."""
    operations = operations or Operations()
    workers = len(rows.starts)
    z: list[Point] = []
    owners: list[int] = []  # of the points in Z
    best, chosen = float("inf"), z
    for point in in_order(rows):
        worker = point[1]
        operations.count += len(z)
        if worker in owners:
            old = owners.index(worker)
            del z[old], owners[old]
        z.append(point)
        owners.append(worker)
        if len(z) == workers:
            spread = point[0] - z[0][0]
            if spread < best:
                best, chosen = spread, z.copy()
            del z[0], owners[0]
    return _barrier(rows, chosen)


def zipline_opt(rows: Rows, operations: Operations | None = None) -> Barrier:
    """ZipLineOpt: the old point is often the leftmost of Z; look there first, and only otherwise search on."""
    operations = operations or Operations()
    workers = len(rows.starts)
    z: list[Point] = []
    owners: list[int] = []
    best, chosen = float("inf"), z
    for point in in_order(rows):
        worker, index = point[1], point[2]
        was_leftmost = len(z) == workers and owners[0] == worker
        if index > 1:
            old = 0 if owners[0] == worker else owners.index(worker, 1)
            operations.count += old + 1
            del z[old], owners[old]
        else:
            was_leftmost = len(z) == workers - 1  # Z becomes complete
        z.append(point)
        owners.append(worker)
        if was_leftmost:
            spread = point[0] - z[0][0]
            if spread < best:
                best, chosen = spread, z.copy()
    return _barrier(rows, chosen)


def zipline_opt_bs(rows: Rows, operations: Operations | None = None) -> Barrier:
    """ZipLineOptBS: as ZipLineOpt, but the old point's key is known from the rows, so a binary search finds it."""
    operations = operations or Operations()
    workers = len(rows.starts)
    points = rows.lists()
    z: list[Point] = []
    best, chosen = float("inf"), z
    for point in in_order(rows):
        _, worker, index = point
        if index > 1:
            was_leftmost = z[0][1] == worker
            old = 0 if was_leftmost else bisect_left(z, (points[worker][index - 2], worker, index - 1), 1)
            operations.count += 1 if was_leftmost else 1 + len(z).bit_length()
            was_leftmost = was_leftmost and len(z) == workers
            del z[old]
        else:
            was_leftmost = len(z) == workers - 1
        z.append(point)
        if was_leftmost:
            spread = point[0] - z[0][0]
            if spread < best:
                best, chosen = spread, z.copy()
    return _barrier(rows, chosen)
