"""One update from stale gradients, in place of the optimizer's own step.

It walks through the memory once, chunk by chunk, so that all that is done to a chunk is done while it is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.training.scaling import rate_scale
from paceline.training.stale.blocks import Chunk, Chunks, Partition, sample_positions
from paceline.training.stale.handover import Gathered
from paceline.training.stale.moments import Moment, WorkerMoments
from paceline.training.stale.noise import A_ROUND, Noise
from paceline.training.stale.rules import RULES, Rule
from paceline.training.stale.secant import Secant
from paceline.training.updates import Contribution

# What torch.optim.SGD(fused=True) calls: one walk through memory instead of three.
FUSED_STEP: Callable[..., None] | None = getattr(torch, "_fused_sgd_", None)


class _Term(NamedTuple):
    """One gradient of the update, in chunks, and its worker's moment."""

    gradients: Sequence[Tensor]
    moments: Sequence[Tensor]  # none, where no group has a memory
    weight: float  # on the gradient, as the policy wants it
    share: float  # of the update
    divisors: list[float]  # of what it contributes, for each group
    changes: list[float]  # of its gradient since, as a part of it, for each block


class _Pull(NamedTuple):
    """Parameters on which gradients of this update were computed, in chunks, and how much of them is taken back."""

    parameters: Sequence[Tensor]
    share: float  # of the update: of all gradients that were computed on them


