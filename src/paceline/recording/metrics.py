"""The figures of a run, computed from its trace and nothing else, record by record: a run of any length fits."""

from __future__ import annotations

import msgspec
from typing_extensions import assert_never

from paceline.core.messages import (
    AT_THE_END,
    ApplyUpdate,
    Ask,
    Command,
    DiscardGradient,
    Follow,
    Gradient,
    GradientArrived,
    InterruptWorker,
    PolicyChanged,
    SendParameters,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.progress import Clocks
from paceline.recording.observer import Observer
from paceline.recording.trace import Record


class WorkerSummary(msgspec.Struct, frozen=True):
    worker: int
    pushes: int
    waiting_seconds: float
    member_seconds: float


class WorkerNow(msgspec.Struct, frozen=True):
    """A member in the middle of a run."""

    worker: int
    pushes: int
    samples_per_second: float
    waiting_share: float
    waiting: bool
    reason: str  # why it waits, if it does
    staleness: float | None = None  # mean of its gradients, where somebody computed it
    apart: str = ""  # in words, if it neither computes nor waits: it left, or is silent


class WorkerTotals(msgspec.Struct, frozen=True):
    """Of one worker, since it joined."""

    samples: int
    waited: float
    stayed: float


class Totals(msgspec.Struct, frozen=True):
    """Up to a moment in the middle of a run. The difference of two is what happened in between."""

    seconds: float
    applied: int
    staleness: int  # of all gradients that were applied
    workers: dict[int, WorkerTotals]  # all that ever were members


class LongestWait(msgspec.Struct, frozen=True):
    worker: int
    began: float
    seconds: float
    reason: str


class Departure(msgspec.Struct, frozen=True):
    """A worker that left before its work was done."""

    worker: int
    seconds: float
    reason: str


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another policy took over."""

    policy: str
    seconds: float
    why: str = ""  # in the words of a policy that chose it


class Summary(msgspec.Struct, frozen=True):
    """What one run came to. Waiting runs from a push to the release after it, or to the end of the run."""

    policy: str  # that it began with
    seconds: float
    updates: int
    pushes: int
    applied: int
    discarded: int
    pending: int  # arrived, but without a fate when the run ended
    interrupted: int
    iterations_per_second: float
    max_lead: int
    max_staleness: int
    mean_staleness: float
    waiting_seconds: float
    waiting_share: float  # of the time that the workers were members
    supersteps: int  # how often all members went on together
    longest_wait: LongestWait | None
    workers: list[WorkerSummary]
    departures: list[Departure] = []
    changes: list[Change] = []  # of policy, in order

    @property
    def used_per_second(self) -> float:
        """Gradients that became part of updates."""
        return self.applied / self.seconds if self.seconds else 0.0


class _Worker:
    __slots__ = ("entered", "left", "pushed_at", "pushes", "reason", "samples", "standing", "waited")

    def __init__(self, entered: float, standing: int) -> None:
        self.entered = entered
        self.left: float | None = None
        self.standing = standing
        self.pushes = 0
        self.samples = 0
        self.waited = 0.0
        self.pushed_at: float | None = None  # set while it waits
        self.reason = ""

    def waits(self, now: float) -> float:
        """How long it has waited since its latest push."""
        return 0.0 if self.pushed_at is None else now - self.pushed_at


class RunMetrics(Observer):
    """Give it every record, then ask for the summary."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._clocks = Clocks()
        self._versions: dict[Gradient, int] = {}  # of the gradients without a fate
        self._members = 0
        self._updates = self._pushes = self._applied = self._discarded = self._interrupted = self._supersteps = 0
        self._max_lead = self._max_staleness = self._staleness = 0
        self._longest: LongestWait | None = None
        self._departures: list[Departure] = []
        self._changes: list[Change] = []

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, GradientArrived):
            self._note_gradient(event, record)
        elif isinstance(event, WorkerLeft):
            self._note_leaving(event, record.now)
        released = self._note_commands(record.commands, record.now)
        if isinstance(event, PolicyChanged):
            self._changes.append(Change(event.policy, record.now, event.why))
            self._note_reason(record.reason)
        elif released == self._members > 0 and not isinstance(event, WorkerJoined):
            self._supersteps += 1

    def _note_reason(self, reason: str) -> None:
        """Another policy took over: a worker that still waits does so for its reason."""
        for worker in self._workers.values():
            worker.reason = reason

    def _note_commands(self, commands: tuple[Command, ...], now: float) -> int:
        """How many workers they let go on."""
        released = 0
        for command in commands:
            if isinstance(command, SendParameters):
                released += 1
                worker = self._workers.get(command.worker)
                if worker is None:
                    self._workers[command.worker] = _Worker(now, self._clocks.enter(command.worker))
                    self._members += 1
                elif worker.pushed_at == now:
                    worker.pushed_at = None  # it went on at once
                else:
                    self._stop_waiting(command.worker, worker, now)
            elif isinstance(command, ApplyUpdate):
                self._note_update(command.gradients)
            elif isinstance(command, InterruptWorker):
                self._interrupted += 1
            elif isinstance(command, DiscardGradient):
                del self._versions[command.gradient]
                self._discarded += 1
            elif not isinstance(command, Ask | Follow):
                assert_never(command)
        return released

    def _note_gradient(self, event: GradientArrived, record: Record) -> None:
        gradient = event.gradient
        worker = self._workers[gradient.worker]
        if gradient.clock <= worker.pushes:
            return  # delivered twice
        self._pushes += 1
        worker.pushes += 1
        worker.samples += event.samples
        self._clocks.advance(gradient.worker, worker.standing)
        worker.standing += 1
        lead = worker.standing - self._clocks.least
        if lead > self._max_lead:
            self._max_lead = lead
        worker.pushed_at = record.now
        worker.reason = record.reason
        self._versions[gradient] = event.version

    def _note_leaving(self, event: WorkerLeft, now: float) -> None:
        worker_id = event.worker
        worker = self._workers.get(worker_id)
        if event.reason not in AT_THE_END and all(known.worker != worker_id for known in self._departures):
            self._departures.append(Departure(worker_id, now, event.reason))
        if worker is not None and worker.left is None:  # it may never have been let in, or leave twice
            self._stop_waiting(worker_id, worker, now)
            worker.left = now
            self._clocks.exit(worker_id, worker.standing)
            self._members -= 1

    def _note_update(self, gradients: tuple[Gradient, ...]) -> None:
        for gradient in gradients:
            staleness = self._updates - self._versions.pop(gradient)
            self._staleness += staleness
            if staleness > self._max_staleness:
                self._max_staleness = staleness
        self._applied += len(gradients)
        self._updates += 1

    def _stop_waiting(self, worker_id: int, worker: _Worker, now: float) -> None:
        if worker.pushed_at is None:
            return
        waited = now - worker.pushed_at
        worker.waited += waited
        if waited > 0 and (self._longest is None or waited > self._longest.seconds):
            self._longest = LongestWait(worker_id, worker.pushed_at, waited, worker.reason)
        worker.pushed_at = None

    def members(self, now: float) -> list[WorkerNow]:
        """All members, in the middle of a run."""
        members = []
        for worker_id, worker in sorted(self._workers.items()):
            if worker.left is None:
                waits, waited = worker.pushed_at is not None, worker.waited + worker.waits(now)
                stayed = now - worker.entered
                share, rate = (waited / stayed, worker.samples / stayed) if stayed > 0 else (0.0, 0.0)
                reason = worker.reason if waits else ""
                members.append(WorkerNow(worker_id, worker.pushes, rate, share, waits, reason))
        return members

    def totals(self, now: float) -> Totals:
        workers = {}
        for worker_id, worker in self._workers.items():
            stayed = (now if worker.left is None else worker.left) - worker.entered
            workers[worker_id] = WorkerTotals(worker.samples, worker.waited + worker.waits(now), stayed)
        return Totals(now, self._applied, self._staleness, workers)

    def summary(self, policy: str, end: float) -> Summary:
        """The figures, as if the run ended then: every wait lasts until now."""
        summaries, longest = [], self._longest
        for worker_id, worker in sorted(self._workers.items()):
            waits = worker.waits(end)
            if waits > 0 and (longest is None or waits > longest.seconds):
                longest = LongestWait(worker_id, worker.pushed_at or 0.0, waits, worker.reason)
            stayed = (end if worker.left is None else worker.left) - worker.entered
            summaries.append(WorkerSummary(worker_id, worker.pushes, worker.waited + waits, stayed))
        waiting = sum(worker_summary.waiting_seconds for worker_summary in summaries)
        together = sum(worker_summary.member_seconds for worker_summary in summaries)
        return Summary(
            policy=policy,
            seconds=end,
            updates=self._updates,
            pushes=self._pushes,
            applied=self._applied,
            discarded=self._discarded,
            pending=len(self._versions),
            interrupted=self._interrupted,
            iterations_per_second=self._pushes / end if end else 0.0,
            max_lead=self._max_lead,
            max_staleness=self._max_staleness,
            mean_staleness=self._staleness / self._applied if self._applied else 0.0,
            waiting_seconds=waiting,
            waiting_share=waiting / together if together else 0.0,
            supersteps=self._supersteps,
            longest_wait=longest,
            workers=summaries,
            departures=[*self._departures],
            changes=[*self._changes],
        )
