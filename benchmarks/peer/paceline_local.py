"""paceline on this machine: the public `launch`, with a loop that pushes a ready gradient and computes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from local_cycles import Flat

import paceline
from peer.measuring import Row, Settings, attempt, iterate, result


def measure(settings: Settings) -> Iterator[Row]:
    for size in settings.sizes:
        for policy in ("asp", "bsp"):
            yield attempt(f"paceline local, {policy}", size, partial(launched, size, settings, policy, device="cpu"))


def launched(size: int, settings: Settings, policy: str, **options: Any) -> float:
    """Stale gradients are not corrected: no peer does that."""
    with tempfile.TemporaryDirectory() as into:
        train = partial(push_and_pull, size=size, settings=settings, into=into, waits=policy == "bsp")
        paceline.launch(train, workers=settings.workers, policy=policy, stale="none", **options)
        return result(into, settings.workers)


def push_and_pull(worker: paceline.Worker, size: int, settings: Settings, into: str, waits: bool) -> None:
    model = Flat(size)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=1e-6)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def step() -> None:
        for parameter in parameters:  # as new as a backward pass would make it
            parameter.grad = None if parameter.grad is None else parameter.grad.detach()
        optimizer.step()

    iterate(step, worker.index, size, settings, into, waits=waits)
