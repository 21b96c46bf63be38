"""The curvature along the way, of every block, from numbers that are there anyway.

A worker computes g on the parameters p, and then g' on p'. In between they moved by d = p' - p, so that g' - g is
about H d, and (g' - g) d about d H d. Single gradients are noisy, but the noise of a gradient has nothing to do with
how others moved meanwhile: it averages out over the pushes of a round. The update with the worker's own gradient is
left out of d for it: it follows that noise.

Two guesses of H have that much curvature along the way:
- curvature * D, in a metric D: as much in all directions.
- steepness * g' g'^T: along gradients only, and so, over many of them, where their noise is. Noise is largest where the
  loss curves most, so this spares directions in which it is flat; but it says little where gradients are all the same.

Only a sample of every block is looked at, a few thousand numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.training.updates import Contribution

SEVERAL = 3.0  # rounds that a steepness is a mean of: squares of noisy numbers differ more than the numbers do


@dataclass
class _Update:
    """Parameters before and after."""

    begin: Tensor
    end: Tensor | None = None  # not known until the next one begins


class _Before(NamedTuple):
    """A worker's latest gradient."""

    gradient: Tensor
    pulled: Tensor
    version: int  # that it was applied to
    update: _Update


class Secant:
    """All tensors are samples, one row per block."""

    def __init__(self, blocks: int) -> None:
        self.curvatures = [0.0] * blocks  # 0 where it is not known, or where the loss curves down
        self.steepnesses = [0.0] * blocks  # the same
        self._before: dict[int, _Before] = {}  # by worker
        self._update: _Update | None = None
        # Means of (g' - g) d and d D d over a round, and of (g' - g) d and (g' d)^2 over several.
        self._rises, self._lengths, self._slow_rises, self._squares = ([0.0] * blocks for _ in range(4))

    def state(self) -> dict[str, Any]:
        return {
            "curvatures": self.curvatures,
            "steepnesses": self.steepnesses,
            "means": (self._rises, self._lengths, self._slow_rises, self._squares),
            "update": None if self._update is None else self._update.begin,
            "before": {
                worker: (before.gradient, before.pulled, before.version, before.update.begin, before.update.end)
                for worker, before in self._before.items()
            },
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.curvatures[:], self.steepnesses[:] = state["curvatures"], state["steepnesses"]
        self._rises, self._lengths, self._slow_rises, self._squares = state["means"]
        self._update = None if state["update"] is None else _Update(state["update"])
        for worker, (gradient, pulled, version, begin, end) in state["before"].items():
            latest = self._update if end is None else None  # there is only one whose end is not known
            self._before[worker] = _Before(gradient, pulled, version, latest or _Update(begin, end))

    def begin(self, parameters: Tensor) -> None:
        """Of an update."""
        if self._update is not None:
            self._update.end = parameters
        self._update = _Update(parameters)

    def observe(
        self, contribution: Contribution, gradient: Tensor, pulled: Tensor, metric: Tensor | None, share: float
    ) -> None:
        """Of the update that has begun; `share`: of a round."""
        assert self._update is not None
        version, before = contribution.version, self._before.get(contribution.worker)
        self._before[contribution.worker] = _Before(gradient, pulled, version + contribution.staleness, self._update)
        if before is None:
            return
        way = pulled - before.pulled
        if version > before.version and before.update.end is not None:
            way -= before.update.end - before.update.begin
        rises = torch.linalg.vecdot(gradient - before.gradient, way).tolist()
        lengths = torch.linalg.vecdot(way, way if metric is None else way * metric).tolist()
        slopes, slowly = torch.linalg.vecdot(gradient, way).tolist(), share / SEVERAL
        for block, (rise, length, slope) in enumerate(zip(rises, lengths, slopes, strict=True)):
            if math.isfinite(rise) and math.isfinite(length) and math.isfinite(slope):
                self._rises[block] += share * (rise - self._rises[block])
                self._lengths[block] += share * (length - self._lengths[block])
                self._slow_rises[block] += slowly * (rise - self._slow_rises[block])
                self._squares[block] += slowly * (slope * slope - self._squares[block])
                self.curvatures[block] = _over(self._rises[block], self._lengths[block])
                self.steepnesses[block] = _over(self._slow_rises[block], self._squares[block])

    def changes(self, gradient: Tensor, moved: Tensor) -> list[float]:
        """Of a gradient since the parameters moved, along itself and as a part of it: at most the whole of it."""
        slopes = torch.linalg.vecdot(gradient, moved).tolist()
        return [
            max(-1.0, min(1.0, steepness * slope)) if math.isfinite(slope) else 0.0
            for steepness, slope in zip(self.steepnesses, slopes, strict=True)
        ]

    def forget(self, worker: int) -> None:
        self._before.pop(worker, None)


def _over(rise: float, length: float) -> float:
    return max(0.0, rise / length) if length > 0 else 0.0
