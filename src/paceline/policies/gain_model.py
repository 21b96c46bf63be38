"""DBW's model of progress: G(k), by how much an update of k gradients is expected to lower the loss.

For a loss that is smooth of constant L, learning rate eta, gradient variance V and true squared gradient norm N:
    G(k) = (eta - L eta^2 / 2) N - (L eta^2 / 2) V / k.
V is the sample variance of the gradients of an update, N = max(|mean|^2 - V / k, 0), and L follows from how the loss
moved from one update to the next: L = 2 (F' - F + eta N) / (eta^2 (N + V / k)). Each is a mean over the last `window`.
Decisions: one gradient has no variance, so V keeps its last estimates; an L whose denominator is not positive is
skipped; the mean of L is never below a small positive value. Single estimates of L may be negative, because the losses
of two updates are measured on different samples: without these the mean would be too large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.messages import Statistics

LEAST_SMOOTHNESS = 1e-6
EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  # of the share of a round in the learning rate


class GainModel:
    def __init__(self, learning_rate: float, scaling: str | None, window: int) -> None:
        """`scaling`: how the rate follows the share of a round; None: as the run says, or linear."""
        self._learning_rate = learning_rate
        self._follows_run = scaling is None
        self._scaling = scaling or "linear"
        self.variance: deque[float] = deque(maxlen=window)
        self.norm: deque[float] = deque(maxlen=window)
        self.smoothness: deque[float] = deque(maxlen=window)
        self.loss_rose = False  # by more than 1 % with the last update
        self._last: Sequence[float] | None = None  # loss, eta, N, V / k of the last update

    def eta(self, k: npt.ArrayLike, workers: int) -> npt.NDArray[np.float64]:
        """The learning rate of an update of k gradients."""
        share = np.minimum(1.0, np.asarray(k, dtype=float) / workers)
        return self._learning_rate * share ** EXPONENTS[self._scaling]

    def observe(self, seen: Statistics, workers: int) -> None:
        """Learn from one update in a group of this size."""
        self.loss_rose = False
        if seen.learning_rate is not None:
            self._learning_rate = seen.learning_rate
        if self._follows_run and seen.lr_scaling in EXPONENTS:
            self._scaling = seen.lr_scaling
        if seen.variance is not None:
            self.variance.append(seen.variance)
        if not self.variance or seen.loss is None or workers == 0:
            return
        noise = self.variance[-1] / seen.gradients
        norm = max(seen.squared_norm - noise, 0.0)
        self.norm.append(norm)
        if self._last is not None:
            loss, eta, last_norm, last_noise = self._last
            self.loss_rose = seen.loss - loss > 0.01 * abs(loss)
            below = eta**2 * (last_norm + last_noise)
            if below > 0:
                self.smoothness.append(2 * (seen.loss - loss + eta * last_norm) / below)
        self._last = (seen.loss, float(self.eta(seen.gradients, workers)), norm, noise)

    def state(self) -> dict[str, Any]:
        return {
            "variance": list(self.variance),
            "norm": list(self.norm),
            "smoothness": list(self.smoothness),
            "loss_rose": self.loss_rose,
            "last": self._last,
            "learning_rate": self._learning_rate,
            "scaling": self._scaling,
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.variance.extend(state["variance"])
        self.norm.extend(state["norm"])
        self.smoothness.extend(state["smoothness"])
        self.loss_rose = state["loss_rose"]
        self._last = state["last"]
        self._learning_rate, self._scaling = state["learning_rate"], state["scaling"]

    @property
    def estimates(self) -> tuple[float | None, float | None, float | None]:
        """V, N and L as they are now."""
        variance, norm, smoothness = map(_mean, (self.variance, self.norm, self.smoothness))
        return variance, norm, None if smoothness is None else max(LEAST_SMOOTHNESS, smoothness)

    def expected(self, workers: int) -> npt.NDArray[np.float64] | None:
        """G(1), ..., G(workers); None while an estimate is missing."""
        variance, norm, smoothness = self.estimates
        if variance is None or norm is None or smoothness is None:
            return None
        k = np.arange(1, workers + 1)
        eta = self.eta(k, workers)
        return (eta - smoothness * eta**2 / 2) * norm - smoothness * eta**2 / 2 * variance / k


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
