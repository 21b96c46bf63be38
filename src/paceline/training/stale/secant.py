"""The curvature along the way, of every block, from numbers that are there anyway.

A worker computes g on the parameters p, and then g' on p'. In between the others moved the parameters by d, so that
g' - g is about H d, and (g' - g) d / d d a curvature. Single gradients are noisy, but the noise of a gradient has
nothing to do with how others moved meanwhile: it averages out over the pushes of a round. The worker's own part of the
way is left out for that reason: it follows the noise of its own gradient.

Only a sample of every block is looked at, a few thousand numbers. With an adaptive optimizer lengths are measured as it
steps, d D d with D the denominator: H d is then about curvature * D d.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class _Before(NamedTuple):
    gradient: Tensor
    moved: Tensor


class Secant:
    def __init__(self, blocks: int) -> None:
        self.curvatures = [0.0] * blocks  # 0 where it is not known, or where the loss curves down
        self._before: dict[int, _Before] = {}  # by worker: its latest gradient, and the way meanwhile
        self._rises = [0.0] * blocks
        self._lengths = [0.0] * blocks

    def observe(self, worker: int, gradient: Tensor, moved: Tensor, metric: Tensor | None, share: float) -> None:
        """One row per block. `moved`: of the parameters since this gradient's were pulled; `share`: of a round."""
        before = self._before.get(worker)
        self._before[worker] = _Before(gradient, moved)
        if before is None:
            return
        way = before.moved
        rises = torch.linalg.vecdot(gradient - before.gradient, way).tolist()
        lengths = torch.linalg.vecdot(way, way if metric is None else way * metric).tolist()
        for block, (rise, length) in enumerate(zip(rises, lengths, strict=True)):
            if math.isfinite(rise) and math.isfinite(length):
                rise = self._rises[block] = self._rises[block] + share * (rise - self._rises[block])
                length = self._lengths[block] = self._lengths[block] + share * (length - self._lengths[block])
                self.curvatures[block] = max(0.0, rise / length) if length > 0 else 0.0

    def forget(self, worker: int) -> None:
        self._before.pop(worker, None)
