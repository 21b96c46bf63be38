"""Where the time of a worker's loop goes: time stamps around its batches and its steps, in its own process.

The clock is the machine's monotonic one, which all processes share, so that a server's stamps can be laid beside these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from paceline.training.worker import Worker


class Enough(BaseException):
    """The loop ran for as long as was asked. Not an Exception, so that it does not swallow it."""


class Stamps(msgspec.Struct):
    """Of one worker, in seconds of the monotonic clock. What is neither data nor a step is computing."""

    worker: int
    began: float = 0.0  # when its optimizer was there
    ended: float = 0.0
    data: float = 0.0  # in the iterator of its batches
    work: float = 0.0  # waiting for work that others had, in that iterator
    batches: int = 0
    loaders: int = 0  # processes of its own that load them
    steps: list[tuple[float, float, float]] = []  # begin, end, and the pause in it by which a slow worker is emulated


class Stopwatch:
    """Puts itself between a loop and its worker. Only a worker that is measured pays for it."""

    def __init__(self, worker: Worker, seconds: float) -> None:
        """`seconds`: after so many, the loop ends with its next step."""
        self.stamps = Stamps(worker.index)
        self._seconds = seconds
        self._device = worker.device
        self._link = worker._link
        self._paused = 0.0
        self._optimizer, self._batches = worker.optimizer, worker.batches
        for name, own in (("_link", self), ("optimizer", self._make_optimizer), ("batches", self._iterate)):
            setattr(worker, name, own)

    def stop(self) -> None:
        self.stamps.ended = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        """All else that a link can do."""
        return getattr(self._link, name)

    # -- the link --

    def lease(self, *asked: Any) -> Any:
        began = time.monotonic()
        try:
            return self._link.lease(*asked)
        finally:
            self.stamps.work += time.monotonic() - began

    def pause(self, seconds: float) -> None:
        began = time.monotonic()
        self._link.pause(seconds)
        self._paused += time.monotonic() - began

    # -- what the loop uses --

    def _make_optimizer(self, *given: Any, **named: Any) -> Any:
        optimizer = self._optimizer(*given, **named)
        step = optimizer.step

        def timed(*given: Any, **named: Any) -> None:
            if self._device.type != "cpu":
                torch.accelerator.synchronize(self._device)  # what it computes belongs to computing
            began, self._paused = time.monotonic(), 0.0
            step(*given, **named)
            ended = time.monotonic()
            self.stamps.steps.append((began, ended, self._paused))
            if ended - self.stamps.began > self._seconds:
                raise Enough

        setattr(optimizer, "step", timed)  # noqa: B010  # mypy does not let a method be assigned
        self.stamps.began = time.monotonic()
        return optimizer

    def _iterate(self, *given: Any, **named: Any) -> Iterator[Any]:
        batches = iter(self._batches(*given, **named))
        own = getattr(given[0], "num_workers", 0) if given else 0  # of a DataLoader
        self.stamps.loaders = int(named.get("num_workers") or own)
        while True:
            began, waited = time.monotonic(), self.stamps.work
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.stamps.data += time.monotonic() - began - (self.stamps.work - waited)
            self.stamps.batches += 1
            yield batch
