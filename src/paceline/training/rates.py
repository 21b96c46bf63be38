"""The learning rates in force: of every parameter group, as the schedule has them after so much work.

It is told of every update the samples, of the data set its size, and of evaluations the figures that a schedule wants.
A parameter store has one for its optimizer. Whoever has no parameters, and must know the rates all the same, makes one
with `rates_of` and tells it the same. An optimizer that changes its rates in its own step is followed only by a store.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from paceline.core.messages import DataOpened
from paceline.training.optimizers import OptimizerSpec, make_optimizer
from paceline.training.schedule import Figure, Schedule


class Rates:
    def __init__(self, spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer`: of that description; the schedule changes the rates of its groups."""
        self.version = 0
        self.samples = 0  # seen by the whole group
        self.epoch_samples: int | None = None  # where the data set is known
        self.rates: tuple[float, ...] = ()  # of the parameter groups; another object whenever they change
        self._optimizer = optimizer
        self._schedule = None if spec.scheduler is None else Schedule(spec.scheduler, spec.scheduler_every, optimizer)
        self._read()

    @property
    def learning_rate(self) -> float:
        return self.rates[0]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's."""
        return self._optimizer.param_groups

    @property
    def scheduled(self) -> bool:
        return self._schedule is not None

    @property
    def wants_figures(self) -> bool:
        """Whether the schedule goes by what evaluations find."""
        return self._schedule is not None and self._schedule.wants_figures

    def figure_of(self, figures: Mapping[str, float]) -> Figure | None:
        """The one that the schedule goes by."""
        assert self._schedule is not None
        return self._schedule.figure_of(figures)

    # -- what happens --

    def open(self, opened: DataOpened) -> bool:
        """It is known how much work there is. True: the schedule was made of that."""
        self.epoch_samples = opened.epoch_samples
        if self._schedule is None or not self._schedule.waits:
            return False
        self._schedule.open(opened)
        self._read()
        return True

    def feed(self, value: float) -> None:
        """The evaluation found this."""
        assert self._schedule is not None
        self._schedule.feed(value)
        self._read()

    def advance(self, samples: Sequence[int], samples_per_round: float) -> None:
        """There was an update; `samples`: of each of its gradients."""
        before, seen = self.samples, sum(samples)
        self.version += 1
        self.samples += seen
        if self._schedule is not None:
            self._schedule.advance(before, seen, seen / samples_per_round, self.epoch_samples, max(samples))
            self._read()

    def _read(self) -> None:
        rates = tuple(float(group["lr"]) for group in self._optimizer.param_groups)
        if rates != self.rates:
            self.rates = rates

    # -- checkpoints --

    def state(self) -> dict[str, Any]:
        """Its part of a store's state."""
        return {
            "version": self.version,
            "samples": self.samples,
            "epoch_samples": self.epoch_samples,
            "schedule": None if self._schedule is None else self._schedule.state(),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """`state`: a store's."""
        self.version, self.samples, self.epoch_samples = state["version"], state["samples"], state["epoch_samples"]
        if self._schedule is not None:
            self._schedule.resume(state["schedule"])  # a new one sets rates: those that were in force come after it
        for group, kept in zip(self._optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            group.update({name: copy.deepcopy(value) for name, value in kept.items() if name != "params"})
        self._read()


def rates_of(spec: OptimizerSpec) -> Rates:
    """Those of an optimizer that has no parameters."""
    # A number for every group, and no group without any: an optimizer need not expect one.
    members = [(group, nn.Parameter(torch.zeros(1, 1))) for group in range(len(spec.groups))]
    optimizer = make_optimizer(spec, members)
    optimizer._opt_called = True  # type: ignore[attr-defined]  # a schedule complains where no step comes before its own
    return Rates(spec, optimizer)
