"""Whom the waits of a group are charged to.

At each moment a wait is shared equally among those that it still waits for:
- at a barrier, and wherever a number of gradients is waited for: the workers that arrive, or leave, before it ends. So
  the last one pays alone for what it alone causes. (The same as the Shapley value of the game in which a set of workers
  costs what the group would wait for that set.)
- where a bound on the lead makes workers wait (SSP, DSSP): the computing workers that stand last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Arrival(NamedTuple):
    """The latest thing that somebody did before a wait ended: it was waited for until then."""

    at: float
    worker: int
    failed: bool  # it did not arrive, but left


def share_waits(
    begins: Sequence[float], end: float, arrivals: Sequence[Arrival], charge: Callable[[Arrival | None, float], None]
) -> None:
    """Charge the waits that began at these times and end together. What is after the last arrival is nobody's: None."""
    began = sorted(begins)
    known = sorted(arrivals)
    moments = sorted({*began, *(arrival.at for arrival in known if began[0] < arrival.at < end), end})
    waiting = passed = 0
    share = 0.0  # of one that is still waited for, so far
    for moment, following in pairwise(moments):
        while waiting < len(began) and began[waiting] <= moment:
            waiting += 1
        while passed < len(known) and known[passed].at <= moment:
            charge(known[passed], share)
            passed += 1
        if passed == len(known):
            charge(None, waiting * (following - moment))
        else:
            share += waiting * (following - moment) / (len(known) - passed)
    for arrival in known[passed:]:
        charge(arrival, share)


class Slowest:
    """Who stands last of those that compute, and what waiting for it has cost since it went on."""

    def __init__(self) -> None:
        self._computing: dict[int, dict[int, None]] = {}  # standing -> workers
        self._cost: dict[int, float] = {}
        self._noted_at = 0.0

    def goes_on(self, worker: int, standing: int) -> None:
        self._computing.setdefault(standing, {})[worker] = None

    def stops(self, worker: int, standing: int) -> None:
        """It pushed, or left."""
        here = self._computing.get(standing, {})
        if worker in here:
            del here[worker]
            if not here:
                del self._computing[standing]

    def note(self, waiting: int, now: float) -> float:
        """So many have waited since the last time; returns what can be charged to nobody."""
        seconds, self._noted_at = waiting * (now - self._noted_at), now
        if not seconds or not self._computing:
            return seconds
        last = self._computing[min(self._computing)]
        for worker in last:
            self._cost[worker] = self._cost.get(worker, 0.0) + seconds / len(last)
        return 0.0

    def cost_of(self, worker: int) -> float:
        """Since it was asked last."""
        return self._cost.pop(worker, 0.0)

    def costs(self) -> dict[int, float]:
        """Of all, since they were asked last."""
        costs, self._cost = self._cost, {}
        return costs
