"""Trains again what a trace says was trained, and comes to the same weights.

A trace names the samples of every gradient, the version that it was computed on, and the update that used it. So a run
on real processes can be followed in one process, gradient by gradient. Buffers and random layers are the exception:
work that was dropped is not in the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import TraceError
from paceline.core.messages import NOT_STALE, DataOpened, Event, FigureFound, Gradient, GradientArrived, UpdateRule
from paceline.experiment.following import Follower, refuse_another
from paceline.recording.trace import Trace
from paceline.training.choices import UpdateOptions
from paceline.training.gradients import Gradients
from paceline.training.layout import views
from paceline.training.parameters import ParameterStore
from paceline.training.task import Task


class Retrained(NamedTuple):
    version: int
    parameters: dict[str, Tensor]  # by name


def retrain(
    trace: Trace,
    task: Task,
    *,
    seed: int,
    lr_scaling: str = "auto",
    stale: str = "auto",
    threads: int = 1,
    wire: Callable[[Tensor], None] | None = None,
    updated: Callable[[ParameterStore], None] | None = None,
) -> Retrained:
    """The parameters, by name, that the recorded run came to: to the bit, with the threads that its workers had.

    `wire`: does to a gradient what its way to the server did. `updated`: called after every update. TraceError if
    updates would be made in another way than the recorded run made them.
    """
    recorded = trace.header.updates
    may_be_stale = recorded is not None and recorded.why != NOT_STALE
    follower = TaskFollower(task, seed, UpdateOptions(lr_scaling, stale, may_be_stale), _uses(trace), wire)
    refuse_another_rule(trace, follower.store.rule)
    return walk(trace, follower, threads, updated)


def walk(
    trace: Trace,
    follower: Follower,
    threads: int,
    updated: Callable[[ParameterStore], None] | None = None,
) -> Retrained:
    """Follow the whole trace, with so many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    version = 0
    try:
        for record in trace:
            follower.follow(record)
            if updated is not None and follower.store.version != version:
                version = follower.store.version
                updated(follower.store)
    finally:
        torch.set_num_threads(before)
    return Retrained(
        follower.store.version, {name: tensor.clone() for name, tensor in follower.store.parameters.items()}
    )


def refuse_another_rule(trace: Trace, rule: UpdateRule) -> None:
    recorded = trace.header.updates
    if recorded is not None:
        refuse_another(recorded, rule, str(trace.path))


def _uses(trace: Trace) -> Counter[int]:
    """How many gradients were computed on each version."""
    versions: dict[Gradient, int] = {}
    for record in trace:
        if isinstance(record.event, GradientArrived):
            versions.setdefault(record.event.gradient, record.event.version)  # a second delivery says what is newest
    return Counter(versions.values())


class TaskFollower(Follower):
    """Computes the gradients of a task. Of every version that is still needed there is a copy."""

    def __init__(
        self,
        task: Task,
        seed: int,
        options: UpdateOptions,
        uses: Counter[int],
        wire: Callable[[Tensor], None] | None = None,
    ) -> None:
        super().__init__(wire)
        self._gradients = Gradients(task, seed)
        spec = self._gradients.optimizer_spec()
        self.store = ParameterStore(self._gradients.layout, self._gradients.initial, spec, options)
        self.store.epoch_samples = len(task.train)  # a trace in virtual time does not say so
        self._uses = uses  # of each version, that are still to come or have no fate yet
        self._versions: dict[int, Tensor] = {0: self.store.flat.clone()}
        self._buffers: dict[int, dict[str, Tensor]] = {}

    def note(self, event: Event, now: float) -> None:
        match event:
            case DataOpened():
                self.store.open(event)
            case FigureFound(_, value):
                self.store.feed(value)
            case _:
                pass

    def gradient(self, event: GradientArrived) -> tuple[Tensor, Tensor]:
        if not event.units:
            raise TraceError(
                f"the trace does not say which samples {event.gradient} was made of: the run had batches of its own"
            )
        worker = event.gradient.worker
        if worker not in self._buffers:
            self._buffers[worker] = {name: buffer.clone() for name, buffer in self._gradients.buffers.items()}
        flat, pulled = torch.empty_like(self.store.flat), self._versions[event.version]
        parameters = list(views(pulled, self.store.layout.parameters).values())
        self._gradients.compute(parameters, self._buffers[worker], event.units, flat, worker)
        return flat, pulled

    def absent(self, event: GradientArrived) -> tuple[int, ...]:
        return self._gradients.absent

    def updated(self) -> None:
        if self._uses[self.store.version]:
            self._versions[self.store.version] = self.store.flat.clone()

    def settled(self, event: GradientArrived) -> None:
        """If it was the last one of its version, that can go."""
        self._uses[event.version] -= 1
        if not self._uses[event.version]:
            del self._versions[event.version]
