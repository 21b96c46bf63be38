"""How much of a single gradient is noise: the second moment of a round's mean, in units of a single gradient's.

Adam divides by the root of the mean of squared gradients. In BSP these are means over a round, here they are single
ones, which have the same signal and more noise. The ratio is 1 where all gradients are the same, and 1 over the size of
the group where they are noise alone; then the step is the one of the square-root rule (Malladi et al. 2022).

Of a whole round the ratio is counted. In the first one it is foretold from the gradients that have come: of the square
of their mean the noise is one over their number, so that what is left is signal. Without that the first round's steps
would be several times too small.
"""

from __future__ import annotations

import torch
from torch import Tensor

A_ROUND = 1 - 1e-6  # shares add up to 1 but for rounding
NEW = 0.5  # weight of a new round's ratio against those before


class Noise:
    def __init__(self, blocks: int) -> None:
        self.ratios = [1.0] * blocks
        self._first_round = True
        self._start()

    def observe(self, gradient: Tensor, share: float) -> None:
        """One gradient, one row per block, and its share of a round."""
        self._sum = gradient * share if self._sum is None else self._sum.add_(gradient, alpha=share)
        squares = torch.linalg.vecdot(gradient, gradient).tolist()
        self._squares = [sum_ + share * own for sum_, own in zip(self._squares, squares, strict=True)]
        self._share += share
        self._squared_shares += share * share
        full = self._share >= A_ROUND
        if full or self._first_round:
            of_sum = torch.linalg.vecdot(self._sum, self._sum).tolist()
            for block, (squared, single) in enumerate(zip(of_sum, self._squares, strict=True)):
                ratio = squared / (single * self._share) if single > 0 else 1.0
                ratio = min(1.0, max(ratio if full else self._foretold(ratio, share), share))
                self.ratios[block] += (1.0 if self._first_round else NEW) * (ratio - self.ratios[block])
        if full:
            self._first_round = False
            self._start()

    def _foretold(self, ratio: float, share: float) -> float:
        """Of a round, from the ratio of the part of it that has been seen."""
        part = self._squared_shares / self._share**2  # one over the number of gradients
        signal = max(0.0, ratio - part) / (1 - part) if part < 1 else 1.0
        return signal + (1 - signal) * share

    def _start(self) -> None:
        self._sum: Tensor | None = None  # of the gradients in this round
        self._squares = [0.0] * len(self.ratios)
        self._share = self._squared_shares = 0.0
