"""What is leased: a data set, the order of each epoch, and how the samples of a unit become a batch.

Every worker makes the same source of the same arguments, so that a unit, which only says where in an epoch's order it
lies, is the same samples for all of them. A sampler of the user's is walked through with random numbers that follow
from the run's seed and the epoch. What is random in the data set itself, such as augmentation, is drawn anew for every
unit: so a unit is the same batch whoever loads it, in which process, and however often.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler, Subset, TensorDataset

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.lifecycle.work import Work
from paceline.training.data import fetch, is_indexed_at_once, order_of
from paceline.training.randomness import mixed, numbers_of, numbers_of_sampler, seed_here

Collate: TypeAlias = Callable[[Any], Any]
Order: TypeAlias = Callable[[int, int, int], Sequence[Any] | Tensor]  # of an epoch, a part, and how many parts
ORDERS_KEPT = 3  # of the latest epochs and parts: units are leased ahead, and come back


class Wanted(NamedTuple):
    """A unit as those who fetch it see it."""

    indices: Any  # of its samples; of a data set whose items are batches, of one item
    seed: int


class Fetcher(Dataset[Any]):
    """Turns what is wanted into batches; as a data set, for the loader processes of torch."""

    def __init__(self, dataset: Any, collate_fn: Collate | None, items_are_batches: bool = False) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._items_are_batches = items_are_batches

    def __getitem__(self, wanted: Wanted | None) -> Any:
        """In a loader process. None: the loader asked, and nothing was there to be loaded."""
        if wanted is None:
            return None
        seed_here(wanted.seed)
        return self._fetch(wanted.indices)

    def here(self, wanted: Wanted) -> Any:
        """In the worker's own process, whose random numbers are the loop's."""
        if is_indexed_at_once(self.dataset, self._collate_fn):
            return self._fetch(wanted.indices)
        with numbers_of(wanted.seed):
            return self._fetch(wanted.indices)

    def _fetch(self, indices: Any) -> Any:
        if not self._items_are_batches:
            return fetch(self.dataset, indices, self._collate_fn)
        item = self.dataset[indices]
        return item if self._collate_fn is None else self._collate_fn(item)


def seed_of(seed: int, unit: Unit) -> int:
    """Of what is random when this unit is fetched."""
    return mixed(seed, unit.epoch, unit.part, unit.begin, 1)


class Source:
    def __init__(self, fetcher: Fetcher, work: Work, order: Order, seed: int, *, items_are_batches: bool) -> None:
        self.fetcher = fetcher
        self.work = work
        self._order = order
        self._seed = seed
        self._items_are_batches = items_are_batches
        self._orders: dict[tuple[int, int], Sequence[Any] | Tensor] = {}

    def wanted(self, unit: Unit) -> Wanted:
        order, seed = self._order_of(unit), seed_of(self._seed, unit)
        if self._items_are_batches or self.work.whole is not None:
            return Wanted(order[unit.begin], seed)
        return Wanted(order[unit.begin : unit.end], seed)

    def samples(self, unit: Unit, batch: Any) -> int:
        """How many samples the batch of this unit has: as many as the unit, whatever the batch looks like. An item that
        is a batch counts as one: in these epochs, limits and schedules are counted."""
        return unit.samples if self.work.whole is None else len(self._order_of(unit)[unit.begin])

    def _order_of(self, unit: Unit) -> Sequence[Any] | Tensor:
        key = (unit.epoch, unit.part)
        if key not in self._orders:
            if len(self._orders) >= ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = self._order(unit.epoch, unit.part, unit.parts)
        return self._orders[key]


class _Walk:
    """The order that a sampler of the user's gives."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self.first = self._walk(0)
        if self._walk(0) != self.first:
            raise ConfigurationError(
                f"the {type(sampler).__name__} has another order each time, so workers would not agree on one: what is"
                " random in it must come from torch's, NumPy's or Python's own random numbers, or from its `generator`"
            )

    def _walk(self, epoch: int) -> list[Any]:
        with numbers_of_sampler(self._sampler, mixed(self._seed, epoch)):
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            return list(self._sampler)

    def __call__(self, epoch: int, part: int, parts: int) -> list[Any]:
        found = self._walk(epoch)
        if len(found) != len(self.first):
            raise ConfigurationError(
                f"the {type(self._sampler).__name__} gives {len(found)} in epoch {epoch + 1}, and gave"
                f" {len(self.first)} in the first: it must be as many in every epoch"
            )
        return found[part::parts]

    @property
    def checksum(self) -> int:
        return zlib.crc32(repr(self.first).encode())


