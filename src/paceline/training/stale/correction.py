"""One update from stale gradients, in place of the optimizer's own step.

It walks through the memory once, chunk by chunk, so that all that is done to a chunk is done while it is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.training.layout import Layout
from paceline.training.optimizers import OptimizerSpec
from paceline.training.stale.blocks import Chunks, blocks_of, sample_positions
from paceline.training.stale.moments import WorkerMoments
from paceline.training.stale.noise import Noise
from paceline.training.stale.rules import RULES, Rule
from paceline.training.stale.secant import Secant
from paceline.training.updates import Contribution

# What torch.optim.SGD(fused=True) calls: one walk through memory instead of three.
FUSED_STEP: Callable[..., None] | None = getattr(torch, "_fused_sgd_", None)


class _Term(NamedTuple):
    """One gradient of the update, in chunks, and its worker's moment."""

    gradients: Sequence[Tensor]
    moments: Sequence[Tensor]  # none, where no group has a memory
    share: float  # of the update
    weights: list[float]  # of each group: what the gradient and the moment are divided by


class _Pull(NamedTuple):
    """Parameters on which gradients of this update were computed, in chunks, and how far each block goes back there."""

    parameters: Sequence[Tensor]
    parts: list[float]


class Correction:
    """The optimizer's parameter groups say what to do; it makes no step of its own."""

    def __init__(self, flat: Tensor, layout: Layout, spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> None:
        """`flat`: the parameters, which are changed in place."""
        self._flat = flat
        self._read = RULES[spec.kind]
        self._optimizer = optimizer
        self._blocks = blocks_of(layout, spec)
        self._chunks = Chunks(self._blocks, flat.numel())
        self._parameters = self._chunks.of(flat)
        positions = sample_positions(self._blocks)
        self._positions, self._rows = positions.flatten(), positions.shape
        rules = self._rules()
        self._secant = Secant(len(self._blocks))
        self._noise = Noise(len(self._blocks))
        self._moments = WorkerMoments(flat, len(rules)) if any(rule.memory for rule in rules) else None
        self._second = torch.zeros_like(flat) if rules[0].second else None
        self._seconds = () if self._second is None else self._chunks.of(self._second)
        self._gathered = [0.0] * len(rules)  # weight of the second moment, of each group

    @property
    def description(self) -> str:
        return "secant" if self._moments is None else "worker moments + secant"

    def forget(self, worker: int) -> None:
        """It has left the group."""
        self._secant.forget(worker)
        if self._moments is not None:
            self._moments.forget(worker)

    def step(self, contributions: Sequence[Contribution], share: float, scale: float | None = None) -> None:
        """`share`: of a round, at most 1; `scale`: on the learning rate, None: as suits the optimizer.

        The gradients' memory is used up.
        """
        rules = self._rules()
        samples = sum(contribution.samples for contribution in contributions)
        shares = [contribution.weight * contribution.samples / samples for contribution in contributions]
        self._observe(contributions, shares, share, rules)
        ratios = self._noise.ratios if scale is None else [1.0] * len(self._blocks)
        scale = share if scale is None else scale
        pulls = self._pulls(contributions, shares, rules, scale)
        terms = [self._term(*pair, rules) for pair in zip(contributions, shares, strict=True)]
        self._gathered = [_gathered(old, rule, share) for old, rule in zip(self._gathered, rules, strict=True)]
        for number, block in enumerate(self._chunks.blocks):
            if block is not None:
                group = self._blocks[block].group
                rule = rules[group]
                parameters = self._parameters[number]
                if rule.decay and not rule.decoupled:
                    for term in terms:
                        term.gradients[number].add_(parameters, alpha=rule.decay)
                for pull in pulls:
                    if pull.parts[block]:
                        parameters.lerp_(pull.parameters[number], pull.parts[block])
                if rule.decay and rule.decoupled:
                    parameters.mul_(1 - rule.rate * share * rule.decay)
                if self._second is None:
                    _step(parameters, terms, number, rule, rule.rate * scale)
                else:
                    second = self._seconds[number]
                    _gather(second, _mean(terms, number), rule, share)
                    root = math.sqrt(ratios[block] / self._gathered[group])
                    below = second.sqrt() if rule.second == "mean" else second.clone()
                    below.add_(rule.epsilon / root)
                    _step_divided(parameters, terms, number, group, rule, rule.rate * scale / root, below)

    def _rules(self) -> list[Rule]:
        return [self._read(group) for group in self._optimizer.param_groups]

    def _observe(
        self, contributions: Sequence[Contribution], shares: Sequence[float], share: float, rules: Sequence[Rule]
    ) -> None:
        """Learn curvature and noise from a sample of what is there before the update."""
        now = self._sample(self._flat)
        metric = self._metric(rules)
        mean: Tensor | None = None
        for contribution, own in zip(contributions, shares, strict=True):
            assert contribution.pulled is not None
            gradient = self._sample(contribution.gradient)
            moved = now - self._sample(contribution.pulled)
            self._secant.observe(contribution.worker, gradient, moved, metric, own * share)
            if self._second is not None:
                mean = gradient * own if mean is None else mean.add_(gradient, alpha=own)
        if mean is not None:
            self._noise.observe(mean, share)

    def _sample(self, flat: Tensor) -> Tensor:
        """One row per block."""
        return flat.index_select(0, self._positions).view(self._rows)

    def _metric(self, rules: Sequence[Rule]) -> Tensor | None:
        """What the optimizer divides by, of the sample; None: by nothing."""
        if self._second is None or not all(self._gathered):
            return None
        second = self._sample(self._second)
        ratios = zip(self._noise.ratios, self._blocks, strict=True)
        roots = [[math.sqrt(ratio / self._gathered[block.group])] for ratio, block in ratios]
        return torch.tensor(roots, dtype=second.dtype) * (second.sqrt() if rules[0].second == "mean" else second)

    def _term(self, contribution: Contribution, share: float, rules: Sequence[Rule]) -> _Term:
        gradients = self._chunks.of(contribution.gradient)
        if self._moments is None:
            return _Term(gradients, (), share, [1.0] * len(rules))
        moment = self._moments.of(contribution.worker, joined_late=contribution.version > 0)
        moment.weights = [rule.memory * own + rule.gain for own, rule in zip(moment.weights, rules, strict=True)]
        weights = [
            rule.memory * own + rule.gain if rule.unbiased else 1.0
            for own, rule in zip(moment.weights, rules, strict=True)
        ]
        return _Term(gradients, self._chunks.of(moment.vector), share, weights)

    def _pulls(
        self, contributions: Sequence[Contribution], shares: Sequence[float], rules: Sequence[Rule], scale: float
    ) -> list[_Pull]:
        """One for every version that gradients are of; those of the present one have nothing to make up for."""
        versions: dict[int, tuple[Tensor, float]] = {}
        for contribution, share in zip(contributions, shares, strict=True):
            if contribution.staleness > 0:
                assert contribution.pulled is not None
                _, sum_ = versions.get(contribution.version, (None, 0.0))
                versions[contribution.version] = contribution.pulled, sum_ + share
        curvatures = self._secant.curvatures
        pulls = []
        for pulled, part in versions.values():
            parts = []
            for block, curvature in zip(self._blocks, curvatures, strict=True):
                rule = rules[block.group]
                # Never further back than where it came from, however large an update is.
                parts.append(-math.expm1(-rule.rate * scale * part * rule.taken_back * curvature))
            pulls.append(_Pull(self._chunks.of(pulled), parts))
        return pulls


def _gathered(old: float, rule: Rule, share: float) -> float:
    if not rule.unbiased or rule.second != "mean":
        return 1.0
    left: float = rule.fade**share
    return left * old + 1 - left


def _gather(second: Tensor, gradient: Tensor, rule: Rule, share: float) -> None:
    """The memory of the second moment is counted in rounds."""
    left = rule.fade**share
    if rule.second == "mean":
        second.mul_(left).addcmul_(gradient, gradient, value=1 - left)
    else:
        torch.maximum(second.mul_(left), gradient.abs(), out=second)


def _mean(terms: Sequence[_Term], number: int) -> Tensor:
    first = terms[0].gradients[number]
    if len(terms) == 1 and terms[0].share == 1.0:
        return first
    mean = first * terms[0].share
    for term in terms[1:]:
        mean.add_(term.gradients[number], alpha=term.share)
    return mean


def _step(parameters: Tensor, terms: Sequence[_Term], number: int, rule: Rule, rate: float) -> None:
    """A worker contributes memory * moment + gain * gradient, with the moment that this gradient is part of: a step of
    Nesterov's momentum with a velocity of its own."""
    for term in terms:
        gradient, size = term.gradients[number], rate * term.share
        if not rule.memory:
            parameters.add_(gradient, alpha=-size)
            continue
        moment = term.moments[number]
        if FUSED_STEP is not None and rule.gain == 1.0:
            FUSED_STEP(
                *([parameters], [gradient], [moment]),
                lr=size,
                momentum=rule.memory,
                dampening=0.0,
                nesterov=True,
                weight_decay=0.0,
                maximize=False,
                is_first_step=False,
            )
        else:
            moment.mul_(rule.memory).add_(gradient, alpha=rule.gain)
            parameters.add_(gradient, alpha=-size * rule.gain).add_(moment, alpha=-size * rule.memory)


def _step_divided(
    parameters: Tensor, terms: Sequence[_Term], number: int, group: int, rule: Rule, rate: float, below: Tensor
) -> None:
    """The same, divided by the root of the second moment."""
    for term in terms:
        gradient, size = term.gradients[number], rate * term.share / term.weights[group]
        if rule.memory:
            moment = term.moments[number]
            moment.mul_(rule.memory).add_(gradient, alpha=rule.gain)
            gradient.mul_(rule.gain).add_(moment, alpha=rule.memory)
        parameters.addcdiv_(gradient, below, value=-size)
