"""What a policy that chooses others was told last: what each candidate would make of the workers, and what it chose."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.messages import Answered, PolicyChanged, Record, WorkerJoined, WorkerLeft
from paceline.core.questions import Answer
from paceline.recording.observer import Observer

BEGINS_WITH = "bsp"  # a policy that chooses others
ONE_KIND = "backup:"  # of candidates, in what DBW asks: it chooses a k, and no policy


class Told(NamedTuple):
    seconds: float  # when
    answer: Answer
    workers: int  # that it is about
    policy: str  # in force since


class NewestAnswer(Observer):
    """Give it every record, and ask for `told`."""

    def __init__(self) -> None:
        self.told: Told | None = None
        self._policy = BEGINS_WITH
        self._members: set[int] = set()

    def observe(self, record: Record) -> None:
        match record.event:
            case Answered(_, answer) if any(not each.policy.startswith(ONE_KIND) for each in answer.prospects):
                self.told = Told(record.now, answer, len(self._members), self._policy)
            case PolicyChanged(policy):
                self._policy = policy
                if self.told is not None and self.told.seconds == record.now:
                    self.told = self.told._replace(policy=policy)
            case WorkerJoined(worker):
                self._members.add(worker)
            case WorkerLeft(worker):
                self._members.discard(worker)
            case _:
                pass
