"""What an update of k gradients is worth, from the noise of gradients and from the loss over many updates.

With V the variance of one gradient and N the squared norm of the true one, an update gains eta N and loses
L eta^2 (N + V / k) / 2 by curvature. At the rates that people use the two soon cancel: nearly all of N belongs to steep
directions in which steps go to and fro, and says nothing about progress. So two things are taken apart (docs/dbw.md):
- Flow: in all other directions the loss follows the length of the way, tau = sum of eta(k) over all updates. Over a
  while it falls as F = F0 - S ln(tau).
- Bounce: steep directions add a level that hangs on the steps of now. It is B(k) = eta(k) (N + V / k) / 4, a quarter of
  the rate times the squared norm that a mean of k gradients has. With momentum, where eta is the step of a gradient
  that lasts, it is eta(k) (2 N / edge + V / k) / 4: `edge` is the eta L from which on training is unstable, 2 without.
If from now on updates have k gradients, u(k) per second, then after as much way again as there was, half of which is
due to k, the loss is F0 - S ln(u(k) eta(k)) / 2 + B(k) and what does not hang on k. It is least where u(k) worth(k) is
greatest, with worth(k) = (S / tau) eta(k) exp(-2 B(k) / S). The factor before makes it the fall of the loss.

V, N and S are means over the way: what lies at half of it counts half as much. S is the slope of loss - B over ln(tau)
by least squares, but no less than its standard error: a slope that cannot be told from nothing is not nothing. While it
is known of a few updates only, S is half of the loss, as if the loss fell with the square root of the way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.messages import Statistics
from paceline.policies.gain_model import EXPONENTS

LEAST = 1e-12
LEAST_UPDATES = 10.0  # that count, before a slope is believed


class Learned(NamedTuple):
    variance: float  # V
    squared_norm: float  # N
    slope: float  # S


class WorthModel:
    def __init__(self, learning_rate: float, scaling: str | None) -> None:
        """`scaling`: how the rate follows the share of a round; None: as the run says, or linear."""
        self._learning_rate = learning_rate
        self._follows_run = scaling is None
        self._scaling = scaling or "linear"
        self._edge = 2.0
        self._way = 0.0  # tau
        self._noise = [0.0, 0.0]  # weight, and weighted sum of V
        self._norm = [0.0, 0.0]  # of N
        self._line = [0.0] * 7  # sums of w, w x, w y, w x x, w x y, w y y, w w: x is ln tau, y is loss - B

    def observe(self, seen: Statistics, workers: int) -> None:
        """Learn from one update in a group of this size."""
        if seen.learning_rate is not None:
            self._learning_rate = seen.learning_rate
        if self._follows_run and seen.lr_scaling in EXPONENTS:
            self._scaling = seen.lr_scaling
        self._edge = seen.edge
        if workers == 0:
            return
        k = seen.gradients
        step = float(self._eta(np.array([k]), workers)[0])
        old, self._way = self._way, self._way + step
        kept = old / self._way if self._way > 0 else 1.0
        if seen.variance is not None:
            self._noise = _with(self._noise, kept, k - 1, seen.variance)
        if self._noise[0] == 0:
            return
        variance = self._noise[1] / self._noise[0]
        self._norm = _with(self._norm, kept, k, seen.squared_norm - variance / k)
        if seen.loss is not None and math.isfinite(seen.loss) and self._way > 0:
            x, y = math.log(self._way), seen.loss - float(self._bounce(np.array([k]), workers)[0])
            faded = [kept * value for value in self._line[:6]]
            self._line = [
                value + k * new for value, new in zip(faded, (1.0, x, y, x * x, x * y, y * y), strict=True)
            ] + [kept**2 * self._line[6] + k * k]

    @property
    def learned(self) -> Learned | None:
        """None: too little is known."""
        slope = self._slope()
        if slope is None:
            return None
        return Learned(self._noise[1] / self._noise[0], self._true_norm, slope)

    def worth(self, workers: int) -> npt.NDArray[np.float64] | None:
        """ln worth(1), ..., ln worth(workers), in units of the loss; None: too little is known."""
        slope = self._slope()
        if slope is None:
            return None
        k = np.arange(1, workers + 1)
        return np.log(self._eta(k, workers) * slope / self._way) - 2 * self._bounce(k, workers) / slope

    @property
    def _true_norm(self) -> float:
        return max(0.0, self._norm[1] / self._norm[0])

    def _eta(self, k: npt.NDArray[np.int_], workers: int) -> npt.NDArray[np.float64]:
        return self._learning_rate * np.minimum(1.0, k / workers) ** EXPONENTS[self._scaling]

    def _bounce(self, k: npt.NDArray[np.int_], workers: int) -> npt.NDArray[np.float64]:
        variance = self._noise[1] / self._noise[0]
        return self._eta(k, workers) * (self._true_norm / (2 * self._edge) + variance / (4 * k))

    def _slope(self) -> float | None:
        w, wx, wy, wxx, wxy, wyy, ww = self._line
        if w == 0 or self._learning_rate <= 0:
            return None
        spread = wxx / w - (wx / w) ** 2
        if w * w < LEAST_UPDATES * ww or spread <= LEAST:
            return max(abs(wy / w) / 2, LEAST)
        slope = (wxy / w - wx * wy / w**2) / spread
        left = max(0.0, wyy / w - (wy / w) ** 2 - slope**2 * spread)
        error = math.sqrt(left / spread / (w * w / ww - 2))
        return max(-slope, error, LEAST)

    def state(self) -> dict[str, Any]:
        return {name.lstrip("_"): value for name, value in vars(self).items() if name != "_follows_run"}

    def resume(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, f"_{name}", value)


def _with(sums: list[float], kept: float, weight: float, value: float) -> list[float]:
    return [sums[0] * kept + weight, sums[1] * kept + weight * value]
