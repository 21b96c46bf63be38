"""Where a group stands, as a value that JSON can hold, and a group that goes on from there with new processes."""

from __future__ import annotations

import msgspec

from paceline.core.coordinator import State as CoordinatorState
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.rounds import RoundState
from paceline.lifecycle.samples import SamplesState
from paceline.lifecycle.seats import IN_THE_GROUP, Seat, SeatState, State


class LifecycleState(msgspec.Struct, frozen=True):
    coordinator: CoordinatorState
    seats: list[SeatState]
    parked: list[int]
    round: RoundState
    samples: SamplesState
    wanted: int
    next_worker: int
    finished: int = 0

    @property
    def over(self) -> bool:
        """Whether nobody has anything left to do."""
        return all(kept.state in (State.FINISHING, State.DISMISSED, State.GONE) for kept in self.seats)


def state_of(lifecycle: Lifecycle) -> LifecycleState:
    """Of a group that has begun, between two events."""
    return LifecycleState(
        lifecycle.coordinator.state(),
        [seat.kept() for seat in lifecycle.seats.values()],
        list(lifecycle.parked),
        lifecycle.round.state(),
        lifecycle.samples.state(),
        lifecycle.staffing.wanted,
        lifecycle.next_worker,
        lifecycle.finished,
    )


def resume(lifecycle: Lifecycle, state: LifecycleState) -> None:
    """Go on where another lifecycle stopped; this one is fresh.

    Every process is a new one: a worker that computed does so again, with the newest parameters, as soon as the model
    of its process is here; one that waited still does.
    """
    lifecycle.coordinator.resume(state.coordinator)
    lifecycle.round.resume(state.round)
    lifecycle.samples.resume(state.samples)
    seats = {kept.index: Seat.resumed(kept) for kept in state.seats}
    lifecycle.seats = seats
    lifecycle.members.update({seat.worker: seat for seat in seats.values() if seat.state in IN_THE_GROUP})
    lifecycle.parked.update({index: seats[index] for index in state.parked})
    lifecycle.ended = sum(seat.state is State.GONE for seat in seats.values())
    lifecycle.begun = True
    lifecycle.finished = state.finished
    lifecycle.staffing.wanted, lifecycle.next_worker = state.wanted, state.next_worker
    for kept in state.seats:
        if kept.state is State.SILENT:
            lifecycle.add_seat()
