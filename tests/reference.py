"""A slow, plain reference for the timing of every synchronisation policy.

It shares no code with paceline: the rules are written down once more, straight from the papers, and every decision
scans all workers. Times are integers, so no comparison in here depends on rounding. Only what decides *when* is
modelled: worker w computes for `intervals[w]` after each release, and nothing takes time but computing and waiting.

    measure("ssp:staleness=3", intervals=(1000, 1913), duration=1_000_000)

Order within one instant: pushes come in the order in which they were scheduled, and workers that are released by the
same push go in the order in which they began to wait (so the pusher goes last), then the interrupted ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction


@dataclasses.dataclass
class Timing:
    """What a run comes to; the words are those of the design's word table."""

    pushes: int
    updates: int
    discarded: int
    max_lead: int
    max_staleness: int
    mean_staleness: float
    waiting_seconds: int
    pushes_of: list[int]
    waiting_of: list[int]


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient of `worker`, computed on the parameters of `version`."""

    worker: int
    version: int


class Group:
    """The workers and the server of one run: who computes, who waits, and what was counted so far."""

    def __init__(self, intervals: Sequence[int]) -> None:
        self.intervals = list(intervals)
        self.workers = range(len(intervals))
        self.now = 0
        self.version = 0
        self.scheduled = 0
        self.arrived = 0
        self.discarded = 0
        self.max_lead = 0
        self.stalenesses: list[int] = []
        self.clock = dict.fromkeys(self.workers, 0)
        self.waited = dict.fromkeys(self.workers, 0)
        self.last_push = dict.fromkeys(self.workers, 0)  # counted over the whole group: the n-th push of all
        self.base = dict.fromkeys(self.workers, 0)  # the version each worker computes on
        self.due: dict[int, tuple[int, int]] = {}  # computing worker: when it will push, and the scheduling order
        self.waiting: dict[int, int] = {}  # waiting worker: since when, in the order in which they began
        for worker in self.workers:
            self.start(worker)

    def start(self, worker: int) -> None:
        """Let a worker compute on the newest parameters from now on, whatever it did before."""
        self.base[worker] = self.version
        self.scheduled += 1
        self.due[worker] = (self.now + self.intervals[worker], self.scheduled)

    def next_worker(self) -> int:
        """The computing worker whose push comes first."""
        return min(self.due, key=self.due.__getitem__)

    def arrive(self, worker: int) -> Gradient:
        """The push of a worker: its clock goes up, and it waits until somebody releases it."""
        self.now, _ = self.due.pop(worker)
        self.clock[worker] += 1
        self.arrived += 1
        self.last_push[worker] = self.arrived
        self.max_lead = max(self.max_lead, self.lead(worker))
        self.waiting[worker] = self.now
        return Gradient(worker, self.base[worker])

    def lead(self, worker: int) -> int:
        """How many pushes a worker is ahead of the slowest."""
        return self.clock[worker] - min(self.clock.values())

    def slowest(self) -> int:
        """The worker with the fewest pushes; of several, the one whose latest push is oldest."""
        return min(self.workers, key=lambda worker: (self.clock[worker], self.last_push[worker], worker))

    def update(self, gradients: Sequence[Gradient]) -> None:
        """One update from these gradients."""
        self.stalenesses += [self.version - gradient.version for gradient in gradients]
        self.version += 1

    def discard(self) -> None:
        """Drop a gradient."""
        self.discarded += 1

    def release(self, worker: int) -> None:
        """End a worker's wait: it computes again, on the newest parameters."""
        self.waited[worker] += self.now - self.waiting.pop(worker)
        self.start(worker)

    def release_all(self) -> None:
        """Release everybody who waits."""
        for worker in list(self.waiting):
            self.release(worker)


class Bsp:
    """All push, one update from all, everybody is released."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.gathered: list[Gradient] = []

    def push(self, gradient: Gradient) -> None:
        self.gathered.append(gradient)
        if len(self.group.waiting) == len(self.group.workers):
            self.group.update(self.gathered)
            self.gathered = []
            self.group.release_all()


class Asp:
    """Each gradient is an update at once, nobody waits."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def push(self, gradient: Gradient) -> None:
        self.group.update([gradient])
        self.group.release(gradient.worker)


class Ssp:
    """Each gradient is an update at once; a worker is released while its lead is at most `staleness`."""

    def __init__(self, group: Group, staleness: int = 3) -> None:
        self.group = group
        self.staleness = staleness

    def push(self, gradient: Gradient) -> None:
        self.group.update([gradient])
        for worker in list(self.group.waiting):
            if self.group.lead(worker) <= self.staleness:
                self.group.release(worker)


