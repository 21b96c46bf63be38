"""A run as a trace for ui.perfetto.dev: who computed, who waited and why, and which update came of it.

Nothing is kept but what is open, so a run of any length fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    DiscardGradient,
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
from paceline.lifecycle.roster import SENT_AWAY
from paceline.recording.observer import Observer
from paceline.recording.perfetto_packets import Packets, Value
from paceline.recording.progress_log import Evaluation, Failure, Logged, Measurement

COMPUTES, WAITS, WAITS_TO_ENTER = "computes", "waits", "waits to enter"
RATE_EVERY = 1.0  # seconds that samples per second are over, at least

SERVER, FIRST_WORKER, FIRST_COUNTER = 2, 1 << 20, 1 << 40  # ids of tracks
COUNTERS_RANK, OWN_RANK = 1 << 29, 1 << 30  # below the workers; what loops logged comes last


class PerfettoTrace(Observer):
    """Give it every record, and then what metrics.jsonl has. `close` ends what is open."""

    def __init__(self, title: str, write: Callable[[bytes], object], checkpoints: Collection[int] = ()) -> None:
        """`checkpoints`: after which updates there is one."""
        self._packets = Packets(title, write)
        self._packets.track(SERVER, "server", 0)
        self._checkpoints = checkpoints
        self._counters: dict[tuple[int | None, str], int] = {}
        self._workers: dict[int, str] = {}  # what each is at; "": nothing
        self._gone: set[int] = set()
        self._clocks: dict[int, int] = {}
        self._pending: dict[Gradient, GradientArrived] = {}
        self._updates = 0
        self._waiting = self._shown_waiting = 0  # workers
        self._left_waiting: dict[int, str] = {}  # who waits from just now on, and why: the same moment may release them
        self._since = -math.inf
        self._rate_since, self._rate_samples = 0.0, 0

    # -- the trace --

    def observe(self, record: Record) -> None:
        if record.now > self._since:
            self._begin_waits()
        released = {command.worker for command in record.commands if isinstance(command, SendParameters)}
        self._note(record, released)
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    self._begin(worker, COMPUTES, record.now)
                case InterruptWorker(worker):
                    self._end(worker, record.now, {"interrupted": record.reason})
                    self._begin(worker, COMPUTES, record.now)
                case ApplyUpdate(gradients):
                    self._update(gradients, record.now)
                case DiscardGradient(gradient, reason):
                    self._pending.pop(gradient, None)
                    arguments: dict[str, Value] = {"gradient": str(gradient), "reason": reason}
                    self._packets.instant(SERVER, record.now, "discards", arguments, [_flow(gradient)])
        self._show_waiting(record.now)

    def _begin_waits(self) -> None:
        waits, self._left_waiting = self._left_waiting, {}
        for worker, reason in waits.items():
            self._begin(worker, WAITS, self._since, {"reason": reason})
        self._show_waiting(self._since)

    def _show_waiting(self, now: float) -> None:
        if self._waiting != self._shown_waiting:
            self._shown_waiting = self._waiting
            self._count("waiting workers", now, self._waiting)

    def _note(self, record: Record, released: Collection[int]) -> None:
        now = record.now
        match record.event:
            case GradientArrived(gradient):
                if gradient.clock > self._clocks.get(gradient.worker, 0):
                    self._push(record.event, record, released)
            case WorkerJoined(worker, process):
                self._join(worker, process, now)
                if worker not in released:
                    self._begin(worker, WAITS_TO_ENTER, now, {"reason": record.reason})
            case WorkerLeft(worker, reason) if worker in self._workers and worker not in self._gone:
                self._gone.add(worker)
                self._end(worker, now, {})
                name = "leaves" if reason in AT_THE_END else "is sent away" if reason == SENT_AWAY else "is lost"
                self._packets.instant(FIRST_WORKER + worker, now, name, {"reason": reason})
            case WorkerReturned(worker) if self._workers.get(worker) == COMPUTES:
                self._end(worker, now, {"interrupted": "the run was resumed"})
                self._begin(worker, COMPUTES, now)
            case _:
                self._remark(record)

    def _remark(self, record: Record) -> None:
        """What changes nobody's work at once."""
        match record.event:
            case WorkerSuspected(worker):
                reason = {"reason": str(record.event)}
                self._packets.instant(FIRST_WORKER + worker, record.now, "is silent", reason)
            case PolicyChanged(policy):
                self._packets.instant(SERVER, record.now, f"policy: {policy}", {})
                waiting = [worker for worker, at in self._workers.items() if at == WAITS] + list(self._left_waiting)
                for worker in waiting:
                    self._end(worker, record.now, {})
                    self._left_waiting[worker], self._since = record.reason, record.now
            case WentBack():
                reason = {"reason": str(record.event)}
                self._packets.instant(SERVER, record.now, "goes back to a checkpoint", reason)
            case _:
                pass

    def _join(self, worker: int, process: int | None, now: float) -> None:
        name = f"worker {worker}" if process is None else f"worker {worker} (was {process})"
        self._packets.track(FIRST_WORKER + worker, name, worker + 1)
        self._workers[worker] = ""
        self._packets.instant(FIRST_WORKER + worker, now, "joins", {})

    def _push(self, event: GradientArrived, record: Record, released: Collection[int]) -> None:
        worker, clock = event.gradient.worker, event.gradient.clock
        self._clocks[worker] = clock
        self._pending[event.gradient] = event
        arguments: dict[str, Value] = {"clock": clock, "version": event.version, "samples": event.samples}
        self._end(worker, record.now, arguments if event.loss is None else {**arguments, "loss": event.loss})
        if worker not in released:
            self._left_waiting[worker], self._since = record.reason, record.now

    def _begin(self, worker: int, name: str, now: float, arguments: Mapping[str, Value] | None = None) -> None:
        if worker not in self._workers:  # the trace does not say that it joined
            self._join(worker, None, now)
        self._end(worker, now, {})
        flow = _flow(Gradient(worker, self._clocks.get(worker, 0) + 1)) if name == COMPUTES else None
        self._packets.begin(FIRST_WORKER + worker, now, name, arguments or {}, flow)
        self._workers[worker] = name
        self._waiting += name == WAITS

    def _end(self, worker: int, now: float, arguments: Mapping[str, Value]) -> None:
        self._left_waiting.pop(worker, None)
        if at := self._workers.get(worker):
            self._packets.end(FIRST_WORKER + worker, now, arguments)
            self._workers[worker] = ""
            self._waiting -= at == WAITS

    def _update(self, gradients: tuple[Gradient, ...], now: float) -> None:
        arrived = [self._pending.pop(gradient) for gradient in gradients if gradient in self._pending]
        staleness = [self._updates - event.version for event in arrived]
        samples = sum(event.samples for event in arrived)
        self._updates += 1
        arguments: dict[str, Value] = {"version": self._updates, "gradients": len(gradients), "samples": samples}
        if arrived:
            mean = sum(staleness) / len(staleness)
            arguments |= {"mean staleness": mean, "greatest staleness": max(staleness)}
            self._count("staleness", now, mean)
        self._packets.instant(SERVER, now, "update", arguments, map(_flow, gradients))
        if self._updates in self._checkpoints:
            self._packets.instant(SERVER, now, "checkpoint", {"version": self._updates})
        self._rate_samples += samples
        if now >= self._rate_since + RATE_EVERY:
            # A counter keeps its value until the next one: what was reached in a stretch stands at its beginning.
            self._count("samples per second", self._rate_since, self._rate_samples / (now - self._rate_since))
            self._rate_since, self._rate_samples = now, 0

    # -- metrics.jsonl --

    def measured(self, measurement: Measurement) -> None:
        now = measurement.seconds
        self._count("members", now, measurement.workers)
        self._count("learning rate", now, measurement.learning_rate)
        if measurement.loss is not None:
            self._count("training loss", now, measurement.loss)

    def evaluated(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.figures.items():
            self._count(f"evaluation: {name}", evaluation.seconds, value)

    def logged(self, logged: Logged) -> None:
        for name, value in logged.figures.items():
            self._count(name, logged.seconds, value, logged.worker)

    def worker_failed(self, failure: Failure) -> None:
        if failure.worker not in self._workers:
            self._join(failure.worker, None, failure.seconds)
        self._packets.instant(FIRST_WORKER + failure.worker, failure.seconds, "dies", {"reason": str(failure)})

    # -- the end --

    def close(self, end: float) -> None:
        if end > self._since:
            self._begin_waits()
        for worker in self._workers:
            self._end(worker, end, {})

    def _count(self, name: str, now: float, value: float, worker: int | None = None) -> None:
        if not math.isfinite(value):  # the page could not draw the others
            return
        track = self._counters.get((worker, name))
        if track is None:
            track = self._counters[worker, name] = FIRST_COUNTER + len(self._counters)
            shown = name if worker is None else f"{name} of worker {worker}"
            rank = COUNTERS_RANK if worker is None else OWN_RANK
            self._packets.counter_track(track, shown, rank + len(self._counters))
        self._packets.count(track, now, value)


def _flow(gradient: Gradient) -> int:
    """The arrow from where a gradient was computed to its fate."""
    return (gradient.worker + 1) << 40 | gradient.clock
