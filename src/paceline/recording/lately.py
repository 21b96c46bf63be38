"""What workers did lately, from the last part of a trace: a run of any length is looked at in the same time.

A trace that is read from its middle on does not say how many updates there were before. But what a worker is sent has
the version of that moment, and its next gradient tells it.
"""

from __future__ import annotations

import math
from collections import deque

from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    DataOpened,
    DiscardGradient,
    Gradient,
    GradientArrived,
    PolicyChanged,
    Record,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
    WorkerSuspected,
)
from paceline.recording.observer import Observer
from paceline.recording.status import COMPUTES, LEFT, SILENT, WAITS, WorkerStatus


class _Worker:
    def __init__(self, entered: float) -> None:
        self.entered = entered
        self.left: float | None = None
        self.clock = 0
        self.sent_at: int | None = None  # after so many updates
        self.pushed_at: float | None = None  # set while it waits
        self.reason = self.latest_wait = self.apart = ""
        self.arrived: deque[tuple[float, int]] = deque()  # when, and how many samples
        self.waits: deque[tuple[float, float]] = deque()
        self.lags: deque[tuple[float, int]] = deque()  # updates so far, less the version: of gradients that were used


class Lately(Observer):
    """Give it every record from some moment on, then ask. `window`: seconds to look back; None: to the beginning."""

    def __init__(self, window: float | None, *, from_the_start: bool) -> None:
        self._window = math.inf if window is None else window
        self._from_the_start = from_the_start
        self._workers: dict[int, _Worker] = {}
        self._pending: dict[Gradient, GradientArrived] = {}
        self._before: int | None = 0 if from_the_start else None  # updates before the first record
        self._seen = 0  # updates since then
        self._applied: deque[tuple[float, int]] = deque()  # when, and how many samples
        self._first: float | None = None
        self.total = 0  # samples that were applied since the first record
        self.now = 0.0
        self.records = 0
        self.opened: DataOpened | None = None
        self.changed: PolicyChanged | None = None  # the latest change of policy
        self.came_to_its_end = False  # whether the latest that any worker did was to leave for want of work

    @property
    def updates(self) -> int | None:
        """So far; None: not known yet."""
        return None if self._before is None else self._before + self._seen

    def observe(self, record: Record) -> None:
        self.now = record.now
        self.records += 1
        if self._first is None:
            self._first = 0.0 if self._from_the_start else record.now
        self._note(record)
        for command in record.commands:
            if isinstance(command, SendParameters):
                self._send(command.worker)
            elif isinstance(command, ApplyUpdate):
                self._apply(command.gradients)
            elif isinstance(command, DiscardGradient):
                self._pending.pop(command.gradient, None)

    def _note(self, record: Record) -> None:
        match record.event:
            case GradientArrived():
                self._push(record.event, record)
                self.came_to_its_end = False
            case WorkerJoined(worker):
                self._workers[worker] = _Worker(record.now)
                self.came_to_its_end = False
            case WorkerLeft(worker, reason):
                self._leave(worker, reason)
                self.came_to_its_end = reason in AT_THE_END
            case WorkerSuspected(worker):
                self._worker(worker).apart = record.event.how_long
            case DataOpened():
                self.opened = record.event
            case PolicyChanged():
                self.changed = record.event
                for known in self._workers.values():
                    known.reason = record.reason
            case _:
                pass

    def _worker(self, worker: int) -> _Worker:
        """One that is first met in the middle of a trace was there when the trace that was read begins."""
        if worker not in self._workers:
            assert self._first is not None
            self._workers[worker] = _Worker(self._first)
        return self._workers[worker]

    def _push(self, event: GradientArrived, record: Record) -> None:
        gradient = event.gradient
        worker = self._worker(gradient.worker)
        if gradient.clock <= worker.clock:
            return  # delivered twice
        worker.clock = gradient.clock
        if worker.sent_at is not None and not self._from_the_start:  # an interrupted worker may have a later version
            before = event.version - worker.sent_at
            self._before = before if self._before is None else min(self._before, before)
        worker.pushed_at, worker.reason, worker.apart = record.now, record.reason, ""
        worker.arrived.append((record.now, event.samples))
        _drop_before(worker.arrived, record.now - self._window)
        self._pending[gradient] = event

    def _send(self, worker_id: int) -> None:
        known = worker_id in self._workers
        worker = self._worker(worker_id)
        if not known:
            worker.pushed_at = worker.entered
        worker.sent_at = self._seen
        self._stop_waiting(worker)

    def _stop_waiting(self, worker: _Worker) -> None:
        if worker.pushed_at is not None and worker.pushed_at < self.now:
            worker.waits.append((worker.pushed_at, self.now))
            worker.latest_wait = worker.reason or worker.latest_wait
            while worker.waits[0][1] < self.now - self._window:
                worker.waits.popleft()
        worker.pushed_at = None

    def _leave(self, worker_id: int, reason: str) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None and worker.left is None:
            self._stop_waiting(worker)
            worker.left, worker.apart = self.now, reason

    def _apply(self, gradients: tuple[Gradient, ...]) -> None:
        samples = 0
        for gradient in gradients:
            arrived = self._pending.pop(gradient, None)
            if arrived is not None:
                samples += arrived.samples
                lags = self._worker(gradient.worker).lags
                lags.append((self.now, self._seen - arrived.version))
                _drop_before(lags, self.now - self._window)
        self._seen += 1
        self.total += samples
        self._applied.append((self.now, samples))
        _drop_before(self._applied, self.now - self._window)

    def since(self, now: float) -> float:
        """When the time begins that the figures are over."""
        return max(self._first or 0.0, now - self._window)

    def applied_after(self, moment: float) -> int:
        """Samples that became part of updates later than that."""
        return sum(samples for when, samples in self._applied if when > moment)

    def rate(self, now: float) -> float:
        """Samples per second that became part of updates."""
        since = self.since(now)
        return self.applied_after(since) / (now - since) if now > since else 0.0

    def workers(self, now: float, *, ended: bool) -> tuple[WorkerStatus, ...]:
        """The members; of a run that has ended, also those that left."""
        shown = sorted((worker, known) for worker, known in self._workers.items() if ended or known.left is None)
        return tuple(self._status(worker, known, now) for worker, known in shown)

    def _status(self, worker_id: int, worker: _Worker, now: float) -> WorkerStatus:
        end = now if worker.left is None else worker.left
        since = max(self.since(now), worker.entered)
        stayed = max(end - since, 0.0)
        waited = sum(until - max(begin, since) for begin, until in worker.waits if until > since)
        state, reason = COMPUTES, ""
        if worker.pushed_at is not None:
            waited += max(end - max(worker.pushed_at, since), 0.0)
            state, reason = WAITS, worker.reason
        if worker.apart:
            state, reason = SILENT if worker.left is None else LEFT, worker.apart
        samples = sum(samples for when, samples in worker.arrived if when > since)
        lags = [lag for when, lag in worker.lags if when > since]
        known = lags and self._before is not None
        return WorkerStatus(
            worker_id,
            state,
            worker.clock,
            samples / stayed if stayed else 0.0,
            min(waited / stayed, 1.0) if stayed else 0.0,
            (self._before or 0) + sum(lags) / len(lags) if known else None,
            reason,
            reason if state == WAITS else worker.latest_wait,
        )


def _drop_before(entries: deque[tuple[float, int]], moment: float) -> None:
    while entries and entries[0][0] < moment:
        entries.popleft()
