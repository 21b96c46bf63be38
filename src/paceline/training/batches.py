"""What `worker.batches` was given, and what becomes of it: work that is leased, or batches of the worker's own.

A data set with a length and an index is leased, and so is one inside a DataLoader, which is taken apart for that.
Whatever can only be walked through is the worker's own, and so is a loader whose sampler shards already.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from paceline.core.errors import ConfigurationError
from paceline.lifecycle.messages import Place
from paceline.training.choices import SHARDINGS
from paceline.training.loading import Loading
from paceline.training.sources import Collate, Source, source_of

OWN = "own"  # each worker walks through all of it


class Options(NamedTuple):
    """As `worker.batches` takes them; None: not given."""

    batch_size: int | None = None
    collate_fn: Collate | None = None
    num_workers: int = 0
    prefetch: int | None = None
    pin_memory: bool = False
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    shuffle: bool | None = None
    drop_last: bool = False
    sharding: str | None = None
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None


class LeasedBatches(NamedTuple):
    source: Source
    loading: Loading


class OwnBatches(NamedTuple):
    walk: Callable[[Place], Iterable[Any]]  # once per epoch, as the worker's place is then


def batches_of(data: Any, options: Options, seed: int) -> LeasedBatches | OwnBatches:
    sharding = options.sharding
    if sharding is not None and sharding not in (*SHARDINGS, OWN):
        raise ConfigurationError(f"unknown sharding {sharding!r}; there are: {', '.join((*SHARDINGS, OWN))}")
    if isinstance(data, DataLoader):
        return _of_loader(data, options, seed)
    if isinstance(data, IterableDataset):  # which inherits a __getitem__ that only raises
        return _of_iterable(data, options)
    if hasattr(data, "__getitem__") and (hasattr(data, "__len__") or options.sampler or options.batch_sampler):
        return _of_dataset(data, options, seed)
    if options != Options(sharding=sharding) or sharding not in (None, OWN):
        raise ConfigurationError(
            f"worker.batches of a {type(data).__name__} takes its batches as they come, without batch_size and"
            " sharding: only what has a length and can be indexed can be cut into batches"
        )
    return OwnBatches(lambda place: data)


def _of_dataset(data: Any, options: Options, seed: int) -> LeasedBatches:
    if options.sharding == OWN:
        raise ConfigurationError(
            "sharding='own' is for loaders: give a DataLoader of this data set, and each worker walks through all of it"
        )
    loading = Loading(
        options.num_workers,
        options.prefetch,
        options.pin_memory,
        options.worker_init_fn,
        options.multiprocessing_context,
    )
    loading.check()
    source = source_of(
        data,
        options.batch_size,
        seed=seed,
        collate_fn=options.collate_fn,
        sampler=options.sampler,
        batch_sampler=options.batch_sampler,
        shuffle=options.shuffle,
        drop_last=options.drop_last,
        sharding=options.sharding or "dynamic",
        ahead=loading.ahead,
    )
    return LeasedBatches(source, loading)


# -- a DataLoader --


def _of_loader(loader: DataLoader[Any], options: Options, seed: int) -> LeasedBatches | OwnBatches:
    if options != Options(sharding=options.sharding):
        raise ConfigurationError(
            "worker.batches of a DataLoader takes batch_size, collate_fn and the like from the loader: give them there"
        )
    if isinstance(loader.dataset, IterableDataset):
        if options.sharding == "static":
            return OwnBatches(lambda place: _every_nth(loader, place))
        _refuse_leasing(loader.dataset, options.sharding)
        return OwnBatches(lambda place: loader)
    if options.sharding == OWN or _shards_already(loader):
        return OwnBatches(lambda place: loader)
    if type(loader).__iter__ is not DataLoader.__iter__:
        warnings.warn(
            f"a {type(loader).__name__} walks through its data in a way of its own, so its batches cannot be shared:"
            " each worker walks through all of it (sharding='own' says that this is meant)",
            stacklevel=4,
        )
        return OwnBatches(lambda place: loader)
    if not hasattr(loader.dataset, "__len__"):
        raise ConfigurationError(
            f"the data set of this DataLoader, a {type(loader.dataset).__name__}, has no length, so its samples cannot"
            " be leased: give it a __len__, or sharding='own'"
        )
    return _taken_apart(loader, options.sharding or "dynamic", seed)


def _shards_already(loader: DataLoader[Any]) -> bool:
    """The user gave each worker its part."""
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


def _taken_apart(loader: DataLoader[Any], sharding: str, seed: int) -> LeasedBatches:
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    loading = Loading(
        loader.num_workers,
        ahead or None,
        loader.pin_memory,
        loader.worker_init_fn,
        loader.multiprocessing_context,
        loader.timeout,
    )
    items_are_batches = loader.batch_sampler is None
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    source = source_of(
        loader.dataset,
        None,
        seed=seed,
        collate_fn=collate,
        sampler=loader.sampler if items_are_batches else None,
        batch_sampler=loader.batch_sampler,
        sharding=sharding,
        ahead=ahead,
        items_are_batches=items_are_batches,
    )
    return LeasedBatches(source, loading)


# -- what can only be walked through --


def _of_iterable(data: IterableDataset[Any], options: Options) -> OwnBatches:
    _refuse_leasing(data, options.sharding)
    given = (options.sampler, options.batch_sampler, options.shuffle)
    if given != (None, None, None) or options.prefetch is not None:
        raise ConfigurationError(
            f"a {type(data).__name__} can only be walked through: sampler, batch_sampler, shuffle and prefetch need a"
            " data set with a length and an index"
        )
    plain = options._replace(sharding=None) == Options()
    loader: Any = data
    if not plain:
        loader = DataLoader(
            data,
            batch_size=options.batch_size,
            collate_fn=options.collate_fn,
            num_workers=options.num_workers,
            pin_memory=options.pin_memory,
            drop_last=options.drop_last,
            worker_init_fn=options.worker_init_fn,
            multiprocessing_context=options.multiprocessing_context,
        )
    if options.sharding == "static":
        return OwnBatches(lambda place: EveryNth(data, place) if plain else _every_nth(loader, place))
    return OwnBatches(lambda place: loader)


def _refuse_leasing(data: Any, sharding: str | None) -> None:
    if sharding == "dynamic":
        raise ConfigurationError(
            f"a {type(data).__name__} can only be walked through, so its samples cannot be leased:"
            " sharding='static' gives each of n workers every n-th item, 'own' gives each all of them"
        )


class EveryNth(IterableDataset[Any]):
    """The items of one worker, or of one of its loader processes: every n-th, for n of them in all."""

    def __init__(self, dataset: Any, place: Place) -> None:
        self._dataset = dataset
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        loader = get_worker_info()
        number, among = (0, 1) if loader is None else (loader.id, loader.num_workers)
        rank, workers = self._place.rank, self._place.workers
        return itertools.islice(self._dataset, rank * among + number, None, workers * among)


def _every_nth(loader: DataLoader[Any], place: Place) -> DataLoader[Any]:
    processes = {}
    if loader.num_workers:
        processes = {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        EveryNth(loader.dataset, place),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **processes,
    )
