"""How large the group is: asked for by somebody, offered by a cluster, or made smaller because a place will be gone."""

from __future__ import annotations

from abc import abstractmethod

from paceline.lifecycle.messages import DepartureRequested, RoomOffered, SizeRequested
from paceline.lifecycle.roster import MADE_SMALLER
from paceline.lifecycle.seats import ON_THEIR_WAY_OUT, Change, Seat, State
from paceline.lifecycle.watch import Watch


class Sizing(Watch):
    @abstractmethod
    def _begin_if_all_are_here(self, now: float) -> None:
        """The group begins when the models of all are here."""

    def _resize(self, event: SizeRequested, now: float) -> None:
        """Make the group this large: new processes join, the newest ones leave once they handed in their gradient."""
        self.staffing.limit_to(event.workers)
        self._staff(now)

    def _staff(self, now: float) -> None:
        wanted = self.staffing.wanted
        active = self.active
        for _ in range(len(active), wanted):
            self._start_another()
        for seat in active[wanted:]:
            self._ask_to_leave(seat, now)
        if not self.begun:
            self._begin_if_all_are_here(now)

    def _grow(self, event: RoomOffered, now: float) -> None:
        """Take one more, if the group may have it, and while there is work."""
        active = len(self.active)
        if self._has_a_model and self.staffing.may_grow(active) and not self._works_off():
            self._start_another()  # not one that is wanted: if it dies, it is a place that was offered in vain

    def _works_off(self) -> bool:
        """Whether no work is left to be given out."""
        return bool(self.finished) or self.samples.ledger is None or self.samples.all_done

    def _ask_to_leave(self, seat: Seat, now: float, reason: str = MADE_SMALLER) -> None:
        """One that computes hands in its gradient first."""
        progress = self.coordinator.progress
        computes = seat.worker in self.members and seat.worker not in progress.waiting
        if computes and not seat.away and seat.worker not in progress.newcomers:
            self._change(seat, Change.ASKED_TO_LEAVE)
            seat.leaves = reason
        else:
            self._dismiss(seat, now, reason)

    def _send_off(self, event: DepartureRequested, now: float) -> None:
        """Of one whose place will be gone: another is started at once, if the group replaces those that die."""
        seat = self.seats[event.seat]
        if seat.state in (*ON_THEIR_WAY_OUT, State.FINISHING, State.SILENT):
            return
        others = len(self.active) - 1
        replaced = self.staffing.replaces(others)
        if not (others or replaced):
            return  # it stays for as long as it can: nobody else would go on
        self._ask_to_leave(seat, now, event.reason)
        if replaced:
            self._start_another()
        if not self.begun:
            self._begin_if_all_are_here(now)
