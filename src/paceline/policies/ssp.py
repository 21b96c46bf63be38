"""SSP, stale synchronous parallel: nobody runs more than a fixed number of iterations ahead of the slowest.

Paper: Q. Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013.
The rule, pinned here for all of paceline: each gradient is an update at once; after its push a worker goes on while
its lead (its clock minus the least clock) is at most `staleness`, and otherwise waits until it is. So the lead seen at
an arrival is at most staleness + 1. With staleness 0 the pace is BSP's, the updates are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.messages import NOTHING, Decision, Event, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.policies.base import Policy, WaitingByStanding


@dataclass(eq=False)
class SSP(Policy):
    name = "ssp"
    summary = "fast workers may lead by a fixed number of iterations"
    paper = "Ho et al. 2013"
    waits_for_slowest = True

    staleness: int = parameter(3, "largest lead with which a worker goes on", least=0)
    _waiting: WaitingByStanding = field(init=False, default_factory=WaitingByStanding)

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived(gradient):
                worker = gradient.worker
                self._waiting.add(progress.members[worker])
                release = self._waiting.within(self.staleness, progress)
                reason = ""
                if worker not in release:
                    reason = (
                        f"worker {worker} waits: {progress.lead(worker)} ahead of worker {progress.slowest},"
                        f" limit {self.staleness}"
                    )
                return Decision(apply=(gradient,), release=release, reason=reason)
            case WorkerJoined(worker):
                return Decision(release=(worker,))
            case WorkerLeft():
                return Decision(release=self._waiting.within(self.staleness, progress))
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        self.rebuild(progress)
        release = self._waiting.within(self.staleness, progress)
        reason = ""
        if len(release) < len(progress.waiting):
            reason = f"workers more than {self.staleness} ahead of worker {progress.slowest} wait"
        return Decision(apply=tuple(progress.pending), release=(*release, *progress.newcomers), reason=reason)

    def rebuild(self, progress: Progress) -> None:
        self._waiting = WaitingByStanding(progress.waiting.values())
