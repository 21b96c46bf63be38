"""ASP, asynchronous parallel: each gradient is an update at once, and nobody ever waits.

Paper: J. Dean et al., Large scale distributed deep networks (Downpour SGD), NIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.messages import NOTHING, Decision, Event, GradientArrived, WorkerJoined
from paceline.core.progress import Progress
from paceline.policies.base import Policy


@dataclass(eq=False)
class ASP(Policy):
    name = "asp"
    summary = "nobody waits; each gradient is an update at once"
    paper = "Dean et al. 2012"

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived(gradient):
                return Decision(apply=(gradient,), release=(gradient.worker,))
            case WorkerJoined(worker):
                return Decision(release=(worker,))
            case _:
                return NOTHING
