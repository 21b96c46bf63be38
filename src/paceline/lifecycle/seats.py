"""One process of a group, from its start to its end: its states, and which may follow which.

```
starting ──▶ ready ──▶ member ──▶ parked ──▶ finishing        the way of a process that does all its work
                         ▲  │        │
                         │  ├──▶ leaving ──▶ dismissed        the way of one that the group can do without
                         │  └──▶ silent ──▶ parked            it was given up, and spoke again
                         └───────────┘                        work came back
```
Any process may end at any time. A member computes, waits, or is a newcomer: that is the coordinator's to know.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from paceline.core.messages import Unit
from paceline.lifecycle.messages import GradientPushed
from paceline.lifecycle.work import Work


class State(Enum):
    STARTING = "starting"  # its process was asked for; its model is not here yet
    READY = "ready"  # its model is here, and the group has not begun
    MEMBER = "a member"  # it belongs to the group, under a worker id
    PARKED = "parked"  # it asked for work and there was none; its process waits for an answer
    FINISHING = "finishing"  # it was told that no work is left, and comes to its end
    SILENT = "silent"  # a member that was given up: nobody waits for it; if it speaks, it is welcome
    LEAVING = "leaving"  # a member that goes as soon as it has handed in what it is at
    DISMISSED = "dismissed"  # it was told to stop; its process has not ended yet
    GONE = "gone"


class Change(Enum):
    MODEL_ARRIVED = "its model arrived"
    JOINED = "it joined the group"
    RAN_OUT = "there was no work for it"
    GIVEN_UP = "it was silent for too long"
    SPOKE = "it spoke again"
    TOLD_TO_FINISH = "it was told that no work is left"
    ASKED_TO_LEAVE = "it was asked to leave"
    TOLD_TO_STOP = "it was told to stop"
    ENDED = "its process ended"


TRANSITIONS: dict[State, dict[Change, State]] = {
    State.STARTING: {
        Change.MODEL_ARRIVED: State.READY,
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.READY: {
        Change.JOINED: State.MEMBER,
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.MEMBER: {
        Change.RAN_OUT: State.PARKED,
        Change.GIVEN_UP: State.SILENT,
        Change.ASKED_TO_LEAVE: State.LEAVING,
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.PARKED: {
        Change.JOINED: State.MEMBER,
        Change.TOLD_TO_FINISH: State.FINISHING,
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.SILENT: {
        Change.SPOKE: State.PARKED,
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.FINISHING: {
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.LEAVING: {
        Change.TOLD_TO_STOP: State.DISMISSED,
        Change.ENDED: State.GONE,
    },
    State.DISMISSED: {
        Change.ENDED: State.GONE,
    },
    State.GONE: {},
}

IN_THE_GROUP = (State.MEMBER, State.LEAVING)  # these have a worker id, and no others
ON_THEIR_WAY_OUT = (State.LEAVING, State.DISMISSED, State.GONE)
WITHOUT_A_PLACE = (State.STARTING, State.SILENT, State.DISMISSED, State.GONE)  # they do not count as workers that train


class SeatState(msgspec.Struct, frozen=True):
    """What is kept of a seat when its process is not."""

    index: int
    state: State
    worker: int
    clock: int
    version: int
    part: int | None
    work: Work | None
    gathers: int = 1


class Seat:
    """A process and what the group knows of it. While it is a member it has a worker id; each time that it comes back
    it gets a new one, because the id of a worker that left is never used again."""

    __slots__ = (
        "asks",
        "away",
        "forgot",
        "gathers",
        "index",
        "interrupted",
        "late",
        "leaves",
        "part",
        "pushed",
        "pushed_before",
        "renewed",
        "reserved",
        "slot_used",
        "state",
        "told_last",
        "version",
        "void",
        "work",
        "worker",
    )

    def __init__(self, index: int) -> None:
        self.index = index  # its name, and its first worker id
        self.state = State.STARTING
        self.worker = index  # its present worker id, or the last one that it had
        self.pushed = 0  # pushes of its process
        self.slot_used = False  # its latest gradient lies where it was pushed, and was not set aside
        self.pushed_before = 0  # those of them that were made under earlier ids
        self.version = 0  # of the parameters that it holds
        self.away = False  # the group was resumed, and the model of its new process is not here yet
        self.renewed = False  # the group was resumed while it had no work: its process is another one
        self.forgot = False  # and does not know what only a process can know
        self.asks = False  # it waits for an answer to its request for work
        self.told_last = False  # it had asked for more in the middle of a gradient, and its loop ends with that one
        self.leaves = ""  # why it was asked to leave, if it was
        self.interrupted = False  # it was told to drop its gradient, and has not answered
        self.late: GradientPushed | None = None  # it spoke again, and this is judged as soon as it is a member
        self.void = 0  # units that it holds, and that were given to others while it was silent
        self.part: int | None = None  # of the data set, where each process has its own
        self.work: Work | None = None  # what it asks for, once it has asked
        self.gathers = 1  # units that its latest gradient was made of
        self.reserved: tuple[Unit, ...] = ()  # the answer to the question of a process that was parked

    def kept(self) -> SeatState:
        clock = self.pushed - self.pushed_before
        return SeatState(self.index, self.state, self.worker, clock, self.version, self.part, self.work, self.gathers)

    @classmethod
    def resumed(cls, kept: SeatState) -> Seat:
        """With a new process, unless it had come to its end, was about to, or was given up: another takes its place."""
        seat = cls(kept.index)
        ended = kept.state in (State.FINISHING, State.DISMISSED, State.SILENT)
        seat.state = State.GONE if ended else kept.state
        if kept.state is State.LEAVING:
            seat.state = State.MEMBER  # whether it must go is asked again
        seat.away = seat.state in (State.MEMBER, State.PARKED)
        seat.renewed = seat.state is State.PARKED
        seat.worker, seat.version, seat.part, seat.work = kept.worker, kept.version, kept.part, kept.work
        seat.gathers = kept.gathers
        seat.pushed_before = -kept.clock  # a new process counts its pushes from 1
        return seat

    def change(self, change: Change) -> None:
        following = TRANSITIONS[self.state].get(change)
        assert following is not None, f"process {self.index} is {self.state.value}: {change.value} cannot happen"
        self.state = following
