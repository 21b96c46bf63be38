"""DBW's model of time: T(h, k), the expected time to the k-th gradient when the update before took h of them.

Waiting for more takes longer, and having waited for more leaves fewer stragglers behind, so T rises with k and falls
with h. The model keeps a forgetting mean per cell and fits the nearest table with that shape: weighted least squares
under two orders, by alternating one-dimensional isotonic regressions with Dykstra's corrections.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]

ROWS = 64  # different h remembered; the least recently used goes first
PRIOR = 1e-3  # weight of a cell that nobody observed, against one observation
SWEEPS = 500
EXACT, CLOSE_ENOUGH = 1e-9, 1e-4  # of the largest entry


class TimeModel:
    def __init__(self, memory: int) -> None:
        self._forget = 1.0 - 1.0 / memory
        self._rows: OrderedDict[int, tuple[Table, Table]] = OrderedDict()  # h -> weight and mean, by k - 1

    def observe(self, h: int, k: int, seconds: float) -> None:
        """The k-th gradient of an iteration came so long after its beginning."""
        weight, mean = self._row(h, k)
        weight[k - 1] = weight[k - 1] * self._forget + 1.0
        mean[k - 1] += (seconds - mean[k - 1]) / weight[k - 1]

    def expected(self, h: int, workers: int) -> Table | None:
        """T(h, 1), ..., T(h, workers); None as long as nothing was observed."""
        if not self._rows:
            return None
        self._row(h, workers)
        order = sorted(self._rows)
        weight = np.stack([_padded(self._rows[each][0], workers) for each in order])
        mean = np.stack([_padded(self._rows[each][1], workers) for each in order])
        fitted: Table = isotonic_table(_filled(mean, weight, order), np.maximum(weight, PRIOR), CLOSE_ENOUGH)
        row: Table = fitted[order.index(h)]
        return row

    def _row(self, h: int, columns: int) -> tuple[Table, Table]:
        row = self._rows.get(h)
        if row is None or len(row[0]) < columns:
            old = (np.zeros(0), np.zeros(0)) if row is None else row
            row = (_padded(old[0], columns), _padded(old[1], columns))
        self._rows[h] = row
        self._rows.move_to_end(h)
        if len(self._rows) > ROWS:
            self._rows.popitem(last=False)
        return row


def isotonic_table(target: Table, weight: Table, tolerance: float = EXACT) -> Table:
    """The table nearest to `target` (weighted least squares) that rises along each row and falls down each column."""
    fitted = target
    row_correction = np.zeros_like(target)
    column_correction = np.zeros_like(target)
    tolerance *= float(np.abs(target).max())
    for _ in range(SWEEPS):
        before = fitted
        by_row = _each_line(fitted + row_correction, weight, increasing=True)
        row_correction = fitted + row_correction - by_row
        if len(target) == 1:
            return by_row
        fitted = _each_line((by_row + column_correction).T, weight.T, increasing=False).T
        column_correction = by_row + column_correction - fitted
        if np.abs(fitted - by_row).max() <= tolerance and np.abs(fitted - before).max() <= tolerance:
            break
    return fitted


def _each_line(target: Table, weight: Table, *, increasing: bool) -> Table:
    from scipy.optimize import isotonic_regression  # late: it takes a third of a second to import

    lines = [
        isotonic_regression(line, weights=line_weight, increasing=increasing).x
        for line, line_weight in zip(target, weight, strict=True)
    ]
    return np.stack(lines)


def _padded(row: Table, columns: int) -> Table:
    """The row cut or filled up with zeros to this many columns."""
    return np.concatenate([row[:columns], np.zeros(max(0, columns - len(row)))])


def _filled(mean: Table, weight: Table, order: list[int]) -> Table:
    """What to expect of a cell that nobody observed: between its neighbours in h, else its neighbours in k."""
    filled = mean.copy()
    seen_columns = np.flatnonzero(weight.any(axis=0))
    heights = np.array(order, dtype=float)
    for column in seen_columns:
        seen = weight[:, column] > 0
        filled[:, column] = np.interp(heights, heights[seen], mean[seen, column])
    everywhere = np.arange(mean.shape[1])
    return np.stack([np.interp(everywhere, seen_columns, line[seen_columns]) for line in filled])
