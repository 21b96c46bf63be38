"""From gradients that arrived to updates: every runtime that trains has one of these.

It knows the gradients without a fate, makes an update of those that the policy names, and tells the ledger what became
of the samples behind each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from paceline.core.messages import AT_THE_END, ApplyUpdate, DiscardGradient, Gradient, Statistics
from paceline.training.data import Unit, WorkLedger
from paceline.training.parameters import Contribution, ParameterStore


@dataclass
class Arrived:
    """A gradient without a fate. Its squared norm is known to whoever computed it; None: look it up."""

    gradient: Tensor
    samples: int
    loss: float | None = None
    squared_norm: float | None = None
    units: tuple[Unit, ...] = ()


@dataclass
class Aggregation:
    store: ParameterStore
    statistics: bool  # whether anybody wants to know about the gradients of an update
    ledger: WorkLedger | None = None  # None: the workers bring batches of their own
    dropped: int = 0  # samples whose gradient was not used, and that nobody can give back
    _arrived: dict[Gradient, Arrived] = field(default_factory=dict)
    _members: dict[int, None] = field(default_factory=dict)
    _batches: dict[int, int] = field(default_factory=dict)  # each member's latest batch
    _absent: list[int] = field(default_factory=list)  # the latest batches of those who have no work left
    _samples: int = 0  # in all of these
    _round: float = 1.0

    def arrive(self, gradient: Gradient, arrived: Arrived, units: int) -> tuple[Unit, ...]:
        """It stays where it lies until its fate is decided, so nobody may write there. Returns its units."""
        if self.ledger is not None and units:
            arrived.units = self.ledger.hand_in(gradient.worker, units)
        self._arrived[gradient] = arrived
        self._samples += arrived.samples - self._batches.get(gradient.worker, 0)
        self._batches[gradient.worker] = arrived.samples
        return arrived.units

    def enter(self, worker: int) -> None:
        """The worker holds parameters: from its first pull on it counts as a member."""
        if worker not in self._members and self._absent:
            self._batches[worker] = self._absent.pop()  # somebody who had no work is back, under another id
        self._members[worker] = None

    def move_aside(self, gradient: Gradient) -> None:
        """Its worker goes on before its fate is decided, and will need the memory where it lies."""
        arrived = self._arrived.get(gradient)
        if arrived is not None:
            arrived.gradient = arrived.gradient.clone()

    def leave(self, worker: int, reason: str) -> None:
        """The worker is gone, and its next batches with it. What it pushed keeps its units until its fate is known.

        At the end of a run the group does not become smaller, only its work runs out: a round is what it was. Otherwise
        the last gradients, which are the stalest, would be whole rounds of their own, at the full learning rate.
        """
        batch = self._batches.pop(worker, 0)
        self._members.pop(worker, None)
        if reason in AT_THE_END and batch:
            self._absent.append(batch)
        else:
            self._samples -= batch
        for gradient in self._arrived:
            if gradient.worker == worker:
                self.move_aside(gradient)  # its process may come back, under another id
        if self.ledger is not None:
            self.ledger.release(worker)

    def apply(self, command: ApplyUpdate) -> Statistics | None:
        arrived = [self._arrived.pop(gradient) for gradient in command.gradients]
        weights = command.weights or (1.0,) * len(arrived)
        contributions = [
            Contribution(each.gradient, each.samples, weight, each.loss, each.squared_norm)
            for each, weight in zip(arrived, weights, strict=True)
        ]
        seen = self.store.apply(contributions, self._samples_per_round(), statistics=self.statistics)
        if self.ledger is not None:
            for each in arrived:
                self.ledger.finish(each.units)
        return seen

    def _samples_per_round(self) -> float:
        """A full round of the present group: one batch of everybody; who has not pushed yet counts as the average.

        When the last one has left, what it left behind is measured by the last round that there was.
        """
        if self._batches and self._members:
            average = self._samples / (len(self._batches) + len(self._absent))
            self._round = average * (len(self._members) + len(self._absent))
        return self._round

    def discard(self, command: DiscardGradient) -> None:
        arrived = self._arrived.pop(command.gradient)
        if self.ledger is not None and arrived.units:
            self.ledger.give_back(arrived.units)
        else:
            self.dropped += arrived.samples

    def drop(self, worker: int, samples: int, units: int) -> None:
        """A gradient was not finite, and was never handed in."""
        self.dropped += samples
        if self.ledger is not None:
            self.ledger.drop(worker, units)
