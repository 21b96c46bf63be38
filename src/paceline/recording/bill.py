"""The straggler bill of a run, from its trace alone: every second of every worker, and whom it is charged to.

A worker is paid for from its joining to the end of the run, or until the group is made smaller; the place of one that
died is paid for until another takes it. Each of these seconds is one item of the bill, so they add up to them, and in a
group that does not change, to the time of the run x its workers. `blame.py` says who pays for a wait.

The trace of a real run has decisions, not bytes: how long an update took, and parameters on their way, is a part of the
iteration before which it happened. Only what the policy waited for itself is charged to the server.
"""

from __future__ import annotations

from array import array
from copy import deepcopy

import msgspec
import numpy as np

from paceline.core.errors import ConfigurationError
from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    BatchSkipped,
    DiscardGradient,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    Record,
    SendParameters,
    WentBack,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.core.progress import Clocks
from paceline.lifecycle.roster import SENT_AWAY
from paceline.policies import policy as build_policy
from paceline.recording.blame import Arrival, Slowest, share_waits
from paceline.recording.observer import Observer
from paceline.recording.places import Place, Places

COMPUTING = "computing"  # of gradients that became part of an update, as long as is usual for the worker
UNFINISHED = "unfinished"  # of gradients without a fate when the run ended
WAITING = "waiting"  # for this worker
SLOW = "slower than its median"
DISCARDED = "discarded gradients"  # also interrupted, and not finite
FAILED = "failures"  # what was lost with it, waits for it until it was given up, its place while that was empty
EVICTED = "sent away"  # what was lost with it: nobody waited for it to hand that in
JOINING = "joining"  # until it was let in
NO_WORK = "no work left"  # others still had some
SERVER = "the server"  # waits after everybody had arrived
CAUSES = (COMPUTING, UNFINISHED, WAITING, SLOW, DISCARDED, FAILED, EVICTED, JOINING, NO_WORK, SERVER)
NOT_LOST = (COMPUTING, UNFINISHED)


class Item(msgspec.Struct, frozen=True):
    """Worker-seconds that one worker is charged with."""

    worker: int | None  # None: the server
    cause: str
    seconds: float


class OwnTime(msgspec.Struct, frozen=True):
    """How one worker itself spent its time, whoever caused it. Waits are under WAITING."""

    worker: int
    seconds: dict[str, float]
    iterations: int
    median: float | None  # of its iterations; None: it finished none


class Bill(msgspec.Struct, frozen=True):
    seconds: float  # of the run
    places: int  # most workers at one time
    worker_seconds: float  # that are paid for
    items: list[Item]  # the largest first; their sum is `worker_seconds`
    workers: list[OwnTime]

    @property
    def lost(self) -> float:
        return sum(item.seconds for item in self.items if item.cause not in NOT_LOST)

    @property
    def lost_share(self) -> float:
        return self.lost / self.worker_seconds if self.worker_seconds else 0.0

    def of(self, cause: str) -> float:
        return sum(item.seconds for item in self.items if item.cause == cause)

    def charged_to(self, worker: int | None) -> float:
        return sum(item.seconds for item in self.items if item.worker == worker and item.cause not in NOT_LOST)


class _Worker:
    def __init__(self, now: float) -> None:
        self.doing = JOINING  # or COMPUTING, WAITING
        self.since = now
        self.charged_from = now  # where it waits: from then on nobody was charged yet
        self.arrived_at = self.before = -1.0  # its latest gradient that counted, and the one before it
        self.clock = self.standing = 0
        self.useful = array("d")  # seconds of iterations
        self.wasted = array("d")
        self.spent: dict[str, float] = {}


