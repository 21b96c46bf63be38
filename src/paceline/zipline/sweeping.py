"""Our own search: exact, vectorised, and for large inputs linear in the number of points.

For a fixed latest point the best set holds the latest point of each worker not after it. So it is enough to look at
windows of the sorted points that hold every worker. One that begins at some point must reach to the next point of every
worker that was passed before it, a running maximum; the window with the smallest spread is an argmin.

Sorting is what costs. So with many points a sieve comes first: time is cut into buckets, and one pass without any
sorting finds how far the windows that begin in each bucket must reach, exactly. That bounds their spread from both
sides, to within a bucket's width, and only points in buckets that could still win are sorted and swept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.zipline.barrier import Barrier, barrier_at
from paceline.zipline.rows import BLOCK, Array, Rows

FEW = 12_000  # points that are faster to sort than to sieve
MOST_BUCKETS = 1 << 14  # their table still fits into a processor's cache


def sweep(rows: Rows) -> Barrier:
    """The set with the smallest spread; the earliest on a tie."""
    return barrier_at(rows, _sort_and_sweep(rows) if len(rows.times) <= FEW else _sieve_and_sweep(rows))


def _sort_and_sweep(rows: Rows) -> Array:
    ordered = Ordered(rows)
    ends = ordered.window_ends()
    end = ends[(ordered.times[ends] - ordered.times[: len(ends)]).argmin()]
    return ordered.choices_at(end)


class Ordered:
    """The points in the order (time, worker, index), and where each of them stands in it."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.order = rows.times.argsort(kind="stable")  # rows stand in order, so ties are by (worker, index)
        self.times = rows.times[self.order]
        self.position = np.empty_like(self.order)
        self.position[self.order] = np.arange(len(self.order))

    def complete(self) -> Any:
        """The first position at which every worker has been seen."""
        return self.position[self.rows.starts].max()

    def window_ends(self) -> Array:
        """For each position at which a window may begin, where the shortest one that holds every worker ends."""
        beyond = len(self.order)
        following = np.empty_like(self.position)  # by point: the position of the same worker's next one
        following[:-1] = self.position[1:]
        following[self.rows.starts + self.rows.lengths - 1] = beyond
        ends = np.empty_like(self.position)
        ends[0] = self.complete()
        ends[1:] = following[self.order[:-1]]
        np.maximum.accumulate(ends, out=ends)
        return ends[: ends.searchsorted(beyond)]

    def choices_at(self, end: Any) -> Array:
        """How many points of each worker stand not after this position."""
        counts: Array = np.add.reduceat((self.position <= end).astype(np.intp), self.rows.starts)
        return counts


def _sieve_and_sweep(rows: Rows) -> Array:
    times, starts = rows.times, rows.starts
    first, last = times[starts].min(), times[starts + rows.lengths - 1].max()
    length = float(last - first)
    buckets = min(MOST_BUCKETS, len(times) // 8)
    per_time = buckets / length * (1 - 1e-12) if 0 < length < np.inf else 0.0
    width = 1 / per_time if per_time else length
    never = np.inf if times.dtype.kind == "f" else np.iinfo(np.int64).max

    reach = np.full(buckets, first, dtype=times.dtype)  # by bucket: the latest next point of a point in it
    for _, bucket, following in _blocks(rows, first, per_time, never):
        np.maximum.at(reach, bucket, following)
    ends = np.empty_like(reach)  # by bucket: where a window that begins with its first point ends
    ends[0] = times[starts].max()
    ends[1:] = reach[:-1]
    np.maximum.accumulate(ends, out=ends)
    ends = ends[: np.searchsorted(ends, never)]

    spreads = (ends - first).astype(float) - np.arange(len(ends)) * width  # at most, and at least a width less
    could_win = np.zeros(buckets, dtype=bool)
    could_win[: len(ends)] = spreads <= spreads.min() + 4 * width  # room for rounding at the buckets' borders
    found = [
        (begin + kept, bucket[kept], following[kept])
        for begin, bucket, following in _blocks(rows, first, per_time, never)
        for kept in (np.flatnonzero(could_win[bucket]),)
    ]
    points, bucket, following = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(times[points], kind="stable")
    points, following = points[order], following[order]
    reached = ends[bucket[order]]
    np.maximum(reached[1:], following[:-1], out=reached[1:])
    np.maximum.accumulate(reached, out=reached)
    best = np.argmin(reached - times[points])
    return _choices(rows, reached[best], points[best])


def _blocks(rows: Rows, first: Any, per_time: float, never: float) -> Iterator[tuple[int, Array, Array]]:
    """All points in blocks: where a block begins, and of its points the buckets and the same worker's next points."""
    times = rows.times
    lasts = rows.starts + rows.lengths - 1
    for begin in range(0, len(times), BLOCK):
        end = min(begin + BLOCK, len(times))
        block = times[begin:end]
        following = np.empty_like(block)
        following[: len(times) - 1 - begin] = times[begin + 1 : end + 1]
        following[lasts[lasts.searchsorted(begin) : lasts.searchsorted(end)] - begin] = never
        yield begin, ((block - first) * per_time).astype(np.intp), following


def _choices(rows: Rows, end: Any, begin: Any) -> Array:
    """The latest point of each worker not after the end of the window that begins with this point.

    Of several points at the very time of the end, the window needs those whose worker has no other point in it, and
    reaches to the last of them in the order (worker, index); later ones are not needed, and do not belong to the set.
    """
    before, until = _count(rows, end, "left"), _count(rows, end, "right")
    at_end = np.flatnonzero(until > before)
    previous = rows.starts[at_end] + before[at_end] - 1
    times = rows.times
    passed = (times[previous] < times[begin]) | ((times[previous] == times[begin]) & (previous < begin))
    last = at_end[(before[at_end] == 0) | passed].max()
    choices: Array = until.copy()
    choices[last] = before[last] + 1
    choices[last + 1 :] = before[last + 1 :]
    return choices


def _count(rows: Rows, time: Any, side: str) -> Array:
    """How many points of each row lie before this time (left), or not after it (right): a binary search in all rows."""
    low: Array = np.zeros_like(rows.lengths)
    high: Array = rows.lengths.copy()
    while (open_rows := low < high).any():
        middle = (low + high) // 2
        values = rows.times[rows.starts + np.minimum(middle, rows.lengths - 1)]
        goes_right = open_rows & (values < time if side == "left" else values <= time)
        low = np.where(goes_right, middle + 1, low)
        high = np.where(open_rows & ~goes_right, middle, high)
    return low
