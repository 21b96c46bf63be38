"""What a report of a run has in it, before anybody thinks of how it looks."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from paceline.recording.bill import Bill
from paceline.recording.ledger import Balance
from paceline.recording.metrics import Summary
from paceline.recording.newest_answer import Told
from paceline.recording.progress_log import Failure


class Advice(NamedTuple):
    """What other policies would have made of the run's own times."""

    summaries: list[Summary]
    sentence: str
    seconds: float  # of the run that this is about, in parts that are spread evenly
    until: float  # from its beginning on


class Contents(msgspec.Struct, frozen=True):
    name: str  # of the run: its directory's
    path: str
    state: str  # as `paceline status` says; empty: of a trace without its directory
    began: str  # when, in words
    trained: str  # what; empty: nobody knows, as in a simulation
    optimizer: str  # and how stale gradients were corrected
    summary: Summary
    bill: Bill
    samples: int  # that became part of updates
    curves: dict[str, Any]  # what was measured on the way, for charts
    course: dict[str, Any]
    balance: Balance | None
    advice: Advice | None
    told: Told | None  # to a policy that chooses others
    failures: list[Failure]
    settings: list[tuple[str, str]]  # configuration, versions, seed
    steps: list[tuple[str, str]]  # what for, and the command
    notes: list[str]  # what is not as it should be, each in a sentence
    best: dict[str, tuple[float, float]] = {}  # figure of the evaluation -> the last, and the best one
    price: float | None = None  # of a worker for an hour

    def cost(self, seconds: float) -> float | None:
        return None if self.price is None else seconds / 3600 * self.price