class Billing(Observer):
    """Give it every record, then ask for the bill."""

    def __init__(self, policy: str) -> None:
        """`policy`: that the run begins with."""
        self._places = Places()
        self._workers: dict[int, _Worker] = {}  # all that there ever were
        self._members: dict[int, _Worker] = {}
        self._waiting: dict[int, _Worker] = {}
        self._clocks = Clocks()
        self._slowest = Slowest()
        self._departed: list[Arrival] = []  # that somebody waited for
        self._pending: dict[Gradient, float] = {}  # without a fate -> seconds
        self._charged: dict[tuple[int | None, str], float] = {}
        self._by_lead = _waits_for_slowest(policy)
        self._present = self._most = 0
        self._paid = 0.0

    def observe(self, record: Record) -> None:
        event, now = record.event, record.now
        if self._by_lead:
            self._charge(None, SERVER, self._slowest.note(len(self._waiting), now))
        match event:
            case GradientArrived(gradient):
                self._push(gradient, record)
            case WentBack():  # the clock went back as well: this time is beside that of the run
                again = event.seconds * len(self._members)
                self._charge(None, FAILED, again)
                self._paid += again
            case WorkerJoined():
                self._join(event, now)
            case WorkerLeft():
                self._leave(event, now)
            case WorkerReturned(worker) | BatchSkipped(worker) if worker in self._members:
                if self._members[worker].doing == COMPUTING:
                    self._begin_again(worker, FAILED if isinstance(event, WorkerReturned) else DISCARDED, now)
            case PolicyChanged(policy):
                self._settle_all(now)
                self._by_lead = _waits_for_slowest(policy)
                self._slowest.note(0, now)
            case _:
                pass
        self._follow(record)

    def _follow(self, record: Record) -> None:
        released: list[int] = []
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    released.append(worker)
                case ApplyUpdate(gradients):
                    for gradient in gradients:
                        self._workers[gradient.worker].useful.append(self._pending.pop(gradient))
                case DiscardGradient(gradient):
                    seconds = self._pending.pop(gradient)
                    self._workers[gradient.worker].wasted.append(seconds)
                    self._forget_arrival(gradient, record)
                    self._spend(gradient.worker, DISCARDED, seconds)
                case InterruptWorker(worker):
                    self._begin_again(worker, DISCARDED, record.now)
        if released:
            self._release(released, record.now)

    # -- what workers do --

    def _join(self, event: WorkerJoined, now: float) -> None:
        free = self._places.free_for(event)
        if free is not None and free.is_paid_for:
            self._pay_for_empty(free, now)
        elif free is None or free.closed:
            self._present += 1
            self._most = max(self._most, self._present)
        self._places.join(event, now)
        self._workers[event.worker] = _Worker(now)

    def _push(self, gradient: Gradient, record: Record) -> None:
        worker = self._workers[gradient.worker]
        if gradient.clock <= worker.clock:
            return  # delivered twice
        worker.clock = gradient.clock
        if worker.doing == COMPUTING:
            self._slowest.stops(gradient.worker, worker.standing)
        self._clocks.advance(gradient.worker, worker.standing)
        worker.standing += 1
        self._pending[gradient] = record.now - worker.since
        worker.before, worker.arrived_at = worker.arrived_at, record.now
        self._charge(gradient.worker, WAITING, self._slowest.cost_of(gradient.worker))
        worker.doing, worker.since, worker.charged_from = WAITING, record.now, record.now
        self._waiting[gradient.worker] = worker

    def _forget_arrival(self, gradient: Gradient, record: Record) -> None:
        """It was discarded as it came: nobody waited for it."""
        if isinstance(record.event, GradientArrived) and record.event.gradient == gradient:
            worker = self._workers[gradient.worker]
            worker.arrived_at = worker.before

    def _release(self, released: list[int], now: float) -> None:
        waited = [worker for number in released if (worker := self._waiting.get(number)) and worker.since < now]
        self._settle(waited, now)
        for number in released:
            worker = self._workers[number]
            if worker.doing == JOINING:
                self._spend(number, JOINING, now - worker.since)
                worker.standing = self._clocks.enter(number)
                self._members[number] = worker
            elif worker.doing == WAITING:
                self._stop_waiting(number, worker, now)
            else:  # a process that was resumed: what it had done was charged with its return
                continue
            worker.doing, worker.since = COMPUTING, now
            self._slowest.goes_on(number, worker.standing)
        if not self._waiting:
            self._departed.clear()

    def _begin_again(self, number: int, cause: str, now: float) -> None:
        """What it computed so far is lost."""
        worker = self._workers[number]
        self._spend(number, cause, now - worker.since)
        worker.since = now

    def _leave(self, event: WorkerLeft, now: float) -> None:
        number, worker = event.worker, self._workers.get(event.worker)
        place = self._places.leave(event, now)
        if worker is None or place is None:
            return
        at_the_end = event.reason in AT_THE_END
        failed = not (at_the_end or place.closed)
        if worker.doing == WAITING:
            self._settle([worker], now, everybody=True)
            self._stop_waiting(number, worker, now)
            self._departed.append(Arrival(worker.arrived_at, number, False))  # others may have waited for it before
        elif worker.doing == JOINING:
            self._spend(number, JOINING, now - worker.since)
        else:
            lost = EVICTED if event.reason == SENT_AWAY else DISCARDED
            self._spend(number, FAILED if failed else NO_WORK if at_the_end else lost, now - worker.since)
            self._slowest.stops(number, worker.standing)
            self._departed.append(Arrival(now, number, failed))
        self._charge(number, FAILED if failed else WAITING, self._slowest.cost_of(number))
        if self._members.pop(number, None) is not None:
            self._clocks.exit(number, worker.standing)
        worker.doing = ""
        if place.closed:
            self._present -= 1
            self._paid += now - place.opened

    # -- who pays --

    def _settle(self, waited: list[_Worker], now: float, *, everybody: bool = False) -> None:
        """Charge waits up to now. `everybody`: they do not end as they should, and still are for all that compute."""
        begins = [worker.charged_from for worker in waited if worker.charged_from < now]
        for worker in waited:
            worker.charged_from = now
        if begins and not self._by_lead:
            first = min(begins)
            arrivals = [arrival for arrival in self._departed if arrival.at > first]
            for number, worker in self._members.items():
                if worker.arrived_at > first:
                    arrivals.append(Arrival(worker.arrived_at, number, False))
                elif everybody and worker.doing == COMPUTING:
                    arrivals.append(Arrival(now, number, False))
            share_waits(begins, now, arrivals, self._charge_wait)

    def _settle_all(self, now: float) -> None:
        self._settle(list(self._waiting.values()), now, everybody=True)
        for number, seconds in self._slowest.costs().items():
            self._charge(number, WAITING, seconds)

    def _charge_wait(self, arrival: Arrival | None, seconds: float) -> None:
        if arrival is None:
            self._charge(None, SERVER, seconds)
        else:
            self._charge(arrival.worker, FAILED if arrival.failed else WAITING, seconds)

    def _stop_waiting(self, number: int, worker: _Worker, now: float) -> None:
        del self._waiting[number]
        if worker.since < now:
            worker.spent[WAITING] = worker.spent.get(WAITING, 0.0) + now - worker.since

    def _pay_for_empty(self, place: Place, now: float) -> None:
        self._spend(place.latest, NO_WORK if place.has_ended else FAILED, now - place.left_at)

    def _spend(self, number: int, cause: str, seconds: float) -> None:
        """Its own time, charged to itself."""
        if seconds:
            spent = self._workers[number].spent
            spent[cause] = spent.get(cause, 0.0) + seconds
            self._charge(number, cause, seconds)

    def _charge(self, number: int | None, cause: str, seconds: float) -> None:
        if seconds:
            self._charged[number, cause] = self._charged.get((number, cause), 0.0) + seconds

    # -- the end --

    def bill(self, end: float) -> Bill:
        """As if the run ended then. It may go on."""
        return deepcopy(self)._final(end)

    def _final(self, end: float) -> Bill:
        self._end(end)
        medians = {number: _median(worker) for number, worker in self._workers.items()}
        for number, worker in self._workers.items():
            median, useful = medians[number], np.frombuffer(worker.useful)
            if median is not None:
                beyond = float((useful[useful > median] - median).sum())
                self._spend(number, SLOW, beyond)
                self._spend(number, COMPUTING, float(useful.sum()) - beyond)
        items = [Item(number, cause, seconds) for (number, cause), seconds in self._charged.items()]
        items.sort(
            key=lambda item: (-item.seconds, CAUSES.index(item.cause), -1 if item.worker is None else item.worker)
        )
        own = [
            OwnTime(number, worker.spent, len(worker.useful) + len(worker.wasted), medians[number])
            for number, worker in sorted(self._workers.items())
        ]
        return Bill(end, self._most, self._paid, items, own)

    def _end(self, end: float) -> None:
        if self._by_lead:
            self._charge(None, SERVER, self._slowest.note(len(self._waiting), end))
        self._settle_all(end)
        for gradient, seconds in self._pending.items():
            self._spend(gradient.worker, UNFINISHED, seconds)
        for number, worker in self._workers.items():
            if worker.doing == WAITING:
                self._stop_waiting(number, worker, end)
            elif worker.doing:
                self._spend(number, UNFINISHED if worker.doing == COMPUTING else JOINING, end - worker.since)
        for place in self._places.all:
            if not place.closed:
                self._paid += end - place.opened
                if place.holder is None:
                    self._pay_for_empty(place, end)


def _median(worker: _Worker) -> float | None:
    """The lower one, of an even number."""
    times = np.frombuffer(worker.useful + worker.wasted)
    middle = (len(times) - 1) // 2
    return float(np.partition(times, middle)[middle]) if len(times) else None


def _waits_for_slowest(policy: str) -> bool:
    try:
        return build_policy(policy).waits_for_slowest
    except ConfigurationError:  # one that only its author has
        return False
