"""First moments of workers: one vector for each, on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Moment:
    vector: Tensor
    weights: list[float]  # gathered so far, of each group of parameters


class WorkerMoments:
    """A worker that was there from the beginning starts with nothing, a joiner with the mean of the group. A worker
    that leaves takes its moment along: it was one of many, and the mean of the others is no different.

    Where the group had one moment for all before, its workers start with copies of that, and joiners do for a while."""

    def __init__(self, like: Tensor, groups: int) -> None:
        self._like = like
        self._groups = groups
        self._moments: dict[int, Moment] = {}
        self.start: Moment | None = None  # what workers begin with

    def of(self, worker: int, *, joined_late: bool) -> Moment:
        known = self._moments.get(worker)
        if known is None:
            if self.start is not None:
                known = Moment(self.start.vector.clone(), list(self.start.weights))
            else:
                known = self.mean() if joined_late and self._moments else self._nothing()
            self._moments[worker] = known
        return known

    def forget(self, worker: int) -> None:
        self._moments.pop(worker, None)

    def state(self) -> dict[int, Any]:
        return {worker: (moment.vector, moment.weights) for worker, moment in self._moments.items()}

    def resume(self, state: dict[int, Any]) -> None:
        self._moments = {worker: Moment(vector, weights) for worker, (vector, weights) in state.items()}

    def _nothing(self) -> Moment:
        return Moment(torch.zeros_like(self._like), [0.0] * self._groups)

    @property
    def exist(self) -> bool:
        return bool(self._moments)

    def mean(self) -> Moment:
        mean, share = self._nothing(), 1 / len(self._moments)
        for moment in self._moments.values():
            mean.vector.add_(moment.vector, alpha=share)
            mean.weights = [sum_ + share * own for sum_, own in zip(mean.weights, moment.weights, strict=True)]
        return mean
