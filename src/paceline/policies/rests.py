"""How long to rest: between two questions, which cost a processor something, and between two changes of policy.

Rests are counted in rounds, a push of every worker each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.core.state import kept, resume, state_of
from paceline.policies.measured import Stretch
from paceline.policies.weighing import KEPT

FIRST = 2  # rounds before the first question
SHORTEST = 2  # between two questions
LONGEST = 64
CALM, LEAST_CALM, MOST_CALM = 4.0, 1.0, 64.0  # between two changes: to begin with, at least, at most
JUDGED = 4  # rounds after a change, when it is compared with what it promised
BUSY = 0.005  # of a processor that questions may keep busy, beside
ALLOWED = 0.2  # so many seconds of it in all
FREE = 3  # answers, however long they take: with a thousand workers one takes longer than that
RESERVE = 0.6  # seconds more, for questions because somebody is not as usual


@dataclass(eq=False)
class Rests:
    asked: float = kept(0.0)  # rounds since the last question
    changed: float = kept(CALM)  # since the last change; the first may come at once
    between_questions: float = kept(float(FIRST))
    between_changes: float = kept(CALM)
    spent: float = kept(0.0)  # seconds of a processor, by questions
    answers: int = kept(0)  # that were paid for with it
    began: float | None = kept(None)  # when the first push came
    promised: float | None = kept(None)  # gradients per second, by the last change, while it is to be judged
    since: Stretch = kept(factory=Stretch)  # then

    def push(self, workers: int, now: float) -> None:
        share = 1 / max(1, workers)
        self.began = now if self.began is None else self.began
        self.asked += share
        self.changed += share

    @property
    def may_judge(self) -> bool:
        """Whether it is time to compare the last change with what it promised."""
        return self.promised is not None and self.changed >= JUDGED

    def judge(self, noise: float) -> None:
        """`noise`: by which share of it an iteration varies."""
        found = self.since.pace(noise)
        if found is None or self.promised is None:
            return  # with the next push, perhaps
        factor = 0.5 if found.most >= KEPT * self.promised else 2.0
        self.promised = None
        self.between_changes = min(MOST_CALM, max(LEAST_CALM, self.between_changes * factor))

    def may_ask(self, now: float, *, at_once: bool) -> bool:
        """`at_once`: somebody is not as usual."""
        rounds = SHORTEST if at_once else self.between_questions
        return self.can_afford(now, urgent=at_once) and self.asked >= rounds

    def can_afford(self, now: float, *, urgent: bool) -> bool:
        if self.began is None or self.answers < FREE:
            return True
        return self.spent <= ALLOWED + urgent * RESERVE + BUSY * (now - self.began)

    @property
    def may_change(self) -> bool:
        return self.changed >= self.between_changes

    def ask(self) -> None:
        self.asked = 0.0

    def hear(self, seconds: float) -> None:
        """An answer took so much of a processor."""
        self.spent += seconds
        self.answers += 1

    def stay(self) -> None:
        """The answer was the same as before."""
        self.between_questions = min(float(LONGEST), 2 * self.between_questions)

    def change(self, promised: float, *, at_rest: bool = True) -> None:
        """`at_rest`: until the next change; otherwise that may come with the next answer."""
        self.between_questions = float(SHORTEST)
        if at_rest:
            self.changed, self.promised = 0.0, promised
            self.since.begin()

    def leave(self) -> None:
        """A policy was left at once: nothing was promised of the one that follows."""
        self.changed, self.promised = 0.0, None

    def state(self) -> dict[str, Any]:
        return state_of(self)

    def resume(self, state: dict[str, Any]) -> None:
        resume(self, state)
