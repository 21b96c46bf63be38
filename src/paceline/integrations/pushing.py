"""What other libraries' loops need beside `worker.prepare`: an optimizer that is one of torch's, and pushes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
