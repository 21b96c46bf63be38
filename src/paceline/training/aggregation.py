"""From gradients that lie somewhere to updates: every runtime that trains has one of these.

A process hands in one gradient at a time, in a place of its own. If it must go on before the fate of that gradient is
decided, the gradient is set aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from torch import Tensor

from paceline.core.messages import Gradient, UpdateApplied
from paceline.lifecycle.messages import MakeUpdate, Part
from paceline.lifecycle.validation import PortView
from paceline.training.layout import Segment
from paceline.training.parameters import ParameterStore
from paceline.training.updates import Contribution


class HandedIn(NamedTuple):
    """Its squared norm is known to the process that computed it; None: look it up."""

    gradient: Tensor
    squared_norm: float | None = None
    pulled: Tensor | None = None  # the parameters that it was computed on
    absent: tuple[int, ...] = ()  # parameters that it has no gradient of


class Aggregation:
    def __init__(self, store: ParameterStore, *, statistics: bool, owns_memory: bool = False) -> None:
        """`statistics`: whether the policy that the run begins with wants to know about the gradients of an update.

        `owns_memory`: what is handed in stays as it is, and may be used again once it is in `free`; otherwise it is the
        process's own memory, which it writes to as soon as it goes on.
        """
        self.store = store
        self.statistics = statistics
        self.free: list[Tensor] = []
        self._owns_memory = owns_memory
        self._handed_in: dict[int, HandedIn] = {}  # by seat: its latest
        self._set_aside: dict[Gradient, HandedIn] = {}
        self._copies: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by version

    def hand_in(
        self,
        seat: int,
        gradient: Tensor,
        squared_norm: float | None = None,
        pulled: Tensor | None = None,
        absent: tuple[int, ...] = (),
    ) -> None:
        """It stays where it lies until its fate is decided, so nobody may write there.

        `pulled`: the parameters that it was computed on, which a correction of stale gradients looks at.
        """
        self._handed_in[seat] = HandedIn(gradient, squared_norm, pulled, absent)

    def hand_out(self, seat: int, segment: Segment) -> None:
        """The present parameters, to a process that waits for them."""
        segment.parameters.copy_(self.store.flat)

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None:
        """Its process goes on, or is gone, before its fate is decided."""
        handed_in = self._handed_in.pop(seat)
        if not self._owns_memory:
            handed_in = handed_in._replace(gradient=handed_in.gradient.clone())
        # What is old already may be corrected under another policy.
        needed = self.store.corrects or (version < self.store.version and self.store.can_correct)
        kept = handed_in.pulled if needed else None
        handed_in = handed_in._replace(pulled=None if kept is None else self._kept(version, kept))
        self._set_aside[gradient] = handed_in

    def _kept(self, version: int, pulled: Tensor) -> Tensor:
        """A copy of the parameters of this version, one for all gradients that were computed on it."""
        copy = self._copies.get(version)
        if copy is None:
            copy = self._copies[version] = pulled.clone()
        return copy

    def forget(self, seat: int) -> None:
        """The memory of this process will be gone; what it handed in has its fate, or was set aside."""
        self._handed_in.pop(seat, None)

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        contributions = [self._contribution(part) for part in command.parts]
        seen = self.store.apply(
            contributions,
            command.samples_per_round,
            departed=command.departed,
            statistics=self.wants_statistics(command),
            may_be_stale=command.may_be_stale,
        )
        return UpdateApplied(command.version, seen)

    def wants_statistics(self, command: MakeUpdate) -> bool:
        """Whether the policy in force does."""
        return self.statistics if command.statistics is None else command.statistics

    def _contribution(self, part: Part) -> Contribution:
        arrived = part.arrived
        taken = self._take(arrived.gradient, part.seat)
        return Contribution(
            taken.gradient,
            arrived.samples,
            part.weight,
            arrived.loss,
            taken.squared_norm,
            arrived.gradient.worker,
            arrived.version,
            part.staleness,
            arrived.units,
            taken.pulled,
            taken.absent,
        )

    def discard(self, gradient: Gradient, seat: int) -> None:
        self._take(gradient, seat)

    def _take(self, gradient: Gradient, seat: int) -> HandedIn:
        taken = self._set_aside.pop(gradient, None) or self._handed_in.pop(seat)
        if self._owns_memory:
            self.free.append(taken.gradient)
        return taken

    def kept(self, pending: Iterable[tuple[Gradient, int]]) -> list[Any]:
        """The gradients without a fate, each with the seat where it was pushed; the tensors are not copies."""
        found = ((gradient, self._set_aside.get(gradient) or self._handed_in[seat]) for gradient, seat in pending)
        corrects = self.store.corrects
        return [
            (
                *(gradient.worker, gradient.clock, held.gradient, held.squared_norm),
                *(held.pulled if corrects else None, held.absent),
            )
            for gradient, held in found
        ]

    def resume(self, kept: Iterable[Any]) -> None:
        """Take over the gradients without a fate of another one: they are set aside."""
        for worker, clock, *held in kept:
            self._set_aside[Gradient(worker, clock)] = HandedIn(*held)

    def everything(self, pending: Iterable[tuple[Gradient, int]]) -> tuple[dict[str, Any], list[Any]]:
        """The state of the store, and the gradients without a fate."""
        return self.store.state(), self.kept(pending)

    def view(self) -> PortView:
        return PortView(self.store.version, tuple(self._set_aside))
