"""Trains again what a trace says was trained, and comes to the same weights.

A trace names the samples of every gradient, the version that it was computed on, and the update that used it. So a run
on real processes can be followed in one process, gradient by gradient. Buffers and random layers are the exception:
work that was dropped is not in the trace.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.core.errors import TraceError
from paceline.core.messages import ApplyUpdate, DiscardGradient, GradientArrived, SendParameters, WorkerLeft
from paceline.recording.trace import Record
from paceline.training.aggregation import Aggregation, Arrived
from paceline.training.data import units_from_numbers
from paceline.training.gradients import Gradients
from paceline.training.layout import views
from paceline.training.parameters import ParameterStore
from paceline.training.task import Task


def retrain(
    records: Iterable[Record], task: Task, *, seed: int, lr_scaling: str = "linear", threads: int = 1
) -> dict[str, Tensor]:
    """The parameters, by name, that the recorded run came to: to the bit, with the threads that its workers had."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        follower = _Follower(task, seed, lr_scaling)
        for record in records:
            follower.follow(record)
    finally:
        torch.set_num_threads(before)
    return {name: parameter.clone() for name, parameter in follower.store.parameters.items()}


class _Follower:
    def __init__(self, task: Task, seed: int, lr_scaling: str) -> None:
        self._gradients = Gradients(task, seed)
        self.store = ParameterStore(
            self._gradients.layout, self._gradients.initial, self._gradients.optimizer_spec(), lr_scaling
        )
        self.store.epoch_samples = len(task.train)
        self._aggregation = Aggregation(self.store, statistics=False)
        self._held: dict[int, int] = {}  # the least version that each member may compute on
        self._versions: dict[int, Tensor] = {0: self.store.flat.clone()}
        self._buffers: dict[int, dict[str, Tensor]] = {}

    def follow(self, record: Record) -> None:
        match record.event:
            case GradientArrived():
                self._arrive(record.event)
            case WorkerLeft(worker, reason):
                self._held.pop(worker, None)
                self._aggregation.leave(worker, reason)
            case _:
                pass
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    self._held[worker] = self.store.version
                    self._aggregation.enter(worker)
                case ApplyUpdate():
                    self._aggregation.apply(command)
                    self._keep_version()
                case DiscardGradient():
                    self._aggregation.discard(command)
                case _:
                    pass

    def _arrive(self, event: GradientArrived) -> None:
        if not event.units:
            raise TraceError(
                f"the trace does not say which samples {event.gradient} was made of: the run had batches of its own"
            )
        worker = event.gradient.worker
        if worker not in self._buffers:
            self._buffers[worker] = {name: buffer.clone() for name, buffer in self._gradients.buffers.items()}
        flat = torch.empty_like(self.store.flat)
        parameters = list(views(self._versions[event.version], self.store.layout.parameters).values())
        units = units_from_numbers(event.units)
        loss = self._gradients.compute(parameters, self._buffers[worker], units, flat, worker)
        self._aggregation.arrive(event.gradient, Arrived(flat, event.samples, loss), 0)

    def _keep_version(self) -> None:
        self._versions[self.store.version] = self.store.flat.clone()
        least = min(self._held.values(), default=0)
        for number in [number for number in self._versions if number < least]:
            del self._versions[number]
