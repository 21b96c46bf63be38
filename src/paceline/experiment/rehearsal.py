"""Trains a recorded run of a user's own loop again, in one process: every process's loop does again what it did.

The trace says when each process pushed, which samples it was given, what was dropped, skipped and lost, who came back
and where the run was resumed. A loop that does something else (it looks at the clock, or at files) departs from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from paceline.core.messages import (
    NO_WORK_LEFT,
    NOT_STALE,
    BatchSkipped,
    DataOpened,
    Event,
    FigureFound,
    GradientArrived,
    Unit,
    UnitsReturned,
    WorkerJoined,
    WorkerLeft,
    WorkerReturned,
)
from paceline.experiment.configuration import Configuration
from paceline.experiment.following import Follower
from paceline.experiment.retraining import refuse_another_rule
from paceline.lifecycle.messages import Place
from paceline.lifecycle.watch import INTERRUPTED, SILENT
from paceline.recording.trace import Trace
from paceline.training.choices import UpdateOptions
from paceline.training.layout import averaged_into
from paceline.training.parameters import ParameterStore
from paceline.training.rehearsed_loop import DepartedError, RehearsedLoop
from paceline.training.stops import BEGIN, PUSH, SKIP
from paceline.training.worker import Worker


class Script(NamedTuple):
    """What the trace says in advance."""

    process_of: dict[int, int]  # worker id -> its process
    units: dict[int, deque[Unit]]  # process -> what it was given, in order, as far as it computed it
    first_version: dict[int, int]  # worker id -> of its first gradient
    first: list[int]  # the processes that began together
    resumed: bool


def read_ahead(trace: Trace) -> Script:
    script = Script({}, {}, {}, [], any(_is_resumed(record.event) for record in trace))
    clocks: dict[int, int] = {}
    for record in trace:  # who is who comes first: a note about a worker may come before it has joined
        event = record.event
        if isinstance(event, WorkerJoined):
            script.process_of[event.worker] = event.worker if event.process is None else event.process
            if record.now == 0.0:
                script.first.append(event.worker)
    for record in trace:
        event = record.event
        given: tuple[Unit, ...] = ()
        if isinstance(event, GradientArrived):
            worker, clock = event.gradient.worker, event.gradient.clock
            if clock <= clocks.get(worker, 0):
                continue  # it was delivered twice
            clocks[worker] = clock
            script.first_version.setdefault(worker, event.version)
            given = event.units
        elif isinstance(event, BatchSkipped) or (
            isinstance(event, UnitsReturned) and event.reason in (INTERRUPTED, SILENT)
        ):
            worker, given = event.worker, event.units
        else:
            continue
        script.units.setdefault(script.process_of[worker], deque()).extend(given)
    return script


def _is_resumed(event: Event) -> bool:
    return isinstance(event, WorkerReturned) or (isinstance(event, WorkerJoined) and event.renewed)


class LoopFollower(Follower):
    def __init__(
        self,
        trace: Trace,
        loop: Callable[[], Callable[[Worker], None]],
        told: Configuration,
        wire: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`loop`: gives the user's function, as a new process would find it."""
        super().__init__(wire)
        self._trace = trace
        self._loop = loop
        self._told = told
        self._script = read_ahead(trace)
        self._loops: dict[int, RehearsedLoop] = {}
        self._let_in: set[int] = set()  # workers that were given parameters
        self._here = dict.fromkeys(self._script.first)  # processes that train, or have run out of work

    def close(self) -> None:
        for loop in self._loops.values():
            loop.stop()

    # -- what happens --

    def note(self, event: Event, now: float) -> None:
        self._note_who_is_here(event)
        match event:
            case WorkerJoined(worker, None):
                self._begin(worker, early=now == 0.0)
            case WorkerJoined(worker, _, True):
                self._of(worker).run_to(PUSH)  # others had been given its samples
            case WorkerJoined(worker, _, _, True, forgot) | WorkerReturned(worker, forgot):
                self._begin_again(worker, forgot)
            case DataOpened():
                self.store.open(event)
                for loop in self._loops.values():
                    loop.rates = self.store.rates
            case FigureFound(_, value):
                self.store.feed(value)
            case BatchSkipped(worker):
                self._of(worker).run_to(SKIP)
            case UnitsReturned(worker, _, reason) if reason == INTERRUPTED:
                self._of(worker).run_to(PUSH)
                self._give(worker)
            case _:
                pass

    def _note_who_is_here(self, event: Event) -> None:
        match event:
            case WorkerJoined(worker):
                self._here[self._script.process_of[worker]] = None
            case WorkerLeft(worker, reason) if reason != NO_WORK_LEFT:
                self._here.pop(self._script.process_of[worker], None)
            case _:
                pass

    def gradient(self, event: GradientArrived) -> tuple[Tensor, Tensor]:
        loop = self._of(event.gradient.worker)
        loop.run_to(PUSH)
        if loop.pushed != (event.samples, len(event.units)):
            raise DepartedError(
                f"{event.gradient} is made of {loop.pushed.samples} samples, and the recorded one of {event.samples}"
            )
        segment = loop.segment
        assert segment is not None
        return segment.gradient.clone(), segment.parameters.clone()

    def absent(self, event: GradientArrived) -> tuple[int, ...]:
        return self._of(event.gradient.worker).absent

    def send(self, worker: int) -> None:
        """One that had pushed before it was let in still holds what it had."""
        first = worker not in self._let_in
        self._let_in.add(worker)
        came_back = self._script.process_of[worker] != worker
        if first and came_back and self._script.first_version.get(worker, self.store.version) < self.store.version:
            return
        self._give(worker)

    # -- loops --

    def _of(self, worker: int) -> RehearsedLoop:
        return self._loops[self._script.process_of[worker]]

    def _give(self, worker: int) -> None:
        loop = self._of(worker)
        assert loop.segment is not None
        loop.segment.parameters.copy_(self.store.flat)
        here = sorted(self._here)
        loop.place = Place(here.index(loop.index), len(here)) if loop.index in self._here else loop.place
        loop.rates, loop.state_of = self.store.rates, self.store.optimizer_state

    def _begin(self, process: int, *, early: bool) -> None:
        """`early`: with the group; otherwise it gets the group's buffers."""
        loop = self._start(process, None)
        assert loop.segment is not None and loop.spec is not None
        if not hasattr(self, "store"):
            recorded, told = self._trace.header.updates, self._told
            may_be_stale = recorded is not None and recorded.why != NOT_STALE
            options = UpdateOptions(told.lr_scaling, told.stale, may_be_stale)
            self.store = ParameterStore(loop.segment.layout, loop.segment.parameters, loop.spec, options)
            refuse_another_rule(self._trace, self.store.rule)
        elif not early:
            trained = dict.fromkeys(self._script.process_of[worker] for worker in self._round.workers)
            others = [segment.others for other in trained if (segment := self._loops[other].segment) is not None]
            averaged_into(loop.segment, others)

    def _begin_again(self, worker: int, forgot: bool) -> None:
        """The run was resumed: a new process, which knows what the old one knew at its latest push, or nothing."""
        before = self._of(worker)
        before.stop()
        self._script.units[before.index].extendleft(reversed(before.unpushed))
        loop = self._start(before.index, None if forgot else before.kept)
        assert loop.segment is not None
        for name, tensor in before.others.items():
            loop.segment.others[name].copy_(tensor)
        loop.kept, loop.others = before.kept, before.others

    def _start(self, process: int, kept: bytes | None) -> RehearsedLoop:
        loop = self._loops[process] = RehearsedLoop(
            process,
            self._loop(),
            self._script.units.setdefault(process, deque()),
            seed=self._told.seed,
            epochs=self._told.epochs,
            not_finite=self._told.not_finite,
            kept=kept,
            keeps=self._script.resumed,
        )
        loop.run_to(BEGIN)
        return loop
