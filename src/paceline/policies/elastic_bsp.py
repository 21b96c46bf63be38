"""ElasticBSP: barriers placed where the workers' predicted iteration ends lie closest together.

Papers: X. Zhao, M. Papagelis, A. An, B. X. Chen, J. Liu, Y. Hu, Elastic bulk synchronous parallel model for
distributed deep learning, ICDM 2019 (arXiv 2001.01347), and the ZipLine journal paper, Machine Learning 2021.
The rule: watch two pushes of every worker, predict the ends of its next `lookahead` iterations, choose one end per
worker with the smallest spread (paceline.zipline), and let every worker run that many iterations. When all have, they
go on together with the same version: a superstep is over.

Deviations and readings, each a parameter where both make sense:
- Quotas are counted, not timed. A joiner enters at the next barrier (or a superstep in which nobody has pushed yet).
- An interval runs from a worker's release to its push, so that the wait at a barrier never leaks into it.
- `monitoring`: `every` superstep begins with two unplanned pushes of every worker, as printed; the plan is made at the
  push that completes them, and quotas count from there. `first`: only the first superstep watches; later plans are
  made at the barrier itself, where all start together, from the intervals already known. A joiner is watched first.
- `search` and `objective`: which barrier search, and what it minimises (paceline.zipline).
- `interval`: how the next interval is estimated: the `last` one (the paper), the `mean` or `median` of the last
  `window`, or `smoothed` exponentially.
- `inside`: `apply` makes each gradient an update at once; `gather` keeps the parameters fixed and makes one update at
  the barrier: synchronous SGD without staleness, in which fast workers contribute more gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOTHING, Decision, Event, Gradient, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies.base import Policy
from paceline.policies.intervals import ESTIMATORS, Intervals
from paceline.zipline import ALGORITHMS, OBJECTIVES, predict, search

SEARCHES = tuple(name for name in ALGORITHMS if name != "naive")  # naive cannot be run on a real group
WATCHED = 2  # pushes of every worker before a plan is made


@dataclass(eq=False)
class ElasticBSP(Policy):
    name = "elastic-bsp"
    summary = "barriers where predicted iteration ends lie closest together"
    paper = "Zhao et al. 2019, arXiv 2001.01347"

    lookahead: int = parameter(15, "R: how many future iterations of each worker are predicted", least=1, most=100_000)
    monitoring: str = parameter("every", "which supersteps begin with two unplanned pushes", choices=("every", "first"))
    inside: str = parameter("apply", "what becomes of gradients inside a superstep", choices=("apply", "gather"))

    search: str = parameter("sweep", "the barrier search", choices=SEARCHES)
    objective: str = parameter("spread", "what the search minimises; total and share: sweep only", choices=OBJECTIVES)
    interval: str = parameter("last", "how a worker's next interval is estimated", choices=ESTIMATORS)
    window: int = parameter(5, "intervals behind the mean and the median", least=1)
    smoothing: float = parameter(0.3, "weight of the newest interval, for smoothed", above=0, most=1)

    _began: float = kept(0.0)  # when this superstep did
    _pushes: dict[int, int] = kept(factory=dict)  # in this superstep
    _watched: int = kept(0)  # how many workers pushed often enough for a plan
    _quota: dict[int, int] | None = kept(None)  # pushes until the barrier; None: watching
    _intervals: Intervals = kept()

    @property
    def applies_stale(self) -> bool:
        return self.inside == "apply"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "spread" and self.search != "sweep":
            raise ConfigurationError(
                f"policy 'elastic-bsp': objective={self.objective} needs search=sweep; {self.search} knows only spread"
            )
        self._intervals = Intervals(self.interval, self.window, self.smoothing)

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived():
                return self._push(event, progress, now)
            case WorkerJoined(worker):
                if self._quota is None and not self._pushes:
                    self._began = now
                    return Decision(release=(worker,))
                return Decision(reason=f"worker {worker} enters at the next barrier")
            case WorkerLeft(worker):
                self._intervals.forget(worker)
                if self._pushes.pop(worker, 0) >= WATCHED:
                    self._watched -= 1
                if self._quota is None and progress.members:
                    self._plan_if_watched(progress)
                    return NOTHING
                return NOTHING if progress.computing else self._barrier(progress, now, ())
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        self._began = now  # of a superstep that watches, as at the start of a run
        return super().take_over(progress, now)

    def _push(self, event: GradientArrived, progress: Progress, now: float) -> Decision:
        worker = event.gradient.worker
        member = progress.members[worker]
        if member.came_late:
            return self._take_late(event, progress)
        self._intervals.observe(worker, now - member.released_at)
        self._pushes[worker] = pushes = self._pushes.get(worker, 0) + 1
        apply = (event.gradient,) if self.inside == "apply" else ()
        if self._quota is None:
            self._watched += pushes == WATCHED
            self._plan_if_watched(progress)
            return Decision(apply=apply, release=(worker,))
        self._quota[worker] -= 1
        if self._quota[worker] > 0:
            return Decision(apply=apply, release=(worker,))
        if progress.computing:
            return Decision(
                apply=apply,
                reason=f"worker {worker} waits at the barrier for {progress.computing} of"
                f" {len(progress.members)} workers",
            )
        return self._barrier(progress, now, apply)

    def _take_late(self, event: GradientArrived, progress: Progress) -> Decision:
        """Its worker was silent for long, and is back: the time that it took tells nothing, and the superstep in which
        it enters has not begun for it."""
        gradient = event.gradient
        if self.inside == "apply":
            return Decision(apply=(gradient,), release=(gradient.worker,))
        if event.version == progress.version:
            return Decision(release=(gradient.worker,))
        reason = f"worker {gradient.worker} was late: it computed on version {event.version} of {progress.version}"
        return Decision(discard=(gradient,), release=(gradient.worker,), reason=reason)

    def _barrier(self, progress: Progress, now: float, apply: tuple[Gradient, ...]) -> Decision:
        """All are here: everybody goes on with the same version, and the next superstep begins."""
        self._began = now
        self._pushes.clear()
        self._watched = 0
        self._quota = None
        known = all(worker in self._intervals for worker in progress.members)
        if self.monitoring == "first" and progress.members and known and not progress.newcomers:
            self._plan(progress, dict.fromkeys(progress.members, now))
        return Decision(
            apply=apply if self.inside == "apply" else tuple(progress.pending),
            release=(*progress.waiting, *progress.newcomers),
        )

    def _plan_if_watched(self, progress: Progress) -> None:
        if self._watched == len(progress.members):
            self._plan(progress, {worker: member.pushed_at for worker, member in progress.members.items()})

    def _plan(self, progress: Progress, start: dict[int, float]) -> None:
        points = predict(list(start.values()), [self._intervals.expected(worker) for worker in start], self.lookahead)
        barrier = search(points, self.search, self.objective, start=self._began)
        self._quota = dict(zip(start, barrier.iterations, strict=True))
