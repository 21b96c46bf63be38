"""How many samples a full round of the group has: one batch of every member.

The learning rate is meant for a round, and an update that is made of fewer samples is scaled by its share of one. At
the end of a run the group does not become smaller, only its work runs out: a worker that left for want of work is
absent, and its batch still counts. Otherwise the last gradients, which are the stalest, would be whole rounds of their
own, at the full learning rate. An absence is over once every member has pushed a gradient that it began after the
departure: then the others go on without it, as they do when a worker with batches of its own finishes early.
"""

from __future__ import annotations

import msgspec

from paceline.core.messages import AT_THE_END


class Absence(msgspec.Struct):
    batch: int
    left_at: int  # in pulls of the group
    missing: list[int]  # the members that have not pushed anything since

    def note(self, worker: int) -> None:
        """It has pushed, or is gone."""
        if worker in self.missing:
            self.missing.remove(worker)


class RoundState(msgspec.Struct, frozen=True):
    """A round between two events, as a value that JSON can hold."""

    pulled: dict[int, int]
    batches: dict[int, int]
    absent: dict[int, Absence]
    samples: int
    pulls: int
    size: float
    departed: list[int]


class Round:
    def __init__(self) -> None:
        self._pulled: dict[int, int] = {}  # member -> how many pulls of the group there were at its last one
        self._batches: dict[int, int] = {}  # member -> samples of its latest batch
        self._absent: dict[int, Absence] = {}
        self._samples = 0  # in all of these batches
        self._pulls = 0
        self._size = 1.0
        self._departed: list[int] = []

    def state(self) -> RoundState:
        return RoundState(
            dict(self._pulled),
            dict(self._batches),
            {
                worker: Absence(absence.batch, absence.left_at, list(absence.missing))
                for worker, absence in self._absent.items()
            },
            self._samples,
            self._pulls,
            self._size,
            list(self._departed),
        )

    def resume(self, state: RoundState) -> None:
        self._pulled, self._batches = dict(state.pulled), dict(state.batches)
        self._absent = {
            worker: Absence(absence.batch, absence.left_at, list(absence.missing))
            for worker, absence in state.absent.items()
        }
        self._samples, self._pulls, self._size = state.samples, state.pulls, state.size
        self._departed = list(state.departed)

    @property
    def workers(self) -> list[int]:
        """The members, and those that are only absent."""
        return [*self._pulled, *self._absent]

    @property
    def members(self) -> list[int]:
        return list(self._pulled)

    def pull(self, worker: int) -> None:
        """The worker is given parameters: from its first time on it counts as a member."""
        if worker not in self._pulled and self._absent:  # a worker that had no work is back, under another id
            self._batches[worker] = self._absent.pop(next(iter(self._absent))).batch
        self._pulls += 1
        self._pulled[worker] = self._pulls

    def push(self, worker: int, samples: int) -> None:
        """A gradient of this worker arrived."""
        self._samples += samples - self._batches.get(worker, 0)
        self._batches[worker] = samples
        if self._absent:
            began = self._pulled.get(worker, 0)
            for absence in self._absent.values():
                if began > absence.left_at:
                    absence.note(worker)
            self._end_absences()

    def leave(self, worker: int, reason: str) -> None:
        batch = self._batches.pop(worker, 0)
        if self._pulled.pop(worker, None) is not None:
            self._departed.append(worker)
        if reason in AT_THE_END and batch:
            self._absent[worker] = Absence(batch, self._pulls, list(self._pulled))
        else:
            self._samples -= batch
        for absence in self._absent.values():
            absence.note(worker)
        self._end_absences()

    def take_departed(self) -> tuple[int, ...]:
        """The members that left since this was last asked."""
        departed = tuple(self._departed)
        self._departed.clear()
        return departed

    def _end_absences(self) -> None:
        if not self._pulled:
            return  # the last ones are gone: the group stays what it was
        for worker, absence in list(self._absent.items()):
            if not absence.missing:
                self._samples -= absence.batch
                del self._absent[worker]

    @property
    def samples(self) -> float:
        """A member that has not pushed yet counts as the average. When the last member has left, what it left behind
        is measured by the last round that there was."""
        if self._batches and self._pulled:
            average = self._samples / (len(self._batches) + len(self._absent))
            self._size = average * (len(self._pulled) + len(self._absent))
        return self._size
