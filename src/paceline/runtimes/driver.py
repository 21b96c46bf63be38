"""Carries events to the coordinator and commands to the runtime, and shows both to the observers.

The same few lines run in the simulator, on one machine and on a cluster; what differs is the port.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    ApplyUpdate,
    DeadlinePassed,
    DiscardGradient,
    Event,
    InterruptWorker,
    SendParameters,
    UpdateApplied,
)
from paceline.recording.observer import Observer, observe_methods
from paceline.recording.trace import Record
from paceline.runtimes.port import Port


class Driver:
    def __init__(self, coordinator: Coordinator, port: Port, observers: Sequence[Observer] = ()) -> None:
        self._coordinator = coordinator
        self._port = port
        self._observe_methods = observe_methods(observers)
        self._woken_at: float | None = None  # the wake-up call that was asked for last

    def deliver(self, event: Event, now: float) -> None:
        """One event in, its commands out, and so on with the statistics of an update that it led to."""
        applied = self._step(event, now)
        while applied is not None:
            applied = self._step(applied, now)
        deadline = self._coordinator.deadline()
        if deadline is not None and deadline != self._woken_at:
            self._woken_at = deadline
            self._port.wake_at(deadline)

    def wake(self, now: float) -> None:
        """The port's clock reached a time given to wake_at. The policy may have changed its mind meanwhile."""
        deadline = self._coordinator.deadline()
        if deadline is not None and deadline <= now:
            self._woken_at = None
            self.deliver(DeadlinePassed(), now)

    def _step(self, event: Event, now: float) -> UpdateApplied | None:
        reaction = self._coordinator.handle(event, now)
        record = Record(now, event, reaction.commands, reaction.reason, reaction.estimates)
        for observe in self._observe_methods:
            observe(record)
        applied = None
        port = self._port
        for command in reaction.commands:
            match command:
                case SendParameters():
                    port.send_parameters(command.worker)
                case ApplyUpdate():
                    statistics = port.apply_update(command)
                    if statistics is not None:
                        applied = UpdateApplied(self._coordinator.progress.version, statistics)
                case DiscardGradient():
                    port.discard_gradient(command)
                case InterruptWorker():
                    port.interrupt_worker(command.worker)
                case _:
                    assert_never(command)
        return applied
