"""DBW's model of time: T(h, k), the expected time to the k-th gradient when the update before took h of them.

Waiting for more takes longer, and having waited for more leaves fewer stragglers behind, so T rises with k and falls
with h. The model keeps a forgetting mean per cell and fits the nearest table with that shape: weighted least squares
under two orders. That is done exactly, by splitting (Spouge, Wan, Wilbur, Least squares isotonic regression in two
dimensions, 2003). Alternating one-dimensional regressions, as in the paper, come to the same table, but need tens of
thousands of sweeps where two cells contradict each other across cells that nobody observed.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]

ROWS = 64  # different h remembered; the least recently used goes first
PRIOR = 1e-3  # weight of a cell that nobody observed, against one observation
ROUNDING = 1e-12  # a surplus below this share of all is none


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
        weight = np.stack([_padded(self._rows[row][0], workers) for row in order])
        mean = np.stack([_padded(self._rows[row][1], workers) for row in order])
        return isotonic_row(_filled(mean, weight, order), np.maximum(weight, PRIOR), order.index(h))

    def state(self) -> list[tuple[int, list[float], list[float]]]:
        return [(h, weight.tolist(), mean.tolist()) for h, (weight, mean) in self._rows.items()]

    def resume(self, state: list[tuple[int, list[float], list[float]]]) -> None:
        self._rows = OrderedDict((h, (np.array(weight), np.array(mean))) for h, weight, mean in state)

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


def isotonic_row(target: Table, weight: Table, row: int) -> Table:
    """One row of the table nearest to `target` (weighted least squares) that rises along rows and falls down columns.

    Of any block of cells, those of the greatest surplus over its mean that are closed towards later columns and earlier
    rows belong above the mean, and the others below. So it is split until no part has a surplus; blocks without a cell
    of the row are left alone.
    """
    fitted = np.empty(target.shape[1])
    blocks = [np.ones(target.shape, dtype=bool)]
    while blocks:
        block = blocks.pop()
        here = block[row]
        if not here.any():
            continue
        rows, columns = np.flatnonzero(block.any(axis=1)), np.flatnonzero(block.any(axis=0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        inside, values = block[box], target[box]
        if _has_shape(values, inside):
            fitted[here] = target[row, here]
            continue
        mass = weight[box] * inside
        mean = float((mass * values).sum() / mass.sum())
        surplus = mass * (values - mean)
        above = _greatest_surplus(surplus) & inside
        if surplus[above].sum() <= ROUNDING * np.abs(surplus).sum() or (above == inside).all():
            fitted[here] = mean
            continue
        for part in (above, inside & ~above):
            blocks.append(np.zeros_like(block))
            blocks[-1][box] = part
    return fitted


def _has_shape(values: Table, inside: npt.NDArray[np.bool_]) -> bool:
    """A block has no gaps, so that it is enough to compare neighbours."""
    along = (values[:, 1:] < values[:, :-1]) & inside[:, 1:] & inside[:, :-1]
    down = (values[1:] > values[:-1]) & inside[1:] & inside[:-1]
    return not (along.any() or down.any())


def _greatest_surplus(surplus: Table) -> npt.NDArray[np.bool_]:
    """Of all sets that are closed towards later columns and earlier rows, one with the greatest sum.

    Such a set begins in each row no earlier than in the row before, so it is found row by row, from the last one up.
    """
    rows, columns = surplus.shape
    best = np.zeros((rows, columns + 1))  # of this row and those below it, where this one begins at a column
    best[:, :columns] = np.cumsum(surplus[:, ::-1], axis=1)[:, ::-1]
    for row in range(rows - 2, -1, -1):
        best[row] += np.maximum.accumulate(best[row + 1, ::-1])[::-1]
    begins = np.zeros(rows, dtype=int)
    begin = 0
    for row in range(rows):
        begin += int(best[row, begin:].argmax())
        begins[row] = begin
    return np.arange(columns) >= begins[:, None]


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
