"""Real gradients for workers that exist only in virtual time.

One model computes for all of them. Each worker holds the parameters that it pulled, and those who pulled the same
version share one copy. A gradient is computed when it is due, on what its worker holds, and then goes the same way as
in a real run: aggregation, parameter store, ledger.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.core.messages import ApplyUpdate, DiscardGradient, Gradient, Statistics
from paceline.training.aggregation import Aggregation
from paceline.training.data import Unit, WorkLedger, fetch, order_of
from paceline.training.layout import layout_of, views
from paceline.training.parameters import ParameterStore, spec_of
from paceline.training.task import Task
from paceline.training.worker import seed_everything


class DivergedError(PacelineError):
    """A gradient is not finite; the message names the worker and the parameter."""


@dataclass(eq=False)
class _Version:
    """The parameters of one version, for everybody who pulled it."""

    flat: Tensor
    parameters: list[Tensor]  # views of flat
    number: int = -1
    holders: int = 0


@dataclass(eq=False)
class _Worker:
    holds: _Version
    buffers: dict[str, Tensor]
    unit: Unit | None = None
    part: int | None = None


class Learner:
    def __init__(
        self,
        task: Task,
        *,
        workers: int,
        epochs: int,
        seed: int,
        lr_scaling: str = "linear",
        statistics: bool = False,
    ) -> None:
        seed_everything(seed)
        self._task = replace(task, model=copy.deepcopy(task.model))
        self._judge = replace(task, model=copy.deepcopy(task.model))
        self._model = self._task.model
        self._seed = seed
        layout = layout_of(self._model)
        kind, arguments = task.optimizer_parts()
        names = {id(each): name for name, each in self._model.named_parameters()}
        spec = spec_of(layout, names, kind, None, arguments)
        spec = spec._replace(scheduler=task.scheduler, scheduler_every=task.scheduler_every)
        self._parameters = [each for each in self._model.parameters() if each.requires_grad]
        self._names = [entry.name for entry in layout.parameters]
        self._buffers = dict(self._model.named_buffers())
        initial = torch.cat([each.detach().reshape(-1) for each in self._parameters])
        self.store = ParameterStore(layout, initial, spec, lr_scaling)
        self.ledger = WorkLedger(len(task.train), epochs, workers if task.sharding == "static" else 1)
        self.store.epoch_samples = len(task.train)
        self._aggregation = Aggregation(self.store, statistics, self.ledger)
        self._workers: dict[int, _Worker] = {}
        self._gone: dict[int, _Worker] = {}  # their buffers still count
        self._versions: list[_Version] = []
        self._free: list[Tensor] = []  # gradients whose fate is decided
        self._lent: dict[Gradient, Tensor] = {}
        self._order: dict[tuple[int, int], Tensor] = {}
        self._model.train()

    # -- what happens to workers --

    def pull(self, worker: int, part: int | None = None) -> bool:
        """The worker takes the newest parameters and its next work; False: there is none for it."""
        state = self._workers.get(worker)
        if state is None:
            own = part if self.ledger.parts > 1 else None
            state = self._workers[worker] = _Worker(self._newest(), self._joiners_buffers(), part=own)
        else:
            state.holds.holders -= 1
            state.holds = self._newest()
        state.holds.holders += 1
        if state.unit is not None:  # it was interrupted, and has not pushed it
            self.ledger.release(worker)
        state.unit = self.ledger.lease(worker, self._task.batch_size, state.part)
        return state.unit is not None

    def push(self, gradient: Gradient) -> tuple[int, float]:
        """The worker's gradient is due: its samples and its loss."""
        state = self._workers[gradient.worker]
        unit, state.unit = state.unit, None
        assert unit is not None
        loss = self._backward(state, unit)
        flat = self._free.pop() if self._free else torch.empty_like(self.store.flat)
        torch.cat([_grad(each).reshape(-1) for each in self._parameters], out=flat)
        if not math.isfinite(flat.sum().item()):
            self._refuse(gradient.worker, flat)
        self._lent[gradient] = flat
        self._aggregation.arrive(gradient, flat, unit.samples, 1, loss)
        return unit.samples, loss

    def leave(self, worker: int) -> None:
        state = self._workers.pop(worker, None)
        if state is not None:
            state.holds.holders -= 1
            self._gone[worker] = state
            if state.part is not None:
                self.ledger.abandon(state.part)
            self._aggregation.leave(worker)

    @property
    def work_came_back(self) -> bool:
        return self.ledger.available

    # -- commands --

    def apply(self, command: ApplyUpdate, members: int) -> Statistics | None:
        seen = self._aggregation.apply(command, members)
        for gradient in command.gradients:
            self._free.append(self._lent.pop(gradient))
        return seen

    def discard(self, command: DiscardGradient) -> None:
        self._aggregation.discard(command)
        self._free.append(self._lent.pop(command.gradient))

    # -- the model --

    def state(self) -> dict[str, Tensor]:
        """What state_dict() of the model would be: the store's parameters, and the average of the workers' buffers."""
        tensors = {name: each.clone() for name, each in self.store.parameters.items()}
        tensors |= {name: each.detach().clone() for name, each in self._model.named_parameters() if name not in tensors}
        tensors |= self._joiners_buffers()
        return {key: tensors[name] for key, name in self.store.layout.keys}

    def evaluate(self) -> dict[str, float]:
        """The figures of the present state on the task's test set."""
        return self._judge.evaluate(self.state())

    def _joiners_buffers(self) -> dict[str, Tensor]:
        held = [each.buffers for each in (self._gone | self._workers).values()]
        if not held:
            return {name: each.clone() for name, each in self._buffers.items()}
        return {
            name: torch.stack([each[name] for each in held]).mean(0) if first.is_floating_point() else first.clone()
            for name, first in held[0].items()
        }

    def _newest(self) -> _Version:
        for each in self._versions:
            if each.number == self.store.version:
                return each
        free = next((each for each in self._versions if each.holders == 0), None)
        if free is None:
            flat = torch.empty_like(self.store.flat)
            free = _Version(flat, list(views(flat, self.store.layout.parameters).values()))
            self._versions.append(free)
        free.flat.copy_(self.store.flat)
        free.number = self.store.version
        return free

    def _backward(self, state: _Worker, unit: Unit) -> float:
        for parameter, held in zip(self._parameters, state.holds.parameters, strict=True):
            parameter.data = held
            parameter.grad = None
        for name, buffer in self._buffers.items():
            buffer.data = state.buffers[name]
        key = (unit.epoch, unit.part)
        if key not in self._order:
            if len(self._order) > 2 * unit.parts:
                del self._order[next(iter(self._order))]
            self._order[key] = order_of(self.ledger.samples, self._seed, unit.epoch, unit.part, unit.parts)
        x, y = fetch(self._task.train, self._order[key][unit.begin : unit.end])
        loss = self._task.loss(self._model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _refuse(self, worker: int, flat: Tensor) -> None:
        for name, part in views(flat, self.store.layout.parameters).items():
            if not torch.isfinite(part).all():
                raise DivergedError(f"worker {worker}: the gradient of {name!r} is not finite: the run diverged")


def _grad(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise PacelineError("a parameter has no gradient: freeze what is not trained with requires_grad_(False)")
    return parameter.grad
