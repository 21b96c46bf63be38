"""Buffered asynchronous: gradients gather in a buffer, and every `size` arrivals make one update. Nobody waits.

Papers: J. Nguyen et al., Federated learning with buffered asynchronous aggregation (FedBuff), AISTATS 2022
(arXiv 2106.06639); K-async SGD is the case without weights, S. Dutta et al., AISTATS 2018.
A gradient of staleness s has the weight (1 + s) ** -exponent; one beyond `max_staleness` is discarded on arrival, where
its staleness is already final, because the version only moves when the buffer is emptied.
- `divide`: the weighted sum is divided by the weighted number of samples (`weights`: a true weighted mean, so that one
  learning rate suits all policies) or by their number (`size`, as printed: stale gradients make a smaller step). These
  are two different algorithms.
Decisions:
- Without a `size` it is an eighth of the group. The paper takes 10 gradients of a thousand workers; what waits in the
  buffer gets older, and a buffer of a whole group makes every gradient older by a round (docs/optimizers.md).
- When the last worker leaves, what the buffer holds becomes a last, smaller update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.core.messages import NOTHING, Decision, Event, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.policies.base import Policy

PART = 1 / 8  # of the group, in one update


@dataclass(eq=False)
class Buffered(Policy):
    name = "buffered"
    summary = "nobody waits; every K arrivals make one update"
    paper = "Nguyen et al. 2022, arXiv 2106.06639"

    size: int | None = parameter(None, "K: arrivals per update; none: an eighth of the workers, rounded up", least=1)
    exponent: float = parameter(0.5, "a in the staleness weight (1 + s) ** -a; 0: all weigh the same", least=0, most=10)
    max_staleness: int | None = parameter(None, "beyond it a gradient is discarded; none: never", least=0)
    divide: str = parameter("weights", "what the weighted sum is divided by", choices=("size", "weights"))

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived(gradient, version):
                worker = gradient.worker
                staleness = progress.version - version
                if self.max_staleness is not None and staleness > self.max_staleness:
                    return Decision(
                        discard=(gradient,),
                        release=(worker,),
                        reason=f"the gradient of worker {worker} has staleness {staleness}, limit {self.max_staleness}",
                    )
                return self._update(progress, (worker,)) if self._full(progress) else Decision(release=(worker,))
            case WorkerJoined(worker):
                return Decision(release=(worker,))
            case WorkerLeft() if progress.pending and (self._full(progress) or not progress.members):
                return self._update(progress, ())
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        return self._update(progress, release=(*progress.waiting, *progress.newcomers))

    def _full(self, progress: Progress) -> bool:
        size = math.ceil(len(progress.members) * PART) if self.size is None else self.size
        return len(progress.pending) >= size

    def _update(self, progress: Progress, release: tuple[int, ...]) -> Decision:
        pushes = progress.pending.values()
        weights = [(1.0 + progress.version - push.version) ** -self.exponent for push in pushes]
        if self.divide == "weights":
            samples = sum(push.samples for push in pushes)
            weighted = sum(weight * push.samples for weight, push in zip(weights, pushes, strict=True))
            weights = [weight * samples / weighted for weight in weights]
        return Decision(apply=tuple(progress.pending), weights=tuple(weights), release=release)
