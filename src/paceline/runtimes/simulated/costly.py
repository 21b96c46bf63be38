"""A simulation in which messages, bytes and updates take time, and wait for each other: what a large group would feel.

All shards do the same at the same time, so one of them stands for all. Four things serve one after the other whoever
comes: the wire into a shard, the shard's processor, the server that decides, and the wire out of a shard. A single
server decides and holds the parameters, so there the second and the third are one.

    gradient ready ▶ wire in ▶ shard takes it in ▶ server decides ▶ shard updates, copies ▶ wire out ▶ next iteration
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from paceline.core.coordinator import Coordinator
from paceline.core.messages import Answered, ApplyUpdate, Ask, Record, UpdateApplied
from paceline.core.questions import Costs
from paceline.lifecycle.messages import MakeUpdate
from paceline.recording.observer import Observer
from paceline.runtimes.simulated.simulator import Happening, SimulatedWorker, Simulator, WorkerLoop

LATEST = 32  # iterations whose times are kept, for questions


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that one push or pull keeps each of them busy."""

    decision: float = 0.0  # the server: words, decision, commands
    wire_in: float = 0.0  # a shard's part of a gradient
    take_in: float = 0.0  # the shard: to read it
    update: float = 0.0  # the shard: to add one gradient
    step: float = 0.0  # the shard: the optimizer's, once per update
    hand_out: float = 0.0  # the shard: to copy and send its part of the parameters
    wire_out: float = 0.0
    one_process: bool = False  # whether the server is the only shard


class Queue:
    """Serves one after the other, in the order in which they come."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.busy = 0.0  # seconds in all

    def serve(self, now: float, seconds: float) -> float:
        """When it is done."""
        self.busy += seconds
        self.free_at = max(now, self.free_at) + seconds
        return self.free_at


class Applied(Observer):
    """How many gradients the present update has: a run that only keeps time does not say."""

    gradients = 0

    def observe(self, record: Record) -> None:
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                self.gradients = len(command.gradients)


class Stage(Enum):
    SENT = "sent"
    RECEIVED = "received"
    TAKEN_IN = "taken in"


class CostlySimulator(Simulator):
    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        coordinator: Coordinator,
        observers: Sequence[Observer] = (),
        *,
        durations: Durations,
        **options: Any,
    ) -> None:
        self._applied = Applied()
        super().__init__(workers, coordinator, [self._applied, *observers], **options)
        self.durations = durations
        self.wire_in, self.wire_out, self.shard = Queue(), Queue(), Queue()
        self.server = self.shard if durations.one_process else Queue()

        self._times: dict[int, deque[float]] = {}  # by seat: what its latest iterations took, without any queue

    @property
    def costs(self) -> Costs:
        durations = self.durations
        push = durations.decision + durations.take_in
        return Costs(push, durations.update, durations.step, durations.hand_out, durations.wire_in)

    def ask(self, command: Ask) -> Answered:
        """A policy sees iterations with all the queues in them, and an answer is to come from those without."""
        question, members = command.question, self._lifecycle.members
        own = [tuple(self._times.get(members[worker].index, ())) for worker in question.workers]
        times = tuple(found or seen for found, seen in zip(own, question.times, strict=True))
        return super().ask(Ask(command.number, msgspec.structs.replace(question, times=times)))

    def _compute(self, worker: WorkerLoop) -> None:
        """Its parameters come when the shard has made all updates before them, and the wire is free."""
        durations = self.durations
        copied = self.shard.serve(self.now, durations.hand_out)
        begins = self.wire_out.serve(copied, durations.wire_out)
        worker.computed_at = round(begins + worker.draw(worker.iteration, begins), self._digits)
        worker.iteration += 1
        self._times.setdefault(worker.seat, deque(maxlen=LATEST)).append(worker.computed_at - begins)
        self._later(worker.computed_at, Stage.SENT, worker)

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        """The policy goes on at once, as with real shards: what comes after it waits in the shard's queue."""
        durations = self.durations
        self.shard.serve(self.now, durations.update * self._applied.gradients + durations.step)
        return super().make_update(command)

    def _happen(self, happening: Any, worker: WorkerLoop, plan: int) -> None:
        if not isinstance(happening, Stage):
            super()._happen(happening, worker, plan)
        elif plan == worker.plan:
            self._pass_on(happening, worker)

    def _pass_on(self, stage: Stage, worker: WorkerLoop) -> None:
        durations, now = self.durations, self.now
        if stage is Stage.SENT:
            self._later(self.wire_in.serve(now, durations.wire_in), Stage.RECEIVED, worker)
        elif stage is Stage.RECEIVED:
            self._later(self.shard.serve(now, durations.take_in), Stage.TAKEN_IN, worker)
        else:
            self._later(self.server.serve(now, durations.decision), Happening.PUSH, worker)

    def _later(self, time: float, what: Any, worker: WorkerLoop) -> None:
        self._schedule(round(time, self._digits), what, worker)
