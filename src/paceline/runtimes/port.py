"""What a runtime must be able to do for the driver: the four commands, and a wake-up call."""

from __future__ import annotations

from typing import Protocol

from paceline.core.messages import ApplyUpdate, DiscardGradient, Statistics


class Port(Protocol):
    def apply_update(self, command: ApplyUpdate) -> Statistics | None:
        """Make the update. Statistics, where the runtime has gradients to look at, come back as an event."""

    def discard_gradient(self, command: DiscardGradient) -> None: ...

    def send_parameters(self, worker: int) -> None: ...

    def interrupt_worker(self, worker: int) -> None: ...

    def wake_at(self, time: float) -> None:
        """Call Driver.wake at this time, or soon after."""
