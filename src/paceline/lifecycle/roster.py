"""The group itself: its processes, its members, and what is given to them and taken from them.

What happens to a group, and what follows from it, is in paceline.lifecycle.lifecycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.coordinator import Coordinator
from paceline.core.messages import NO_WORK_LEFT, Event, Record, Unit, UnitsReturned, WorkerJoined, WorkerLeft
from paceline.lifecycle.messages import BeginGroup, Dismiss, Lease, Output, Place, StartProcess
from paceline.lifecycle.opening import Opening
from paceline.lifecycle.orders import Orders, TimedOrders
from paceline.lifecycle.rounds import Round
from paceline.lifecycle.samples import Samples
from paceline.lifecycle.seats import ON_THEIR_WAY_OUT, WITHOUT_A_PLACE, Change, Seat, State
from paceline.lifecycle.silence import Patience, Silence
from paceline.lifecycle.staffing import Staffing
from paceline.lifecycle.work import NO_LIMIT, Limit

MADE_SMALLER = "the group was made smaller"
SENT_AWAY = "it was sent away"  # by somebody outside, who named it


class Roster:
    def __init__(
        self,
        coordinator: Coordinator,
        workers: Sequence[int],
        *,
        least: int | None = None,
        most: int | None = None,
        epochs: int | None = 1,
        limit: Limit = NO_LIMIT,
        together: bool = True,
        trains: bool = True,
        restarts: int = 0,
        patience: Patience | None = None,
    ) -> None:
        """`workers`: the ids of the processes that the group begins with.

        `least`, `most` and `restarts`: as in Staffing. `epochs` and `limit`: of the work, as in WorkLedger. `together`:
        the group begins when the models of all are here; otherwise each joins when it comes. `trains`: there are
        samples and gradients behind the pushes; otherwise a run only keeps time. `patience`: with those who are silent;
        None: without end.
        """
        self.coordinator = coordinator
        self.seats: dict[int, Seat] = {worker: Seat(worker) for worker in workers}
        self.members: dict[int, Seat] = {}  # by worker id
        self.round = Round()
        self.samples = Samples(epochs, limit)
        self.staffing = Staffing(len(workers), least, most, restarts)
        self.begun = self._has_a_model = False  # a group that is resumed has begun, and has no model yet
        self._together = together
        self.trains = trains
        self.next_worker = max(workers, default=-1) + 1
        self.parked: dict[int, Seat] = {}  # in the order in which they ran out of work
        self.silent: dict[int, Seat] = {}  # in the order in which they were given up
        self._joiners: list[Seat] = []  # processes that were asked for after the first ones
        self.silence = None if patience is None else Silence(patience)
        self.finished = 0  # processes that came to their end by themselves
        self._opening = Opening()
        self.ended = 0  # processes
        self._outputs: list[Output] = []
        self._places: dict[int, Place] | None = None  # None: somebody came or went since they were last asked for
        self._orders = (
            Orders(coordinator, self.members, self.samples, self.round)
            if trains
            else TimedOrders(coordinator, self.members)
        )

    @property
    def over(self) -> bool:
        """Whether every process has come to its end."""
        return self.ended == len(self.seats)

    @property
    def done(self) -> bool:
        """Whether nobody has anything left to do. One that was told to stop may not have read that yet."""
        if self.members or not self.begun:
            return self.over
        return all(seat.state in (State.DISMISSED, State.GONE) for seat in self.seats.values())

    @property
    def active(self) -> list[Seat]:
        """The processes that the group has, or will have."""
        return [seat for seat in self.seats.values() if seat.state not in ON_THEIR_WAY_OUT]

    def place_of(self, index: int) -> Place:
        """Of a process among those that train, or have run out of work: what it can take its part of the data by."""
        if self._places is None:
            here = [seat.index for seat in self.seats.values() if seat.state not in WITHOUT_A_PLACE]
            self._places = {index: Place(rank, len(here)) for rank, index in enumerate(here)}
        return self._places.get(index, Place())

    @property
    def trained(self) -> list[int]:
        """The seats whose model is the group's: of members, and of processes that only ran out of work."""
        workers = dict.fromkeys(self.round.workers)
        return [seat.index for seat in self.seats.values() if seat.worker in workers]

    def _change(self, seat: Seat, change: Change) -> None:
        seat.change(change)
        self._places = None

    def _decide(self, event: Event, now: float) -> None:
        self._note(self.coordinator.handle(event, now))

    def _note(self, record: Record) -> None:
        self._outputs.append(record)
        self._orders.follow(record.commands)

    # -- work --

    def _give_work(self, seats: Sequence[Seat], now: float) -> None:
        """To these, which ask for it."""
        able = [seat for seat in seats if seat.state not in (*ON_THEIR_WAY_OUT, State.FINISHING)]
        dealt = self.samples.deal(able, len(self.members), asked=True)
        given = {seat.index: units for seat, units in zip(able, dealt, strict=True)}
        for seat in seats:
            if seat.state in ON_THEIR_WAY_OUT:
                self._dismiss_if_leaving(seat, now)
            else:
                self._answer(seat, given.get(seat.index, ()), now)

    def _answer(self, seat: Seat, units: tuple[Unit, ...], now: float) -> None:
        if units or seat.state is State.FINISHING or self.samples.leased_by(seat):
            seat.asks = False
            # None: it has others, and these are the last ones. It cannot wait for more: others may wait for its push.
            seat.told_last = not units and seat.state is not State.FINISHING
            self._outputs.append(Lease(seat.index, units[0] if units else None, units[1:]))
            return
        # It leaves the group, so that nobody waits for it, but its process stays: work may come back.
        self._change(seat, Change.RAN_OUT)
        self.parked[seat.index] = seat
        self._leave(seat, NO_WORK_LEFT, now)

    def _own(self, seat: Seat, units: int) -> int:
        """Of so many units that a process speaks of, those that were not given to others."""
        void = min(seat.void, units)
        seat.void -= void
        return units - void

    def _starting(self) -> list[Seat]:
        """Of the joiners, those that are not here yet."""
        self._joiners = [seat for seat in self._joiners if seat.state is State.STARTING]
        return self._joiners if self.begun else []

    def _nothing_left(self) -> bool:
        """Whether those that are silent, or not here yet, have nothing to come to."""
        waited_for = (State.SILENT, State.FINISHING, State.STARTING)
        others = [seat for seat in self.active if seat.state not in waited_for]
        return not others and (self.samples.all_done if self.samples.ledger is not None else self.finished > 0)

    # -- entering --

    def _begin(self, seats: Sequence[Seat]) -> None:
        self._has_a_model = True
        self._outputs.append(BeginGroup(tuple(seat.index for seat in seats)))

    def _join(self, seat: Seat, now: float) -> None:
        if seat.state is State.PARKED:
            self._rename(seat)
            (seat.reserved,) = self.samples.deal([seat], len(self.members) + 1, asked=True)
            seat.asks = False
        self._join_as_named(seat, now)

    def _rename(self, seat: Seat) -> None:
        """It comes back; what it held when it was given up is still its own, if nobody else was given it."""
        before, seat.worker = seat.worker, self._new_id()
        seat.pushed_before = seat.pushed
        seat.void -= self.samples.take_up(before, seat.worker)

    def _join_as_named(self, seat: Seat, now: float, *, dropped: bool = False) -> None:
        self._change(seat, Change.JOINED)
        self.members[seat.worker] = seat
        process = None if seat.worker == seat.index else seat.index
        renewed, seat.renewed = seat.renewed, False
        self._decide(WorkerJoined(seat.worker, process, dropped, renewed, renewed and seat.forgot), now)

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
                self._change(seat, Change.TOLD_TO_FINISH)
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
            self._note_return(seat.worker, self.samples.left(seat.worker), reason, now)
        seat.reserved, seat.late = (), None
        seat.interrupted = False
        self._decide(WorkerLeft(seat.worker, reason), now)

    def _note_return(self, worker: int, units: tuple[Unit, ...], reason: str, now: float) -> None:
        if units:
            self._outputs.append(Record(now, UnitsReturned(worker, units, reason)))

    def _dismiss_if_leaving(self, seat: Seat, now: float) -> None:
        if seat.state is State.LEAVING:
            self._dismiss(seat, now, seat.leaves)

    def _dismiss(self, seat: Seat, now: float, reason: str) -> None:
        self._change(seat, Change.TOLD_TO_STOP)
        self._let_go(seat, reason, now)
        self._outputs.append(Dismiss(seat.index))

    def _let_go(self, seat: Seat, reason: str, now: float) -> None:
        """What it had is for others."""
        self.parked.pop(seat.index, None)
        if self.silent.pop(seat.index, None) is not None:
            self.samples.recall(seat.worker)
        self.samples.abandon(seat)
        self._leave(seat, reason, now)

    def _end(self, seat: Seat, reason: str, now: float) -> None:
        if seat.state is State.GONE:
            return
        self._change(seat, Change.ENDED)
        self.ended += 1
        if self.silence is not None:
            self.silence.forget(seat.index)
        self._let_go(seat, reason, now)

    def add_seat(self) -> int:
        """For one more process, which somebody must start."""
        index = self._new_id()
        self.seats[index] = Seat(index)
        return index

    def _start_another(self) -> None:
        index = self.add_seat()
        self._joiners.append(self.seats[index])
        self._outputs.append(StartProcess(index))
