"""Real gradients for workers that exist only in virtual time.

One model computes for all of them. Each worker holds the parameters that it pulled, and those who pulled the same
version share one copy. A gradient is computed when it is due, on what its worker holds, and then goes the same way as
in a real run: aggregation, parameter store, ledger.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.messages import ApplyUpdate, DiscardGradient, Gradient, GradientArrived, Statistics
from paceline.training.aggregation import Aggregation, Arrived
from paceline.training.data import Unit, WorkLedger, units_as_numbers
from paceline.training.gradients import Gradients
from paceline.training.layout import average, squared_norm, views
from paceline.training.parameters import ParameterStore
from paceline.training.task import Task
from paceline.training.worker import seed_everything


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
    part: int | None
    unit: Unit | None = None


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
        self._gradients = Gradients(task, seed)
        self._judge = replace(task, model=copy.deepcopy(task.model))
        spec = self._gradients.optimizer_spec()
        self.store = ParameterStore(self._gradients.layout, self._gradients.initial, spec, lr_scaling)
        self.store.epoch_samples = len(task.train)
        self.ledger = WorkLedger(len(task.train), epochs, workers if task.sharding == "static" else 1)
        self._aggregation = Aggregation(self.store, statistics, self.ledger)
        self._workers: dict[int, _Worker] = {}
        self._gone: dict[int, _Worker] = {}  # their buffers still count
        self._versions: list[_Version] = []
        self._free: list[Tensor] = []  # memory of gradients whose fate is decided
        self._lent: dict[Gradient, Tensor] = {}

    # -- what happens to workers --

    def pull(self, worker: int, part: int | None = None) -> bool:
        """The worker takes the newest parameters and its next work; False: there is none for it."""
        state = self._workers.get(worker)
        if state is None:
            own = part if self.ledger.parts > 1 else None
            state = self._workers[worker] = _Worker(self._newest(), self._average_buffers(), own)
        else:
            state.holds.holders -= 1
            state.holds = self._newest()
        state.holds.holders += 1
        self._aggregation.enter(worker)
        self.ledger.release(worker)  # if it was interrupted, it has something
        state.unit = self.ledger.lease(worker, self._gradients.task.batch_size, state.part)
        return state.unit is not None

    def push(self, gradient: Gradient) -> GradientArrived:
        """The worker's gradient is due: compute it, and say what arrived."""
        state = self._workers[gradient.worker]
        assert state.unit is not None
        flat = self._free.pop() if self._free else torch.empty_like(self.store.flat)
        holds = state.holds
        loss = self._gradients.compute(holds.parameters, state.buffers, [state.unit], flat, gradient.worker)
        self._lent[gradient] = flat
        samples = state.unit.samples
        norm = squared_norm(flat) if self._aggregation.statistics else None  # while it is in the cache
        units = self._aggregation.arrive(gradient, Arrived(flat, samples, loss, norm), 1)
        return GradientArrived(gradient, holds.number, samples, loss, units_as_numbers(units))

    def leave(self, worker: int, reason: str) -> None:
        state = self._workers.pop(worker, None)
        if state is not None:
            state.holds.holders -= 1
            self._gone[worker] = state
            if state.part is not None:
                self.ledger.abandon(state.part)
            self._aggregation.leave(worker, reason)

    @property
    def work_came_back(self) -> bool:
        return self.ledger.available

    # -- commands --

    def apply(self, command: ApplyUpdate) -> Statistics | None:
        seen = self._aggregation.apply(command)
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
        tensors |= {name: each.detach().clone() for name, each in self._gradients.frozen.items()}
        tensors |= self._average_buffers()
        return {key: tensors[name] for key, name in self.store.layout.keys}

    def evaluate(self) -> dict[str, float]:
        """The figures of the present state on the task's test set."""
        return self._judge.evaluate(self.state())

    def _average_buffers(self) -> dict[str, Tensor]:
        held = [each.buffers for each in (self._gone | self._workers).values()]
        return average(held or [self._gradients.buffers], self.store.layout.averaged)

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
