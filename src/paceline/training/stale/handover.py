"""What torch's optimizer has gathered, as a correction of stale gradients keeps it, and back: where a run changes to a
policy that applies stale gradients, or to one that does not, its moments go along.

Both have moments of the same sizes where a gradient lasts, so they are copied, with three exceptions:
- Adam's kind divides them by the weight that they have gathered so far. What is carried over is the quotient: the other
  side has a weight of its own.
- RMSprop's momentum is one of gradients that were divided already; a correction's is one of gradients.
- A second moment of torch's is that of a round's mean, a correction's that of single gradients, of which a measured
  part is taken. One that was torch's stays that of a round's mean, and gathers this part of every square. To divide it
  by a part that was measured once would make it larger with every change, as the mean of 1 / x is more than 1 over the
  mean of x; and to leave it alone until that part is known, tiny where there was no gradient before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.training.pieces import Piece
from paceline.training.stale.moments import Moment
from paceline.training.stale.rules import Rule

FIRST = {torch.optim.SGD: "momentum_buffer", torch.optim.RMSprop: "momentum_buffer"}  # all others: exp_avg
SECOND = {torch.optim.RMSprop: "square_avg", torch.optim.Adamax: "exp_inf"}  # all others: exp_avg_sq


class Gathered(NamedTuple):
    """Moments of all parameters, flat."""

    first: Moment | None
    second: Tensor | None  # of a round's mean
    weights: list[float]  # that the second has gathered, for each group


def taken_from(
    optimizer: torch.optim.Optimizer,
    seen: Sequence[tuple[Piece, nn.Parameter]],
    flat: Tensor,
    rules: Sequence[Rule],
    rounds: float,
    rounds_of: Callable[[Piece, dict[str, Any]], float],
) -> Gathered | None:
    """What the optimizer knows of what it sees; None: nothing yet. `rounds`: of the run; `rounds_of`: those in which a
    piece had gradients."""
    kind = type(optimizer)
    first_name, second_name = FIRST.get(kind, "exp_avg"), SECOND.get(kind, "exp_avg_sq")
    firsts = torch.zeros_like(flat) if any(rule.memory for rule in rules) else None
    seconds = torch.zeros_like(flat) if rules[0].second else None
    found = False
    for piece, tensor in seen:
        about, rule = optimizer.state.get(tensor, {}), rules[piece.group]
        first, second = about.get(first_name), about.get(second_name)
        own = rounds_of(piece, about)
        if second is not None and seconds is not None:
            found = True
            factor = _weight(rule.fade, rounds) / _weight(rule.fade, own) if _is_mean(rule) and own != rounds else 1.0
            piece.of(seconds).copy_(second).mul_(factor)
        if first is not None and firsts is not None:
            found = True
            factor = (
                _weight(rule.memory, rounds) / _weight(rule.memory, own) if rule.unbiased and own != rounds else 1.0
            )
            place = piece.of(firsts).copy_(first).mul_(factor)
            if second is not None and kind is torch.optim.RMSprop:
                place.mul_(second.sqrt().add_(rule.epsilon))
    if not found:
        return None
    gathered = [_weight(rule.memory, rounds) if rule.unbiased else 1.0 for rule in rules]
    weights = [_weight(rule.fade, rounds) if _is_mean(rule) else 1.0 for rule in rules]
    return Gathered(None if firsts is None else Moment(firsts, gathered), seconds, weights)


def hand_over(
    optimizer: torch.optim.Optimizer,
    seen: Sequence[tuple[Piece, nn.Parameter]],
    gathered: Gathered,
    rules: Sequence[Rule],
    rounds: float,
) -> None:
    """Let the optimizer go on as if it had made one step in each of so many rounds."""
    for piece, tensor in seen:
        about = _known(
            type(optimizer), optimizer.param_groups[piece.group], rules[piece.group], piece, gathered, rounds
        )
        if about:
            optimizer.state[tensor] = about


def _known(
    kind: type[torch.optim.Optimizer],
    group: dict[str, Any],
    rule: Rule,
    piece: Piece,
    gathered: Gathered,
    rounds: float,
) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if kind is not torch.optim.SGD:
        about["step"] = _number(rounds)
    if kind is torch.optim.NAdam:
        about["mu_product"] = _number(_product(rule.memory, group["momentum_decay"], rounds))
    second: Tensor | None = None
    if gathered.second is not None:
        second = piece.of(gathered.second).clone()
        if _is_mean(rule) and gathered.weights[piece.group]:
            second.mul_(_weight(rule.fade, rounds) / gathered.weights[piece.group])
        about[SECOND.get(kind, "exp_avg_sq")] = second
    if gathered.first is not None and (rule.memory or rule.unbiased):
        first, weight = piece.of(gathered.first.vector).clone(), gathered.first.weights[piece.group]
        if rule.unbiased and weight:
            first.mul_(_weight(rule.memory, rounds) / weight)
        if kind is torch.optim.RMSprop and second is not None:
            first.div_(second.sqrt().add_(rule.epsilon))
        about[FIRST.get(kind, "exp_avg")] = first
    elif rule.unbiased and second is not None:
        about["exp_avg"] = torch.zeros_like(second)  # what is not remembered needs no memory
    return about


def _is_mean(rule: Rule) -> bool:
    """Whether its second moment is divided by the weight that it has gathered."""
    return rule.unbiased and rule.second == "mean"


def _weight(stays: float, rounds: float) -> float:
    """That a moment has gathered of which so much stays from round to round."""
    return float(1 - stays**rounds)


def _number(value: float) -> Tensor:
    """As torch's optimizers have their number of steps."""
    return torch.tensor(value, dtype=torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32)


def _product(memory: float, decay: float, rounds: float) -> float:
    """NAdam's, of the memories that it had in its steps so far."""
    product = 1.0
    for step in range(1, math.floor(rounds) + 1):
        product *= memory * (1 - 0.5 * 0.96 ** (step * decay))
        if product < 1e-30:  # for all that it is subtracted from, nothing
            return 0.0
    return product
