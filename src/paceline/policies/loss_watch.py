"""Sees whether the loss rose after stale gradients came into use: near the limit of the rate they may be too much.

The loss is a mean over the last two rounds. It has risen where it is higher than before the change by more than what
its own noise explains, and by a share of itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paceline.core.state import kept, resume, state_of

ROUNDS = 2  # that the mean is over
SHARE = 0.5
DEVIATIONS = 4.0  # of the mean
AVOIDED = 32.0  # rounds without stale gradients after the loss rose; twice as many the next time


@dataclass(eq=False)
class LossWatch:
    mean: float | None = kept(None)
    variance: float = kept(0.0)  # of one loss
    limit: float | None = kept(None)  # of the mean, from a change to stale gradients on; None: they are not in use
    seen: float = kept(0.0)  # rounds since then
    avoid: float = kept(0.0)  # rounds for which stale gradients are to be avoided
    next_avoid: float = kept(AVOIDED)

    def observe(self, loss: float | None, workers: int) -> bool:
        """Whether it has risen, which is said once."""
        share = 1 / max(1, workers)
        self.avoid = max(0.0, self.avoid - share)
        if loss is None:
            return False
        self.seen += share
        if not math.isfinite(loss):
            return self._rise()
        weight = share / ROUNDS
        if self.mean is None:
            self.mean = loss
        difference = loss - self.mean
        self.mean += weight * difference
        self.variance += weight * (difference * difference - self.variance)
        return self.limit is not None and self.seen >= ROUNDS and self.mean > self.limit and self._rise()

    def _rise(self) -> bool:
        if self.limit is None:
            return False
        self.limit, self.avoid = None, self.next_avoid
        self.next_avoid *= 2
        return True

    def change(self, workers: int, *, stale: bool) -> None:
        """Another policy is in force, with stale gradients or without."""
        if not stale:
            self.limit = None
        elif self.limit is None and self.mean is not None:
            noise = math.sqrt(self.variance / (2 * ROUNDS * max(1, workers)))
            self.limit, self.seen = self.mean + SHARE * abs(self.mean) + DEVIATIONS * noise, 0.0

    def state(self) -> dict[str, Any]:
        return state_of(self)

    def resume(self, state: dict[str, Any]) -> None:
        resume(self, state)
