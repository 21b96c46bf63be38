"""What a user's loop talks to: the worker, its batches, and an optimizer whose real self lives on the server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from paceline.core.errors import PacelineError
from paceline.training.data import Unit, order_of
from paceline.training.layout import Layout, Segment, layout_of, views
from paceline.training.parameters import OptimizerSpec


class GradientError(PacelineError):
    """A gradient is missing or not finite; the message names the worker and the parameter."""


class Link(Protocol):
    """A worker's way to the server. Every method returns when the worker may go on."""

    def enter(self, layout: Layout, spec: OptimizerSpec) -> Segment:
        """Map the segment; after `begin` it holds the server's parameters."""

    def begin(self) -> None: ...

    def lease(self, samples: int, batch_size: int) -> Unit | None: ...

    def push(self, samples: int, units: int, loss: float | None) -> None:
        """Hand in the gradient in the segment, wait as the policy says, and come back with new parameters."""


class Worker:
    """One member of the group, as the `train` function of a user sees it."""

    def __init__(self, index: int, link: Link, *, seed: int, slowdown: float = 1.0) -> None:
        self.index = index
        self.seed = seed
        self.device = torch.device("cpu")
        self._link = link
        self._slowdown = slowdown
        self._samples = 0  # of the batches since the last step
        self._units = 0

    def optimizer(
        self,
        model: nn.Module,
        kind: type[torch.optim.Optimizer],
        *,
        groups: Sequence[dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> RemoteOptimizer:
        """Hand the model over to the server, which keeps its parameters and this optimizer.

        `groups`: parameter groups as torch takes them, if not all parameters are treated alike.
        """
        layout = layout_of(model)
        names = {id(each): name for name, each in model.named_parameters()}
        grouped: list[tuple[list[str], dict[str, Any]]] = [([entry.name for entry in layout.parameters], {})]
        if groups is not None:
            options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
            grouped = [
                ([names[id(each)] for each in group["params"]], own) for group, own in zip(groups, options, strict=True)
            ]
        segment = self._link.enter(layout, OptimizerSpec(kind, arguments, grouped))
        segment.bind(model)
        self._link.begin()
        return RemoteOptimizer(self, model, segment)

    def batches(self, dataset: Any, batch_size: int) -> Iterator[Any]:
        """Batches of a data set, each sample once per epoch over the whole group; fast workers get more of them."""
        size = len(dataset)
        epoch, order = -1, torch.empty(0)
        while (unit := self._link.lease(size, batch_size)) is not None:
            if unit.epoch != epoch:
                epoch, order = unit.epoch, order_of(size, self.seed, unit.epoch)
            self._samples += unit.end - unit.begin
            self._units += 1
            yield fetch(dataset, order[unit.begin : unit.end])

    def push(self, loss: float | None, began: float) -> None:
        if self._slowdown > 1:
            time.sleep((self._slowdown - 1) * (time.monotonic() - began))
        samples, units = max(1, self._samples), self._units
        self._samples = self._units = 0
        self._link.push(samples, units, loss)


class RemoteOptimizer:
    """Looks like a torch optimizer. `step` pushes the gradient, waits as the policy says, and pulls new parameters."""

    def __init__(self, worker: Worker, model: nn.Module, segment: Segment) -> None:
        self._worker = worker
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._segment = segment
        self._slots = list(views(segment.gradient, segment.layout.parameters).values())
        self._released_at = time.monotonic()
        self.zero_grad()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self._parameters.values():
            each.grad = None

    def step(self, loss: Tensor | float | None = None) -> None:
        gradients = [each.grad for each in self._parameters.values()]
        for name, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is None:
                raise GradientError(
                    f"worker {self._worker.index}: parameter {name!r} has no gradient; call backward() before step(),"
                    " and freeze what is not trained with requires_grad_(False)"
                )
        torch._foreach_copy_(self._slots, gradients)  # type: ignore[arg-type]
        if not torch.isfinite(self._segment.gradient.sum()):
            self._refuse()
        value = loss.item() if isinstance(loss, Tensor) else loss
        self._worker.push(value, self._released_at)
        self._released_at = time.monotonic()

    def _refuse(self) -> None:
        for name, slot in zip(self._parameters, self._slots, strict=True):
            if not torch.isfinite(slot).all():
                raise GradientError(f"worker {self._worker.index}: the gradient of {name!r} is not finite")


def fetch(dataset: Any, indices: Tensor) -> Any:
    """These samples as one batch. A tuple of tensors is indexed at once, anything else sample by sample."""
    if isinstance(dataset, torch.utils.data.TensorDataset):
        return tuple(tensor[indices] for tensor in dataset.tensors)
    return default_collate([dataset[index] for index in indices.tolist()])
