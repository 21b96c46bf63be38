"""The curvature along the way, of every block, from numbers that are there anyway.

A worker computes g on the parameters p, and then g' on p'. In between they moved by d = p' - p, so that g' - g is
about H d, and (g' - g) d / d D d a curvature, in a metric D that is given: H d is then about curvature * D d. Single
gradients are noisy, but the noise of a gradient has nothing to do with how others moved meanwhile: it averages out over
the pushes of a round. The update with the worker's own gradient is left out of d for it: it follows that noise.

Only a sample of every block is looked at, a few thousand numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.training.updates import Contribution


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
        self._before: dict[int, _Before] = {}  # by worker
        self._update: _Update | None = None
        self._rises = [0.0] * blocks
        self._lengths = [0.0] * blocks

    def state(self) -> dict[str, Any]:
        return {
            "curvatures": self.curvatures,
            "rises": self._rises,
            "lengths": self._lengths,
            "update": None if self._update is None else self._update.begin,
            "before": {
                worker: (before.gradient, before.pulled, before.version, before.update.begin, before.update.end)
                for worker, before in self._before.items()
            },
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.curvatures[:], self._rises, self._lengths = state["curvatures"], state["rises"], state["lengths"]
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
        self, contribution: Contribution, gradient: Tensor, pulled: Tensor, metric: Tensor, share: float
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
        lengths = torch.linalg.vecdot(way, way * metric).tolist()
        for block, (rise, length) in enumerate(zip(rises, lengths, strict=True)):
            if math.isfinite(rise) and math.isfinite(length):
                rise = self._rises[block] = self._rises[block] + share * (rise - self._rises[block])
                length = self._lengths[block] = self._lengths[block] + share * (length - self._lengths[block])
                self.curvatures[block] = max(0.0, rise / length) if length > 0 else 0.0

    def forget(self, worker: int) -> None:
        self._before.pop(worker, None)
