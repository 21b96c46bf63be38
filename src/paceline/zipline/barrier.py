"""What a barrier search returns, and the prediction that it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.zipline.rows import Array, Rows


class Barrier(NamedTuple):
    """One predicted iteration end per worker, chosen so that they lie close together."""

    time: float  # of the latest chosen end: the barrier. An int where the points are ints
    spread: float  # latest minus earliest chosen end
    iterations: tuple[int, ...]  # per worker, the 1-based index of its chosen end
    waits: tuple[float, ...]  # per worker, from its chosen end to the barrier


def barrier_at(rows: Rows, iterations: Array) -> Barrier:
    """The barrier that these choices make."""
    chosen = rows.times[rows.starts + iterations - 1]
    time = chosen.max()
    waits = time - chosen
    return Barrier(time.item(), waits.max().item(), tuple(iterations.tolist()), tuple(waits.tolist()))


def predict(
    last_push: Sequence[float] | Array,
    interval: Sequence[float] | Array,
    lookahead: int | Sequence[int],
    first: int = 1,
) -> Any:
    """The ends of each worker's next iterations, last_push + i * interval: a row of `lookahead` points per worker.

    i begins at `first`: with 1 at the next iteration's end, with 0 at the last push itself. Whole numbers stay whole.
    With one lookahead for all the result is a matrix; with a lookahead per worker it is a list of rows.
    """
    pushes, intervals = np.asarray(last_push), np.asarray(interval)
    if pushes.ndim != 1 or pushes.shape != intervals.shape:
        raise ValueError(f"last_push and interval must be equally long lists, not {pushes.shape}, {intervals.shape}")
    if pushes.dtype.kind not in "iuf" or intervals.dtype.kind not in "iuf":
        raise ValueError("last_push and interval must be numbers")
    if pushes.dtype.kind in "iu" and intervals.dtype.kind in "iu":
        steps = first + int(np.max(lookahead))
        for row, (push, length) in enumerate(zip(pushes.tolist(), intervals.tolist(), strict=True)):
            if not -(2**63) <= push + steps * length < 2**63:
                raise ValueError(f"row {row}: its predictions do not fit into 64 bits")
        pushes, intervals = pushes.astype(np.int64), intervals.astype(np.int64)
    for row, length in enumerate(intervals.tolist()):
        if not 0 <= length < float("inf"):
            raise ValueError(f"row {row}: interval is {length}; it must be a number from 0")
    if isinstance(lookahead, (int, np.integer)):
        return _predict(pushes[:, None], intervals[:, None], int(lookahead), first)
    if len(lookahead) != len(pushes):
        raise ValueError(f"there are {len(pushes)} workers, but {len(lookahead)} lookaheads")
    return [_predict(*worker, first) for worker in zip(pushes, intervals, lookahead, strict=True)]


def _predict(last_push: Any, interval: Any, lookahead: int, first: int) -> Any:
    if lookahead < 1:
        raise ValueError(f"lookahead is {lookahead}; at least 1 point per worker is needed")
    return last_push + interval * np.arange(first, first + lookahead)
