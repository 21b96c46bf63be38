"""What becomes of the samples behind the gradients: leased from a ledger, or brought along by the workers themselves.

Of batches of their own nobody knows the number, and nobody can give them back: they are only counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from paceline.core.errors import ConfigurationError
from paceline.core.messages import DataOpened, GradientArrived, Unit
from paceline.lifecycle.plan import plan_of
from paceline.lifecycle.seats import Seat, State
from paceline.lifecycle.work import NO_LIMIT, LedgerState, Limit, Work, WorkLedger


class SamplesState(msgspec.Struct, frozen=True):
    dropped: int
    work: Work | None
    ledger: LedgerState | None
    limit: Limit = NO_LIMIT
    pushed: tuple[int, int] = (0, 0)
    closed: bool = False


class Samples:
    def __init__(self, epochs: int | None, limit: Limit = NO_LIMIT) -> None:
        self.ledger: WorkLedger | None = None  # None: the workers bring batches of their own, or have not asked yet
        self.dropped = 0  # samples whose gradient was not used, and that nobody can give back
        self.epochs = epochs
        self.limit = limit
        self.recalled: list[tuple[int, tuple[Unit, ...]]] = []  # from silent workers, for others; somebody notes it
        self.opened: DataOpened | None = None  # what there is to do, once somebody asked for it
        self._work: Work | None = None
        self._pushed = (0, 0)  # gradients that workers made of batches of their own, and their samples
        self._closed = False

    def state(self) -> SamplesState:
        ledger = None if self.ledger is None else self.ledger.state()
        return SamplesState(self.dropped, self._work, ledger, self.limit, self._pushed, self._closed)

    def resume(self, state: SamplesState) -> None:
        self.dropped, self._work, self.limit = state.dropped, state.work, state.limit
        self._pushed, self._closed = state.pushed, state.closed
        self.ledger = None if state.ledger is None else WorkLedger.resumed(state.ledger)

    # -- leasing --

    def open(self, work: Work, asked_by: int, seats: Collection[Seat], active: int) -> bool:
        """From the first request for work on there is a ledger, which all must share. Returns whether this was it."""
        if self._work is None:
            if work.samples < active:
                raise ConfigurationError(
                    f"the data set has {work.samples} samples, fewer than the {active} workers: take fewer workers"
                )
            self._work = work
            static = work.sharding == "static"
            self.ledger = WorkLedger(work.samples, self.epochs, len(seats) if static else 1, self.limit.of(work))
            self.ledger.closed = self._closed
            self.opened = plan_of(work, self.epochs, self.limit.of(work), active)
            for part, seat in enumerate(seats):
                if static:
                    seat.part = part
                    if seat.state in (State.DISMISSED, State.GONE):
                        self.ledger.abandon(part)
            return True
        if (work.samples, work.sharding) != (self._work.samples, self._work.sharding):
            raise ConfigurationError(
                f"worker {asked_by} wants {work.sharding} batches of {work.samples} samples, others"
                f" {self._work.sharding} batches of {self._work.samples}: all must share one data set in one way"
            )
        if work.check != self._work.check:
            raise ConfigurationError(
                f"the data set of worker {asked_by}, or its order, is not that of the others: all must have the same;"
                " what is random in a sampler must come from torch's, NumPy's or Python's own random numbers, or from"
                " its `generator`; if each worker shall have a part of its own, give a DataLoader and sharding='own';"
                " in a run that goes on it must be what it was before: seed what a script makes up"
            )
        return False

    def deal(self, seats: Sequence[Seat], sharers: int, *, asked: bool = False) -> list[tuple[Unit, ...]]:
        """What each of these processes is given now: the units of its next gradient and some ahead, as far as it does
        not have them, as with two steps per batch. `asked`: it asks for one more.

        They are dealt one by one, like cards, so that who computes what does not hang on how many are ahead. `sharers`:
        the members that share the rest. Towards the end nobody gets more ahead than its share of that, or the slow ones
        would have to finish alone.
        """
        given: list[list[Unit]] = [[] for _ in seats]
        going = list(zip(seats, given, strict=True))
        while going:
            going = [(seat, units) for seat, units in going if self._deal_one(seat, units, sharers, asked)]
        return [tuple(units) for units in given]

    def _deal_one(self, seat: Seat, units: list[Unit], sharers: int, asked: bool) -> bool:
        """Returns whether it may be given one more."""
        ledger, work = self.ledger, seat.work
        if ledger is None or work is None or seat.state is State.LEAVING or seat.told_last:
            return False
        needs = (asked and not units) or self.leased_by(seat) < seat.gathers
        if not needs:
            left = ledger.units_left(work.batch_size) if work.ahead else 0
            if self.leased_by(seat) >= seat.gathers + min(work.ahead, left // max(1, sharers)):
                return False
        unit = self._lease(seat, ledger, work, needs)
        if unit is None:
            return False
        units.append(unit)
        return work.ahead > 0 or ledger.leased_by(seat.worker) < seat.gathers

    def _lease(self, seat: Seat, ledger: WorkLedger, work: Work, needs: bool) -> Unit | None:
        """What somebody silent has is only taken by one that has nothing else to do."""
        unit = ledger.lease(seat.worker, work.batch_size, seat.part)
        if unit is None and needs and ledger.available:
            self.recalled.append(ledger.recall())
            unit = ledger.lease(seat.worker, work.batch_size, seat.part)
        return unit

    def leased_by(self, seat: Seat) -> int:
        """How many units this process has."""
        return 0 if self.ledger is None else self.ledger.leased_by(seat.worker)

    @property
    def came_back(self) -> bool:
        """Whether there is work for a process that has none."""
        return self.ledger is not None and self.ledger.available

    @property
    def returned(self) -> int:
        """Samples that came back, and nobody is at."""
        return 0 if self.ledger is None else self.ledger.returned

    @property
    def all_done(self) -> bool:
        """Whether no work can come back any more."""
        ledger = self.ledger
        return ledger is not None and not (ledger.remaining or ledger.outstanding)

    @property
    def asked(self) -> int | None:
        """Samples that the run is to apply in all; None: nobody knows."""
        if self.ledger is None or self._work is None or self._work.whole is not None:
            return None
        return self.ledger.asked

    def close(self) -> None:
        """Give nothing out any more: what workers are at is the last."""
        self._closed = True
        if self.ledger is not None:
            self.ledger.closed = True

    @property
    def enough(self) -> bool:
        """Whether those with batches of their own have made as many gradients as were wanted."""
        (gradients, samples), limit = self._pushed, self.limit
        return (
            self._closed
            or (limit.batches is not None and gradients >= limit.batches)
            or (limit.samples is not None and samples >= limit.samples)
        )

    # -- fates --

    def behind(self, worker: int, units: int) -> tuple[Unit, ...]:
        """The units that the worker's next gradient is made of."""
        return () if self.ledger is None else self.ledger.oldest(worker, units)

    def hand_in(self, worker: int, units: int, samples: int) -> None:
        if self.ledger is not None:
            self.ledger.hand_in(worker, units)
        else:
            self._pushed = self._pushed[0] + 1, self._pushed[1] + samples

    def applied(self, arrived: GradientArrived) -> None:
        if self.ledger is not None:
            self.ledger.finish(arrived.units)

    def discarded(self, arrived: GradientArrived) -> None:
        if self.ledger is not None and arrived.units:
            self.ledger.give_back(arrived.units)
        else:
            self.dropped += arrived.samples

    def skipped(self, worker: int, samples: int, units: int) -> tuple[Unit, ...]:
        """A gradient was not finite, and was never handed in."""
        self.dropped += samples
        return () if self.ledger is None else self.ledger.drop(worker, units)

    def interrupted(self, worker: int, samples: int, units: int) -> tuple[Unit, ...]:
        """The worker dropped what it was at. Returns what is given out again."""
        if self.ledger is not None and units:
            return self.ledger.release(worker, units)
        self.dropped += samples
        return ()

    def left(self, worker: int) -> tuple[Unit, ...]:
        """The worker is gone. Returns what is given out again; what it pushed keeps its units until it has a fate."""
        return () if self.ledger is None else self.ledger.release(worker)

    def hold(self, seat: Seat) -> int:
        """The worker is silent: what it is at waits for it as long as there is anything else to do. Returns how many
        units that are."""
        if self.ledger is None:
            return 0
        self.abandon(seat)
        return self.ledger.hold(seat.worker)

    def take_up(self, worker: int, again: int) -> int:
        """It is back under another id. Returns how many units it still has."""
        return 0 if self.ledger is None else self.ledger.take_up(worker, again)

    def recall(self, worker: int) -> None:
        """It will not come back."""
        if self.ledger is not None:
            self.recalled.append(self.ledger.recall(worker))

    def abandon(self, seat: Seat) -> None:
        """The process is gone, or is about to be: its part of the data set is for anybody."""
        if self.ledger is not None and seat.part is not None:
            self.ledger.abandon(seat.part)
