"""The parameter store: the one true copy of the parameters, and the optimizer that updates it.

An update is the mean over the samples in it. The learning rate that the user gives is meant for one full round of the
group; an update made of fewer samples is scaled by its share of a round, so that one rate suits every policy. Schedules
count samples of the whole group for the same reason.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Statistics
from paceline.training.choices import LR_SCALINGS
from paceline.training.layout import Layout, squared_norm, views

# They treat every number for itself, so a whole group of parameters may be one flat tensor: a step then costs the same
# however many layers the model has. In the types below the result is the same to the last bit, with `foreach` as well;
# the kernels of `fused`, and those of shorter types, round differently where a tensor ends.
EXACT = (torch.float32, torch.float64)
ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop, torch.optim.ASGD),
)


class Contribution(NamedTuple):
    """One gradient of an update. Its memory is the store's to use: the mean is formed in the first one's."""

    gradient: Tensor  # flat
    samples: int
    weight: float = 1.0
    loss: float | None = None
    squared_norm: float | None = None  # where it is known already


class OptimizerSpec(NamedTuple):
    """How to make the optimizer: its class, its arguments, and groups of names with arguments of their own."""

    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]
    groups: list[tuple[list[str], dict[str, Any]]]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    scheduler_every: int | None = None  # samples between two of its steps; None: an epoch


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
        self._pieces = _pieces(layout, spec)
        self._tensors = [nn.Parameter(view) for view in self._views(self.flat)]
        self.optimizer = _make(spec, self._pieces, self._tensors)
        self._every = spec.scheduler_every
        self._scheduler = _make_scheduler(spec, self.optimizer)
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its name, as it is now."""
        return views(self.flat, self.layout.parameters)

    def apply(
        self, contributions: Sequence[Contribution], samples_per_round: float, *, statistics: bool = False
    ) -> Statistics | None:
        """Make one optimizer step of these gradients, and say what they were like if that is asked for."""
        samples = sum(each.samples for each in contributions)
        shares = [each.weight * each.samples / samples for each in contributions]
        norms = [_norm_of(each) for each in contributions] if statistics else []
        gradient = _weighted_sum(contributions, shares)
        seen = self._statistics(contributions, shares, norms, gradient) if statistics else None
        for parameter, piece in zip(self._tensors, self._views(gradient), strict=True):
            parameter.grad = piece
        scale = self._rate_scale(samples / samples_per_round)
        if scale == 1.0:
            self.optimizer.step()
        else:
            self._step_at(scale)
        self.version += 1
        self.samples += samples
        self._advance_schedule(samples)
        return seen

    def _statistics(
        self, contributions: Sequence[Contribution], shares: Sequence[float], norms: Sequence[float], gradient: Tensor
    ) -> Statistics | None:
        """What DBW decides by, at the price of one more look at the mean: who computed a gradient knows its norm.

        With weights w of sum 1, E[sum w |g|^2 - |sum w g|^2] = V (1 - sum w^2), whatever the weights are. None: the
        numbers are too large, or the weights too small, to say anything.
        """
        total = sum(shares)
        if not (total > 0 and math.isfinite(sum(norms))):
            return None
        weights = [share / total for share in shares]
        norm = norms[0] if len(norms) == 1 else squared_norm(gradient) / total**2
        spread = sum(weight * each for weight, each in zip(weights, norms, strict=True)) - norm
        free = 1 - sum(weight**2 for weight in weights)
        losses = [each.loss for each in contributions if each.loss is not None and math.isfinite(each.loss)]
        return Statistics(
            gradients=len(contributions),
            squared_norm=norm,
            variance=max(0.0, spread) / free if free > 0 else None,
            loss=sum(losses) / len(losses) if losses else None,
            learning_rate=self.step_size,
            lr_scaling=self._lr_scaling,
        )

    @property
    def step_size(self) -> float:
        """How far a lasting gradient of 1 moves a parameter per full round: with momentum more than its rate."""
        momentum, dampening = 0.0, 0.0
        if isinstance(self.optimizer, torch.optim.SGD):
            momentum, dampening = (self.optimizer.param_groups[0][name] for name in ("momentum", "dampening"))
        return self.learning_rate * (1 - dampening) / (1 - momentum) if 0 < momentum < 1 else self.learning_rate

    def _step_at(self, scale: float) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * scale
        try:
            self.optimizer.step()
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

    def _advance_schedule(self, samples: int) -> None:
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


