"""The common half of backup workers and DBW: an update is made of the first k gradients of the current version.

A subclass says how many it wants. What becomes of a worker that is still computing when the update happens is `late`:
- `finish` (PsW): it finishes, its gradient is discarded, and it goes on with the newest parameters;
- `interrupt` (PsI): it drops its work and starts over with the newest parameters;
- `pull`: as `finish`, and nobody ever waits: a worker is given the newest parameters whenever it asks, so that it may
  contribute more than once to the same update.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import msgspec

from paceline.core.messages import NOTHING, Answered, Decision, Event, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.policies.base import Policy


@dataclass(eq=False)
class FreshGradients(Policy):
    late: str = parameter(
        "finish", "what a worker does when an update happens while it computes", choices=("finish", "interrupt", "pull")
    )

    @property
    def applies_stale(self) -> bool:
        return False

    @abstractmethod
    def wanted(self, progress: Progress) -> int:
        """How many gradients of the current version make the next update."""

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived(gradient, version):
                if version == progress.version:
                    return self._update_if_enough(event, progress)
                return Decision(
                    discard=(gradient,),
                    release=(gradient.worker,),
                    reason=f"worker {gradient.worker} was late: it computed on version {version} of {progress.version}",
                )
            case WorkerJoined(worker):
                return Decision(release=(worker,))
            case WorkerLeft() | Answered():  # what was asked may have changed how many are wanted
                return self._update_if_enough(event, progress) if progress.pending else NOTHING
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        decision = super().take_over(progress, now)
        newest = progress.version + bool(progress.pending)
        return msgspec.structs.replace(decision, interrupt=self._interrupted(progress, newest))

    def _interrupted(self, progress: Progress, newest: int) -> tuple[int, ...]:
        """The workers that drop their work because it would come too late for the update after this version."""
        if self.late != "interrupt":
            return ()
        working = (member for member in progress.members.values() if not member.waiting)
        return tuple(member.worker for member in working if member.version < newest)

    def _update_if_enough(self, event: Event, progress: Progress) -> Decision:
        here = len(progress.pending)
        wanted = min(self.wanted(progress), len(progress.members))  # a worker that left blocks nobody
        if here >= wanted:
            return Decision(
                apply=tuple(progress.pending),
                release=tuple(progress.waiting),
                interrupt=self._interrupted(progress, progress.version + 1),
            )
        if not isinstance(event, GradientArrived):
            return NOTHING
        worker = event.gradient.worker
        if self.late == "pull":
            return Decision(release=(worker,))
        return Decision(reason=f"worker {worker} waits: the update has {here} of the {wanted} gradients that it needs")
