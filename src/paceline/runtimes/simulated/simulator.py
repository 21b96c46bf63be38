"""A discrete-event simulator: the same driver, lifecycle, coordinator and policies, in virtual time.

Events wait in a heap ordered by (time, sequence), so that equal times are taken in the order in which they were
scheduled. Times are rounded to a decimal grid far finer than an iteration: 0.1 + 0.1 + 0.1 is 0.3 here, so that
workers meet, and the end of a run is hit, exactly where arithmetic on paper says so.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec

from paceline.core.coordinator import Coordinator, Decides
from paceline.core.errors import ConfigurationError
from paceline.core.messages import Answered, Ask, Follow, Gradient, Unit, UpdateApplied, UpdateRule
from paceline.core.questions import NO_COSTS, Answer, Costs, Question
from paceline.lifecycle.lifecycle import Lifecycle
from paceline.lifecycle.messages import (
    BeginGroup,
    Discard,
    Dismiss,
    EndProcess,
    EvictionRequested,
    GiveUp,
    GradientPushed,
    GroupEvent,
    Interrupt,
    Lease,
    MakeUpdate,
    ModelArrived,
    PolicyReplaced,
    ProcessDied,
    ProcessFinished,
    Release,
    SetAside,
    StartProcess,
    WorkDropped,
    WorkRequested,
)
from paceline.lifecycle.silence import Patience
from paceline.lifecycle.validation import PortView
from paceline.lifecycle.work import Work
from paceline.recording.observer import Observer
from paceline.runtimes.driver import Driver
from paceline.runtimes.speeds import Draw

END_TOLERANCE = 1e-9  # a push that misses the end of the run by this share of it came at the end: times are rounded
GRID = 9  # decimal digits kept below the leading digit of an iteration time


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    worker: int
    draw: Draw
    joins_at: float = 0.0
    fails_at: float | None = None


@dataclass(frozen=True, slots=True)
class PolicySwitch:
    """Another policy, a fresh one, goes on from that time."""

    at: float
    policy: Decides


@dataclass(frozen=True, slots=True)
class Eviction:
    """A worker is sent away at that time."""

    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class RunEnd:
    """When a run is over: after a time (what happens exactly then still counts), or so many updates or pushes."""

    duration: float = math.inf
    updates: float = math.inf
    pushes: float = math.inf


class Learns(Protocol):
    """What computes real gradients for the workers of a simulation (paceline.training.learner)."""

    @property
    def work(self) -> Work:
        """What every worker works on."""

    @property
    def epochs(self) -> int: ...

    trained: Callable[[], Sequence[int]]  # the simulator says which workers make up the group

    def pull(self, seat: int, unit: Unit | None) -> None:
        """The worker takes the newest parameters and, if there is one, its next unit."""

    def lease(self, seat: int, unit: Unit) -> None: ...

    def push(self, seat: int) -> tuple[int, float]:
        """Compute the worker's gradient; returns its samples and its loss."""

    def leave(self, seat: int) -> None:
        """The worker will not push what it is at."""

    def make_update(self, command: MakeUpdate) -> UpdateApplied: ...

    def set_aside(self, gradient: Gradient, seat: int, version: int) -> None: ...

    def discard(self, gradient: Gradient, seat: int) -> None: ...

    def view(self) -> PortView: ...


class Happening(Enum):
    PUSH = "push"
    JOIN = "join"
    FAILURE = "failure"
    WAKE = "wake"
    SWITCH = "switch"  # to another policy
    EVICTION = "eviction"
    ANSWER = "answer"  # of a process that could not move before
    CALL = "call"  # of somebody outside


class WorkerLoop:
    """Where one simulated worker is in its loop."""

    __slots__ = ("computed_at", "draw", "iteration", "plan", "pushed", "seat")

    def __init__(self, seat: int, draw: Draw) -> None:
        self.seat = seat
        self.draw = draw
        self.iteration = 0  # iterations begun
        self.pushed = 0
        self.computed_at = 0.0  # when its gradient is ready to be sent
        self.plan = 0  # a planned push with another number was called off


NOBODY = WorkerLoop(-1, lambda iteration, now: math.inf)  # what a wake-up call is about


