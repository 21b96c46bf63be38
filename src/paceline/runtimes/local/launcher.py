"""Starts the workers' processes, and leaves nothing behind, however the run ends."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any

from paceline.runtimes.local.memory import create
from paceline.runtimes.local.process import run_worker
from paceline.runtimes.local.server import Seat
from paceline.training.worker import Worker

GRACE = 5.0  # seconds that a process has to end by itself


class Inherited:
    """A file descriptor that arrives in the new process as the number that it has there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self._descriptor),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


@contextmanager
def worker_processes(
    train: Callable[[Worker], None], workers: int, *, seed: int, slowdown: Mapping[int, float]
) -> Iterator[list[Seat]]:
    """The seats of a group of running processes; when the block is left, all of them have ended."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    seats: list[Seat] = []
    try:
        for index in range(workers):
            ours, theirs = context.Pipe()
            descriptor = create()
            process = context.Process(
                target=run_worker,
                args=(index, train, theirs, Inherited(descriptor)),
                kwargs={"seed": seed, "slowdown": slowdown.get(index, 1.0), "threads": threads},
                name=f"paceline worker {index}",
                daemon=True,
            )
            seats.append(Seat(index, process, ours, descriptor))
            process.start()
            theirs.close()
        yield seats
    finally:
        for seat in seats:
            seat.pipe.close()
        for seat in seats:
            _end(seat)


def _end(seat: Seat) -> None:
    if seat.process.pid is not None:
        seat.process.join(GRACE)
        if seat.process.is_alive():
            seat.process.kill()
            seat.process.join()
    os.close(seat.descriptor)
