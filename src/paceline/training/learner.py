"""Real gradients for workers that exist only in virtual time.

One model computes for all of them. Each worker holds the parameters that it pulled, and those that pulled the same
version share one copy. A gradient is computed when it is due, on what its worker holds, and then goes the same way as
in a real run: lifecycle, aggregation, parameter store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.core.messages import Gradient, Unit, UpdateApplied
from paceline.lifecycle.messages import MakeUpdate
from paceline.lifecycle.validation import PortView
from paceline.lifecycle.work import Work
from paceline.training.aggregation import Aggregation
from paceline.training.choices import AS_USUAL, UpdateOptions
from paceline.training.gradients import Gradients
from paceline.training.layout import average, squared_norm, views
from paceline.training.parameters import ParameterStore
from paceline.training.task import Task
from paceline.training.worker import seed_everything


@dataclass(eq=False)
class _Version:
    """The parameters of one version, for every worker that pulled it."""

    flat: Tensor
    parameters: list[Tensor]  # views of flat
    number: int = -1
    holders: int = 0


@dataclass(eq=False)
class _Replica:
    """What one worker has."""

    holds: _Version
    unit: Unit | None = None


class Learner:
    """What the simulator asks for gradients and updates. Workers are named by their seats."""

    def __init__(
        self,
        task: Task,
        *,
        epochs: int,
        seed: int,
        updates: UpdateOptions = AS_USUAL,
        statistics: bool = False,
    ) -> None:
        seed_everything(seed)
        self._gradients = Gradients(task, seed)
        self._evaluated = replace(task, model=copy.deepcopy(task.model))
        spec = self._gradients.optimizer_spec()
        self.store = ParameterStore(self._gradients.layout, self._gradients.initial, spec, updates)
        self.store.epoch_samples = len(task.train)
        self.work = Work(len(task.train), task.batch_size, task.sharding)
        self.epochs = epochs
        self.trained: Callable[[], Sequence[int]] = list  # the seats whose buffers are the group's
        self._aggregation = Aggregation(self.store, statistics=statistics, owns_memory=True)
        self._replicas: dict[int, _Replica] = {}
        self._buffers: dict[int, dict[str, Tensor]] = {}  # of every worker that ever pulled
        self._versions: list[_Version] = []

    # -- what happens to workers --

    def pull(self, seat: int, unit: Unit | None) -> None:
        """The worker takes the newest parameters and its next work."""
        replica = self._replicas.get(seat)
        if replica is None:
            self._buffers[seat] = self._average_buffers()
            replica = self._replicas[seat] = _Replica(self._newest())
        else:
            replica.holds.holders -= 1
            replica.holds = self._newest()
        replica.holds.holders += 1
        replica.unit = unit

    def lease(self, seat: int, unit: Unit) -> None:
        self._replicas[seat].unit = unit

    def push(self, seat: int) -> tuple[int, float]:
        """The worker's gradient is due: compute it. Returns its samples and its loss."""
        replica = self._replicas[seat]
        assert replica.unit is not None
        free = self._aggregation.free
        flat = free.pop() if free else torch.empty_like(self.store.flat)
        loss = self._gradients.compute(replica.holds.parameters, self._buffers[seat], [replica.unit], flat, seat)
        norm = squared_norm(flat) if self._aggregation.statistics else None  # while it is in the cache
        self._aggregation.hand_in(seat, flat, norm, replica.holds.flat, self._gradients.absent)
        return replica.unit.samples, loss

    def leave(self, seat: int) -> None:
        """The worker failed. Its buffers are kept, for the case that nobody else is left."""
        replica = self._replicas.pop(seat, None)
        if replica is not None:
            replica.holds.holders -= 1

    # -- commands --

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        return self._aggregation.make_update(command)

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None:
        self._aggregation.set_aside(gradient, seat, version)

    def discard(self, gradient: Gradient, seat: int) -> None:
        self._aggregation.discard(gradient, seat)

    def view(self) -> PortView:
        return self._aggregation.view()

    # -- the model --

    def state(self) -> dict[str, Tensor]:
        """What state_dict() of the model would be: the store's parameters, and the average of the workers' buffers."""
        tensors = {name: tensor.clone() for name, tensor in self.store.parameters.items()}
        tensors |= {name: tensor.detach().clone() for name, tensor in self._gradients.frozen.items()}
        tensors |= self._average_buffers()
        return {key: tensors[name] for key, name in self.store.layout.keys}

    def evaluate(self) -> dict[str, float]:
        """The figures of the present state on the task's test set."""
        return self._evaluated.evaluate(self.state())

    def _average_buffers(self) -> dict[str, Tensor]:
        """Of the group as it is now; if nobody is left, of all workers that there were."""
        trained = [self._buffers[seat] for seat in self.trained() if seat in self._buffers]
        held = trained or list(self._buffers.values()) or [self._gradients.buffers]
        return average(held, self.store.layout.averaged)

    def _newest(self) -> _Version:
        for version in self._versions:
            if version.number == self.store.version:
                return version
        free = next((version for version in self._versions if version.holders == 0), None)
        if free is None:
            flat = torch.empty_like(self.store.flat)
            free = _Version(flat, list(views(flat, self.store.layout.parameters).values()))
            self._versions.append(free)
        free.flat.copy_(self.store.flat)
        free.number = self.store.version
        return free
