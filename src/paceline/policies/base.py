"""What every synchronisation model is: a small state machine that decides, push by push, and never acts."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.messages import Decision, Event
from paceline.core.progress import Member, Progress
from paceline.core.spec import check, describe


@dataclass(eq=False)
class Policy(ABC):
    """Base of all policies. Its init fields are its parameters; everything else it keeps is its own state.

    A policy reads progress and never writes it. `now` is whatever clock the runtime has, in any unit.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the parameters. A policy with a `__post_init__` of its own calls this one first."""
        check(self, self.name, "policy")

    @property
    def wants_statistics(self) -> bool:
        """Whether UpdateApplied tells it anything: looking at gradients costs time."""
        return False

    @abstractmethod
    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        """What follows from this event, which progress already contains."""

    def deadline(self) -> float | None:
        """When to be woken by a DeadlinePassed event; None: never."""
        return None

    def check_group(self, workers: int) -> None:
        """Raise ValueError if this policy cannot work with a group of this size."""
        return

    def __str__(self) -> str:
        return describe(self, self.name)


class WaitingByStanding:
    """The waiting members, least standing first: who is released next when the slowest moves."""

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []  # standing, when it was added, worker
        self._added = 0

    def add(self, member: Member) -> None:
        self._added += 1
        heapq.heappush(self._heap, (member.standing, self._added, member.worker))

    def within(self, lead: int, progress: Progress) -> tuple[int, ...]:
        """Take out and return everybody whose lead is now at most this, in the order in which they began to wait."""
        heap, released = self._heap, []
        while heap and heap[0][0] - progress.least_standing <= lead:
            _, added, worker = heapq.heappop(heap)
            if worker in progress.waiting:  # it may have left meanwhile
                released.append((added, worker))
        return tuple(worker for _, worker in sorted(released))
