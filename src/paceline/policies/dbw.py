"""DBW, dynamic backup workers: each update takes the number of gradients that promises most progress per second.

Paper: C. Xu, G. Neglia, N. Sebastianelli, Dynamic backup workers for parallel machine learning, IFIP Networking 2020
(arXiv 2004.14696). An update of k gradients is expected to gain G(k) (paceline.policies.gain_model) and to take T(h, k)
after an update of h (paceline.policies.time_model). The next k maximises G(k) / T(h, k); on a tie the larger k wins;
without a positive gain all are waited for. The first update waits for all. See paceline.policies.fresh for `late`.

Readings, each a parameter where both make sense:
- The estimates behind G are means over the last `window` updates (5 in the paper; longer is calmer).
- `loss_rule`: when the loss rose by more than 1 % the next k is at least one more.
- `rate`: the learning rate is the same for every k (`fixed`, the paper) or grows with k up to `learning_rate` for a
  full round (`proportional`). `auto` takes what the run says: lr_scaling none, linear or sqrt.
- `blind`: ignore the gain and maximise k / T(h, k), the paper's baseline. It needs no gradient statistics.
Without statistics (a run that only keeps time) a DBW that is not blind can estimate no gain, and waits for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from paceline.core.messages import (
    Decision,
    Estimates,
    Event,
    GradientArrived,
    Statistics,
    UpdateApplied,
    WorkerJoined,
)
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies.fresh import FreshGradients
from paceline.policies.gain_model import GainModel
from paceline.policies.time_model import TimeModel

RATES = {"auto": None, "proportional": "linear", "fixed": "none"}
ITERATIONS = 256  # versions whose late gradients still teach the time model


class Iteration(msgspec.Struct):
    """The time in which one version was the newest."""

    began: float
    h: int  # gradients of the update before it; 0: there was none
    gradients: int = 0  # that came of this version so far


@dataclass(eq=False)
class DBW(FreshGradients):
    name = "dbw"
    summary = "chooses k before each update for the most progress per second"
    paper = "Xu et al. 2020, arXiv 2004.14696"

    learning_rate: float = parameter(0.05, "eta for a full round, where the optimizer's own rate is not known", above=0)
    rate: str = parameter("auto", "how the learning rate depends on k", choices=tuple(RATES))
    window: int = parameter(5, "updates over which V, N and L are averaged", least=1)
    loss_rule: bool = parameter(True, "wait for one more after the loss rose by more than 1 %")
    blind: bool = parameter(False, "maximise k / T(h, k), whatever the gain")
    memory: int = parameter(50, "observations after which the time model forgets", least=1)

    _k: int | None = kept(None)  # None: all
    _iterations: dict[int, Iteration] = kept(factory=dict)  # by version
    _time: TimeModel = kept()
    _gain: GainModel = kept()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._time = TimeModel(self.memory)
        self._gain = GainModel(self.learning_rate, RATES[self.rate], self.window)

    @property
    def wants_statistics(self) -> bool:
        return not self.blind

    def wanted(self, progress: Progress) -> int:
        return len(progress.members) if self._k is None else self._k

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case WorkerJoined() if not self._iterations:
                self._iterations[0] = Iteration(now, 0)
            case GradientArrived():
                self._clock_in(event, progress, now)
            case UpdateApplied(_, Statistics() as statistics):
                self._gain.observe(statistics, len(progress.members))
                return Decision(estimates=self._choose(statistics.gradients, len(progress.members)))
            case _:
                pass
        decision = super().decide(event, progress, now)
        if decision.apply:
            self._iterations[progress.version + 1] = Iteration(now, len(decision.apply))
            self._iterations.pop(progress.version + 1 - ITERATIONS, None)
            if self.blind:  # whether statistics come or not
                estimates = self._choose(len(decision.apply), len(progress.members))
                return msgspec.structs.replace(decision, estimates=estimates)
        return decision

    def take_over(self, progress: Progress, now: float) -> Decision:
        """Begin the iteration of the version after the transition, and wait for all, as at the start of a run."""
        decision = super().take_over(progress, now)
        if decision.apply:
            self._iterations[progress.version + 1] = Iteration(now, len(decision.release))
        else:  # this version goes on: it began when the first worker was given it
            given = [member.released_at for member in progress.members.values() if member.version == progress.version]
            self._iterations[progress.version] = Iteration(min(given, default=now), 0)
        return decision

    def _clock_in(self, event: GradientArrived, progress: Progress, now: float) -> None:
        """Teach the time model when this gradient came, late or not."""
        iteration = self._iterations.get(event.version)
        if iteration is not None:
            iteration.gradients += 1
            self._time.observe(iteration.h or len(progress.members), iteration.gradients, now - iteration.began)

    def _choose(self, h: int, workers: int) -> Estimates | None:
        """Choose the next k after an update of h gradients, and say by what; None: nothing is known, wait for all."""
        self._k = None
        if workers == 0:
            return None
        gain = np.arange(1.0, workers + 1) if self.blind else self._gain.expected(workers)
        times = self._time.expected(h, workers)
        if gain is None or times is None:
            return None
        if gain.max() > 0:
            worth = gain / np.maximum(times, np.finfo(float).tiny)
            best = workers - int(np.argmax(worth[::-1]))  # of several, the largest
            rose = self.loss_rule and self._gain.loss_rose and not self.blind
            self._k = max(best, min(h + 1, workers)) if rose else best
        variance, norm, smoothness = self._gain.estimates
        return Estimates(
            workers if self._k is None else self._k,
            tuple(gain.tolist()),
            tuple(times.tolist()),
            variance,
            norm,
            smoothness,
        )
