"""The parameter store: the one true copy of the parameters, and the optimizer that updates it.

An update takes four steps: combine, correct (paceline.training.updates), step, schedule. It is the mean over the
samples in it. The learning rate that the user gives is meant for one full round of the group; an update made of fewer
samples is scaled by its share of a round, so that one rate suits every policy. Schedules count samples of the whole
group for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Statistics
from paceline.training.choices import LR_SCALINGS
from paceline.training.layout import Layout, views
from paceline.training.optimizers import OptimizerSpec, bare_step, make_optimizer, make_scheduler, pieces_of
from paceline.training.updates import Contribution, Rate, combine, correct


class ParameterStore:
    def __init__(self, layout: Layout, initial: Tensor, spec: OptimizerSpec, lr_scaling: str = "linear") -> None:
        if lr_scaling not in LR_SCALINGS:
            raise ConfigurationError(f"unknown lr_scaling {lr_scaling!r}; there are: {', '.join(LR_SCALINGS)}")
        self.layout = layout
        self.flat = initial.clone()
        self.version = 0
        self.samples = 0  # seen by the whole group
        self.epoch_samples: int | None = None  # where the data set is known
        self._lr_scaling = lr_scaling
        self._pieces = pieces_of(layout, spec)
        self._tensors = [nn.Parameter(view) for view in self._views(self.flat)]
        self.optimizer = make_optimizer(spec, self._pieces, self._tensors)
        self._every = spec.scheduler_every
        self._scheduler = make_scheduler(spec, self.optimizer)
        self._bare_step = bare_step(self.optimizer)
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its name, as it is now."""
        return views(self.flat, self.layout.parameters)

    def apply(
        self, contributions: Sequence[Contribution], samples_per_round: float, *, statistics: bool = False
    ) -> Statistics | None:
        """Make one update of these gradients, and say what they were like if that is asked for."""
        rate = Rate(self.step_size, self._lr_scaling) if statistics else None
        gradient, seen = combine(contributions, rate)
        correct(gradient, contributions)
        samples = sum(contribution.samples for contribution in contributions)
        self._step(gradient, samples / samples_per_round)
        self.version += 1
        self.samples += samples
        self._schedule(samples)
        return seen

    @property
    def step_size(self) -> float:
        """How far a lasting gradient of 1 moves a parameter per full round: with momentum more than its rate."""
        momentum, dampening = 0.0, 0.0
        if isinstance(self.optimizer, torch.optim.SGD):
            momentum, dampening = (self.optimizer.param_groups[0][name] for name in ("momentum", "dampening"))
        return self.learning_rate * (1 - dampening) / (1 - momentum) if 0 < momentum < 1 else self.learning_rate

    def _step(self, gradient: Tensor, share: float) -> None:
        """One step of the optimizer, at the rate that an update of this share of a round has."""
        for parameter, piece in zip(self._tensors, self._views(gradient), strict=True):
            parameter.grad = piece
        scale = self._rate_scale(share)
        if scale == 1.0:
            self._bare_step()
        else:
            self._step_at(scale)
        for parameter in self._tensors:
            parameter.grad = None  # it lies in the memory of a process, which may be gone soon

    def _step_at(self, scale: float) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * scale
        try:
            self._bare_step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _views(self, flat: Tensor) -> list[Tensor]:
        if len(self._pieces) == 1 and self._pieces[0].size == flat.numel():
            return [flat]
        return [flat[piece.begin : piece.begin + piece.size].view(piece.shape) for piece in self._pieces]

    def _rate_scale(self, share: float) -> float:
        if self._lr_scaling == "none" or share >= 1:
            return 1.0
        return share if self._lr_scaling == "linear" else math.sqrt(share)

    def _schedule(self, samples: int) -> None:
        """Step the schedule once for every stretch of samples that this update completed."""
        if self._scheduler is None:
            return
        every = self._every or self.epoch_samples
        if every is None:
            raise ConfigurationError(
                "a scheduler counts epochs of worker.batches(dataset, ...); with batches of your own give"
                " scheduler_every, in samples"
            )
        for _ in range(self.samples // every - (self.samples - samples) // every):
            try:
                self._scheduler.step()
            except ValueError as problem:
                raise ConfigurationError(f"the scheduler cannot go on: {problem}") from None
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
