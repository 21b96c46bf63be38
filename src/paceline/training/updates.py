"""From the gradients of an update to the one that the optimizer sees, and to what DBW is told of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from paceline.core.messages import Statistics, Unit
from paceline.training.layout import squared_norm


class Contribution(NamedTuple):
    """One gradient of an update, and where it comes from. Its memory is the store's to use: the sum is formed in the
    first one's."""

    gradient: Tensor  # flat
    samples: int
    weight: float = 1.0
    loss: float | None = None
    squared_norm: float | None = None  # where it is known already
    worker: int = -1
    version: int = 0  # of the parameters that it was computed on
    staleness: int = 0
    units: tuple[Unit, ...] = ()
    pulled: Tensor | None = None  # these parameters, where a correction needs them
    absent: tuple[int, ...] = ()  # numbers of parameters that it has no gradient of, and zeros instead


class Rate(NamedTuple):
    """What DBW is told of the step that an update makes."""

    step_size: float | None  # of a full round; None: not known
    lr_scaling: str
    edge: float  # this step times a curvature must stay below it


def combine(contributions: Sequence[Contribution], rate: Rate | None) -> tuple[Tensor, Statistics | None]:
    """Their sum, each by its weight and its share of the samples; with a rate, also what they were like."""
    if len(contributions) == 1 and contributions[0].weight == 1.0 and rate is None:
        return contributions[0].gradient, None
    samples = sum(contribution.samples for contribution in contributions)
    shares = [contribution.weight * contribution.samples / samples for contribution in contributions]
    norms = [] if rate is None else [_norm_of(contribution) for contribution in contributions]
    total = contributions[0].gradient  # formed where the first gradient lies
    if shares != [1.0]:
        total.mul_(shares[0])
    for contribution, share in zip(contributions[1:], shares[1:], strict=True):
        total.add_(contribution.gradient, alpha=share)
    return total, None if rate is None else _statistics(contributions, shares, norms, total, rate)


def absent_in_all(contributions: Sequence[Contribution]) -> tuple[int, ...]:
    """The parameters that no gradient of an update is about. Of those that some are about, the others' zeros count: it
    is the mean over all samples."""
    if not all(contribution.absent for contribution in contributions):
        return ()
    return tuple(sorted(set.intersection(*(set(contribution.absent) for contribution in contributions))))


def statistics_of(contributions: Sequence[Contribution], rate: Rate) -> Statistics | None:
    """What they were like; they stay as they are."""
    first = contributions[0]
    return combine([first._replace(gradient=first.gradient.clone()), *contributions[1:]], rate)[1]


def _statistics(
    contributions: Sequence[Contribution], shares: Sequence[float], norms: Sequence[float], total: Tensor, rate: Rate
) -> Statistics | None:
    """What DBW decides by, at the price of one more look at the mean: the worker that computed a gradient knows its
    norm.

    With weights w of sum 1, E[sum w |g|^2 - |sum w g|^2] = V (1 - sum w^2), whatever the weights are. None: the
    numbers are too large, or the weights too small, to say anything.
    """
    sum_of_shares = sum(shares)
    if not (sum_of_shares > 0 and math.isfinite(sum(norms))):
        return None
    weights = [share / sum_of_shares for share in shares]
    norm = norms[0] if len(norms) == 1 else squared_norm(total) / sum_of_shares**2
    spread = sum(weight * own for weight, own in zip(weights, norms, strict=True)) - norm
    free = 1 - sum(weight**2 for weight in weights)
    known = [contribution.loss for contribution in contributions if contribution.loss is not None]
    losses = [loss for loss in known if math.isfinite(loss)]
    return Statistics(
        gradients=len(contributions),
        squared_norm=norm,
        variance=max(0.0, spread) / free if free > 0 else None,
        loss=sum(losses) / len(losses) if losses else None,
        learning_rate=rate.step_size,
        lr_scaling=rate.lr_scaling,
        edge=rate.edge,
    )


def _norm_of(contribution: Contribution) -> float:
    known = contribution.squared_norm
    return squared_norm(contribution.gradient) if known is None else known
