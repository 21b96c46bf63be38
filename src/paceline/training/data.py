"""Who works on which samples: units of work that are leased, given back, and never lost.

An epoch is a permutation of the data set, decided by (seed, epoch) alone, and a unit is a stretch of it, as long as the
batch of the worker that takes it. With dynamic sharding the group shares one permutation, so that fast workers take
more. With static sharding (the papers' way) the data set is cut into one part per worker at the beginning, and every
worker walks through permutations of its own part; the part of a worker that is gone is up for anybody.

A unit is done when its gradient was applied. If that was discarded or its worker died it goes back, and somebody else
takes it. So every sample counts once per epoch, or is counted as dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from paceline.core.errors import ConfigurationError


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """Positions begin..end of one epoch's permutation, of the whole data set or of one part of it."""

    epoch: int
    begin: int
    end: int
    part: int = 0
    parts: int = 1

    @property
    def samples(self) -> int:
        return self.end - self.begin


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What a worker asks for: batches of this size, of a data set of this size."""

    samples: int
    batch_size: int
    sharding: str = "dynamic"


def order_of(samples: int, seed: int, epoch: int, part: int = 0, parts: int = 1) -> Tensor:
    """The samples of an epoch in their order; every process computes the same."""
    if parts == 1:
        return torch.randperm(samples, generator=_generator(seed, epoch))
    own = torch.randperm(samples, generator=_generator(seed, 0))[part::parts]
    return own[torch.randperm(len(own), generator=_generator(seed, epoch, 1 + part))]


def _generator(*numbers: int) -> torch.Generator:
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number) % 2**63
    return torch.Generator().manual_seed(mixed)


class WorkLedger:
    """The server's book of units: not yet given out, returned, leased, done."""

    def __init__(self, samples: int, epochs: int, parts: int = 1) -> None:
        if samples < 1:
            raise ConfigurationError("the data set is empty: there is nothing to train on")
        self.samples = samples
        self.epochs = epochs
        self.parts = parts
        self.applied = 0  # samples whose gradient became part of an update
        self.dropped = 0  # samples whose gradient was not finite, and was skipped
        # The epoch and position up to which each part was given out; with more parts than samples some are empty.
        self._at = {part: (0, 0) if part < samples else (epochs, 0) for part in range(parts)}
        self._unowned = [0] if parts == 1 else []  # the parts that are for anybody
        self._returned: deque[Unit] = deque()
        self._leased: dict[int, deque[Unit]] = {}
        self._undecided = 0  # units of gradients without a fate

    def lease(self, worker: int, batch_size: int, part: int | None = None) -> Unit | None:
        """The next unit for this worker, from its own part if it has one; None: there is none for it at present.

        Returned ones go first, to close their epoch soon.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}; it must be at least 1")
        unit = self._from_returned(batch_size)
        if unit is None and part in self._at:
            unit = self._from_part(part, batch_size)
        while unit is None and self._unowned:
            unit = self._from_part(self._unowned[0], batch_size)
            if unit is None:
                self._unowned.pop(0)
        if unit is not None:
            self._leased.setdefault(worker, deque()).append(unit)
        return unit

    def _from_returned(self, batch_size: int) -> Unit | None:
        if not self._returned:
            return None
        unit = self._returned.popleft()
        if unit.samples > batch_size:  # it was somebody's with larger batches
            self._returned.appendleft(msgspec.structs.replace(unit, begin=unit.begin + batch_size))
            unit = msgspec.structs.replace(unit, end=unit.begin + batch_size)
        return unit

    def _from_part(self, part: int, batch_size: int) -> Unit | None:
        epoch, begin = self._at[part]
        if epoch == self.epochs:
            return None
        size = len(range(part, self.samples, self.parts))
        end = min(begin + batch_size, size)
        self._at[part] = (epoch, end) if end < size else (epoch + 1, 0)
        return Unit(epoch, begin, end, part, self.parts)

    def hand_in(self, worker: int, units: int = 1) -> tuple[Unit, ...]:
        """The worker pushed the gradient of its oldest leased units; they are part of it until its fate is known."""
        self._undecided += units
        return tuple(self._leased[worker].popleft() for _ in range(units))

    def finish(self, units: Sequence[Unit]) -> None:
        """The gradient of these units was applied."""
        self._undecided -= len(units)
        self.applied += sum(unit.samples for unit in units)

    def give_back(self, units: Sequence[Unit]) -> None:
        """The gradient of these units was discarded."""
        self._undecided -= len(units)
        self._returned.extend(units)

    def drop(self, worker: int, units: int = 1) -> None:
        """The worker skips the oldest batches that it has: their gradient is not finite."""
        self.dropped += sum(self._leased[worker].popleft().samples for _ in range(units))

    def release(self, worker: int, units: int | None = None) -> None:
        """The worker gives up the newest units that it has, or all; what it handed in is not among them."""
        leased = self._leased.get(worker, deque())
        count = len(leased) if units is None else units
        self._returned.extend([leased.pop() for _ in range(count)][::-1])

    def leased_by(self, worker: int) -> int:
        """How many units this worker has, and has not handed in."""
        return len(self._leased.get(worker, ()))

    def abandon(self, part: int) -> None:
        """Whose part this was is gone: it is up for anybody."""
        if self.parts > 1 and part in self._at and part not in self._unowned:
            self._unowned.append(part)

    @property
    def available(self) -> bool:
        """Whether anybody could be given something."""
        return bool(self._returned) or any(self._at[part][0] < self.epochs for part in self._unowned)

    @property
    def outstanding(self) -> int:
        """Units that somebody works on, or whose gradient has no fate yet."""
        return sum(map(len, self._leased.values())) + self._undecided

    @property
    def complete(self) -> bool:
        """Every sample of every epoch was applied, or dropped."""
        return self.applied + self.dropped == self.samples * self.epochs


def units_as_numbers(units: Sequence[Unit]) -> tuple[tuple[int, ...], ...]:
    """As an event carries them: the core knows no units."""
    return tuple((unit.epoch, unit.begin, unit.end, unit.part, unit.parts) for unit in units)


def units_from_numbers(numbers: Sequence[Sequence[int]]) -> list[Unit]:
    return [Unit(*each) for each in numbers]


def fetch(dataset: Any, indices: Tensor) -> Any:
    """These samples as one batch. A tuple of tensors is indexed at once, anything else sample by sample."""
    if type(dataset) is TensorDataset:
        return tuple(tensor[indices] for tensor in dataset.tensors)
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(indices.tolist()))
    return default_collate([dataset[index] for index in indices.tolist()])


def moved(batch: Any, device: torch.device) -> Any:
    """The same batch on a device, whatever it is made of."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(each, device) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(each, device) for each in batch)
    return batch


def samples_of(batch: Any) -> int:
    """How many samples a batch of the user's own has: the length of its first tensor; 1 if there is none."""
    first = next(_tensors_of(batch), None)
    return len(first) if first is not None and first.dim() else 1


def _tensors_of(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        for each in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors_of(each)
