"""From decisions about workers to commands for processes: what each of the coordinator's commands means for a seat.

A release brings work along, an update knows its gradients' samples, staleness and share of a round, and a gradient
whose process goes on before its fate is decided is set aside first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    ApplyUpdate,
    Ask,
    Command,
    DiscardGradient,
    Follow,
    Gradient,
    InterruptWorker,
    SendParameters,
    Unit,
)
from paceline.lifecycle.messages import Discard, Interrupt, MakeUpdate, Output, Part, Release, SetAside
from paceline.lifecycle.rounds import Round
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.seats import Seat, State


class TimedOrders:
    """Of a run that only keeps time: there are no samples and no gradients behind the pushes."""

    def __init__(self, coordinator: Coordinator, members: dict[int, Seat]) -> None:
        self.outputs: list[Output] = []  # of the present event
        self.late: list[Seat] = []  # they were let in, and have pushed already
        self._progress = coordinator.progress
        self._members = members

    def follow(self, commands: tuple[Command, ...]) -> None:
        """Turn the coordinator's commands into those for processes, in their order."""
        for command in commands:
            kind = type(command)
            if kind is SendParameters:
                self.send_on(self._members[command.worker])  # type: ignore[union-attr]
            elif kind is ApplyUpdate:
                self.outputs.append(MakeUpdate(self._progress.version))
            elif kind is DiscardGradient:
                self.outputs.append(Discard(command.gradient, -1))  # type: ignore[union-attr]
            elif kind is Ask or kind is Follow:
                self.outputs.append(command)  # type: ignore[arg-type]
            else:
                self.interrupt(self._members[command.worker])  # type: ignore[union-attr]

    def send_on(self, seat: Seat) -> None:
        """Give a process that waits the newest parameters."""
        if seat.late is not None:
            self.late.append(seat)
            return
        seat.version = self._progress.version
        self.outputs.append(Release(seat.index))

    def interrupt(self, seat: Seat) -> None:
        """A process that was told already, and has not answered, is served the newest parameters when it does."""
        if not (seat.interrupted or seat.away):
            seat.interrupted = True
            self.outputs.append(Interrupt(seat.index))

    def set_aside(self, seat: Seat) -> None:
        """Nothing lies anywhere."""


class Orders(TimedOrders):
    """Of a run that trains."""

    def __init__(self, coordinator: Coordinator, members: dict[int, Seat], samples: Samples, size: Round) -> None:
        super().__init__(coordinator, members)
        self._coordinator = coordinator
        self._samples = samples
        self._round = size

    def follow(self, commands: tuple[Command, ...]) -> None:
        """Those who go on together are served in the order of their ids: who gets which work does not hang on who came
        first, so that a run in which nobody is ahead is the same each time."""
        released = sorted(command.worker for command in commands if isinstance(command, SendParameters))
        following = iter(released)
        dealt: dict[int, tuple[Unit, ...]] | None = None
        for command in commands:
            if isinstance(command, SendParameters):
                if dealt is None:  # after what was discarded, which gives units back
                    dealt = self._deal([self._members[worker] for worker in released])
                self._release(self._members[next(following)], dealt)
            elif isinstance(command, ApplyUpdate):
                self._update(command)
            elif isinstance(command, DiscardGradient):
                self._discard(command.gradient)
            elif isinstance(command, InterruptWorker):
                self.interrupt(self._members[command.worker])
            elif isinstance(command, Ask | Follow):
                self.outputs.append(command)
            else:
                assert_never(command)

    def _update(self, command: ApplyUpdate) -> None:
        version = self._progress.version
        weights = command.weights or itertools.repeat(1.0)
        parts = []
        for gradient, arrived, weight in zip(command.gradients, self._coordinator.settled, weights, strict=False):
            parts.append(Part(arrived, self._place_of(gradient), weight, version - 1 - arrived.version))
            self._samples.applied(arrived)
        self.outputs.append(
            MakeUpdate(version, tuple(parts), self._round.samples, self._round.take_departed(), *self._wanted())
        )

    def _wanted(self) -> tuple[bool | None, bool | None]:
        """Whether gradients may be stale, and whether the policy wants to know about them. None: as at the start."""
        changed = self._coordinator.changed
        return (None, None) if changed is None else (changed.may_be_stale, self._coordinator.policy.wants_statistics)

    def _discard(self, gradient: Gradient) -> None:
        self.outputs.append(Discard(gradient, self._place_of(gradient)))
        settled = self._coordinator.settled
        self._samples.discarded(next(arrived for arrived in settled if arrived.gradient == gradient))

    def _place_of(self, gradient: Gradient) -> int:
        """The seat where it lies; -1: its worker left, so that it was set aside."""
        seat = self._members.get(gradient.worker)
        return -1 if seat is None else seat.index

    def _release(self, seat: Seat, dealt: dict[int, tuple[Unit, ...]]) -> None:
        self._round.pull(seat.worker)
        if seat.state is not State.LEAVING:  # otherwise it is dismissed with this event
            self.set_aside(seat)
            self._send_on(seat, dealt)

    def send_on(self, seat: Seat) -> None:
        self._send_on(seat, self._deal([seat]))

    def _send_on(self, seat: Seat, dealt: dict[int, tuple[Unit, ...]]) -> None:
        """Its next work comes along. A process that is away gets both when it is here."""
        if seat.late is not None:
            self.late.append(seat)
            return
        seat.version = self._progress.version
        if seat.away:
            return
        requested = bool(seat.reserved)
        units, seat.reserved = seat.reserved or dealt[seat.worker], ()
        unit = units[0] if units else None
        self.outputs.append(Release(seat.index, unit, requested, units[1:], unit is None and self._samples.enough))

    def _deal(self, seats: Sequence[Seat]) -> dict[int, tuple[Unit, ...]]:
        """By worker: the work that comes along with parameters."""
        able = [seat for seat in seats if seat.late is None and not (seat.away or seat.reserved)]
        dealt = self._samples.deal(able, len(self._members))
        return {seat.worker: units for seat, units in zip(able, dealt, strict=True)}

    def set_aside(self, seat: Seat) -> None:
        """Its latest gradient, if that has no fate yet."""
        if seat.slot_used:
            gradient = Gradient(seat.worker, seat.pushed - seat.pushed_before)
            if gradient in self._progress.pending:
                self.outputs.append(SetAside(gradient, seat.index, seat.version))
            seat.slot_used = False
