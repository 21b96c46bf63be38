"""Accelerate's loop on paceline: `prepare(accelerator, worker, ...)` instead of `accelerator.prepare(...)`.

Everything else of the loop stays: `accelerator.accumulate`, `backward`, `clip_grad_norm_`, `autocast`. To Accelerate a
worker is a process of its own, so each of them is its main process: ask `worker.index` who may print.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from paceline.integrations.pushing import PushingOptimizer
from paceline.training.prepared import EpochLoader, sorted_out
from paceline.training.worker import Worker


def prepare(accelerator: Accelerator, worker: Worker, *things: Any, scheduler_every: str | int = "batch") -> Any:
    """Model, optimizer, and the loader and scheduler if any, in any order; returns what takes their place.

    `scheduler_every`: as in `worker.prepare`; "batch" is what Accelerate expects, a step of the schedule for every step
    of the optimizer, which may be that of several batches.
    """
    given = sorted_out(things)
    accumulated = accelerator.gradient_accumulation_steps
    if scheduler_every == "batch" and getattr(given.loader, "batch_size", None):
        scheduler_every = int(given.loader.batch_size * accumulated)
    prepared = worker.prepare(*things, scheduler_every=scheduler_every)
    places = {id(thing): place for thing, place in zip(things, prepared, strict=True)}
    pushing = PushingOptimizer(given.optimizer, places[id(given.optimizer)], worker)
    places[id(given.optimizer)] = AcceleratedOptimizer(pushing, device_placement=False, scaler=accelerator.scaler)

    if given.loader is not None:
        places[id(given.loader)] = CountedLoader(accelerator, places[id(given.loader)])
    return tuple(places[id(thing)] for thing in things)


class CountedLoader:
    """After an epoch Accelerate counts the batches of an accumulation anew, as with a loader of its own."""

    def __init__(self, accelerator: Accelerator, batches: EpochLoader) -> None:
        self._accelerator = accelerator
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches
        self._accelerator.step = 0