def warm_up() -> None:
    """Make an optimizer once: the first one of a process loads two seconds' worth of modules."""
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


def _weighted_sum(contributions: Sequence[Contribution], shares: Sequence[float]) -> Tensor:
    """Formed where the first gradient lies."""
    total = contributions[0].gradient
    if shares != [1.0]:
        total.mul_(shares[0])
    for each, share in zip(contributions[1:], shares[1:], strict=True):
        total.add_(each.gradient, alpha=share)
    return total


def _norm_of(contribution: Contribution) -> float:
    known = contribution.squared_norm
    return squared_norm(contribution.gradient) if known is None else known


class _Piece(NamedTuple):
    """A stretch of the flat parameters that the optimizer sees as one tensor."""

    group: int
    begin: int
    size: int
    shape: tuple[int, ...]


def _pieces(layout: Layout, spec: OptimizerSpec) -> list[_Piece]:
    """One piece per parameter; neighbours of one group are one piece where the optimizer cannot tell the difference."""
    group_of = {name: number for number, (names, _) in enumerate(spec.groups) for name in names}
    fused = any(options.get("fused") for options in (spec.arguments, *(own for _, own in spec.groups)))
    merges = spec.kind in ELEMENTWISE and layout.dtype in EXACT and not fused
    pieces: list[_Piece] = []
    begin = 0
    for entry in layout.parameters:
        group = group_of.get(entry.name)
        if group is not None:
            last = pieces[-1] if pieces else None
            if merges and last is not None and last.group == group and last.begin + last.size == begin:
                pieces[-1] = _Piece(group, last.begin, last.size + entry.size, (last.size + entry.size,))
            else:
                pieces.append(_Piece(group, begin, entry.size, (entry.size,) if merges else entry.shape))
        begin += entry.size
    return pieces


def _make(spec: OptimizerSpec, pieces: Sequence[_Piece], tensors: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": [], **options} for _, options in spec.groups]
    for piece, tensor in zip(pieces, tensors, strict=True):
        groups[piece.group]["params"].append(tensor)
    try:
        optimizer = spec.kind(groups, **spec.arguments)
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(f"{spec.kind.__name__} cannot be made: {problem}") from None
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigurationError(f"{spec.kind.__name__} has no learning rate: its groups need an 'lr'")
    return optimizer


def _make_scheduler(spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> Any:
    if spec.scheduler is None:
        return None
    if spec.scheduler_every is not None and spec.scheduler_every < 1:
        raise ConfigurationError(f"scheduler_every is {spec.scheduler_every}; it must be at least 1 sample")
    try:
        scheduler = spec.scheduler(optimizer)
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(f"the scheduler cannot be made: {problem}") from None
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise ConfigurationError("ReduceLROnPlateau needs a figure at every step; take a schedule that counts steps")
    return scheduler


def spec_of(
    layout: Layout,
    names: Mapping[int, str],
    kind: type[torch.optim.Optimizer],
    groups: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any],
) -> OptimizerSpec:
    """The description that crosses to the server. `names`: of the model's parameters, by their id()."""
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ConfigurationError(
            f"{kind!r} is no optimizer class: give the class and its arguments, as in"
            " worker.optimizer(model, torch.optim.SGD, lr=0.1); the object is made on the server"
        )
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigurationError(f"{kind.__name__} computes gradients itself (it needs a closure): it cannot be remote")
    grouped: list[tuple[list[str], dict[str, Any]]] = []
    if groups is None:
        grouped.append(([entry.name for entry in layout.parameters], {}))
    seen: set[str] = set()
    for number, group in enumerate(groups or ()):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ConfigurationError(f"parameter group {number} has no 'params'")
        given = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        for each in given:
            if id(each) not in names:
                raise ConfigurationError(f"parameter group {number} has a parameter that is not the model's")
            if names[id(each)] in seen:
                raise ConfigurationError(f"parameter {names[id(each)]!r} is there twice in the parameter groups")
            seen.add(names[id(each)])
        own = {key: value for key, value in group.items() if key != "params"}
        grouped.append(([names[id(each)] for each in given if each.requires_grad], own))
    return OptimizerSpec(kind, dict(arguments), grouped)
