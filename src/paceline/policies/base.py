"""What every synchronisation model is: a small state machine that decides, push by push, and never acts."""

from __future__ import annotations

import dataclasses
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from paceline.core import state as states
from paceline.core.messages import Decision, Event
from paceline.core.progress import Member, Progress
from paceline.core.spec import check, describe


@dataclass(eq=False)
class Policy(ABC):
    """Base of all policies. Its init fields are its parameters; everything else that it holds is one of two:
    - a field declared with `kept(...)`: its state, which a checkpoint saves;
    - any other field with `init=False`: made again from progress by `rebuild`.

    A policy reads progress and never writes it. `now` is whatever clock the runtime has, in any unit.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    waits_for_slowest: ClassVar[bool] = False  # a bound on the lead, rather than a barrier, is what makes workers wait

    def __post_init__(self) -> None:
        """Check the parameters. A policy with a `__post_init__` of its own calls this one first."""
        check(self, self.name, "policy")

    @property
    def wants_statistics(self) -> bool:
        """Whether UpdateApplied tells it anything: looking at gradients costs time."""
        return False

    @property
    def applies_stale(self) -> bool:
        """Whether an update may have gradients of parameters that have changed since."""
        return True

    @abstractmethod
    def decide(self, event: Event, progress: Progress, now: float) -> Decision:
        """What follows from this event, which progress already contains."""

    def deadline(self) -> float | None:
        """When to be woken by a DeadlinePassed event; None: never."""
        return None

    def check_group(self, workers: int) -> None:
        """Raise ValueError if this policy cannot work with a group of this size."""
        return

    # -- beginning anywhere else than at the start of a run --

    def fresh(self) -> Self:
        """Another one with the same parameters, which has not run. A policy with its own `__init__` overrides it."""
        return dataclasses.replace(self)

    def take_over(self, progress: Progress, now: float) -> Decision:
        """Begin, fresh, in the middle of another policy's run: workers compute, wait or are newcomers, and gradients
        are pending. All that is pending must have a fate after it, and a worker that still waits needs the reason.

        Unless a policy says otherwise, all that is pending becomes one update, and nobody waits any longer.
        """
        return Decision(apply=tuple(progress.pending), release=(*progress.waiting, *progress.newcomers))

    def state(self) -> dict[str, Any]:
        """What a fresh one needs, beside progress, to go on from here; JSON can hold it."""
        if lost := states.undeclared(self):
            raise TypeError(f"policy {self.name!r} has no state: declare {', '.join(lost)} as a field with kept(...)")
        return states.state_of(self)

    def resume(self, state: dict[str, Any], progress: Progress) -> None:
        """Go on, fresh, where a policy with the same parameters stopped, with its state and the same progress."""
        states.resume(self, state)
        self.rebuild(progress)

    def rebuild(self, progress: Progress) -> None:
        """Make again what follows from progress alone. Its `waiting` is in the order in which the waits began."""
        return

    def __str__(self) -> str:
        return describe(self, self.name)


class WaitingByStanding:
    """The waiting members, least standing first: the order in which they may go on when the slowest moves."""

    __slots__ = ("_added", "_heap")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._heap: list[tuple[int, int, int]] = []  # standing, when it was added, worker
        self._added = 0
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        self._added += 1
        heapq.heappush(self._heap, (member.standing, self._added, member.worker))

    def within(self, lead: int, progress: Progress) -> tuple[int, ...]:
        """Take out and return the workers whose lead is now at most this, in the order in which they began to wait."""
        heap, released = self._heap, []
        while heap and heap[0][0] - progress.least_standing <= lead:
            _, added, worker = heapq.heappop(heap)
            if worker in progress.waiting:  # it may have left meanwhile
                released.append((added, worker))
        return tuple(worker for _, worker in sorted(released))
