"""What a runtime must be able to do for the driver: the commands of a lifecycle, and a wake-up call."""

from __future__ import annotations

from typing import Protocol

from paceline.core.messages import Answered, Ask, Follow, UpdateApplied, UpdateRule
from paceline.lifecycle.messages import (
    BeginGroup,
    Discard,
    Dismiss,
    EndProcess,
    GiveUp,
    Interrupt,
    Lease,
    MakeUpdate,
    Release,
    SetAside,
    StartProcess,
)
from paceline.lifecycle.validation import PortView


class Port(Protocol):
    def start_process(self, command: StartProcess) -> None: ...

    def begin_group(self, command: BeginGroup) -> None: ...

    def lease(self, command: Lease) -> None: ...

    def release(self, command: Release) -> None: ...

    def interrupt(self, command: Interrupt) -> None: ...

    def dismiss(self, command: Dismiss) -> None: ...

    def end_process(self, command: EndProcess) -> None: ...

    def make_update(self, command: MakeUpdate) -> UpdateApplied | None:
        """Make the update, or begin to. None: it is under way, and the driver is told when it is done."""

    def set_aside(self, command: SetAside) -> None: ...

    def discard(self, command: Discard) -> None: ...

    def ask(self, command: Ask) -> Answered | None:
        """Find the answer. None: somebody thinks about it, and the driver is told when it is there."""

    def rule_under(self, command: Follow) -> UpdateRule | None:
        """How updates are made under this policy; None: in a run that only keeps time."""

    def give_up(self, command: GiveUp) -> None: ...

    def wake_at(self, time: float) -> None:
        """Call Driver.wake at this time, or soon after, whatever was asked for before. Infinity: never."""

    def view(self) -> PortView:
        """What it believes, to be compared with what the other layers do."""
