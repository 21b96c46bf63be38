"""Loads leased batches: one by one where they are used, or ahead of that in loader processes.

A worker is given a few units more than it needs for its next gradient, and its loader processes (torch's own, of one
DataLoader that lives as long as the run) load them meanwhile. The loader is never left waiting for a unit: where none
is here it is given an empty one, which comes back as quickly and is left out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, get_worker_info

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Unit
from paceline.lifecycle.work import Work
from paceline.training.sources import Fetcher, Source, Wanted

PREFETCH_FACTOR = 2  # batches per loader process, as torch has it


class Loading(NamedTuple):
    """How batches are loaded; the names are torch's."""

    num_workers: int = 0
    prefetch: int | None = None  # batches ahead, over all loader processes
    pin_memory: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    timeout: float = 0.0

    @property
    def ahead(self) -> int:
        return PREFETCH_FACTOR * self.num_workers if self.prefetch is None else self.prefetch

    def check(self) -> None:
        if self.num_workers < 0:
            raise ConfigurationError(f"num_workers is {self.num_workers}; it must be 0 or more")
        if self.prefetch is not None and self.num_workers == 0:
            raise ConfigurationError("prefetch needs loader processes: give num_workers as well")
        if self.prefetch is not None and self.prefetch < 1:
            raise ConfigurationError(f"prefetch is {self.prefetch}; it must be at least 1")


class Leases(Protocol):
    """The part of a worker's link that gives work."""

    def lease(self, work: Work) -> tuple[Unit | None, bool]:
        """The next unit, if there is one, and whether new parameters came with it: the worker may have waited long."""

    def take(self) -> Unit | None:
        """The next unit, if it is here already."""

    @property
    def prefetches(self) -> bool:
        """Whether units may be taken before they are used."""


class Loaded(NamedTuple):
    batch: Any
    samples: int
    epoch: int


def loaded(
    link: Leases,
    source: Source,
    loading: Loading,
    *,
    pinned: bool,
    used: Callable[[], int],
    renewed: Callable[[], None],
) -> Iterator[Loaded]:
    """Batches, until there are none left for this worker.

    `pinned`: into page-locked memory. `used`: how many there were since the last push. `renewed`: called when new
    parameters have come with work.
    """
    if loading.num_workers and link.prefetches:
        return iter(_Ahead(link, source, loading, pinned, used, renewed))
    return _one_by_one(link, source, renewed, threads=1 if loading.num_workers else None)


def _one_by_one(link: Leases, source: Source, renewed: Callable[[], None], threads: int | None) -> Iterator[Loaded]:
    """`threads`: of torch, while a batch is loaded. A loader process has one, and may sum in another order."""
    while True:
        unit, new = link.lease(source.work)
        if unit is None:
            return
        if new:
            renewed()
        with _threads(threads):
            batch = source.fetcher.here(source.wanted(unit))
        yield Loaded(batch, source.samples(unit, batch), unit.epoch)


class _Ahead:
    def __init__(
        self,
        link: Leases,
        source: Source,
        loading: Loading,
        pinned: bool,
        used: Callable[[], int],
        renewed: Callable[[], None],
    ) -> None:
        self._link = link
        self._source = source
        self._used = used
        self._renewed = renewed
        self._here: deque[Unit] = deque()  # not given to the loader yet
        self._given: deque[Unit | None] = deque()  # to the loader, in order; None: an empty one
        self._loading = 0  # units among these
        self._loader = _loader(source.fetcher, self._feed(), loading, pinned)

    def __iter__(self) -> Iterator[Loaded]:
        batches: Iterator[Any] | None = None
        while self._has_more():
            if batches is None:
                batches = iter(self._loader)  # starts its processes
            batch = next(batches)
            unit = self._given.popleft()
            if unit is not None:
                self._loading -= 1
                yield Loaded(batch, self._source.samples(unit, batch), unit.epoch)

    def _feed(self) -> Iterator[Wanted | None]:
        """What the loader takes next."""
        while True:
            unit = self._here.popleft() if self._here else None
            self._given.append(unit)
            self._loading += unit is not None
            yield None if unit is None else self._source.wanted(unit)

    def _has_more(self) -> bool:
        """Whether there is another batch. Asks for more where too little came along with the parameters: at the
        beginning, when all is used up, and in the middle of a gradient of many batches."""
        while (unit := self._link.take()) is not None:
            self._here.append(unit)
        if not self._here and (self._loading == 0 or (self._used() and self._loading <= self._source.work.ahead // 2)):
            unit, new = self._link.lease(self._source.work)
            if new:
                self._renewed()
            if unit is not None:
                self._here.append(unit)
                while (unit := self._link.take()) is not None:
                    self._here.append(unit)
        return bool(self._here or self._loading)


def _loader(fetcher: Fetcher, feed: Iterator[Wanted | None], loading: Loading, pinned: bool) -> DataLoader[Any]:
    return DataLoader(
        fetcher,
        batch_size=None,
        sampler=feed,
        collate_fn=_as_it_is,
        num_workers=loading.num_workers,
        prefetch_factor=-(-loading.ahead // loading.num_workers),
        pin_memory=pinned,
        timeout=loading.timeout,
        worker_init_fn=_Beginning(loading.worker_init_fn),
        multiprocessing_context=loading.multiprocessing_context,
        generator=torch.Generator().manual_seed(0),  # or it would draw a seed from the loop's random numbers
    )


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class _Beginning:
    """What a loader process does first."""

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        information = get_worker_info()
        assert information is not None and isinstance(information.dataset, Fetcher)
        object.__setattr__(information, "dataset", information.dataset.dataset)  # the user's: the object is frozen
        if self.worker_init_fn is not None:
            self.worker_init_fn(number)


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
