"""DBW, dynamic backup workers: each update takes the number of gradients that promises most progress per second.

Paper: C. Xu, G. Neglia, N. Sebastianelli, Dynamic backup workers for parallel machine learning, IFIP Networking 2020
(arXiv 2004.14696). The first update waits for all. See paceline.policies.fresh for `late`.

`estimator`: what progress per second is.
- `paper`: as printed, the gain G(k) of the next update over the time T(h, k) until it can be made, from the latest few
  updates (paceline.policies.printed_dbw). In our runs it takes 1.1 to 2.9 times as long as the best static k: a small k
  leaves few workers for the update after it, and gains estimated so are mostly noise.
- `long-run`: as many updates per second as k makes if it stays, times what an update of k gradients is worth
  (paceline.policies.long_run): our own.

Readings of the paper, each a parameter where both make sense:
- The estimates behind G are means over the last `window` updates (5 in the paper; longer is calmer).
- `loss_rule`: when the loss rose by more than 1 % the next k is at least one more.
- `rate`: the learning rate is the same for every k (`fixed`, the paper) or grows with k up to `learning_rate` for a
  full round (`proportional`). `auto` takes what the run says: lr_scaling none, linear or sqrt.
- `blind`: ignore the gain and maximise gradients per second, the paper's baseline. It needs no gradient statistics.
`window`, `loss_rule` and `memory` belong to `estimator=paper` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from paceline.core.messages import (
    Answered,
    Decision,
    Estimates,
    Event,
    GradientArrived,
    Statistics,
    UpdateApplied,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies.estimator import Estimator
from paceline.policies.fresh import FreshGradients
from paceline.policies.gain_model import GainModel
from paceline.policies.long_run import LongRunEstimator
from paceline.policies.printed_dbw import PrintedEstimator
from paceline.policies.worth_model import WorthModel

RATES = {"auto": None, "proportional": "linear", "fixed": "none"}


@dataclass(eq=False)
class DBW(FreshGradients):
    name = "dbw"
    summary = "chooses k before each update for the most progress per second"
    paper = "Xu et al. 2020, arXiv 2004.14696"

    learning_rate: float = parameter(0.05, "eta for a full round, where the optimizer's own rate is not known", above=0)
    rate: str = parameter("auto", "how the learning rate depends on k", choices=tuple(RATES))
    window: int = parameter(5, "updates over which V, N and L are averaged; estimator=paper", least=1)
    loss_rule: bool = parameter(True, "wait for one more after the loss rose by more than 1 %; estimator=paper")
    blind: bool = parameter(False, "maximise gradients per second, whatever the gain")
    memory: int = parameter(50, "observations after which the time model forgets; estimator=paper", least=1)
    estimator: str = parameter("long-run", "what progress per second is", choices=("long-run", "paper"))

    _k: int | None = kept(None)  # None: all
    _begun: bool = kept(False)
    _look_at: float | None = kept(None)  # when the worker that others wait for is overdue
    _estimator: Estimator = kept()

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = RATES[self.rate]
        if self.estimator == "paper":
            gain = GainModel(self.learning_rate, rate, self.window)
            self._estimator = PrintedEstimator(gain, self.memory, loss_rule=self.loss_rule, blind=self.blind)
        else:
            worth = WorthModel(self.learning_rate, rate)
            self._estimator = LongRunEstimator(worth, self.late, blind=self.blind)

    @property
    def wants_statistics(self) -> bool:
        return not self.blind

    def deadline(self) -> float | None:
        return self._look_at

    def wanted(self, progress: Progress) -> int:
        return len(progress.members) if self._k is None else self._k

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        estimates, question = None, None
        match event:
            case WorkerJoined() if not self._begun:
                self._begin(0, 0, now)
            case WorkerLeft(worker):
                self._estimator.forget(worker)
            case GradientArrived():
                question = self._estimator.arrive(event, progress, now)
            case UpdateApplied(_, Statistics() as statistics):
                self._estimator.learn(statistics, len(progress.members))
                return Decision(estimates=self._choose(statistics.gradients, progress))
            case Answered(_, answer):
                self._estimator.hear(answer, now)
                estimates = self._choose(len(progress.pending), progress)
            case _:
                question = self._estimator.look(progress, now)
        decision = super().decide(event, progress, now)
        if decision.apply:
            self._estimator.interrupt(decision.interrupt, progress, now)
            self._begin(progress.version + 1, len(decision.apply), now)
            if self.blind:  # whether statistics come or not
                estimates = self._choose(len(decision.apply), progress)
        self._look_at = self._estimator.overdue_at(progress)
        return msgspec.structs.replace(decision, ask=question, estimates=estimates)

    def take_over(self, progress: Progress, now: float) -> Decision:
        """Begin the iteration of the version after the transition, and wait for all, as at the start of a run."""
        decision = super().take_over(progress, now)
        if decision.apply:
            self._begin(progress.version + 1, len(decision.release), now)
        else:  # this version goes on: it began when the first worker was given it
            given = [member.released_at for member in progress.members.values() if member.version == progress.version]
            self._begin(progress.version, 0, min(given, default=now))
        return decision

    def _begin(self, version: int, h: int, now: float) -> None:
        self._begun = True
        self._estimator.begin(version, h, now)

    def _choose(self, h: int, progress: Progress) -> Estimates | None:
        """Choose the next k after an update of h gradients, and say by what; None: nothing is known, wait for all."""
        workers = len(progress.members)
        estimates = self._estimator.choose(h, workers) if workers else None
        self._k = None if estimates is None else estimates.k
        return estimates
