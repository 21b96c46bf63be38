"""A whole training job as one object: for users without a loop of their own, and for the built-in tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.training.data import fetch, moved
from paceline.training.worker import Worker

EVALUATED_AT_ONCE = 512  # samples


@dataclass(frozen=True)
class Task:
    """`loss(output, target)` of batches (input, target); `optimizer`: a class, or a partial of one with its arguments.

    `metric(output, target)` is averaged over the test set beside the loss. Without one, accuracy is, where the target
    is a class number. `collate_fn` and `num_workers`: as in `worker.batches`.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    train: Any
    test: Any = None
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    batch_size: int = 32
    sharding: str = "dynamic"
    scheduler: Callable[..., Any] | None = None
    scheduler_every: int | str | None = None
    metric: Callable[[Tensor, Tensor], Tensor] | None = None
    collate_fn: Callable[[Any], Any] | None = None
    num_workers: int = 0

    def learn(self, worker: Worker) -> None:
        """What each worker runs."""
        kind, arguments = self.optimizer_parts()
        self.model.train()
        optimizer = worker.optimizer(
            self.model, kind, scheduler=self.scheduler, scheduler_every=self.scheduler_every, **arguments
        )
        batches = worker.batches(
            self.train,
            self.batch_size,
            sharding=self.sharding,
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
        )
        for x, y in batches:
            optimizer.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(loss)

    def optimizer_parts(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        given = self.optimizer
        if isinstance(given, partial):
            if given.args:
                raise ConfigurationError("name the optimizer's arguments, as in partial(torch.optim.SGD, lr=0.1)")
            kind, arguments = given.func, dict(given.keywords)
        else:
            kind, arguments = given, {}
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            return kind, arguments
        raise ConfigurationError(
            f"optimizer is {given!r}; it must be an optimizer class or a partial of one, as in"
            " functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)"
        )

    def evaluate(self, state: dict[str, Tensor]) -> dict[str, float]:
        """The figures of a state of the model on the test set."""
        model = self.model
        model.load_state_dict(state)
        model.eval()
        totals: dict[str, float] = {}
        samples = len(self.test)
        with torch.no_grad():
            for begin in range(0, samples, EVALUATED_AT_ONCE):
                indices = torch.arange(begin, min(begin + EVALUATED_AT_ONCE, samples))
                x, y = moved(fetch(self.test, indices, self.collate_fn), torch.device("cpu"))
                output = model(x)
                figures = {"loss": self.loss(output, y)}
                if self.metric is not None:
                    figures["metric"] = self.metric(output, y)
                elif output.dim() == y.dim() + 1 and not y.is_floating_point():
                    figures["accuracy"] = (output.argmax(1) == y).double().mean()
                for name, value in figures.items():
                    totals[name] = totals.get(name, 0.0) + float(value) * len(indices)
        return {name: total / samples for name, total in totals.items()}
