"""What a barrier search returns, and the prediction that it starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]


class Barrier(NamedTuple):
    """One predicted iteration end per worker, chosen so that they lie close together."""

    time: float  # of the latest chosen end: the barrier
    spread: float  # latest minus earliest chosen end
    iterations: tuple[int, ...]  # per worker, the 1-based index of its chosen end
    waits: tuple[float, ...]  # per worker, from its chosen end to the barrier


def predict(last_push: Sequence[float], interval: Sequence[float], lookahead: int) -> Points:
    """The ends of each worker's next iterations: last_push + i * interval for i = 1..lookahead, a row per worker."""
    steps = np.arange(1, lookahead + 1)
    return np.asarray(last_push, dtype=float)[:, None] + np.asarray(interval, dtype=float)[:, None] * steps
