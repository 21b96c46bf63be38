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
    NO_WORK_LEFT,
    BatchSkipped,
    DataOpened,
    DeadlinePassed,
    Event,
    Gradient,
    GradientArrived,
    Record,
    Unit,
    UnitsReturned,
    UpdateApplied,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.lifecycle.messages import (
    BatchesSkipped,
    BeginGroup,
    Dismiss,
    GiveUp,
    GradientPushed,
    GroupEvent,
    Lease,
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
from paceline.lifecycle.opening import Opening
from paceline.lifecycle.orders import Orders, TimedOrders
from paceline.lifecycle.rounds import Round
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.seats import IN_THE_GROUP, ON_THEIR_WAY_OUT, Change, Seat, State
from paceline.lifecycle.work import Work

MOST_REPLACEMENTS = 3  # in a row that die before anybody pushes
MADE_SMALLER = "the group was made smaller"
INTERRUPTED = "it was interrupted"


class Lifecycle:
    def __init__(
        self,
        coordinator: Coordinator,
        workers: Sequence[int],
        *,
        least: int | None = None,
        most: int | None = None,
        epochs: int = 1,
        together: bool = True,
        trains: bool = True,
    ) -> None:
        """`workers`: the ids of the processes that the group begins with.

        `least`: never fewer, and those that die are replaced; None: go on with those that are left. `most`: how many
        somebody outside may ask for. `together`: the group begins when the models of all are here; otherwise each joins
        when it comes. `trains`: there are samples and gradients behind the pushes; otherwise a run only keeps time.
        """
        self.coordinator = coordinator
        self.seats: dict[int, Seat] = {worker: Seat(worker) for worker in workers}
        self.members: dict[int, Seat] = {}  # by worker id
        self.round = Round()
        self.samples = Samples(epochs)
        self.wanted = len(workers)  # the size that the group should have
        self.begun = self._has_a_model = False  # a group that is resumed has begun, and has no model yet
        self._least = least
        self._most = most
        self._together = together
        self.trains = trains
        self.next_worker = max(workers, default=-1) + 1
        self.parked: dict[int, Seat] = {}  # in the order in which they ran out of work
        self._opening = Opening()
        self._replaced = 0  # in a row
        self.ended = 0  # processes
        self._outputs: list[Output] = []
        self._orders = (
            Orders(coordinator, self.members, self.samples, self.round)
            if trains
            else TimedOrders(coordinator, self.members)
        )
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

    @property
    def over(self) -> bool:
        """Whether every process has come to its end."""
        return self.ended == len(self.seats)

    @property
    def active(self) -> list[Seat]:
        """The processes that the group has, or will have."""
        return [seat for seat in self.seats.values() if seat.state not in ON_THEIR_WAY_OUT]

    @property
    def trained(self) -> list[int]:
        """The seats whose model is the group's: of members, and of processes that only ran out of work."""
        workers = dict.fromkeys(self.round.workers)
        return [seat.index for seat in self.seats.values() if seat.worker in workers]

    def _change_policy(self, event: PolicyReplaced, now: float) -> None:
        self._note(self.coordinator.change_policy(event.policy, now))

    def _decide(self, event: Event, now: float) -> None:
        self._note(self.coordinator.handle(event, now))

    def _note(self, record: Record) -> None:
        self._outputs.append(record)
        self._orders.follow(record.commands)

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
        self._replaced = 0
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

    def _give_work(self, seat: Seat, now: float) -> None:
        if seat.state in ON_THEIR_WAY_OUT:
            self._dismiss_if_leaving(seat, now)
            return
        unit = None if seat.state is State.FINISHING else self.samples.lease(seat)
        if unit is not None or seat.state is State.FINISHING or self.samples.has_leased(seat):
            seat.asks = False
            self._outputs.append(Lease(seat.index, unit))  # None: it gathers batches, and this was the last one
            return
        # It leaves the group, so that nobody waits for it, but its process stays: work may come back.
        seat.change(Change.RAN_OUT)
        self.parked[seat.index] = seat
        self._leave(seat, NO_WORK_LEFT, now)

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
                self._resize(SizeRequested(self.wanted), now)
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

    def _begin(self, seats: Sequence[Seat]) -> None:
        self._has_a_model = True
        self._outputs.append(BeginGroup(tuple(seat.index for seat in seats)))

    def _join(self, seat: Seat, now: float) -> None:
        if seat.state is State.PARKED:
            seat.worker = self._new_id()
            seat.pushed_before = seat.pushed
            seat.reserved = self.samples.lease(seat)
            seat.asks = False
        seat.change(Change.JOINED)
        self.members[seat.worker] = seat
        self._decide(WorkerJoined(seat.worker), now)

    def _new_id(self) -> int:
        self.next_worker += 1
        return self.next_worker - 1

    def _employ_parked(self, now: float) -> None:
        """Give work that came back to processes that have none; when all is done, let them come to their end."""
        while self.samples.came_back and (idle := self._idle()):
            self._join(self.parked.pop(idle[0].index), now)
        if self.samples.all_done:
            for seat in self._idle():
                del self.parked[seat.index]
                seat.change(Change.TOLD_TO_FINISH)
                self._outputs.append(Lease(seat.index, None))

    def _idle(self) -> list[Seat]:
        """The parked processes that wait for an answer."""
        return [seat for seat in self.parked.values() if seat.asks]

    # -- leaving --

    def _leave(self, seat: Seat, reason: str, now: float) -> None:
        """The worker is gone, and its next batches with it. What it pushed keeps its units until its fate is known."""
        if self.members.pop(seat.worker, None) is None:
            return
        if self.trains:
            self._orders.set_aside(seat)  # its process may come back, under another id
            self.round.leave(seat.worker, reason)
            self._note_return(seat, self.samples.left(seat.worker), reason, now)
        seat.reserved = None
        seat.interrupted = False
        self._decide(WorkerLeft(seat.worker, reason), now)

    def _note_return(self, seat: Seat, units: tuple[Unit, ...], reason: str, now: float) -> None:
        if units:
            self._outputs.append(Record(now, UnitsReturned(seat.worker, units, reason)))

    def _dismiss_if_leaving(self, seat: Seat, now: float) -> None:
        if seat.state is State.LEAVING:
            self._dismiss(seat, now)

    def _dismiss(self, seat: Seat, now: float) -> None:
        self.parked.pop(seat.index, None)
        seat.change(Change.TOLD_TO_STOP)
        self.samples.abandon(seat)
        self._leave(seat, MADE_SMALLER, now)
        self._outputs.append(Dismiss(seat.index))

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
        if self._least is not None and len(active) < self.wanted and had_work:
            self._replaced += 1
            if self._replaced > MOST_REPLACEMENTS:
                self._outputs.append(GiveUp(f"{died}; {MOST_REPLACEMENTS} others that took its place died as well"))
                return
            self._add_seat()
        elif not active:
            self._outputs.append(GiveUp(f"{died}, and it was the last"))
        elif not self._has_a_model and self._together:
            self._outputs.append(GiveUp(f"{died} before the group began"))

    def _end(self, seat: Seat, reason: str, now: float) -> None:
        if seat.state is State.GONE:
            return
        self.parked.pop(seat.index, None)
        seat.change(Change.ENDED)
        self.ended += 1
        self.samples.abandon(seat)
        self._leave(seat, reason, now)

    # -- the size of the group --

    def _add_seat(self) -> None:
        index = self._new_id()
        self.seats[index] = Seat(index)
        self._outputs.append(StartProcess(index))

    def _resize(self, event: SizeRequested, now: float) -> None:
        """Make the group this large: new processes join, the newest ones leave once they handed in their gradient."""
        self.wanted = max(self._least or 1, min(event.workers, self._most or event.workers))
        active = self.active
        for _ in range(len(active), self.wanted):
            self._add_seat()
        for seat in active[self.wanted :]:
            computes = seat.worker in self.members and seat.worker not in self.coordinator.progress.waiting
            if computes and not seat.away and seat.worker not in self.coordinator.progress.newcomers:
                seat.change(Change.ASKED_TO_LEAVE)
            else:
                self._dismiss(seat, now)
        if not self.begun:
            self._begin_if_all_are_here(now)
