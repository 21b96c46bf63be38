"""The limit of memory: one update and one copy of the parameters with torch alone, which nobody can do without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.multiprocessing

from peer.measuring import Row, Settings, case, iterate, rows_of


def measure(settings: Settings) -> Iterator[Row]:
    for name, processes in (("bare add_ + copy_, one process", 1), ("bare add_ + copy_, two at a time", 2)):
        run = partial(_spawn, name, replace(settings, workers=processes))
        yield from rows_of(run, [(name, size) for size in settings.sizes], processes)


def _spawn(name: str, settings: Settings, into: str) -> None:
    torch.multiprocessing.spawn(_add_and_copy, (name, settings, into), nprocs=settings.workers)


def _add_and_copy(index: int, name: str, settings: Settings, into: str) -> None:
    torch.set_num_threads(1)
    for size in settings.sizes:
        gradient, parameters, replica = torch.ones(size), torch.zeros(size), torch.zeros(size)

        def step(gradient=gradient, parameters=parameters, replica=replica) -> None:
            parameters.add_(gradient, alpha=-1e-6)
            replica.copy_(parameters)

        iterate(step, index, size, settings, case(into, name, size), waits=False)
