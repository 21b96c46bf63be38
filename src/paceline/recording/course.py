"""The course of a run, as pictures are drawn from it: what every place did when and why, what happened, and how fast.

Times are whole ticks, each a small part of an iteration, and every list holds differences: so an hour fits into a page.
Whoever follows a run that goes on asks for what is new, again and again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    DiscardGradient,
    Estimates,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    Record,
    SendParameters,
    WentBack,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
    WorkerSuspected,
)
from paceline.core.progress import Clocks
from paceline.recording.observer import Observer
from paceline.recording.places import Place, Places

USED, UNUSED, LOST, OPEN = range(4)  # what became of an iteration; OPEN: it has no fate
NOBODY = -1  # ended a wait; else the worker whose push did, or LEFT - worker, if it was by leaving
LEFT = -2
TICKS = 40  # of a usual iteration
USUAL_OVER = 4_000  # iterations of each place, at most
MOST_REASONS = 4_000
MOST_MARKS = 5_000
MOST_CHOICES = 2_000  # of k, with what each was chosen by
MOST_PACE_BINS = 240
PUSHES_IN_A_BIN = 6  # of the slowest: with fewer its pace would be a comb


class _Reasons:
    """Why workers waited, each by its number. Of a push that is answered at once nobody asks why."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, reason: str) -> int:
        if len(self._numbers) >= MOST_REASONS and reason not in self._numbers:
            reason = "waits"
        return self._numbers.setdefault(reason, len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


class _Row:
    """What one place did: iterations, each with the wait after it."""

    def __init__(self) -> None:
        self.begins, self.pushes, self.ends = array("d"), array("d"), array("d")
        self.reasons, self.until, self.samples = array("i"), array("i"), array("i")
        self.fates = array("b")
        self.workers: list[tuple[float, int]] = []  # since when which worker
        self.since: float | None = None  # it computes
        self.waits_for: str | None = None  # it waits for this reason since its last push; None: it does not
        self.changed = 0  # from this iteration on something is new

    def add(self, now: float, fate: int, samples: int = 0) -> int:
        """An iteration ends; returns its number. That it began is missing in a trace that was tampered with."""
        self.begins.append(now if self.since is None else self.since)
        for times in (self.pushes, self.ends):
            times.append(now)
        for numbers, value in ((self.reasons, 0), (self.until, -1), (self.samples, samples), (self.fates, fate)):
            numbers.append(value)
        self.since = None
        return len(self.begins) - 1

    def decide(self, number: int, fate: int) -> None:
        self.fates[number] = fate
        self.changed = min(self.changed, number)

    def stop_waiting(self, now: float, who: int, reasons: _Reasons) -> None:
        if self.waits_for is not None and self.ends[-1] < now:
            self.ends[-1], self.reasons[-1], self.until[-1] = now, reasons.number(self.waits_for), who
            self.changed = min(self.changed, len(self.ends) - 1)
        self.waits_for = None

    def so_far(self, first: int, now: float, reasons: _Reasons) -> _Row:
        """A copy from that iteration on, with what is under way up to now."""
        found = _Row()
        found.begins, found.pushes, found.ends = self.begins[first:], self.pushes[first:], self.ends[first:]
        found.reasons, found.until = self.reasons[first:], self.until[first:]
        found.samples, found.fates = self.samples[first:], self.fates[first:]
        if found.ends and self.waits_for is not None:
            found.waits_for = self.waits_for
            found.stop_waiting(now, NOBODY, reasons)
        if self.since is not None and self.since < now:
            found.since = self.since
            found.add(now, OPEN)
        return found


@dataclass
class _Told:
    """So many of each list were told."""

    reasons: int = 0
    updates: int = 0
    barriers: int = 0
    marks: int = 0
    rows: list[int] = field(default_factory=list)  # iterations of each that are still as they were told


class Course(Observer):
    """Give it every record, and ask for `data`."""

    def __init__(self) -> None:
        self._places = Places()
        self._rows: list[_Row] = []
        self._clock: dict[int, int] = {}
        self._standing: dict[int, int] = {}
        self._clocks = Clocks()
        self._pending: dict[Gradient, tuple[_Row, int, int]] = {}  # its row, its number there, its version
        self._reasons = _Reasons()
        self._updates, self._barriers = array("d"), array("d")
        self._version = 0
        self.staleness: Counter[int] = Counter()
        self.leads: Counter[int] = Counter()
        self.marks: list[tuple[float, str, str]] = []
        self.choices: list[tuple[float, Estimates]] = []  # evenly over all that there were
        self.chosen = 0  # so often was a k chosen
        self._every = 1  # choice is kept
        self._before = _Told()

    def observe(self, record: Record) -> None:
        event, now = record.event, record.now
        who = NOBODY
        match event:
            case GradientArrived(gradient):
                who = gradient.worker
                self._push(event, record)
            case WorkerJoined():
                self._join(event, now)
            case WorkerLeft(worker):
                who = LEFT - worker
                self._leave(event, now)
            case WorkerReturned(worker):
                if worker in self._standing and self._row(worker).since is not None:
                    self._lose(worker, now)
            case PolicyChanged(policy, why=why):
                for row in self._rows:  # who still waits does so for its reason
                    row.waits_for = None if row.waits_for is None else record.reason
                said = why or record.reason
                self._mark(now, "switch", f"{policy} takes over" + (f": {said}" if said else ""))
            case WorkerSuspected() | WentBack():
                self._mark(now, "note", str(event))
            case _:
                pass
        self._follow(record, who)
        if record.estimates is not None:
            self._choose(now, record.estimates)

    def _follow(self, record: Record, who: int) -> None:
        now, released = record.now, 0
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    released += 1
                    self._release(worker, now, who)
                case ApplyUpdate(gradients):
                    for gradient in gradients:
                        row, number, version = self._pending.pop(gradient)
                        row.decide(number, USED)
                        self.staleness[self._version - version] += 1
                    self._version += 1
                    self._updates.append(now)
                case DiscardGradient(gradient):
                    row, number, _ = self._pending.pop(gradient)
                    row.decide(number, UNUSED)
                case InterruptWorker(worker):
                    self._lose(worker, now)
                    self._row(worker).since = now
        if released == len(self._standing) > 1 and not isinstance(record.event, WorkerJoined):
            self._barriers.append(now)

    def _choose(self, now: float, estimates: Estimates) -> None:
        if self.chosen % self._every == 0:
            self.choices.append((now, estimates))
        self.chosen += 1
        if len(self.choices) > MOST_CHOICES:
            del self.choices[1::2]
            self._every *= 2

    def _row(self, worker: int) -> _Row:
        return self._rows[self._places.of(worker).number]

    def _join(self, event: WorkerJoined, now: float) -> None:
        place: Place = self._places.join(event, now)
        if place.number == len(self._rows):
            self._rows.append(_Row())
        self._rows[place.number].workers.append((now, event.worker))
        if now > 0:
            self._mark(now, "join", f"worker {event.worker} joins")

    def _push(self, event: GradientArrived, record: Record) -> None:
        worker = event.gradient.worker
        if event.gradient.clock <= self._clock.get(worker, 0):
            return  # delivered twice
        self._clock[worker] = event.gradient.clock
        self._clocks.advance(worker, self._standing[worker])
        self._standing[worker] += 1
        self.leads[self._standing[worker] - self._clocks.least] += 1
        row = self._row(worker)
        self._pending[event.gradient] = row, row.add(record.now, OPEN, event.samples), event.version
        row.waits_for = record.reason

    def _release(self, worker: int, now: float, who: int) -> None:
        if worker not in self._standing:
            self._standing[worker] = self._clocks.enter(worker)
        row = self._row(worker)
        row.stop_waiting(now, who, self._reasons)
        row.since = now

    def _lose(self, worker: int, now: float) -> None:
        self._row(worker).add(now, LOST)

    def _leave(self, event: WorkerLeft, now: float) -> None:
        worker = event.worker
        if worker in self._standing:
            row = self._row(worker)
            row.stop_waiting(now, LEFT - worker, self._reasons)
            if row.since is not None and row.since < now and event.reason not in AT_THE_END:
                row.add(now, LOST)
            row.since = None
            self._clocks.exit(worker, self._standing.pop(worker))
        if self._places.leave(event, now) is not None:
            self._mark(now, "leave", f"worker {worker} leaves: {event.reason}")

    def _mark(self, now: float, kind: str, said: str) -> None:
        if len(self.marks) < MOST_MARKS:
            self.marks.append((now, kind, said))
        elif len(self.marks) == MOST_MARKS:
            self.marks.append((now, "note", "what happened from here on is in the trace alone: it is too much"))

    # -- telling --

    def data(self, end: float, tick: float | None = None) -> dict[str, Any]:
        """All of it, for a page, as if the run ended then. `tick`: seconds; None: as suits its iterations."""
        usual = self._usual()
        return self._told(_Told(rows=[0] * len(self._rows)), end, tick or (usual or end or 1.0) / TICKS, usual)

    def news(self, end: float, tick: float) -> dict[str, Any]:
        """As `data` was the last time that this was asked for, but for what is in here: each list goes on after that
        one, each row after those of its iterations that `kept` counts, and the rest is as it is now."""
        told = self._before
        told.rows = [row.changed for row in self._rows]
        found = self._told(told, end, tick, self._usual())
        self._before = _Told(len(self._reasons.all()), len(self._updates), len(self._barriers), len(self.marks))
        for row in self._rows:
            row.changed = len(row.begins) - (row.waits_for is not None)  # what is under way will be told again
        return found

    def _told(self, known: _Told, end: float, tick: float, usual: float) -> dict[str, Any]:
        # First: a wait that is under way may have a reason that nobody was told yet.
        rows = [
            _row_data(row, first, tick, end, self._reasons) for row, first in zip(self._rows, known.rows, strict=True)
        ]
        return {
            "end": end,
            "tick": tick,
            "usual": usual,
            "reasons": self._reasons.all()[known.reasons :],
            "rows": rows,
            "updates": _differences(self._updates, known.updates, tick),
            "barriers": _differences(self._barriers, known.barriers, tick),
            "marks": self.marks[known.marks :],
            "pace": self._paces(end) if end > 0 else [],
            "staleness": sorted(self.staleness.items()),
            "leads": sorted(self.leads.items()),
        }

    def _usual(self) -> float:
        """What an iteration takes, lately; 0: nobody knows yet."""
        lengths = [
            np.subtract(row.pushes[-USUAL_OVER:], row.begins[-USUAL_OVER:]) for row in self._rows if len(row.begins)
        ]
        return float(np.median(np.concatenate(lengths))) if lengths else 0.0

    def _paces(self, end: float) -> list[list[float]]:
        """Of every place, samples per second in equal parts of the run."""
        slowest = max((_mean_iteration(row) for row in self._rows), default=0.0)
        bins = max(4, min(MOST_PACE_BINS, int(end / slowest / PUSHES_IN_A_BIN) if slowest else 0))
        found = []
        for row in self._rows:
            counts, _ = np.histogram(row.pushes, bins=bins, range=(0, end), weights=row.samples)
            found.append([float(f"{rate:.4g}") for rate in counts * bins / end])
        return found


def _mean_iteration(row: _Row) -> float:
    """With its wait, from its first push to its last; 0: nobody knows. Who was there for a short time only was not slow
    therefore."""
    return (row.pushes[-1] - row.pushes[0]) / (len(row.pushes) - 1) if len(row.pushes) > 1 else 0.0


def _row_data(whole: _Row, first: int, tick: float, end: float, reasons: _Reasons) -> dict[str, Any]:
    """Differences between the moments of a row: from an end to the next begin, to the push, to the end."""
    row = whole.so_far(first, end, reasons)
    moments = np.stack([row.begins, row.pushes, row.ends], axis=1) if len(row.begins) else np.zeros((0, 3))
    begin = _ticks(whole.ends[first - 1], tick) if first else 0
    steps = np.diff(_ticks(moments.ravel(), tick), prepend=begin).reshape(-1, 3)
    waited = np.flatnonzero(np.array(row.reasons))
    odd = np.flatnonzero(np.array(row.fates, dtype=np.int8) != USED)
    return {
        "kept": first,
        "workers": whole.workers,
        "gaps": steps[:, 0].tolist(),
        "computes": steps[:, 1].tolist(),
        "waits": steps[:, 2].tolist(),
        "waited": np.diff(waited, prepend=0).tolist(),  # iterations with a wait after them, and its reason and end
        "reasons": [row.reasons[number] for number in waited],
        "until": [row.until[number] for number in waited],
        "odd": np.diff(odd, prepend=0).tolist(),  # iterations whose gradient was not used
        "fates": [row.fates[number] for number in odd],
    }


def _ticks(moments: Any, tick: float) -> Any:
    return np.rint(np.asarray(moments, dtype=float) / tick).astype(np.int64)


def _differences(moments: Any, first: int, tick: float) -> list[int]:
    """From that number on; the first of them differs from the one before it."""
    before = _ticks(moments[first - 1], tick) if first else 0
    return np.diff(_ticks(moments[first:], tick), prepend=before).tolist()  # type: ignore[no-any-return]
