"""What DBW asks when it chooses k: an estimator sees what happens in a run, and says which k promises most."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from paceline.core.messages import Estimates, GradientArrived, Statistics
from paceline.core.progress import Progress
from paceline.core.questions import Answer, Question


class Estimator(ABC):
    @abstractmethod
    def arrive(self, event: GradientArrived, progress: Progress, now: float) -> Question | None:
        """A gradient came. Returns what it wants to know, if anything."""

    @abstractmethod
    def learn(self, seen: Statistics, workers: int) -> None:
        """What the gradients of an update were like."""

    @abstractmethod
    def choose(self, h: int, workers: int) -> Estimates | None:
        """The next k after an update of h gradients, and by what; None: too little is known, wait for all."""

    @abstractmethod
    def state(self) -> dict[str, Any]: ...

    @abstractmethod
    def resume(self, state: dict[str, Any]) -> None: ...

    def overdue_at(self, progress: Progress) -> float | None:
        """When to look at the worker that others wait for; None: there is no reason to."""
        return None

    def look(self, progress: Progress, now: float) -> Question | None:
        """It may be time. Returns what it wants to know, if anything."""
        return None

    def begin(self, version: int, h: int, now: float) -> None:
        """From now on this version is the newest, after an update of h gradients; 0: there was none."""
        return

    def interrupt(self, workers: Sequence[int], progress: Progress, now: float) -> None:
        """These are about to begin anew."""
        return

    def forget(self, worker: int) -> None:
        """It left."""
        return

    def hear(self, answer: Answer, now: float) -> None:
        """What it asked for."""
        return