class Correction:
    """The optimizer's parameter groups say what to do; it makes no step of its own."""

    def __init__(
        self,
        flat: Tensor,
        partition: Partition,
        optimizer: torch.optim.Optimizer,
        lr_scaling: str = "auto",
    ) -> None:
        """`flat`: the parameters, which are changed in place."""
        self._flat = flat
        self._read = RULES[type(optimizer)]
        self._optimizer = optimizer
        self._scaling = lr_scaling
        self._blocks = partition.blocks
        self._chunks = Chunks(self._blocks, flat.numel())
        self._parameters = self._chunks.of(flat)
        positions = sample_positions(partition)
        self._positions, self._rows = positions.flatten(), positions.shape
        rules = self.rules()
        self._secant = Secant(len(self._blocks))
        self._noise = Noise(len(self._blocks))
        self._moments = WorkerMoments(flat, len(rules))
        self._second = torch.zeros_like(flat) if rules[0].second else None
        self._seconds = () if self._second is None else self._chunks.of(self._second)
        self._gathered = [0.0] * len(rules)  # weight of the second moment, of each group
        self._gone: set[int] = set()
        # Of one that began with what torch's optimizer had gathered:
        self._of_rounds = False  # whether the second moment is that of a round's mean, as torch's is
        self._since = 0.0  # rounds, as long as workers begin with the group's moment

    def begin_with(self, gathered: Gathered) -> None:
        """Go on from what torch's optimizer had gathered; this one is fresh."""
        self._moments.start = gathered.first
        if self._second is not None and gathered.second is not None:
            self._second.copy_(gathered.second)
            self._gathered = list(gathered.weights)
            self._of_rounds = self._scaling == "auto"

    def gathered(self) -> Gathered | None:
        """What torch's optimizer can go on from: the mean of the workers' moments, and a round's second moment."""
        second = None if self._second is None else self._of_a_round(self._second)
        first = self._moments.mean() if self._moments.exist else self._moments.start
        if first is None and not (second is not None and any(self._gathered)):
            return None
        return Gathered(first, second, list(self._gathered))

    def _of_a_round(self, second: Tensor) -> Tensor:
        """A copy of the second moment as that of a round's mean."""
        second, rules, ratios = second.clone(), self.rules(), self._ratios
        for part, chunk in zip(self._chunks.parts, self._chunks.of(second), strict=True):
            if part is not None:
                ratio = ratios[part.block]
                chunk.mul_(ratio if rules[part.group].second == "mean" else math.sqrt(ratio))
        return second

    def state(self) -> dict[str, Any]:
        """All that it remembers; its tensors are not copies."""
        return {
            "moments": self._moments.state(),
            "secant": self._secant.state(),
            "noise": self._noise.state(),
            "second": self._second,
            "gathered": self._gathered,
            "gone": sorted(self._gone),
            "start": None if self._moments.start is None else (self._moments.start.vector, self._moments.start.weights),
            "since": self._since,
            "of_rounds": self._of_rounds,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where another correction of the same optimizer stopped; this one is fresh."""
        self._moments.resume(state["moments"])
        self._secant.resume(state["secant"])
        self._noise.resume(state["noise"])
        if self._second is not None:
            self._second.copy_(state["second"])
        self._gathered, self._gone = state["gathered"], set(state["gone"])
        if state.get("start") is not None:
            self._moments.start = Moment(*state["start"])
        self._since, self._of_rounds = state.get("since", 0.0), state.get("of_rounds", False)

    def forget(self, worker: int) -> None:
        """It has left the group, and is never named again, a last gradient that waits for its fate aside."""
        self._gone.add(worker)
        self._secant.forget(worker)
        self._moments.forget(worker)

    def step(self, contributions: Sequence[Contribution], share: float) -> None:
        """`share`: of a round, at most 1. The gradients' memory is used up."""
        rules = self.rules()
        scale = rate_scale("linear" if self._scaling == "auto" else self._scaling, share)
        decay_share = 1.0 if self._scaling == "none" else share
        samples = sum(contribution.samples for contribution in contributions)
        shares = [contribution.samples / samples for contribution in contributions]
        changes = self._observe(contributions, shares, share, self._metric(rules, self._ratios))
        ratios, of_squares = self._ratios, self._of_squares
        curvatures, along = self._needed(rules)
        pulls = self._pulls(contributions, shares)
        terms = [
            self._term(contribution, own, [a * b for a, b in zip(along, found, strict=True)], rules)
            for contribution, own, found in zip(contributions, shares, changes, strict=True)
        ]
        self._gathered = [_gathered(old, rule, share) for old, rule in zip(self._gathered, rules, strict=True)]
        for number, part in enumerate(self._chunks.parts):
            if part is None:
                continue
            rule, parameters = rules[part.group], self._parameters[number]
            _prepare(terms, number, parameters, rule.decay * decay_share / scale if not rule.decoupled else 0.0)
            if curvatures[part.block] > 0:
                _take_back(parameters, pulls, number, rule.rate * scale * rule.taken_back * curvatures[part.block])
            if rule.decay and rule.decoupled:
                parameters.mul_(1 - rule.rate * decay_share * rule.decay)
            if self._second is None:
                _step(parameters, terms, number, part, rule, rule.rate * scale)
            else:
                second = self._seconds[number]
                _gather(second, terms, number, rule, share, of_squares[part.block])
                root = math.sqrt(ratios[part.block] / self._gathered[part.group])
                below = second.sqrt() if rule.second == "mean" else second.clone()
                below.add_(rule.epsilon / root)
                _step_divided(parameters, terms, number, part, rule, rule.rate * scale / root, below)
        self._forget_what_is_over(contributions, share)

    def _forget_what_is_over(self, contributions: Sequence[Contribution], share: float) -> None:
        """Workers that have left, and, a round after it, what torch's optimizer had gathered."""
        for contribution in contributions:
            if contribution.worker in self._gone:
                self.forget(contribution.worker)
        if self._moments.start is not None:
            self._since += share
            if self._since >= A_ROUND:
                self._moments.start = None

    @property
    def _ratios(self) -> list[float]:
        """What part of the second moment that of a round's mean is, for each block."""
        return self._noise.ratios if self._scaling == "auto" and not self._of_rounds else [1.0] * len(self._blocks)

    @property
    def _of_squares(self) -> list[float]:
        """What part of a square is gathered: all of it, or what is that of a round's mean."""
        return self._noise.ratios if self._of_rounds else [1.0] * len(self._blocks)

    def rules(self) -> list[Rule]:
        return [self._read(group) for group in self._optimizer.param_groups]

    def _observe(
        self, contributions: Sequence[Contribution], shares: Sequence[float], share: float, metric: Tensor | None
    ) -> list[list[float]]:
        """Learn curvature and noise from a sample of what is there before the update. Returns how much each gradient
        has changed since, along itself, as a part of it, for each block."""
        now, changes = self._sample(self._flat), []
        self._secant.begin(now)
        for contribution, own in zip(contributions, shares, strict=True):
            assert contribution.pulled is not None
            gradient, pulled = self._sample(contribution.gradient), self._sample(contribution.pulled)
            self._secant.observe(contribution, gradient, pulled, metric, own * share)
            self._noise.observe(gradient * contribution.weight, own * share)
            changes.append(self._secant.changes(gradient, now - pulled))
        return changes

    def _needed(self, rules: Sequence[Rule]) -> tuple[list[float], list[float]]:
        """For each block: the curvature to correct for in all directions, and the part of changes along gradients."""
        curvatures, along = [], []
        for block, curvature, ratio in zip(self._blocks, self._secant.curvatures, self._noise.ratios, strict=True):
            needed, of_noise = rules[block[0].group].needed(curvature), _of_noise(ratio)
            curvatures.append(needed * (1 - of_noise) * curvature)
            along.append(needed * of_noise)
        return curvatures, along

    def _sample(self, flat: Tensor) -> Tensor:
        """One row per block."""
        return flat.index_select(0, self._positions).view(self._rows)

    def _metric(self, rules: Sequence[Rule], ratios: Sequence[float]) -> Tensor | None:
        """Of the sample: what an adaptive optimizer divides by. Zero: not known yet."""
        if self._second is None:
            return None
        second = self._sample(self._second)
        if not all(self._gathered):
            return second
        groups = [block[0].group for block in self._blocks]
        roots = [[math.sqrt(ratio / self._gathered[group])] for ratio, group in zip(ratios, groups, strict=True)]
        epsilons = torch.tensor([[rules[group].epsilon] for group in groups], dtype=second.dtype)
        below = second.sqrt() if rules[0].second == "mean" else second
        return torch.tensor(roots, dtype=second.dtype) * below + epsilons

    def _term(self, contribution: Contribution, share: float, changes: list[float], rules: Sequence[Rule]) -> _Term:
        gradients = self._chunks.of(contribution.gradient)
        if not any(rule.memory for rule in rules):
            return _Term(gradients, (), contribution.weight, share, [1.0] * len(rules), changes)
        moment = self._moments.of(contribution.worker, joined_late=contribution.version > 0)
        moment.weights = [rule.memory * own + rule.gain for own, rule in zip(moment.weights, rules, strict=True)]
        divisors = [
            rule.of_moment * own + rule.of_gradient if rule.unbiased else 1.0
            for own, rule in zip(moment.weights, rules, strict=True)
        ]
        return _Term(gradients, self._chunks.of(moment.vector), contribution.weight, share, divisors, changes)

    def _pulls(self, contributions: Sequence[Contribution], shares: Sequence[float]) -> list[_Pull]:
        """One for every version that gradients are of; those of the present one have nothing to make up for."""
        versions: dict[int, tuple[Tensor, float]] = {}
        for contribution, share in zip(contributions, shares, strict=True):
            if contribution.staleness > 0:
                assert contribution.pulled is not None
                _, sum_ = versions.get(contribution.version, (None, 0.0))
                versions[contribution.version] = contribution.pulled, sum_ + share * contribution.weight
        return [_Pull(self._chunks.of(pulled), share) for pulled, share in versions.values()]


def _of_noise(ratio: float) -> float:
    """How far the curvature is told by the noise of gradients, from a round's ratio of it."""
    return (1 - ratio) ** 3


def _take_back(parameters: Tensor, pulls: Sequence[_Pull], number: int, curvature: float) -> None:
    """Never further than where it came from, however large the update is."""
    for pull in pulls:
        parameters.lerp_(pull.parameters[number], -math.expm1(-curvature * pull.share))


def _gathered(old: float, rule: Rule, share: float) -> float:
    if not rule.unbiased or rule.second != "mean":
        return 1.0
    left: float = rule.fade**share
    return left * old + 1 - left


def _prepare(terms: Sequence[_Term], number: int, parameters: Tensor, decay: float) -> None:
    """Weigh the gradients as the policy wants it, and make the decay of weights a part of them."""
    for term in terms:
        if term.weight != 1.0:
            term.gradients[number].mul_(term.weight)
        if decay:
            term.gradients[number].add_(parameters, alpha=decay)


def _gather(second: Tensor, terms: Sequence[_Term], number: int, rule: Rule, share: float, of_a_square: float) -> None:
    """Of single gradients, whatever the policy puts into one update. Its memory is counted in rounds. `of_a_square`:
    the part of each that is gathered."""
    left = rule.fade**share
    second.mul_(left)
    for term in terms:
        gradient = term.gradients[number]
        if rule.second == "mean":
            second.addcmul_(gradient, gradient, value=(1 - left) * term.share * of_a_square)
        else:
            size = gradient.abs()
            torch.maximum(second, size if of_a_square == 1.0 else size.mul_(math.sqrt(of_a_square)), out=second)


def _step(parameters: Tensor, terms: Sequence[_Term], number: int, part: Chunk, rule: Rule, rate: float) -> None:
    """A worker contributes memory * moment + gain * gradient, with the moment that this gradient is part of: a step of
    Nesterov's momentum with a velocity of its own."""
    for term in terms:
        gradient, size = term.gradients[number], rate * term.share
        of_gradient = rule.of_gradient + rule.added * term.changes[part.block]
        if not rule.memory:
            parameters.add_(gradient, alpha=-size * of_gradient)
            continue
        moment = term.moments[number]
        if FUSED_STEP is not None and rule.gain == 1.0:
            factor = rule.of_moment / rule.memory  # it makes memory * moment + gradient of it
            if of_gradient != factor:
                parameters.add_(gradient, alpha=-size * (of_gradient - factor))
            FUSED_STEP(
                [parameters],
                [gradient],
                [moment],
                lr=size * factor,
                momentum=rule.memory,
                dampening=0.0,
                nesterov=True,
                weight_decay=0.0,
                maximize=False,
                is_first_step=False,
            )
        else:
            moment.mul_(rule.memory).add_(gradient, alpha=rule.gain)
            parameters.add_(gradient, alpha=-size * of_gradient).add_(moment, alpha=-size * rule.of_moment)


def _step_divided(
    parameters: Tensor, terms: Sequence[_Term], number: int, part: Chunk, rule: Rule, rate: float, below: Tensor
) -> None:
    """The same, divided by the root of the second moment."""
    for term in terms:
        gradient, size = term.gradients[number], rate * term.share / term.divisors[part.group]
        of_gradient = rule.of_gradient + rule.added * term.changes[part.block]
        if rule.memory:
            moment = term.moments[number]
            moment.mul_(rule.memory).add_(gradient, alpha=rule.gain)
            gradient.mul_(of_gradient).add_(moment, alpha=rule.of_moment)
        else:
            size *= of_gradient
        parameters.addcdiv_(gradient, below, value=-size)
