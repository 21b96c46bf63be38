"""Who works on which samples: units of work that are leased, given back, and never lost.

An epoch is a permutation of the data set, decided by (seed, epoch) alone, cut into units of one batch. A worker leases
the next unit, so that fast workers take more. A unit is done when its gradient was applied; if its gradient was
discarded or its worker died it goes back, and somebody else takes it. So every sample counts once per epoch.
"""

from __future__ import annotations

from collections import deque

import msgspec
import torch

from paceline.core.errors import ConfigurationError


class Unit(msgspec.Struct, frozen=True):
    """One batch of one epoch: positions begin..end of that epoch's permutation."""

    epoch: int
    begin: int
    end: int


def order_of(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch; every process computes the same."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


class WorkLedger:
    """The server's book of units: waiting, leased, done."""

    def __init__(self, samples: int, batch_size: int, epochs: int) -> None:
        if samples < 1:
            raise ConfigurationError("the data set is empty: there is nothing to train on")
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}; it must be at least 1")
        self.samples = samples
        self.batch_size = batch_size
        self.epochs = epochs
        self.applied = 0  # samples whose gradient became part of an update
        self._next = Unit(0, 0, min(batch_size, samples))
        self._returned: deque[Unit] = deque()
        self._leased: dict[int, deque[Unit]] = {}

    def lease(self, worker: int) -> Unit | None:
        """The next unit for this worker; None: all are given out. Returned ones go first, to close their epoch soon."""
        if self._returned:
            unit = self._returned.popleft()
        elif self._next.epoch < self.epochs:
            unit, self._next = self._next, self._after(self._next)
        else:
            return None
        self._leased.setdefault(worker, deque()).append(unit)
        return unit

    def _after(self, unit: Unit) -> Unit:
        if unit.end < self.samples:
            return Unit(unit.epoch, unit.end, min(unit.end + self.batch_size, self.samples))
        return Unit(unit.epoch + 1, 0, min(self.batch_size, self.samples))

    def finish(self, worker: int, units: int = 1) -> None:
        """The gradient of this worker's oldest leased units was applied."""
        for _ in range(units):
            unit = self._leased[worker].popleft()
            self.applied += unit.end - unit.begin

    def give_back(self, worker: int, units: int | None = None) -> None:
        """The gradient of the oldest leased units was discarded; None: the worker is gone, with all that it had."""
        leased = self._leased.get(worker, deque())
        for _ in range(len(leased) if units is None else units):
            self._returned.append(leased.popleft())

    @property
    def returned(self) -> int:
        """Units that came back and wait for somebody."""
        return len(self._returned)

    @property
    def outstanding(self) -> int:
        """Units that somebody works on."""
        return sum(map(len, self._leased.values()))

    @property
    def complete(self) -> bool:
        """Every sample of every epoch was applied."""
        return self.applied == self.samples * self.epochs
