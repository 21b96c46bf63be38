"""Notices when the workers are not as they were: a reason to ask again what would suit them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

import msgspec

from paceline.core.messages import GradientArrived
from paceline.core.progress import Progress
from paceline.core.state import kept, resume, state_of
from paceline.policies.recent_times import RecentTimes

LATELY = 3  # iterations, whose mean is compared with those before
FACTOR = 1.6  # up to this, and so many standard deviations, it is as it was
DEVIATIONS = 3.0
OVERDUE = 2.0  # times what an iteration may take: whoever waits for it asks what else to do
AT_FIRST = 1.3  # times the shortest iteration, as long as nothing else is known


class Usual(msgspec.Struct, array_like=True):
    """What a worker's iterations took, when it was asked about them."""

    mean: float
    deviation: float

    @property
    def most(self) -> float:
        return FACTOR * self.mean + DEVIATIONS * self.deviation

    @property
    def least(self) -> float:
        return self.mean / FACTOR - self.deviation


@dataclass(eq=False)
class Vigil:
    times: RecentTimes = kept(factory=RecentTimes)
    usual: dict[int, Usual] = kept(factory=dict)
    other: bool = kept(False)  # whether somebody is not as usual since the last question, or left
    members: int = kept(0)  # at the last question
    shortest: float | None = kept(None)  # iteration so far
    looked: float = kept(0.0)  # when it was asked about a worker that is overdue; again after as long as it then took

    def observe(self, event: GradientArrived, progress: Progress, now: float) -> None:
        worker = event.gradient.worker
        self.times.observe(event, progress, now)
        seen = self.times.of(worker)
        if seen and (self.shortest is None or seen[-1] < self.shortest):
            self.shortest = seen[-1]
        usual, latest = self.usual.get(worker), list(seen)[-LATELY:]
        if usual is not None and len(latest) == LATELY:
            lately = fmean(latest)
            if not usual.least <= lately <= usual.most:
                self.other = True
                self.times.keep_only(worker, LATELY)  # those before are of another time
                del self.usual[worker]

    def sees_others(self, progress: Progress) -> bool:
        return self.other or len(progress.members) != self.members

    def note_asked(self, progress: Progress) -> None:
        """From now on, this is as usual."""
        self.other, self.members = False, len(progress.members)
        for worker in progress.members:
            if len(seen := self.times.of(worker)) >= LATELY:
                mean = sum(seen) / len(
                    seen
                )  # the module statistics takes ten times as long, for digits that mean nothing
                deviation = sqrt(sum((one - mean) ** 2 for one in seen) / len(seen))
                self.usual[worker] = Usual(mean, deviation)

    @property
    def noise(self) -> float:
        """By which share of it an iteration varies, as a rule."""
        return sum(usual.deviation / usual.mean for usual in self.usual.values()) / max(1, len(self.usual))

    def forget(self, worker: int, *, at_the_end: bool = False) -> None:
        """`at_the_end`: no work was left for it. Of what is left of a run nobody need be asked."""
        self.times.forget(worker)
        self.usual.pop(worker, None)
        if at_the_end:
            self.members -= 1
        else:
            self.other = True

    def late(self, progress: Progress, now: float) -> tuple[int, ...]:
        """The worker that the others wait for, if that takes longer than usual."""
        due = self.overdue_at(progress)
        if due is None or now < due:
            return ()
        self.looked = now
        return (progress.slowest,)

    def overdue_at(self, progress: Progress) -> float | None:
        """When to look at the worker that others wait for; None: nobody waits, or nothing is known of any."""
        if not progress.waiting or not progress.computing:
            return None
        member = progress.members[progress.slowest]
        if member.waiting:
            return None
        since, usual = member.released_at, self.usual.get(member.worker)
        if usual is not None:
            due = since + OVERDUE * (usual.mean + 2 * usual.deviation)
        elif self.shortest is not None and not self.usual and 2 * len(self.times) >= len(progress.members):
            due = since + AT_FIRST * self.shortest
        else:
            return None
        return max(due, since + 2 * max(0.0, self.looked - since))

    def state(self) -> dict[str, Any]:
        return state_of(self)

    def resume(self, state: dict[str, Any]) -> None:
        resume(self, state)
