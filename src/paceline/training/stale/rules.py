"""What a correction must know of an optimizer, read from its parameter groups: they change with every schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

# How much of a group's move a unit of curvature takes back: in what a gradient adds to the next step, and in the root
# of that. Measured: the results are flat around these (docs/optimizers.md).
TAKEN_BACK, TAKEN_BACK_ADAPTIVE = 1.0, 2.0
# Rounds that a contribution looks ahead. A gradient is about a round old, of which BSP's own delay is a part, and
# Nesterov's momentum looks ahead under BSP already. Measured: the results are flat around these, too.
AHEAD, AHEAD_ADAPTIVE, NESTEROV = 1.0, 0.75, 1.0
# Rate times curvature, over a round, that a gradient a round old bears without any correction, and without memory.
SPARED = 0.6


class Rule(NamedTuple):
    """How the parameters of one group are stepped."""

    rate: float
    memory: float  # what stays of a worker's first moment until its next gradient
    gain: float  # of a gradient in that moment
    decay: float  # of weights
    decoupled: bool  # the decay is no part of the gradient
    unbiased: bool = False  # moments are divided by the weight that they have gathered
    second: str = ""  # what the step is divided by: the root of a "mean" of squares, a "maximum", or nothing
    fade: float = 0.0  # what stays of that after a round
    epsilon: float = 0.0
    ahead: float = 1.0  # rounds that a contribution looks ahead

    @property
    def of_moment(self) -> float:
        """Its part in what a worker contributes: what stays of it until then."""
        return float(self.memory**self.ahead)

    @property
    def of_gradient(self) -> float:
        """The part of a single gradient: what it will have added to steps by then, beyond its part of the moment."""
        return self.gain * (1 - self.of_moment) / (1 - self.memory) if self.memory < 1 else self.gain * self.ahead

    @property
    def added(self) -> float:
        """What a gradient adds to the step that it is part of."""
        return self.of_gradient + self.of_moment * self.gain

    @property
    def taken_back(self) -> float:
        """Of the group's move, per unit of rate times curvature."""
        return TAKEN_BACK_ADAPTIVE * math.sqrt(self.added) if self.second else TAKEN_BACK * self.added

    def needed(self, curvature: float) -> float:
        """The part of a correction that is needed at all.

        What decays with w' = -z w(t - 1), a delay of one round, does so no slower than without the delay up to z = 1/e
        and at all up to pi/2, so there is nothing to gain below. Memory lowers both in proportion to 1 - memory, and
        what is spared with it: at 0.9 even a tenth is missed by a group of 32 (docs/optimizers.md).
        """
        if self.second:
            return 1.0
        decline = self.rate * self.gain * curvature
        return max(0.0, 1 - SPARED * (1 - self.memory) ** 2 / decline) if decline > 0 else 0.0


Group = Mapping[str, Any]


def _sgd(group: Group) -> Rule:
    memory = float(group["momentum"])
    gain = 1.0 - group["dampening"] if memory else 1.0
    ahead = AHEAD + (NESTEROV if group["nesterov"] else 0.0)
    return Rule(float(group["lr"]), memory, gain, group["weight_decay"], decoupled=False, ahead=ahead)


def _adam(group: Group, *, second: str = "mean", decoupled: bool = False, ahead: float = AHEAD_ADAPTIVE) -> Rule:
    memory, fade = map(float, group["betas"])
    decoupled = group.get("decoupled_weight_decay", decoupled)
    rate, decay, epsilon = float(group["lr"]), group["weight_decay"], group["eps"]
    return Rule(rate, memory, 1 - memory, decay, decoupled, True, second, fade, epsilon, ahead)


def _adamw(group: Group) -> Rule:
    return _adam(group, decoupled=True)


def _nadam(group: Group) -> Rule:
    return _adam(group, ahead=AHEAD_ADAPTIVE + NESTEROV)


def _adamax(group: Group) -> Rule:
    return _adam(group, second="maximum")


def _rmsprop(group: Group) -> Rule:
    rate, memory, decay = float(group["lr"]), float(group["momentum"]), group["weight_decay"]
    fade, epsilon = group["alpha"], group["eps"]
    return Rule(rate, memory, 1.0, decay, decoupled=False, second="mean", fade=fade, epsilon=epsilon)


RULES: dict[type[torch.optim.Optimizer], Callable[[Group], Rule]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.NAdam: _nadam,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
}
CORRECTED = "SGD, Adam, AdamW, NAdam, Adamax and RMSprop"
NOT_CORRECTED = ("maximize", "amsgrad", "centered")  # options


def description_of(kind: type[torch.optim.Optimizer], groups: Sequence[Group], *, automatic: bool) -> str:
    """How stale gradients are made up for, in a few words. `automatic`: it is not the user who scales the rate."""
    rules = [RULES[kind](group) for group in groups]
    parts = ["worker moments"] if any(rule.memory for rule in rules) else []
    parts.append("secant")
    if rules[0].second and automatic:
        parts.append("second moment of a round")
    return " + ".join(parts)


def refusal(kind: type[torch.optim.Optimizer], groups: Sequence[Group], dtype: torch.dtype) -> str:
    """Why stale gradients cannot be made up for with this optimizer; empty: they can."""
    if kind not in RULES:
        return f"{kind.__name__} cannot be corrected; {CORRECTED} can"
    for option in NOT_CORRECTED:
        if any(group.get(option) for group in groups):
            return f"{kind.__name__} with {option}=True cannot be corrected; without it it can"
    if dtype not in (torch.float32, torch.float64):
        return f"parameters of {str(dtype).removeprefix('torch.')} cannot be corrected; float32 and float64 can"
    return ""
