"""How large the group is: asked for by somebody, offered by a cluster, or made smaller because a place will be gone or
a worker is sent away."""

from __future__ import annotations

from abc import abstractmethod

from paceline.lifecycle.messages import DepartureRequested, EndProcess, EvictionRequested, RoomOffered, SizeRequested
from paceline.lifecycle.roster import MADE_SMALLER, SENT_AWAY
from paceline.lifecycle.seats import ON_THEIR_WAY_OUT, Change, Seat, State
from paceline.lifecycle.watch import Watch

NOT_YET = "the group has not begun yet: ask again when it trains"
NAMED = 12  # workers, in a sentence


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

    # -- sending one away --

    def _evict(self, event: EvictionRequested, now: float) -> None:
        """What it computes is lost, and its samples are for others; what it pushed counts. Nobody takes its place: the
        group is one smaller, as somebody wanted it. If it left since they asked, nothing happens."""
        if self.refusal_to_evict(event.worker):
            return
        seat = self.members[event.worker]
        if seat.state is not State.LEAVING:  # that one was not counted any more
            self.staffing.limit_to(len(self.active) - 1)
        self._dismiss(seat, now, SENT_AWAY)
        if seat.away:
            self._outputs.append(EndProcess(seat.index))  # it would not read that for a while

    def refusal_to_evict(self, worker: int) -> str:
        """Why this worker cannot be sent away, and what to do instead; empty: it can."""
        if not self.begun or not self._has_a_model:
            return NOT_YET
        seat = self.members.get(worker)
        if seat is None:
            return self._why_it_is_not_here(worker)
        if not any(other is not seat and other.state in (State.MEMBER, State.PARKED) for other in self.active):
            return (
                f"worker {worker} is the only one that trains, and nobody would go on: let another one join first"
                " (`paceline scale`), or end the run (`paceline stop`)"
            )
        left, least = len(self.active) - (seat.state is not State.LEAVING), self.staffing.least
        if left < least:
            return (
                f"worker {worker} cannot go: this run must keep {least} workers, and has no more; let another one join"
                " first (`paceline scale`)"
            )
        policy = self.coordinator.policy
        try:
            policy.check_group(left)
        except ValueError as problem:
            return f"worker {worker} cannot go: policy {str(policy)!r}: {problem}"
        return ""

    def _why_it_is_not_here(self, worker: int) -> str:
        here = sorted(self.members)
        named = f"{', '.join(map(str, here[:NAMED]))}{' and others' if len(here) > NAMED else ''}"
        present = f"there are {named}" if here else "nobody trains"
        seat = next((seat for seat in self.seats.values() if seat.worker == worker), None)
        match None if seat is None else seat.state:
            case State.STARTING:
                return (
                    f"worker {worker} is still starting: ask again when it has joined; `paceline scale` takes away the"
                    " newest first"
                )
            case State.SILENT:
                return (
                    f"worker {worker} was set aside, because it was silent: nobody waits for it, and others do its"
                    " work. If it speaks again, it comes back under another number"
                )
            case State.PARKED | State.FINISHING:
                return f"worker {worker} has left: there is no work for it, and its process ends with the run"
            case _ if 0 <= worker < self.next_worker:
                return f"worker {worker} has left already; {present}"
            case _:
                return f"there is no worker {worker}; {present}"
