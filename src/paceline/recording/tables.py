"""The figures of a run as tables: one row per push, update and worker, from its trace, and what metrics.jsonl has.

Rows are given away as soon as all of them is known, so a run of any length fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from paceline.core.messages import (
    ApplyUpdate,
    DiscardGradient,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    Record,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.recording.observer import Observer
from paceline.recording.progress_log import Evaluation, Failure, Line, Logged, Measurement

APPLIED, DISCARDED, PENDING = "applied", "discarded", "pending"  # fates

Columns: TypeAlias = dict[str, type]  # every one may be empty
Give: TypeAlias = Callable[[str, tuple[Any, ...]], None]  # takes the name of a table and a row of it


class _Push:
    """One row that is not whole yet: whatever is missing comes with later records."""

    __slots__ = ("at", "computing", "event", "fate", "interrupted", "reason", "update", "waited", "why")

    def __init__(self, event: GradientArrived, at: float, computing: float | None, interrupted: int) -> None:
        self.event, self.at, self.computing, self.interrupted = event, at, computing, interrupted
        self.waited: float | None = None
        self.reason = self.why = self.fate = ""
        self.update: int | None = None  # the version that it became part of


class _Worker:
    def __init__(self, joined: float, process: int | None) -> None:
        self.joined, self.process = joined, process
        self.entered: float | None = None
        self.left: float | None = None
        self.why = ""
        self.sent: float | None = None  # when it was let go; None: it does not compute
        self.waits: _Push | None = None  # its latest push, while it waits
        self.clock = self.samples = self.applied = self.discarded = self.staleness = 0
        self.interrupted = self.interruptions = 0  # since it was let go, and in all
        self.computing = self.waited = 0.0


PUSHES: Columns = {
    "worker": int,
    "clock": int,
    "seconds": float,
    "computing_seconds": float,
    "waiting_seconds": float,
    "waiting_reason": str,
    "version": int,
    "staleness": int,
    "samples": int,
    "loss": float,
    "fate": str,
    "update": int,
    "fate_reason": str,
    "interruptions": int,
}
UPDATES: Columns = {
    "version": int,
    "seconds": float,
    "policy": str,
    "gradients": int,
    "workers": int,
    "samples": int,
    "mean_staleness": float,
    "greatest_staleness": int,
    "loss": float,
}
WORKERS: Columns = {
    "worker": int,
    "process": int,
    "joined": float,
    "entered": float,
    "left": float,
    "left_reason": str,
    "pushes": int,
    "samples": int,
    "applied": int,
    "discarded": int,
    "interruptions": int,
    "computing_seconds": float,
    "waiting_seconds": float,
    "mean_staleness": float,
}
OF_A_TRACE = {"pushes": PUSHES, "updates": UPDATES, "workers": WORKERS}


class TraceTables(Observer):
    """Give it every record, and then `close`. Pushes come in the order in which they arrived."""

    def __init__(self, policy: str, give: Give) -> None:
        self._policy, self._give = policy, give
        self._workers: dict[int, _Worker] = {}
        self._pushes: deque[_Push] = deque()  # in their order, from the first that is not whole
        self._pending: dict[Gradient, _Push] = {}
        self._updates = 0

    def observe(self, record: Record) -> None:
        now = record.now
        self._note(record, now)
        for command in record.commands:
            match command:
                case SendParameters(worker):
                    self._send(self._worker(worker, now), now)
                case InterruptWorker(worker):
                    self._interrupt(self._worker(worker, now))
                case ApplyUpdate(gradients):
                    self._update(gradients, now)
                case DiscardGradient(gradient, reason):
                    self._discard(gradient, reason)
        self._hand_over()

    def _note(self, record: Record, now: float) -> None:
        match record.event:
            case GradientArrived():
                self._push(record.event, record)
            case WorkerJoined(worker, process):
                self._workers[worker] = _Worker(now, process)
            case WorkerLeft(worker, reason) if worker in self._workers:
                self._leave(self._workers[worker], now, reason)
            case WorkerReturned(worker) if worker in self._workers and self._workers[worker].sent is not None:
                self._workers[worker].sent = now  # it computes that again
            case PolicyChanged(policy):
                self._policy = policy
            case _:
                pass

    def _worker(self, worker: int, now: float) -> _Worker:
        return self._workers.setdefault(worker, _Worker(now, None))

    def _push(self, event: GradientArrived, record: Record) -> None:
        worker = self._worker(event.gradient.worker, record.now)
        if event.gradient.clock <= worker.clock:
            return  # delivered twice
        computing = None if worker.sent is None else record.now - worker.sent
        push = _Push(event, record.now, computing, worker.interrupted)
        push.reason = record.reason
        worker.clock = event.gradient.clock
        worker.samples += event.samples
        worker.computing += computing or 0.0
        worker.sent = None
        self._pending[event.gradient] = worker.waits = push
        self._pushes.append(push)

    def _send(self, worker: _Worker, now: float) -> None:
        if worker.entered is None:
            worker.entered = now
        self._stop_waiting(worker, now)
        worker.sent = now
        worker.interrupted = 0

    def _stop_waiting(self, worker: _Worker, now: float) -> None:
        push, worker.waits = worker.waits, None
        if push is not None:
            push.waited = now - push.at
            worker.waited += push.waited
            if not push.waited:
                push.reason = ""  # whatever was said then was about others

    def _leave(self, worker: _Worker, now: float, reason: str) -> None:
        self._stop_waiting(worker, now)
        worker.left, worker.why, worker.sent = now, reason, None

    def _interrupt(self, worker: _Worker) -> None:
        worker.interrupted += 1
        worker.interruptions += 1

    def _update(self, gradients: tuple[Gradient, ...], now: float) -> None:
        found = [self._pending.pop(gradient) for gradient in gradients if gradient in self._pending]
        staleness = [self._updates - push.event.version for push in found]
        self._updates += 1
        for push, stale in zip(found, staleness, strict=True):
            push.fate, push.update = APPLIED, self._updates
            worker = self._workers[push.event.gradient.worker]
            worker.applied += 1
            worker.staleness += stale
        losses = [(push.event.samples, push.event.loss) for push in found if push.event.loss is not None]
        weight = sum(samples for samples, _ in losses)
        row = (
            self._updates,
            now,
            self._policy,
            len(gradients),
            len({gradient.worker for gradient in gradients}),
            sum(push.event.samples for push in found),
            sum(staleness) / len(staleness) if staleness else None,
            max(staleness, default=None),
            sum(samples * loss for samples, loss in losses) / weight if weight else None,
        )
        self._give("updates", row)

    def _discard(self, gradient: Gradient, reason: str) -> None:
        push = self._pending.pop(gradient, None)
        if push is not None:
            push.fate, push.why = DISCARDED, reason
            self._workers[gradient.worker].discarded += 1

    def _hand_over(self) -> None:
        """The pushes of which all is known, up to the first one of which it is not."""
        while self._pushes and self._pushes[0].fate and self._pushes[0].waited is not None:
            self._give_push(self._pushes.popleft())

    def _give_push(self, push: _Push) -> None:
        event = push.event
        stale = None if push.update is None else push.update - 1 - event.version
        row = (
            event.gradient.worker,
            event.gradient.clock,
            push.at,
            push.computing,
            push.waited,
            push.reason or None,
            event.version,
            stale,
            event.samples,
            event.loss,
            push.fate or PENDING,
            push.update,
            push.why or None,
            push.interrupted,
        )
        self._give("pushes", row)

    def close(self, end: float) -> None:
        """The run ended then, or is known up to then: who waits has waited until then."""
        for worker in self._workers.values():
            self._stop_waiting(worker, end)
        while self._pushes:
            self._give_push(self._pushes.popleft())
        for name, worker in sorted(self._workers.items()):
            row = (
                name,
                worker.process,
                worker.joined,
                worker.entered,
                worker.left,
                worker.why or None,
                worker.clock,
                worker.samples,
                worker.applied,
                worker.discarded,
                worker.interruptions,
                worker.computing,
                worker.waited,
                worker.staleness / worker.applied if worker.applied else None,
            )
            self._give("workers", row)


MEASUREMENTS: Columns = {
    "seconds": float,
    "samples": int,
    "epoch": float,
    "updates": int,
    "workers": int,
    "learning_rate": float,
    "loss": float,
    "policy": str,
}
FAILURES: Columns = {
    "worker": int,
    "seconds": float,
    "reason": str,
    "exit_code": int,
    "signal": str,
    "last_words": str,
}


def metrics_tables(lines: Iterable[Line], policy: str) -> dict[str, tuple[Columns, list[tuple[Any, ...]]]]:
    """Of what metrics.jsonl has; figures that people named get a column each. `policy`: that the run began with."""
    measured: list[tuple[Any, ...]] = []
    failures: list[tuple[Any, ...]] = []
    evaluations: list[Evaluation] = []
    logged: list[Logged] = []
    for line in lines:
        match line:
            case Measurement():
                row = msgspec.structs.asdict(line)
                row["policy"] = line.policy or policy or None
                measured.append(tuple(row[name] for name in MEASUREMENTS))
            case Evaluation():
                evaluations.append(line)
            case Logged():
                logged.append(line)
            case Failure():
                failures.append(tuple(value if value != "" else None for value in msgspec.structs.astuple(line)))
            case _:
                pass
    evaluated = [((line.seconds, line.samples, line.version), line.figures) for line in evaluations]
    own = [((line.seconds, line.worker), line.figures) for line in logged]
    return {
        "measurements": (MEASUREMENTS, measured),
        "evaluations": _with_figures({"seconds": float, "samples": int, "version": int}, evaluated),
        "logged": _with_figures({"seconds": float, "worker": int}, own),
        "failures": (FAILURES, failures),
    }


def _with_figures(
    columns: Columns, rows: Sequence[tuple[tuple[Any, ...], Mapping[str, float]]]
) -> tuple[Columns, list[tuple[Any, ...]]]:
    """A column for every figure, in the order in which they first came."""
    names = dict.fromkeys(name for _, figures in rows for name in figures)
    own = {name: f"figure {name}" if name in columns else name for name in names}
    found = [(*fixed, *(figures.get(name) for name in names)) for fixed, figures in rows]
    return columns | dict.fromkeys(own.values(), float), found
