"""Makes a real worker as slow as a user wants to see it: by sleeping, not by spinning, so that cores stay free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.runtimes.speeds import Slowdown, SpeedModel, slowed


@dataclass(frozen=True)
class Pace:
    """How long an iteration of one worker shall take: as a speed model says or as long as it does, and then slower."""

    speed: SpeedModel | None
    slowdowns: tuple[Slowdown, ...]

    def start(self, seed: str) -> Callable[[int, float, float], float]:
        draw = None if self.speed is None else self.speed.start(seed)
        stretched = slowed(self.slowdowns)

        def seconds(iteration: int, began: float, took: float) -> float:
            return stretched(took if draw is None else max(took, draw(iteration, began)), began)

        return seconds
