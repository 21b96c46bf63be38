"""The course of a run, as pictures are drawn from it: what every place did when and why, what happened, and how fast.

Times are whole ticks, each a small part of an iteration, and every list holds differences: so an hour fits into a page.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import numpy as np
from typing_extensions import Self

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
TICKS = 40  # of a usual iteration
MOST_REASONS = 4_000
MOST_MARKS = 1_000
MOST_MOMENTS = 400_000  # of updates, and of barriers
MOST_PACE_BINS = 240
PUSHES_IN_A_BIN = 6  # of the slowest: with fewer its pace would be a comb


class _Row:
    """What one place did: iterations, each with the wait after it."""

    def __init__(self) -> None:
        self.begins, self.pushes, self.ends = array("d"), array("d"), array("d")
        self.reasons, self.until, self.samples = array("i"), array("i"), array("i")
        self.fates = array("b")
        self.workers: list[tuple[float, int]] = []  # since when which worker
        self.since: float | None = None  # it computes

    def add(self, now: float, fate: int, samples: int = 0) -> int:
        """An iteration ends; returns its number. That it began is missing in a trace that was tampered with."""
        self.begins.append(now if self.since is None else self.since)
        for times in (self.pushes, self.ends):
            times.append(now)
        for numbers, value in ((self.reasons, 0), (self.until, -1), (self.samples, samples), (self.fates, fate)):
            numbers.append(value)
        self.since = None
        return len(self.begins) - 1


class Course(Observer):
    """Give it every record, then ask for `data`."""

    def __init__(self) -> None:
        self._places = Places()
        self._rows: list[_Row] = []
        self._waiting: dict[int, int] = {}  # worker -> number of its reason
        self._clock: dict[int, int] = {}
        self._standing: dict[int, int] = {}
        self._clocks = Clocks()
        self._pending: dict[Gradient, tuple[_Row, int, int]] = {}  # its row, its number there, its version
        self._reasons: dict[str, int] = {"": 0}
        self._updates, self._barriers = array("d"), array("d")
        self._version = 0
        self.staleness: Counter[int] = Counter()
        self.leads: Counter[int] = Counter()
        self.marks: list[tuple[float, str, str]] = []
        self.choices: list[tuple[float, Estimates]] = []

    def observe(self, record: Record) -> None:
        event, now = record.event, record.now
        who = -1
        match event:
            case GradientArrived(gradient):
                who = gradient.worker
                self._push(event, record)
            case WorkerJoined(who):
                self._join(event, now)
            case WorkerLeft(who):
                self._leave(event, now)
            case WorkerReturned(who):
                if who in self._standing and self._row(who).since is not None:
                    self._lose(who, now)
            case PolicyChanged(policy):
                self._mark(now, "switch", f"{policy} takes over" + (f": {record.reason}" if record.reason else ""))
            case WorkerSuspected() | WentBack():
                self._mark(now, "note", str(event))
            case _:
                pass
        self._follow(record, who)
        if record.estimates is not None:
            self.choices.append((now, record.estimates))

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
                        row.fates[number] = USED
                        self.staleness[self._version - version] += 1
                    self._version += 1
                    if len(self._updates) < MOST_MOMENTS:
                        self._updates.append(now)
                case DiscardGradient(gradient):
                    row, number, _ = self._pending.pop(gradient)
                    row.fates[number] = UNUSED
                case InterruptWorker(worker):
                    self._lose(worker, now)
                    self._row(worker).since = now
        together = released == len(self._standing) > 1 and not isinstance(record.event, WorkerJoined)
        if together and len(self._barriers) < MOST_MOMENTS:
            self._barriers.append(now)

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
        reason = record.reason if len(self._reasons) < MOST_REASONS or record.reason in self._reasons else "waits"
        self._waiting[worker] = self._reasons.setdefault(reason, len(self._reasons))

    def _release(self, worker: int, now: float, who: int) -> None:
        if worker not in self._standing:
            self._standing[worker] = self._clocks.enter(worker)
        self._stop_waiting(worker, now, who)
        self._row(worker).since = now

    def _stop_waiting(self, worker: int, now: float, who: int) -> None:
        reason, row = self._waiting.pop(worker, None), self._row(worker)
        if reason is not None and row.ends[-1] < now:
            row.ends[-1], row.reasons[-1], row.until[-1] = now, reason, who

    def _lose(self, worker: int, now: float) -> None:
        self._row(worker).add(now, LOST)

    def _leave(self, event: WorkerLeft, now: float) -> None:
        worker = event.worker
        if worker in self._standing:
            row = self._row(worker)
            self._stop_waiting(worker, now, worker)
            if row.since is not None and row.since < now and event.reason not in AT_THE_END:
                row.add(now, LOST)
            row.since = None
            self._clocks.exit(worker, self._standing.pop(worker))
        if self._places.leave(event, now) is not None:
            self._mark(now, "leave", f"worker {worker} leaves: {event.reason}")

    def _mark(self, now: float, kind: str, said: str) -> None:
        if len(self.marks) < MOST_MARKS:
            self.marks.append((now, kind, said))

    def close(self, end: float) -> Self:
        """End all that is under way."""
        for worker in list(self._standing):
            self._stop_waiting(worker, end, -1)
            row = self._row(worker)
            if row.since is not None and row.since < end:
                row.add(end, OPEN)
        return self

    def data(self, end: float) -> dict[str, Any]:
        """For the page; `close` it first."""
        lengths = [np.subtract(row.pushes, row.begins) for row in self._rows if len(row.begins)]
        usual = float(np.median(np.concatenate(lengths))) if lengths else 0.0
        tick = (usual or end or 1.0) / TICKS
        return {
            "end": end,
            "tick": tick,
            "reasons": list(self._reasons),
            "rows": [_row_data(row, tick) for row in self._rows],
            "updates": _differences(self._updates, tick),
            "barriers": _differences(self._barriers, tick),
            "marks": self.marks,
            "pace": self._paces(end) if end > 0 else [],
            "staleness": sorted(self.staleness.items()),
            "leads": sorted(self.leads.items()),
        }

    def _paces(self, end: float) -> list[list[float]]:
        """Of every place, samples per second in equal parts of the run."""
        fewest = min((len(row.pushes) for row in self._rows if len(row.pushes)), default=0)
        bins = max(4, min(MOST_PACE_BINS, fewest // PUSHES_IN_A_BIN))
        found = []
        for row in self._rows:
            counts, _ = np.histogram(row.pushes, bins=bins, range=(0, end), weights=row.samples)
            found.append([float(f"{rate:.4g}") for rate in counts * bins / end])
        return found


def _row_data(row: _Row, tick: float) -> dict[str, Any]:
    """Differences between the moments of a row: from an end to the next begin, to the push, to the end."""
    moments = np.stack([row.begins, row.pushes, row.ends], axis=1) if len(row.begins) else np.zeros((0, 3))
    steps = np.diff(_ticks(moments.ravel(), tick), prepend=0).reshape(-1, 3)
    waited = np.flatnonzero(np.array(row.reasons))
    odd = np.flatnonzero(np.array(row.fates, dtype=np.int8) != USED)
    return {
        "workers": row.workers,
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


def _differences(moments: Any, tick: float) -> list[int]:
    return np.diff(_ticks(moments, tick), prepend=0).tolist()  # type: ignore[no-any-return]
