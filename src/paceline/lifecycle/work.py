"""Which worker works on which samples: units of work that are leased, given back, and never lost.

An epoch is an order of the data set, decided by (seed, epoch) alone, and a unit is a stretch of it, as long as the
batch of the worker that takes it. With dynamic sharding the group shares one order, so that fast workers take more.
With static sharding (the papers' way) the data set is cut into one part per worker at the beginning, and every worker
walks through orders of its own part; the part of a worker that is gone is up for anybody.

A worker may have several units: those that its next gradient is made of, and behind them some that it will need soon,
and loads meanwhile. It uses them in the order in which it was given them.

A unit is done when its gradient was applied. If that was discarded or its worker died it goes back, and another worker
takes it. So every sample counts once per epoch, or is counted as dropped.

A run ends after so many epochs, batches or samples, or when the ledger is closed. The limits count what is given out
for the first time: what comes back is given again, and costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from paceline.core.errors import ConfigurationError, ProtocolError
from paceline.core.messages import Unit


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What a worker asks for: batches of this size, of a data set of this size.

    Where a sampler of the user's makes whole batches, what is leased are these: one of them counts as one sample here.
    """

    samples: int
    batch_size: int
    sharding: str = "dynamic"
    ahead: int = 0  # units that it wants beyond those of its next gradient, to load them meanwhile
    check: int = 0  # a checksum of the data set and its order, as far as they can be known: all must have the same
    whole: int | None = None  # samples of an epoch, where units are whole batches

    @property
    def epoch_samples(self) -> int:
        return self.samples if self.whole is None else self.whole


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of what the whole group is given, beside its epochs; None: there is no such limit."""

    batches: int | None = None
    samples: int | None = None

    def of(self, work: Work) -> Limit:
        """In units of this work: of whole batches nobody knows how many samples each has, so they count as equal."""
        if work.whole is None or self.samples is None:
            return self
        return Limit(self.batches, -(-self.samples * work.samples // work.whole))


NO_LIMIT = Limit()


class LedgerState(msgspec.Struct, frozen=True):
    """A ledger between two events, as a value that JSON can hold."""

    samples: int
    epochs: int | None
    parts: int
    applied: int
    dropped: int
    undecided: int
    at: dict[int, tuple[int, int]]
    unowned: list[int]
    returned: list[Unit]
    leased: dict[int, list[Unit]]
    limit: Limit = NO_LIMIT
    batches: int = 0
    closed: bool = False


class WorkLedger:
    """The group's book of units: not yet given out, returned, leased, without a fate, done."""

    def __init__(self, samples: int, epochs: int | None, parts: int = 1, limit: Limit = NO_LIMIT) -> None:
        """`epochs`: None, if the data set is walked through as often as the other limits allow."""
        if samples < 1:
            raise ConfigurationError("the data set is empty: there is nothing to train on")
        self.samples = samples
        self.epochs = epochs
        self.parts = parts
        self.limit = limit
        self.closed = False  # nothing is given out any more, nor given again
        self.batches = 0  # that were given out for the first time
        self.applied = 0  # samples whose gradient became part of an update
        self.dropped = 0  # samples whose gradient was not finite, and was skipped
        # The epoch and position up to which each part was given out; with more parts than samples some do not exist.
        self._at = dict.fromkeys(range(min(parts, samples)), (0, 0))
        self._unowned = [0] if parts == 1 else []  # the parts that are for anybody
        self._returned: deque[Unit] = deque()
        self._leased: dict[int, deque[Unit]] = {}
        self._again: dict[int, deque[Unit]] = {}  # leased by workers whose processes are new, and do not know it yet
        self._held: dict[int, deque[Unit]] = {}  # of workers that are silent: given out again last of all
        self._undecided = 0  # samples of gradients without a fate

    def state(self) -> LedgerState:
        return LedgerState(
            self.samples,
            self.epochs,
            self.parts,
            self.applied,
            self.dropped,
            self._undecided,
            dict(self._at),
            list(self._unowned),
            [*self._returned, *(unit for units in self._held.values() for unit in units)],
            {worker: self._all_of(worker) for worker in {**self._leased, **self._again} if self._all_of(worker)},
            self.limit,
            self.batches,
            self.closed,
        )

    @classmethod
    def resumed(cls, state: LedgerState) -> WorkLedger:
        """What another ledger was. Every process is a new one, so what workers had is given to them again."""
        ledger = cls(state.samples, state.epochs, state.parts, state.limit)
        ledger.batches, ledger.closed = state.batches, state.closed
        ledger.applied, ledger.dropped, ledger._undecided = state.applied, state.dropped, state.undecided
        ledger._at = {part: (epoch, begin) for part, (epoch, begin) in state.at.items()}
        ledger._unowned = list(state.unowned)
        ledger._returned = deque(state.returned)
        ledger._again = {worker: deque(units) for worker, units in state.leased.items()}
        return ledger

    def _all_of(self, worker: int) -> list[Unit]:
        return [*self._leased.get(worker, ()), *self._again.get(worker, ())]

    def lease(self, worker: int, batch_size: int, part: int | None = None) -> Unit | None:
        """The next unit for this worker, from its own part if it has one; None: there is none for it at present.

        Returned ones go first, to close their epoch soon.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}; it must be at least 1")
        unit = _cut(self._again.get(worker), batch_size)
        if unit is None and not self.closed:
            unit = _cut(self._returned, batch_size)
        if unit is None and part in self._at:
            unit = self._from_part(part, batch_size)
        while unit is None and self._unowned and not self.full:
            unit = self._from_part(self._unowned[0], batch_size)
            if unit is None:
                self._unowned.pop(0)
        if unit is not None:
            self._leased.setdefault(worker, deque()).append(unit)
        return unit

    def _from_part(self, part: int, batch_size: int) -> Unit | None:
        epoch, begin = self._at[part]
        if epoch == self.epochs or self.full:
            return None
        size = self._size(part)
        end = min(begin + batch_size, size)
        if self.limit.samples is not None:
            end = min(end, begin + self.limit.samples - self.given)
        self.batches += 1
        self._at[part] = (epoch, end) if end < size else (epoch + 1, 0)
        return Unit(epoch, begin, end, part, self.parts)

    @property
    def given(self) -> int:
        """Samples that were given out, once per epoch."""
        return sum(epoch * self._size(part) + begin for part, (epoch, begin) in self._at.items())

    @property
    def full(self) -> bool:
        """Whether nothing new is given out: a limit was reached, or somebody ended the run."""
        limit = self.limit
        if self.closed or (limit.batches is not None and self.batches >= limit.batches):
            return True
        return limit.samples is not None and self.given >= limit.samples

    def _size(self, part: int) -> int:
        return len(range(part, self.samples, self.parts))

    def oldest(self, worker: int, units: int) -> tuple[Unit, ...]:
        """The first units that this worker has: those that its next gradient is made of."""
        leased = self._leased.get(worker, ())
        if units > len(leased):
            raise ProtocolError(worker, "computing", f"hands in {units} units of work, and has {len(leased)}")
        return tuple(leased[number] for number in range(units))

    def hand_in(self, worker: int, units: int = 1) -> tuple[Unit, ...]:
        """The worker pushed the gradient of its oldest units; they are part of it until its fate is known."""
        handed_in = tuple(self._leased[worker].popleft() for _ in range(units))
        self._undecided += _samples(handed_in)
        return handed_in

    def finish(self, units: Sequence[Unit]) -> None:
        """The gradient of these units was applied."""
        self._undecided -= _samples(units)
        self.applied += _samples(units)

    def give_back(self, units: Sequence[Unit]) -> None:
        """The gradient of these units was discarded."""
        self._undecided -= _samples(units)
        self._returned.extend(units)

    def drop(self, worker: int, units: int = 1) -> tuple[Unit, ...]:
        """The worker skips the oldest batches that it has: their gradient is not finite."""
        skipped = tuple(self._leased[worker].popleft() for _ in range(units))
        self.dropped += _samples(skipped)
        return skipped

    def release(self, worker: int, units: int | None = None) -> tuple[Unit, ...]:
        """The worker gives up the oldest units that it has, or all; what it handed in is not among them."""
        leased = self._leased.get(worker, deque())
        count = len(leased) if units is None else units
        returned = [leased.popleft() for _ in range(count)]
        if units is None:
            returned.extend(self._again.pop(worker, ()))
        self._returned.extend(returned)
        return tuple(returned)

    def hold(self, worker: int) -> int:
        """The worker is silent: others get what it has when there is nothing else to do. Returns how many units."""
        units = self._leased.pop(worker, None)
        if not units:
            return 0
        self._held[worker] = units
        return len(units)

    def take_up(self, worker: int, again: int) -> int:
        """A worker that was silent is back, under another id. Returns how many units it still has."""
        units = self._held.pop(worker, None)
        if not units:
            return 0
        self._leased[again] = units
        return len(units)

    def recall(self, worker: int | None = None) -> tuple[int, tuple[Unit, ...]]:
        """Take what this silent worker has, or the one that has been so for longest. Returns who it was, and what."""
        if worker is None:
            worker = next(iter(self._held), -1)
        units = tuple(self._held.pop(worker, ()))
        self._returned.extend(units)
        return worker, units

    def leased_by(self, worker: int) -> int:
        """How many units this worker has, and has not handed in."""
        return len(self._leased.get(worker, ()))

    def abandon(self, part: int) -> None:
        """The owner of this part is gone: it is up for anybody."""
        if self.parts > 1 and part in self._at and part not in self._unowned:
            self._unowned.append(part)

    @property
    def available(self) -> bool:
        """Whether any worker could be given something."""
        if self.closed:
            return False
        return bool(self._returned or self._held) or (not self.full and any(map(self._goes_on, self._unowned)))

    def _goes_on(self, part: int) -> bool:
        return self.epochs is None or self._at[part][0] < self.epochs

    @property
    def workers(self) -> list[int]:
        """The workers that have units."""
        return [worker for worker, units in (*self._leased.items(), *self._again.items()) if units]

    @property
    def undecided(self) -> int:
        """Samples of gradients that have no fate yet."""
        return self._undecided

    @property
    def leased(self) -> int:
        """Samples that workers are at."""
        return sum(map(_samples, (*self._leased.values(), *self._again.values(), *self._held.values())))

    @property
    def outstanding(self) -> int:
        """Samples that are still to get a fate: workers are at them, or have pushed their gradient. Once the ledger is
        closed nobody waits for those of silent workers."""
        held = sum(map(_samples, self._held.values())) if self.closed else 0
        return self.leased - held + self._undecided

    @property
    def remaining(self) -> int:
        """Samples that will be given out, or given again; of a run without an end in sight, at least an epoch."""
        if self.closed:
            return 0
        if self.full:
            ahead = 0
        else:
            asked = self._asked
            ahead = self.samples if asked is None else asked - self.given
        return ahead + self.returned

    def units_left(self, batch_size: int) -> int:
        """How many of this size will be given out, or given again, as far as that can be foretold."""
        left = -(-self.remaining // batch_size)
        if self.limit.batches is None or self.closed:
            return left
        return min(left, max(0, self.limit.batches - self.batches) + -(-self.returned // batch_size))

    @property
    def _asked(self) -> int | None:
        epochs = None if self.epochs is None else self.samples * self.epochs
        ends = [end for end in (epochs, self.limit.samples) if end is not None]
        return min(ends) if ends else None

    @property
    def asked(self) -> int | None:
        """Samples that the run is to apply in all; None: somebody else ends it, or batches that are still to come."""
        if self.limit.batches is None:
            return self._asked
        return self.given if self.batches >= self.limit.batches or self.given == self._asked else None

    @property
    def returned(self) -> int:
        """Samples that came back, and nobody is at."""
        return _samples(self._returned) if self._returned else 0

    @property
    def complete(self) -> bool:
        """Everything was given out, and was applied, or dropped."""
        return not self.remaining and self.applied + self.dropped == self.given


def _cut(units: deque[Unit] | None, batch_size: int) -> Unit | None:
    """The first of these, or as much of it as is wanted: it may have been of larger batches."""
    if not units:
        return None
    unit = units.popleft()
    if unit.samples > batch_size:
        units.appendleft(msgspec.structs.replace(unit, begin=unit.begin + batch_size))
        unit = msgspec.structs.replace(unit, end=unit.begin + batch_size)
    return unit


def _samples(units: Sequence[Unit]) -> int:
    return sum(unit.samples for unit in units)
