"""Measures what pushes, updates and pulls cost this server, and what iterations take beside them.

A policy sees iterations from release to push, with the server's queue in them: where the server is the limit that says
nothing about the workers. A worker tells how long it computed; what is least of the rest is its way to the server and
back, which it has under any policy, but for what it waits for others on a wire that they share (wire_meter.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple, TypeVar

import msgspec

from paceline.core.questions import Costs, Question, short
from paceline.lifecycle.seats import Seat
from paceline.runtimes.serving.loop import Loop
from paceline.runtimes.serving.wire_meter import WireMeter

Done = TypeVar("Done")

LATEST = 32  # iterations
STEP = 3.0  # gradients that could be added in the time of an optimizer's step, as long as all updates had one size


class Iteration(NamedTuple):
    computed: float
    beside: float  # from when the parameters were handed out to its push, without that
    seen: float  # what a policy sees of it: from its decision on, with the update that was made in between
    way: float = 0.0  # of which parameters and gradient were on a wire


class Sizes:
    """Seconds of updates by how many gradients they had, of which those that are long ago count less and less."""

    def __init__(self) -> None:
        self.number = self.size = self.seconds = self.squares = self.products = 0.0

    def note(self, size: int, seconds: float) -> None:
        self.number += 1
        self.size += size
        self.seconds += seconds
        self.squares += size * size
        self.products += size * seconds

    def forget_half(self) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value / 2)

    @property
    def costs(self) -> tuple[float, float]:
        """Of an update of any size, and of each gradient in it."""
        if not self.number:
            return 0.0, 0.0
        size, seconds = self.size / self.number, self.seconds / self.number
        spread = self.squares / self.number - size * size
        if spread > 0.01 * size * size:
            each = (self.products / self.number - size * seconds) / spread
        else:
            each = seconds / (size + STEP)
        each = min(max(each, 0.0), seconds / size)
        return seconds - each * size, each


class Meter:
    def __init__(self, loop: Loop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self.wire = WireMeter()
        self._released: dict[int, float] = {}  # by seat
        self._iterations: dict[int, deque[Iteration]] = {}
        self._updates = Sizes()
        self._pulls = Sizes()
        self._pushes = 0.0
        self._under_way = (0, 0.0)  # gradients of an update, and when it was begun
        self._busy = 0.0  # of the loop, when half of all was forgotten last
        self._rest = 0.0  # seconds of the loop that were neither updates nor pulls, before that

    def update(self, size: int, call: Callable[[], Done]) -> Done:
        """None: it is under way, and `updated` says when it is done."""
        begun = self._clock()
        done = call()
        if done is None:
            self._under_way = size, begun
        else:
            self._updates.note(size, self._clock() - begun)
        return done

    def updated(self) -> None:
        size, begun = self._under_way
        self._updates.note(size, self._clock() - begun)

    def pull(self, seat: int, call: Callable[[], object]) -> None:
        begun = self._clock()
        call()
        ended = self._released[seat] = self._clock()
        self._pulls.note(1, ended - begun)
        self.wire.release(seat, ended)

    def push(self, seat: int, computed: float | None, seen: float | None = None) -> None:
        """Its worker says that it computed for so long. `seen`: how long a policy takes the iteration to be; None: as
        long as it was."""
        self._pushes += 1
        way = self.wire.push(seat)
        released = self._released.pop(seat, None)
        if released is not None and computed is not None:
            beside = max(0.0, self._clock() - released - computed)
            whole = max(computed + beside, seen or 0.0)
            self._iterations.setdefault(seat, deque(maxlen=LATEST)).append(
                Iteration(computed, beside, whole, min(way, beside))
            )

    def forget(self, seat: int) -> None:
        self._released.pop(seat, None)
        self._iterations.pop(seat, None)
        self.wire.forget(seat)

    @property
    def costs(self) -> Costs:
        update, gradient = self._updates.costs
        rest = self._rest + self._loop.busy - self._busy - self._updates.seconds - self._pulls.seconds
        push = max(0.0, rest / self._pushes) if self._pushes else 0.0
        costs = push, gradient, update, sum(self._pulls.costs), self.wire.cost
        return Costs(*map(short, costs))

    def complete(self, question: Question, members: Mapping[int, Seat]) -> Question:
        """With the costs, and without the queue. What is measured from now on counts more than what was before."""
        costs = self.costs
        ways = sorted(min(one.way for one in own) for own in self._iterations.values()) if costs.wire else []
        usual = ways[len(ways) // 4] if ways else None  # a quarter: single ones were lucky
        times = tuple(
            self._without_queue(seconds, members[worker].index if worker in members else -1, usual)
            for worker, seconds in zip(question.workers, question.times, strict=True)
        )
        completed = msgspec.structs.replace(question, times=times, costs=costs)
        self._rest = (self._rest + self._loop.busy - self._busy) / 2
        self._busy = self._loop.busy
        self._pushes /= 2
        self._updates.forget_half()
        self._pulls.forget_half()
        return completed

    def _without_queue(self, seconds: tuple[float, ...], seat: int, usual: float | None) -> tuple[float, ...]:
        """`usual`: seconds on the wire that most workers have at least, whose cost is told beside, so that they are no
        part of an iteration. Whoever has more has a slow wire of its own. None: that cost is not told."""
        known = self._iterations.get(seat, ())
        if len(seconds) < 2 or not known:  # a single one may be of a worker that is at it still
            return seconds
        beside = min(one.beside for one in known)
        if usual is not None:
            more = max(0.0, min(one.way for one in known) - usual)
            beside = min(one.beside - one.way for one in known) + more
        own = fmean(one.computed for one in known) + beside
        share = own / fmean(one.seen for one in known)
        return tuple(short(share * one) for one in seconds)
