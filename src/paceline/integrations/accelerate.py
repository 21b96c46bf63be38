"""Accelerate's loop on paceline: `prepare(accelerator, worker, ...)` instead of `accelerator.prepare(...)`.

Everything else of the loop stays: `accelerator.accumulate`, `backward`, `clip_grad_norm_`, `autocast`. To Accelerate a
worker is a process of its own, so each of them is its main process: ask `worker.index` who may print.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from paceline.integrations.pushing import FlushedLoader, PushingOptimizer
from paceline.training.prepared import sorted_out
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

    def flush() -> None:
        pushing.flush()
        accelerator.step = 0  # as at the end of a loader of Accelerate's own

    if given.loader is not None:
        places[id(given.loader)] = FlushedLoader(places[id(given.loader)], flush)
    return tuple(places[id(thing)] for thing in things)
