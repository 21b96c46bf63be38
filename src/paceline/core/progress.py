"""Where every worker stands. Policies read it; the coordinator alone writes it.

Invariants, after every event:
- a worker is a newcomer (joined, not yet released for the first time), or a member that computes or waits;
- `waiting` holds the waiting members, longest wait first;
- `pending` holds the gradients that arrived and have no fate yet, oldest first;
- every query below costs O(1), so that a decision never has to look at all workers.
"""

from __future__ import annotations

from collections import OrderedDict

from paceline.core.messages import Gradient, GradientArrived


class Member:
    """One worker's record."""

    __slots__ = ("clock", "pushed_at", "reason", "released_at", "standing", "version", "waiting", "worker")

    def __init__(self, worker: int, standing: int, version: int, now: float) -> None:
        self.worker = worker
        self.clock = 0  # how many gradients it pushed
        self.standing = standing  # its clock as the group counts it: a joiner starts where the slowest stands
        self.version = version  # of the parameters it was given last
        self.waiting = False
        self.released_at = now
        self.pushed_at = now  # before the first push: when it entered
        self.reason = ""  # why it waits


class Clocks:
    """The members' standings in order: the least, the greatest, and who stands at the least for the longest time.

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
        """Among those at the least standing, the one who reached it first."""
        return next(iter(self._standing[self.least]))


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

    # -- writing: the coordinator only --

    def announce(self, worker: int) -> None:
        self.newcomers[worker] = ""

    def admit(self, worker: int, now: float) -> None:
        """A newcomer becomes a member."""
        del self.newcomers[worker]
        self.members[worker] = Member(worker, self._clocks.enter(worker), self.version, now)

    def arrive(self, event: GradientArrived, member: Member, now: float) -> None:
        self._clocks.advance(member.worker, member.standing)
        member.clock += 1
        member.standing += 1
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
