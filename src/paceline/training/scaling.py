"""How the learning rate follows an update's share of a round, so that the rate of a full round suits every policy.

`linear`: a share k of a round has k times the rate. Right for SGD, whose steps add up.
`sqrt`: the rule of Malladi et al. 2022 for optimizers that divide by the size of gradients, and fewer samples make
noisier, larger ones: sqrt(k) times the rate, 1 - beta becomes k (1 - beta), epsilon / sqrt(k).
Weight decay keeps its size per round with both. `none`: every update has the full rate, as in the papers. `auto`: sqrt
for Adam and its kind, linear for all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

NOISE_SIZED = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
)
STEP_IS_KNOWN = (torch.optim.SGD, *NOISE_SIZED)  # how far a lasting gradient moves a parameter


def edge_of(optimizer: torch.optim.Optimizer) -> float:
    """What the step of a lasting gradient, times a curvature, must stay below: beyond it steps grow and grow.

    Gradient descent on L x^2 / 2 is stable up to eta L = 2. A momentum of beta bears 2 (1 + beta), by Nesterov's rule
    2 (1 + beta) / (1 + 2 beta), and with it a gradient that lasts makes steps of eta / (1 - beta).
    """
    group = optimizer.param_groups[0]
    beta = group["betas"][0] if "betas" in group else group.get("momentum", 0.0)
    if not 0 < beta < 1:
        return 2.0
    ahead = 1 + 2 * beta if group.get("nesterov") else 1.0
    return float(2 * (1 + beta) / ((1 - beta) * ahead))


def scaling_for(kind: type[torch.optim.Optimizer], lr_scaling: str) -> str:
    """What `auto` means for this optimizer."""
    if lr_scaling != "auto":
        return lr_scaling
    return "sqrt" if issubclass(kind, NOISE_SIZED) else "linear"


def rate_scale(scaling: str, share: float) -> float:
    if scaling == "none" or share >= 1:
        return 1.0
    return share if scaling == "linear" else math.sqrt(share)


def scaled_options(
    kind: type[torch.optim.Optimizer], group: Mapping[str, Any], scaling: str, share: float
) -> dict[str, Any]:
    """The options of a parameter group that are different for an update of this share of a round."""
    scale = rate_scale(scaling, share)
    if scale == 1.0:
        return {}
    options = {"lr": group["lr"] * scale}
    if scaling == "sqrt":
        if "betas" in group:
            options["betas"] = tuple(1 - share * (1 - beta) for beta in group["betas"])
        if "alpha" in group and "eps" in group:  # RMSprop
            options["alpha"] = 1 - share * (1 - group["alpha"])
        if "eps" in group:
            options["eps"] = group["eps"] / scale
        if group.get("weight_decay") and _keeps_size(kind, group):
            options["weight_decay"] = group["weight_decay"] * scale  # times the rate it is the share
    return options


def _keeps_size(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> bool:
    """Whether a decay has a size of its own. As part of a gradient that is divided by its size it has none."""
    if not issubclass(kind, NOISE_SIZED):
        return True
    return issubclass(kind, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))
