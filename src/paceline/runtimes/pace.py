"""Makes a real worker as slow as a user wants to see it: by sleeping, not by spinning, so that cores stay free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from paceline.runtimes.speeds import SpeedModel, stretched


class Slowdown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker runs at 1/factor of its speed from begin to end."""

    worker: int
    factor: float
    begin: float = 0.0
    end: float | None = None  # None: never

    @property
    def until(self) -> float:
        return math.inf if self.end is None else self.end


@dataclass(frozen=True)
class Pace:
    """How long an iteration of one worker shall take: as a speed model says or as long as it does, and then slower."""

    speed: SpeedModel | None
    slowdowns: tuple[Slowdown, ...]

    def start(self, seed: str) -> Callable[[int, float, float], float]:
        draw = None if self.speed is None else self.speed.start(seed)
        slowdowns = sorted(self.slowdowns, key=lambda each: each.begin)  # each acts on what the earlier ones left

        def seconds(iteration: int, began: float, took: float) -> float:
            wanted = took if draw is None else max(took, draw(iteration, began))
            for each in slowdowns:
                wanted = stretched(wanted, began, each.factor, each.begin, each.until)
            return wanted

        return seconds
