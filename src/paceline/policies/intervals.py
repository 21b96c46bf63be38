"""How long a worker's next iteration will take, estimated from its last ones."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

ESTIMATORS = ("last", "mean", "median", "smoothed")


class Intervals:
    """The estimates of all workers: the last interval (the paper's), the mean or median of the last `window`, or an
    exponentially smoothed one. What is no interval, such as a wait at a barrier, must not be given to it."""

    def __init__(self, estimator: str, window: int, smoothing: float) -> None:
        self._estimator = estimator
        self._kept = 1 if estimator in ("last", "smoothed") else window  # intervals of each worker
        self._smoothing = smoothing
        self._seen: dict[int, deque[float]] = {}

    def observe(self, worker: int, interval: float) -> None:
        if worker not in self._seen:
            self._seen[worker] = deque([interval], maxlen=self._kept)
        elif self._estimator == "smoothed":
            self._seen[worker][0] += self._smoothing * (interval - self._seen[worker][0])
        else:
            self._seen[worker].append(interval)

    def forget(self, worker: int) -> None:
        self._seen.pop(worker, None)

    def state(self) -> dict[str, list[float]]:
        return {str(worker): list(seen) for worker, seen in self._seen.items()}

    def resume(self, state: dict[str, list[float]]) -> None:
        self._seen = {int(worker): deque(seen, maxlen=self._kept) for worker, seen in state.items()}

    def __contains__(self, worker: int) -> bool:
        return worker in self._seen

    def expected(self, worker: int) -> float:
        seen = self._seen[worker]
        return median(seen) if self._estimator == "median" else fmean(seen)
