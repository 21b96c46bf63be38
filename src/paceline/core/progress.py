"""Where every worker stands. Policies read it; the coordinator alone writes it.

Invariants, after every event:
- a worker is a newcomer (joined, not yet released for the first time), or a member that computes or waits;
- `waiting` holds the waiting members, longest wait first;
- `pending` holds the gradients that arrived and have no fate yet, oldest first;
- every query below costs O(1), so that a decision never has to look at all workers.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from dataclasses import dataclass

import msgspec

from paceline.core.messages import Gradient, GradientArrived


@dataclass(slots=True, eq=False)
class Member:
    """One worker's record."""

    worker: int
    standing: int  # its clock as the group counts it: a joiner starts where the slowest stands
    version: int  # of the parameters it was given last
    released_at: float
    pushed_at: float  # before the first push: when it entered
    clock: int = 0  # how many gradients it pushed
    waiting: bool = False
    reason: str = ""  # why it waits

    @property
    def came_late(self) -> bool:
        """Whether it had pushed before it was let in: it was silent for long, and is back."""
        return self.waiting and self.pushed_at == self.released_at and self.clock == 1


class ProgressState(msgspec.Struct, frozen=True):
    """Progress between two events, as a value that JSON can hold. Every list is in an order that decides something."""

    version: int
    members: list[Member]
    by_standing: list[int]  # the members, least standing first, then in the order in which they reached it
    waiting: list[int]
    newcomers: dict[int, str]
    departed: dict[int, str]
    pending: list[GradientArrived]


class Clocks:
    """The members' standings in order: the least, the greatest, and which worker reached the least first.

    A standing only ever rises by one, so the least and the greatest are found by walking, O(1) amortised.
    """

    __slots__ = ("_standing", "greatest", "least")

    def __init__(self) -> None:
        # standing -> workers at it, in the order they reached it. OrderedDict, because a plain dict's first key costs
        # O(deleted keys) to find, and workers move on in about the order they came.
        self._standing: dict[int, OrderedDict[int, None]] = {}
        self.least = 0
        self.greatest = 0

    def enter(self, worker: int) -> int:
        """The worker starts where the slowest stands: from 0 everybody would wait for it to catch up with a past
        that it had no part in."""
        if not self._standing:
            self.least = self.greatest = 0
        self._standing.setdefault(self.least, OrderedDict())[worker] = None
        return self.least

    def advance(self, worker: int, standing: int) -> None:
        """The worker went from this standing to the next."""
        ahead = self._standing.get(standing + 1)
        if ahead is None:
            ahead = self._standing[standing + 1] = OrderedDict()
        ahead[worker] = None
        if standing == self.greatest:
            self.greatest = standing + 1
        here = self._standing[standing]
        del here[worker]
        if not here:
            self._vacate(standing)

    def exit(self, worker: int, standing: int) -> None:
        here = self._standing[standing]
        del here[worker]
        if not here:
            self._vacate(standing)

    def _vacate(self, standing: int) -> None:
        del self._standing[standing]
        if not self._standing:
            return
        while self.least not in self._standing:
            self.least += 1
        while self.greatest not in self._standing:
            self.greatest -= 1

    def last(self) -> int:
        """Among the workers at the least standing, the one that reached it first."""
        return next(iter(self._standing[self.least]))

    def in_order(self) -> list[int]:
        """All workers, least standing first, then in the order in which they reached it."""
        return [worker for standing in sorted(self._standing) for worker in self._standing[standing]]

    def resume(self, members: list[Member]) -> None:
        """Put the members, in that order, into clocks that are still empty."""
        for member in members:
            self._standing.setdefault(member.standing, OrderedDict())[member.worker] = None
        if members:
            self.least, self.greatest = members[0].standing, members[-1].standing


class Progress:
    """The state of the group. Reading it is everybody's; the methods that change it are the coordinator's."""

    __slots__ = ("_clocks", "departed", "members", "newcomers", "pending", "version", "waiting")

    def __init__(self) -> None:
        self.version = 0
        self.members: dict[int, Member] = {}
        self.newcomers: dict[int, str] = {}  # worker -> why it may not enter yet
        self.departed: dict[int, str] = {}  # worker -> why it left
        self.waiting: OrderedDict[int, Member] = OrderedDict()
        self.pending: dict[Gradient, GradientArrived] = {}
        self._clocks = Clocks()

    # -- reading --

    @property
    def computing(self) -> int:
        """How many members compute."""
        return len(self.members) - len(self.waiting)

    @property
    def least_standing(self) -> int:
        return self._clocks.least

    @property
    def greatest_standing(self) -> int:
        return self._clocks.greatest

    @property
    def slowest(self) -> int:
        """The member that stands last; on a tie the one whose last push is the oldest."""
        return self._clocks.last()

    def lead(self, worker: int) -> int:
        """How far this member is ahead of the slowest."""
        return self.members[worker].standing - self._clocks.least

    def why(self, worker: int) -> str:
        """The sentence that explains why this worker waits; empty if it does not."""
        if worker in self.waiting:
            return self.waiting[worker].reason
        return self.newcomers.get(worker, "")

    def state(self) -> ProgressState:
        return ProgressState(
            version=self.version,
            members=[copy(member) for member in self.members.values()],
            by_standing=self._clocks.in_order(),
            waiting=list(self.waiting),
            newcomers=dict(self.newcomers),
            departed=dict(self.departed),
            pending=list(self.pending.values()),
        )

    # -- writing: the coordinator only --

    def resume(self, state: ProgressState) -> None:
        """Become what another progress was; only a fresh one may."""
        self.version = state.version
        self.members.update((member.worker, copy(member)) for member in state.members)
        self._clocks.resume([self.members[worker] for worker in state.by_standing])
        self.waiting.update((worker, self.members[worker]) for worker in state.waiting)
        self.newcomers.update(state.newcomers)
        self.departed.update(state.departed)
        self.pending.update((event.gradient, event) for event in state.pending)

    def announce(self, worker: int) -> None:
        self.newcomers[worker] = ""

    def admit(self, worker: int, now: float) -> None:
        """A newcomer becomes a member."""
        del self.newcomers[worker]
        self.members[worker] = Member(worker, self._clocks.enter(worker), self.version, now, now)

    def arrive(self, event: GradientArrived, member: Member, now: float) -> None:
        self._clocks.advance(member.worker, member.standing)
        member.clock += 1
        member.standing += 1
        member.version = event.version  # an interrupt that it did not read in time promised it a newer one
        member.pushed_at = now
        member.waiting = True
        self.waiting[member.worker] = member
        self.pending[event.gradient] = event

    def release(self, member: Member, now: float) -> None:
        del self.waiting[member.worker]
        member.waiting = False
        member.version = self.version
        member.released_at = now
        member.reason = ""

    def restart(self, member: Member, now: float) -> None:
        """A computing member was interrupted: it now works on the newest parameters."""
        member.version = self.version
        member.released_at = now

    def leave(self, worker: int, reason: str) -> None:
        self.departed[worker] = reason
        if worker in self.newcomers:
            del self.newcomers[worker]
            return
        member = self.members.pop(worker)
        self.waiting.pop(worker, None)
        self._clocks.exit(worker, member.standing)
