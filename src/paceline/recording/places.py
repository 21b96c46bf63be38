"""Who holds which place of a group. A place is what is paid for: it outlives the workers that hold it in turn.

A place opens when a worker joins for whom none is free. A worker that comes back takes its old one, a new worker the
one that has been empty for the longest. It closes when the group is made smaller, or its worker is sent away; one whose
worker died stays, empty.
"""

from __future__ import annotations

from paceline.core.messages import AT_THE_END, WorkerJoined, WorkerLeft
from paceline.lifecycle.roster import MADE_SMALLER, SENT_AWAY


class Place:
    def __init__(self, number: int, opened: float) -> None:
        self.number = number
        self.opened = opened
        self.holder: int | None = None  # the worker that is there
        self.latest = 0  # the worker that was there last
        self.left_at = opened
        self.reason = ""  # why that one left
        self.closed = False

    @property
    def is_paid_for(self) -> bool:
        """While nobody holds it."""
        return self.holder is None and not self.closed

    @property
    def has_ended(self) -> bool:
        """It is empty because there was no more work for it."""
        return self.reason in AT_THE_END


class Places:
    def __init__(self) -> None:
        self.all: list[Place] = []
        self._of_process: dict[int, Place] = {}  # by the first id of the process that held it last
        self._of_worker: dict[int, Place] = {}

    def join(self, event: WorkerJoined, now: float) -> Place:
        """The place that this worker takes. What it was empty for before is for the caller to note, before."""
        if event.worker in self._of_worker:
            raise LookupError(f"worker {event.worker} joins while it is here")
        place = self.free_for(event)
        if place is None:
            place = Place(len(self.all), now)
            self.all.append(place)
        if place.closed:
            place.opened, place.closed = now, False
        place.holder = place.latest = event.worker
        place.reason = ""
        self._of_worker[event.worker] = place
        self._of_process[event.worker if event.process is None else event.process] = place
        return place

    def free_for(self, event: WorkerJoined) -> Place | None:
        if event.process is not None:
            own = self._of_process.get(event.process)
            if own is not None and own.holder is None:
                return own
        empty = [place for place in self.all if place.is_paid_for and not place.has_ended]
        return min(empty, key=lambda place: place.left_at, default=None)

    def leave(self, event: WorkerLeft, now: float) -> Place | None:
        """The place that is empty from now on; None: this worker had none."""
        place = self._of_worker.pop(event.worker, None)
        if place is not None:
            place.holder = None
            place.left_at, place.reason = now, event.reason
            place.closed = event.reason in (MADE_SMALLER, SENT_AWAY)
        return place

    def of(self, worker: int) -> Place:
        return self._of_worker[worker]
