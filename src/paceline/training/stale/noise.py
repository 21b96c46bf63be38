"""How much of a single gradient is noise: the second moment of a round's mean, in units of a single gradient's.

Adam divides by the root of the mean of squared gradients. In BSP these are means over a round, here they are single
ones, which have the same signal and more noise. The ratio is 1 where all gradients are the same, and 1 over the size of
the group where they are noise alone; then the step is the one of the square-root rule (Malladi et al. 2022).

Of a whole round the ratio is counted. In the first one it is foretold from the gradients that have come: of the square
of their mean the noise is one over their number, so that what is left is signal. Without that the first round's steps
would be several times too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

A_ROUND = 1 - 1e-6  # shares add up to 1 but for rounding
NEW = 0.5  # weight of a new round's ratio against those before


@dataclass
class _Round:
    """Of its gradients so far, one entry per block."""

    sum: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    share: float = 0.0
    squared_shares: float = 0.0

    def add(self, gradient: Tensor, share: float) -> None:
        self.sum = self.sum + share * gradient
        self.squares = self.squares + share * torch.linalg.vecdot(gradient, gradient)
        self.share += share
        self.squared_shares += share * share

    def ratios(self) -> list[float]:
        squares = torch.as_tensor(self.squares) * self.share
        sum_ = torch.as_tensor(self.sum)
        of_sum = torch.linalg.vecdot(sum_, sum_)
        return torch.where(squares > 0, of_sum / squares, 1.0).tolist()

    def foretold(self, ratio: float, share: float) -> float:
        """Of the whole of it, from the ratio of the part that has been seen."""
        part = self.squared_shares / self.share**2  # one over the number of gradients
        signal = max(0.0, ratio - part) / (1 - part) if part < 1 else 1.0
        return signal + (1 - signal) * share


class Noise:
    def __init__(self, blocks: int) -> None:
        self.ratios = [1.0] * blocks
        self._first = True  # no whole round has been seen
        self._round = _Round()

    def state(self) -> dict[str, Any]:
        return {"ratios": self.ratios, "first": self._first, "round": vars(self._round)}

    def resume(self, state: dict[str, Any]) -> None:
        self.ratios[:], self._first, self._round = state["ratios"], state["first"], _Round(**state["round"])

    def observe(self, gradient: Tensor, share: float) -> None:
        """One gradient, one row per block, and its share of a round."""
        self._round.add(gradient, share)
        full = self._round.share >= A_ROUND
        if full or self._first:
            for block, ratio in enumerate(self._round.ratios()):
                ratio = min(1.0, max(ratio if full else self._round.foretold(ratio, share), share))
                self.ratios[block] += (1.0 if self._first else NEW) * (ratio - self.ratios[block])
        if full:
            self._first, self._round = False, _Round()
