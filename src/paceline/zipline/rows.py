"""The points of a search: a row of predicted ends per worker, checked, and laid end to end in one array.

Rows may have different lengths. Whole numbers are kept as 64-bit integers, so that timestamps beyond 2**53 lose
nothing; everything else becomes 64-bit floats. What cannot be searched is refused with the row that is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Points: TypeAlias = Array | Sequence[Sequence[float]] | Sequence[Array]
WIDEST = {"i": 2**62, "f": float("inf")}
LARGEST_EXACT = 2**53  # whole numbers beyond it may not be floats
BLOCK = 1 << 15  # points handled at once by passes over all of them: small enough for a processor's cache


class Rows(NamedTuple):
    times: Array  # all points, row after row, each row in order
    starts: Array  # where each row begins
    lengths: Array

    def lists(self) -> list[list[float]]:
        """Plain lists, for searches in plain Python."""
        times = self.times.tolist()
        return [times[start : start + length] for start, length in zip(self.starts, self.lengths, strict=True)]


def as_rows(points: Points) -> Rows:
    """Check the points and lay them end to end; ValueError names the row that cannot be searched."""
    if isinstance(points, np.ndarray) and points.ndim == 2 and points.dtype.kind in "iuf":
        rows = _from_matrix(points)
    else:
        rows = _from_sequences(points)
    _check_order(rows)
    return rows


def _from_matrix(points: Array) -> Rows:
    workers, lookahead = points.shape
    if workers == 0:
        raise ValueError("there are no workers: at least one row of points is needed")
    if lookahead == 0:
        raise ValueError("row 0 has no points")
    times = _as_64_bits(points.ravel(), 0)
    return Rows(times, np.arange(workers) * lookahead, np.full(workers, lookahead))


def _from_sequences(points: Points) -> Rows:
    if not hasattr(points, "__len__") or getattr(points, "ndim", 1) == 0:
        raise ValueError(f"points must be a matrix or a list of rows, not {type(points).__name__}")
    if len(points) == 0:
        raise ValueError("there are no workers: at least one row of points is needed")
    arrays = [_one_row(row, number) for number, row in enumerate(points)]
    if any(array.dtype.kind == "f" for array in arrays):
        for number, array in enumerate(arrays):
            if array.dtype.kind == "i" and max(abs(array[0].item()), abs(array[-1].item())) > LARGEST_EXACT:
                raise ValueError(f"row {number}: whole numbers beyond 2**53 cannot be mixed with fractions")
        arrays = [array.astype(np.float64) for array in arrays]
    lengths = np.array([len(array) for array in arrays])
    return Rows(np.concatenate(arrays), np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)


def _one_row(row: object, number: int) -> Array:
    try:
        array = np.asarray(row)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise ValueError(f"row {number} is not a list of numbers")
    if len(array) == 0:
        raise ValueError(f"row {number} has no points")
    return _as_64_bits(array, number)


def _as_64_bits(array: Array, number: int) -> Array:
    """Signed 64-bit integers or floats; a matrix is one array, so its number stands for all rows."""
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and array.max() <= np.iinfo(np.int64).max):
        return array.astype(np.int64, copy=False)
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    if array.dtype.kind == "O" and all(type(point) is int and abs(point) < 2**63 for point in array.tolist()):
        return array.astype(np.int64)
    if array.dtype.kind in "uO" and all(isinstance(point, (int, np.integer)) for point in array.tolist()):
        raise ValueError(f"row {number}: whole numbers must fit into 64 bits")
    raise ValueError(f"row {number} is not a list of numbers")


def _check_order(rows: Rows) -> None:
    """Every row must rise. Comparisons with nan fail too, so that only the ends of rows can hide an infinity."""
    times, starts = rows.times, rows.starts
    lasts = starts + rows.lengths - 1
    good = -np.inf < times[starts].min() and times[lasts].max() < np.inf
    for begin in range(0, len(times) - 1, BLOCK):
        end = min(begin + BLOCK, len(times) - 1)
        rises = times[begin + 1 : end + 1] >= times[begin:end]
        borders = lasts[lasts.searchsorted(begin) : lasts.searchsorted(end)]  # between rows nothing needs to rise
        rises[borders - begin] = True
        good = good and rises.all()
    if not good:
        _blame(rows)
    if times[lasts].max().item() - times[starts].min().item() >= WIDEST[times.dtype.kind]:
        far = int(np.abs(times[lasts].astype(float)).argmax())
        raise ValueError(f"row {far}: the points lie too far apart to be subtracted from each other")


def _blame(rows: Rows) -> None:
    for number, row in enumerate(rows.lists()):
        for index, (before, point) in enumerate(zip([row[0], *row], row, strict=False), start=1):
            if not float("-inf") < point < float("inf"):
                raise ValueError(f"row {number}: point {index} is {point}; points must be finite")
            if point < before:
                raise ValueError(f"row {number}: point {index} ({point}) is earlier than the one before ({before})")
