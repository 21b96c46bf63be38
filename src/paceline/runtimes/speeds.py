"""How long a worker takes for an iteration, where that is simulated or emulated.

A speed model is a description; `start` takes a seed and returns the function that the runtime asks: iteration number
and present time in, seconds out. Every worker has its own seed, so the times that a worker sees do not depend on the
policy: comparisons between policies are paired. Seeds are strings: they give the same numbers on every machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from paceline.core.spec import parameter

MOST_SIGMA = 3.0  # beyond it most lognormal times are next to nothing, and virtual time hardly moves

Draw: TypeAlias = Callable[[int, float], float]  # (iteration from 0, now) -> seconds


@dataclass(frozen=True)
class SpeedModel(ABC):
    @property
    @abstractmethod
    def mean(self) -> float:
        """Expected seconds per iteration."""

    @abstractmethod
    def start(self, seed: str) -> Draw: ...


@dataclass(frozen=True)
class Constant(SpeedModel):
    """Every iteration takes the same time."""

    seconds: float = parameter(1.0, "time of an iteration", above=0)

    @property
    def mean(self) -> float:
        return self.seconds

    def start(self, seed: str) -> Draw:
        return lambda iteration, now: self.seconds


@dataclass(frozen=True)
class Lognormal(SpeedModel):
    """Times vary around their mean by a lognormal factor."""

    seconds: float = parameter(1.0, "mean time of an iteration", above=0)
    sigma: float = parameter(0.3, "standard deviation of the logarithm", least=0, most=MOST_SIGMA)

    @property
    def mean(self) -> float:
        return self.seconds

    def start(self, seed: str) -> Draw:
        return jittered(lambda iteration, now: self.seconds, self.sigma, seed)


@dataclass(frozen=True)
class ShiftedExponential(SpeedModel):
    """Times are seconds * (1 - a + a * Exp(1)): a part that is certain, and a tail of stragglers."""

    a: float = parameter(1.0, "share of the time that is random", least=0, most=1)
    seconds: float = parameter(1.0, "mean time of an iteration", above=0)

    @property
    def mean(self) -> float:
        return self.seconds

    def start(self, seed: str) -> Draw:
        random = Random(seed)
        certain, tail = self.seconds * (1 - self.a), self.seconds * self.a
        return lambda iteration, now: certain + tail * random.expovariate(1.0)


@dataclass(frozen=True)
class Recorded(SpeedModel):
    """The times of a recorded run, from the beginning again when they are used up."""

    times: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.times) / len(self.times)

    def start(self, seed: str) -> Draw:
        return lambda iteration, now: self.times[iteration % len(self.times)]


SPEEDS: dict[str, type[SpeedModel]] = {
    "constant": Constant,
    "lognormal": Lognormal,
    "exponential": ShiftedExponential,
}


def jittered(draw: Draw, sigma: float, seed: str) -> Draw:
    """The same times, each multiplied by a lognormal factor of mean 1."""
    random = Random(seed)
    mu = -sigma * sigma / 2
    return lambda iteration, now: draw(iteration, now) * math.exp(random.gauss(mu, sigma))


def slowed(draw: Draw, factor: float, begin: float, end: float) -> Draw:
    """The same work at 1/factor of the speed from begin to end."""
    return lambda iteration, now: stretched(draw(iteration, now), now, factor, begin, end)


def stretched(work: float, now: float, factor: float, begin: float, end: float) -> float:
    """How long this work takes from now on, if all that lies between begin and end takes factor times as long."""
    start = max(now, begin)
    if start >= end or now + work <= start:
        return work
    rest = now + work - start  # at full speed
    if rest * factor <= end - start:
        return start - now + rest * factor
    return end - now + rest - (end - start) / factor