class Simulator:
    """One run. It is the driver's port: commands that would reach workers schedule their next push instead."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        coordinator: Coordinator,
        observers: Sequence[Observer] = (),
        *,
        push_delay: float = 0.0,
        pull_delay: float = 0.0,
        time_scale: float = 1.0,
        learner: Learns | None = None,
        patience: Patience | None = None,
        lifecycle: Lifecycle | None = None,
        switches: Sequence[PolicySwitch] = (),
        evictions: Sequence[Eviction] = (),
        rule_for: Callable[[Decides | Follow], UpdateRule | None] = lambda policy: None,
        think: Callable[[Question], Answer] = lambda question: Answer(),
        corrects: Callable[[], bool] = lambda: True,
        checked: bool = True,
    ) -> None:
        """`time_scale`: a typical iteration time; the grid of times is laid relative to it.

        `learner`: computes gradients; without one a run only keeps time, and never runs out of work. `patience`: as in
        Lifecycle. `lifecycle`: one that is there already, whose processes somebody starts. `rule_for`: how updates are
        made under a policy that a switch brings. `think`: answers what a policy asks, in no virtual time.
        `corrects`: whether stale gradients would be made up for. `checked`: validate it where all runs are validated.
        """
        self.now = 0.0
        self.pushes = 0
        self._progress = coordinator.progress
        self._learner = learner
        self._lifecycle = lifecycle or Lifecycle(
            coordinator,
            [simulated.worker for simulated in workers],
            epochs=1 if learner is None else learner.epochs,
            together=False,
            trains=learner is not None,
            patience=patience,
        )
        if learner is not None:
            if lifecycle is None:
                self._lifecycle.provide(learner.work)
            learner.trained = lambda: self._lifecycle.trained
        self._driver = Driver(self._lifecycle, self, observers)
        self._driver.validate = checked and Driver.validate
        self._push_delay = push_delay
        self._pull_delay = pull_delay
        self._digits = GRID - math.floor(math.log10(time_scale))
        self._heap: list[tuple[float, int, Happening, WorkerLoop, int]] = []  # time, sequence, what, worker, plan
        self._sequence = 0
        self._workers = {simulated.worker: WorkerLoop(simulated.worker, simulated.draw) for simulated in workers}
        self._answers: deque[GroupEvent] = deque()  # what workers do at once
        self.halted = False
        self._switches, self._rule_for, self._think, self._corrects = switches, rule_for, think, corrects
        for simulated in workers:
            worker = self._workers[simulated.worker]
            self._schedule(simulated.joins_at, Happening.JOIN, worker)
            if simulated.fails_at is not None:
                self._schedule(simulated.fails_at, Happening.FAILURE, worker)
        self._evictions = evictions
        told = [(switch.at, Happening.SWITCH, number) for number, switch in enumerate(switches)]
        told += [(eviction.at, Happening.EVICTION, number) for number, eviction in enumerate(evictions)]
        for at, happening, number in told:
            self._sequence += 1
            heapq.heappush(self._heap, (at, self._sequence, happening, NOBODY, number))

    @property
    def samples_dropped(self) -> int:
        return self._lifecycle.samples.dropped

    def run(self, end: RunEnd) -> float:
        """Run until it is over and return the virtual time at which it ended, which is also `now`."""
        heap, progress = self._heap, self._progress
        latest = end.duration * (1 + END_TOLERANCE)
        while progress.version < end.updates and self.pushes < end.pushes and not self.halted:
            if not heap or heap[0][0] > latest:
                self.now = self.now if math.isinf(end.duration) else end.duration
                break
            time, _, happening, worker, plan = heapq.heappop(heap)
            if time > end.duration:
                time = end.duration
            if happening is Happening.PUSH:
                if plan == worker.plan:
                    self._push(worker, time)
                continue
            if self._lifecycle.over:
                heap.clear()  # a policy may still want to be woken, but there is nobody left
                continue
            self.now = time
            self._happen(happening, worker, plan)
        return self.now

    def _happen(self, happening: Happening, worker: WorkerLoop, plan: int) -> None:
        """Anything but a push."""
        if happening is Happening.JOIN:
            self._deliver(ModelArrived(worker.seat))
        elif happening is Happening.FAILURE:
            self._fail(worker, "failed")
        elif happening is Happening.SWITCH:
            policy = self._switches[plan].policy
            if str(policy) != str(self._lifecycle.coordinator.policy):
                self._deliver(PolicyReplaced(policy, self._rule_for(policy)))
        elif happening is Happening.EVICTION:
            self._evict(self._evictions[plan].worker)
        else:
            self._driver.wake(self.now)
            self._deliver_answers()

    def _evict(self, worker: int) -> None:
        refusal = self._lifecycle.refusal_to_evict(worker)
        if refusal:
            raise ConfigurationError(f"sending worker {worker} away at {self.now:g}: {refusal}")
        self._deliver(EvictionRequested(worker))

    def _fail(self, worker: WorkerLoop, reason: str) -> None:
        worker.plan += 1
        if self._learner is not None:
            self._learner.leave(worker.seat)
        self._deliver(ProcessDied(worker.seat, reason))

    def halt(self) -> None:
        """End the run with what happens now."""
        self.halted = True

    def _deliver(self, event: GroupEvent) -> None:
        self._driver.deliver(event, self.now)
        self._deliver_answers()

    def _answer(self, event: WorkRequested | WorkDropped | ProcessFinished) -> None:
        """What a worker does at once."""
        self._answers.append(event)

    def _deliver_answers(self) -> None:
        while self._answers:
            self._driver.deliver(self._answers.popleft(), self.now)

    def _push(self, worker: WorkerLoop, now: float) -> None:
        self.now = now
        self.pushes += 1
        worker.pushed += 1
        if self._learner is None:
            pushed = GradientPushed(worker.seat, worker.pushed)
        else:
            samples, loss = self._learner.push(worker.seat)
            pushed = GradientPushed(worker.seat, worker.pushed, samples, 1, loss)
        self._driver.deliver(pushed, now)
        if self._answers:
            self._deliver_answers()

    def _schedule(self, time: float, happening: Happening, worker: WorkerLoop) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, happening, worker, worker.plan))

    def _compute(self, worker: WorkerLoop) -> None:
        """The worker has parameters, and begins its next iteration."""
        begins = self.now + self._pull_delay
        arrives = worker.computed_at = round(begins + worker.draw(worker.iteration, begins), self._digits)
        worker.iteration += 1
        if self._push_delay:
            arrives = round(arrives + self._push_delay, self._digits)
        self._sequence += 1
        heapq.heappush(self._heap, (arrives, self._sequence, Happening.PUSH, worker, worker.plan))

    # -- the port --

    def release(self, command: Release) -> None:
        if self._learner is not None:
            self._learner.pull(command.seat, command.unit)
            if command.unit is None:
                self._answer(WorkRequested(command.seat, self._learner.work))
                return
        self._compute(self._workers[command.seat])

    def lease(self, command: Lease) -> None:
        assert self._learner is not None
        if command.unit is None:
            self._answer(ProcessFinished(command.seat))
        else:
            self._learner.lease(command.seat, command.unit)
            self._compute(self._workers[command.seat])

    def interrupt(self, command: Interrupt) -> None:
        """A worker starts over until the very moment at which its gradient is ready; later its push is on its way."""
        worker = self._workers[command.seat]
        if worker.computed_at >= round(self.now + self._pull_delay, self._digits):
            worker.plan += 1
            self._answer(WorkDropped(command.seat, 0, 0 if self._learner is None else 1))

    def make_update(self, command: MakeUpdate) -> UpdateApplied:
        if self._learner is None:
            return UpdateApplied(command.version)  # nobody computed a gradient that could be looked at
        return self._learner.make_update(command)

    def set_aside(self, command: SetAside) -> None:
        if self._learner is not None:
            self._learner.set_aside(command.gradient, command.seat, command.version)

    def discard(self, command: Discard) -> None:
        if self._learner is not None:
            self._learner.discard(command.gradient, command.seat)

    @property
    def costs(self) -> Costs:
        """What pushes and updates keep the server busy for."""
        return NO_COSTS

    def ask(self, command: Ask) -> Answered:
        question = msgspec.structs.replace(command.question, costs=self.costs, corrected=self._corrects())
        return Answered(command.number, self._think(question))

    def rule_under(self, command: Follow) -> UpdateRule | None:
        return self._rule_for(command)

    def dismiss(self, command: Dismiss) -> None:
        self._workers[command.seat].plan += 1
        if self._learner is not None:
            self._learner.leave(command.seat)
        self._answer(ProcessFinished(command.seat))

    def end_process(self, command: EndProcess) -> None:
        """A simulated process that was told to stop has stopped."""

    def start_process(self, command: StartProcess) -> None:
        raise NotImplementedError("simulated workers come and go as their scenario says")

    def begin_group(self, command: BeginGroup) -> None:
        """Nothing has to be made: the learner has a model already."""

    def give_up(self, command: GiveUp) -> None:
        """Everybody failed: the run is over, which is a result as well."""

    def wake_at(self, time: float) -> None:
        if time < math.inf:
            self._schedule(max(time, self.now), Happening.WAKE, NOBODY)

    def view(self) -> PortView:
        return PortView() if self._learner is None else self._learner.view()