class Dssp:
    """SSP at `lower`, but the fastest worker may be granted extra iterations, `upper - lower` at most."""

    def __init__(
        self,
        group: Group,
        lower: int = 3,
        upper: int = 15,
        capped: bool = True,
        wait: str = "gap",
        literal_grant: bool = False,
    ) -> None:
        self.group = group
        self.lower = lower
        self.upper = upper
        self.capped = capped
        self.wait = wait
        self.literal_grant = literal_grant
        self.extra = dict.fromkeys(group.workers, 0)  # iterations left of a worker's grant
        self.push_times: dict[int, list[int]] = {worker: [] for worker in group.workers}
        self.awaited: dict[int, int] = {}  # wait=next: whose push a waiting worker waits for

    def push(self, gradient: Gradient) -> None:
        pusher = gradient.worker
        self.group.update([gradient])
        self.push_times[pusher].append(self.group.now)
        goes_on = self.goes_on(pusher)
        if not goes_on:
            self.extra[pusher] = 0
            self.awaited[pusher] = self.group.slowest()
        for worker in list(self.group.waiting):
            if goes_on if worker == pusher else self.wait_is_over(worker, pusher):
                self.group.release(worker)

    def goes_on(self, pusher: int) -> bool:
        """Whether a worker is released right after its own push."""
        if self.capped and self.group.lead(pusher) > self.upper:
            return False
        if self.extra[pusher] > 0:
            self.extra[pusher] -= 1
            return True
        if self.group.lead(pusher) <= self.lower:
            return True
        if self.group.clock[pusher] < max(self.group.clock.values()):
            return False
        granted = self.controller(pusher)
        if granted == 0:
            return False
        self.extra[pusher] = granted if self.literal_grant else granted - 1
        return True

    def wait_is_over(self, waiter: int, pusher: int) -> bool:
        """Whether the push of another worker ends a wait."""
        if self.wait == "gap":
            return self.group.lead(waiter) <= self.lower
        if self.awaited[waiter] != pusher:
            return False
        if self.capped and self.group.lead(waiter) > self.upper:
            self.awaited[waiter] = self.group.slowest()
            return False
        return True

    def controller(self, pusher: int) -> int:
        """The number of extra iterations after which the pusher would come closest to a push of the slowest."""
        own, others = self.push_times[pusher], self.push_times[self.group.slowest()]
        if len(own) < 2 or len(others) < 2:
            return 0
        own_interval, other_interval = own[-1] - own[-2], others[-1] - others[-2]
        choices = range(self.upper - self.lower + 1)
        _, extra, _ = min(
            (abs(others[-1] + (k + 1) * other_interval - own[-1] - r * own_interval), r, k)
            for r in choices
            for k in choices
        )
        return extra


class ElasticBsp:
    """Supersteps that end where the predicted ends of everybody's iterations lie closest together."""

    def __init__(self, group: Group, lookahead: int = 15, monitoring: str = "every", inside: str = "apply") -> None:
        self.group = group
        self.lookahead = lookahead
        self.monitoring = monitoring
        self.inside = inside
        self.last_push = dict.fromkeys(group.workers, 0)
        self.monitored = dict.fromkeys(group.workers, 0)  # pushes of each worker while monitoring
        self.quota: dict[int, int] | None = None  # pushes that each worker still has; None: still monitoring
        self.gathered: list[Gradient] = []

    def push(self, gradient: Gradient) -> None:
        worker = gradient.worker
        self.last_push[worker] = self.group.now
        self.gathered.append(gradient)
        if self.inside == "apply":
            self.update()
        if self.quota is None:
            self.monitored[worker] += 1
            self.group.release(worker)
            if min(self.monitored.values()) >= 2:
                self.quota = self.plan()
            return
        self.quota[worker] -= 1
        if self.quota[worker] > 0:
            self.group.release(worker)
        elif max(self.quota.values()) == 0:
            self.barrier()

    def update(self) -> None:
        """One update from what was gathered."""
        self.group.update(self.gathered)
        self.gathered = []

    def barrier(self) -> None:
        """Everybody has used up its quota: all start the next superstep with the same parameters."""
        if self.inside == "gather":
            self.update()
        self.group.release_all()
        if self.monitoring == "first":
            self.last_push = dict.fromkeys(self.group.workers, self.group.now)
            self.quota = self.plan()
        else:
            self.monitored = dict.fromkeys(self.group.workers, 0)
            self.quota = None

    def plan(self) -> dict[int, int]:
        """How many pushes everybody has until the barrier."""
        steps = range(1, self.lookahead + 1)
        return closest_points(
            {
                worker: [self.last_push[worker] + step * self.group.intervals[worker] for step in steps]
                for worker in self.group.workers
            }
        )


