"""What DBW chooses k by in the long run: updates of k gradients per second if k stays, times what one of them is worth.

How many updates per second each k would make is asked: of the simulator, with the times that workers need lately
(paceline.policies.round_trips). What one is worth follows from the noise of gradients and from the loss over many
updates (paceline.policies.worth_model). Until the first answer all are waited for; while the worth is not known, or in
a run without statistics, it counts how many gradients become part of updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.messages import Estimates, GradientArrived, Statistics
from paceline.core.progress import Progress
from paceline.core.questions import Answer, Question
from paceline.policies.estimator import Estimator
from paceline.policies.round_trips import RoundTrips
from paceline.policies.worth_model import WorthModel

FIRST = 1  # gradients of each worker, on average, before the first question; then as many more as there were, up to
EVERY = 8  # from question to question
TRIED_FOR = 120  # rounds, of which the first half does not count
MOST_CANDIDATES = 16
REST = 100  # times as long as the answer took


class LongRunEstimator(Estimator):
    def __init__(self, worth: WorthModel, late: str, *, blind: bool) -> None:
        self._trips = RoundTrips()
        self._worth, self._late, self._blind = worth, late, blind
        self._pushes = 0  # since the latest question
        self._due = FIRST  # pushes of each worker until the next one
        self._asked = 0  # questions so far
        self._not_before = 0.0  # time of the next question
        self._looked = 0.0  # when it asked about a worker that was overdue
        self._pace: dict[int, float] = {}  # gradients per second, of the k that were asked about

    def arrive(self, event: GradientArrived, progress: Progress, now: float) -> Question | None:
        self._trips.observe(event, progress, now)
        self._pushes += 1
        workers = len(progress.members)
        if self._pushes < self._due * workers or now < self._not_before:
            return None
        return self._ask(progress, now)

    def overdue_at(self, progress: Progress) -> float | None:
        return self._trips.overdue_at(progress, self._looked)

    def look(self, progress: Progress, now: float) -> Question | None:
        due = self.overdue_at(progress)
        if due is None or now < due:
            return None
        self._looked = now
        return self._ask(progress, now, late=progress.slowest)

    def _ask(self, progress: Progress, now: float, late: int | None = None) -> Question | None:
        self._pushes = 0
        self._asked += 1
        self._due = min(EVERY, 2 ** (self._asked - 1))
        names = [f"backup:k={k},late={self._late}" for k in candidates(len(progress.members))]
        return self._trips.question(names, progress, now, TRIED_FOR, late)

    def hear(self, answer: Answer, now: float) -> None:
        """Nobody could tell: what was heard before still holds."""
        found = {int(each.policy.partition("k=")[2].partition(",")[0]): each.pace for each in answer.prospects}
        if found:  # half as much as what was heard before, which was true of slightly older times; a pace of 0 is over
            self._pace = {k: math.sqrt(pace * (self._pace.get(k) or pace)) for k, pace in found.items()}
        self._not_before = now + REST * answer.seconds

    def interrupt(self, workers: Sequence[int], progress: Progress, now: float) -> None:
        self._trips.interrupt(workers, progress, now)

    def forget(self, worker: int) -> None:
        self._trips.forget(worker)

    def learn(self, seen: Statistics, workers: int) -> None:
        self._worth.observe(seen, workers)

    def choose(self, h: int, workers: int) -> Estimates | None:
        if not self._pace:
            return None
        k = np.arange(1, workers + 1)
        asked = sorted(self._pace)
        pace = np.interp(k, asked, [self._pace[each] for each in asked])
        updates = np.maximum(pace / k, np.finfo(float).tiny)
        learned = None if self._blind else self._worth.learned
        worth = self._worth.worth(workers) if learned else np.log(k)
        assert worth is not None
        best = workers - int(np.argmax((np.log(updates) + worth)[::-1]))  # of several, the largest
        return Estimates(
            best,
            tuple(np.exp(worth).tolist()),
            tuple((1 / updates).tolist()),
            learned and learned.variance,
            learned and learned.squared_norm,
            slope=learned and learned.slope,
        )

    def state(self) -> dict[str, Any]:
        return {
            "trips": self._trips.state(),
            "worth": self._worth.state(),
            "pushes": self._pushes,
            "due": self._due,
            "asked": self._asked,
            "not_before": self._not_before,
            "looked": self._looked,
            "pace": [list(each) for each in self._pace.items()],
        }

    def resume(self, state: dict[str, Any]) -> None:
        self._trips.resume(state["trips"])
        self._worth.resume(state["worth"])
        self._pushes, self._due, self._asked = state["pushes"], state["due"], state["asked"]
        self._not_before, self._looked = state["not_before"], state["looked"]
        self._pace = {int(k): pace for k, pace in state["pace"]}


def candidates(workers: int) -> list[int]:
    """Every k, or as many as can be tried in a moment, spread evenly: what lies between them is interpolated."""
    count = min(workers, MOST_CANDIDATES)
    return sorted({1, *(round(workers * number / count) for number in range(1, count + 1))})
