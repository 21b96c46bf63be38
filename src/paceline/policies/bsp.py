"""BSP, bulk synchronous parallel: everybody pushes, one update from the mean of all, everybody goes on together.

Paper: L. G. Valiant, A bridging model for parallel computation, CACM 33(8), 1990.
Decisions: a joiner enters the running round as long as nobody has pushed in it, otherwise the next one. A gradient
whose worker left afterwards still counts; a round waits only for the members that are left. The gradient of a worker
that was silent for long, and is back, is discarded if its round is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.messages import NOTHING, Decision, Event, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.policies.base import Policy


@dataclass(eq=False)
class BSP(Policy):
    name = "bsp"
    summary = "everybody waits for everybody; one update per round"
    paper = "Valiant 1990"

    @property
    def applies_stale(self) -> bool:
        return False

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case WorkerJoined(worker):
                if not progress.pending:
                    return Decision(release=(worker,))
                return Decision(reason=f"worker {worker} enters with the next round")
            case GradientArrived(gradient, version) if self._is_late(event, progress):
                return Decision(
                    discard=(gradient,),
                    release=(gradient.worker,),
                    reason=f"worker {gradient.worker} was late: it computed on version {version} of {progress.version}",
                )
            case GradientArrived() | WorkerLeft():
                if progress.computing == 0:
                    return Decision(apply=tuple(progress.pending), release=(*progress.waiting, *progress.newcomers))
                return Decision(reason=self._who_is_missing(event, progress))
            case _:
                return NOTHING

    def _is_late(self, event: GradientArrived, progress: Progress) -> bool:
        return event.version < progress.version and progress.members[event.gradient.worker].came_late

    def _who_is_missing(self, event: Event, progress: Progress) -> str:
        if not isinstance(event, GradientArrived):
            return ""
        missing = progress.computing
        others = f" and {missing - 1} more" if missing > 1 else ""
        return f"worker {event.gradient.worker} waits: the round still needs worker {progress.slowest}{others}"
