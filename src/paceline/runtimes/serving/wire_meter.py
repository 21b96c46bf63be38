"""Measures what the parameters need of this server's wire, where workers on other hosts share it.

A worker's iteration has its way in it, as it was under the policy in force: when all are released at once each waits
for the parameters of all, which under another policy it would not. So the way is taken out of iterations, and what one
transfer needs of the wire goes into a question beside them.

Whichever way the wire is shared: if so many transfers have come to their end since nothing was on its way, each needs
at most that time divided by their number. The least of all such figures is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from paceline.runtimes.serving.channel import Carried, Channel

LATEST = 1_024  # transfers of all workers


class Way(NamedTuple):
    begun: float
    ended: float


class Released(NamedTuple):
    at: float
    busy: float  # for how long its wire had been until then


class WireMeter:
    def __init__(self) -> None:
        self._channels: dict[int, Channel[Any, Any]] = {}  # by seat
        self._released: dict[int, Released] = {}
        self._ways: deque[Way] = deque(maxlen=LATEST)
        self._crosses: dict[int, bool] = {}  # by seat that has pushed: whether a wire is between it and the server

    def watch(self, seat: int, channel: Channel[Any, Any]) -> None:
        """Its process has started."""
        self._channels[seat] = channel

    def forget(self, seat: int) -> None:
        self._channels.pop(seat, None)
        self._released.pop(seat, None)
        self._crosses.pop(seat, None)

    def release(self, seat: int, now: float) -> None:
        """The parameters are about to be sent."""
        if (carried := self._carried(seat)) is not None:
            self._released[seat] = Released(now, carried.out)

    def push(self, seat: int) -> float:
        """For how many seconds of this iteration parameters and gradient were on their way."""
        released, carried = self._released.pop(seat, None), self._carried(seat)
        self._crosses[seat] = carried is not None
        if released is None or carried is None:
            return 0.0
        out = max(0.0, carried.out - released.busy)
        if out:
            self._ways.append(Way(released.at, released.at + out))
        return out + carried.gradient

    def _carried(self, seat: int) -> Carried | None:
        channel = self._channels.get(seat)
        return None if channel is None else channel.carried()

    @property
    def cost(self) -> float:
        """0 as well where some workers see the server's memory: in a question all workers are the same to a wire."""
        return least_share(self._ways) if all(self._crosses.values()) else 0.0


def least_share(ways: Iterable[Way]) -> float:
    """Seconds of the wire that one of these can have needed at most; 0: there was none."""
    found: list[float] = []
    begin, last = -inf, -inf
    ends: list[float] = []
    for way in sorted(ways):
        if way.begun >= last:  # nothing was on its way
            found += _shares(begin, ends)
            begin, ends = way.begun, []
        ends.append(way.ended)
        last = max(last, way.ended)
    return min([*found, *_shares(begin, ends)], default=0.0)


def _shares(begin: float, ends: Sequence[float]) -> list[float]:
    return [(end - begin) / number for number, end in enumerate(sorted(ends), 1)]
