"""From decisions about workers to commands for processes: what each of the coordinator's commands means for a seat.

A release brings work along, an update knows its gradients' samples, staleness and share of a round, and a gradient
whose process goes on before its fate is decided is set aside first.
"""

from __future__ import annotations

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    ApplyUpdate,
    Command,
    DiscardGradient,
    Gradient,
    InterruptWorker,
    SendParameters,
)
from paceline.lifecycle.messages import Discard, Interrupt, MakeUpdate, Output, Part, Release, SetAside
from paceline.lifecycle.rounds import Round
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.seats import Seat, State


class Orders:
    def __init__(
        self, coordinator: Coordinator, members: dict[int, Seat], samples: Samples, size: Round, *, trains: bool
    ) -> None:
        self.outputs: list[Output] = []  # of the present event
        self._coordinator = coordinator
        self._progress = coordinator.progress
        self._members = members
        self._samples = samples
        self._round = size
        self._trains = trains

    def follow(self, commands: tuple[Command, ...]) -> None:
        """Turn the coordinator's commands into those for processes, in their order."""
        for command in commands:
            kind = type(command)
            if kind is SendParameters:
                self._release(self._members[command.worker])  # type: ignore[union-attr]
            elif kind is ApplyUpdate:
                self._update(command)  # type: ignore[arg-type]
            elif kind is DiscardGradient:
                self._discard(command.gradient)  # type: ignore[union-attr]
            else:
                assert kind is InterruptWorker
                self._interrupt(self._members[command.worker])  # type: ignore[union-attr]

    def _update(self, command: ApplyUpdate) -> None:
        version = self._progress.version
        if not self._trains:
            self.outputs.append(MakeUpdate(version))
            return
        parts = []
        for number, arrived in enumerate(self._coordinator.settled[: len(command.gradients)]):
            weight = command.weights[number] if command.weights else 1.0
            parts.append(Part(arrived, self._place_of(arrived.gradient), weight, version - 1 - arrived.version))
            self._samples.applied(arrived)
        self.outputs.append(MakeUpdate(version, tuple(parts), self._round.samples))

    def _discard(self, gradient: Gradient) -> None:
        self.outputs.append(Discard(gradient, self._place_of(gradient)))
        if self._trains:
            settled = self._coordinator.settled
            self._samples.discarded(next(arrived for arrived in settled if arrived.gradient == gradient))

    def _place_of(self, gradient: Gradient) -> int:
        """The seat where it lies; -1: its worker left, so that it was set aside."""
        seat = self._members.get(gradient.worker)
        return -1 if seat is None else seat.index

    def _release(self, seat: Seat) -> None:
        if not self._trains:
            seat.version = self._progress.version
            self.outputs.append(Release(seat.index))
            return
        self._round.pull(seat.worker)
        if seat.state is State.LEAVING:
            return  # it is dismissed with this event
        self.set_aside(seat)
        self.send_on(seat)

    def send_on(self, seat: Seat) -> None:
        """Give a process that waits the newest parameters and its next work."""
        seat.version = self._progress.version
        requested = seat.reserved is not None
        unit, seat.reserved = seat.reserved or self._samples.lease_if_idle(seat), None
        self.outputs.append(Release(seat.index, unit, requested))

    def set_aside(self, seat: Seat) -> None:
        """Its latest gradient, if that has no fate yet."""
        if seat.slot_used:
            gradient = Gradient(seat.worker, seat.pushed - seat.pushed_before)
            if gradient in self._progress.pending:
                self.outputs.append(SetAside(gradient, seat.index))
            seat.slot_used = False

    def _interrupt(self, seat: Seat) -> None:
        """A process that was told already, and has not answered, is served the newest parameters when it does."""
        if not seat.interrupted:
            seat.interrupted = True
            self.outputs.append(Interrupt(seat.index))
