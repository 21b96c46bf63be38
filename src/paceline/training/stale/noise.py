"""How much of a single gradient is noise: the second moment of a round's mean, in units of a single gradient's.

Adam divides by the root of the mean of squared gradients. In BSP these are means over a round, here they are single
ones, which have the same signal and more noise. The ratio is 1 where all gradients are the same, and 1 over the size of
the group where they are noise alone; then the step is the one of the square-root rule (Malladi et al. 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

A_ROUND = 1 - 1e-6  # shares add up to 1 but for rounding


class Noise:
    def __init__(self, blocks: int) -> None:
        self.ratios = [1.0] * blocks  # of the last full round
        self._sum: Tensor | None = None  # of the gradients in this round
        self._squares = [0.0] * blocks
        self._share = 0.0

    def observe(self, gradient: Tensor, share: float) -> None:
        """The gradient of one update, one row per block."""
        self._sum = gradient * share if self._sum is None else self._sum.add_(gradient, alpha=share)
        squares = torch.linalg.vecdot(gradient, gradient).tolist()
        self._squares = [sum_ + share * own for sum_, own in zip(self._squares, squares, strict=True)]
        self._share += share
        if self._share >= A_ROUND:
            of_sum = torch.linalg.vecdot(self._sum, self._sum).tolist()
            for block, (squared, single) in enumerate(zip(of_sum, self._squares, strict=True)):
                ratio = squared / (single * self._share) if single > 0 else 1.0
                self.ratios[block] = min(1.0, max(ratio, share))
            self._sum, self._squares, self._share = None, [0.0] * len(self.ratios), 0.0
