"""What DBW chooses k by as it is printed: G(k) from the latest updates over T(h, k), the time of the next one alone.

G(k) is paceline.policies.gain_model's, T(h, k) paceline.policies.time_model's. The next k maximises G(k) / T(h, k); on
a tie the larger k wins; without a positive gain all are waited for. Without statistics no gain is known, and all are.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from paceline.core.messages import Estimates, GradientArrived, Statistics
from paceline.core.progress import Progress
from paceline.policies.estimator import Estimator
from paceline.policies.gain_model import GainModel
from paceline.policies.time_model import TimeModel

ITERATIONS = 256  # versions whose late gradients still teach the time model


class Iteration(msgspec.Struct):
    """The time in which one version was the newest."""

    began: float
    h: int  # gradients of the update before it; 0: there was none
    gradients: int = 0  # that came of this version so far


class PrintedEstimator(Estimator):
    def __init__(self, gain: GainModel, memory: int, *, loss_rule: bool, blind: bool) -> None:
        self.iterations: dict[int, Iteration] = {}  # by version
        self._gain, self._time = gain, TimeModel(memory)
        self._loss_rule, self._blind = loss_rule, blind

    def begin(self, version: int, h: int, now: float) -> None:
        self.iterations[version] = Iteration(now, h)
        self.iterations.pop(version - ITERATIONS, None)

    def arrive(self, event: GradientArrived, progress: Progress, now: float) -> None:
        """Teach the time model when this gradient came, late or not."""
        iteration = self.iterations.get(event.version)
        if iteration is not None:
            iteration.gradients += 1
            h = iteration.h or len(progress.members)
            self._time.observe(h, iteration.gradients, now - iteration.began)

    def learn(self, seen: Statistics, workers: int) -> None:
        self._gain.observe(seen, workers)

    def choose(self, h: int, workers: int) -> Estimates | None:
        gain = np.arange(1.0, workers + 1) if self._blind else self._gain.expected(workers)
        times = self._time.expected(h, workers)
        if gain is None or times is None:
            return None
        k = workers
        if gain.max() > 0:
            worth = gain / np.maximum(times, np.finfo(float).tiny)
            k = workers - int(np.argmax(worth[::-1]))  # of several, the largest
            if self._loss_rule and self._gain.loss_rose and not self._blind:
                k = max(k, min(h + 1, workers))
        return Estimates(k, tuple(gain.tolist()), tuple(times.tolist()), *self._gain.estimates)

    def state(self) -> dict[str, Any]:
        return {
            "iterations": msgspec.to_builtins(self.iterations, str_keys=True),
            "time": self._time.state(),
            "gain": self._gain.state(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        self.iterations = msgspec.convert(state["iterations"], dict[int, Iteration], str_keys=True)
        self._time.resume(state["time"])
        self._gain.resume(state["gain"])
