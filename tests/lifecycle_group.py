"""A group of processes that exist only in a test: what a lifecycle tells them, they do, and nothing else.

Every process behaves as a real one would: it starts, makes its model, waits for parameters, asks for work, pushes, is
interrupted, is told to stop, dies. The group keeps its own books, from commands alone, as naively as possible, and
compares the views of all layers after every event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.messages import BatchSkipped, Gradient, Record, Unit
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BatchesSkipped,
    BeginGroup,
    Discard,
    Dismiss,
    EndProcess,
    GiveUp,
    GradientPushed,
    GroupEvent,
    Interrupt,
    Lease,
    MakeUpdate,
    ModelArrived,
    Output,
    ProcessDied,
    ProcessFinished,
    Release,
    SetAside,
    SizeRequested,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.resumption import LifecycleState, resume, state_of
from paceline.lifecycle.seats import State
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.validation import PortView, check_views
from paceline.lifecycle.work import NO_LIMIT, Limit, Work
from paceline.policies import policy

# What a process does.
STARTING, WAITING, ASKING, COMPUTING = "starting", "waiting", "asking", "computing"
FINISHING, ENDED = "finishing", "ended"


@dataclass
class Process:
    does: str = STARTING
    units: list[Unit] = field(default_factory=list)
    pushed: int = 0
    interrupted: bool = False
    told_to_stop: bool = False
    slot: Gradient | None = None  # the gradient that lies in its segment


class LifecycleGroup:
    def __init__(
        self,
        text: str = "bsp",
        workers: int = 2,
        *,
        work: Work | None = None,
        epochs: int | None = 1,
        limit: Limit = NO_LIMIT,
        least: int | None = None,
        most: int | None = None,
        restarts: int = 0,
        patience: Patience | None = None,
    ) -> None:
        """`work` None: the processes bring batches of their own, of 2 samples."""
        self._arguments: dict[str, Any] = {
            "least": least,
            "most": most,
            "epochs": epochs,
            "limit": limit,
            "restarts": restarts,
            "patience": patience,
        }
        self.lifecycle = Lifecycle(Coordinator(policy(text)), range(workers), **self._arguments)
        self.work = work
        self.processes: dict[int, Process] = {}
        self.now = 0.0
        self.version = 0
        self.given_up: str | None = None
        self.begun = False
        self.applied: Counter[tuple[int, int, int]] = Counter()  # (epoch, part, place)
        self.used = self.skipped = self.dropped = 0  # samples
        self.aside: dict[Gradient, None] = {}
        self.records: list[Record] = []
        self.outputs: list[Output] = []  # of the last event
        self._obey(self.lifecycle.start())

    # -- what may happen --

    def actions(self) -> list[tuple[str, int]]:
        """Everything that some process may do now, and that somebody outside may ask for."""
        if self.given_up is not None:
            return []
        found: list[tuple[str, int]] = []
        for seat, process in self.processes.items():
            if process.does == ENDED:
                continue
            if process.told_to_stop:
                found.append(("finish", seat))
            elif process.does == STARTING:
                found.append(("enter", seat))
            elif process.does == COMPUTING:
                found.append(("push", seat))
            elif process.does == FINISHING:
                found.append(("finish", seat))
            found.append(("die", seat))
        return found

    def act(self, action: str, seat: int) -> None:
        process = self.processes.get(seat, Process())
        match action:
            case "enter":
                process.does = WAITING
                self.send(ModelArrived(seat))
            case "push":
                self.push(seat)
            case "push late":
                self.push(seat, reads=False)
            case "skip":
                units = self.used_by(process)
                self.send(BatchesSkipped(seat, sum(unit.samples for unit in units) or 2, len(units)))
                self.ask_if_out_of_work(seat)
            case "finish":
                process.does = ENDED
                self.send(ProcessFinished(seat))
            case "die":
                process.does = ENDED
                self.send(ProcessDied(seat, "killed"))
            case "look":
                self.look(seat)
            case "resize":
                self.send(SizeRequested(seat))
            case "again":
                self.send(GradientPushed(seat, process.pushed, 2, min(1, len(process.units))))

    def push(self, seat: int, *, reads: bool = True) -> None:
        """Hand in what it computed. `reads`: it has read that it is interrupted, if it is."""
        process = self.processes[seat]
        units = self.used_by(process)
        samples = sum(unit.samples for unit in units) or 2
        process.does = WAITING
        if process.interrupted and reads:
            process.interrupted = False
            if self.work is None:
                self.dropped += samples
            self.send(WorkDropped(seat, samples, len(units)))
            return
        process.interrupted = False
        process.pushed += 1
        known = self.lifecycle.seats[seat]
        if known.worker in self.lifecycle.members:
            process.slot = Gradient(known.worker, process.pushed - known.pushed_before)
        elif known.state is State.SILENT:
            process.slot = Gradient(self.lifecycle.next_worker, 1)  # if it is welcome
        self.send(GradientPushed(seat, process.pushed, samples, len(units), 0.5))

    def used_by(self, process: Process) -> list[Unit]:
        """What its gradient is made of: one batch where it has others ahead, otherwise all that it gathered."""
        number = 1 if self.work is not None and self.work.ahead else len(process.units)
        used, process.units = process.units[:number], process.units[number:]
        return used

    def look(self, seconds: float) -> None:
        """So much time passes without a word."""
        self.now += seconds
        if self.lifecycle.next_look <= self.now:
            self.outputs = self.lifecycle.look(self.now)
            self._obey_and_check()

    def ask_ahead(self, seat: int) -> None:
        """It asks for more in the middle of a gradient, as one that has several ahead may."""
        if self.work is not None and self.work.ahead:
            self.processes[seat].does = ASKING
            self.send(WorkRequested(seat, self.work))

    def ask_if_out_of_work(self, seat: int) -> None:
        process = self.processes[seat]
        if self.work is not None and process.does == COMPUTING and not process.units and not process.told_to_stop:
            process.does = ASKING
            self.send(WorkRequested(seat, self.work))

    def send(self, event: GroupEvent) -> None:
        self.now += 1.0
        self.outputs = self.lifecycle.handle(event, self.now)
        self._obey_and_check()

    def _obey_and_check(self) -> None:
        asking = [seat for seat, process in self.processes.items() if process.does == ASKING]
        self._obey(self.outputs)
        check_views(self.lifecycle, PortView(self.version, tuple(self.aside)))
        for seat in self.processes:
            if seat not in asking:
                self.ask_if_out_of_work(seat)

    def resume(self) -> None:
        """Everything is killed, and goes on from what was written down: all processes are new."""
        written = msgspec.json.encode(state_of(self.lifecycle))
        assert msgspec.json.encode(msgspec.json.decode(written, type=LifecycleState)) == written
        text = str(self.lifecycle.coordinator.policy)
        self.lifecycle = Lifecycle(Coordinator(policy(text)), (), **self._arguments)
        resume(self.lifecycle, msgspec.json.decode(written, type=LifecycleState))
        self.aside = dict.fromkeys(self.lifecycle.coordinator.progress.pending)
        ended = {seat: process for seat, process in self.processes.items() if process.does == ENDED}
        gone = [seat.index for seat in self.lifecycle.seats.values() if seat.state is State.GONE]
        self.processes = {seat: ended.get(seat, Process(ENDED)) for seat in gone}
        self.begun = False
        self._obey(self.lifecycle.start())
        check_views(self.lifecycle, PortView(self.version, tuple(self.aside)))

    # -- what processes are told --

    def _obey(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case Record():
                    self.records.append(output)
                    if isinstance(output.event, BatchSkipped):
                        self.skipped += output.event.samples
                case MakeUpdate() | SetAside() | Discard():
                    self._move_gradients(output)
                case GiveUp(reason):
                    self.given_up = reason
                case _:
                    self._tell(output)

    def _tell(self, command: Output) -> None:
        match command:
            case StartProcess(seat):
                assert seat not in self.processes
                self.processes[seat] = Process()
            case BeginGroup(seats):
                assert not self.begun and all(self.processes[seat].does == WAITING for seat in seats)
                self.begun = True
            case Release(seat, unit, requested, ahead, enough):
                self._release(self.processes[seat], unit, requested)
                self.processes[seat].units += ahead
                if enough and self.work is None and self.processes[seat].does == COMPUTING:
                    self.processes[seat].does = FINISHING
            case Lease(seat, unit, ahead):
                process = self.processes[seat]
                assert process.does == ASKING and not process.told_to_stop
                finishing = unit is None and self.lifecycle.seats[seat].state is State.FINISHING
                process.does = FINISHING if finishing else COMPUTING
                process.units += [*([] if unit is None else [unit]), *ahead]
            case Interrupt(seat):
                process = self.processes[seat]
                if process.does == FINISHING and self.work is None:
                    return  # its loop is over, and it does not read that
                assert process.does in (COMPUTING, ASKING) and not process.interrupted, "interrupts pile up"
                process.interrupted = True
            case Dismiss(seat):
                self.processes[seat].told_to_stop = True
            case EndProcess(seat):
                assert self.processes[seat].told_to_stop
                self.act("die", seat)

    def _move_gradients(self, command: MakeUpdate | SetAside | Discard) -> None:
        match command:
            case MakeUpdate(version, parts, samples_per_round):
                self.version += 1
                assert self.begun, "there is no model"
                assert version == self.version and samples_per_round > 0
                for part in parts:
                    self._take(part.arrived.gradient, part.seat)
                    assert part.staleness == version - 1 - part.arrived.version >= 0
                    self.used += part.arrived.samples
                    for unit in part.arrived.units:
                        self.applied.update((unit.epoch, unit.part, place) for place in range(unit.begin, unit.end))
            case SetAside(gradient, seat):
                assert self.processes[seat].slot == gradient
                self.processes[seat].slot = None
                self.aside[gradient] = None
            case Discard(gradient, seat):
                self._take(gradient, seat)
                if self.work is None:
                    self.dropped += 2

    def _release(self, process: Process, unit: Unit | None, requested: bool) -> None:
        assert process.does == (ASKING if requested else WAITING) and not process.told_to_stop
        pending = self.lifecycle.coordinator.progress.pending
        assert process.slot not in pending, "it would write over a gradient that has no fate"
        process.does = COMPUTING
        process.interrupted = False
        process.units += [] if unit is None else [unit]

    def _take(self, gradient: Gradient, seat: int) -> None:
        if gradient in self.aside:
            del self.aside[gradient]
        else:
            assert self.processes[seat].slot == gradient, "it does not lie where it is said to"
            self.processes[seat].slot = None

    # -- the end --

    def finish_all(self) -> None:
        """Everything that processes still do, without anybody dying."""
        for _ in range(500):
            open_actions = [(action, seat) for action, seat in self.actions() if action != "die"]
            if not open_actions:
                break
            for action, seat in open_actions:
                if (action, seat) in self.actions():
                    self.act(action, seat)

    def check_end(self) -> None:
        """Nothing is lost: every sample of every epoch was applied once, or dropped."""
        ledger = self.lifecycle.samples.ledger
        assert self.lifecycle.over, {seat: process.does for seat, process in self.processes.items()}
        if ledger is not None:
            assert max(self.applied.values(), default=1) == 1, "a sample counted twice"
            assert self.applied.total() == ledger.applied
            assert ledger.applied + ledger.dropped + ledger.returned == ledger.given
            if ledger.epochs is not None and ledger.limit == NO_LIMIT and not ledger.closed:
                assert ledger.given + ledger.remaining - ledger.returned == ledger.samples * ledger.epochs
            assert not ledger.outstanding
