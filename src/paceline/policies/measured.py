"""What a policy comes to in this run: gradients that became part of updates, per second, while nothing else changed.

Counted from the first moment at which there was an update to the latest one that is over: a stretch of time that cuts a
round in two would have a part of it too much or too little.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

from paceline.core.state import kept, resume, state_of

DEVIATIONS = 2.0  # of what is measured, which may be chance


class Pace(NamedTuple):
    """Gradients of the mean size per second."""

    measured: float
    chance: float = 0.0  # so much less or more it might have been

    @property
    def least(self) -> float:
        return max(0.0, self.measured - self.chance)

    @property
    def most(self) -> float:
        return self.measured + self.chance


@dataclass(eq=False)
class Stretch:
    """Of time, in which updates are counted."""

    used: float = kept(0.0)  # gradients, after the first moment and up to the latest that is over
    first: float | None = kept(None)
    latest: float = kept(0.0)
    moment: float = kept(0.0)  # there may be more in it
    in_moment: float = kept(0.0)

    def note(self, used: float, now: float) -> None:
        if not used:
            return
        if self.first is None:
            self.first = self.latest = self.moment = now
        elif now > self.moment:
            self.used += self.in_moment if self.moment > self.first else 0.0
            self.latest, self.moment, self.in_moment = self.moment, now, 0.0
        self.in_moment += used

    def begin(self) -> None:
        """Anew."""
        self.used, self.first, self.in_moment = 0.0, None, 0.0

    def pace(self, noise: float) -> Pace | None:
        """`noise`: by which share of it an iteration varies. None: nobody knows yet."""
        if self.first is None or self.latest <= self.first:
            return None
        seconds = self.latest - self.first
        return Pace(self.used / seconds, DEVIATIONS * noise * sqrt(self.used) / seconds)

    def state(self) -> dict[str, Any]:
        return state_of(self)

    def resume(self, state: dict[str, Any]) -> None:
        resume(self, state)
