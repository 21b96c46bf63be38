"""A discrete-event simulator: the same driver, coordinator and policies, in virtual time.

Events wait in a heap ordered by (time, sequence), so that equal times are taken in the order in which they were
scheduled. Times are rounded to a decimal grid far finer than an iteration: 0.1 + 0.1 + 0.1 is 0.3 here, so that
workers meet, and the end of a run is hit, exactly where arithmetic on paper says so.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from paceline.core.coordinator import Coordinator
from paceline.core.messages import (
    NO_WORK_LEFT,
    ApplyUpdate,
    DiscardGradient,
    Gradient,
    GradientArrived,
    Statistics,
    WorkerJoined,
    WorkerLeft,
)
from paceline.recording.observer import Observer
from paceline.runtimes.driver import Driver
from paceline.runtimes.speeds import Draw

AT_THE_END = 1e-9  # a push that misses the end of the run by this share of it came at the end: times are rounded
GRID = 9  # decimal digits kept below the leading digit of an iteration time


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    worker: int
    draw: Draw
    joins_at: float = 0.0
    fails_at: float | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """When a run is over: after a time (what happens exactly then still counts), or so many updates or pushes."""

    duration: float = math.inf
    updates: float = math.inf
    pushes: float = math.inf


class Learner(Protocol):
    """Who computes real gradients for the workers of a simulation (paceline.training.learner)."""

    def pull(self, worker: int, part: int | None = None) -> bool:
        """Take the newest parameters and the next work; False: there is none."""

    def push(self, gradient: Gradient) -> GradientArrived:
        """Compute it, and say what arrived."""

    def apply(self, command: ApplyUpdate) -> Statistics | None: ...

    def discard(self, command: DiscardGradient) -> None: ...

    def leave(self, worker: int, reason: str) -> None: ...

    @property
    def work_came_back(self) -> bool:
        """Whether there is work again for those who had to leave for want of it."""


class Happening(Enum):
    PUSH = "push"
    JOIN = "join"
    IDLE = "idle"
    FAILURE = "failure"
    WAKE = "wake"


class _Worker:
    """Where one simulated worker is in its loop."""

    __slots__ = ("computed_at", "draw", "held", "iteration", "plan", "pushed", "worker")

    def __init__(self, worker: int, draw: Draw) -> None:
        self.worker = worker
        self.draw = draw
        self.iteration = 0  # iterations begun
        self.pushed = 0
        self.held = 0  # version that it computes on
        self.computed_at = 0.0  # when its gradient is ready to be sent
        self.plan = 0  # a planned push with another number was called off


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
        learner: Learner | None = None,
    ) -> None:
        """`time_scale`: a typical iteration time; the grid of times is laid relative to it.

        `learner`: computes gradients; without one a run only keeps time, and never runs out of work.
        """
        self.now = 0.0
        self.pushes = 0
        self.version = 0
        self._driver = Driver(coordinator, self, observers)
        self._push_delay = push_delay
        self._pull_delay = pull_delay
        self._digits = GRID - math.floor(math.log10(time_scale))
        self._heap: list[tuple[float, int, Happening, int, int]] = []  # time, sequence, what, worker, plan
        self._sequence = 0
        self._workers = {each.worker: _Worker(each.worker, each.draw) for each in workers}
        self._learner = learner
        self._halted = False
        self._idle: list[_Worker] = []  # left for want of work
        self._next_worker = max(self._workers, default=-1) + 1
        for each in workers:
            self._schedule(each.joins_at, Happening.JOIN, each.worker)
            if each.fails_at is not None:
                self._schedule(each.fails_at, Happening.FAILURE, each.worker)

    def run(self, stop: RunEnd) -> float:
        """Run until it is over and return the virtual time at which it ended, which is also `now`."""
        heap, workers = self._heap, self._workers
        latest = stop.duration * (1 + AT_THE_END)
        while self.version < stop.updates and self.pushes < stop.pushes and not self._halted:
            if not heap or heap[0][0] > latest:
                self.now = self.now if math.isinf(stop.duration) else stop.duration
                break
            time, _, happening, worker, plan = heapq.heappop(heap)
            time = min(time, stop.duration)
            if happening is Happening.PUSH:
                if plan == workers[worker].plan:
                    self._push(workers[worker], time)
                continue
            self.now = time
            if happening is Happening.JOIN:
                self._driver.deliver(WorkerJoined(worker), time)
            elif happening is Happening.FAILURE:
                self._leave(worker, "failed")
            elif happening is Happening.IDLE:
                self._idle.append(workers[worker])
                self._leave(worker, NO_WORK_LEFT)
            else:
                self._driver.wake(time)
        return self.now

    def halt(self) -> None:
        """End the run with what happens now."""
        self._halted = True

    def _leave(self, worker: int, reason: str) -> None:
        self._workers[worker].plan += 1
        if self._learner is not None:
            self._learner.leave(worker, reason)
        self._driver.deliver(WorkerLeft(worker, reason), self.now)
        self._employ_the_idle()

    def _employ_the_idle(self) -> None:
        """Somebody's work came back: who has none returns under a new id, as in a real run."""
        while self._idle and self._learner is not None and self._learner.work_came_back:
            before = self._idle.pop(0)
            again = self._workers[self._next_worker] = _Worker(self._next_worker, before.draw)
            again.iteration = before.iteration
            self._next_worker += 1
            self._driver.deliver(WorkerJoined(again.worker), self.now)

    def _push(self, worker: _Worker, now: float) -> None:
        self.now = now
        self.pushes += 1
        worker.pushed += 1
        gradient = Gradient(worker.worker, worker.pushed)
        if self._learner is None:
            self._driver.deliver(GradientArrived(gradient, worker.held), now)
            return
        self._driver.deliver(self._learner.push(gradient), now)
        self._employ_the_idle()

    def _schedule(self, time: float, happening: Happening, worker: int, plan: int = 0) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, happening, worker, plan))

    # -- the port --

    def send_parameters(self, worker: int) -> None:
        state = self._workers[worker]
        state.held = self.version
        if self._learner is not None and not self._learner.pull(worker, worker):
            self._schedule(self.now, Happening.IDLE, worker)
            return
        begins = self.now + self._pull_delay
        state.computed_at = round(begins + state.draw(state.iteration, begins), self._digits)
        state.iteration += 1
        arrives = round(state.computed_at + self._push_delay, self._digits)
        self._schedule(arrives, Happening.PUSH, worker, state.plan)

    def interrupt_worker(self, worker: int) -> None:
        state = self._workers[worker]
        reached = round(self.now + self._pull_delay, self._digits)
        if state.computed_at >= reached:  # otherwise its push is on its way already
            state.plan += 1
            self.send_parameters(worker)

    def apply_update(self, command: ApplyUpdate) -> Statistics | None:
        self.version += 1
        if self._learner is None:
            return None  # nobody computed a gradient that could be looked at
        return self._learner.apply(command)

    def discard_gradient(self, command: DiscardGradient) -> None:
        if self._learner is not None:
            self._learner.discard(command)

    def wake_at(self, time: float) -> None:
        self._schedule(max(time, self.now), Happening.WAKE, -1)
