"""What the workers' latest iterations took: what a question about other policies goes by.

An iteration runs from a worker's release to its push, so that no wait of one policy leaks into the prospects of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from statistics import fmean

import msgspec

from paceline.core.messages import GradientArrived
from paceline.core.progress import Progress
from paceline.core.questions import Question

LATEST = 32  # iterations that are kept of each worker
MOST_TIMES = 4_096  # in one question, which is a line of the trace; never less than one of each worker


class RecentTimes:
    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}

    def observe(self, event: GradientArrived, progress: Progress, now: float) -> None:
        """Of a gradient that progress already contains."""
        worker = event.gradient.worker
        member = progress.members[worker]
        seconds = now - member.released_at
        if seconds > 0 and not member.came_late:
            seen = self._seen.get(worker)
            if seen is None:
                seen = self._seen[worker] = deque(maxlen=LATEST)
            seen.append(seconds)

    def forget(self, worker: int) -> None:
        self._seen.pop(worker, None)

    def keep_only(self, worker: int, latest: int) -> None:
        """Those before were of another time."""
        seen = self._seen[worker]
        while len(seen) > latest:
            seen.popleft()

    def of(self, worker: int) -> Sequence[float]:
        """Oldest first; none: nothing is known."""
        return self._seen.get(worker, ())

    def question(
        self,
        candidates: Sequence[str],
        progress: Progress,
        rounds: float,
        *,
        now: float | None = None,
        late: Collection[int] = (),
    ) -> Question | None:
        """What would they make of these times, in so many rounds of the slowest worker? None: no times are known.

        `now`: what members are at counts as well, if that takes longer already than what they did before. `late`:
        members of which it alone counts.
        """
        members = list(progress.members)
        known = [fmean(self._seen[worker]) for worker in members if worker in self._seen]
        if not known:
            return None
        each = max(1, MOST_TIMES // len(members))
        typical = fmean(known)  # of one that joined just now
        found = []
        for worker, member in progress.members.items():
            own = list(self.of(worker))[-each:]
            elapsed = 0.0 if now is None or member.waiting else now - member.released_at
            if worker in late and elapsed > 0:
                own = [elapsed]
            elif not own:
                own = [max(typical, elapsed)]
            elif elapsed > max(own):
                own.append(elapsed)
            found.append(own)
        times = tuple(tuple(map(_short, own)) for own in found)
        return Question(tuple(candidates), tuple(members), times, _short(rounds * max(map(fmean, found))))

    def state(self) -> dict[str, list[float]]:
        return {str(worker): list(seen) for worker, seen in self._seen.items()}

    def resume(self, state: dict[str, list[float]]) -> None:
        self._seen = {int(worker): deque(seen, maxlen=LATEST) for worker, seen in state.items()}


def lasting(question: Question, pushes: float) -> Question:
    """The same for as long as so many pushes take where nobody waits."""
    rate = sum(len(times) / sum(times) for times in question.times)
    return msgspec.structs.replace(question, horizon=_short(pushes / rate))


def _short(seconds: float) -> float:
    """So many digits as a measured time has."""
    return float(f"{seconds:.4g}")