def source_of(
    dataset: Any,
    batch_size: int | None,
    *,
    seed: int,
    collate_fn: Collate | None = None,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Any] | None = None,
    shuffle: bool | None = None,
    drop_last: bool = False,
    sharding: str = "dynamic",
    ahead: int = 0,
    items_are_batches: bool = False,
) -> Source:
    """`items_are_batches`: each item of the data set is one, as in a DataLoader with batch_size=None."""
    _refuse_contradictions(batch_size, sampler, batch_sampler, shuffle, drop_last, sharding, items_are_batches)
    if type(batch_sampler) is BatchSampler:
        sampler, batch_size = batch_sampler.sampler, batch_sampler.batch_size
        drop_last, batch_sampler = batch_sampler.drop_last, None
    whole: int | None = None
    order: Order
    walked = batch_sampler if batch_sampler is not None else sampler
    if walked is None or _is_plain(walked, dataset):
        samples = len(dataset)
        in_order = shuffle is False or type(walked) is SequentialSampler
        order = _InOrder(samples) if in_order else _Shuffled(samples, seed)
        checksum = int(in_order)
    else:
        walk = order = _Walk(walked, seed)
        samples, checksum = len(walk.first), walk.checksum
        if batch_sampler is not None:
            whole = sum(map(len, walk.first))
    size = batch_size if batch_sampler is None and batch_size is not None else 1
    if drop_last:
        samples -= samples % size
        if samples == 0:
            raise ConfigurationError(f"the data set is smaller than one batch of {size}, and drop_last drops it")
    work = Work(samples, size, sharding, ahead, zlib.crc32(repr((checksum, _content_of(dataset))).encode()), whole)
    fetcher = Fetcher(dataset, collate_fn, items_are_batches)
    return Source(fetcher, work, order, seed, items_are_batches=items_are_batches)


@dataclass(frozen=True)
class _Shuffled:
    samples: int
    seed: int

    def __call__(self, epoch: int, part: int, parts: int) -> Tensor:
        return order_of(self.samples, self.seed, epoch, part, parts)


@dataclass(frozen=True)
class _InOrder:
    samples: int

    def __call__(self, epoch: int, part: int, parts: int) -> Tensor:
        return torch.arange(part, self.samples, parts)


def _content_of(dataset: Any) -> Any:
    """Something by which to see that somebody gave each worker a part of its own. Of most data sets nothing is known
    without running code of the user's."""
    if isinstance(dataset, Subset):
        return zlib.crc32(repr(list(dataset.indices)).encode()), _content_of(dataset.dataset)
    if type(dataset) is TensorDataset and len(dataset):
        ends = [tensor[[0, -1]] for tensor in dataset.tensors if tensor.device.type == "cpu"]
        return [zlib.crc32(end.contiguous().view(torch.uint8).numpy().tobytes()) for end in ends if not end.is_sparse]
    return None


def _is_plain(sampler: Any, dataset: Any) -> bool:
    """One that torch makes of shuffle=True or False: there is nothing in it to walk through."""
    if type(sampler) is SequentialSampler:
        return len(sampler) == len(dataset)
    return type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)


def _refuse_contradictions(
    batch_size: int | None,
    sampler: Any,
    batch_sampler: Any,
    shuffle: bool | None,
    drop_last: bool,
    sharding: str,
    items_are_batches: bool,
) -> None:
    problem = None
    if batch_sampler is not None:
        if batch_size is not None or sampler is not None or shuffle or drop_last:
            problem = "a batch_sampler makes whole batches: leave out batch_size, sampler, shuffle and drop_last"
    elif batch_size is None and not items_are_batches:
        problem = "worker.batches of a data set needs a batch_size"
    elif batch_size is not None and batch_size < 1:
        problem = f"batch_size is {batch_size}; it must be at least 1"
    elif sampler is not None and shuffle:
        problem = "a sampler says what the order is: leave out shuffle"
    elif drop_last and sharding == "static":
        problem = "drop_last and sharding='static' do not go together: each part would end in a batch of its own"
    if problem is not None:
        raise ConfigurationError(problem)
