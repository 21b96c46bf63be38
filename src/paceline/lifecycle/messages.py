"""What goes into a lifecycle and what comes out of it. A seat is named by its index, a gradient by worker and clock.

`UpdateApplied`, `DeadlinePassed`, `Answered` and `FigureFound` of the core go in as well; `Ask`, `Follow` and `Record`s
come out among the commands, in their order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from paceline.core.coordinator import Decides
from paceline.core.messages import (
    Answered,
    Ask,
    DeadlinePassed,
    FigureFound,
    Follow,
    Gradient,
    GradientArrived,
    Record,
    Unit,
    UpdateApplied,
    UpdateRule,
)
from paceline.lifecycle.work import Work


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a process among those that train: its number, from 0, and how many they are."""

    rank: int = 0
    workers: int = 1


class ModelArrived(msgspec.Struct, frozen=True, gc=False):
    """A process has made its model, and waits to begin."""

    seat: int


class WorkRequested(msgspec.Struct, frozen=True, gc=False):
    """A process asks for a unit of work, and waits for it."""

    seat: int
    work: Work


class GradientPushed(msgspec.Struct, frozen=True, gc=False):
    """A process has handed in a gradient, and waits. A second delivery has the same number."""

    seat: int
    number: int  # of this push among all of its process, from 1
    samples: int = 1
    units: int = 0  # leased ones that it is made of, the oldest first
    loss: float | None = None


class BatchesSkipped(msgspec.Struct, frozen=True, gc=False):
    """A gradient was not finite; its samples are dropped, and the process goes on."""

    seat: int
    samples: int
    units: int


class WorkDropped(msgspec.Struct, frozen=True, gc=False):
    """An interrupted process has dropped its gradient, and waits for new parameters."""

    seat: int
    samples: int
    units: int


class ProcessFinished(msgspec.Struct, frozen=True, gc=False):
    """A process came to its end as it should."""

    seat: int


class ProcessDied(msgspec.Struct, frozen=True, gc=False):
    seat: int
    reason: str


class SizeRequested(msgspec.Struct, frozen=True, gc=False):
    """Somebody outside wants the group to have so many workers."""

    workers: int


class RoomOffered(msgspec.Struct, frozen=True, gc=False):
    """There may be a place for one more process."""


class DepartureRequested(msgspec.Struct, frozen=True, gc=False):
    """The place of this process will be gone soon: it is to hand in what it is at, and another takes over."""

    seat: int
    reason: str = "its place will be gone"


class EvictionRequested(msgspec.Struct, frozen=True, gc=False):
    """Somebody outside wants this worker to go at once, whatever it is at, and the group to go on without it."""

    worker: int  # its id, not that of its seat


class EndRequested(msgspec.Struct, frozen=True, gc=False):
    """The run is to end with what everybody is at: its time is over."""


class PolicyReplaced(msgspec.Struct, frozen=True, gc=False):
    """Another policy, a fresh one, is to go on from here."""

    policy: Decides
    updates: UpdateRule | None = None  # how they are made from then on, in a run that trains


class PolicyFollowed(msgspec.Struct, frozen=True, gc=False):
    """The policy in force said that it wants to decide as another one would."""

    follow: Follow
    updates: UpdateRule | None = None  # how they are made from then on, in a run that trains


GroupEvent: TypeAlias = (
    ModelArrived
    | WorkRequested
    | GradientPushed
    | BatchesSkipped
    | WorkDropped
    | ProcessFinished
    | ProcessDied
    | SizeRequested
    | DepartureRequested
    | EvictionRequested
    | RoomOffered
    | PolicyReplaced
    | PolicyFollowed
    | EndRequested
    | FigureFound
    | UpdateApplied
    | DeadlinePassed
    | Answered
)


class StartProcess(msgspec.Struct, frozen=True, gc=False):
    seat: int


class BeginGroup(msgspec.Struct, frozen=True, gc=False):
    """Every model is here: the group begins with the parameters of the first of these."""

    seats: tuple[int, ...]


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request for work. None: there is nothing left to do."""

    seat: int
    unit: Unit | None
    ahead: tuple[Unit, ...] = ()  # further ones, for later


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give a process that waits the newest parameters, and more work if there is some; it goes on."""

    seat: int
    unit: Unit | None = None
    requested: bool = False  # it was parked: this is the answer to its request for work
    ahead: tuple[Unit, ...] = ()  # further ones, for later
    enough: bool = False  # of batches of its own: its loop is to end


class Interrupt(msgspec.Struct, frozen=True, gc=False):
    """Tell a process to drop what it computes."""

    seat: int


class Dismiss(msgspec.Struct, frozen=True, gc=False):
    """Tell a process to stop: the group does without it."""

    seat: int


class Part(msgspec.Struct, frozen=True, gc=False):
    """One gradient of an update."""

    arrived: GradientArrived
    seat: int  # where it was pushed, and lies unless it was set aside; -1: its worker has left
    weight: float
    staleness: int


class EndProcess(msgspec.Struct, frozen=True, gc=False):
    """End a process that was told to stop, and does not."""

    seat: int


class MakeUpdate(msgspec.Struct, frozen=True, gc=False):
    """One optimizer step from these gradients. Nothing that comes after it is sent before it is done."""

    version: int  # after the update
    parts: tuple[Part, ...] = ()  # none, in a run that only keeps time
    samples_per_round: float = 1.0
    departed: tuple[int, ...] = ()  # workers that left since the last update: what is kept of them can go after it
    # What the policy in force may apply and wants to know, if it is not the one that the run began with.
    may_be_stale: bool | None = None
    statistics: bool | None = None


class SetAside(msgspec.Struct, frozen=True, gc=False):
    """A gradient has no fate yet, and its process will use the memory where it lies."""

    gradient: Gradient
    seat: int
    version: int  # of the parameters that it was computed on


class Discard(msgspec.Struct, frozen=True, gc=False):
    gradient: Gradient
    seat: int  # where it was pushed, and lies unless it was set aside; -1: its worker has left


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """The group cannot go on."""

    reason: str


GroupCommand: TypeAlias = (
    StartProcess
    | BeginGroup
    | Lease
    | Release
    | Interrupt
    | Dismiss
    | EndProcess
    | MakeUpdate
    | SetAside
    | Discard
    | GiveUp
    | Ask
    | Follow
)
Output: TypeAlias = Record | GroupCommand
