"""Sees whether the loss rose after stale gradients came into use: near the limit of the rate they may be too much.

Losses are compared in blocks, each with those before it, by their medians: single losses may be ten times as large as
others without any reason. It has risen where a median is higher by a share of itself, and by more than what the noise
of both blocks explains. Looking at a block once keeps alarms about nothing rare: about one in a thousand blocks where
losses are lognormal with a deviation of 1, and fewer where they vary less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from paceline.core.state import kept, resume, state_of

ROUNDS = 2  # in a block, at least
LOSSES = 31  # and so many losses
FEWEST = 5  # of a block that stands for what was before
SHARE = 0.5
DEVIATIONS = 4.0  # of the difference of two medians
AVOIDED = 32.0  # rounds without stale gradients after the loss rose; twice as many the next time
CALMER = 0.9  # of that, after each block in which it did not
NORMAL = 1.4826  # times the median of absolute deviations is the deviation, where losses are normal
OF_A_MEDIAN = math.sqrt(math.pi / 2)  # times the error of a mean


class Block(NamedTuple):
    median: float
    error: float  # of the median

    @classmethod
    def of(cls, losses: Sequence[float]) -> Block:
        middle = median(losses)
        deviation = NORMAL * median(abs(loss - middle) for loss in losses)
        return cls(middle, OF_A_MEDIAN * deviation / math.sqrt(len(losses)))

    def is_above(self, before: Block) -> bool:
        by_chance = DEVIATIONS * math.hypot(self.error, before.error)
        return self.median > before.median + SHARE * abs(before.median) + by_chance


@dataclass(eq=False)
class LossWatch:
    losses: list[float] = kept(factory=list)  # of the block that is not full
    before: Block | None = kept(None)
    stale: bool = kept(False)  # whether such gradients are in use
    avoid: float = kept(0.0)  # rounds for which they are to be avoided
    next_avoid: float = kept(AVOIDED)

    def observe(self, loss: float | None, workers: int) -> str:
        """What happened, in words, if it rose; which is said once."""
        if not self.stale:
            self.avoid = max(0.0, self.avoid - 1 / max(1, workers))
        if loss is None:
            return ""
        if not math.isfinite(loss):
            return self._rise("the loss is no number any more") if self.stale else ""
        self.losses.append(loss)
        if len(self.losses) < max(LOSSES, ROUNDS * workers):
            return ""
        block, before = Block.of(self.losses), self.before
        self.losses = []
        if self.stale and before is not None and block.is_above(before):
            return self._rise(f"the loss rose from {before.median:.3g} to {block.median:.3g}")
        self.before = block
        self.next_avoid = max(AVOIDED, CALMER * self.next_avoid) if self.stale else self.next_avoid
        return ""

    def _rise(self, said: str) -> str:
        self.avoid, self.next_avoid = self.next_avoid, 2 * self.next_avoid
        return said

    def change(self, *, stale: bool) -> None:
        """Another policy is in force, with stale gradients or without."""
        if stale and not self.stale:
            self.before = Block.of(self.losses) if len(self.losses) >= FEWEST else self.before
            self.losses = []
        self.stale = stale

    def state(self) -> dict[str, Any]:
        return state_of(self)

    def resume(self, state: dict[str, Any]) -> None:
        resume(self, state)
