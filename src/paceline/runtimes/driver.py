"""Carries events to the coordinator and commands to the runtime, and shows both to whoever observes.

The same few lines run in the simulator, on one machine and on a cluster; what differs is the port.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import assert_never

from paceline.core.coordinator import Coordinator, Decides
from paceline.core.messages import (
    ApplyUpdate,
    DeadlinePassed,
    DiscardGradient,
    Event,
    InterruptWorker,
    PolicyChanged,
    Reaction,
    SendParameters,
    UpdateApplied,
)
from paceline.recording.trace import Record
from paceline.runtimes.port import Port

Observer = Callable[[Record], None]


class Driver:
    def __init__(self, coordinator: Coordinator, port: Port, observers: Sequence[Observer] = ()) -> None:
        self._coordinator = coordinator
        self._port = port
        self._observers = tuple(observers)
        self._woken_at: float | None = None  # the wake-up call that was asked for last

    def deliver(self, event: Event, now: float) -> None:
        """One event in, its commands out, and so on with the statistics of an update that it led to."""
        self._follow(self._step(event, now), now)

    def change_policy(self, policy: Decides, now: float) -> None:
        """Let another policy go on from here."""
        event = PolicyChanged(str(policy))
        self._follow(self._carry_out(event, self._coordinator.change_policy(policy, now), now), now)

    def _follow(self, applied: UpdateApplied | None, now: float) -> None:
        """Deliver the statistics of updates as long as there are any, then see when the policy wants to be woken."""
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
        return self._carry_out(event, self._coordinator.handle(event, now), now)

    def _carry_out(self, event: Event, reaction: Reaction, now: float) -> UpdateApplied | None:
        record = Record(now, event, reaction.commands, reaction.reason, reaction.estimates)
        for observe in self._observers:
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
