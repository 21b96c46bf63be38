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
    Answered,
    BatchSkipped,
    DeadlinePassed,
    FigureFound,
    Gradient,
    GradientArrived,
    PolicyChanged,
    Record,
    UpdateApplied,
    WorkerReturned,
)
from paceline.lifecycle.messages import (
    BatchesSkipped,
    DepartureRequested,
    Dismiss,
    EndProcess,
    EndRequested,
    EvictionRequested,
    GiveUp,
    GradientPushed,
    GroupEvent,
    Lease,
    ModelArrived,
    Output,
    PolicyFollowed,
    PolicyReplaced,
    ProcessDied,
    ProcessFinished,
    Release,
    RoomOffered,
    SizeRequested,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.seats import IN_THE_GROUP, ON_THEIR_WAY_OUT, Change, Seat, State
from paceline.lifecycle.sizing import Sizing
from paceline.lifecycle.staffing import MOST_REPLACEMENTS
from paceline.lifecycle.watch import SILENT
from paceline.lifecycle.work import Work

WORDS = (GradientPushed, WorkRequested, WorkDropped, BatchesSkipped)
OWE_A_WORD = (Release, Lease, Dismiss)  # those to whom this is sent


class Lifecycle(Sizing):
    def __init__(self, coordinator: Coordinator, workers: Sequence[int], **options: Any) -> None:
        super().__init__(coordinator, workers, **options)
        self._postponed: list[GroupEvent] = []
        self._orphaned = False  # whether work came back that nobody has been given since
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            GradientPushed: self._push,
            WorkRequested: self._request,
            WorkDropped: self._restart,
            BatchesSkipped: self._skip,
            ModelArrived: self._enter,
            ProcessFinished: self._finish,
            ProcessDied: self._die,
            SizeRequested: self._resize,
            DepartureRequested: self._send_off,
            EvictionRequested: self._evict,
            RoomOffered: self._grow,
            UpdateApplied: self._decide,
            DeadlinePassed: self._decide,
            Answered: self._decide,
            PolicyReplaced: self._change_policy,
            PolicyFollowed: self._follow_policy,
            EndRequested: self._end_soon,
            FigureFound: self._note_figure,
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
        if self._waits_for_a_model and not isinstance(event, ModelArrived):
            self._postpone(event)
            return outputs
        if self.silence is not None and isinstance(event, WORDS) and not self._is_old(event):
            self.silence.heard(event.seat, now)
        returned = self.samples.returned
        self._handlers[type(event)](event, now)
        if self.samples.returned > returned and not isinstance(event, ProcessFinished):
            self._orphaned = True  # what a loop leaves undone by itself is its own affair
        self._conclude(now)
        return outputs

    def _is_old(self, event: GroupEvent) -> bool:
        """It was delivered before."""
        return isinstance(event, GradientPushed) and event.number <= self.seats[event.seat].pushed

    def _conclude(self, now: float) -> None:
        """What follows from any event."""
        self._serve(now)
        while self._orders.late:
            self._judge_late(now)
            self._serve(now)
        self._orphaned = self._orphaned and self.samples.came_back
        if self._wants_a_stand_in:
            self._stand_in()
        while self.samples.recalled:
            worker, units = self.samples.recalled.pop(0)
            self._note_return(worker, units, SILENT, now)
        if self.silence is not None:
            for output in self._outputs:
                if isinstance(output, OWE_A_WORD) and not self._comes_to_its_end(output):
                    self.silence.told(output.seat, now)

    def _comes_to_its_end(self, output: Output) -> bool:
        """It was told that there is no work left, and has none."""
        return isinstance(output, Lease) and output.unit is None and not self.samples.leased_by(self.seats[output.seat])

    def _serve(self, now: float) -> None:
        """Those who wait for work, or for nothing any more."""
        if asking := self._opening.answered():
            self._give_work(asking, now)
        if self.parked:
            self._employ_parked(now)
        if (self.silent or self._joiners) and (absent := [*self.silent.values(), *self._starting()]):
            for seat in absent if self._nothing_left() else ():
                self._dismiss(seat, now, NO_WORK_LEFT)
                self._outputs.append(EndProcess(seat.index))  # it would not read that

    # -- silence --

    def _judge_late(self, now: float) -> None:
        """They were let in, and have pushed already."""
        let_in = [(seat, seat.late) for seat in self._orders.late if seat.late is not None]  # others left since
        self._orders.late.clear()
        for seat, push in let_in:
            seat.late = None
            self._arrive(seat, push, now)

    def _change_policy(self, event: PolicyReplaced, now: float) -> None:
        self._note(self.coordinator.change_policy(event.policy, now, event.updates))

    def _follow_policy(self, event: PolicyFollowed, now: float) -> None:
        follow = event.follow
        if follow.by == str(self.coordinator.policy):  # and was not replaced while an update was under way
            changed = PolicyChanged(follow.policy, event.updates, follow.by, follow.why)
            self._note(self.coordinator.follow(changed, now))

    # -- what members do --

    def _push(self, event: GradientPushed, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state not in IN_THE_GROUP:
            if seat.state in ON_THEIR_WAY_OUT or event.number <= seat.pushed:
                return  # it was sent away before it knew, or this was delivered twice
            if seat.state is State.FINISHING and 0 < event.units <= seat.void:
                seat.pushed = event.number  # the rest of a gradient whose samples others were given: it may go on
                self._outputs.append(Release(seat.index))
                return
            if seat.state is not State.SILENT:
                raise ProtocolError(seat.worker, seat.state.value, "pushed a gradient after its work was done")
            self._come_back(seat, event, now)
        elif event.number <= seat.pushed_before or seat.late is not None:
            return  # delivered twice, from before the process came back
        elif seat.void and event.units and event.number > seat.pushed:
            seat.pushed = event.number
            seat.pushed_before += 1
            self._restart(WorkDropped(event.seat, event.samples, event.units), now)
        else:
            self._arrive(seat, event, now)

    def _arrive(self, seat: Seat, event: GradientPushed, now: float) -> None:
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
            seat.gathers = len(units) or seat.gathers
            self.samples.hand_in(seat.worker, len(units), event.samples)
            self.round.push(seat.worker, event.samples)
        self._orders.follow(record.commands)
        self._dismiss_if_leaving(seat, now)

    def _skip(self, event: BatchesSkipped, now: float) -> None:
        seat = self.seats[event.seat]
        silent = seat.state is State.SILENT
        if not silent and seat.state not in IN_THE_GROUP:
            return  # a process that was sent away gave its units back
        if silent:
            seat.void -= self.samples.take_up(seat.worker, seat.worker)
        own = self._own(seat, event.units)
        if own or not event.units:
            units = self.samples.skipped(seat.worker, event.samples, own)
            self._outputs.append(Record(now, BatchSkipped(seat.worker, event.samples, units)))
        if silent:
            seat.void += self.samples.hold(seat)
        if self.silence is not None:
            self.silence.told(seat.index, now)  # it goes on without an answer
        self._dismiss_if_leaving(seat, now)

    def _restart(self, event: WorkDropped, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state is State.SILENT:
            self._come_back(seat, event, now)
        elif seat.state in IN_THE_GROUP:
            seat.interrupted = False
            self._drop(seat, event.samples, event.units, now)
            if seat.state is State.MEMBER:
                self._orders.send_on(seat)
            self._dismiss_if_leaving(seat, now)

    def _request(self, event: WorkRequested, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state in ON_THEIR_WAY_OUT:
            self._give_work([seat], now)
            return
        if seat.state in (State.STARTING, State.READY):
            raise ConfigurationError(
                f"worker {seat.index} asks for batches before it has a model: call worker.optimizer first"
            )
        seat.asks, seat.told_last = True, False
        seat.work = event.work
        if self.samples.open(event.work, seat.index, self.seats.values(), len(self.active)):
            assert self.samples.opened is not None
            self._outputs.append(Record(now, self.samples.opened))
        if seat.state is State.SILENT:
            self.samples.recall(seat.worker)
            self._change(seat, Change.SPOKE)
            self.parked[seat.index] = self.silent.pop(seat.index)
        elif seat.state is not State.PARKED:  # it came back to a group that was resumed, and goes on waiting
            self._opening.ask(seat)

    # -- entering --

    def _enter(self, event: ModelArrived, now: float) -> None:
        seat = self.seats[event.seat]
        if seat.state in ON_THEIR_WAY_OUT:
            return
        resumes = self._waits_for_a_model
        if resumes:
            self._begin([seat])  # the group goes on with the first that is here
            self._ask_again()
        if seat.away:
            self._return(seat, now)
        else:
            self._change(seat, Change.MODEL_ARRIVED)
            if self.begun:
                self._join(seat, now)
            else:
                self._begin_if_all_are_here(now)
        if resumes:
            for postponed in self._postponed:
                self._handlers[type(postponed)](postponed, now)
            self.staffing.ask_for(max(1, self.staffing.wanted - self.finished))
            self._staff(now)

    def _ask_again(self) -> None:
        """What was asked before the group was resumed: now that there is a model, an answer can be complete."""
        if self.coordinator.asking is not None:
            self._outputs.append(self.coordinator.asking)

    @property
    def _waits_for_a_model(self) -> bool:
        """The group was resumed, and nobody has brought a model yet: no update can be made, so nothing is decided."""
        return self.begun and not self._has_a_model

    def deadline(self) -> float | None:
        """When the policy wants to be woken; None: not, or it could decide nothing yet."""
        return None if self._waits_for_a_model else self.coordinator.deadline()

    def computes_for(self, seat: Seat, now: float) -> float | None:
        """So long, as a policy sees it; None: it does not."""
        member = self.coordinator.progress.members.get(seat.worker)
        return None if member is None or member.waiting else now - member.released_at

    def _postpone(self, event: GroupEvent) -> None:
        """Until there is a model; if nobody is left who could bring one, give up."""
        self._postponed.append(event)
        if isinstance(event, SizeRequested):
            self.staffing.ask_for(event.workers)
        ends = [postponed for postponed in self._postponed if isinstance(postponed, ProcessDied | ProcessFinished)]
        if len({end.seat for end in ends}) == len(self.active):
            last = ends[-1]
            said = f": {last.reason}" if isinstance(last, ProcessDied) else " finished without a model"
            self._outputs.append(GiveUp(f"worker {last.seat}{said}, and it was the last"))

    def _return(self, seat: Seat, now: float) -> None:
        """The new process of a worker of a group that was resumed."""
        seat.away = False
        if seat.state is State.PARKED:
            self._outputs.append(Release(seat.index))  # it will ask for work, and go on waiting for it
        else:
            self._decide(WorkerReturned(seat.worker, seat.forgot), now)

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
        self.finished += not expected
        self._end(seat, FINISHED, now)
        if not expected and not self.begun:
            self._outputs.append(
                GiveUp(
                    f"worker {seat.index} finished without a model: `train` must call worker.optimizer(model, ...), or"
                    " worker.prepare(...)"
                )
            )

    def _die(self, event: ProcessDied, now: float) -> None:
        """A process died: replace it, go on without it, or say why that is impossible."""
        seat = self.seats[event.seat]
        before, returned = seat.state, self.samples.returned
        self._end(seat, event.reason, now)
        self._orphaned = self._orphaned or self.samples.returned > returned  # looked at below
        if before in (*ON_THEIR_WAY_OUT, State.FINISHING):
            return
        died = f"worker {seat.index}: {event.reason}"
        active = self.active
        if before is not State.PARKED and self.staffing.replaces(len(active)):
            if self.staffing.hopeless:
                self._outputs.append(GiveUp(f"{died}; {MOST_REPLACEMENTS} others that took its place died as well"))
                return
            self._start_another()
        elif not active and not self._wants_a_stand_in:
            self._outputs.append(GiveUp(f"{died}, and it was the last"))
        elif not self._has_a_model and self._together:
            self._outputs.append(GiveUp(f"{died} before the group began"))

    @property
    def _wants_a_stand_in(self) -> bool:
        """Whether work came back, of one that died or of a gradient that was not wanted, and all who could have done it
        were let go too early: in the middle of a gradient they asked for more, and it was not there yet."""
        if not self._orphaned or not self.samples.came_back:
            return False
        could = [seat for seat in self.active if seat.state not in (State.FINISHING, State.SILENT)]
        return all(seat.told_last for seat in could) and any(seat.told_last for seat in self.seats.values())

    def _stand_in(self) -> None:
        self._orphaned = False  # what this one drops was not lost with anybody
        self.staffing.stand_in()
        if self.staffing.hopeless:
            self._outputs.append(GiveUp(f"work is left over, and {MOST_REPLACEMENTS} that were to do it died"))
        else:
            self._start_another()

    def _end_soon(self, event: EndRequested, now: float) -> None:
        """What everybody is at is the last. Every gradient gets its fate as at the end of any run."""
        self.samples.close()

    def _note_figure(self, event: FigureFound, now: float) -> None:
        self._outputs.append(Record(now, event))
