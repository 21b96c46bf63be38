"""How long a worker takes for an iteration, where that is simulated or emulated.

A speed model is a description; `start` takes a seed and returns the function that the runtime asks: iteration number
and present time in, seconds out. Every worker has its own seed, so the times that a worker sees do not depend on the
policy: comparisons between policies are paired. Seeds are strings: they give the same numbers on every machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import msgspec

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


class Slowdown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker runs at 1/factor of its speed from begin to end."""

    worker: int
    factor: float
    begin: float = 0.0
    end: float | None = None  # None: never

    @property
    def until(self) -> float:
        return math.inf if self.end is None else self.end


def slowed(slowdowns: Iterable[Slowdown]) -> Callable[[float, float], float]:
    """(seconds of work at full speed, now) -> seconds that it takes from now on.

    At any moment the speed is 1 / the product of the factors in force, so slow-downs that overlap multiply.
    """
    in_order = sorted(slowdowns, key=lambda slowdown: (slowdown.begin, slowdown.until))
    changes = sorted({-math.inf, *(time for slowdown in in_order for time in (slowdown.begin, slowdown.until))})
    factors = [  # from each of these times to the next; after the last one nothing is slowed
        math.prod(slowdown.factor for slowdown in in_order if slowdown.begin <= time < slowdown.until)
        for time in changes
    ]

    def seconds(work: float, now: float) -> float:
        first = bisect_right(changes, now)
        at, taken = now, work  # taken: by the work as a whole, if nothing slows it from `at` on
        for factor, change in zip(factors[first - 1 :], changes[first:], strict=False):
            if factor == 1:
                if now + taken <= change:
                    break
            else:
                left = now + taken - at  # at full speed
                if left * factor <= change - at:
                    return at - now + left * factor
                taken = change - now + left - (change - at) / factor
            at = change
        return taken

    return seconds
