"""What the workers' latest iterations took: what a question about other policies goes by.

The times of DBW (round_trips.py) are another thing: it asks about few of each worker, some of them cut short by itself,
and makes more of them than was seen; here there are enough of each worker to be asked about as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean

import msgspec

from paceline.core.messages import GradientArrived
from paceline.core.progress import Progress
from paceline.core.questions import Question, short
from paceline.policies.latest import MOST_TIMES, Latest, seconds_of

LATEST = 32  # iterations that are kept of each worker


class RecentTimes(Latest[float]):
    def __init__(self) -> None:
        super().__init__(float, LATEST)

    def observe(self, event: GradientArrived, progress: Progress, now: float) -> None:
        """Of a gradient that progress already contains."""
        seconds = seconds_of(event, progress, now)
        if seconds is not None and seconds > 0:
            self.note(event.gradient.worker, seconds)

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
        known = [fmean(self.of(worker)) for worker in members if worker in self]
        if not known:
            return None
        each = max(1, MOST_TIMES // len(members))  # however many there are
        typical = fmean(known)  # of one that joined just now
        found = []
        for worker, member in progress.members.items():
            own = list(self.of(worker))[-each:]
            elapsed = 0.0 if now is None or member.waiting else now - member.released_at
            if worker in late and elapsed > max(own, default=0.0):  # else it is no longer than it was before
                own = [elapsed]
            elif not own:
                own = [max(typical, elapsed)]
            elif elapsed > max(own):
                own.append(elapsed)
            found.append(own)
        times = tuple(tuple(map(short, own)) for own in found)
        return Question(tuple(candidates), tuple(members), times, short(rounds * max(map(fmean, found))))


def lasting(question: Question, pushes: float) -> Question:
    """The same for as long as so many pushes take where nobody waits."""
    rate = sum(len(times) / sum(times) for times in question.times)
    return msgspec.structs.replace(question, horizon=short(pushes / rate))
