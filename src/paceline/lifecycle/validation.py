"""Compares what the layers believe of the same facts; all tests switch it on, after every event.

The coordinator's progress is the truth about members, versions and pending gradients, the ledger about samples. What
the lifecycle, the round and a runtime's port keep beside it are views.
"""

from __future__ import annotations

import msgspec

from paceline.core.messages import Gradient
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.seats import IN_THE_GROUP, State


class PortView(msgspec.Struct, frozen=True):
    """What a runtime believes. None: it does not keep this."""

    version: int | None = None  # of the parameters
    set_aside: tuple[Gradient, ...] = ()  # gradients without a fate that it moved


def check_views(lifecycle: Lifecycle, port: PortView | None = None) -> None:
    """AssertionError says which two views differ. `port` is None while an update is under way."""
    _check_members(lifecycle)
    _check_samples(lifecycle)
    if port is not None:
        progress = lifecycle.coordinator.progress
        if port.version is not None:
            _same("version of progress and store", progress.version, port.version)
        lost = [gradient for gradient in port.set_aside if gradient not in progress.pending]
        _same("gradients that are set aside and have a fate", lost, [])


def _check_members(lifecycle: Lifecycle) -> None:
    progress = lifecycle.coordinator.progress
    here = {*progress.members, *progress.newcomers}
    _same("members of progress and lifecycle", here, set(lifecycle.members))
    seated = {seat.worker for seat in lifecycle.seats.values() if seat.state in IN_THE_GROUP}
    _same("members and seats", here, seated)
    parked = {seat.index for seat in lifecycle.seats.values() if seat.state is State.PARKED}
    _same("parked seats", set(lifecycle.parked), parked)
    gone = [seat for seat in lifecycle.seats.values() if seat.state is State.GONE]
    _same("whether the run is over", lifecycle.over, len(gone) == len(lifecycle.seats))
    for worker, member in progress.members.items():
        seat = lifecycle.members[worker]
        _same(f"clock of worker {worker}", member.clock, seat.pushed - seat.pushed_before)
        # A worker that was interrupted or is away is given what is newest later: an update may have come in between.
        if not (seat.interrupted or seat.away):
            _same(f"version that worker {worker} holds", member.version, min(member.version, seat.version))
    if lifecycle.trains:
        _same("members of progress and round", set(progress.members), set(lifecycle.round.members))


def _check_samples(lifecycle: Lifecycle) -> None:
    ledger = lifecycle.samples.ledger
    if ledger is None:
        return
    pending = lifecycle.coordinator.progress.pending.values()
    undecided = sum(unit.samples for arrived in pending for unit in arrived.units)
    _same("samples of pending gradients", ledger.undecided, undecided)
    total = ledger.applied + ledger.dropped + ledger.undecided + ledger.leased + ledger.returned
    _same("samples of all epochs", total, ledger.given)
    holders = [worker for worker in ledger.workers if worker not in lifecycle.members]
    _same("workers that hold work and are no members", holders, [])


def _same(what: str, one: object, other: object) -> None:
    assert one == other, f"{what}: {one} here, {other} there"
