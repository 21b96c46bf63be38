"""What other libraries' loops need beside `worker.prepare`: a torch optimizer that pushes, and an epoch's real end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from paceline.training.prepared import EpochLoader
from paceline.training.remote_optimizer import RemoteOptimizer
from paceline.training.worker import Worker


class PushingOptimizer(torch.optim.Optimizer):
    """A torch optimizer to look at; `step` computes the gradient by the closure, if there is one, and pushes it."""

    def __init__(self, made: torch.optim.Optimizer, remote: RemoteOptimizer, worker: Worker) -> None:
        super().__init__(made.param_groups, made.defaults)
        self._remote = remote
        self._worker = worker

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        if any(parameter.grad is not None for group in self.param_groups for parameter in group["params"]):
            self._remote.step(loss if isinstance(loss, Tensor) else None)
        else:
            self._worker.skip()  # the batch had no loss
        return loss

    def flush(self) -> None:
        """Push what was accumulated and not stepped with."""
        if any(self._worker.in_hand()):
            self.step()
            self.zero_grad()


class FlushedLoader:
    """An epoch's batches, however many of them this worker gets, and then `flush`: nobody can know which one is the
    last, on which an accumulation would end."""

    def __init__(self, batches: EpochLoader, flush: Callable[[], None]) -> None:
        self._batches = batches
        self._flush = flush

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches
        self._flush()
