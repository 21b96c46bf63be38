"""Who has been silent for longer than is usual for it.

A process owes a word from the moment at which it is told to go on until it speaks. How long that takes is learned from
its latest words: a multiple of the median, of the median plus the median absolute deviation, or of the longest of them,
so that a pause which comes once an epoch is not taken for a death. One that has not said enough yet is measured by the
slowest of the others, with a lot of patience; if nobody has, only the bounds count that somebody set.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import NamedTuple

import msgspec

KEPT = 64  # latest words of a process by which it is judged
FEW = 3  # it has not said enough yet
MEDIANS, DEVIATIONS, LONGEST = 10.0, 20.0, 2.0  # what is not usual any more
STRANGER = 10.0  # times the patience with the slowest, for one of whom little is known
AGAIN = 4.0  # a silence that was too long teaches at most so many times the patience: it may have been an accident


class Patience(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds: nobody is given up sooner than `least`, and everybody after `most`."""

    least: float = 20.0
    most: float | None = None


class Silent(NamedTuple):
    """What is to be said of a process: half of the patience with it is over, or all of it."""

    seat: int
    seconds: float
    usual: float | None  # None: it has not said enough yet
    overdue: bool


class Silence:
    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._since: dict[int, float] = {}  # seat -> since when it owes a word
        self._words: dict[int, deque[float]] = {}  # seat -> how long the latest ones took
        self._suspected: set[int] = set()
        self.next_look = math.inf

    def told(self, seat: int, now: float) -> None:
        """It goes on, and owes a word from now on."""
        self._since[seat] = now
        self.next_look = min(self.next_look, now + self.patience.least / 2)

    def heard(self, seat: int, now: float) -> None:
        since = self._since.pop(seat, None)
        if since is None:
            return
        taken = now - since
        if taken > self.patience.least:
            taken = min(taken, AGAIN * self._limit(seat))
        if seat in self._words:
            self._words[seat].append(taken)
        else:
            self._words[seat] = deque((taken,), maxlen=KEPT)
        self._suspected.discard(seat)
        if self._suspected:
            self.next_look = now  # with it back, the group may be able to do without the others

    def forgive(self, seat: int) -> None:
        """It owes nothing any more."""
        self._since.pop(seat, None)
        self._suspected.discard(seat)

    def forget(self, seat: int) -> None:
        self.forgive(seat)
        self._words.pop(seat, None)

    def pause(self, seconds: float) -> None:
        """Nobody listened for so long."""
        self._since = {seat: since + seconds for seat, since in self._since.items()}

    def look(self, now: float) -> list[Silent]:
        """Those of whom something new is to be said: once that they are suspected, and then each time that they are
        overdue. Sets when to look next."""
        found: list[Silent] = []
        following = math.inf
        for seat, since in self._since.items():
            seconds, limit = now - since, self.patience.least
            if seconds >= limit / 2:
                limit = self._limit(seat)
            if seconds < limit / 2:
                following = min(following, since + limit / 2)
                continue
            if seconds < limit:
                following = min(following, since + limit)
                if seat in self._suspected:
                    continue
            elif self.patience.most is not None and seconds < self.patience.most:
                following = min(following, since + self.patience.most)
            self._suspected.add(seat)
            words = self._words.get(seat, ())
            found.append(Silent(seat, seconds, median(words) if len(words) >= FEW else None, seconds >= limit))
        self.next_look = max(following, now + self.patience.least / 4)
        return found

    def gives_up_after(self, seconds: float) -> bool:
        """Whether somebody said that so long is too long, whoever it is."""
        return self.patience.most is not None and seconds >= self.patience.most

    def is_overdue(self, seat: int, now: float) -> bool:
        since = self._since.get(seat)
        return since is not None and now - since >= self._limit(seat)

    def _limit(self, seat: int) -> float:
        own = self._learned(seat)
        if own is None:
            others = [limit for other in self._words if (limit := self._learned(other)) is not None]
            own = STRANGER * max(others) if others else math.inf
        return max(self.patience.least, min(own, self.patience.most or math.inf))

    def _learned(self, seat: int) -> float | None:
        words = self._words.get(seat, ())
        if len(words) < FEW:
            return None
        usual = median(words)
        deviation = median(abs(word - usual) for word in words)
        return max(MEDIANS * usual, usual + DEVIATIONS * deviation, LONGEST * max(words))
