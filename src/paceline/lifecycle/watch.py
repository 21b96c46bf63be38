"""Those who are silent: suspected, given up, and welcomed when they speak again."""

from __future__ import annotations

import math
from abc import abstractmethod

from paceline.core.messages import Record, UnitsReturned, WorkerSuspected
from paceline.lifecycle.messages import EndProcess, GiveUp, GradientPushed, Output, WorkDropped
from paceline.lifecycle.roster import Roster
from paceline.lifecycle.seats import Change, Seat, State
from paceline.lifecycle.silence import Silent

INTERRUPTED = "it was interrupted"
SILENT = "it was set aside"


class Watch(Roster):
    @abstractmethod
    def _conclude(self, now: float) -> None:
        """What follows from anything that happened."""

    def look(self, now: float) -> list[Output]:
        """Look at the clock, at the time that `next_look` said, and return what is to be done, in order."""
        outputs = self._outputs = self._orders.outputs = []
        assert self.silence is not None
        for silent in self.silence.look(now):
            seat = self.seats[silent.seat]
            if seat.state is State.DISMISSED and silent.overdue:
                self.silence.forgive(seat.index)
                outputs.append(EndProcess(seat.index))
            elif seat.state is State.LEAVING and silent.overdue:
                self._dismiss(seat, now, seat.leaves)
            elif seat.state is State.MEMBER:
                self._suspect(seat, silent, now)
            elif seat.state is State.SILENT and len(self.active) == len(self.silent):
                self._give_up_if_too_long(seat, silent)
        self._conclude(now)
        return outputs

    @property
    def next_look(self) -> float:
        return math.inf if self.silence is None else self.silence.next_look

    def _suspect(self, seat: Seat, silent: Silent, now: float) -> None:
        """Say so, and in the end go on without it, if there is anybody who can."""
        assert self.silence is not None
        progress = self.coordinator.progress
        said = WorkerSuspected(seat.worker, silent.seconds, silent.usual, (*progress.waiting, *progress.newcomers))
        if not silent.overdue:
            self._outputs.append(Record(now, said))
            return
        others = (other.index for other in self.members.values() if other is not seat)
        if self.parked or not all(self.silence.is_overdue(other, now) for other in others):
            self._change(seat, Change.GIVEN_UP)
            self.silent[seat.index] = seat
            seat.void += self.samples.hold(seat)
            self._leave(seat, f"{SILENT}: {said.how_long}", now)
        else:
            self._give_up_if_too_long(seat, silent)

    def _give_up_if_too_long(self, seat: Seat, silent: Silent) -> None:
        """Nobody else can go on. The run only ends if somebody said after how long."""
        assert self.silence is not None
        if self.silence.gives_up_after(silent.seconds):
            said = WorkerSuspected(seat.worker, silent.seconds, silent.usual)
            self._outputs.append(GiveUp(f"{said}, and nobody else can go on"))

    def _come_back(self, seat: Seat, word: GradientPushed | WorkDropped, now: float) -> None:
        """A process that was given up waits for an answer. What it pushed is judged by the policy, as a late gradient,
        unless others were given its work meanwhile."""
        del self.silent[seat.index]
        self._change(seat, Change.SPOKE)
        self._rename(seat)
        if isinstance(word, WorkDropped):
            self._drop(seat, word.samples, word.units, now)
            self._join_as_named(seat, now)
            return
        own = self._own(seat, word.units)
        if own == word.units:
            seat.late = word
        else:
            seat.pushed = seat.pushed_before = word.number
            if own:
                self._note_return(seat.worker, self.samples.interrupted(seat.worker, word.samples, own), SILENT, now)
        self._join_as_named(seat, now, dropped=own != word.units)

    def _drop(self, seat: Seat, samples: int, units: int, now: float) -> None:
        """It dropped what it had computed. That is noted in any case: whoever trains the run again needs to know."""
        if not self.trains:
            return
        own = self._own(seat, units)
        returned = self.samples.interrupted(seat.worker, samples, own) if own or not units else ()
        self._outputs.append(Record(now, UnitsReturned(seat.worker, returned, INTERRUPTED)))
