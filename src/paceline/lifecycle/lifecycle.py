"""Turns what processes do into what the group does: starting, entering, working, running out of work, leaving.

The coordinator decides which worker goes on, and is asked first about every push: one that was delivered twice changes
nothing. This class knows the processes behind the workers and the samples behind the gradients. Events go in,
commands come out (paceline.lifecycle.messages), in the order in which they must be carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigurationError, ProtocolError
from paceline.core.messages import (
    FINISHED,
    BatchSkipped,
    DataOpened,
    DeadlinePassed,
    Gradient,
    GradientArrived,
    Record,
    UpdateApplied,
    WorkerReturned,
)
from paceline.lifecycle.messages import (
    BatchesSkipped,
    GiveUp,
    GradientPushed,
    GroupEvent,
    ModelArrived,
    Output,
    PolicyReplaced,
    ProcessDied,
    ProcessFinished,
    Release,
    SizeRequested,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.roster import Roster
from paceline.lifecycle.seats import IN_THE_GROUP, ON_THEIR_WAY_OUT, Change, Seat, State
from paceline.lifecycle.staffing import MOST_REPLACEMENTS
from paceline.lifecycle.work import Work

INTERRUPTED = "it was interrupted"


class Lifecycle(Roster):
    def __init__(self, coordinator: Coordinator, workers: Sequence[int], **options: Any) -> None:
        super().__init__(coordinator, workers, **options)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            GradientPushed: self._push,
            WorkRequested: self._request,
            WorkDropped: self._restart,
            BatchesSkipped: self._skip,
            ModelArrived: self._enter,
            ProcessFinished: self._finish,
            ProcessDied: self._die,
            SizeRequested: self._resize,
            UpdateApplied: self._decide,
            DeadlinePassed: self._decide,
            PolicyReplaced: self._change_policy,
        }

    def start(self) -> list[Output]:
        """The commands that come before any event."""
        return [StartProcess(seat.index) for seat in self.seats.values() if seat.state is not State.GONE]

    def provide(self, work: Work) -> None:
        """What every process will work on, where a runtime knows it before anybody asks."""
        self.samples.open(work, -1, self.seats.values(), len(self.active))
        for seat in self.seats.values():
            seat.work = work

    def handle(self, event: GroupEvent, now: float) -> list[Output]:
        """Take in one event, and return what is to be done, in order."""
        outputs = self._outputs = self._orders.outputs = []
        self._handlers[type(event)](event, now)
        for seat in self._opening.answered():
            self._give_work(seat, now)
        if self.parked:
            self._employ_parked(now)
        return outputs

    def _change_policy(self, event: PolicyReplaced, now: float) -> None:
        self._note(self.coordinator.change_policy(event.policy, now))

    # -- what members do --

    def _push(self, event: GradientPushed, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state not in IN_THE_GROUP:
            if seat.state in ON_THEIR_WAY_OUT or event.number <= seat.pushed:
                return  # it was sent away before it knew, or this was delivered twice
            raise ProtocolError(seat.worker, seat.state.value, "pushed a gradient after its work was done")
        if event.number <= seat.pushed_before:
            return  # delivered twice, from before the process came back
        gradient = Gradient(seat.worker, event.number - seat.pushed_before)
        new = event.number > seat.pushed
        units = self.samples.behind(seat.worker, event.units) if new and event.units else ()
        arrived = GradientArrived(gradient, seat.version, event.samples, event.loss, units)
        record = self.coordinator.handle(arrived, now)
        self._outputs.append(record)
        if not new:
            return
        seat.pushed = event.number
        seat.slot_used = True
        self._opening.push(seat)
        seat.interrupted = False
        self.staffing.note_push()
        if self.trains:
            self.samples.hand_in(seat.worker, len(units))
            self.round.push(seat.worker, event.samples)
        self._orders.follow(record.commands)
        if seat.state is State.LEAVING:
            self._dismiss(seat, now)

    def _skip(self, event: BatchesSkipped, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state in IN_THE_GROUP:  # a process that was sent away gave its units back
            units = self.samples.skipped(seat.worker, event.samples, event.units)
            self._outputs.append(Record(now, BatchSkipped(seat.worker, event.samples, units)))
            self._dismiss_if_leaving(seat, now)

    def _restart(self, event: WorkDropped, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state not in IN_THE_GROUP:
            return
        seat.interrupted = False
        if self.trains:
            self._note_return(seat, self.samples.interrupted(seat.worker, event.samples, event.units), INTERRUPTED, now)
        if seat.state is State.MEMBER:
            self._orders.send_on(seat)
        self._dismiss_if_leaving(seat, now)

    def _request(self, event: WorkRequested, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state in ON_THEIR_WAY_OUT:
            self._give_work(seat, now)
            return
        if seat.state in (State.STARTING, State.READY):
            raise ConfigurationError(
                f"worker {seat.index} asks for batches before it has a model: call worker.optimizer first"
            )
        seat.asks = True
        if seat.state is State.PARKED:
            return  # it came back to a group that was resumed, and goes on waiting
        seat.work = event.work
        if self.samples.open(event.work, seat.index, self.seats.values(), len(self.active)):
            self._outputs.append(Record(now, DataOpened(event.work.samples, self.samples.epochs)))
        self._opening.ask(seat)

    # -- entering --

    def _enter(self, event: ModelArrived, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state in ON_THEIR_WAY_OUT:
            return
        resumes = self.begun and not self._has_a_model
        if resumes:
            self._begin([seat])  # the group goes on with the first that is here
        if seat.away:
            self._return(seat, now)
            if resumes:
                self._resize(SizeRequested(self.staffing.wanted), now)
            return
        seat.change(Change.MODEL_ARRIVED)
        if self.begun:
            self._join(seat, now)
        else:
            self._begin_if_all_are_here(now)

    def _return(self, seat: Seat, now: float) -> None:
        """The new process of a worker of a group that was resumed."""
        seat.away = False
        if seat.state is State.PARKED:
            self._outputs.append(Release(seat.index))  # it will ask for work, and go on waiting for it
        else:
            self._decide(WorkerReturned(seat.worker), now)

    def _begin_if_all_are_here(self, now: float) -> None:
        ready = [seat for seat in self.active if seat.state is State.READY]
        if self.begun or not ready or (self._together and len(ready) < len(self.active)):
            return
        self.begun = True
        self._begin(ready)
        for seat in ready:
            self._join(seat, now)
        self._opening.begin(ready)

    # -- leaving --

    def _finish(self, event: ProcessFinished, now: float) -> None:
        seat = self.seats[event.seat]
        expected = seat.state in ON_THEIR_WAY_OUT
        self._end(seat, FINISHED, now)
        if not expected and not self.begun:
            self._outputs.append(
                GiveUp(f"worker {seat.index} finished without a model: `train` must call worker.optimizer(model, ...)")
            )

    def _die(self, event: ProcessDied, now: float) -> None:
        """A process died: replace it, go on without it, or say why that is impossible."""
        seat = self.seats[event.seat]
        before = seat.state
        self._end(seat, event.reason, now)
        if before in ON_THEIR_WAY_OUT:
            return
        died = f"worker {seat.index}: {event.reason}"
        active = self.active
        had_work = before not in (State.PARKED, State.FINISHING)
        if had_work and self.staffing.replaces(len(active)):
            if self.staffing.hopeless:
                self._outputs.append(GiveUp(f"{died}; {MOST_REPLACEMENTS} others that took its place died as well"))
                return
            self._add_seat()
        elif not active:
            self._outputs.append(GiveUp(f"{died}, and it was the last"))
        elif not self._has_a_model and self._together:
            self._outputs.append(GiveUp(f"{died} before the group began"))

    # -- the size of the group --

    def _resize(self, event: SizeRequested, now: float) -> None:
        """Make the group this large: new processes join, the newest ones leave once they handed in their gradient."""
        self.staffing.ask_for(event.workers)
        wanted = self.staffing.wanted
        active = self.active
        for _ in range(len(active), wanted):
            self._add_seat()
        for seat in active[wanted:]:
            computes = seat.worker in self.members and seat.worker not in self.coordinator.progress.waiting
            if computes and not seat.away and seat.worker not in self.coordinator.progress.newcomers:
                seat.change(Change.ASKED_TO_LEAVE)
            else:
                self._dismiss(seat, now)
        if not self.begun:
            self._begin_if_all_are_here(now)
