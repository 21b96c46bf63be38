"""Computes gradients of a task for many workers with one model, which takes on whatever parameters are given."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.core.messages import Unit
from paceline.training.data import order_of
from paceline.training.layout import Layout, layout_of
from paceline.training.optimizers import OptimizerSpec, spec_of
from paceline.training.sources import Fetcher, Wanted, seed_of
from paceline.training.task import Task

ORDERS_KEPT = 3  # epochs whose order is remembered, per part of the data


class DivergedError(PacelineError):
    """A loss is not finite; the message names the worker, and the parameter if it is its fault."""


class Gradients:
    def __init__(self, task: Task, seed: int) -> None:
        self.task = replace(task, model=copy.deepcopy(task.model))
        self.layout: Layout = layout_of(self.task.model)
        self.buffers = dict(self.task.model.named_buffers())
        named = dict(self.task.model.named_parameters())
        self.frozen = {name: parameter for name, parameter in named.items() if not parameter.requires_grad}
        self._parameters = [parameter for parameter in named.values() if parameter.requires_grad]
        self.initial = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        self._seed = seed
        self._fetcher = Fetcher(task.train, task.collate_fn)
        self._orders: dict[tuple[int, int], Tensor] = {}
        self.absent: tuple[int, ...] = ()  # parameters that the latest gradient is not about
        self.task.model.train()

    def optimizer_spec(self) -> OptimizerSpec:
        kind, arguments = self.task.optimizer_parts()
        names = {id(parameter): name for name, parameter in self.task.model.named_parameters()}
        spec = spec_of(self.layout, names, kind, None, arguments)
        return spec._replace(scheduler=self.task.scheduler, scheduler_every=self.task.scheduler_every)

    def compute(
        self, parameters: Sequence[Tensor], buffers: dict[str, Tensor], units: Sequence[Unit], into: Tensor, worker: int
    ) -> float:
        """The gradient of these units at these parameters goes into a flat tensor; returns the loss.

        `buffers` are used and changed as a worker's own model would. Only the loss is looked at: a gradient that is not
        finite makes parameters of its kind, and they the next loss.
        """
        for parameter, given in zip(self._parameters, parameters, strict=True):
            parameter.data = given.to(parameter.dtype)
            parameter.grad = None
        for name, buffer in self.buffers.items():
            buffer.data = buffers[name]
        task, samples = self.task, len(self.task.train)
        parts = [self._order(samples, unit)[unit.begin : unit.end] for unit in units]
        indices = parts[0] if len(parts) == 1 else torch.cat(parts)
        x, y = self._fetcher.here(Wanted(indices, seed_of(self._seed, units[0])))
        loss = task.loss(task.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.absent = tuple(number for number, each in enumerate(self._parameters) if each.grad is None)
        torch.cat([_gradient_of(parameter).reshape(-1) for parameter in self._parameters], out=into)
        value = float(loss.detach())
        if not math.isfinite(value):
            self._refuse(worker, parameters)
        return value

    def _order(self, samples: int, unit: Unit) -> Tensor:
        key = (unit.epoch, unit.part)
        if key not in self._orders:
            if len(self._orders) >= ORDERS_KEPT * unit.parts:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = order_of(samples, self._seed, unit.epoch, unit.part, unit.parts)
        return self._orders[key]

    def _refuse(self, worker: int, parameters: Sequence[Tensor]) -> None:
        named = zip((entry.name for entry in self.layout.parameters), parameters, strict=True)
        spoilt = next((name for name, parameter in named if not torch.isfinite(parameter).all()), None)
        because = "" if spoilt is None else f", nor is parameter {spoilt!r} that it was computed with"
        raise DivergedError(f"worker {worker}: the loss is not finite{because}: the run diverged")


def _gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
