"""What became of every sample, from a trace and what was lost with crashes: it always adds up.

Of work that the runtime gave out every sample is known. Of batches that workers brought along only numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paceline.core.messages import (
    ApplyUpdate,
    BatchSkipped,
    DataOpened,
    DiscardGradient,
    Gradient,
    GradientArrived,
    Record,
    Unit,
    UnitsReturned,
    WentBack,
)
from paceline.recording.observer import Observer

SKIPPED = 255


class EpochBalance(msgspec.Struct, frozen=True):
    """samples = applied once + applied again + skipped + open"""

    epoch: int
    samples: int
    applied: int  # exactly once
    applied_again: int  # more than once: never
    skipped: int  # not finite
    open: int  # not given out yet, being computed, or without a fate


class Balance(msgspec.Struct, frozen=True):
    """Of a run. Numbers are samples; `*_given_again` count every time."""

    epochs: list[EpochBalance]
    applied: int
    skipped: int
    pending: int  # arrived, without a fate
    discarded_given_again: int  # late
    lost_given_again: dict[str, int]  # why their worker gave them back
    discarded: int  # of batches that workers brought along: nobody can give them again
    undone: int  # applied after a checkpoint and before a crash; the weights do not have them, they were done again
    returns: list[WentBack] = []  # what was done twice, and why: each time that the run went back to a checkpoint

    @property
    def adds_up(self) -> bool:
        return all(not epoch.applied_again for epoch in self.epochs)


class Ledger(Observer):
    """Give it every record, then ask for the balance."""

    def __init__(self) -> None:
        self._pending: dict[Gradient, GradientArrived] = {}
        self._epochs: dict[int, np.ndarray[Any, Any]] = {}  # how often each sample was applied; SKIPPED: never will be
        self._counted: dict[int, EpochBalance] = {}  # of those in which nothing has changed since
        self._applied = self._skipped = self._discarded = self._late = 0
        self._lost: dict[str, int] = {}
        self._samples = 0  # of the data set, where the group shares one
        self._wanted = 0  # epochs
        self._returns: list[tuple[float, WentBack]] = []

    def observe(self, record: Record) -> None:
        self.note_return(record)
        match record.event:
            case DataOpened(samples, epochs):
                self._samples, self._wanted = samples, epochs or 0
                self._counted.clear()
            case GradientArrived():
                self._pending.setdefault(record.event.gradient, record.event)
            case UnitsReturned(_, units, reason) if units:
                self._lost[reason] = self._lost.get(reason, 0) + _samples(units)
            case BatchSkipped(_, samples, units):
                self._skipped += samples
                for unit in units:
                    self._positions(unit)[:] = SKIPPED
            case _:
                pass
        for command in record.commands:
            match command:
                case ApplyUpdate(gradients):
                    for gradient in gradients:
                        self._apply(self._pending.pop(gradient))
                case DiscardGradient(gradient):
                    self._discard(self._pending.pop(gradient))
                case _:
                    pass

    def note_return(self, record: Record) -> None:
        """Also one that was lost itself, when the run went back once more."""
        if isinstance(record.event, WentBack):
            self._returns.append((record.now, record.event))

    def _apply(self, arrived: GradientArrived) -> None:
        self._applied += arrived.samples
        for unit in arrived.units:
            self._positions(unit)[:] += 1

    def _discard(self, arrived: GradientArrived) -> None:
        if arrived.units:
            self._late += arrived.samples
        else:
            self._discarded += arrived.samples

    def _positions(self, unit: Unit) -> np.ndarray[Any, Any]:
        """The entries of these samples, to be changed: parts of a data set lie between each other."""
        self._counted.pop(unit.epoch, None)
        last = unit.part + (unit.end - 1) * unit.parts
        counts = self._epochs.get(unit.epoch)
        if counts is None or len(counts) <= last:
            grown = np.zeros(max(2 * last, 1024), dtype=np.uint8)
            if counts is not None:
                grown[: len(counts)] = counts
            counts = self._epochs[unit.epoch] = grown
        return counts[unit.part + unit.begin * unit.parts : last + 1 : unit.parts]

    def balance(self, again: int = 0) -> Balance:
        """`again`: samples that were applied, and lost with a crash."""
        epochs = max(self._wanted, max(self._epochs, default=-1) + 1) if self._samples else 0
        return Balance(
            [self._epoch(epoch, self._samples) for epoch in range(epochs)],
            self._applied,
            self._skipped,
            sum(arrived.samples for arrived in self._pending.values()),
            self._late,
            dict(self._lost),
            self._discarded,
            again,
            [event for _, event in sorted(self._returns, key=lambda known: known[0])],
        )

    def _epoch(self, epoch: int, samples: int) -> EpochBalance:
        """A page that follows a run asks every second, and most epochs are over or have not begun."""
        if epoch not in self._epochs:
            return EpochBalance(epoch, samples, 0, 0, 0, samples)
        if epoch not in self._counted:
            self._counted[epoch] = self._count(epoch, samples)
        return self._counted[epoch]

    def _count(self, epoch: int, samples: int) -> EpochBalance:
        counts = np.zeros(samples, dtype=np.uint8)
        seen = self._epochs[epoch][:samples]
        counts[: len(seen)] = seen
        once, skipped, never = (int((counts == value).sum()) for value in (1, SKIPPED, 0))
        return EpochBalance(epoch, samples, once, samples - once - skipped - never, skipped, never)


def _samples(units: Iterable[Unit]) -> int:
    return sum(unit.samples for unit in units)


class Lost(NamedTuple):
    """What had been applied, and was lost with a crash."""

    updates: int
    samples: int
    seconds: float  # from the first to the last that was recorded


def lost_work(lost: Iterable[Record], kept: Iterable[Record]) -> Lost:
    """`kept`: the trace, where some of their gradients arrived."""
    arrived: dict[Gradient, int] = {}
    applied: list[Gradient] = []
    updates, first, last = 0, None, 0.0
    for record in lost:
        first, last = record.now if first is None else first, record.now
        if isinstance(record.event, GradientArrived):
            arrived[record.event.gradient] = record.event.samples
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                updates += 1
                applied.extend(command.gradients)
    missing = {gradient for gradient in applied if gradient not in arrived}
    for record in kept if missing else ():
        if isinstance(record.event, GradientArrived) and record.event.gradient in missing:
            arrived[record.event.gradient] = record.event.samples
    return Lost(updates, sum(arrived[gradient] for gradient in applied), 0.0 if first is None else last - first)
