"""What workers need for an iteration lately, as a question can say it: few times, and what is told by them.

Of each worker the times count that ended within the latest few typical iterations, or else its latest one. Two more
things are known:
- A worker that has computed for longer than it needed on average so far is slower now than it was: the time until now
  counts as if it had ended. So a worker that is five times slower is seen before it ever pushes.
- An iteration that was interrupted would have taken longer than it was let. What is left is taken to be exponential,
  with the mean that fits all times, whole and cut, best; a worker that never finishes is so believed to be ever slower.
Few times of each worker differ by chance as well. So how they vary is taken from all workers, and what a worker needs
on average lies as far from the others' mean as is more than chance (James and Stein 1961).

The times of `auto` (recent_times.py) are another thing: whole iterations under whatever policy is in force, enough of
each worker to stand for it, which are asked about as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from paceline.core.messages import GradientArrived
from paceline.core.progress import Progress
from paceline.core.questions import Question, short
from paceline.policies.latest import MOST_TIMES, Latest, seconds_of

OVERDUE = 2.0  # times the longest of its latest trips: whoever waits for it asks what else to do
RECENT = 16  # typical iterations for which times count
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, less whole numbers, lie evenly between 0 and 1
LEAST_EACH = 4  # times of one worker in a question, however many workers there are


class Trip(msgspec.Struct, array_like=True):
    ended: float
    seconds: float
    cut: bool = False  # interrupted, so that it would have taken longer


class RoundTrips(Latest[Trip]):
    def __init__(self) -> None:
        super().__init__(Trip, 2 * RECENT)

    def observe(self, event: GradientArrived, progress: Progress, now: float) -> None:
        """Of a gradient that progress already contains."""
        member = progress.members[event.gradient.worker]
        seconds = seconds_of(event, progress, now)
        if seconds is not None and event.version == member.version:  # else it was interrupted too late
            self._add(member.worker, Trip(now, seconds))

    def interrupt(self, workers: Sequence[int], progress: Progress, now: float) -> None:
        """These are about to begin anew."""
        for worker in workers:
            self._add(worker, Trip(now, now - progress.members[worker].released_at, cut=True))

    def _add(self, worker: int, trip: Trip) -> None:
        if trip.seconds > 0:
            self.note(worker, trip)

    def overdue_at(self, progress: Progress, looked: float) -> float | None:
        """When the worker that others wait for will take much longer than it ever did lately; None: nobody waits, or
        nothing is known of it. `looked`: when that was asked last; again after as long as it then took."""
        if not progress.waiting or not progress.computing:
            return None
        member = progress.members[progress.slowest]
        seen = self.of(member.worker)
        if member.waiting or not seen:
            return None
        due = member.released_at + OVERDUE * max(trip.seconds for trip in seen)
        return max(due, member.released_at + 2 * (looked - member.released_at))

    def question(
        self, candidates: Sequence[str], progress: Progress, now: float, rounds: float, late: int | None = None
    ) -> Question | None:
        """What would they make of these times, in so many typical rounds? None: no times are known. `late`: of this
        worker what it has taken so far alone counts."""
        workers = list(progress.members)
        known = [worker for worker in workers if worker in self]
        if not known:
            return None
        recent = dict(zip(known, self._recent(known, progress, now, late), strict=True))
        means, shapes = typical(list(recent.values()))
        each = max(LEAST_EACH, min(len(shapes), MOST_TIMES // len(workers)))
        mean = dict(zip(known, means, strict=True))
        middle = float(np.mean(means))
        times = []
        for number, worker in enumerate(workers):
            own = mean.get(worker, middle) * dealt(shapes, number, len(workers))[:each]
            times.append(tuple(map(short, own)))
        return Question(tuple(candidates), tuple(workers), tuple(times), short(rounds * middle))

    def _recent(
        self, workers: Sequence[int], progress: Progress, now: float, late: int | None
    ) -> list[npt.NDArray[np.float64]]:
        """The times of each worker that count."""
        seen = [list(self.of(worker)) for worker in workers]
        whole = [trip.seconds for trips in seen for trip in trips if not trip.cut]
        least = min(whole, default=0.0)
        beyond = [sum(max(0.0, trip.seconds - least) for trip in trips) for trips in seen]
        rest = sum(beyond) / max(1, len(whole))  # of an iteration, on average, after the shortest one
        cuts = len(whole) < sum(map(len, seen))
        since = now - RECENT * (least + rest if cuts else float(np.median(whole)))
        found = []
        for worker, trips, own in zip(workers, seen, beyond, strict=True):
            recent = [trip for trip in trips if trip.ended >= since] or trips[-1:]
            cut = np.array([trip.cut for trip in recent])
            mean = (own + rest) / (sum(not trip.cut for trip in trips) + 1)
            times = lengthened(np.array([trip.seconds for trip in recent]), cut, least, mean)
            member = progress.members[worker]
            under_way = now - member.released_at
            if worker == late:
                times = np.array([under_way])
            elif not member.waiting and under_way > times.mean():
                times = np.append(times, under_way)
            found.append(times)
        return found


def lengthened(
    seconds: npt.NDArray[np.float64], cut: npt.NDArray[np.bool_], least: float, mean: float
) -> npt.NDArray[np.float64]:
    """With those that were cut as long as they might have become: exponential times, evenly over their quantiles."""
    quantile = np.cumsum(cut) * GOLDEN % 1.0
    return np.where(cut, np.maximum(seconds, least) - mean * np.log1p(-quantile), seconds)


def typical(times: Sequence[npt.NDArray[np.float64]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What each worker needs on average, as far as it is more than chance; and how times vary around that, for all.

    One time of each says neither: then it is all chance.
    """
    means = np.array([own.mean() for own in times])
    counts = np.array([len(own) for own in times])
    shapes = np.concatenate([own / mean for own, mean in zip(times, means, strict=True)])
    free = counts.sum() - len(counts)  # a worker's own mean takes one away
    middle = float(means.mean())
    if not free:
        return np.full(len(means), middle), means / middle
    within = float(((shapes - 1) ** 2).sum() / free)
    by_chance = within / counts
    between = float(np.var(means / middle, ddof=1)) if len(means) > 1 else 0.0
    more = max(0.0, between - float(by_chance.mean()))
    share = more / (more + by_chance) if more else np.zeros(len(means))
    shrunk = middle + share * (means - middle)
    # Times of a worker of which few are known vary less around their own mean than around the true one.
    spread = np.sqrt(len(shapes) / free)
    return shrunk, np.maximum(1 + (shapes - 1) * spread, shapes.min() / 2)


def dealt(shapes: npt.NDArray[np.float64], number: int, hands: int) -> npt.NDArray[np.float64]:
    """All of them, for each worker from another one on and in another order, without chance: a replay asks the same."""
    count = len(shapes)
    step = next(
        step for step in range(1 + int(GOLDEN * count) + number, 3 * count + number) if math.gcd(step, count) == 1
    )
    return shapes[(np.arange(count) * step + number * count // hands) % count]
