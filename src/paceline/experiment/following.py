"""Follows a trace update by update. Where gradients come from is a subclass's to say; what is made of them is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from paceline.core.errors import TraceError
from paceline.core.messages import (
    ApplyUpdate,
    DiscardGradient,
    Event,
    Gradient,
    GradientArrived,
    PolicyChanged,
    Record,
    SendParameters,
    UpdateRule,
    WorkerLeft,
)
from paceline.lifecycle.rounds import Round
from paceline.training.parameters import ParameterStore
from paceline.training.updates import Contribution


class Arrived(NamedTuple):
    """A gradient, and the parameters that it was computed on."""

    flat: Tensor
    pulled: Tensor
    event: GradientArrived
    absent: tuple[int, ...] = ()


class Follower(ABC):
    store: ParameterStore  # a subclass makes it, at the latest with the first event

    def __init__(self, wire: Callable[[Tensor], None] | None = None) -> None:
        """`wire`: does to a gradient what its way to the server did."""
        self._wire = wire
        self._round = Round()
        self._arrived: dict[Gradient, Arrived] = {}  # without a fate
        self._clocks: dict[int, int] = {}
        self._may_be_stale: bool | None = None  # as in MakeUpdate

    @abstractmethod
    def gradient(self, event: GradientArrived) -> tuple[Tensor, Tensor]:
        """What arrived, and the parameters that it was computed on."""

    def absent(self, event: GradientArrived) -> tuple[int, ...]:
        """The parameters that what arrived is not about, by their numbers."""
        return ()

    def note(self, event: Event, now: float) -> None:
        """Anything else happened."""
        return

    def changed(self, event: PolicyChanged) -> None:
        """Another policy took over. TraceError if updates would be made in another way than they were from then on."""
        if event.updates is not None and event.may_be_stale is not None:
            refuse_another(
                event.updates, self.store.rule_for(event.may_be_stale), f"after the change to {event.policy}"
            )

    def send(self, worker: int) -> None:
        """The worker is given the newest parameters."""
        return

    def settled(self, event: GradientArrived) -> None:
        """A gradient has its fate."""
        return

    def updated(self) -> None:
        """There is a new version."""
        return

    def follow(self, record: Record) -> None:
        event = record.event
        if isinstance(event, GradientArrived):
            self._arrive(event)
        else:
            if isinstance(event, WorkerLeft):
                self._round.leave(event.worker, event.reason)
            elif isinstance(event, PolicyChanged):
                self._may_be_stale = event.may_be_stale
                self.changed(event)
            self.note(event, record.now)
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    self._round.pull(worker)
                    self.send(worker)
                case ApplyUpdate(gradients, weights):
                    self._apply(gradients, weights or (1.0,) * len(gradients))
                case DiscardGradient(gradient):
                    self._settle(gradient)
                case _:
                    pass

    def _arrive(self, event: GradientArrived) -> None:
        worker, clock = event.gradient.worker, event.gradient.clock
        if clock <= self._clocks.get(worker, 0):
            return  # it was delivered twice
        self._clocks[worker] = clock
        flat, pulled = self.gradient(event)
        if self._wire is not None:
            self._wire(flat)
        self._arrived[event.gradient] = Arrived(flat, pulled, event, self.absent(event))
        self._round.push(worker, event.samples)

    def _apply(self, gradients: tuple[Gradient, ...], weights: tuple[float, ...]) -> None:
        contributions = []
        for gradient, weight in zip(gradients, weights, strict=True):
            flat, pulled, event, absent = self._arrived[gradient]
            contributions.append(
                Contribution(
                    flat,
                    event.samples,
                    weight,
                    worker=gradient.worker,
                    version=event.version,
                    staleness=self.store.version - event.version,
                    units=event.units,
                    pulled=pulled,
                    absent=absent,
                )
            )
        departed, may_be_stale = self._round.take_departed(), self._may_be_stale
        self.store.apply(contributions, self._round.samples, departed=departed, may_be_stale=may_be_stale)
        for gradient in gradients:
            self._settle(gradient)
        self.updated()

    def _settle(self, gradient: Gradient) -> None:
        self.settled(self._arrived.pop(gradient).event)


def refuse_another(recorded: UpdateRule, rule: UpdateRule, where: str) -> None:
    """TraceError unless both say the same of updates. `where`: that was recorded."""
    if _words(recorded) != _words(rule):
        raise TraceError(
            f"{where}: its updates were made with {_words(recorded)}, and these would be with {_words(rule)}"
        )


def _words(rule: UpdateRule) -> str:
    return f"{rule.optimizer}, lr_scaling={rule.lr_scaling}, correction of stale gradients: {rule.correction}"
