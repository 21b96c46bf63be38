"""DSSP, dynamic stale synchronous parallel: SSP whose limit moves between two bounds as a prediction says.

Paper: X. Zhao, A. An, J. Liu, B. X. Chen, Dynamic stale synchronous parallel distributed training for deep learning,
ICDCS 2019 (arXiv 1908.11848). The rule: each gradient is an update at once. Within `lower` a worker goes on. Beyond it
the fastest worker asks the controller how many extra iterations would end nearest to a push of the slowest worker,
and gets as many; any other worker waits.

Deviations and readings, each a parameter where both make sense:
- `capped`: as printed, the upper bound is not enforced: when the extra iterations are used up the controller is asked
  again, whatever the lead, and DSSP can run like ASP (Table I is only reachable so). The default goes on only while
  the lead is at most `upper`, as the theorem needs it.
- `literal_grant`: as printed, r* + 1 extra iterations run, because the grant itself does not count. Default: r*.
- `wait`: until the lead is at most `lower` (`gap`, line 17) or until the slowest worker's next push (`next`, figure 2).
- A grant is void once its worker waits: its prediction no longer holds.
- Push times are kept on every push, not only inside the controller. Without an interval of the slowest worker the
  controller grants nothing. On a tie the smallest r wins. The controller is a merge, O(upper - lower).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.errors import ConfigurationError
from paceline.core.messages import NOTHING, Decision, Event, GradientArrived, WorkerJoined, WorkerLeft
from paceline.core.progress import Progress
from paceline.core.spec import parameter
from paceline.core.state import kept
from paceline.policies.base import Policy, WaitingByStanding


def extra_iterations(fastest: float, fast_interval: float, slowest: float, slow_interval: float, limit: int) -> int:
    """The controller: the r in 0..limit whose end, fastest + r * fast_interval, is nearest to one of the slowest
    worker's next limit + 1 pushes."""

    def distance(push: int, end: float) -> float:
        return abs(slowest + push * slow_interval - end)

    best, granted, push = float("inf"), 0, 1
    for r in range(limit + 1):
        end = fastest + r * fast_interval
        # Distances to the pushes fall, then rise; the turning point only moves right as r grows.
        while push <= limit and distance(push + 1, end) < distance(push, end):
            push += 1
        if distance(push, end) < best:
            best, granted = distance(push, end), r
    return granted


@dataclass(eq=False)
class DSSP(Policy):
    name = "dssp"
    summary = "SSP whose limit follows a prediction of the slowest worker"
    paper = "Zhao et al. 2019, arXiv 1908.11848"
    waits_for_slowest = True

    lower: int = parameter(3, "lead within which nobody waits", least=0, most=100_000)
    upper: int = parameter(15, "largest lead that extra iterations may reach", least=0, most=100_000)
    capped: bool = parameter(True, "hold the lead within upper; false: as printed")
    wait: str = parameter("gap", "until the lead is at most lower, or the slowest's next push", choices=("gap", "next"))
    literal_grant: bool = parameter(False, "run one extra iteration more than the controller says, as printed")

    _extra: dict[int, int] = kept(factory=dict)  # worker -> extra iterations left
    _pushes: dict[int, tuple[float | None, float]] = kept(factory=dict)  # worker -> the two latest
    _for_next: dict[int, list[int]] = kept(factory=dict)  # slowest -> workers that wait for its push
    _for_gap: WaitingByStanding = field(init=False, default_factory=WaitingByStanding)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.upper < self.lower:
            raise ConfigurationError(
                f"policy 'dssp': upper={self.upper} is below lower={self.lower}; upper is the larger bound"
            )

    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        match event:
            case GradientArrived(gradient):
                worker = gradient.worker
                before = self._pushes.get(worker)
                self._pushes[worker] = (None if before is None else before[1], now)
                woken = self._wake(worker, progress)
                if self._goes_on(worker, progress):
                    return Decision(apply=(gradient,), release=(*woken, worker))
                return Decision(apply=(gradient,), release=woken, reason=self._hold(worker, progress))
            case WorkerJoined(worker):
                return Decision(release=(worker,))
            case WorkerLeft(worker):
                self._extra.pop(worker, None)
                self._pushes.pop(worker, None)
                return Decision(release=self._wake(worker, progress))
            case _:
                return NOTHING

    def take_over(self, progress: Progress, now: float) -> Decision:
        """No interval is known yet, so nobody is granted more than `lower`."""
        reason, release = "", []
        for worker in progress.waiting:
            if progress.lead(worker) <= self.lower:
                release.append(worker)
            else:
                self._hold(worker, progress)
                reason = f"workers more than {self.lower} ahead of worker {progress.slowest} wait"
        return Decision(apply=tuple(progress.pending), release=(*release, *progress.newcomers), reason=reason)

    def rebuild(self, progress: Progress) -> None:
        self._for_gap = WaitingByStanding(progress.waiting.values())

    def _goes_on(self, worker: int, progress: Progress) -> bool:
        lead = progress.lead(worker)
        if lead <= self.lower:
            self._extra[worker] = max(0, self._extra.get(worker, 0) - 1)
            return True
        if self.capped and lead > self.upper:
            return False
        left = self._extra.get(worker, 0)
        if left == 0 and progress.members[worker].standing == progress.greatest_standing:
            left = self._ask_controller(worker, progress)
            if left and self.literal_grant:
                left += 1
        self._extra[worker] = max(0, left - 1)
        return left > 0

    def _ask_controller(self, worker: int, progress: Progress) -> int:
        before, latest = self._pushes[worker]
        slow_before, slow_latest = self._pushes.get(progress.slowest, (None, 0.0))
        if before is None or slow_before is None:
            return 0
        limit = self.upper - self.lower
        return extra_iterations(latest, latest - before, slow_latest, slow_latest - slow_before, limit)

    def _hold(self, worker: int, progress: Progress) -> str:
        """Make the worker wait, and say for what."""
        self._extra[worker] = 0
        slowest = progress.slowest
        if self.wait == "gap":
            self._for_gap.add(progress.members[worker])
            until = f"until it leads by at most {self.lower}"
        else:
            self._for_next.setdefault(slowest, []).append(worker)
            until = f"for the next push of worker {slowest}"
        return f"worker {worker} waits {until}: {progress.lead(worker)} ahead of worker {slowest}, upper {self.upper}"

    def _wake(self, moved: int, progress: Progress) -> tuple[int, ...]:
        """The workers that may go on now that this one pushed or left."""
        if self.wait == "gap":
            return self._for_gap.within(self.lower, progress)
        woken = []
        for worker in self._for_next.pop(moved, ()):
            if worker not in progress.waiting:
                continue
            if self.capped and progress.lead(worker) > self.upper:
                self._for_next.setdefault(progress.slowest, []).append(worker)
            else:
                woken.append(worker)
        return tuple(woken)
