"""The parameter store: the one true copy of the parameters, and the optimizer that updates it.

An update is the mean over the samples in it. The learning rate that the user gives is meant for one full round of the
group; an update made of fewer samples is scaled by its share of a round, so that one rate suits every policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Statistics
from paceline.training.layout import Layout, views

LR_SCALINGS = ("linear", "sqrt", "none")


class Contribution(NamedTuple):
    """One gradient of an update."""

    gradient: Tensor  # flat
    samples: int
    weight: float = 1.0
    loss: float | None = None


class OptimizerSpec(NamedTuple):
    """How to make the optimizer: its class, its arguments, and groups of names with arguments of their own."""

    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]
    groups: list[tuple[list[str], dict[str, Any]]]


class ParameterStore:
    def __init__(self, layout: Layout, initial: Tensor, spec: OptimizerSpec, lr_scaling: str = "linear") -> None:
        if lr_scaling not in LR_SCALINGS:
            raise ConfigurationError(f"unknown lr_scaling {lr_scaling!r}; there are: {', '.join(LR_SCALINGS)}")
        self.layout = layout
        self.flat = initial.clone()
        self.version = 0
        self._lr_scaling = lr_scaling
        self._sum = torch.zeros(0, dtype=initial.dtype)  # made when an update first has several gradients
        self.parameters = {name: nn.Parameter(view) for name, view in views(self.flat, layout.parameters).items()}
        self.optimizer = _make(spec, self.parameters)

    def apply(self, contributions: Sequence[Contribution], samples_per_round: float) -> None:
        """Make one optimizer step of these gradients."""
        samples = sum(each.samples for each in contributions)
        gradient = self._mean(contributions, samples)
        for name, view in views(gradient, self.layout.parameters).items():
            self.parameters[name].grad = view
        scale = self._rate_scale(samples / samples_per_round)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        try:
            self.optimizer.step()
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self.version += 1

    def _mean(self, contributions: Sequence[Contribution], samples: int) -> Tensor:
        """sum(weight * samples * gradient) / sum(samples); a single gradient of weight 1 is used where it lies."""
        factors = [each.weight * each.samples / samples for each in contributions]
        if factors == [1.0]:
            return contributions[0].gradient
        if self._sum.numel() == 0:
            self._sum = torch.empty_like(self.flat)
        torch.mul(contributions[0].gradient, factors[0], out=self._sum)
        for each, factor in zip(contributions[1:], factors[1:], strict=True):
            self._sum.add_(each.gradient, alpha=factor)
        return self._sum

    def _rate_scale(self, share: float) -> float:
        if self._lr_scaling == "none":
            return 1.0
        share = min(1.0, share)
        return share if self._lr_scaling == "linear" else math.sqrt(share)


def statistics_of(contributions: Sequence[Contribution]) -> Statistics:
    """Norm of the mean gradient, variance of one gradient around it, mean loss: what DBW decides by.

    With unequal weights these are still those of the plain mean over gradients, which is what the estimates are about.
    """
    count = len(contributions)
    squares = sum(float(each.gradient.dot(each.gradient)) for each in contributions)
    mean = contributions[0].gradient if count == 1 else torch.stack([each.gradient for each in contributions]).mean(0)
    norm = float(mean.dot(mean))
    losses = [each.loss for each in contributions if each.loss is not None]
    return Statistics(
        gradients=count,
        squared_norm=norm,
        variance=max(0.0, squares - count * norm) / (count - 1) if count > 1 else None,
        loss=sum(losses) / len(losses) if losses else None,
    )


def _make(spec: OptimizerSpec, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": [parameters[name] for name in names], **options} for names, options in spec.groups]
    try:
        return spec.kind(groups, **spec.arguments)
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(f"{spec.kind.__name__} cannot be made: {problem}") from None