def closest_points(ends: dict[int, list[int]]) -> dict[int, int]:
    """One predicted end per worker, counted from 1, so that they lie closest together; the earliest such set.

    Every point is tried as the last one of the set, in the order (time, worker, index). The best set with a given
    last point has the latest point of every worker that does not come after it.
    """
    points = sorted((time, worker, index) for worker, times in ends.items() for index, time in enumerate(times, 1))
    best: tuple[int, dict[int, int]] | None = None
    for last in points:
        chosen = {worker: (time, index) for time, worker, index in points if (time, worker, index) <= last}
        if len(chosen) < len(ends):
            continue
        spread = last[0] - min(time for time, _ in chosen.values())
        if best is None or spread < best[0]:
            best = spread, {worker: index for worker, (_, index) in chosen.items()}
    assert best is not None
    return best[1]


class Backup:
    """The first k gradients computed on the current version make the update, late ones are discarded."""

    def __init__(self, group: Group, k: int | None = None, late: str = "finish") -> None:
        self.group = group
        self.k = max(len(group.workers) - 1, 1) if k is None else k
        self.late = late
        self.gathered: list[Gradient] = []

    def push(self, gradient: Gradient) -> None:
        if gradient.version < self.group.version:
            self.group.discard()
            self.group.release(gradient.worker)
            return
        self.gathered.append(gradient)
        if len(self.gathered) == self.k:
            self.group.update(self.gathered)
            self.gathered = []
            computing = list(self.group.due)
            self.group.release_all()
            if self.late == "interrupt":
                for worker in computing:
                    self.group.start(worker)
        elif self.late == "pull":
            self.group.release(gradient.worker)


class Dbw(Backup):
    """Backup workers with a k that follows gradient statistics: without any, k stays at the number of workers."""

    def __init__(self, group: Group, late: str = "finish", **_estimates: object) -> None:
        super().__init__(group, k=len(group.workers), late=late)


class Buffered:
    """Nobody waits; every `size` gradients make one update, those that are too stale are discarded."""

    def __init__(
        self,
        group: Group,
        size: int | None = None,
        max_staleness: int | None = None,
        exponent: float = 0.5,
        divide: str = "weights",
    ) -> None:
        self.group = group
        self.size = -(-len(group.workers) // 8) if size is None else size
        self.max_staleness = max_staleness
        self.buffer: list[Gradient] = []

    def push(self, gradient: Gradient) -> None:
        staleness = self.group.version - gradient.version
        if self.max_staleness is not None and staleness > self.max_staleness:
            self.group.discard()
        else:
            self.buffer.append(gradient)
        if len(self.buffer) == self.size:
            self.group.update(self.buffer)
            self.buffer = []
        self.group.release(gradient.worker)


RULES = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": Ssp,
    "dssp": Dssp,
    "elastic-bsp": ElasticBsp,
    "backup": Backup,
    "dbw": Dbw,
    "buffered": Buffered,
}


def value(text: str) -> object:
    """A parameter's value from its text."""
    words = {"true": True, "false": False, "none": None}
    if text in words:
        return words[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def measure(policy: str, intervals: Sequence[int], duration: int) -> Timing:
    """Run a policy, given as its string, from time 0 to `duration`; a push at exactly `duration` still counts."""
    name, _, parameters = policy.partition(":")
    pairs = [pair.partition("=") for pair in parameters.split(",") if pair]
    group = Group(intervals)
    rule = RULES[name](group, **{key: value(text) for key, _, text in pairs})
    while group.due[group.next_worker()][0] <= duration:
        rule.push(group.arrive(group.next_worker()))
    for worker, since in group.waiting.items():
        group.waited[worker] += duration - since
    return Timing(
        pushes=group.arrived,
        updates=group.version,
        discarded=group.discarded,
        max_lead=group.max_lead,
        max_staleness=max(group.stalenesses, default=0),
        mean_staleness=float(Fraction(sum(group.stalenesses), max(len(group.stalenesses), 1))),
        waiting_seconds=sum(group.waited.values()),
        pushes_of=list(group.clock.values()),
        waiting_of=list(group.waited.values()),
    )
