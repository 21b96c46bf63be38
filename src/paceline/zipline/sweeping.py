"""Our own search: exact, vectorised, and for large inputs linear in the number of points.

For a fixed latest point the best set holds the latest point of each worker not after it. So it is enough to look at
windows of the sorted points that hold every worker. One that begins at some point must reach to the next point of every
worker that was passed before it, a running maximum; the window with the smallest spread is an argmin.

Sorting is what costs. So with many points a sieve comes first: time is cut into buckets, and one pass without any
sorting finds how far the windows that begin in each bucket must reach, exactly. That bounds their spread from both
sides. Buckets that cannot win are dropped, the others cut finer and sieved again; what is left is sorted and swept.
"""

from __future__ import annotations

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
    times, lasts = rows.times, rows.starts + rows.lengths - 1
    complete = times[rows.starts].max()  # no window ends before every worker has a point
    first = times[rows.starts + _count(rows, complete, "right") - 1].min()  # where the best one that ends there begins
    last = times[lasts].min()  # a window that begins later lacks some worker
    buckets = min(MOST_BUCKETS, len(times) // 8)
    table = _Table(buckets + 1, times.dtype)  # the bucket too many takes the points outside first..last
    blocks = [(begin, min(begin + BLOCK, len(times))) for begin in range(0, len(times), BLOCK)]
    for begin, end in blocks:
        block, following = times[begin:end], _following(rows, lasts, begin, end)
        table.note(_bucket(block, first, last, buckets), block, following)
    kept, base = table.promising(buckets, np.array([complete]), buckets)

    found = []
    number = np.full(buckets + 1, -1)  # of a kept bucket, in the order of time
    number[kept] = np.arange(len(kept))
    for begin, end in blocks:
        groups = number[_bucket(times[begin:end], first, last, buckets)]
        here = np.flatnonzero(groups >= 0)
        found.append((begin + here, groups[here], _following(rows, lasts, begin, end)[here]))
    points, groups, following = (np.concatenate(parts) for parts in zip(*found, strict=True))
    points, groups, following, base = _refine(times, points, groups, following, base, table.bounds(kept))

    order = times[points].argsort(kind="stable")
    points, following = points[order], following[order]
    reached = base[groups[order]]
    np.maximum(reached[1:], following[:-1], out=reached[1:])
    np.maximum.accumulate(reached, out=reached)
    reached = reached[: reached.searchsorted(_never(times.dtype))]
    best = (reached - times[points[: len(reached)]]).argmin()
    return _choices(rows, reached[best], points[best])


def _refine(
    times: Array, points: Array, groups: Array, following: Array, base: Array, bounds: tuple[Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """Cut the kept buckets into finer ones and sieve again, as long as many points are left and it helps."""
    left = len(points) + 1
    while FEW < len(points) < left and 2 * len(base) <= MOST_BUCKETS:
        left = len(points)
        parts = MOST_BUCKETS // len(base)  # fine buckets to a kept one
        lows, highs = bounds
        fine = groups * parts + _bucket(times[points], lows[groups], highs[groups], parts)
        table = _Table(len(base) * parts, times.dtype)
        table.note(fine, times[points], following)
        kept, base = table.promising(len(base) * parts, base, parts)
        bounds = table.bounds(kept)
        number = np.full(len(table.reach), -1)
        number[kept] = np.arange(len(kept))
        groups = number[fine]
        here = np.flatnonzero(groups >= 0)
        points, groups, following = points[here], groups[here], following[here]
    return points, groups, following, base


class _Table:
    """By bucket: its earliest and latest point, and the latest next point of a point in it."""

    def __init__(self, buckets: int, dtype: np.dtype[Any]) -> None:
        self._never = _never(dtype)
        self._before = -self._never
        self.reach = np.full(buckets, self._before, dtype=dtype)
        self.latest = np.full(buckets, self._before, dtype=dtype)
        self.earliest = np.full(buckets, self._never, dtype=dtype)

    def note(self, bucket: Array, times: Array, following: Array) -> None:
        np.maximum.at(self.reach, bucket, following)
        np.maximum.at(self.latest, bucket, times)
        np.minimum.at(self.earliest, bucket, times)

    def bounds(self, kept: Array) -> tuple[Array, Array]:
        return self.earliest[kept], self.latest[kept]

    def promising(self, buckets: int, base: Array, parts: int) -> tuple[Array, Array]:
        """The buckets in which the best window may begin, and where a window that begins with their first point ends.

        `base` says that for the first of every `parts` buckets. The window that begins with a bucket's first point is
        known exactly. No other in it is better than its end less the latest point; to win it must be strictly better
        than what an earlier bucket has, and as good as the best of all.
        """
        ends = np.empty_like(self.reach[:buckets])
        ends[0] = self._before
        ends[1:] = self.reach[: buckets - 1]
        np.maximum(ends[::parts], base, out=ends[::parts])
        np.maximum.accumulate(ends, out=ends)
        used = np.flatnonzero(self.latest[: ends.searchsorted(self._never)] > self._before)
        known = ends[used] - self.earliest[used]
        possible = np.maximum(ends[used] - self.latest[used], 0)
        earlier = np.empty_like(known)
        earlier[0] = self._never
        np.minimum.accumulate(known[:-1], out=earlier[1:])
        kept = used[(possible < earlier) & (possible <= known.min())]
        return kept, ends[kept]


def _never(dtype: np.dtype[Any]) -> Any:
    """Later than any point."""
    return np.inf if dtype.kind == "f" else np.iinfo(np.int64).max


def _bucket(times: Array, low: Any, high: Any, buckets: int) -> Array:
    """Which of so many equal parts of low..high each time lies in; outside, the one after the last."""
    length = np.asarray(high - low, dtype=float)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        per_time = np.where(length > 0, buckets / length, 0.0)
    per_time = np.where(np.isfinite(per_time), per_time, 0.0)  # a length next to nothing is one bucket
    inside = np.minimum((np.clip(times, low, high) - low) * per_time, buckets - 1).astype(np.intp)
    return np.where((times < low) | (times > high), buckets, inside)


def _following(rows: Rows, lasts: Array, begin: int, end: int) -> Array:
    """The same worker's next points, of the points from begin to end."""
    times = rows.times
    following = np.empty_like(times[begin:end])
    following[: len(times) - 1 - begin] = times[begin + 1 : end + 1]
    following[lasts[lasts.searchsorted(begin) : lasts.searchsorted(end)] - begin] = _never(times.dtype)
    return following


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
