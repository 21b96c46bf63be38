"""A policy of one's own: periodic aggregation (Hu, Chen, Larsson 2021), an update at the end of every period."""

from dataclasses import dataclass

from paceline import Simulation, simulate
from paceline.core.messages import NOTHING, DeadlinePassed, Decision, Event, GradientArrived, WorkerJoined
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies import Policy


@dataclass(eq=False)
class Periodic(Policy):
    name = "periodic"
    summary = "an update every fixed period, from the workers that are ready"
    paper = "Hu, Chen, Larsson 2021"

    period: float = parameter(2.0, "time between two updates", above=0)

    _next: float | None = kept(None)  # the end of this period; kept: a checkpoint saves it

    def deadline(self) -> float | None:
        return self._next

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case WorkerJoined(worker):
                if self._next is None:
                    self._next = now + self.period
                return Decision(release=(worker,))
            case GradientArrived(gradient):
                return Decision(reason=f"worker {gradient.worker} waits for the end of the period, at {self._next:g}")
            case DeadlinePassed():
                self._next = now + self.period
                return Decision(apply=tuple(progress.pending), release=tuple(progress.waiting))
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        """Begin in the middle of another policy's run, with a period that starts here."""
        self._next = now + self.period
        return super().take_over(progress, now)


if __name__ == "__main__":
    group = Simulation(intervals=(1.0, 1.1, 1.3, 4.0), duration=100)
    for policy in ("bsp", Periodic(period=1.5)):
        summary = simulate(policy, group)
        print(f"{summary.policy:<20} {summary.iterations_per_second:.2f} iterations/s, {summary.updates} updates")
